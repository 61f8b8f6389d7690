// The view of a kernel: tiles, terms of the price, comparison with the next program, candidates, and source.

function showKernel(main, data) {
  main.append(el("h1", {}, data.name, " ", el("span.on", {}, `on ${data.device}`)), ...kernelSections(data));
}

function kernelSections(data) {
  const why = data.explanation;
  return [
    kernelHead(data),
    section("Tiles", "Each level is drawn to scale; the filled corner is one tile of the next level, which follows magnified. Axes in italics are summed.", tilePyramid(data.levels)),
    why ? section("The predicted time, term by term", "Open a term to see what it is made of; bars are shares of the whole.", termTree(why.time, why.time.value, why.rules)) : null,
    why ? whySection(why) : null,
    why ? roofSection(why) : null,
    why ? factsSection(why) : null,
    candidatesSection(data),
    data.source ? section("Source", data.language, el("pre", { tabindex: "0", role: "region", "aria-label": "Source of the kernel" }, el("code", {}, data.source))) : null,
    data.notes.length ? section("Notes", "", el("ul", {}, data.notes.map((note) => el("li", {}, note)))) : null,
  ].filter(Boolean);
}

function kernelHead(data) {
  const predicted = data.predicted_s;
  const interval = data.interval_s;
  return el("section.hero", {}, el("p.expression", {}, el("code", {}, data.expression)), el("div.cards", {},
    predicted === null ? null : card(["One call ", chip("predicted")], number(predicted, "s", "predicted", interval), interval && interval[1] > interval[0] ? [number(interval[0], "s", "predicted"), " to ", number(interval[1], "s", "predicted")] : "no interval is known"),
    data.measured_s === null ? card("Measured", "–", "this device was not run") : card(["One call ", chip("measured")], number(data.measured_s, "s", "measured"), predicted === null ? "" : [number(data.measured_s / predicted, "", "measured", "derived"), " times the prediction"]),
    card("Bound by", data.bottleneck || "–", data.language)),
    el("p.expression", {}, "Program ", el("code", {}, data.program)), data.doubt ? el("p.hint", {}, data.doubt) : null);
}

/** A term, what it is made of, and its share of the whole where it is a time. */
function termTree(term, whole, rules) {
  const bar = term.unit === "s" ? el("span.share", { "aria-hidden": "true" }, el("span", { style: { width: `${Math.max(0, Math.min(100, (100 * term.value) / whole))}%` } })) : null;
  const head = [el("span.term", {}, term.name), number(term.value, term.unit, "predicted"), bar];
  if (!term.parts || !term.parts.length) return el("div.leaf.term-row", {}, head);
  const made = el("details.terms", { open: term.unit === "s" && term.value >= 0.3 * whole && term.name === "predicted time" }, el("summary", {}, el("span.term-row", {}, head)), el("p.hint", {}, rules[term.rule] || term.rule));
  made.addEventListener("toggle", () => {
    // Parts are created when they are first shown, since a price may have hundreds of terms.
    if (made.open && !made.dataset.made) (made.dataset.made = "1"), made.append(...ordered(term.parts.map((_, at) => at), (at) => (term.parts[at].unit === "s" ? term.parts[at].value : -1)).map((at) => termTree(term.parts[at], whole, rules)));
  });
  return made;
}

function whySection(why) {
  const rivals = plainTable("Why not the next candidates", ["program", "time", "change", "because"], why.rivals.map((rival) => {
    const last = rival.road.at(-1);
    return [rival.asked, [rival.predicted_s, "s"], rival.percent === null ? "" : [rival.percent, "percent"], rival.verdict === "equal" ? "predicted alike" : last ? el("span", {}, `${last.name}: `, number(last.own, last.unit, "predicted"), " against ", number(last.other, last.unit, "predicted")) : rival.reason];
  }));
  const stops = plainTable("Why no tile is larger", ["layer", "axis", "step", "time", "what speaks against it"], why.stops.map((stop) =>
    [stop.layer || "program", stop.axis, stop.why === "covered" ? String(stop.now) : `${stop.now} → ${stop.larger}`, stop.seconds === null ? "" : [stop.seconds, "s"], stop.detail]));
  const lifts = plainTable("What would lift it: another number of the device, constructed anew", ["number", "from", "to", "time", "change"], why.lifts.map((lift) =>
    [lift.field + (lift.assumed ? " (assumed)" : ""), [lift.value, lift.unit], [lift.to, lift.unit], [lift.predicted_s, "s"], [lift.percent, "percent"]]));
  const place = why.rank ? `Number ${why.rank} of ${why.candidates} candidates.` : "Not among the constructed candidates.";
  return section("Why this program, and not the next", place, rivals, stops, lifts, why.construction.length ? el("details", {}, el("summary", {}, "How it was constructed"), el("ul", {}, why.construction.map((words) => el("li", {}, words)))) : null);
}

