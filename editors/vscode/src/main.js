"use strict";
// What VS Code loads: the extension with the real editor and the real client.
const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");
const { createExtension } = require("./extension");

let extension;

exports.activate = (context) => {
  extension = createExtension(vscode, (id, name, server, client) =>
    new LanguageClient(id, name, { ...server, transport: TransportKind.stdio }, client));
  extension.activate(context);
};
exports.deactivate = () => extension?.deactivate();
