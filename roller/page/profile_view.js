// The view of a training step's profile.

function showProfile(main, data) {
  const label = data.label;
  const names = data.names;
  const nodes = data.nodes;
  const count = nodes.parent.length;
  const interval = [data.lower_s, data.upper_s];
  const nameOf = (node) => shortName(names, nodes, node);
  const kindOf = (node) => names[nodes.kind[node]];
  const held = byNode(nodes.held), phases = byNode(nodes.phases);
  const ends = nodes.intervals ? [byNode(nodes.phases_lower), byNode(nodes.phases_upper)] : null;

  main.append(heading(data, label, interval));
  if (data.out_of_memory)
    main.append(el("section.alarm", { role: "note" }, el("h2", {}, "It does not fit"), el("p", {}, data.out_of_memory), el("p", {}, "Memory below is that before the failure.")));

  const state = { metric: nodes.wall_s[0] ? "time" : "memory", chosen: 0 };
  const valueOf = (node) => (state.metric === "time" ? nodes.wall_s[node] : nodes.held_bytes[node]);
  const unit = () => (state.metric === "time" ? "s" : "bytes");
  const memory = data.total_bytes ? stackedBar(Object.entries(data.memory_parts).sort((a, b) => b[1] - a[1]), "bytes", label, data.total_bytes, "Memory at the peak by kind") : null;
  const details = el("aside.details", { "aria-live": "polite", "aria-label": "The chosen part" });

  function tell(node) {
    details.replaceChildren(...detailsOf(data, node, { label, held, phases, ends, kindOf }));
    memory?.mark(node === 0 ? null : held[node] || {});
  }

  const tree = icicle({
    label: "Parts of the step", parent: nodes.parent, name: nameOf, kind: (node) => kindOf(node), value: valueOf,
    title: (node) => `${kindOf(node)} ${names[nodes.name[node]]}, ${text(valueOf(node), unit())}, ${percent(valueOf(node) / (valueOf(0) || 1))} of the step`,
    number: (node) => number(valueOf(node), unit(), label, state.metric === "time" ? intervalOf(data, node) : null),
    pick: (node) => tell((state.chosen = node)),
    focus: (node) => tell(node === null ? state.chosen : node),
  });
  const measureBy = (metric) => {
    state.metric = metric;
    for (const button of metrics.children) button.setAttribute("aria-pressed", String(button.dataset.metric === metric));
    tree.draw();
  };
  const metrics = el("div.choice", { role: "group", "aria-label": "What widths are" }, ["time", "memory"].map((metric) =>
    el("button", {
      type: "button", "data-metric": metric, "aria-pressed": String(metric === state.metric), disabled: !(metric === "time" ? nodes.wall_s[0] : nodes.held_bytes[0]),
      onclick: () => measureBy(metric),
    }, metric === "time" ? "Wall time" : "Memory at the peak")));
  main.append(section("Where it goes", "Click a part, or press Enter, to go into it; Escape goes back up. Arrow keys move.",
    el("div.tools", {}, metrics, legend(["module", "line", "operator", "kernel", "call", "tensors"].filter((kind) => nodes.kind.some((one) => names[one] === kind)))),
    tree.element, details));

  if (memory)
    main.append(section("Memory", "", el("p", {}, "At the total's peak: ", number(data.total_bytes, "bytes", label, spread(data.total_bytes, data.total_error_bytes)),
      data.capacity_bytes ? [" of ", number(data.capacity_bytes, "bytes", "recorded", "exact"), " of the device"] : ""), memory.element,
      data.memory_curve ? el("h3", {}, overWhat(data)) : null, data.memory_curve ? memoryCurve(data.memory_curve, label, data.capacity_bytes, names) : null));
  const categories = Object.entries(data.categories).filter(([, value]) => value > 0);
  if (categories.length) {
    const whole = categories.reduce((sum, [, value]) => sum + value, 0);
    main.append(section("Categories", "What the step's time went to; they sum to the step.", stackedBar(categories, "s", label, whole, "Time by category").element));
  }
  if (data.curve) main.append(batchSection(data, label));

  const byName = (kinds, name) => (node) => kinds.includes(kindOf(node)) && names[nodes.name[node]] === name;
  const pipes = pipeSection(data, label, (name) => tree.mark(name === null ? null : byName(["kernel"], name)));
  if (pipes) main.append(pipes);
  const ways = {
    hover: (kind, name) => tree.mark(name === null ? null : matcher(data, kind, name)),
    pick(kind, name) {
      const test = matcher(data, kind, name);
      let best = -1;
      const weight = (node) => nodes.wall_s[node] || nodes.held_bytes[node];
      for (let node = 0; node < count; node++) if (test(node) && (best < 0 || weight(node) > weight(best))) best = node;
      if (best >= 0 && !valueOf(best)) measureBy(state.metric === "time" ? "memory" : "time");
      if (best >= 0) tree.show(best), tree.element.scrollIntoView({ block: "nearest" });
    },
  };
  if (data.hints) main.append(hintsSection(data, ways.pick));
  if (data.difference) main.append(differenceSection(data, ways.pick));
  main.append(tablesSection(data, label, ways));
  if (data.notes.length) main.append(section("Notes", "", el("ul", {}, data.notes.map((note) => el("li", {}, note)))));
  const versions = Object.entries(data.versions);
  if (versions.length) main.append(el("p.hint.versions", {}, versions.map(([name, value], place) => `${place ? ", " : "Made with "}${name} ${value.slice(0, 12)}`).join(""), "."));
  tell(0);
}

