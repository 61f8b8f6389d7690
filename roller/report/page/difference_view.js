// The difference to another profile: both steps, and the lines that differ.

const MOST_DIFFERING = 60;

/** The section of a difference; `pick(kind, name)` goes to a part of the tree. */
function differenceSection(data, pick) {
  const { before, after, lines, kind } = data.difference;
  const side = (profile) => [number(profile.iteration_s, "s", profile.label, [profile.lower_s, profile.upper_s]), ", ", profile.out_of_memory ? "does not fit" : number(profile.total_bytes, "bytes", profile.label),
    ` (${profile.label} on ${profile.devices > 1 ? `${profile.devices} × ` : ""}${profile.device || "an unnamed device"}${profile.batch ? `, batch ${profile.batch}` : ""}${profile.amp === "fp32" ? "" : `, ${profile.amp}`})`, profile.out_of_memory ? `: ${profile.out_of_memory}` : ""];
  const bytes = (value) => value === null ? "" : signed(value, "bytes", kind); // memory before a failure does not compare
  const made = (row) => row.made_delta_s || row.made_delta_bytes ? [signed(row.made_delta_s, "s", kind), row.made_delta_bytes === null ? "" : ", ", bytes(row.made_delta_bytes)] : "";
  const titles = ["line", "before", "after", "time", "memory", "of its modules and weights"];
  const found = section("Difference", "First the lines whose weights changed, then the others, largest change first. All lines sum to the step.",
    el("ul.plain", {}, el("li", {}, `Before: ${before.name}, `, side(before)), el("li", {}, `After: ${after.name}, `, side(after)),
      el("li", {}, "Difference: ", signed(data.difference.delta_s, "s", kind), ", ", data.difference.delta_bytes === null ? "memory does not compare" : bytes(data.difference.delta_bytes))),
    el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Difference by line" }, el("table.changes", {},
      el("thead", {}, el("tr", {}, titles.map((title, place) => el(place ? "th" : "th.t", { scope: "col" }, title)))),
      el("tbody", {}, lines.slice(0, MOST_DIFFERING).map((row) => el("tr", {}, el("td.t", {}, row.name ? lineLink(data, row.name, pick) : "(in no line)"),
        el("td", {}, number(row.before_s, "s", before.label)), el("td", {}, number(row.after_s, "s", after.label)),
        el("td", {}, signed(row.delta_s, "s", kind)), el("td", {}, bytes(row.delta_bytes)), el("td", {}, made(row))))))),
    lines.length > MOST_DIFFERING ? el("p.hint", {}, `${lines.length - MOST_DIFFERING} more lines differ.`) : null);
  found.querySelector("h2").append(" ", chip(kind));
  return found;
}