/** A small table; cells are texts, or [value, unit] for numbers. */
function plainTable(title, head, rows, label = "predicted") {
  if (!rows.length) return null;
  const cell = (value, place) => (Array.isArray(value) ? titled(head[place], "td", number(value[0], value[1], value[2] || label)) : titled(head[place], typeof value === "string" && value.length > 20 ? "td.t.long" : "td.t", value));
  return el("div", {}, el("h3", {}, title), el("div.scroll", { tabindex: "0", role: "region", "aria-label": title }, el("table.stacks", {},
    el("thead", {}, el("tr", {}, head.map((name, place) => el(Array.isArray(rows[0][place]) ? "th" : "th.t", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))))));
}

function roofSection(why) {
  const roof = why.roofline;
  const holder = el("div.curve", { role: "img", "aria-label": `Roofline: ${digits(roof.intensity)} operations per byte, ${percent(roof.share)} of the roof` });
  const reached = roof.flops / roof.seconds;
  onWidth(holder, (width) => {
    const from = Math.min(roof.ridge, roof.intensity) / 8, to = Math.max(roof.ridge, roof.intensity) * 8;
    const top = Math.max(roof.peak_flops_per_s, reached) * 2, bottom = Math.min(from * roof.bandwidth_bytes_per_s, reached) / 2;
    const powers = (low, high) => Array.from({ length: 40 }, (_, n) => 10 ** (n - 6)).filter((value) => value >= low && value <= high);
    const frame = axes(width, 260, { log: true, from, to, title: "operations per byte", ticks: powers(from, to), name: (at) => digits(at) },
      { log: true, from: bottom, to: top, ticks: powers(bottom, top), name: (at) => prefixed(at, "") });
    const at = (x, y) => `${frame.x(x).toFixed(1)} ${frame.y(y).toFixed(1)}`;
    frame.root.append(svg("path", { class: "stroke fitted", d: `M${at(from, from * roof.bandwidth_bytes_per_s)}L${at(roof.ridge, roof.peak_flops_per_s)}L${at(to, roof.peak_flops_per_s)}` }),
      svg("line", { class: "limit", x1: frame.x(roof.intensity), x2: frame.x(roof.intensity), y1: frame.y(reached), y2: frame.y(Math.min(roof.peak_flops_per_s, roof.intensity * roof.bandwidth_bytes_per_s)) }),
      svg("circle", { class: "dot sampled", r: 6, cx: frame.x(roof.intensity), cy: frame.y(reached) }));
    holder.replaceChildren(frame.root);
  });
  return section("Under the roofline", "", el("p", {}, number(roof.intensity, "", "predicted"), " operations per byte, the ridge is at ", number(roof.ridge, "", "predicted"), `: under the roof of ${roof.bound}. `,
    "Predicted to reach ", number(reached, "flops/s", "predicted"), " of ", number(roof.peak_flops_per_s, "flops/s", "predicted"), ` (${roof.pipe}); `, number(roof.share, "share", "predicted"), " of the roof's ", number(roof.roof_s, "s", "predicted"), "."), holder);
}

function factsSection(why) {
  const layers = plainTable("Memory, layer by layer", ["layer", "tile", "holds", "of", "unit", "bytes moved", "time"], why.layers.map((layer) =>
    [layer.name, layer.tile ? Object.entries(layer.tile).filter(([, extent]) => extent > 1).map(([axis, extent]) => `${axis}=${extent}`).join(" ") || "1" : "–",
      [layer.held, ""], [layer.capacity, ""], layer.unit, [layer.moved_bytes, "bytes"], [layer.seconds, "s"]]));
  const facts = plainTable("How it fills the device", ["what", "value", "limit", "note"], why.facts.map((fact) => [fact.name, [fact.value, ""], [fact.limit, ""], fact.note]));
  return section("On the device", "", layers, facts);
}

function candidatesSection(data) {
  if (!data.candidates.length) return null;
  const longest = Math.max(...data.candidates.map((row) => row.predicted_s));
  return section("Candidates", "In the order of their predicted times.", el("ol.candidates", {}, data.candidates.map((row) =>
    el(row.chosen ? "li.chosen" : "li", {}, el("span.share", { "aria-hidden": "true" }, el("span", { style: { width: `${(100 * row.predicted_s) / longest}%` } })),
      number(row.predicted_s, "s", "predicted", row.interval_s), el("code", {}, row.program), row.chosen ? el("strong", {}, "this kernel") : null))));
}
