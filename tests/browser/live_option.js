// A batch that was given as an option: said so, and the way back to the file's.
const bytes = fs.readFileSync(file);
const found = {};
await ready();
found.says = await page.locator(".dial-says p").first().textContent();
found.first = { batch: told.findLast((one) => one.stage === "profile").data.profile.batch, ...(await values()) };
await page.getByLabel("Batch size as a number").fill("40");
await page.keyboard.press("Enter");
await until("batch 40", () => told.findLast((one) => one.stage === "profile").data.profile.batch === 40, 60);
found.untouched = fs.readFileSync(file).equals(bytes);
await ready();
const mark = told.length;
await page.getByRole("button", { name: "Back to the file's own" }).click();
found.back = (await stage("profile", mark)).data.profile.batch;
await ready();
found.left = await page.getByRole("button", { name: "Back to the file's own" }).count();
return found;
