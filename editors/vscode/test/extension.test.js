"use strict";
const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { test } = require("node:test");
const { SETTINGS, createExtension } = require("../src/extension");
const { client, editor } = require("../stub_vscode");

const manifest = JSON.parse(readFileSync(join(__dirname, "../package.json"), "utf8"));

function started(editorOptions, clientOptions) {
  const made = client(clientOptions);
  const found = editor(editorOptions);
  const extension = createExtension(found.vscode, made.make);
  const context = { subscriptions: [] };
  extension.activate(context);
  return { ...found, made, extension, context };
}

test("the manifest names what is registered and what is configured", () => {
  const { commands } = started();
  assert.deepEqual([...commands.keys()].sort(), manifest.contributes.commands.map((one) => one.command).sort());
  const named = Object.keys(manifest.contributes.configuration.properties).map((name) => name.replace("roller.", ""));
  assert.deepEqual(named.sort(), [...SETTINGS, "python"].sort());
  assert.equal(manifest.capabilities.untrustedWorkspaces.supported, false);
});

test("no server is started before a command", () => {
  assert.equal(started().made.clients.length, 0);
});

test("a profile saves the file, and starts the server where the workspace says", async () => {
  const { run, told, made } = started({ settings: { python: "/env/bin/python", device: "h100", live: false } });
  await run("roller.profileFile");
  assert.equal(told.saved, 1);
  const [{ server, options }] = made.clients;
  assert.deepEqual([server.command, server.args, server.options.cwd], ["/env/bin/python", ["-c", "import sys; sys.path.pop(0); from roller.cli.main import main; main()", "lsp"], "/work"]);
  assert.deepEqual([options.initializationOptions.device, options.initializationOptions.live, options.initializationOptions.batch], ["h100", false, null]);
  assert.deepEqual(made.requests, [["workspace/executeCommand", "roller.profile", "file:///project/train.py"]]);
  await run("roller.profileFile");
  assert.equal(made.clients.length, 1);
  assert.deepEqual(told.errors, []);
});

for (const [name, python, wanted] of [
  ["that of the Python extension", pythonExtension({ executable: { uri: { fsPath: "/chosen/python" } } }), "/chosen/python"],
  ["python3 where the extension knows none", pythonExtension(undefined, null), "python3"],
  ["python3 where the extension is another one", { activate: async () => ({}) }, "python3"],
  ["python3 without the extension", undefined, "python3"],
]) {
  test(`the interpreter: ${name}`, async () => {
    const { run, made } = started({ python });
    await run("roller.profileFile");
    assert.equal(made.clients[0].server.command, wanted);
  });
}

function pythonExtension(resolved, path = "/some/folder") {
  const environments = { getActiveEnvironmentPath: () => ({ path }), resolveEnvironment: async () => resolved };
  return { activate: async () => ({ environments }) };
}

for (const [protocol, remedy] of [[2, "Install a newer extension"], [null, "Install a newer roller there"], [0, "Install a newer roller there"]]) {
  test(`a server of protocol ${protocol} is refused in words`, async () => {
    const { run, told, made } = started({}, { protocol });
    await run("roller.profileFile");
    assert.equal(told.errors.length, 1);
    assert.match(told.errors[0], /this extension speaks protocol 1, expected the same of python3, got /);
    assert.ok(told.errors[0].includes(remedy), told.errors[0]);
    assert.equal(made.clients[0].running, false);
    assert.deepEqual(made.requests, []);
  });
}

test("a server that does not start says what to install, and is tried again", async () => {
  const { run, told, made } = started({}, { fails: "No module named roller" });
  await run("roller.profileFile");
  await run("roller.profileFile");
  assert.equal(made.clients.length, 2);
  assert.match(told.errors[0], /expected a language server from python3, got: No module named roller\. Run pip install 'roller\[lsp,serve,insight\]' in that environment, or set roller\.python to another interpreter\./);
});

const ADDRESS = "http://127.0.0.1:8765/?token=a-b_c";
const page = { answer: ({ command }) => (command === "roller.showPage" ? { address: ADDRESS } : {}) };

test("the page is shown beside the file, once", async () => {
  const { run, told, made, extension } = started({}, page);
  await run("roller.showPageBeside");
  await run("roller.showPageBeside");
  assert.equal(told.panels.length, 1);
  assert.equal(told.panels[0].shown, 2);
  const { html } = told.panels[0].webview;
  assert.ok(html.includes(`src="${ADDRESS}"`), html);
  assert.ok(html.includes("frame-src http://127.0.0.1:8765;"), html);
  assert.equal(made.requests.filter(([, command, , host]) => command === "roller.showPage" && host).length, 0);
  await extension.deactivate();
  assert.equal(made.clients[0].running, false);
  await run("roller.showPageBeside");
  assert.equal(told.panels.length, 2);
});

