// The text of a file as it is on disk, and as the editor has it: the editor knows one end of a line only.

/** Lines that end otherwise keep their ends; a lone carriage return ends a line as well. */
function endsOf(raw) {
  return raw.match(/\r\n|\r|\n/g) || [];
}

/** The file's text for the editor's: line ends as they were, new lines end like most others. */
function withEnds(edited, raw) {
  if (!raw.includes("\r")) return edited;
  const ends = endsOf(raw), lines = edited.split("\n");
  if (lines.length - 1 === ends.length) return lines.map((line, place) => line + (ends[place] ?? "")).join("");
  const often = ends.filter((end) => end === "\r\n").length * 2 >= ends.length ? "\r\n" : "\n";
  return lines.join(often);
}

/** A place in the file's text as the editor counts. */
function toEditor(raw, place) {
  return place - (raw.slice(0, place).match(/\r\n/g) || []).length;
}

/** The smallest change that makes one text the other: {from, to, insert}, or null. */
function changeBetween(old, now) {
  if (old === now) return null;
  let from = 0;
  const least = Math.min(old.length, now.length);
  while (from < least && old[from] === now[from]) from++;
  let back = 0;
  while (back < least - from && old[old.length - 1 - back] === now[now.length - 1 - back]) back++;
  return { from, to: old.length - back, insert: now.slice(from, now.length - back) };
}
