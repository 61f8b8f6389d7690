// Bundles the extension, and writes the licences of what is in the bundle beside it.
import { build } from "esbuild";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";

const { metafile } = await build({
  entryPoints: ["src/main.js"], bundle: true, platform: "node", target: "node18", format: "cjs", external: ["vscode"],
  minify: true, metafile: true, outfile: "dist/extension.js",
});
const packages = new Set(Object.keys(metafile.inputs).map((path) => path.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean));
const texts = [...packages].sort().map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = existsSync(folder) && readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name}: expected a file with its licence, got none`);
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
});
writeFileSync("dist/LICENSES.txt", texts.join(`\n${"-".repeat(80)}\n\n`));
