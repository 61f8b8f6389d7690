"use strict";
// The extension: it starts the server where the files are, and shows what the server says.
const { pythonOf } = require("./python");
const { refusalOf } = require("./protocol");
const { Pages } = require("./pages");
const { drillDown } = require("./drill_down");

const SETTINGS = ["entry", "device", "batch", "amp", "checkpoint", "live", "runScripts", "arguments", "patience"];
/** Without the folder of the project on the path: its modules are not imported in place of the server's. */
const START = "import sys; sys.path.pop(0); from roller.cli.main import main; main()";
const INSTALL = "pip install 'roller[lsp,serve,insight]'";

/** Return the extension for an editor, with a function that makes a language client. */
function createExtension(vscode, makeClient) {
  let starting = null;
  const output = () => (output.made ??= vscode.window.createOutputChannel("Roller"));

  async function start(uri) {
    const python = await pythonOf(vscode, uri);
    const folder = uri && vscode.workspace.getWorkspaceFolder(uri);
    const server = { command: python, args: ["-c", START, "lsp"], options: folder ? { cwd: folder.uri.fsPath } : {} };
    const client = makeClient("roller", "Roller", server, {
      documentSelector: [{ scheme: "file", language: "python" }],
      initializationOptions: settingsOf(uri),
      outputChannel: output(),
      synchronize: { configurationSection: "roller" },
      connectionOptions: { maxRestartCount: 0 },
      middleware: { executeCommand: (command, given, next) => command === "roller.drill" && given[2] === true ? drill(given[0], given[1]) : next(command, given) },
    });
    try {
      await client.start();
    } catch (error) {
      await client.stop().catch(() => {});
      throw new Error(`roller: expected a language server from ${python}, got: ${error.message}. Run ${INSTALL} in that environment, or set roller.python to another interpreter.`);
    }
    const refusal = refusalOf(client.initializeResult, python);
    if (refusal) {
      await client.stop().catch(() => {});
      throw new Error(refusal);
    }
    return client;
  }

  /** Return the running client; one that failed or ended is started anew. */
  function client(uri) {
    starting ??= start(uri).catch((error) => {
      starting = null;
      throw error;
    });
    return starting;
  }

  function settingsOf(uri) {
    const found = vscode.workspace.getConfiguration("roller", uri);
    return Object.fromEntries(SETTINGS.map((name) => [name, found.get(name) ?? null]));
  }

  async function ask(command, ...given) {
    const uri = given[0] ? vscode.Uri.parse(given[0]) : undefined;
    return (await client(uri)).sendRequest("workspace/executeCommand", { command, arguments: given });
  }

  const drill = (uri, path) => said(() => drillDown(vscode, (at) => ask("roller.drill", uri, at), path))();
  const pages = new Pages(vscode, ask);

  /** Return a command that tells what goes wrong. */
  function said(act) {
    return async (...given) => {
      try {
        return await act(...given);
      } catch (error) {
        vscode.window.showErrorMessage(error.message);
        return undefined;
      }
    };
  }

  function file() {
    const document = vscode.window.activeTextEditor?.document;
    if (!document || document.uri.scheme !== "file") {
      throw new Error("roller: expected a Python file in the editor, got none. Open the entry file.");
    }
    return document;
  }

  const commands = {
    "roller.profileFile": async () => {
      const document = file();
      if (document.isDirty) await document.save();
      await ask("roller.profile", document.uri.toString());
    },
    "roller.showPageBeside": () => pages.show(file().uri.toString()),
    "roller.drillDown": () => drill(file().uri.toString(), ""),
    "roller.changeBatch": async () => {
      const uri = file().uri.toString();
      const validateInput = (text) => (/^[1-9][0-9]{0,8}$/.test(text.trim()) ? undefined : "a whole number of at least 1");
      const text = await vscode.window.showInputBox({ prompt: "Samples on each device", validateInput });
      if (text !== undefined) await ask("roller.setBatch", uri, Number(text.trim()));
    },
    "roller.changeDevice": async () => {
      const document = file();
      const value = vscode.workspace.getConfiguration("roller", document.uri).get("device");
      const text = await vscode.window.showInputBox({ prompt: "Devices, e.g. h100,2xa100: the first is profiled", value });
      if (text !== undefined) await ask("roller.setDevice", document.uri.toString(), text);
    },
    "roller.liveOn": () => ask("roller.setLive", file().uri.toString(), true),
    "roller.liveOff": () => ask("roller.setLive", file().uri.toString(), false),
    "roller.restartServer": async () => {
      await stop();
      await client(vscode.window.activeTextEditor?.document.uri);
    },
  };

  async function stop() {
    const before = starting;
    starting = null;
    pages.close();
    const running = await before?.catch(() => null);
    await running?.stop();
  }

  return {
    activate(context) {
      for (const [name, act] of Object.entries(commands)) {
        context.subscriptions.push(vscode.commands.registerCommand(name, said(act)));
      }
    },
    deactivate: stop,
  };
}

module.exports = { createExtension, SETTINGS };
