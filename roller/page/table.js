// A table of any length: the page contains only the visible rows. The table can be sorted, searched and navigated with keys.

const LINE = 28; // pixels of a row
const TALLEST = 8e6; // pixels of an element that every browser can have; longer tables are scaled when scrolled

/**
 * columns: [{title, width, unit, label, value(row) -> number or text, text(row) if it is shown in other words, numeric,
 * write(number) if its unit does not say how, interval(row) of a number, key(row) if it is sorted by another value and not
 * searched, wide if narrow screens go without}], the first one names the row;
 * options: {label, count, pick(row), hover(row or null)}.
 */
function table(columns, options) {
  const all = Uint32Array.from({ length: options.count }, (_, row) => row);
  const state = { order: all, sorted: -1, down: true, active: -1, found: "" };
  const id = `t${(table.made = (table.made || 0) + 1)}`;
  const tracks = (wide) => columns.filter((column) => wide || !column.wide).map((column) => column.width).join(" ");
  // Sum of fixed and minimum widths, in rem, so that many columns scroll sideways.
  const least = (wide) => columns.filter((column) => wide || !column.wide).reduce((sum, column) => sum + Number(/([\d.]+)rem/.exec(column.width)[1]) + 0.5, 0.5);
  const status = el("span.count", { role: "status" });
  const search = el("input", { type: "search", placeholder: "Search", "aria-label": `Search ${options.label}` });
  const head = el("div.row.head", { role: "row" }, columns.map((column, place) =>
    el(`div.cell${column.wide ? ".wide" : ""}${column.numeric || column.key ? ".num" : ""}`, { role: "columnheader", "aria-sort": "none" },
      el("button", { type: "button", onclick: () => sort(place) }, column.title))));
  const body = el("div.rows", { role: "rowgroup" });
  const fill = el("div.fill", { "aria-hidden": "true" });
  const box = el("div.table", {
    role: "grid", tabindex: "0", "aria-label": options.label, "aria-rowcount": options.count + 1,
    "aria-colcount": columns.length,
  }, el("div", { role: "rowgroup" , class: "heads" }, head), body, fill);
  const pool = [];
  let due = false;

  function texts(row, column) {
    return String(column.value(row) ?? "");
  }

  function sort(place) {
    state.down = state.sorted === place ? !state.down : Boolean(columns[place].numeric || columns[place].key);
    state.sorted = place;
    [...head.children].forEach((cell, at) =>
      cell.setAttribute("aria-sort", at === place ? (state.down ? "descending" : "ascending") : "none"));
    arrange();
  }

  function arrange() {
    const found = state.found.toLowerCase();
    const rows = found
      ? all.filter((row) => columns.some((column) => !column.numeric && !column.key && texts(row, column).toLowerCase().includes(found)))
      : all.slice();
    if (state.sorted >= 0) {
      const column = columns[state.sorted];
      const keys = Array.from(all, (row) => {
        const key = (column.key || column.value)(row);
        return (column.numeric || column.key) && (key === null || Number.isNaN(key)) ? -Infinity : key;
      });
      const sign = state.down ? -1 : 1;
      rows.sort((a, b) => (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b));
    }
    state.order = rows;
    state.active = -1;
    box.removeAttribute("aria-activedescendant");
    box.scrollTop = 0;
    status.textContent = rows.length === options.count ? `${rows.length} rows` : `${rows.length} of ${options.count} rows`;
    draw();
  }

  function makeRow() {
    const made = el("div.row", { role: "row", id: `${id}-${pool.length}` }, columns.map((column) =>
      el(`div.cell${column.wide ? ".wide" : ""}${column.numeric || column.key ? ".num" : ""}`, { role: "gridcell" }, column.numeric ? el("span.n") : "")));
    pool.push(made);
    body.append(made);
  }

  function draw() {
    due = false;
    const inner = box.clientHeight - LINE;
    const whole = state.order.length * LINE;
    const tall = Math.min(whole, TALLEST);
    fill.style.height = `${tall}px`;
    const visible = Math.max(1, Math.ceil(inner / LINE) + 1);
    const scale = tall > inner ? Math.max(1, (whole - inner) / (tall - inner)) : 1;
    const top = box.scrollTop * scale;
    const first = Math.max(0, Math.min(state.order.length - visible + 1, Math.floor(top / LINE)));
    while (pool.length < visible) makeRow();
    body.style.transform = `translateY(${box.scrollTop - (top - first * LINE)}px)`;
    pool.forEach((made, place) => drawRow(made, first + place));
  }

  function drawRow(made, at) {
    const row = state.order[at];
    made.hidden = row === undefined;
    if (made.hidden) return;
    made.dataset.at = at;
    made.setAttribute("aria-rowindex", at + 2);
    made.setAttribute("aria-selected", at === state.active);
    columns.forEach((column, place) => {
      const cell = made.children[place];
      const value = column.value(row);
      if (column.numeric) setNumber(cell.firstChild, value, column.unit, column.label, column.interval?.(row), column.write);
      else if (cell.title !== value) (cell.textContent = column.text ? column.text(row) : value), (cell.title = value);
    });
  }

  function activate(at) {
    if (!state.order.length) return;
    state.active = Math.max(0, Math.min(state.order.length - 1, at));
    const inner = box.clientHeight - LINE;
    const whole = state.order.length * LINE;
    const scale = whole > TALLEST ? (whole - inner) / (TALLEST - inner) : 1;
    const top = box.scrollTop * scale;
    if (state.active * LINE < top) box.scrollTop = (state.active * LINE) / scale;
    else if ((state.active + 1) * LINE > top + inner) box.scrollTop = ((state.active + 1) * LINE - inner) / scale;
    draw();
    const made = pool.find((one) => !one.hidden && Number(one.dataset.at) === state.active);
    if (made) box.setAttribute("aria-activedescendant", made.id);
    options.hover?.(state.order[state.active]);
  }

  function rowOf(event) {
    const made = event.target.closest(".rows > .row");
    return made ? Number(made.dataset.at) : null;
  }

  box.addEventListener("scroll", () => {
    if (!due) (due = true), requestAnimationFrame(draw);
  }, { passive: true });
  search.addEventListener("input", () => ((state.found = search.value), arrange()));
  box.addEventListener("pointerover", (event) => {
    const at = rowOf(event);
    if (at !== null) options.hover?.(state.order[at]);
  });
  box.addEventListener("pointerleave", () => options.hover?.(null));
  box.addEventListener("focusout", () => options.hover?.(null));
  box.addEventListener("click", (event) => {
    const at = rowOf(event);
    if (at !== null) activate(at), options.pick?.(state.order[at]);
  });
  box.addEventListener("keydown", (event) => {
    if (event.target !== box) return;
    const page = Math.max(1, Math.floor(box.clientHeight / LINE) - 2);
    const moves = {
      ArrowDown: state.active + 1, ArrowUp: state.active - 1, PageDown: state.active + page, PageUp: state.active - page,
      Home: 0, End: state.order.length - 1,
    };
    if (event.key in moves) activate(moves[event.key]);
    else if (event.key === "Enter" && state.active >= 0) options.pick?.(state.order[state.active]);
    else return;
    event.preventDefault();
  });
  box.style.setProperty("--tracks", tracks(true));
  box.style.setProperty("--tracks-narrow", tracks(false));
  box.style.setProperty("--least", `${least(true)}rem`);
  box.style.setProperty("--least-narrow", `${least(false)}rem`);
  box.style.height = `${Math.min(16, options.count) * LINE + LINE + 2}px`;
  onWidth(box, draw);
  state.sorted = columns.findIndex((column) => column.numeric);
  state.down = false; // sort() turns it
  if (state.sorted >= 0 && !options.unsorted) sort(state.sorted);
  else (state.sorted = -1), arrange();
  return el("div.table-box", {}, el("div.table-tools", {}, options.count > 8 ? search : null, status), box);
}