/** What the curve of memory goes over: a recording has all of its steps. */
function overWhat({ source, steps }) {
  if (source !== "recorded") return "Over the step";
  return steps > 1 ? `Over the recording, ${steps} steps` : "Over the recording";
}

/** Whether the device is another one than the processor, and so takes another time than the step. */
function hasDevice({ source, device, nodes }) {
  return source !== "measured" && device !== "cpu" && nodes.device_s.some((value, node) => value !== nodes.wall_s[node]);
}

function matcher(data, kind, name) {
  const { names, nodes } = data;
  const number = names.indexOf(name), wanted = names.indexOf(kind);
  const named = (node) => nodes.name[node] === number && nodes.kind[node] === wanted;
  if (kind === "line" && !nodes.name.some((_, node) => named(node))) {
    const { line, node: made } = nodes.registered; // it runs nothing, so what it registers stands for it
    const found = new Set(Array.from(made).filter((_, place) => line[place] === number));
    return (node) => found.has(node);
  }
  if (kind !== "shapes") return named;
  return (node) => names[nodes.kind[node]] === kind && name === `${names[nodes.name[nodes.parent[node]]]} ${names[nodes.name[node]]}`;
}

function heading(data, label, interval) {
  const where = data.device ? `on ${data.devices > 1 ? `${data.devices} × ` : ""}${data.device}` : "";
  const facts = [
    data.batch ? ["batch", [number(data.batch, "", "recorded", "exact")]] : null,
    data.amp !== "fp32" ? ["precision", [data.amp]] : null,
    data.checkpoint.length ? ["checkpoint", [data.checkpoint.join(", ")]] : null,
    data.policy ? ["kernels of", [data.policy]] : null,
    data.bound ? ["bound by the", [data.bound]] : null,
  ].filter(Boolean);
  return el("section.hero", {},
    el("h1", {}, data.name, " ", el("span.on", {}, where), " ", chip(label)),
    el("div.cards", {},
      card(data.trains ? "One step" : "One inference", data.is_stable ? number(data.iteration_s, "s", label, interval) : [number(interval[0], "s", label), " to ", number(interval[1], "s", label)],
        !data.is_stable ? ["disturbed: only the interval is known; the median is ", number(data.iteration_s, "s", label, interval)]
          : interval[1] > interval[0] ? [number(interval[0], "s", label), " to ", number(interval[1], "s", label)] : "no interval is known"),
      data.throughput ? card("Throughput", number(data.throughput, "samples/s", label, data.throughput_interval), facts.length && data.batch ? ["at batch ", number(data.batch, "", "recorded", "exact")] : "") : null,
      data.total_bytes ? card("Memory at its peak", number(data.total_bytes, "bytes", label, spread(data.total_bytes, data.total_error_bytes)),
        data.capacity_bytes ? [number(data.total_bytes / data.capacity_bytes, "share", label), " of ", number(data.capacity_bytes, "bytes", "recorded", "exact")] : "capacity not known") : null),
    facts.length ? el("p.facts", {}, facts.map(([name, value], place) => [place ? " · " : "", `${name} `, ...value])) : null);
}