test("over SSH the forwarded port is told to the server, and keeps the token", async () => {
  const external = (uri) => uri.with({ authority: "127.0.0.1:40001", query: "" });
  const { run, told, made } = started({ external }, page);
  await run("roller.showPageBeside");
  assert.deepEqual(made.requests.at(-1).slice(1), ["roller.showPage", "file:///project/train.py", "127.0.0.1:40001"]);
  assert.ok(told.panels[0].webview.html.includes('src="http://127.0.0.1:40001/?token=a-b_c"'));
});

test("a tunnel's own name is not told to the server", async () => {
  const { run, made } = started({ external: (uri) => uri.with({ authority: "x-8765.tunnels.example" }) }, page);
  await run("roller.showPageBeside");
  assert.equal(made.requests.length, 1);
});

test("going down from the step, part by part", async () => {
  const parts = {
    "": { name: "", wall_s: 0.01, held_bytes: 2 ** 21, label: "predicted", children: [{ kind: "line", name: "train.py:3", path: ["", "train.py:3"], wall_s: 0.0075, held_bytes: 2 ** 20, label: "predicted" }] },
    ",train.py:3": { name: "train.py:3", wall_s: 0.0075, held_bytes: 2 ** 20, label: "predicted", stale: true, children: [{ kind: "operator", name: "aten.mm", path: [], wall_s: 0.0075, held_bytes: 5, label: "predicted" }] },
  };
  const first = (items) => items[0];
  const { run, told } = started({ answers: [first, first] }, { answer: ({ arguments: given }) => parts[String(given[1])] });
  await run("roller.drillDown");
  assert.deepEqual(told.picked.map((one) => one.items[0].description), ["7.5 ms (75 %), 1 MiB", "7.5 ms (100 %), 5 B"]);
  assert.match(told.picked[1].items[0].detail, /operator · predicted · stale/);
  assert.match(told.picked[0].options.title, /step: 10 ms, 2 MiB · predicted/);
});

test("a lens goes down from its module", async () => {
  const { run, told, made } = started({}, { answer: () => ({ name: "head", wall_s: 0, held_bytes: 0, label: "predicted", children: [] }) });
  await run("roller.profileFile");
  const { executeCommand } = made.clients[0].options.middleware;
  await executeCommand("roller.drill", ["file:///project/train.py", "head", true], () => assert.fail("not to the server"));
  assert.deepEqual(made.requests.at(-1).slice(1), ["roller.drill", "file:///project/train.py", "head"]);
  assert.equal(told.picked.length, 1);
  assert.equal(await executeCommand("roller.drill", ["file:///project/train.py", "head", false], () => "passed on"), "passed on");
});

test("batch, devices and live", async () => {
  const { run, made, told } = started({ answers: ["32", "v100", undefined] });
  await run("roller.changeBatch");
  await run("roller.changeDevice");
  await run("roller.changeBatch"); // dismissed
  await run("roller.liveOff");
  await run("roller.liveOn");
  const uri = "file:///project/train.py";
  assert.deepEqual(made.requests.map((one) => one.slice(1)), [
    ["roller.setBatch", uri, 32], ["roller.setDevice", uri, "v100"], ["roller.setLive", uri, false], ["roller.setLive", uri, true],
  ]);
  const { validateInput } = told.boxes[0];
  assert.equal(validateInput("12"), undefined);
  for (const wrong of ["", "0", "-1", "1.5", "1e3", "x", "9".repeat(10)]) assert.ok(validateInput(wrong), wrong);
});

for (const active of [null, "untitled:///Untitled-1"]) {
  test(`without a file (${active}) it says so`, async () => {
    const { run, told, made } = started({ active });
    await run("roller.profileFile");
    assert.match(told.errors[0], /expected a Python file in the editor, got none/);
    assert.equal(made.clients.length, 0);
  });
}

test("what the server refuses is shown", async () => {
  const refused = () => { throw new Error("device: expected the name of a device, got 'h10o'."); };
  const { run, told } = started({ answers: ["h10o"] }, { answer: refused });
  await run("roller.changeDevice");
  assert.deepEqual(told.errors, ["device: expected the name of a device, got 'h10o'."]);
});
