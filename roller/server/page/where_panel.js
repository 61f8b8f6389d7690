// Where time and memory go: two bars and a list of the parts of what is opened; the same part has one colour in all.

const MOST_PARTS = 200;
const COLOURED = 8; // parts with a colour of their own; the others are grey

/** Ways in the tree: a chain of single parts is gone through at once, in and out. */
function into(model, node) {
  while (model.children[node].length === 1 && model.children[model.children[node][0]].length) [node] = model.children[node];
  return node;
}

function outOf(model, node) {
  let up = node;
  do up = Math.max(0, model.parent[up]);
  while (up > 0 && model.children[up].length === 1);
  return up;
}

/** Words for a part: {name, place, kind}. */
function partWords(model, node) {
  const { kind, name } = model.nodes[node];
  const place = lineAround(model, node);
  const within = moduleAround(model, model.parent[node]);
  const short = (module, around) => (around && module.startsWith(`${around}.`) ? module.slice(around.length + 1) : module);
  if (kind === "step") return { name: "step", place: null, kind };
  if (kind === "line") {
    const only = model.children[node];
    if (only.length === 1 && model.nodes[only[0]].kind === "module") return { name: short(model.nodes[only[0]].name, within), place, kind: "module" };
    return { name: null, place, kind };
  }
  return { name: kind === "module" ? short(name, within) : nameOf(kind, name), place: kind === "module" ? place : null, kind };
}

function nameOf(kind, name) {
  if (kind === "overhead" && name === "memory of no tensor") return "memory outside tensors";
  return kind === "tensors" || kind === "overhead" ? words(name) : name.replace(/^aten(\.|::)/, "");
}

