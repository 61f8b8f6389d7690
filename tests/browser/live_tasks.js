// The five tasks on one model, by mouse and by keys alone: T1 and T2 find the part with the most time and memory down to
// a leaf, T3 says whether weights or activations hold more, T4 where they are equal, T5 from where more brings little.
await stage("profile");
const found = { tree: {} };
const rows = () => page.evaluate(() => [...document.querySelectorAll(".step-part")].map((row) => ({
  node: Number(row.dataset.node), goes: row.hasAttribute("aria-expanded"), chosen: row.getAttribute("aria-selected") === "true", focused: document.activeElement === row,
  time: Number(row.children[2].dataset.value || 0), bytes: Number(row.children[4].dataset.value || 0),
})));
const home = async () => page.locator(".where .crumbs button").first().click();
for (const by of ["time", "memory"]) {
  await home();
  await page.locator(`.where .choice [data-what="${by}"]`).click();
  const way = [];
  for (let row; (row = (await rows())[0]); ) { // by the chevron
    way.push(row);
    if (!row.goes) break;
    await page.locator(".step-part").first().locator(".chevron").click();
  }
  found.tree[`mouse ${by}`] = way;
  await home();
  await page.locator(`.where .choice [data-what="${by}"]`).focus();
  await page.keyboard.press("Enter");
  while (!(await rows()).some((row) => row.focused)) await page.keyboard.press("Tab");
  await page.keyboard.press("Home");
  const keys = [];
  for (;;) {
    const row = (await rows()).find((one) => one.chosen);
    keys.push(row);
    await page.keyboard.press("Enter");
    if (!row.goes) break;
  }
  found.tree[`keys ${by}`] = keys;
  const crumbs = () => page.locator(".where .crumbs button").allTextContents();
  found.deepest = await crumbs();
  await page.keyboard.press("Escape");
  found.escaped = await crumbs();
}
await home();
found.split = await page.evaluate(() => ({ said: document.querySelector(".split").textContent, values: [...document.querySelectorAll(".split .n")].map((one) => Number(one.dataset.value)) }));
await stage("curve");
const before = fs.readFileSync(file);
for (const [name, kind] of [["T4", "balanced"], ["T5", "diminishing"]]) {
  const mark = page.locator(`.dial-marks button.${kind}`);
  if (!(await mark.count())) {
    found[name] = null;
    continue;
  }
  found[name] = Number(await mark.locator(".n").getAttribute("data-value"));
  const written = () => String(fs.readFileSync(file)) !== String(before);
  const batch = Math.max(1, Math.round(found[name]));
  for (const how of ["mouse", "keys"]) {
    if (how === "mouse") await mark.click();
    else {
      await page.locator(".dial").focus();
      while (!(await mark.evaluate((one) => document.activeElement === one))) await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
    }
    await until("the file's new batch", written, 120);
    found[`${name} ${how}`] = Number((await literal())[0]) === batch;
    await page.getByRole("button", { name: "Undo" }).click();
    await until("the file's old bytes", () => !written(), 120);
  }
}
found.profile = told.find((one) => one.stage === "profile").data;
found.curve = told.find((one) => one.stage === "curve").data;
return found;
