// Elements, numbers and units. A report's strings become only text nodes and attributes, never HTML.

/** Make an element: el("p.note", {title: "..."}, child, "text", ...). */
function el(what, attributes, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  setAll(made, attributes);
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Make an SVG element in the same way. */
function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAll(made, attributes);
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

function setAll(made, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value); // through the object model: the policy allows it
    else made.setAttribute(name, value === true ? "" : value);
  }
}

/** A number with at most `digits` significant digits, without an exponent where people write none. */
function digits(value, most = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-6) return value.toExponential(most - 1);
  const places = Math.max(0, most - 1 - Math.floor(Math.log10(size)));
  const text = value.toFixed(Math.min(20, places));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1) return `${digits(value)} s`;
  if (size >= 1e-3) return `${digits(value * 1e3)} ms`;
  return size >= 1e-6 ? `${digits(value * 1e6)} µs` : `${digits(value * 1e9, 3)} ns`;
}

function bytes(value) {
  for (const [factor, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(value) >= factor) return `${digits(value / factor, 3)} ${unit}`;
  return `${digits(value)} B`;
}

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

/** A rate in powers of a thousand: 14.1 Tflops/s. */
function prefixed(value, unit) {
  const [factor, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) || [1, ""];
  return `${digits(value / factor)} ${prefix}${unit}`;
}

function percent(value) {
  if (value !== 0 && Math.abs(value) < 5e-4) return "< 0.1 %";
  return Math.abs(value) < 0.1 ? `${(100 * value).toFixed(1)} %` : `${digits(100 * value, 3)} %`;
}

/** Text of a value by its unit; units are those of the data: s, bytes, share, per_s, ... */
function text(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  if (unit === "s") return seconds(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "share") return percent(value);
  if (unit === "percent") return `${value > 0 ? "+" : ""}${digits(value, 3)} %`;
  if (unit === "samples/s") return `${digits(value)} samples/s`;
  if (/^(flops|bytes|operations|instructions)?\/s$/.test(unit) || unit === "Hz") return prefixed(value, unit);
  if (unit === "flops") return prefixed(value, unit);
  const shown = Number.isInteger(value) && Math.abs(value) < 1e9 ? String(value) : digits(value);
  return unit ? `${shown} ${unit}` : shown;
}

/** Units of a column, largest first. */
const COLUMN_UNITS = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  bytes: [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  "samples/s": [[1, "samples/s"]],
};

/**
 * How a column writes its numbers, so that their digits align: all in the unit of the largest one, with as many decimals,
 * or `least`. What this would round to 0 keeps a unit of its own.
 */
function columnText(values, unit, least = 0) {
  const largest = values.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0);
  if (!largest || (!unit && values.every((value) => !value || Number.isInteger(value)))) return (value) => text(value, unit);
  const units = COLUMN_UNITS[unit] || (unit ? null : [[1, ""]]);
  if (!units) return (value) => text(value, unit);
  const [factor, name] = units.find(([least]) => largest >= least) || units.at(-1);
  const places = name === "B" ? 0 : Math.min(6, Math.max(least, 3 - Math.floor(Math.log10(largest / factor))));
  return (value) => {
    const shown = Number.isFinite(value) ? (value / factor).toFixed(places) : "0";
    return Number(shown) ? `${shown} ${name}`.trim() : text(value, unit);
  };
}

/** Words that keep each bracket on the line of the word before it. */
function together(words) {
  return words.replaceAll(" (", "\u00a0(");
}

/** A cell of a table with class `stacks`: narrow screens, which have no head row, show its title beside it. */
function titled(title, what, ...children) {
  return el(what, { "data-title": title }, ...children);
}

/** Why a number has no interval, in words. */
const WITHOUT_INTERVAL = { exact: "exact", derived: "a ratio of other numbers", unknown: "no interval is known" };

/**
 * A number on the page: its text for people, and all digits, origin and interval for whatever reads the page.
 * interval: [lower, upper], or a key of WITHOUT_INTERVAL; by default "derived" for shares, "unknown" for others;
 * write: what makes its text, by default that of its unit.
 */
function number(value, unit, label, interval, write) {
  const made = el("span.n");
  setNumber(made, value, unit, label, interval, write);
  return made;
}

function setNumber(made, value, unit, label, interval, write) {
  made.textContent = write ? write(value) : text(value, unit);
  if (value === null || value === undefined || Number.isNaN(value)) {
    for (const name of ["value", "unit", "label", "interval", "lower", "upper"]) delete made.dataset[name];
    made.removeAttribute("title");
    return;
  }
  const known = hasInterval(interval);
  const without = known ? null : typeof interval === "string" ? interval : unit === "share" || unit === "percent" ? "derived" : "unknown";
  Object.assign(made.dataset, { value: String(value), unit: unit || "", label, interval: without || "known" });
  if (known) Object.assign(made.dataset, { lower: String(interval[0]), upper: String(interval[1]) });
  else delete made.dataset.lower, delete made.dataset.upper;
  made.title = known ? `${label}, ${range(interval, unit)}` : `${label}: ${value}${unit ? " " + unit : ""}, ${WITHOUT_INTERVAL[without]}`;
}

function hasInterval(interval) {
  return Array.isArray(interval) && interval[1] > interval[0];
}

/** An interval in words: "1.2 to 1.5 ms"; the unit is written once if both ends share it. */
function range(interval, unit) {
  if (!hasInterval(interval)) return "not known";
  const [from, to] = interval.map((end) => text(end, unit));
  const [number, own] = from.split(" ");
  return own !== undefined && from.slice(number.length) === to.slice(to.split(" ")[0].length) ? `${number} to ${to}` : `${from} to ${to}`;
}

/** An interval in a sentence; or why there is none. */
function intervalWords(interval, unit) {
  return hasInterval(interval) ? range(interval, unit) : WITHOUT_INTERVAL[typeof interval === "string" ? interval : "unknown"];
}

/** The word that says where a number comes from. */
function chip(label) {
  return el(`span.chip.${label}`, {}, label);
}

/** Call a function now and whenever the width of an element changes. */
function onWidth(made, draw) {
  let width = -1;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width && now > 0) draw((width = now));
  }).observe(made);
}

function words(name) {
  return name.replaceAll("_", " ");
}
