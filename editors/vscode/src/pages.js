"use strict";
const LOOPBACK = new Set(["127.0.0.1", "localhost"]);

/** The pages that are shown beside files, one for each address. */
class Pages {
  constructor(vscode, ask) {
    this.vscode = vscode;
    this.ask = ask;
    this.panels = new Map();
  }

  /** Show the page of a file's session beside it; where the server is elsewhere, through a port that is forwarded. */
  async show(uri) {
    const { vscode } = this;
    const { address } = await this.ask("roller.showPage", uri);
    const own = vscode.Uri.parse(address);
    const seen = await vscode.env.asExternalUri(own);
    if (seen.authority !== own.authority && LOOPBACK.has(seen.authority.split(":")[0])) {
      await this.ask("roller.showPage", uri, seen.authority);
    }
    const shown = seen.with({ path: own.path, query: own.query }).toString(true);
    const known = this.panels.get(shown);
    if (known) {
      known.reveal(vscode.ViewColumn.Beside, true);
      return;
    }
    const column = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    const panel = vscode.window.createWebviewPanel("roller.page", "Roller", column, { enableScripts: true, retainContextWhenHidden: true });
    this.panels.set(shown, panel);
    panel.onDidDispose(() => this.panels.delete(shown));
    panel.webview.html = htmlOf(shown, `${seen.scheme}://${seen.authority}`);
  }

  close() {
    for (const panel of [...this.panels.values()]) panel.dispose();
  }
}

/** Return a document that shows an address and nothing else. */
function htmlOf(address, origin) {
  const text = (value) => value.replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);
  return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Roller</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; frame-src ${text(origin)}; style-src 'unsafe-inline'">
<style>html, body, iframe { border: 0; height: 100%; margin: 0; padding: 0; width: 100%; }</style></head>
<body><iframe title="The live profile" src="${text(address)}" sandbox="allow-scripts allow-same-origin allow-forms"></iframe></body></html>`;
}

module.exports = { Pages, htmlOf };