function card(title, value, below) {
  return el("div.card", {}, el("div.card-title", {}, title), el("div.card-value", {}, value), el("div.faint", {}, below));
}

function spread(value, error) {
  return error ? [value - error, value + error] : null;
}

function section(title, hint, ...parts) {
  return el("section", {}, el("h2", {}, title), hint ? el("p.hint", {}, hint) : null, ...parts);
}

function legend(kinds) {
  return el("div.kinds", { "aria-hidden": "true" }, kinds.map((kind) => el("span", {}, el(`span.swatch.k-${kind}`), kind)));
}

/** Name of a node; of a module without that of the module around it. */
function shortName(names, nodes, node) {
  const name = names[nodes.name[node]];
  if (names[nodes.kind[node]] === "line") return withoutFolder(names, name);
  if (names[nodes.kind[node]] !== "module") return name.replace(/^aten(\.|::)/, "");
  for (let outer = nodes.parent[node]; outer >= 0; outer = nodes.parent[outer])
    if (names[nodes.kind[outer]] === "module") {
      const around = names[nodes.name[outer]];
      return name.startsWith(around + ".") ? name.slice(around.length) : name;
    }
  return name;
}

/** Path of a line without the folder that all lines are in. */
function withoutFolder(names, name) {
  names.folder ??= commonFolder(names.filter((one) => /^[^\s]+\.py:\d+$/.test(one)));
  return name.startsWith(names.folder) ? name.slice(names.folder.length) : name;
}

function commonFolder(paths) {
  if (!paths.length) return "";
  let folder = paths[0].slice(0, paths[0].lastIndexOf("/") + 1);
  while (folder && !paths.every((path) => path.startsWith(folder))) folder = folder.slice(0, folder.lastIndexOf("/", folder.length - 2) + 1);
  return folder;
}

/** Interval of the wall time of a node, or of a row of a table; null where it is not known. */
function intervalOf(data, node) {
  return node === 0 ? [data.lower_s, data.upper_s] : intervalIn(data.nodes, "wall", node);
}

function intervalIn(columns, what, row) {
  const ends = columns.intervals;
  return ends ? [ends[`${what}_lower_s`][row], ends[`${what}_upper_s`][row]] : null;
}

/** Turn name -> rows and values into node -> name -> value. */
function byNode(sparse) {
  const found = {};
  for (const [name, { row, value }] of Object.entries(sparse)) row.forEach((node, place) => ((found[node] ||= {})[name] = value[place]));
  return found;
}

function detailsOf(data, node, { label, held, phases, ends, kindOf }) {
  const { nodes, names } = data;
  const rows = [
    ["wall time", nodes.wall_s[node], "s", intervalOf(data, node)], ["share of the step", nodes.wall_s[node] / (nodes.wall_s[0] || 1), "share"],
    hasDevice(data) ? ["on the device", nodes.device_s[node], "s", intervalIn(nodes, "device", node)] : ["", 0], ["on the host", nodes.host_s[node], "s"],
    ["memory at the peak", nodes.held_bytes[node], "bytes", node === 0 ? spread(data.total_bytes, data.total_error_bytes) : null], [kindOf(node) === "tensors" ? "tensors" : "calls", nodes.calls[node], "", "exact"],
  ].filter(([, value]) => value);
  const pair = ([name, value, unit, interval]) => [el("div", {}, el("dt", {}, name), el("dd", {}, number(value, unit, label, interval))),
    name === "wall time" ? el("div", {}, el("dt", {}, "its interval"), el("dd", {}, range(interval, unit))) : null];
  const list = (title, pairs, unit, interval) => pairs.length ? [el("h3", {}, title), el("dl", {}, pairs.map(([name, value]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, number(value, unit, label, interval?.(name))))))] : [];
  const share = nodes.share_of_peak[node], bound = names[nodes.bound[node]];
  const first = [el("p.full", {}, el("span.kind", {}, kindOf(node)), " ", names[nodes.name[node]]), el("dl", {}, rows.map(pair),
      bound ? el("div", {}, el("dt", {}, "bound by"), el("dd", {}, bound)) : null,
      Number.isNaN(share) ? null : el("div", {}, el("dt", {}, `peak of ${names[nodes.pipe[node]]}`), el("dd", {}, number(share, "share", label))))];
  const lists = [list("Time by phase", Object.entries(phases[node] || {}), "s", (phase) => ends && [ends[0][node]?.[phase], ends[1][node]?.[phase]]), list("Memory by kind", Object.entries(held[node] || {}), "bytes")];
  return [first, ...lists].filter((parts) => parts.length).map((parts) => el("div", {}, parts));
}

