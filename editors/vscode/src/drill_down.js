"use strict";

/** Let somebody go from the step into its parts. */
async function drillDown(vscode, partsOf, path) {
  let at = path;
  while (true) {
    const found = await partsOf(at);
    const items = found.children.map((part) => ({
      label: part.name,
      description: `${timeText(part.wall_s)} (${shareText(part.wall_s, found.wall_s)}), ${sizeText(part.held_bytes)}`,
      detail: `${part.kind} · ${part.label}${found.stale ? " · stale" : ""}`,
      part,
    }));
    const title = `${found.name || "step"}: ${timeText(found.wall_s)}, ${sizeText(found.held_bytes)} · ${found.label}`;
    const chosen = await vscode.window.showQuickPick(items, { title, matchOnDetail: true });
    if (!chosen || (chosen.part.kind !== "line" && chosen.part.kind !== "module")) return;
    at = chosen.part.path;
  }
}

function timeText(seconds) {
  const size = Math.abs(seconds);
  if (size >= 1) return `${Number(seconds.toPrecision(3))} s`;
  if (size >= 1e-3) return `${Number((1e3 * seconds).toPrecision(3))} ms`;
  return `${Math.round(1e6 * seconds)} µs`;
}

function sizeText(bytes) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (Math.abs(bytes) >= scale) return `${Number((bytes / scale).toPrecision(3))} ${unit}`;
  }
  return `${bytes} B`;
}

const shareText = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "-");

module.exports = { drillDown, timeText, sizeText };
