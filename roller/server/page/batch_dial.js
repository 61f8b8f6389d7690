// The batch dial: dragged, moved by keys or typed, it shows the step at another batch at once, and writes the literal.

const MOST_BATCH = 1e9; // of the protocol
const DIAL_HEIGHT = 148, EDIT_MS = 100, REST_MS = 800;

/** A batch as one can be set: whole, and at least 1. */
function batchText(batch) {
  return batch < 0.5 ? "below 1" : digits(Math.round(batch), 10);
}

function dialPanel(state, server, source) {
  const chart = el("div.dial", { role: "slider", tabindex: "0", "aria-label": "Batch size", "aria-valuemin": 1 });
  const typed = el("input", { type: "number", min: 1, step: 1, "aria-label": "Batch size as a number", inputmode: "numeric" });
  const values = { time: el("span.n"), throughput: el("span.n"), bytes: el("span.n") };
  const verdict = el("span.verdict", {});
  const marks = el("ul.dial-marks", { "aria-label": "Batches to choose" });
  const limits = el("p.limits.faint", {}), says = el("div.dial-says", {});
  const element = el("section.panel.batch", { "aria-label": "Batch" },
    el("div.panel-head", {}, el("h2", {}, "Batch"), el("label.typed", {}, typed), verdict, el("span.push", {}), el("span.faint.keys", {}, "Drag, use arrow or page keys, or type; Esc restores")),
    el("div.dial-values", {}, el("span", {}, el("span.faint", {}, "step "), values.time), el("span", {}, el("span.faint", {}, "throughput "), values.throughput), el("span", {}, el("span.faint", {}, "memory "), values.bytes)),
    chart, marks, limits, says);
  let width = 0, scale = null, gesture = null;

  const curveOf = () => state.data("curve")?.curve || null;
  const shown = () => state.dialled ?? state.model?.profile.batch ?? null;

  function range() {
    const curve = curveOf(), profile = state.model.profile;
    const most = Math.max(2, curve?.largest || 0, profile.batch, ...(curve ? curve.computed.map((point) => point.batch) : [profile.batch * 8]));
    return [1, Math.ceil(most * 1.25)];
  }

  /** Marks of the axis: {batch, name, short, interval}. */
  function choices() {
    const found = state.data("curve"), { data } = state.model;
    const rows = [];
    if (data.balanced_batch) rows.push({ batch: Math.max(1, Math.round(data.balanced_batch)), exact: data.balanced_batch, name: "weights = activations", kind: "balanced" });
    if (found?.diminishing_from) rows.push({ batch: found.diminishing_from, exact: found.diminishing_from, name: "diminishing returns from", kind: "diminishing" });
    if (found?.curve?.largest) rows.push({ batch: found.curve.largest, exact: found.curve.largest, name: "largest that fits", kind: "largest" });
    return rows;
  }

  // Drawing

  function draw() {
    if (!state.model || !width || !state.model.profile.batch) return;
    const curve = curveOf(), [from, to] = range(), profile = state.model.profile;
    const left = 8, right = 8, top = 22, bottom = 24, floor = DIAL_HEIGHT - bottom;
    const x = (batch) => left + (Math.log(Math.max(from, batch) / from) / Math.log(to / from)) * (width - left - right);
    scale = { x, to, batch: (at) => Math.max(from, Math.min(to, Math.round(from * Math.exp(((at - left) / (width - left - right)) * Math.log(to / from))))) };
    const root = svg("svg", { width, height: DIAL_HEIGHT, "aria-hidden": "true", class: "dial-chart" });
    root.append(svg("line", { class: "axis-line", x1: left, x2: width - right, y1: floor, y2: floor }));
    let last = -99;
    for (let power = 1; power <= to; power *= 10)
      for (const times of [1, 2, 5]) {
        const at = power * times;
        if (at > to) break;
        root.append(svg("line", { class: "tick-line", x1: x(at), x2: x(at), y1: floor, y2: floor + 4 }));
        if (x(at) - last > 34) {
          root.append(svg("text", { class: "tick", x: Math.max(left + 4, Math.min(width - 14, x(at))), y: DIAL_HEIGHT - 6, "text-anchor": "middle" }, at < 1000 ? String(at) : at < 1e6 ? `${at / 1000}k` : `${at / 1e6}M`));
          last = x(at);
        }
      }
    if (curve?.largest && curve.largest < to) root.append(svg("rect", { class: "unfit", x: x(curve.largest), y: top, width: width - right - x(curve.largest), height: floor - top }));
    if (curve?.line) {
      const best = Math.max(state.data("curve").most_throughput || 0, ...curve.computed.map((point) => point.throughput)) || 1;
      const y = (value) => floor - (value / best) * (floor - top - 4);
      const until = curve.largest || to;
      const steps = Array.from({ length: 97 }, (_, n) => from * Math.exp((n / 96) * Math.log(until / from)));
      const line = (batch) => (curve.line.a * batch + curve.line.b > 0 ? batch / (curve.line.a * batch + curve.line.b) : 0);
      root.append(svg("path", { class: "throughput", d: steps.map((batch, n) => `${n ? "L" : "M"}${x(batch).toFixed(1)} ${y(line(batch)).toFixed(1)}`).join("") }));
      const capacity = profile.capacity_bytes;
      if (capacity) {
        const m = (batch) => floor - Math.min(1.02, (curve.line.c * batch + curve.line.d) / capacity) * (floor - top - 4);
        root.append(svg("path", { class: "memory", d: steps.map((batch, n) => `${n ? "L" : "M"}${x(batch).toFixed(1)} ${m(batch).toFixed(1)}`).join("") }));
      }
      for (const point of curve.computed) if (point.fits) root.append(svg("circle", { class: "computed", cx: x(point.batch), cy: y(point.throughput), r: 2.5 }));
    }
    for (const { batch, kind } of choices()) root.append(svg("line", { class: `choice-line ${kind}`, x1: x(batch), x2: x(batch), y1: top - 6, y2: floor }), svg("path", { class: `choice-head ${kind}`, d: `M${x(batch) - 5} ${top - 12}h10l-5 7z` }));
    const old = svg("line", { class: "profiled", x1: x(profile.batch), x2: x(profile.batch), y1: top, y2: floor });
    const handle = svg("g", { class: "handle" }, svg("line", { x1: 0, x2: 0, y1: top - 4, y2: floor }), svg("circle", { cx: 0, cy: floor, r: 8 }));
    scale.handle = handle;
    root.append(old, handle);
    fill(chart, root);
    chart.setAttribute("aria-valuemax", to);
    drawMarks();
    move();
  }

  function drawMarks() {
    const { label } = state.model, found = state.data("curve");
    fill(marks, ...choices().map(({ batch, exact, name, kind }) => el("li", {},
      el(`button.${kind}`, { type: "button", title: `Set the batch to ${batch}`, onclick: () => set(batch) }, el("span.flag", { "aria-hidden": "true" }), name, " ", number(exact, "", label, undefined, batchText)))));
    fill(limits, found?.most_throughput ? ["Limit of the fitted line: ", number(found.most_throughput, "samples/s", label)] : null,
      found?.throughput_at_largest ? [found.most_throughput ? "; at" : "At", " the largest batch: ", number(found.throughput_at_largest, "samples/s", label)] : null);
  }

  /** Move the handle, and tell the step at its batch. */
  function move() {
    if (!state.model || !scale) return;
    const at = stepAt(state), batch = at.batch;
    scale.handle.setAttribute("transform", `translate(${scale.x(Math.min(batch, scale.to)).toFixed(1)} 0)`);
    chart.setAttribute("aria-valuenow", batch);
    chart.setAttribute("aria-valuetext", `batch ${batch}: ${text(at.time, "s")} a step, ${text(at.throughput, "samples/s")}, ${text(at.bytes, "bytes")}`);
    if (document.activeElement !== typed) typed.value = batch;
    setNumber(values.time, at.time, "s", at.label, at.interval);
    setNumber(values.throughput, at.fits ? at.throughput : null, "samples/s", at.label, at.throughputInterval);
    setNumber(values.bytes, at.bytes, "bytes", at.label, at.bytesInterval);
    verdict.textContent = at.fits ? "" : "does not fit";
    element.classList.toggle("unfit", !at.fits);
  }

  function drawSays() {
    const batch = state.head?.batch, found = state.data("curve");
    const parts = [], isIdle = Boolean(found?.error && batch && !literalOf(state));
    element.classList.toggle("no-dial", isIdle);
    const chosen = state.head?.options.batch;
    if (chosen)
      parts.push(el("p", {}, "Batch ", number(chosen, "", "recorded", "exact"), " is set for this page alone", batch?.value ? [", the file has ", number(batch.value, "", "recorded", "exact")] : "", ". ",
        el("button", { type: "button", onclick: () => chooseOptions(state, server, { batch: null }) }, "Back to the file's own")));
    else if (batch?.error && !literalOf(state)) {
      if (!isIdle) parts.push(el("p", {}, el("strong", {}, "The dial writes no literal. "), state.linked(batch.error, batch.line && `${state.hello.entry}:${batch.line}`), " It changes only the profile."));
      if (batch.candidates.length) parts.push(el("p", {}, "Numbers that may be the batch: ", batch.candidates.map((one) => [el("button", { type: "button", onclick: () => adopt(one) }, `${one.name} = ${one.value}`), " "])));
    }
    if (found?.error) parts.unshift(el("p", {}, state.linked(found.error)));
    const notes = found?.curve?.notes || [];
    if (notes.length) parts.push(el("details", {}, el("summary", {}, "Range of the fitted line"), notes.map((note) => el("p.faint", {}, note))));
    const stale = state.isStale("curve") || (state.model && !found);
    if (stale && state.head?.status === "running") parts.unshift(el("p.faint", {}, "The curve of this save is being computed."));
    fill(says, ...parts);
  }

  function adopt(candidate) {
    state.adopted = candidate.name;
    state.tell("status");
  }

  // A gesture: from the first move to the release; one step of the undo history

  function begin() {
    if (gesture || !state.model || !state.model.profile.batch) return Boolean(gesture);
    state.isTurning = true;
    const made = (gesture = { from: shown(), before: null, written: null, last: 0, timer: 0 });
    const hasLiteral = state.head.options.batch === null && Boolean(literalOf(state));
    made.ready = hasLiteral ? source.forDial().then((span) => {
      if (gesture !== made || !span) return;
      made.before = source.editor.text().slice(...span);
      write(made);
    }) : Promise.resolve();
    return true;
  }

  /** Show another batch; one that is typed may lie beyond the axis. */
  function turn(batch, most = range()[1]) {
    if (!begin()) return;
    const began = performance.now();
    state.dialled = Math.max(1, Math.min(most, batch));
    state.tell("batch");
    performance.measure("dial", { start: began, end: performance.now() });
    write(gesture);
  }

  /** Write the number in the editor, at most once in EDIT_MS; the last one of a gesture is written by its end. */
  function write(made) {
    const now = performance.now();
    if (made.before === null || state.dialled === null || made.written === state.dialled) return;
    clearTimeout(made.timer);
    if (now - made.last < EDIT_MS) {
      made.timer = setTimeout(() => gesture === made && write(made), EDIT_MS - (now - made.last) + 1);
      return;
    }
    source.editor.writeLiteral(String(state.dialled), made.written === null);
    made.written = state.dialled;
    made.last = performance.now();
  }

  async function end() {
    const made = gesture;
    if (!made) return;
    clearTimeout(made.rest);
    clearTimeout(made.timer);
    await made.ready;
    if (gesture !== made) return;
    const wait = made.before === null ? 0 : Math.max(0, EDIT_MS - (performance.now() - made.last));
    if (wait) await new Promise((done) => setTimeout(done, wait));
    if (gesture !== made) return;
    gesture = null;
    const batch = state.dialled;
    if (batch === null || batch === made.from) return cancelled(made);
    if (made.before !== null) {
      if (made.written !== batch) source.editor.writeLiteral(String(batch), made.written === null);
      source.editor.endLiteral();
      await source.save();
    } else chooseOptions(state, server, { batch });
    state.isTurning = Boolean(gesture);
  }

  function cancel() {
    const made = gesture;
    if (!made) return;
    gesture = null;
    clearTimeout(made.rest);
    clearTimeout(made.timer);
    cancelled(made);
  }

  function cancelled(made) {
    if (made.before !== null && made.written !== null) source.editor.endLiteral(), source.editor.undo();
    state.dialled = null;
    state.isTurning = false;
    state.tell("batch");
  }

  function set(batch) {
    turn(batch, MOST_BATCH);
    end();
  }

  const at = (event) => scale.batch(event.clientX - chart.getBoundingClientRect().left);
  let dragging = false;
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !scale) return;
    chart.setPointerCapture(event.pointerId); // the pointer may leave the dial
    dragging = true;
    chart.focus();
    turn(at(event));
    event.preventDefault();
  });
  chart.addEventListener("pointermove", (event) => dragging && turn(at(event)));
  const released = () => {
    if (dragging) (dragging = false), end();
  };
  chart.addEventListener("pointerup", released);
  chart.addEventListener("lostpointercapture", released);
  chart.addEventListener("keydown", (event) => {
    const batch = shown();
    const largest = curveOf()?.largest || range()[1];
    const moves = {
      ArrowRight: batch + 1, ArrowUp: batch + 1, ArrowLeft: batch - 1, ArrowDown: batch - 1, PageUp: batch * 2, PageDown: Math.max(1, batch >> 1), Home: 1, End: largest,
    };
    if (event.key in moves) {
      turn(moves[event.key]);
      if (gesture) clearTimeout(gesture.rest), (gesture.rest = setTimeout(end, REST_MS));
    } else if (event.key === "Escape") (dragging = false), cancel();
    else if (event.key === "Enter") end();
    else return;
    event.preventDefault();
  });
  chart.addEventListener("blur", () => dragging || end());
  typed.addEventListener("change", () => {
    const batch = Math.round(Number(typed.value));
    if (batch >= 1 && batch !== shown()) set(batch);
    else typed.value = shown();
  });
  typed.addEventListener("keydown", (event) => {
    if (event.key === "Escape") (typed.value = shown()), typed.blur();
  });

  onWidth(chart, (now) => ((width = now), draw()));
  state.on("profile curve", () => (draw(), drawSays()));
  state.on("status", () => (drawSays(), move()));
  state.on("batch", move);
  return { element };
}
