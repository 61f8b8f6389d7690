// Every number that the page shows, with what goes with it: of all panels, of each part down to some depth, and of lines.
await ready();
await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
const all = () => page.evaluate(() => [...document.querySelectorAll("main .n")].filter((one) => one.textContent && one.textContent !== "–" && one.closest(".cm-gutterElement")?.style.visibility !== "hidden")
  .map((one) => ({ text: one.textContent, title: one.title, ...one.dataset })));
const found = { numbers: await all(), parts: {}, marks: [], titles: [] };
const opened = () => page.evaluate(() => ({
  rows: [...document.querySelectorAll(".step-part")].map((row) => ({ node: Number(row.dataset.node), goes: row.hasAttribute("aria-expanded"), time: { ...row.querySelector(".n.time").dataset }, memory: { ...row.querySelector(".n.memory").dataset } })),
  totals: [...document.querySelectorAll(".lane-total .n")].map((one) => ({ ...one.dataset })),
  titles: [...document.querySelectorAll('.strip[data-what="time"] .piece')].map((one) => [Number(one.dataset.node), one.title]),
}));
async function walk(depth) {
  const { rows, titles } = await opened();
  found.titles.push(...titles);
  for (const { node, goes, time, memory } of rows) {
    found.parts[node] = { time, memory };
    if (!goes || depth <= 0) continue;
    await page.locator(`.step-part[data-node="${node}"] .chevron`).click();
    found.numbers.push(...(await all()));
    await walk(depth - 1);
    await page.locator(".where .crumbs button").nth(-2).click();
  }
}
await page.locator(".where .crumbs button").first().click();
found.whole = (await opened()).totals;
await walk(3);
found.marks = await page.evaluate(() => [...document.querySelectorAll(".mark.time")].map((mark) => ({ title: mark.querySelector(".n").title, ...mark.querySelector(".n").dataset })).filter((one) => one.title));
// One hint whose memory is known and one where it is not are switched on, each alone.
found.hints = [];
for (const selector of [".hint-memory .n", ".hint-memory .faint"]) {
  const row = page.locator(".hints > li").filter({ has: page.locator("input:enabled") }).filter({ has: page.locator(selector) }).first();
  if (!(await row.count())) continue;
  const change = await row.getAttribute("data-change"), mark = told.length;
  await row.locator(".slot").click();
  const { data } = await stage("whatif", mark);
  await until("the memory with the change", async () => (await page.locator(".fact.changed-memory").count()) === 1, 20);
  await until("the sum", async () => (await page.locator(".together-memory").count()) === 1, 20);
  found.hints.push({
    change, told: data, row: await row.locator(".hint-memory").textContent(), step: await page.locator(".fact.changed .fact-value .n").evaluate((one) => ({ ...one.dataset })),
    memory: await page.locator(".fact.changed-memory .fact-value").evaluate((one) => ({ text: one.textContent, ...(one.querySelector(".n")?.dataset || {}) })),
    together: await page.locator(".together-memory").textContent(),
  });
  found.numbers.push(...(await all()));
  await page.getByRole("button", { name: "Switch all off" }).click();
  await ready();
}
const compared = ["profile", "devices", "hints", "curve"];
for (const name of compared) await stage(name); // hints of a processor come last, and nothing waited for them
found.told = Object.fromEntries(compared.map((name) => [name, told.findLast((one) => one.stage === name).data]));
return found;