function batchSection(data, label) {
  const { curve } = data;
  const points = curve.computed, line = curve.line;
  const throughput = line ? (batch) => (line.a * batch + line.b > 0 ? batch / (line.a * batch + line.b) : 0) : null;
  const sampled = line ? line.batches : [];
  const fitting = points.filter((point) => point.fits);
  const limits = [];
  if (curve.most_throughput) limits.push({ at: curve.most_throughput, kind: "limit" });
  if (curve.throughput_at_largest) limits.push({ at: curve.throughput_at_largest, kind: "limit second" });
  const extrapolated = label === "calibrated" ? label : "predicted";
  const write = Object.fromEntries([["iteration_s", "s"], ["throughput", "samples/s"], ["allocated_bytes", "bytes"], ["total_bytes", "bytes"]].map(([name, unit]) => [name, columnText(points.map((point) => point[name]), unit)]));
  const cells = (title, point, name, unit, interval) => titled(title, "td", number(point[name], unit, label, interval, write[name]));
  return section("Over the batch", "The line is fitted through the filled points; open ones are computed, too.",
    el("ul.plain", {},
      curve.most_throughput ? el("li", {}, el("span.swatch.line.limit"), "Limit by the line: ", number(curve.most_throughput, "samples/s", extrapolated)) : null,
      curve.largest ? el("li", {}, el("span.swatch.line.second"), "Largest batch that fits, ", number(curve.largest, "", label, "unknown"), ": ", number(curve.throughput_at_largest, "samples/s", label)) : null,
      curve.limit_by === "computed" && curve.most_computed ? el("li", {}, "Most by the computed batches: ", number(curve.most_computed, "samples/s", label)) : null,
      curve.diminishing_from ? el("li", {}, curve.limit_by === "computed" ? "By the computed batches" : "By the line", ", doubling the batch gains less than 10 % from batch ", number(curve.diminishing_from, "", extrapolated), " on") : null),
    el("div.pair", {},
      batchChart({ points: fitting, line: throughput, limits, unit: "samples/s", title: "Samples per second", label: "Throughput over the batch", value: (point) => point.throughput, sampled }),
      batchChart({ points, line: line ? (batch) => line.c * batch + line.d : null, limits: data.capacity_bytes ? [{ at: data.capacity_bytes, kind: "limit" }] : [], unit: "bytes", title: data.capacity_bytes ? "Allocated memory, and the capacity (dashed)" : "Allocated memory", label: "Allocated bytes over the batch", value: (point) => point.allocated_bytes, sampled })),
    el("details", {}, el("summary", {}, "All computed batches"), el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Computed batches" }, el("table.stacks", {},
      el("thead", {}, el("tr", {}, ["batch", "time", "throughput", "allocated", "total", "bound"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, points.map((point) => el("tr", {}, cells("batch", point, "batch", "", "exact"), cells("time", point, "iteration_s", "s"), point.fits ? cells("throughput", point, "throughput", "samples/s") : el("td", {}, "does not fit"), cells("allocated", point, "allocated_bytes", "bytes"), cells("total", point, "total_bytes", "bytes"), titled("bound", "td", point.bound))))))),
    curve.notes.length ? el("details", {}, el("summary", {}, "Where the line holds"), el("ul", {}, curve.notes.map((note) => el("li", {}, together(note))))) : null);
}

function pipeSection(data, label, mark) {
  const kernels = data.tables.kernels;
  if (!kernels) return null;
  const bounds = [...new Set(Array.from(kernels.bound, (name) => data.names[name]))].filter(Boolean);
  const rows = Array.from(kernels.name, (name, row) => ({
    name: data.names[name], device_s: kernels.device_s[row], share: Number.isNaN(kernels.share_of_peak[row]) ? 0 : kernels.share_of_peak[row],
    pipe: data.names[kernels.pipe[row]], bound: data.names[kernels.bound[row]], colour: boundColour(data.names[kernels.bound[row]], bounds),
  })).filter((kernel) => kernel.device_s > 0).sort((a, b) => b.device_s - a.device_s);
  if (!rows.some((kernel) => kernel.share > 0)) return null;
  const key = el("ul.legend.inline", { "aria-label": "Bound by" }, bounds.map((bound) => el("li", {}, el("span.swatch", { style: { background: boundColour(bound, bounds) } }), el("span.key", {}, `bound by ${bound}`))));
  return section("How near kernels are to the peak", "Each kernel is as wide as its time and as high as its share of its pipe's peak: what is empty is time in which the pipe waits.", key, pipeChart(rows.slice(0, 400), label, mark));
}

