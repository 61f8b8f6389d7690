// The tree of a profile as an icicle: with one row per level and widths in proportion to time or bytes. Click or Enter opens a node.

const ROW = 26; // pixels of a level
const LEAST = 3; // pixels below which a node is not drawn
const LEVELS = 40; // levels below the focus that are drawn at most

/**
 * options: parent (column), name(i), kind(i), value(i), title(i), number(i) -> element, pick(i), focus(i)
 * Returns {element, draw, show(i), mark(test)}.
 */
function icicle(options) {
  const children = childrenOf(options.parent);
  const state = { root: 0, chosen: 0, marked: null, boxes: new Map(), width: 0 };
  const crumbs = el("nav.crumbs", { "aria-label": "Way from the step to the part that is shown" });
  const chart = el("div.icicle", { role: "tree", "aria-label": options.label });
  const frame = el("div.icicle-frame", {}, chart);

  function up(node) {
    return node === 0 ? 0 : options.parent[node];
  }

  function go(node, chosen = node) {
    while (!children[node].length && node !== 0) node = up(node); // a leaf is shown within its parent
    state.root = node;
    state.chosen = chosen;
    draw(true);
    options.pick(chosen);
  }

  function choose(node, focus) {
    const old = state.boxes.get(state.chosen);
    if (old) old.tabIndex = -1, old.setAttribute("aria-selected", "false");
    state.chosen = node;
    const box = state.boxes.get(node);
    if (box) {
      box.tabIndex = 0;
      box.setAttribute("aria-selected", "true");
      if (focus) box.focus({ preventScroll: false });
    }
    options.pick(node);
  }

  function drawCrumbs() {
    const way = [];
    for (let node = state.root; ; node = up(node)) {
      way.unshift(node);
      if (node === 0) break;
    }
    const shown = way.length > 7 ? [way[0], null, ...way.slice(-5)] : way;
    crumbs.replaceChildren(
      ...shown.flatMap((node, place) => [
        place ? el("span.sep", { "aria-hidden": "true" }, "›") : null,
        node === null
          ? el("span", {}, "…")
          : el("button", { type: "button", "aria-current": node === state.root ? "true" : null, onclick: () => go(node) }, options.name(node)),
      ]).filter(Boolean),
    );
  }

  function draw(focus) {
    drawCrumbs();
    state.boxes.clear();
    const boxes = [];
    const total = options.value(state.root) || 1;
    let deepest = 0;
    const place = (node, level, from) => {
      const share = options.value(node) / total;
      if (level > LEVELS || share * state.width < LEAST) return;
      deepest = Math.max(deepest, level);
      boxes.push(box(node, level, from, share));
      let at = from, small = 0;
      for (const child of ordered(children[node], options.value)) {
        const own = options.value(child) / total;
        if (own * state.width >= LEAST) place(child, level + 1, at);
        else if (own > 0) small++;
        if (!small) at += own;
      }
      const rest = from + share - at;
      if (small > 1 && level < LEVELS && rest * state.width >= 2 * LEAST) {
        deepest = Math.max(deepest, level + 1);
        boxes.push(restBox(small, level + 1, at, rest));
      }
    };
    place(state.root, 0, 0);
    if (!state.boxes.has(state.chosen)) state.chosen = state.root;
    chart.style.height = `${(deepest + 1) * ROW}px`;
    chart.replaceChildren(...boxes);
    choose(state.chosen, focus);
    remark();
  }

  /** One box in place of parts that are too narrow to draw; the tables list them. */
  function restBox(count, level, from, share) {
    return el("div.rest", { "aria-hidden": "true", title: `${count} smaller parts, listed in the tables`, style: placed(level, from, share) },
      share * state.width > 110 ? `${count} smaller parts` : "");
  }

  function placed(level, from, share) {
    return { left: `${100 * from}%`, width: `calc(${100 * share}% - 1px)`, top: `${level * ROW}px` };
  }

  function box(node, level, from, share) {
    const wide = share * state.width;
    const made = el(`div.box.k-${options.kind(node)}${wide > 40 ? ".wide" : ""}`, {
      role: "treeitem", tabindex: "-1", "aria-level": level + 1, "aria-selected": "false", "data-node": node,
      "aria-expanded": children[node].length ? "true" : null,
      title: options.title(node),
      style: placed(level, from, share),
    });
    const value = options.number(node);
    // Narrow boxes keep name and number for screen readers.
    value.classList.toggle("sr", wide < 150);
    made.append(el(wide > 40 ? "span.name" : "span.sr", {}, options.name(node)), " ", value);
    state.boxes.set(node, made);
    return made;
  }

  function nodeOf(event) {
    const found = event.target.closest(".box");
    return found ? Number(found.dataset.node) : null;
  }

  chart.addEventListener("click", (event) => {
    const node = nodeOf(event);
    if (node !== null) go(node === state.root ? up(node) : node, node);
  });
  chart.addEventListener("pointerover", (event) => {
    const node = nodeOf(event);
    if (node !== null) options.focus(node);
  });
  chart.addEventListener("pointerleave", () => options.focus(null));
  chart.addEventListener("focusin", (event) => {
    const node = nodeOf(event);
    if (node !== null && node !== state.chosen) choose(node, false);
  });
  chart.addEventListener("keydown", (event) => {
    const node = state.chosen;
    const drawn = (list) => ordered(list, options.value).filter((one) => state.boxes.has(one));
    const beside = node === state.root ? [node] : drawn(children[up(node)]);
    const next = (step) => beside[beside.indexOf(node) + step];
    const moves = {
      ArrowLeft: () => next(-1),
      ArrowRight: () => next(1),
      ArrowUp: () => (node === state.root ? undefined : up(node)),
      ArrowDown: () => drawn(children[node])[0],
      Home: () => state.root,
    };
    if (moves[event.key]) {
      const target = moves[event.key]();
      if (target !== undefined) choose(target, true);
    } else if (event.key === "Enter" || event.key === " ") go(node === state.root ? up(node) : node, node);
    else if (event.key === "Escape" && state.root !== 0) go(up(state.root), state.root);
    else return;
    event.preventDefault();
  });

  function remark() {
    for (const [node, made] of state.boxes) made.classList.toggle("marked", state.marked !== null && state.marked(node));
    chart.classList.toggle("marking", state.marked !== null);
  }

  onWidth(frame, (width) => {
    state.width = width;
    const focused = chart.contains(document.activeElement);
    draw(focused);
  });
  return {
    element: el("div", {}, crumbs, frame),
    draw: () => draw(false),
    show: go,
    mark(test) {
      state.marked = test;
      remark();
    },
  };
}

function childrenOf(parents) {
  const found = Array.from(parents, () => []);
  for (let node = 1; node < parents.length; node++) found[parents[node]].push(node);
  return found;
}

function ordered(nodes, value) {
  return [...nodes].sort((a, b) => value(b) - value(a) || a - b);
}
