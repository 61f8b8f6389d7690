// What would change the step: how it is profiled, and hints that are switched on to see what they bring together.

const NOTHING_S = 1e-15;
const PRECISIONS = [["fp32", "fp32"], ["fp16", "fp16 (AMP)"], ["bf16", "bf16 (AMP)"]];
/** Links between devices by what one direction brings in bytes/s; nominal rates. */
const LINKS = [["Ethernet 10 Gbit/s", 1.25e9], ["Ethernet 100 Gbit/s", 12.5e9], ["PCIe 4.0 ×16", 32e9], ["NVLink 3, 300 GB/s", 300e9], ["NVLink 4, 450 GB/s", 450e9]];

function changePanel(state, server) {
  const precision = el("select", { "aria-label": "Precision", onchange: () => set({ amp: precision.value }) }, PRECISIONS.map(([value, name]) => el("option", { value }, name)));
  const checkpoint = toggle("Checkpointing", (on) => set({ checkpoint: on }));
  const copies = el("input", { type: "range", min: 1, max: 64, step: 1, value: 1, "aria-label": "Data-parallel devices" });
  const copiesText = el("output", {}, "1");
  const link = el("select", { "aria-label": "Link between devices", onchange: () => parallel() }, LINKS.map(([name, rate]) => el("option", { value: rate }, name)));
  const sum = el("div.together", { role: "status" });
  const list = el("ul.hints", { "aria-label": "Hints, the largest gain first" });
  const stale = el("span.stale-mark", { hidden: true }, "not up to date");
  const element = el("section.panel.changes", { "aria-label": "Changes" },
    el("div.panel-head", {}, el("h2", {}, "What would change it"), stale),
    el("div.switches", {}, el("label.field", {}, el("span.faint", {}, "Precision"), precision), checkpoint.element,
      el("div.field.parallel", {}, el("span.faint", {}, "Devices"), copies, copiesText, link)),
    sum, list);
  link.value = 300e9;

  function set(changed) {
    chooseOptions(state, server, changed);
  }

  /** Add and take away what-ifs of the step. */
  function change(add, drop) {
    set({ changes: [...state.head.options.changes.filter((one) => !drop(one) && !add.includes(one)), ...add] });
  }

  const isParallel = (one) => one.startsWith("ddp:");
  let due = 0;
  function parallel() {
    copiesText.textContent = copies.value;
    clearTimeout(due);
    due = setTimeout(() => change(Number(copies.value) > 1 ? [`ddp:devices=${copies.value},bandwidth=${link.value}`] : [], isParallel), 150);
  }
  copies.addEventListener("input", parallel);

  function draw() {
    const { options } = state.head;
    if (document.activeElement !== precision) precision.value = options.amp;
    checkpoint.set(options.checkpoint);
    const found = options.changes.find(isParallel), number_ = /devices=(\d+)/.exec(found || "");
    if (document.activeElement !== copies) copies.value = number_ ? number_[1] : 1, (copiesText.textContent = copies.value);
    const rate = /bandwidth=([\d.e+]+)/.exec(found || "");
    if (rate && LINKS.some(([, value]) => value === Number(rate[1]))) link.value = Number(rate[1]);
    link.disabled = Number(copies.value) <= 1;
    markStale(state, stale, "hints");
    drawSum(options.changes);
    drawHints(options.changes);
  }

  function drawSum(changes) {
    const found = state.data("whatif");
    sum.hidden = !changes.length;
    if (!changes.length) return;
    if (!found || state.isStale("whatif")) return fill(sum, state.head.status === "running" ? "What they bring together is being computed." : "What they bring together is not known of this step.");
    if (found.error) return fill(sum, state.linked(found.error));
    const label = state.model?.label || "predicted", delta = (found.iteration_us - found.baseline_us) / 1e6, interval = [found.lower_us / 1e6, found.upper_us / 1e6];
    const ends = interval.map((end) => end - found.baseline_us / 1e6);
    fill(sum, el("p", {}, el("strong", {}, number(found.iteration_us / 1e6, "s", label, interval)), " a step with ", changes.length === 1 ? "this change" : `these ${changes.length} changes`,
      " (", spreadText(interval, "s", label) || "no interval", "), ", signed(delta, "s", label, ends), ", ", number(found.speedup, "times", label, "derived"), found.hardly_anything ? " as fast: negligible" : " as fast",
      el("span.faint", {}, `; rests on what is ${found.rests_on}`)),
      el("p.together-memory", {}, "Memory at the peak: ", found.memory_delta_bytes === null ? el("span.faint", {}, found.memory_note) : memoryDelta(found, label),
        found.total_bytes === null ? null : [", to ", number(found.total_bytes, "bytes", label)]),
      el("button.small", { type: "button", onclick: () => set({ changes: [] }) }, "Switch all off"));
  }

  /** What a change does to the memory: bytes, nothing, or why that is not told. */
  function memoryDelta(change, label) {
    if (change.memory_delta_bytes === null) return el("span.faint", { title: change.memory_note }, memoryWords(change));
    const made = signed(change.memory_delta_bytes, "bytes", label);
    if (!change.memory_delta_bytes) made.textContent = "the same";
    return made;
  }

  function drawHints(changes) {
    const found = state.data("hints");
    const focused = list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.change : null;
    if (!found) return fill(list, el("li.faint", {}, state.head.status === "running" ? "Hints are being computed." : "There are no hints yet."));
    if (found.error) return fill(list, el("li.faint", {}, state.linked(found.error)));
    const before = state.model?.profile.iteration_s;
    fill(list, ...found.hints.map((hint) => hintRow(hint, changes, before)));
    if (focused) [...list.children].find((one) => one.dataset.change === focused)?.querySelector("input")?.focus();
  }

  function hintRow(hint, changes, before) {
    const on = hint.options.length > 0 && hint.options.every((one) => changes.includes(one));
    const made = toggle(hintName(hint.change), (now) => change(now ? hint.options : [], (one) => hint.options.includes(one)));
    made.set(on);
    made.input.disabled = !hint.options.length || Boolean(hint.not_asked);
    made.element.title = hint.change;
    if (hint.not_asked) return el("li.asked-not", { "data-change": hint.change }, made.element, el("p.faint", {}, hint.not_asked));
    const interval = [hint.lower_s, hint.upper_s];
    return el(`li${hint.hardly_anything ? ".hardly" : ""}`, { "data-change": hint.change }, made.element,
      el("span.gain", {}, hint.upper_bound ? el("span.faint", { title: "It cannot be built: it bounds the gain." }, "at most ") : null, hint.in_place ? el("span.faint", {}, "already in place") : [signed(hint.delta_s, "s", hint.kind, interval.map((end) => end - (hint.iteration_s - hint.delta_s))),
        before && Math.abs(hint.delta_s) >= NOTHING_S ? [" ", el("span.faint", {}, signed(hint.delta_s / before, "share", hint.kind))] : null]),
      el("span.to.faint", {}, "step ", number(hint.iteration_s, "s", hint.kind, interval), interval[1] > interval[0] ? [" (", spreadText(interval, "s", hint.kind), ")"] : null,
        hint.hardly_anything && !hint.in_place ? ", negligible" : null, el("span.hint-memory", {}, "; memory ", memoryDelta(hint, hint.kind)), hint.line ? ["; largest change at ", state.placeLink(hint.line), ": ", signed(hint.line_delta_s, "s", hint.kind)] : null),
      el("details", {}, el("summary", { title: "What the least certain of its times rests on" }, hint.rests_on), el("ul.plain", {}, hint.assumptions.map((one) => el("li", {}, one)))));
  }

  state.on("status hints whatif profile", () => state.head && draw());
  state.on("batch", () => markStale(state, stale, "hints"));
  return { element };
}

