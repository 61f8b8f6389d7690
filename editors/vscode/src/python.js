"use strict";

/** Return the interpreter with roller: that of the setting, that of the Python extension, or python3. */
async function pythonOf(vscode, uri) {
  const set = vscode.workspace.getConfiguration("roller", uri).get("python");
  return set || (await chosen(vscode, uri)) || "python3";
}

async function chosen(vscode, uri) {
  const extension = vscode.extensions.getExtension("ms-python.python");
  if (!extension) return null;
  try {
    const { environments } = (await extension.activate()) ?? extension.exports;
    const path = environments.getActiveEnvironmentPath(uri);
    const found = await environments.resolveEnvironment(path);
    return found?.executable.uri?.fsPath ?? path.path ?? null;
  } catch {
    return null; // an incompatible version of the Python extension
  }
}

module.exports = { pythonOf };
