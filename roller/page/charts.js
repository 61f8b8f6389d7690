// Bars and curves in SVG, drawn at their actual width.

const PALETTE = 11; // colours --c0 ... --c10

/** Kinds of memory have the same colour in every chart. */
const KIND_ORDER = ["activation", "parameter", "optimizer_state", "gradient", "temporary", "workspace", "cached", "context", "input", "buffer", "rounding"];

/** What bounds a kernel has the same colour in every report. */
const BOUND_COLOURS = { compute: 2, dram: 1, launch: 4, latency: 3, l2: 5, shared: 6 };

function colour(place) {
  return `var(--c${place % PALETTE})`;
}

function colourOf(name, place) {
  const known = KIND_ORDER.indexOf(name === "process" ? "context" : name);
  return colour(known < 0 ? place : known);
}

/** Ticks at 1, 2 or 5 times a power of ten (of 1024 for bytes), from 0 to at least `most`. */
function ticks(most, unit, wanted = 4) {
  const base = unit === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(most || 1) / Math.log(1024))) : 1;
  const rough = (most || 1) / base / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = base * power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  return Array.from({ length: Math.floor((most || 1) / step + 1e-9) + 1 }, (_, n) => n * step);
}

/** A frame with axes. Returns {root, x, y, width, height} with scales from values to pixels. */
function axes(width, height, x, y) {
  const left = 62, right = 14, top = 10, bottom = 38;
  const root = svg("svg", { width, height, class: "chart", "aria-hidden": "true" });
  const toX = x.log
    ? (value) => left + ((Math.log(value) - Math.log(x.from)) / (Math.log(x.to) - Math.log(x.from))) * (width - left - right)
    : (value) => left + ((value - x.from) / (x.to - x.from || 1)) * (width - left - right);
  const toY = y.log
    ? (value) => height - bottom - ((Math.log(value) - Math.log(y.from)) / (Math.log(y.to) - Math.log(y.from))) * (height - top - bottom)
    : (value) => height - bottom - (value / (y.to || 1)) * (height - top - bottom);
  for (const at of y.ticks || ticks(y.to, y.unit)) {
    root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: toY(at), y2: toY(at) }));
    root.append(svg("text", { class: "tick", x: left - 6, y: toY(at) + 4, "text-anchor": "end" }, y.name ? y.name(at) : text(at, y.unit)));
  }
  const offset = x.from < 0.05 * (x.to - x.from) ? 0 : x.from; // ticks are round where the axis begins near 0
  for (const at of x.ticks || ticks(x.to - offset, x.unit, width < 500 ? 3 : 6).map((value) => value + offset).filter((value) => value >= x.from))
    root.append(svg("text", { class: "tick", x: toX(at), y: height - bottom + 16, "text-anchor": "middle" }, x.name ? x.name(at) : text(at, x.unit)));
  root.append(svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, x.title));
  return { root, x: toX, y: toY, left, right: width - right, top, bottom: height - bottom };
}

/** A bar of parts that sum to the whole, with their numbers in a list. */
function stackedBar(parts, unit, label, whole, title) {
  const bar = el("div.bar", { role: "img", "aria-label": `${title}: ${parts.map(([name, value]) => `${words(name)} ${text(value, unit)}`).join(", ")}` });
  const rows = new Map();
  const list = el("ul.legend", { "aria-label": title });
  parts.forEach(([name, value], place) => {
    const piece = el("span.piece", { title: `${words(name)}: ${text(value, unit)}`, style: { width: `${(100 * value) / whole}%`, background: colourOf(name, place) } }, el("span.part"));
    bar.append(piece);
    const row = el("li", {}, el("span.swatch", { style: { background: colourOf(name, place) } }), el("span.key", {}, words(name)),
      number(value, unit, label), el("span.faint", {}, number(value / whole, "share", label)));
    list.append(row);
    rows.set(name, { piece, row, value });
  });
  return {
    element: el("div.stack", {}, bar, list),
    /** Show how much of each part belongs to something: name -> value, or null for nothing. */
    mark(of) {
      bar.classList.toggle("marking", of !== null);
      for (const [name, { piece, row, value }] of rows) {
        const own = of === null ? 0 : of[name] || 0;
        piece.firstChild.style.width = `${(100 * own) / (value || 1)}%`;
        row.classList.toggle("dim", of !== null && !own);
      }
    },
  };
}

/**
 * Memory over the step by kind, stacked. Pointer and arrow keys show the values at a moment; a click keeps it, until the
 * next one or Escape, so that its holders can be read.
 */
