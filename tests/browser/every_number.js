// Reads every number that the page can show: of the tree by both measures, of every chosen part, of every table from its
// first row to its last, of every moment of memory.
const numbers = {};
const read = (where) => page.evaluate((selector) => Array.from(document.querySelectorAll(selector), (one) => ({ text: one.textContent, title: one.title, ...one.dataset })).filter((one) => one.text && one.text !== "–"), where);
const add = async (name, where) => (numbers[name] ||= []).push(...(await read(where)));
await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
await page.waitForTimeout(50);
await add("whole", "main .n");
const nodes = {};
for (const [metric, button] of [["memory", "Memory at the peak"], ["time", "Wall time"]]) {
  await page.getByRole("button", { name: button }).click();
  nodes[metric] = await page.evaluate(() => Array.from(document.querySelectorAll(".box"), (box) => ({ node: Number(box.dataset.node), ...box.querySelector(".n").dataset })));
}
const details = {};
for (const { node } of nodes.time) {
  details[node] = await page.evaluate((wanted) => {
    document.querySelector(`.box[data-node="${wanted}"]`).dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    return Array.from(document.querySelectorAll(".details dl > div"), (row) => ({ name: row.children[0].textContent, text: row.children[1].textContent, ...(row.querySelector(".n")?.dataset || {}) }));
  }, node);
  await add("details", ".details .n");
}
const tables = {};
for (const tab of await page.getByRole("tab").all()) {
  await tab.click();
  const name = (await tab.textContent()).split(" ")[0];
  const rows = (tables[name] = {});
  const step = () => page.evaluate(() => {
    const box = document.querySelector(".table");
    const heads = Array.from(box.querySelectorAll(".head .cell"), (cell) => cell.textContent);
    const found = Array.from(box.querySelectorAll(".rows .row:not([hidden])"), (row) => [row.children[0].title, Object.fromEntries(heads.map((head, at) => [head, { text: row.children[at].textContent, ...(row.children[at].firstElementChild?.dataset || {}) }]))]);
    const end = box.scrollTop + box.clientHeight >= box.scrollHeight - 1;
    box.scrollTop += 5 * 28;
    return { found, end };
  });
  for (let end = false; !end; ) {
    const seen = await step();
    Object.assign(rows, Object.fromEntries(seen.found));
    end = seen.end;
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  }
  await add("tables", ".rows .row:not([hidden]) .n");
}
const moments = [];
const slider = page.getByRole("slider");
if (await slider.count()) {
  await slider.focus();
  await page.keyboard.press("Home");
  for (let at = 0, count = Number(await slider.getAttribute("aria-valuemax")); at <= count; at++) {
    moments.push(await page.evaluate(() => ({
      levels: Array.from(document.querySelectorAll('.beside .legend .n'), (one) => Number(one.dataset.value)),
      holders: Array.from(document.querySelectorAll(".holders li"), (row) => [row.querySelector(".key").title, Number(row.querySelector(".n").dataset.value)]),
    })));
    if (!at) await add("moments", ".beside .n, .holders .n");
    await page.keyboard.press("ArrowRight");
  }
}
return { numbers, nodes, details, tables, moments };
