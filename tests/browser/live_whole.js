// Everything else of the page, on a small model.
const found = {};
const bytes = fs.readFileSync(file), source = bytes.toString();
await ready();
found.ready = Number(await page.evaluate(() => document.documentElement.dataset.ready));
found.values = await values();
found.device = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".device dl > div")].map((row) => [row.firstChild.textContent, Object.fromEntries(Object.entries(row.querySelector(".n")?.dataset || {}))])));
found.hints = await page.evaluate(() => [...document.querySelectorAll(".hints > li")].map((row) => ({
  change: row.dataset.change, delta: Number(row.querySelector(".gain .n")?.dataset.value), to: Number(row.querySelector(".to .n")?.dataset.value), lower: Number(row.querySelector(".to .n")?.dataset.lower), hardly: row.classList.contains("hardly"),
})));
found.numbers = await page.evaluate(() => [...document.querySelectorAll("main .n")].filter((one) => one.textContent && one.textContent !== "–").map((one) => ({ text: one.textContent, ...one.dataset })));
await page.locator(".step-part").first().hover();
found.linked = await page.evaluate(() => [".strip .piece.linked", ".step-part.linked", ".linked-line"].map((one) => document.querySelectorAll(one).length));
await shot("live-1280-light");
found.axe = await axe();

// The dial is dragged over 60 positions; the pointer leaves it meanwhile.
await page.evaluate(() => {
  window.edits = [];
  let last = null;
  const look = () => {
    const now = document.querySelector(".batch-literal")?.textContent ?? null;
    if (now !== last) window.edits.push([performance.now(), (last = now)]);
  };
  look();
  new MutationObserver(look).observe(document.querySelector(".cm-content"), { subtree: true, childList: true, characterData: true });
});
await page.locator(".dial").scrollIntoViewIfNeeded();
const box = await page.locator(".dial").boundingBox();
const handle = await page.locator(".dial .handle circle").boundingBox();
let x = handle.x + handle.width / 2;
await page.mouse.move(x, box.y + 60);
await page.mouse.down();
found.dragged = [];
for (let step = 0; step < 60; step++) {
  x += 3;
  await page.mouse.move(x, step > 25 ? box.y - 200 : box.y + 60);
  if (step % 10 === 9) found.dragged.push([Number(await page.locator(".dial").getAttribute("aria-valuenow")), (await values()).step]);
  if (step === 30) await page.waitForTimeout(700); // longer than an editor joins edits
}
await shot("live-1280-dial");
const from = told.length;
await page.mouse.up();
const turned = await page.locator(".dial").getAttribute("aria-valuenow");
await until("the batch in the file", () => fs.readFileSync(file, "utf8").includes(`batch_size=${turned})`), 20);
found.released = fs.readFileSync(file, "utf8") === source.replace("batch_size=16", `batch_size=${turned}`);
found.redraws = await page.evaluate(() => performance.getEntriesByName("dial").map((one) => one.duration));
found.edits = await page.evaluate(() => window.edits);
found.after = (await stage("profile", from)).data.profile.batch;
await until("the profile's own value", async () => (await values()).step === told.findLast((one) => one.stage === "profile").data.profile.iteration_s, 20);
await page.locator(".cm-content").focus();
await page.keyboard.press("Control+z");
await until("the file's bytes after one undo", () => fs.readFileSync(file).equals(bytes), 20);
found.undone = (await literal())[0];

// Keys: Escape goes back, a page key doubles, and a number can be typed.
await page.locator(".dial").focus();
await page.keyboard.press("PageUp");
await page.keyboard.press("ArrowRight");
found.keyed = Number(await page.locator(".dial").getAttribute("aria-valuenow"));
await page.keyboard.press("Escape");
await page.waitForTimeout(300);
found.escaped = [(await literal())[0], fs.readFileSync(file).equals(bytes)];
await page.getByLabel("Batch size as a number").fill("24");
await page.keyboard.press("Enter");
await until("the typed batch", () => fs.readFileSync(file, "utf8").includes("batch_size=24)"), 20);
await page.getByRole("button", { name: "Undo" }).click();
await until("the bytes after the typed batch", () => fs.readFileSync(file).equals(bytes), 20);
await ready();

// Two saves within 100 ms: one result, of the second.
let mark = told.length;
fs.writeFileSync(file, source.replace("batch_size=16", "batch_size=31"));
await page.waitForTimeout(40);
fs.writeFileSync(file, source.replace("batch_size=16", "batch_size=33"));
await stage("whatif", mark);
found.saves = told.slice(mark).filter((one) => one.stage === "profile").map((one) => one.data.profile.batch);
found.sourceFollows = (await literal())[0];
await until("the difference", async () => (await page.locator(".difference .sums").count()) > 0, 20);
found.difference = await page.evaluate(() => [...document.querySelectorAll(".difference .sums .n")].map((one) => Number(one.dataset.value)));
found.differenceTold = told.findLast((one) => one.stage === "difference").data;
fs.writeFileSync(file, bytes);
await until("the first values", async () => (await values()).step === found.values.step, 120);

