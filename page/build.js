// node build.js: bundles the editor. The first line says which sources it is of; tests/server holds it to them.

const { buildSync } = require("esbuild");
const { createHash } = require("crypto");
const fs = require("fs");
const path = require("path");

const here = (name) => path.join(__dirname, name);
const FOLDER = here("../roller/server/page");
const SOURCES = ["package-lock.json", "bundle.js"];

const digest = createHash("sha256");
for (const name of SOURCES) digest.update(fs.readFileSync(here(name)));
const options = {
  entryPoints: [here("bundle.js")], bundle: true, minify: true, format: "iife", target: "es2022", charset: "utf8", legalComments: "none",
  write: false, metafile: true, absWorkingDir: __dirname, logLevel: "warning",
};
const made = buildSync(options);
const text = made.outputFiles[0].text;
const packages = [...new Set(Object.keys(made.metafile.inputs).map((file) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(file)?.[1]).filter(Boolean))].sort();
fs.writeFileSync(path.join(FOLDER, "codemirror.js"), `/* CodeMirror 6, licences in LICENSES.txt; sources sha256 ${digest.digest("hex")} */\n${text}`);

const licence = (name) => {
  const folder = here(`node_modules/${name}`);
  const { version, license } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
  const file = fs.readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name}: expected a file with its licence, got none. Take another version.`);
  return `${name} ${version} (${license})\n\n${fs.readFileSync(path.join(folder, file), "utf8").trim()}\n`;
};
fs.writeFileSync(path.join(FOLDER, "LICENSES.txt"), `codemirror.js contains these packages.\n\n${packages.map(licence).join(`\n${"-".repeat(80)}\n\n`)}`);
console.log(`codemirror.js: ${Math.round(text.length / 1000)} kB of ${packages.join(", ")}`);
