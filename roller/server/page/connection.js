// The connection to the server: sends requests, receives messages, and reconnects.

const PROTOCOL = 1;
const FIRST_WAIT_MS = 250, LONGEST_WAIT_MS = 8000;
/** A connection that lasts as long is sound: the next wait is short again. */
const SOUND_MS = 10000;
/** Codes with which the server closes for good, and what helps. */
const REFUSALS = {
  4403: "This address is from an earlier run. Open the one that roller serve printed last.",
  4400: "This page is from another release than the server. Reload it.",
};

/** Codes of the server's own: their reasons are for people. */
const isOwnCode = (code) => code >= 4000 && code < 5000;

/**
 * Connect. handlers: tell(message) for what the server says; status("open"), status("waiting", seconds, why the server
 * closed, or "") or status("refused", what helps).
 * Returns {send(message), ask(message) -> promise of the answer to this client alone}.
 */
function connect(handlers) {
  const address = new URL("/socket", location.href);
  address.protocol = "ws:";
  address.search = new URLSearchParams({ token: new URLSearchParams(location.search).get("token") || "" });
  const answers = new Map();
  let socket = null, count = 0, wait = FIRST_WAIT_MS, timer = 0, openedAt = null;

  function open() {
    clearTimeout(timer);
    timer = 0;
    openedAt = null;
    const made = (socket = new WebSocket(address));
    made.onopen = () => send({ type: "hello", version: PROTOCOL });
    made.onmessage = (event) => take(JSON.parse(event.data));
    made.onclose = (event) => made === socket && closed(event.code, event.reason);
  }

  function take(message) {
    if (message.type === "hello") {
      openedAt = Date.now();
      handlers.status("open");
    }
    const waiting = answers.get(message.id);
    if (waiting && ["source", "saved", "refused"].includes(message.type)) {
      answers.delete(message.id);
      if (message.type === "refused") waiting.reject(new Error(message.text));
      else waiting.resolve(message);
    } else handlers.tell(message);
  }

  function closed(code, reason) {
    for (const waiting of answers.values()) waiting.reject(new Error("The connection was cut; it is made again by itself."));
    answers.clear();
    if (REFUSALS[code]) return handlers.status("refused", REFUSALS[code]);
    if (openedAt !== null && Date.now() - openedAt >= SOUND_MS) wait = FIRST_WAIT_MS;
    handlers.status("waiting", wait / 1000, isOwnCode(code) ? reason : "");
    timer = setTimeout(open, wait * (0.75 + Math.random() / 2));
    wait = Math.min(LONGEST_WAIT_MS, wait * 2);
  }

  function send(message) {
    if (socket.readyState !== WebSocket.OPEN) return false;
    socket.send(JSON.stringify(message));
    return true;
  }

  function ask(message) {
    const id = ++count;
    return new Promise((resolve, reject) => {
      answers.set(id, { resolve, reject });
      if (!send({ ...message, id })) {
        answers.delete(id);
        reject(new Error("There is no connection to the server; it is made again by itself."));
      }
    });
  }

  const now = () => timer && open(); // a connection is cut, and not refused
  addEventListener("online", now);
  document.addEventListener("visibilitychange", () => document.hidden || now());
  open();
  return { send, ask };
}