/** A change in words: names of what-ifs apart. */
function hintName(change) {
  return change.split(" + ").map((one) => {
    const [, name, parameters] = /^(\w+)\((.*)\)$/.exec(one) || [null, one, ""];
    const apart = /^[A-Z]+$/.test(name) ? name : name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase().replace(/^cuda/, "CUDA").replace(/^./, (first) => first.toUpperCase());
    if (!parameters) return apart;
    const only = /^\w+=\((.*)\)$/.exec(parameters), names = [...(only ? only[1] : "").matchAll(/'([^']*)'/g)].map((found) => found[1]);
    return names.length ? `${apart} ${namesText(names)}` : `${apart} (${parameters})`;
  }).join(" and ");
}

/** Names in words: those that are numbered one after another by the first and the last. */
function namesText(names) {
  const parts = names.map((name) => /^(.*?)(\d+)$/.exec(name));
  const isRun = names.length > 2 && parts.every((part, place) => part && part[1] === parts[0][1] && Number(part[2]) === Number(parts[0][2]) + place);
  return isRun ? `${names[0]} to ${names[names.length - 1]}` : names.join(", ");
}

/** A number with its sign: what is added or taken away. */
function signed(value, unit, label, interval) {
  const made = number(value, unit, label, interval);
  if (Math.abs(value) < NOTHING_S && unit === "s") {
    made.textContent = "0 s"; // what is left of a sum's rounding; the digits of the element have it
    return made;
  }
  if (value > 0) made.textContent = `+${made.textContent}`;
  made.textContent = made.textContent.replace("-", "−");
  made.classList.add(value < 0 ? "less" : value > 0 ? "rise" : "same");
  return made;
}

/** A switch: {element, input, set(on)}. */
function toggle(name, act) {
  const input = el("input", { type: "checkbox", role: "switch", onchange: () => act(input.checked) });
  return { element: el("label.toggle", {}, input, el("span.slot", { "aria-hidden": "true" }), el("span", {}, name)), input, set: (on) => (input.checked = on) };
}