// Not live: a save makes it stale.
await page.getByRole("switch", { name: "Live" }).focus();
await page.keyboard.press("Space");
await until("live is off", () => told.at(-1).live === false, 10);
fs.writeFileSync(file, source.replace("batch_size=16", "batch_size=18"));
await until("stale", async () => (await status()).startsWith("stale"), 10);
fs.writeFileSync(file, bytes);
await page.waitForTimeout(300);
await page.getByRole("switch", { name: "Live" }).focus();
await page.keyboard.press("Space");
await ready();

// The connection is cut and regained: what was opened stays, and what changed meanwhile comes.
await page.locator(".step-part").first().dblclick();
const opened = await page.locator(".where .crumbs button").allTextContents();
sockets.at(-1).close();
await until("the cut", async () => (await status()).startsWith("no connection"), 10);
found.cutKeeps = (await values()).step;
await until("the connection", async () => (await status()) === "up to date", 30);
found.regained = { sockets: sockets.length, same: JSON.stringify(opened) === JSON.stringify(await page.locator(".where .crumbs button").allTextContents()) };

// A second client sees the same, also of what the first one chooses.
const second = await another({ viewport: { width: 390, height: 844 }, colorScheme: "dark" });
await second.ready();
found.second = await second.values();
await second.shot("live-390-dark");
found.secondAxe = await second.axe();
found.sideways = await second.page.evaluate(() => document.documentElement.scrollWidth > innerWidth);

// Precision and checkpointing redraw time and memory; a hint redraws the time.
mark = told.length;
await page.getByLabel("Precision").selectOption("bf16");
const half = (await stage("profile", mark)).data.profile;
await until("the time of bf16", async () => (await values()).step === half.iteration_s, 10);
found.half = { ...(await values()), told: [half.iteration_s, half.total_bytes], amp: half.amp };
await second.until("bf16 at the second client", async () => (await second.values()).step === half.iteration_s, 30);
await page.getByLabel("Precision").selectOption("fp32");
await until("fp32", async () => (await values()).step === found.values.step, 120);
await ready();
mark = told.length;
const hint = page.locator(".hints > li").filter({ has: page.locator("input:enabled") }).first();
found.hint = await hint.getAttribute("data-change");
await hint.getByRole("switch").focus();
await page.keyboard.press("Space");
const whatif = (await stage("whatif", mark)).data;
await until("the time with the hint", async () => (await values()).changed === whatif.iteration_us / 1e6, 10);
found.changed = (await values()).changed;
await shot("live-1280-hint");
await page.getByRole("button", { name: "Switch all off" }).click();
await until("no change", async () => (await values()).changed === undefined, 30);
await ready();

// Another device beside it by keys, then profiled in its place.
mark = told.length;
await page.getByLabel("Add a device").focus();
await page.keyboard.type("h100");
await page.keyboard.press("Enter");
await until("two devices", () => told.slice(mark).find((one) => one.stage === "devices" && one.data.length === 2), 120);
await until("its row", async () => (await page.locator(".device dl").count()) === 2, 10);
found.devices = await page.locator(".device").evaluateAll((all) => all.map((one) => one.dataset.device));
await ready();
await page.getByRole("button", { name: "Profile this one" }).click();
await until("the other device", async () => (await page.locator(".fact.on .fact-value").textContent()) === found.devices[1], 120);
await ready();
found.other = { ...(await values()), told: told.findLast((one) => one.stage === "profile").data.profile.iteration_s };
await shot("live-1280-devices");

// An error names its line, which opens there.
fs.writeFileSync(file, source.replace("model(x), y)", "model(x), z)"));
await until("the failure", async () => (await status()) === "failed", 60);
found.failure = await page.locator(".alarm:visible").first().textContent();
await shot("live-1280-failure");
await page.locator(".alarm:visible .place").first().click();
found.place = await page.locator(".reading").textContent();
fs.writeFileSync(file, bytes);
await ready();
found.mended = await page.locator(".alarm:visible").count();

for (const [width, height, scheme] of [[1280, 900, "dark"], [390, 844, "light"]]) {
  const look = await another({ viewport: { width, height }, colorScheme: scheme });
  await look.ready();
  await look.shot(`live-${width}-${scheme}`);
  found.axe.push(...(await look.axe()));
  found.errors = [...(found.errors || []), ...look.errors, ...second.errors];
  found.painted = [...(found.painted || []), await look.painted(), await second.painted(), await made.painted()];
}
return found;