function memoryCurve(curve, label, capacity, names) {
  const count = curve.at.length;
  const kinds = Object.entries(curve.kinds).filter(([, values]) => values.some((value) => value > 0));
  const most = Math.max(...curve.allocated_bytes, ...curve.reserved_bytes);
  const shown = capacity && capacity < 2 * most ? Math.max(most, capacity) : most;
  let peak = 0;
  for (let at = 0; at < count; at++) if (curve.allocated_bytes[at] > curve.allocated_bytes[peak]) peak = at;
  const holder = el("div.curve", {
    role: "slider", tabindex: "0", "aria-label": "Moment of the step", "aria-valuemin": 0, "aria-valuemax": count - 1,
  });
  const values = el("ul.legend", { "aria-label": "Memory at this moment" });
  const when = el("p.moment", {});
  const holders = el("ul.legend.holders", { "aria-label": "Largest holders at this moment" });
  let kept = false;
  const cursor = svg("line", { class: "cursor" });
  let at = peak, frame = null;

  const reserves = curve.reserved_bytes.some((value, n) => value && value !== curve.allocated_bytes[n]); // a processor does not
  const rows = [["allocated", curve.allocated_bytes, "allocated"], ...(reserves ? [["reserved", curve.reserved_bytes, "reserved"]] : [])].map(([name, column, line]) =>
    ({ column, number: el("span.n"), swatch: el(`span.swatch.line.${line}`), name }));
  kinds.forEach(([name, column], place) => rows.push({ column, number: el("span.n"), swatch: el("span.swatch", { style: { background: colourOf(name, place) } }), name }));
  values.append(...rows.map((row) => el("li", {}, row.swatch, el("span.key", {}, words(row.name)), row.number)));

  function tellHolders() {
    if (!curve.holders) return;
    const { end, name, bytes: sizes } = curve.holders;
    const from = at ? end[at - 1] : 0;
    holders.replaceChildren(...Array.from(name.subarray(from, end[at]), (one, place) =>
      el("li", {}, el("span.key", { title: names[one] }, names[one].split(" ").map((word) => withoutFolder(names, word)).join(" ")), number(sizes[from + place], "bytes", label))));
  }

  function keep(now) {
    kept = now;
    holder.classList.toggle("kept", kept);
    move(at);
  }

  function move(to) {
    at = Math.max(0, Math.min(count - 1, to));
    holder.setAttribute("aria-valuenow", at);
    const where = curve.unit === "s" ? `${seconds(curve.at[at])} from the start` : `after operator ${curve.at[at]}`;
    holder.setAttribute("aria-valuetext", `${where}: ${bytes(curve.allocated_bytes[at])} allocated`);
    when.replaceChildren(at === peak ? "Most allocated, " : "", where);
    if (kept) when.append(", kept until Escape or a click");
    for (const row of rows) setNumber(row.number, row.column[at], "bytes", label);
    tellHolders();
    if (!frame) return;
    const x = frame.x(curve.at[at]);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: frame.top, y2: frame.bottom })) cursor.setAttribute(name, value);
  }

  onWidth(holder, (width) => {
    frame = axes(width, 240, { from: curve.at[0], to: curve.at[count - 1], title: curve.unit === "s" ? "time" : "operator of the step", unit: curve.unit === "s" ? "s" : "" }, { to: shown * 1.04, unit: "bytes" });
    const x = (n) => frame.x(curve.at[n]).toFixed(1), y = (value) => frame.y(value).toFixed(1);
    // Each value holds until the next one, so the curve has steps.
    const line = (column) => Array.from(column, (value, n) => (n ? `H${x(n)}V${y(value)}` : `M${x(n)} ${y(value)}`)).join("");
    const backward = (column) => Array.from(column, (_, place) => count - 1 - place).map((n) => (n === count - 1 ? `V${y(column[n])}` : `V${y(column[n])}H${x(n)}`)).join("");
    let below = new Float64Array(count);
    kinds.forEach(([, column], place) => {
      const above = column.map((value, n) => value + below[n]);
      frame.root.append(svg("path", { d: `${line(above)}${backward(below)}Z`, fill: colourOf(kinds[place][0], place), class: "area" }));
      below = above;
    });
    if (!kinds.length) frame.root.append(svg("path", { d: `${line(curve.allocated_bytes)}L${frame.right} ${frame.bottom}L${frame.left} ${frame.bottom}Z`, fill: colour(0), class: "area" }));
    if (reserves) frame.root.append(svg("path", { d: line(curve.reserved_bytes), class: "stroke reserved" }));
    frame.root.append(svg("path", { d: line(curve.allocated_bytes), class: "stroke allocated" }));
    if (capacity && capacity <= shown) {
      const y = frame.y(capacity);
      frame.root.append(svg("line", { class: "limit", x1: frame.left, x2: frame.right, y1: y, y2: y }), svg("text", { class: "tick", x: frame.right, y: y - 4, "text-anchor": "end" }, "capacity of the device"));
    }
    frame.root.append(cursor);
    holder.replaceChildren(frame.root);
    move(at);
  });
  const pointed = (event) => {
    const x = event.clientX - holder.getBoundingClientRect().left;
    let last = 0;
    while (last + 1 < count && frame.x(curve.at[last + 1]) <= x) last++;
    return last;
  };
  holder.addEventListener("pointermove", (event) => frame && !kept && move(pointed(event)));
  holder.addEventListener("click", (event) => {
    if (!frame) return;
    const chosen = pointed(event);
    const again = kept && chosen === at;
    at = chosen;
    keep(!again);
  });
  holder.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(count / 20));
    const moves = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + page, PageDown: at - page, Home: 0, End: count - 1 };
    if (event.key in moves) move(moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") keep(!kept);
    else if (event.key === "Escape" && kept) keep(false);
    else return;
    event.preventDefault();
  });
  move(peak);
  return el("div", {}, el("div.beside", {}, holder, el("div", {}, when, values)),
    curve.holders ? el("div", {}, el("h3", {}, "Largest holders at this moment"), el("p.hint", {}, "Point at the curve, or use the arrow keys; a click or Enter keeps the moment. The tree above has all memory at the peak."), holders) : null);
}

