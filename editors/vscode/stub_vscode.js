"use strict";
// As much of the editor as the extension uses, which records what it is told.

class Uri {
  constructor(scheme, authority, path, query) {
    Object.assign(this, { scheme, authority, path, query });
  }
  static parse(text) {
    const [, scheme, authority, path, query] = text.match(/^([a-z-]+):\/\/([^/?]*)([^?]*)\??(.*)$/);
    return new Uri(scheme, authority, path || "/", query);
  }
  get fsPath() {
    return this.path;
  }
  with(parts) {
    return Object.assign(new Uri(this.scheme, this.authority, this.path, this.query), parts);
  }
  toString(plain) {
    const query = plain ? this.query : encodeURIComponent(this.query);
    return `${this.scheme}://${this.authority}${this.path}${query ? `?${query}` : ""}`;
  }
}

/** Return an editor: `settings` of roller, the active file, and where `asExternalUri` leads. */
function editor({ settings = {}, active = "file:///project/train.py", external = (uri) => uri, python, answers = [] } = {}) {
  const told = { errors: [], panels: [], saved: 0, picked: [], boxes: [] };
  const commands = new Map();
  const document = active && {
    uri: Uri.parse(active), isDirty: true,
    save: async () => { told.saved += 1; document.isDirty = false; },
  };
  const vscode = {
    Uri,
    ViewColumn: { Beside: -2 },
    commands: { registerCommand: (name, act) => (commands.set(name, act), { dispose: () => commands.delete(name) }) },
    env: { asExternalUri: async (uri) => external(uri) },
    extensions: { getExtension: (name) => (name === "ms-python.python" ? python : undefined) },
    window: {
      activeTextEditor: document && { document },
      createOutputChannel: () => ({}),
      showErrorMessage: (text) => told.errors.push(text),
      showInputBox: async (options) => (told.boxes.push(options), answers.shift()),
      showQuickPick: async (items, options) => (told.picked.push({ items, options }), answers.shift()?.(items)),
      createWebviewPanel: (...given) => {
        const ends = [];
        const panel = { given, webview: {}, shown: 1, reveal: () => (panel.shown += 1), onDidDispose: (act) => ends.push(act), dispose: () => ends.forEach((act) => act()) };
        told.panels.push(panel);
        return panel;
      },
    },
    workspace: {
      getConfiguration: () => ({ get: (name) => settings[name] }),
      getWorkspaceFolder: () => ({ uri: Uri.parse("file:///work") }),
    },
  };
  return { vscode, told, run: (name, ...given) => commands.get(name)(...given), commands };
}

/** Return a language client that records requests, and what made it. */
function client({ protocol = 1, fails = null, answer = () => ({}) } = {}) {
  const made = { clients: [], requests: [] };
  made.make = (id, name, server, options) => {
    const one = {
      server, options, running: false,
      initializeResult: { capabilities: { experimental: protocol === null ? {} : { roller: { protocol } } } },
      start: async () => { if (fails) throw new Error(fails); one.running = true; },
      stop: async () => { one.running = false; },
      sendRequest: async (method, params) => { made.requests.push([method, params.command, ...params.arguments]); return answer(params); },
    };
    made.clients.push(one);
    return one;
  };
  return made;
}

module.exports = { client, editor, Uri };
