// The difference from another profile: both steps, and the lines that differ.

const MOST_DIFFERING = 60;
const LEAST_S = 5e-10; // smaller differences are those of sums in another order

/** The section of a difference; `pick(kind, name)` goes to a part of the tree. */
function differenceSection(data, pick) {
  const { before, after, lines, kind } = data.difference;
  const side = (profile) => [number(profile.iteration_s, "s", profile.label, [profile.lower_s, profile.upper_s]), ", ", profile.out_of_memory ? "does not fit" : number(profile.total_bytes, "bytes", profile.label),
    `\u00a0(${profile.label} on ${profile.devices > 1 ? `${profile.devices} × ` : ""}${profile.device || "an unnamed device"}${profile.batch ? `, batch ${profile.batch}` : ""}${profile.amp === "fp32" ? "" : `, ${profile.amp}`})`, profile.out_of_memory ? `: ${profile.out_of_memory}` : ""];
  const shown = lines.filter((row) => [row.delta_s, row.made_delta_s].some((value) => Math.abs(value) >= LEAST_S) || row.delta_bytes || row.made_delta_bytes);
  const write = {
    step: columnText(shown.flatMap((row) => [row.before_s, row.after_s]), "s"), time: columnText(shown.map((row) => row.delta_s), "s"),
    memory: columnText(shown.map((row) => row.delta_bytes), "bytes"),
  };
  const made = (row) => [row.made_delta_s ? signed(row.made_delta_s, "s", kind) : null, row.made_delta_s && row.made_delta_bytes ? ", " : null,
    row.made_delta_bytes ? signed(row.made_delta_bytes, "bytes", kind) : null];
  const titles = ["line", "before", "after", "time", "memory", "registered modules and weights"];
  const row = (line) => {
    const runs = line.before_s || line.after_s, cell = (title, ...parts) => titled(title, "td", parts);
    return el("tr", {}, el("td.t", {}, line.name ? lineLink(data, line.name, pick) : "(in no line)"),
      cell("before", runs ? number(line.before_s, "s", before.label, null, write.step) : null), cell("after", runs ? number(line.after_s, "s", after.label, null, write.step) : null),
      cell("time", line.delta_s ? signed(line.delta_s, "s", kind, null, write.time) : null), cell("memory", line.delta_bytes ? signed(line.delta_bytes, "bytes", kind, null, write.memory) : null),
      cell("registered modules and weights", made(line)));
  };
  const found = section("Difference", "First the lines whose weights changed, then the others, largest change first. A line counts without the lines it calls, so all of them sum to the step; the last column is the change of the modules whose weights the line registers.",
    el("ul.plain", {}, el("li", {}, `Before: ${before.name}, `, side(before)), el("li", {}, `After: ${after.name}, `, side(after)),
      el("li", {}, "Difference: ", signed(data.difference.delta_s, "s", kind), ", ", data.difference.delta_bytes === null ? "memory does not compare" : signed(data.difference.delta_bytes, "bytes", kind))),
    !shown.length ? el("p.hint", {}, "No line differs.") : el("div.scroll.whole", { tabindex: "0", role: "region", "aria-label": "Difference by line" }, el("table.changes.stacks", {},
      el("thead", {}, el("tr", {}, titles.map((title, place) => el(place ? "th" : "th.t", { scope: "col" }, title)))),
      el("tbody", {}, shown.slice(0, MOST_DIFFERING).map(row)))),
    shown.length > MOST_DIFFERING ? el("p.hint", {}, `${shown.length - MOST_DIFFERING} more lines differ.`) : null);
  found.querySelector("h2").append(" ", chip(kind));
  return found;
}
