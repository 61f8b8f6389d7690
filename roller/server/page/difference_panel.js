// What the last edit did: time and memory against the save before, or against git's HEAD, line by line.

const WHATS = [["last", "last save"], ["head", "git HEAD"]];

/** What a line takes more; of a line that only makes what others run, what that takes more. */
function deltaOf(own, made, unit, label) {
  if (own) return signed(own, unit, label);
  return made ? [signed(made, unit, label), el("span.faint", { title: "Of the modules that this line creates, and others run" }, " in its modules")] : "";
}

/** The lines whose time or memory changes by a thousandth of the largest change of a line, or more. */
function notable(lines) {
  const time = (row) => Math.max(Math.abs(row.delta_s), Math.abs(row.made_delta_s));
  const size = (row) => Math.max(Math.abs(row.delta_bytes), Math.abs(row.made_delta_bytes));
  const most = Math.max(...lines.map(time)), largest = Math.max(...lines.map(size));
  return lines.filter((row) => (most > 0 && time(row) >= most / 1000) || (largest > 0 && size(row) >= largest / 1000));
}

function differencePanel(state, server) {
  const choice = el("div.choice", { role: "group", "aria-label": "Compared with" }, WHATS.map(([what, name]) =>
    el("button", { type: "button", "data-what": what, onclick: () => server.send({ type: "against", what }) }, name)));
  const body = el("div.difference-body", {});
  const element = el("section.panel.difference", { "aria-label": "Difference" }, el("div.panel-head", {}, el("h2", {}, "What changed"), el("span.faint", {}, "since the"), choice), body);

  function draw() {
    if (!state.head) return;
    for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.what === state.head.against));
    const found = state.data("difference");
    if (!found) return fill(body, el("p.faint", {}, state.head.status === "running" ? "Computing ..." : state.head.against === "last" ? "Nothing yet: edit and save." : "There is nothing to compare with."));
    if (found.error) return fill(body, el("p.faint", {}, state.linked(found.error)));
    const label = found.kind, lines = notable(found.lines), left = found.more + found.lines.length - lines.length;
    fill(body, 
      el("p.sums", {}, el("span", {}, "Time ", number(found.before.iteration_s, "s", label), " ", signed(found.delta_s, "s", label)), el("span", {}, "Memory ", number(found.before.total_bytes, "bytes", label), " ", found.delta_bytes === null ? el("span.faint", {}, "does not compare: one of them does not fit") : signed(found.delta_bytes, "bytes", label))),
      lines.length ? el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Lines that changed" }, el("table", {},
        el("thead", {}, el("tr", {}, ["line", "change of time", "before", "change of memory", "before"].map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, lines.map((row) => el("tr", {}, el("td", {}, /:\d+$/.test(row.name) ? state.placeLink(row.name) : row.name || el("span.faint", {}, "no line")),
          el("td", {}, deltaOf(row.delta_s, row.made_delta_s, "s", label)), el("td.faint", {}, number(row.before_s, "s", label)),
          el("td", {}, deltaOf(row.delta_bytes, row.made_delta_bytes, "bytes", label)), el("td.faint", {}, number(row.before_bytes, "bytes", label))))))) : el("p.faint", {}, "No line takes another time or memory."));
    if (left) body.append(el("p.faint", {}, left === 1 ? "1 more line changed less." : `${left} more lines changed less.`));
  }

  state.on("status difference", draw);
  return { element };
}