function boundColour(bound, bounds) {
  return colour(BOUND_COLOURS[bound] ?? (bound ? bounds.indexOf(bound) : 7));
}

const TABLE_KINDS = { lines: "line", operators: "operator", kernels: "kernel", modules: "module", shapes: "shapes" };

function tablesSection(data, label, { hover, pick }) {
  const found = Object.entries(data.tables);
  if (!found.length) return null;
  const panel = el("div", { role: "tabpanel", id: "panel" });
  const tabs = el("div.choice", { role: "tablist", "aria-label": "Tables" });
  const show = (place, focus) => {
    [...tabs.children].forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === place));
      tab.tabIndex = at === place ? 0 : -1;
      if (at === place && focus) tab.focus();
    });
    panel.setAttribute("aria-labelledby", tabs.children[place].id);
    const [heading, columns] = found[place];
    panel.replaceChildren(profileTable(data, heading, columns, label, hover, pick));
  };
  found.forEach(([heading, columns], place) => tabs.append(el("button", { type: "button", role: "tab", id: `tab-${heading}`, "aria-controls": "panel", onclick: () => show(place) }, heading, " ", el("span.faint", {}, String(columns.name.length)))));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show((([...tabs.children].indexOf(document.activeElement) + step + found.length) % found.length), true), event.preventDefault();
  });
  const made = section("Tables", "Point at a row to see where it is in the tree above; Enter or a click goes there.", tabs, panel);
  show(0);
  return made;
}

function profileTable(data, heading, columns, label, hover, pick) {
  const { names, iteration_s } = data;
  const kind = TABLE_KINDS[heading];
  const any = (column) => column && column.some((value) => value > 0);
  const numeric = (title, column, unit, more) => ({ title, unit, label, numeric: true, width: "6.5rem", value: (row) => column[row], write: column && columnText(column, unit, 3), ...more });
  const name = (row) => names[columns.name[row]];
  const shown = [
    { title: heading.replace(/s$/, ""), width: "minmax(8.5rem, 2fr)", value: name, text: kind === "line" ? (row) => withoutFolder(names, name(row)) : undefined },
    numeric("time", columns.wall_s, "s", { interval: (row) => intervalIn(columns, "wall", row) }),
    columns.intervals ? { title: "interval", width: "10rem", wide: true, value: (row) => (columns.wall_s[row] ? range(intervalIn(columns, "wall", row), "s") : "–"), key: (row) => columns.intervals.wall_upper_s[row] } : null,
    { ...numeric("share", null, "share", { width: "4.5rem", wide: true }), value: (row) => columns.wall_s[row] / (iteration_s || 1) },
    hasDevice(data) && any(columns.device_s) ? numeric("device", columns.device_s, "s", { wide: true, interval: (row) => intervalIn(columns, "device", row) }) : null,
    any(columns.held_bytes) ? numeric("memory", columns.held_bytes, "bytes") : null,
    any(columns.registered_bytes) ? numeric("weights", columns.registered_bytes, "bytes", { wide: true }) : null,
    any(columns.calls) ? numeric("calls", columns.calls, "", { width: "4.5rem", wide: true, interval: () => "exact" }) : null,
    any(columns.bound) && columns.bound.some((one) => names[one]) ? { title: "bound", width: "5.5rem", wide: true, value: (row) => names[columns.bound[row]] } : null,
    columns.share_of_peak.some((value) => !Number.isNaN(value)) ? numeric("of peak", columns.share_of_peak, "share", { width: "5rem", wide: true }) : null,
    columns.text && columns.text.some((one) => names[one]) ? { title: "text", width: "minmax(8rem, 2fr)", wide: true, value: (row) => names[columns.text[row]] } : null,
  ].filter(Boolean);
  return table(shown, { label: heading, count: columns.name.length, hover: (row) => hover(kind, row === null ? null : name(row)), pick: (row) => pick(kind, name(row)) });
}
