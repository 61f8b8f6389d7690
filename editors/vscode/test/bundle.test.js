"use strict";
// The bundle as it is packed, with a stub in place of the editor.
const assert = require("node:assert/strict");
const { existsSync } = require("node:fs");
const Module = require("node:module");
const { join } = require("node:path");
const { test } = require("node:test");
const { editor } = require("../stub_vscode");

const BUNDLE = join(__dirname, "../dist/extension.js");

test("the bundle loads and registers its commands", { skip: !existsSync(BUNDLE) && "run npm run build first" }, () => {
  const { vscode, commands } = editor();
  const any = new Proxy(class {}, { get: (made, name) => made[name] ?? (name === "prototype" ? made.prototype : class {}) });
  const stub = new Proxy(vscode, { get: (made, name) => made[name] ?? any });
  const load = Module._load;
  Module._load = (name, ...rest) => (name === "vscode" ? stub : load(name, ...rest));
  try {
    const bundle = require(BUNDLE);
    bundle.activate({ subscriptions: [] });
    assert.ok(commands.has("roller.profileFile"));
    return bundle.deactivate();
  } finally {
    Module._load = load;
  }
});