/** A curve over the batch: the fitted line, what was computed beside it, and limits. */
function batchChart(options) {
  const { points, line, limits, unit, title, value } = options;
  const largest = Math.max(...points.map((point) => point.batch)) * 1.06;
  const most = Math.max(...points.map(value), ...limits.map((limit) => limit.at)) * 1.06;
  const holder = el("div.curve", { role: "img", "aria-label": options.label });
  onWidth(holder, (width) => {
    const y = unit === "bytes" ? { to: most, unit } : { to: most, unit, name: (at) => digits(at) };
    const frame = axes(width, 230, { from: 0, to: largest, title: "batch", unit: "" }, y);
    for (const limit of limits) {
      const at = frame.y(limit.at);
      frame.root.append(svg("line", { class: limit.kind, x1: frame.left, x2: frame.right, y1: at, y2: at }));
    }
    if (line) {
      const path = Array.from({ length: 101 }, (_, n) => {
        const batch = Math.max(0.01, (largest * n) / 100);
        return `${n ? "L" : "M"}${frame.x(batch).toFixed(1)} ${frame.y(line(batch)).toFixed(1)}`;
      }).join("");
      frame.root.append(svg("path", { d: path, class: "stroke fitted" }));
    }
    for (const point of points) {
      const sampled = options.sampled.includes(point.batch);
      frame.root.append(svg("circle", { cx: frame.x(point.batch), cy: frame.y(value(point)), r: 4.5, class: `dot${sampled ? " sampled" : ""}${point.fits ? "" : " unfit"}` },
        svg("title", {}, `batch ${point.batch}: ${text(value(point), unit)}`)));
    }
    holder.replaceChildren(frame.root);
  });
  return el("figure", {}, el("figcaption", {}, title), holder);
}

/** Kernels side by side: width is time on the device, height the share of the pipe's peak; the filled area is work. */
function pipeChart(kernels, label, pick) {
  const total = kernels.reduce((sum, kernel) => sum + kernel.device_s, 0);
  const holder = el("div.curve", { role: "img", "aria-label": "Share of the pipe's peak by kernel, widths are times" });
  const told = el("p.moment", {}, "Point at a kernel to read it; the table of kernels has all of them.");
  onWidth(holder, (width) => {
    const frame = axes(width, 240, { from: 0, to: total, title: "time of kernels on the device, longest first", unit: "s" }, { to: 1, unit: "share", ticks: [0, 0.25, 0.5, 0.75, 1] });
    let from = 0;
    for (const kernel of kernels) {
      const x = frame.x(from), wide = frame.x(from + kernel.device_s) - x;
      from += kernel.device_s;
      const share = Math.min(1, kernel.share);
      frame.root.append(svg("rect", {
        x, y: frame.y(share), width: Math.max(0.5, wide - (wide > 3 ? 1 : 0)), height: Math.max(1, frame.bottom - frame.y(share)), fill: kernel.colour, class: "mark",
        onpointerenter: () => {
          told.replaceChildren(`${kernel.name}: `, number(kernel.device_s, "s", label), ", ", number(kernel.share, "share", label), ` of the peak of ${kernel.pipe || "no pipe"}, bound by ${kernel.bound || "what is not known"}`);
          pick(kernel.name);
        },
        onpointerleave: () => pick(null),
      }));
    }
    holder.replaceChildren(frame.root);
  });
  return el("div", {}, holder, told);
}
