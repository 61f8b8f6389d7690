// A file without a literal batch: the reader says which number it is, and the dial writes that one, again and again.
const bytes = fs.readFileSync(file);
const found = { sizes: [] };
await ready();
found.says = await page.locator(".dial-says").textContent();
found.before = await literal();
await page.locator(".dial-says").getByRole("button", { name: /SIZE = 16/ }).click();
found.adopted = await literal();
found.silent = await page.locator(".dial-says").textContent();
const size = () => /^SIZE = (\d+)$/m.exec(fs.readFileSync(file, "utf8"))?.[1];
for (const batch of ["128", "8", "4096"]) {
  const from = told.length;
  await page.getByLabel("Batch size as a number").fill(batch);
  await page.keyboard.press("Enter");
  await until(`batch ${batch} in the file`, () => size() === batch, 20);
  found.sizes.push([size(), (await literal())[0], (await stage("profile", from)).data.profile.batch, fs.readFileSync(file, "utf8").replace(/^SIZE = \d+$/m, "SIZE = 16") === String(bytes)]);
  await ready();
}
found.undone = [];
for (let undo = 0; undo < 3; undo++) {
  await page.getByRole("button", { name: "Undo" }).click(); // it does not wait for the save before
  found.undone.push((await literal())[0]);
}
await until("the first bytes", () => fs.readFileSync(file).equals(bytes), 20);
return found;
