// The views of a compiled model and of a benchmark's results.

function showModel(main, data) {
  const steps = data.steps;
  const kernels = data.kernels;
  main.append(el("section.hero", {}, el("h1", {}, data.name, " ", el("span.on", {}, `compiled for ${data.device}`)), el("div.cards", {},
    data.predicted_s === null ? null : card(["Kernels of a call ", chip("predicted")], number(data.predicted_s, "s", "predicted", data.interval_s), [hasInterval(data.interval_s) ? `${range(data.interval_s, "s")}, ` : "", "sum over the steps of a call"]),
    data.measured_s === null ? null : card(["Kernels of a call ", chip("measured")], number(data.measured_s, "s", "measured"), "each kernel alone, when it was compiled"),
    card("Steps", number(steps.length, "", "recorded", "exact"), [number(Object.keys(kernels).length, "", "recorded", "exact"), " distinct kernels"]))));
  const chosen = el("div", { "aria-live": "polite", id: "kernel" });
  const show = (key) => {
    const kernel = kernels[key];
    if (!kernel) return;
    chosen.replaceChildren(el("h2.kernel-title", { tabindex: "-1" }, `Kernel: ${kernel.name}`), ...kernelSections(kernel));
  };
  const timed = steps.map((_, at) => at).filter((at) => steps[at].predicted_s !== null || steps[at].measured_s !== null);
  if (timed.length) main.append(section("Steps by time", "Predicted above measured, to one scale; choose a step to see its kernel below.", stepBars(timed.map((at) => ({ ...steps[at], at })), show)));
  const column = (title, name, unit, label) => ({ title, unit, label, numeric: true, width: "5.5rem", value: (row) => steps[row][name] });
  main.append(section("Steps", "In their order. Enter or a click shows the kernel below.", table([
    { title: "step", width: "minmax(7rem, 2fr)", value: (row) => steps[row].label },
    { title: "kind", width: "5rem", wide: true, value: (row) => steps[row].kind },
    { ...column("predicted", "predicted_s", "s", "predicted"), interval: (row) => steps[row].interval_s }, column("measured", "measured_s", "s", "measured"),
    { title: "bound", width: "6rem", wide: true, value: (row) => steps[row].bottleneck },
    { title: "nodes", width: "minmax(6rem, 1fr)", wide: true, value: (row) => steps[row].nodes.join(", ") },
  ], { label: "steps", count: steps.length, unsorted: true, pick: (row) => (show(steps[row].kernel), chosen.scrollIntoView({ block: "start" })) })), chosen);
  if (data.notes.length) main.append(section("Notes", "", el("ul", {}, data.notes.map((note) => el("li", {}, note)))));
  show(Object.keys(kernels)[0]);
}

const MOST_BARS = 20;

function stepBars(steps, show) {
  const weight = (step) => step.measured_s ?? step.predicted_s ?? 0;
  const shown = [...steps].sort((a, b) => weight(b) - weight(a)).slice(0, MOST_BARS);
  const longest = Math.max(...shown.flatMap((step) => [step.measured_s || 0, step.predicted_s || 0]));
  const bar = (kind, value, interval) => value === null || value === undefined ? null : el("span.two", {},
    el("span.track", { "aria-hidden": "true" }, el(`span.fill-${kind}`, { style: { width: `${(100 * value) / longest}%` } })), number(value, "s", kind, interval));
  return el("ol.steps", {}, shown.map((step) => el("li", {}, el("button", { type: "button", onclick: () => show(step.kernel) }, step.label || step.kind),
    el("span.bars", {}, bar("predicted", step.predicted_s, step.interval_s), bar("measured", step.measured_s)))));
}

function showBenchmark(main, data) {
  main.append(el("h1", {}, data.name, " ", el("span.on", {}, "results")));
  const run = Object.entries(data.run).filter(([, value]) => value !== null);
  if (run.length) main.append(section("Run", "", el("dl.run", {}, run.map(([name, value]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, typeof value === "number" ? number(value, "", "recorded") : String(value)))))));
  for (const found of data.tables) {
    const count = found.columns[0].values.length;
    const filled = found.columns.filter((column) => column.values.some((value) => value !== null && value !== ""));
    const columns = filled.map((column, place) => {
      const numeric = column.values.every((value) => value === null || typeof value === "number") && column.values.some((value) => value !== null);
      const unit = /(^|_)s$/.test(column.name.split(".")[0]) || /^seconds\./.test(column.name) ? "s" : /bytes$/.test(column.name) ? "bytes" : "";
      return { title: words(column.name), numeric, unit, label: column.label, wide: place > 2, width: numeric ? "7rem" : place ? "minmax(7rem, 1fr)" : "minmax(9rem, 2fr)",
        value: (row) => (numeric ? column.values[row] : String(column.values[row] ?? "")) };
    });
    main.append(section(words(found.name), "", table(columns, { label: words(found.name), count, unsorted: true })));
  }
}
