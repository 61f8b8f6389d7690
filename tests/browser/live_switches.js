// Switches and comparisons, on a small project under git with a file of prices.
const found = {};
const bytes = fs.readFileSync(file), source = bytes.toString();
const net = path.join(path.dirname(file), "net.py"), netBytes = fs.readFileSync(net);
const numbersOf = (selector) => page.evaluate((wanted) => [...document.querySelectorAll(wanted)].map((one) => ({ text: one.textContent, ...one.dataset })), selector);
await ready();
found.values = await values();
found.told = told.findLast((one) => one.stage === "profile").data;
found.curve = told.findLast((one) => one.stage === "curve").data;

// Memory by kind follows the dial.
const kinds = () => page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".kinds-of .legend li")].map((row) => [row.querySelector(".key").textContent, Number(row.querySelector(".n").dataset.value)])));
const split = () => page.evaluate(() => [...document.querySelectorAll(".split .n")].map((one) => Number(one.dataset.value)));
found.kinds = { before: await kinds(), split: await split() };
await page.locator(".dial").focus();
for (let press = 0; press < 4; press++) await page.keyboard.press("PageUp");
found.kinds.marks = await page.locator(".devices-panel .stale-mark, .changes .stale-mark").allTextContents();
found.kinds.batch = Number(await page.locator(".dial").getAttribute("aria-valuenow"));
Object.assign(found.kinds, { dialled: await kinds(), splitDialled: await split(), title: await page.locator(".kinds-of h3").textContent(), total: Number((await numbersOf(".lane-total .n"))[1].value) });
await page.keyboard.press("Escape");
await until("the file's own bytes", () => fs.readFileSync(file).equals(bytes), 20);
found.kinds.after = await kinds();

// Checkpointing is switched on by a key.
let mark = told.length;
await page.getByRole("switch", { name: "Checkpointing" }).focus();
await page.keyboard.press("Space");
const again = (await stage("profile", mark)).data.profile;
await until("the step with checkpoints", async () => (await values()).step === again.iteration_s, 20);
found.checkpoint = { ...(await values()), told: [again.iteration_s, again.total_bytes], blocks: again.checkpoint, says: await page.locator(".fact.on").textContent() };
await ready();
mark = told.length;
await page.getByRole("switch", { name: "Checkpointing" }).click({ force: true });
await stage("profile", mark);
await ready();
found.checkpoint.off = await values();

// More devices that share the batch, and another link between them.
const slider = page.getByLabel("Data-parallel devices");
mark = told.length;
await slider.focus();
for (let press = 0; press < 3; press++) await page.keyboard.press("ArrowRight");
const changes = () => asked.findLast((one) => one.type === "options").options.changes;
const sent = (what) => until(what, () => told.slice(mark).find((one) => one.stage === "whatif" && one.data && String(one.options.changes) === String(changes())), 120);
await until("four devices", () => changes().some((one) => one.includes("devices=4,")), 20);
found.four = { changes: changes(), told: (await sent("four devices")).data };
await until("its step", async () => (await values()).changed === found.four.told.iteration_us / 1e6, 20);
found.four.memory = Number((await numbersOf(".fact.changed-memory .n"))[0].value);
mark = told.length;
await page.getByLabel("Link between devices").selectOption({ label: "Ethernet 10 Gbit/s" });
await until("the link", () => changes().some((one) => one.includes("bandwidth=1250000000")), 20);
found.slow = { changes: changes(), told: (await sent("the link")).data };
await until("its step", async () => (await values()).changed === found.slow.told.iteration_us / 1e6, 20);
await slider.focus();
await page.keyboard.press("Home");
await until("one device", async () => (await values()).changed === undefined, 30);
await ready();

// Prices of a run.
await page.getByLabel("Epochs").fill("3");
await page.getByLabel("Samples of an epoch").fill("1000000");
found.run = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".device dl > div")].map((row) => [row.firstChild.textContent, [...row.querySelectorAll(".n")].map((one) => ({ ...one.dataset }))])));
found.old = await page.locator(".device .old").allTextContents();

