// node live_page.js URL file.py tasks.js: opens the live page, does what the script says, and prints what it found.
// The script, a function body, has `page`, `file` (path of the entry file), and the helpers of `made` below.

const { chromium } = require("playwright-core");
const fs = require("fs");
const path = require("path");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const SHOTS = process.env.ROLLER_SCREENSHOTS;

/** Open a page whose socket can be cut; `told` has what the server said. */
async function open(browser, url, more) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", reducedMotion: "reduce", ...more });
  const page = await context.newPage();
  const errors = [], requests = [], told = [], asked = [], sockets = [];
  let bytes = 0;
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  page.on("response", (response) => (bytes += Number(response.headers()["content-length"])));
  await page.routeWebSocket(/\/socket/, (socket) => {
    const server = socket.connectToServer();
    socket.onMessage((message) => (asked.push(JSON.parse(message)), server.send(message)));
    server.onMessage((message) => (told.push({ at: Date.now(), ...JSON.parse(message) }), socket.send(message)));
    sockets.push({ close: () => (socket.close(), server.close()) });
  });
  await page.goto(url);
  const made = {
    page, errors, requests, told, asked, sockets, bytes: () => bytes,
    // waitForFunction evaluates in the page, which its policy forbids; evaluate goes past it.
    async until(what, test, seconds = 240) {
      for (const end = Date.now() + 1000 * seconds; ; await page.waitForTimeout(50)) {
        const found = await test();
        if (found) return found;
        if (Date.now() > end) throw new Error(`${what}: expected within ${seconds} s, got none; the status is ${await page.locator(".status").textContent()}`);
      }
    },
    painted: async () => Number(await page.evaluate(() => document.documentElement.dataset.painted)),
    status: () => page.locator(".status").textContent(),
    /** What the page says of the step: the values with all their digits. */
    values: () => page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".fact")].map((one) => [one.classList[1], Number(one.querySelector(".fact-value .n")?.dataset.value)]))),
    literal: () => page.locator(".batch-literal").allTextContents(),
    shot: async (name) => SHOTS && (await page.evaluate("scrollTo(0, 0)"), 1) && page.screenshot({ path: path.join(SHOTS, `${name}.png`), fullPage: true }),
    async axe() {
      await page.evaluate(AXE); // past the page's policy, which allows no other script
      return (await page.evaluate("axe.run()")).violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`);
    },
    ready: () => made.until("a profile", async () => (await made.status()) === "up to date"),
    /** Wait for a stage that was not there when `told` had `from` messages. */
    stage: (name, from = 0) => made.until(name, () => told.slice(from).find((one) => one.type === "result" && one.stage === name)),
  };
  return made;
}

(async () => {
  const [url, file, scriptFile] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath: process.env.ROLLER_CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    const made = await open(browser, url);
    const names = { ...made, made, file, fs, path, another: (more) => open(browser, url, more) };
    const script = new Function(...Object.keys(names), `return (async () => {${fs.readFileSync(scriptFile, "utf8")}})()`);
    const found = await script(...Object.values(names));
    const origin = new URL(url).origin;
    console.log(JSON.stringify({ found, errors: made.errors, foreign: made.requests.filter((one) => new URL(one).origin !== origin && !one.startsWith("data:")), bytes: made.bytes(),
      painted: await made.painted() }));
  } finally {
    await browser.close();
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
