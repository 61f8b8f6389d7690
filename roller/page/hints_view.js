// The hints of a step: changes with their effect on time, memory and price, and a link to the line that changes most.

/** The section of hints; `pick(kind, name)` goes to a part of the tree. */
function hintsSection(data, pick) {
  const asked = data.hints.filter((hint) => !hint.not_asked), others = data.hints.filter((hint) => hint.not_asked);
  const priced = asked.some((hint) => hint.price_after !== null);
  const currency = priced && data.price ? data.price.currency : "";
  const titles = ["change", "a step", "time", "memory", priced ? `${currency} a ${asked[0].price_per}` : null, "at", "rests on"].filter(Boolean);
  const kinds = [["what-if", "What-ifs"], ["lint", "Padded sizes"]].map(([origin, title]) => [title, asked.filter((hint) => hint.origin === origin)]);
  const body = ([title, rows]) => rows.length ? el("tbody", {}, el("tr", {}, el("th.t", { scope: "rowgroup", colspan: String(titles.length) }, title)), rows.map((hint) => hintRow(data, hint, priced, pick, write, titles))) : null;
  const write = {
    step: columnText(asked.map((hint) => hint.iteration_s), "s"), time: columnText(asked.map((hint) => hint.delta_s), "s"),
    memory: columnText(asked.map((hint) => hint.memory_delta_bytes), "bytes"), price: columnText(asked.flatMap((hint) => [hint.price_before, hint.price_after]), ""),
  };
  const reasons = asked.filter((hint) => hint.memory_note && hint.memory_note !== "not modelled");
  const assumed = [...new Set(asked.flatMap((hint) => hint.assumptions))];
  const made = section("What would change it", "Largest gain first. Click a line to see it in the tree.",
    el("div.scroll.whole", { tabindex: "0", role: "region", "aria-label": "What would change it" }, el("table.changes.stacks", {},
      el("thead", {}, el("tr", {}, titles.map((title, place) => el(place === 0 || place >= titles.length - 2 ? "th.t" : "th", { scope: "col" }, title)))), kinds.map(body))),
    priced && data.price ? el("p.hint", {}, "At ", number(data.price.per_hour, currency, "recorded"), ` an hour (${data.price.source}, ${data.price.date}${data.price.is_old ? ", more than 180 days old" : ""}).`) : data.price_note ? el("p.hint", {}, data.price_note) : null,
    reasons.length || others.length ? el("ul.plain", {}, reasons.map((hint) => el("li", {}, `${together(hint.change)}: memory: ${hint.memory_note}`)), others.map((hint) => el("li", {}, `${together(hint.change)}: not asked: ${hint.not_asked}`))) : null,
    assumed.length ? el("details", {}, el("summary", {}, "Assumptions"), el("ul", {}, assumed.map((sentence) => el("li", {}, sentence)))) : null);
  made.querySelector("h2").append(" ", chip(asked.length ? asked[0].kind : data.label === "calibrated" ? data.label : "predicted"));
  return made;
}

function hintRow(data, hint, priced, pick, write, titles) {
  const before = hint.iteration_s - hint.delta_s;
  const gain = hint.in_place ? el("span.faint", {}, "already in place")
    : [signed(hint.delta_s, "s", hint.kind, [hint.lower_s - before, hint.upper_s - before], write.time), hint.hardly_anything ? el("span.faint", {}, " hardly anything") : null];
  const memory = hint.memory_delta_bytes === null ? el("span.faint", {}, hint.memory_note.startsWith("not modelled") ? "not modelled" : hint.memory_note) : signed(hint.memory_delta_bytes, "bytes", hint.kind, null, write.memory);
  const price = hint.price_after === null ? "" : [number(hint.price_before, "", hint.kind, null, write.price), " → ", number(hint.price_after, "", hint.kind, null, write.price)];
  return el("tr", {}, el("td.t", {}, hint.upper_bound ? el("span.faint", {}, "at most: ") : null, together(hint.change)),
    titled("a step", "td", number(hint.iteration_s, "s", hint.kind, [hint.lower_s, hint.upper_s], write.step)), titled("time", "td", gain), titled("memory", "td", memory),
    priced ? titled(titles[4], "td", price) : null, titled("at", "td.t", hint.line ? lineLink(data, hint.line, pick) : null), titled("rests on", "td.t", hint.in_place ? null : hint.rests_on));
}

/** A number with its sign. */
function signed(value, unit, label, interval, write) {
  const made = number(value, unit, label, interval, write);
  if (value > 0) made.textContent = `+${made.textContent}`;
  return made;
}

/** A button that looks like a link, to a line of the tree or the module it registers; plain words where there is neither. */
function lineLink(data, line, pick) {
  const { names, nodes } = data;
  data.linked ??= new Set([...Array.from(nodes.name, (name, node) => (names[nodes.kind[node]] === "line" ? names[name] : "")), ...Array.from(nodes.registered.line, (name) => names[name])]);
  const shown = line ? withoutFolder(names, line) : "";
  if (!line || !data.linked.has(line)) return shown;
  return el("button.link", { type: "button", title: line, onclick: () => pick("line", line) }, shown);
}
