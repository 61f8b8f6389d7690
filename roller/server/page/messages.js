// The head of the page, and what went wrong: with the line, which a click opens, and the output of the step's process.

const PLACE = /([^\s:"'()]+\.py):(\d+)/;
const THEMES = ["light dark", "light", "dark"];
const TOAST_MS = 8000;

/** A text whose first "file:line" opens there; or the place that is given. */
function linkedText(state, said, place) {
  const found = PLACE.exec(said);
  if (!found) return place ? [state.placeLink(place), ": ", said] : [said];
  return [said.slice(0, found.index), state.placeLink(found[0]), said.slice(found.index + found[0].length)];
}

function placeLink(state, place) {
  return el("button.place", { type: "button", onclick: () => state.openPlace(place) }, place);
}

function pageHead(state, server) {
  const status = el("span.status", { role: "status" });
  const bar = el("span.progress", { "aria-hidden": "true" });
  const live = toggle("Live", (on) => server.send({ type: "live", on }));
  const profile = el("button", { type: "button", onclick: () => server.send({ type: "profile" }) }, "Profile now");
  const theme = el("button.quiet", { type: "button", onclick: () => setTheme((THEMES.indexOf(document.documentElement.style.colorScheme || THEMES[0]) + 1) % 3) });
  const title = el("h1", {}, "roller");
  live.element.title = "Profile at each save";

  function setTheme(next) {
    document.documentElement.style.colorScheme = THEMES[next];
    theme.textContent = ["◐", "☀", "☾"][next];
    theme.setAttribute("aria-label", `Theme: ${["system", "light", "dark"][next]}`);
    localStorage.setItem("roller theme", next);
  }
  setTheme(Number(localStorage.getItem("roller theme")) || 0);

  function draw() {
    const { head, hello, connection } = state;
    if (hello) fill(title, hello.entry, " ", el("span.on", {}, hello.project)), (document.title = `${hello.entry} – roller`);
    const [name, kind] = connection !== "open" ? [state.connectionText || "connecting", "cut"] : wordsOf(head);
    status.className = `status ${kind}`;
    status.textContent = name;
    live.input.disabled = profile.disabled = connection !== "open";
    if (head) live.set(head.live);
    progress();
  }

  function wordsOf(head) {
    if (!head) return ["connecting", "cut"];
    return { running: ["profiling", "running"], ready: ["up to date", "ready"], stale: ["stale: the files changed", "stale"], failed: ["failed", "failed"], idle: ["not profiled yet", "stale"] }[head.status];
  }

  function progress() {
    const { head, connection } = state;
    const running = connection === "open" && head?.status === "running";
    bar.hidden = !running;
    if (!running) return;
    const [what, done, total] = head.progress || ["", 0, 0];
    status.textContent = `profiling${what ? `: ${words(what)}` : ""}`;
    bar.style.setProperty("--done", total ? `${(100 * done) / total}%` : "12%");
  }

  state.on("hello status connection", draw);
  state.on("progress", progress);
  return el("header.page-head", {}, title, status, bar, el("span.push", {}), live.element, profile, theme);
}

/** The step in four numbers. */
function summary(state) {
  const element = el("section.summary", { "aria-label": "The step" });
  function draw() {
    const { model } = state;
    if (!model) return;
    const { profile } = model, at = stepAt(state), changed = state.head?.options.changes.length && !state.isStale("whatif") ? state.data("whatif") : null;
    element.classList.toggle("stale", state.isStale("profile"));
    fill(element, 
      fact("One step", number(at.time, "s", at.label, at.interval), at.interval ? spreadText(at.interval, "s", at.label) : "by the line over the batch", "step"),
      changed && changed.iteration_us ? fact("With the changes", number(changed.iteration_us / 1e6, "s", model.label, [changed.lower_us / 1e6, changed.upper_us / 1e6]), spreadText([changed.lower_us / 1e6, changed.upper_us / 1e6], "s", model.label), "changed") : null,
      fact("Throughput", at.fits && at.throughput ? number(at.throughput, "samples/s", at.label, at.throughputInterval) : "–", at.batch ? ["batch ", number(at.batch, "", "recorded", "exact")] : "", "throughput"),
      fact("Memory at the peak", number(at.bytes, "bytes", at.label, at.bytesInterval), capacityShare(at.bytes, at.label), "memory"),
      changed && changed.iteration_us ? fact("Memory with the changes", changed.total_bytes === null ? el("span.no-value", {}, memoryWords(changed)) : number(changed.total_bytes, "bytes", model.label), changed.total_bytes === null ? "" : capacityShare(changed.total_bytes, model.label), "changed-memory") : null,
      fact("On", `${profile.devices > 1 ? `${profile.devices} × ` : ""}${profile.device}`, [chip(at.label), " ", profile.amp, profile.checkpoint.length ? ", checkpoints" : "", profile.bound ? `, bound by the ${profile.bound}` : ""], "on"));
  }
  function capacityShare(size, label) {
    const capacity = state.model.profile.capacity_bytes;
    return capacity ? [size ? number(size / capacity, "share", label) : "", " of ", number(capacity, "bytes", "recorded", "exact")] : "capacity not known";
  }

  state.on("status profile curve batch whatif", draw);
  return element;
}

/** Why the memory of a change is not told, in a few words. */
function memoryWords({ memory_note: note }) {
  return note.startsWith("not modelled") ? "not modelled" : note;
}

function fact(title, value, below, name) {
  return el(`div.fact.${name}`, {}, el("div.fact-title", {}, title), el("div.fact-value", {}, value), el("div.faint", {}, below));
}

/** Errors of the latest profile, a step that does not fit, and what the server refused. */
function messages(state) {
  const failure = el("section.alarm", { role: "alert", hidden: true }), unfit = el("section.alarm", { hidden: true });
  const toast = el("div.toast", { role: "status", hidden: true });
  let timer = 0;

  function drawFailure() {
    const { error } = state;
    failure.hidden = !error;
    if (!error) return;
    const rows = error.problems.map((one) => ({ place: one.file ? `${one.file}:${one.line}` : null, text: one.text }));
    const isOne = rows.length <= 1 || rows.every((row) => row.text === error.text);
    const output = error.output.filter((line) => line.trim());
    fill(failure, el("h2", {}, "The step could not be profiled"),
      isOne ? el("p", {}, linkedText(state, error.text, rows[0]?.place)) : el("ul.plain", {}, rows.map((row) => el("li", {}, linkedText(state, row.text, row.place)))),
      output.length ? el("details", {}, el("summary", {}, `Output of the step's process, ${output.length} lines`), el("pre", { tabindex: "0" }, output.join("\n"))) : "",
      state.model ? el("p.faint", {}, "The numbers below are those of the last profile.") : "");
  }

  function drawUnfit() {
    const said = state.model?.profile.out_of_memory;
    unfit.hidden = !said || Boolean(state.error); // of the profile before the error
    if (!unfit.hidden) fill(unfit, el("h2", {}, "It does not fit"), el("p", {}, linkedText(state, said)));
  }

  state.say = (said) => {
    fill(toast, ...linkedText(state, said));
    toast.hidden = false;
    clearTimeout(timer);
    timer = setTimeout(() => (toast.hidden = true), TOAST_MS);
  };
  state.on("refused", () => state.say(state.refused));
  state.on("status", drawFailure);
  state.on("status profile", drawUnfit);
  return [failure, unfit, toast];
}
