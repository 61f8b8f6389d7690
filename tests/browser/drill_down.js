// Goes into the tree by mouse and by keys alone, and reads every number of the page.
const crumbs = () => page.locator(".crumbs button").allTextContents();
const selected = () => page.evaluate(() => {
  const box = document.querySelector('.box[aria-selected="true"]');
  return { node: Number(box.dataset.node), focused: document.activeElement === box, value: Number(box.querySelector(".n").dataset.value) };
});
const found = {};
found.start = await crumbs();
await page.locator('.box[aria-level="3"]').first().click();
found.clicked = await crumbs();
await page.keyboard.press("Escape");
found.escaped = await crumbs();
while ((await crumbs()).length > 1) await page.keyboard.press("Escape");
await page.locator('.box[data-node="0"]').focus();
found.keys = [await selected()];
for (const key of ["ArrowDown", "ArrowDown", "Enter", "ArrowDown", "ArrowRight", "ArrowUp", "Escape"]) {
  await page.keyboard.press(key);
  found.keys.push({ key, crumbs: (await crumbs()).length, ...(await selected()) });
}
while ((await crumbs()).length > 1) await page.keyboard.press("Escape");
await page.getByRole("button", { name: "Memory at the peak" }).click();
found.memory = await page.evaluate(() => Array.from(document.querySelectorAll(".box"), (box) => [Number(box.dataset.node), Number(box.querySelector(".n").dataset.value)]));
await page.getByRole("button", { name: "Wall time" }).click();
found.time = await page.evaluate(() => Array.from(document.querySelectorAll(".box"), (box) => [Number(box.dataset.node), Number(box.querySelector(".n").dataset.value)]));
found.numbers = await page.evaluate(() => Array.from(document.querySelectorAll("main .n"), (one) => ({ text: one.textContent, ...one.dataset })).filter((one) => one.text && one.text !== "–"));
found.tables = {};
for (const tab of await page.getByRole("tab").all()) {
  await tab.click();
  found.tables[(await tab.textContent()).split(" ")[0]] = await page.evaluate(() => Array.from(document.querySelectorAll(".rows .row:not([hidden])"), (row) =>
    [row.children[0].title, Number(row.children[1].firstChild.dataset.value)]));
}
const moment = page.getByRole("slider");
if (await moment.count()) {
  await moment.focus();
  await page.keyboard.press("Home");
  const read = () => page.evaluate(() => Number(document.querySelector('.beside .n').dataset.value));
  found.moments = [await read()];
  await page.keyboard.press("End");
  found.moments.push(await read());
}
// A row of a table marks its parts in the tree.
await page.getByRole("tab").first().click();
await page.locator(".rows .row").first().hover();
found.marked = await page.locator(".box.marked").count();
return found;
