// node open_page.js page.html [script.js]: opens a page with the network cut, and prints what was found as JSON.
// The script, a function body with `page` and `evaluate`, says what is done on it; what it returns is `found`.

const { chromium } = require("playwright-core");
const fs = require("fs");
const path = require("path");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

async function look(browser, file, width, colorScheme, script) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, offline: true, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  const errors = [], requests = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  await page.goto("file://" + path.resolve(file));
  for (let tries = 0; !(await page.evaluate(() => document.documentElement.dataset.ready)) && tries < 400; tries++) await page.waitForTimeout(25);
  const ready = Number(await page.evaluate(() => document.documentElement.dataset.ready));
  const found = script ? await new Function("page", `return (async () => {${script}})()`)(page) : null;
  await page.evaluate(AXE); // past the page's policy, which allows no other script
  const violations = (await page.evaluate("axe.run()")).violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const sideways = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  if (process.env.ROLLER_SCREENSHOTS) await page.screenshot({ path: path.join(process.env.ROLLER_SCREENSHOTS, `${path.basename(file, ".html")}-${colorScheme}-${width}.png`), fullPage: true });
  await context.close();
  return { width, colorScheme, ready, errors, requests: requests.slice(1), sideways, found,
    violations: violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`) };
}

(async () => {
  const [file, scriptFile] = process.argv.slice(2);
  const script = scriptFile ? fs.readFileSync(scriptFile, "utf8") : "";
  const browser = await chromium.launch({ executablePath: process.env.ROLLER_CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  const all = [await look(browser, file, 1280, "light", script), await look(browser, file, 390, "dark", "")];
  await browser.close();
  console.log(JSON.stringify(all));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