// The difference to git HEAD, and back to the last save.
fs.writeFileSync(file, source.replaceAll("1000)", "2000)"));
mark = told.length;
await stage("difference", mark);
await ready();
found.last = told.findLast((one) => one.stage === "difference").data;
mark = told.length;
await page.locator('.difference [data-what="head"]').focus();
await page.keyboard.press("Enter");
found.pressed = await until("the other comparison", () => page.locator('.difference [data-what="head"]').getAttribute("aria-pressed").then((is) => is === "true"), 20);
found.head = (await stage("difference", mark)).data;
await until("its sums", async () => (await page.locator(".difference .sums").count()) === 1, 20);
await ready();
found.headShown = await page.evaluate(() => ({
  sums: [...document.querySelectorAll(".difference .sums .n")].map((one) => Number(one.dataset.value)),
  rows: [...document.querySelectorAll(".difference tbody tr")].map((row) => [row.children[0].textContent, Number(row.children[1].querySelector(".n")?.dataset.value ?? 0)]),
}));
await shot("live-1280-head");
fs.writeFileSync(file, bytes);
await page.locator('.difference [data-what="last"]').click();
await ready();

// Two clients edit one file: the second learns of it, and decides.
const second = await another();
await second.ready();
const type = async (client, words) => {
  await client.page.locator(".cm-content").focus();
  await client.page.keyboard.press("Control+End");
  await client.page.keyboard.type(words);
};
const save = (client) => client.page.locator(".cm-content").press("Control+s");
await type(second, "# second");
await type(made, "# first");
await save(made);
await until("the first text", () => fs.readFileSync(file, "utf8") === `${source}# first`, 20);
await until("the conflict", () => second.page.locator(".conflict:visible").count(), 20);
found.conflict = await second.page.locator(".conflict").textContent();
await second.shot("live-1280-conflict");
await save(second);
await second.page.waitForTimeout(500);
found.refused = fs.readFileSync(file, "utf8") === `${source}# first`; // it did not write over it
await second.page.getByRole("button", { name: "Write mine over it" }).click();
await until("the second text", () => fs.readFileSync(file, "utf8") === `${source}# second`, 20);
const textOf = (client) => client.page.locator(".cm-content").evaluate((one) => one.innerText);
await until("the second text at the first client", async () => (await textOf(made)).includes("# second"), 20);
await type(second, "# lost");
fs.writeFileSync(file, bytes);
await until("the other conflict", () => second.page.locator(".conflict:visible").count(), 20);
await second.page.getByRole("button", { name: "Take the file's text" }).click();
await until("the disk's text", async () => !(await textOf(second)).includes("# lost"), 20);
found.taken = { hidden: !(await second.page.locator(".conflict:visible").count()), dirty: await second.page.locator(".dirty").textContent() };
await second.ready();

// A conflict of a file that is not shown: the one that is shown stays as it is.
await second.page.getByLabel("File", { exact: true }).selectOption("net.py");
await until("the other file", async () => (await textOf(second)).includes("class Block"), 20);
await type(second, "# mine");
await second.page.getByLabel("File", { exact: true }).selectOption("train.py");
await until("the entry file", async () => (await textOf(second)).includes("model_provider"), 20);
fs.writeFileSync(net, `${netBytes}# of the disk\n`);
await until("the conflict of the other file", () => second.page.locator(".conflict:visible").count(), 20);
await second.page.getByRole("button", { name: "Take the file's text" }).click();
await until("that file", async () => (await textOf(second)).includes("# of the disk"), 20);
await second.page.getByLabel("File", { exact: true }).selectOption("train.py");
await until("the entry file", async () => (await textOf(second)).includes("model_provider"), 20);
found.entryStays = { disk: fs.readFileSync(file).equals(bytes), dirty: await second.page.locator(".dirty").textContent(), net: (await textOf(second)).includes("class Block") };
fs.writeFileSync(net, netBytes);
await ready();
return found;