function wherePanel(state, source) {
  const crumbs = el("nav.crumbs", { "aria-label": "Way from the step to what is opened" });
  const bars = ["time", "memory"].map((what, place) => ({
    what, place, strip: el("div.strip", { "data-what": what }), total: el("span.n"), pieces: new Map(),
  }));
  const list = el("div.parts", { role: "tree", "aria-label": "Parts of what is opened" });
  const sorts = el("div.choice", { role: "group", "aria-label": "Order of the parts" }, ["time", "memory"].map((what) =>
    el("button", { type: "button", "data-what": what, "aria-pressed": String(what === "time"), onclick: () => sortBy(what) }, `By ${what}`)));
  const kinds = el("div.kinds-of", {});
  const more = el("p.hint", { hidden: true });
  const stale = el("span.stale-mark", { hidden: true }, "not up to date");
  const element = el("section.panel.where", { "aria-label": "Where it goes" },
    el("div.panel-head", {}, el("h2", {}, "Where it goes"), stale, el("span.push", {}), sorts),
    crumbs,
    bars.map(({ what, strip, total }) => el("div.lane", {}, el("span.lane-name", {}, what === "time" ? "Time" : "Memory"), strip, el("span.lane-total", {}, total))),
    el("p.hint.keys", {}, "Double-click, ", el("span.chevron", { "aria-hidden": "true" }, "›"), " or Enter opens a part, Escape returns; a click shows its line."),
    list, more, kinds);
  let sorted = "time", rows = new Map(), drawn = -1, kindBar = null;

  function sortBy(what) {
    sorted = what;
    for (const button of sorts.children) button.setAttribute("aria-pressed", String(button.dataset.what === what));
    draw();
  }

  const valueOf = (what, node) => valuesOf(state, node)[what === "time" ? 0 : 1];

  function colours(parts) {
    const { model } = state;
    const [time, size] = [model.time[state.opened] || 1, model.bytes[state.opened] || 1];
    const weight = (node) => Math.max(model.time[node] / time, model.bytes[node] / size);
    return new Map(ordered(parts, weight).map((node, place) => [node, place < COLOURED ? `var(--p${place})` : "var(--p-rest)"]));
  }

  function draw() {
    const { model, opened } = state;
    if (!model) return;
    drawn = opened;
    const parts = model.children[opened];
    const colour = colours(parts);
    for (const bar of bars) {
      bar.pieces.clear();
      fill(bar.strip, ...ordered(parts, (node) => valueOf(bar.what, node)).slice(0, MOST_PARTS).map((node) => {
        const made = el("span.piece", { "data-node": node, style: { background: colour.get(node) } });
        bar.pieces.set(node, made);
        return made;
      }));
    }
    const order = ordered(parts.filter((node) => model.time[node] || model.bytes[node]), (node) => valueOf(sorted, node));
    const isFocused = list.contains(document.activeElement);
    rows = new Map();
    fill(list, ...order.slice(0, MOST_PARTS).map((node) => rowOf(node, colour.get(node))));
    if (!order.length) fill(list, el("p.hint", {}, "This part has none of its own."));
    more.hidden = order.length <= MOST_PARTS;
    more.textContent = `${order.length - MOST_PARTS} smaller parts are not listed.`;
    if (!rows.has(state.chosen)) state.chosen = order[0] ?? opened;
    drawCrumbs();
    revalue();
    choose(state.chosen, isFocused, false);
  }

  function rowOf(node, colour) {
    const { model } = state;
    const { name, place, kind } = partWords(model, node);
    const code = place ? source.lineText(place) : "";
    const made = el("div.step-part", { role: "treeitem", tabindex: "-1", "aria-level": 1, "aria-selected": "false", "aria-expanded": model.children[node].length ? "false" : null, "data-node": node },
      el("span.swatch", { style: { background: colour } }),
      el("span.what", {}, el("span.name", {}, name === null ? code || place : name), " ", el("span.faint", {}, name === null ? (code ? place : "") : place ? [place, code ? el("code", {}, ` ${code}`) : ""] : kind)),
      el("span.n.time"), el("span.n.part-share"), el("span.n.memory"), el("span.n.part-share"),
      model.children[node].length ? el("span.chevron", { "aria-hidden": "true", title: "Open" }, "›") : el("span"));
    rows.set(node, made);
    return made;
  }

  /** Numbers and widths alone: what the dial changes many times a second. */
  function revalue() {
    const { model, opened } = state;
    if (!model || drawn !== opened) return;
    const label = labelOf(state);
    const whole = valuesOf(state, opened);
    setNumber(bars[0].total, whole[0], "s", label, intervalOf(state, opened));
    setNumber(bars[1].total, whole[1], "bytes", label, bytesIntervalOf(state, opened));
    for (const bar of bars)
      for (const [node, piece] of bar.pieces) {
        const value = valuesOf(state, node)[bar.place];
        piece.style.flexGrow = String(value / (whole[bar.place] || 1));
        piece.hidden = !value;
        piece.title = titleOf(node, bar.what, value, value / (whole[bar.place] || 1), label);
      }
    for (const [node, row] of rows) {
      const [time, size] = valuesOf(state, node);
      const cells = row.children;
      setNumber(cells[2], time || null, "s", label, intervalOf(state, node));
      setNumber(cells[3], time ? time / (whole[0] || 1) : null, "share", label);
      setNumber(cells[4], size || null, "bytes", label);
      setNumber(cells[5], size ? size / (whole[1] || 1) : null, "share", label);
    }
    drawKinds(label);
  }

  /** A piece of a bar in words: what it is, its number, its interval. */
  function titleOf(node, what, value, share, label) {
    const { name, place } = partWords(state.model, node), unit = what === "time" ? "s" : "bytes";
    const interval = what === "time" ? intervalOf(state, node) : bytesIntervalOf(state, node);
    return `${name ?? place}: ${text(value, unit)}, ${percent(share)}, ${label}, ${intervalWords(interval, unit)}`;
  }

  function drawKinds(label) {
    const { model, opened } = state;
    const found = kindsOf(state, opened), shown = isDialled(state) ? state.dialled : null;
    if (kindBar?.node === model.nodes[opened] && kindBar.batch === shown && kindBar.lines === state.lines) return;
    kindBar = { node: model.nodes[opened], batch: shown, lines: state.lines };
    // In the order of the profile's own batch: colours and rows keep their places while the dial is moved.
    const held = model.nodes[opened].held_bytes || {};
    const parts = Object.entries(found).filter(([kind]) => held[kind] > 0).sort((a, b) => held[b[0]] - held[a[0]]);
    const whole = parts.reduce((sum, [, value]) => sum + value, 0);
    fill(kinds, ...(whole ? [el("h3", {}, `Memory by kind, at the peak${shown ? `, at batch ${shown} by the lines` : ""}`), stackedBar(parts, "bytes", label, whole, "Memory by kind at the peak").element] : []));
    const weights = found.parameter || 0, activations = found.activation || 0;
    if (opened === 0 && whole)
      kinds.append(el("p.split", {}, "Weights take ", number(weights, "bytes", label), ", activations ", number(activations, "bytes", label), "."));
  }

  function drawCrumbs() {
    const { model, opened } = state;
    const way = [];
    for (let node = opened; ; node = outOf(model, node)) {
      way.unshift(node);
      if (node === 0) break;
    }
    const kept = way.length > 6 ? [way[0], null, ...way.slice(-4)] : way;
    fill(crumbs, ...kept.flatMap((node, place) => [
      place ? el("span.sep", { "aria-hidden": "true" }, "›") : null,
      node === null ? el("span", {}, "…") : el("button", { type: "button", "aria-current": node === opened ? "true" : null, title: model.nodes[node].name, onclick: () => go(node) }, crumbName(node)),
    ]).filter(Boolean));
  }

  function crumbName(node) {
    const { name, place } = partWords(state.model, node);
    return name ?? place;
  }

  function go(node, chosen = null, focus = false) {
    state.opened = node;
    if (chosen !== null) state.chosen = chosen;
    draw();
    if (focus) rows.get(state.chosen)?.focus();
    state.tell("node");
    if (focus !== null) show(lineAround(state.model, state.chosen)); // the source follows
  }

  function enter(node, focus) {
    const { model } = state;
    if (!model.children[node].length) return;
    const inner = into(model, node);
    go(inner, ordered(model.children[inner], (one) => valueOf(sorted, one))[0], focus);
  }

  function leave(focus) {
    const { model, opened } = state;
    if (opened === 0) return;
    const up = outOf(model, opened);
    let child = opened;
    while (model.parent[child] !== up) child = model.parent[child];
    go(up, child, focus);
  }

  function choose(node, focus, tell = true) {
    for (const [one, row] of rows) {
      row.tabIndex = one === node ? 0 : -1;
      row.setAttribute("aria-selected", String(one === node));
    }
    state.chosen = node;
    if (focus) rows.get(node)?.focus({ preventScroll: false });
    link();
    if (tell) state.tell("hover");
  }

  /** The same part is raised in both bars and in the list; that of the pointer before the chosen one. */
  function link() {
    const { model } = state;
    if (!model) return;
    const isIn = (node) => node !== null && (rows.has(node) ? node : node > 0 ? isIn(model.parent[node]) : null);
    const hovered = isIn(state.hovered);
    for (const bar of bars) {
      bar.strip.classList.toggle("linking", hovered !== null && rows.has(hovered));
      for (const [node, piece] of bar.pieces) piece.classList.toggle("linked", node === hovered), piece.classList.toggle("chosen", node === state.chosen);
    }
    for (const [node, row] of rows) row.classList.toggle("linked", node === hovered);
  }

  function show(line) {
    if (line) source.openPlace(line, false);
  }

  const nodeOf = (event) => {
    const found = event.target.closest("[data-node]");
    return found ? Number(found.dataset.node) : null;
  };
  for (const area of [list, ...bars.map((bar) => bar.strip)]) {
    area.addEventListener("pointerover", (event) => ((state.hovered = nodeOf(event)), state.tell("hover")));
    area.addEventListener("pointerleave", () => ((state.hovered = null), state.tell("hover")));
    area.addEventListener("click", (event) => {
      const node = nodeOf(event);
      if (node === null) return;
      if (event.target.closest(".chevron")) return enter(node, area === list);
      choose(node, area === list);
      show(lineAround(state.model, node));
    });
    area.addEventListener("dblclick", (event) => {
      const node = nodeOf(event);
      if (node !== null) enter(node, area === list);
    });
  }
  list.addEventListener("focusin", (event) => {
    const node = nodeOf(event);
    if (node !== null && node !== state.chosen) choose(node, false);
  });
  list.addEventListener("keydown", (event) => {
    const order = [...rows.keys()], at = order.indexOf(state.chosen);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: order.length - 1, PageDown: at + 10, PageUp: at - 10 };
    if (event.key in moves) choose(order[Math.max(0, Math.min(order.length - 1, moves[event.key]))] ?? state.chosen, true);
    else if (event.key === "Enter" || event.key === "ArrowRight") state.model.children[state.chosen].length ? enter(state.chosen, true) : show(lineAround(state.model, state.chosen));
    else if (event.key === "Escape" || event.key === "ArrowLeft" || event.key === "Backspace") leave(true);
    else if (event.key === " " || event.key === "o") show(lineAround(state.model, state.chosen));
    else return;
    event.preventDefault();
  });

  /** Show a part in its surroundings. */
  state.show = (node) => {
    const { model } = state;
    let around = Math.max(0, model.parent[node]);
    while (around > 0 && model.children[around].length === 1) around = model.parent[around];
    let child = node;
    while (child > 0 && model.parent[child] !== around) child = model.parent[child];
    go(around, child, null);
  };
  let isFirst = true;
  state.on("profile", () => {
    kindBar = null;
    draw();
    state.tell("node");
    if (isFirst) show(lineAround(state.model, state.chosen)); // the source is shown where most of the time goes
    isFirst = false;
  });
  state.on("curve batch", revalue);
  state.on("hover", link);
  state.on("status profile", () => (stale.hidden = !state.isStale("profile")));
  return { element, redraw: draw };
}
