// The tile pyramid: each level is drawn to scale inside the enclosing one, over the two largest axes without a sum.

const TILE_SIDE = 190; // pixels of the longer side of a level
const MOST_LINES = 64; // grid lines that are drawn at most

function tilePyramid(levels) {
  const [columnAxis, rowAxis] = shownAxes(levels[0]);
  const holder = el("div.pyramid", {});
  levels.forEach((level, place) => {
    const inner = levels[place + 1];
    holder.append(el("figure.level", {}, el("figcaption", {}, level.name === "whole" ? "whole result" : level.name),
      levelPicture(level, inner, rowAxis, columnAxis), extentsOf(level)));
    if (inner) holder.append(el("span.zoom", { "aria-hidden": "true" }, "→"));
  });
  return holder;
}

/** The two largest axes that are not summed: the later one of the expression runs to the right. */
function shownAxes(whole) {
  const spatial = whole.extents.filter(([, , reduced]) => !reduced);
  const largest = [...spatial].sort((a, b) => b[1] - a[1]).slice(0, 2).map(([axis]) => axis);
  const inOrder = spatial.map(([axis]) => axis).filter((axis) => largest.includes(axis));
  return [inOrder.at(-1), inOrder.length > 1 ? inOrder[0] : null];
}

function extentOf(level, axis) {
  return axis === null || axis === undefined ? 1 : level.extents.find(([name]) => name === axis)[1];
}

function levelPicture(level, inner, rowAxis, columnAxis) {
  const rows = extentOf(level, rowAxis), columns = extentOf(level, columnAxis);
  // To scale, but never too thin to be visible.
  const unit = TILE_SIDE / Math.max(rows, columns);
  const width = Math.max(6, columns * unit), height = Math.max(6, rows * unit);
  const said = `${level.name}: ${rowAxis ? `${rows} of ${rowAxis} by ` : ""}${columns} of ${columnAxis}`;
  const picture = svg("svg", { width: TILE_SIDE + 2, height: Math.max(height, 6) + 2, role: "img", "aria-label": said, class: "tile" });
  picture.append(svg("rect", { x: 1, y: 1, width, height, class: "outer" }));
  // The last level is divided into its elements.
  const innerRows = inner ? extentOf(inner, rowAxis) : 1, innerColumns = inner ? extentOf(inner, columnAxis) : 1;
  for (const [count, step, whole, across] of [[columns / innerColumns, width / (columns / innerColumns), width, true], [rows / innerRows, height / (rows / innerRows), height, false]])
    if (count <= MOST_LINES)
      for (let at = step; at < whole - 0.5; at += step)
        picture.append(svg("line", across ? { x1: 1 + at, x2: 1 + at, y1: 1, y2: 1 + height } : { x1: 1, x2: 1 + width, y1: 1 + at, y2: 1 + at }));
  if (inner) picture.append(svg("rect", { x: 1, y: 1, width: Math.max(2, Math.min(width, (width * innerColumns) / columns)), height: Math.max(2, Math.min(height, (height * innerRows) / rows)), class: "inner" }));
  return picture;
}

function extentsOf(level) {
  const shown = level.extents.filter(([, extent]) => extent > 1);
  return el("p.extents", {}, shown.length ? shown.map(([axis, extent, reduced], place) => [place ? " × " : "", el(reduced ? "span.reduced" : "span", { title: reduced ? "summed" : "" }, `${axis} `, number(extent, "", "recorded", "exact"))]) : "one element");
}
