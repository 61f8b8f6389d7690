// The text of a file as it is on disk, and as the editor has it: the editor knows one end of a line only.

/** The file's text for the editor's: what was not changed is as it was to the byte; new lines end like most others. */
function withEnds(edited, raw) {
  if (!raw.includes("\r")) return edited;
  const change = changeBetween(raw.replace(/\r\n?/g, "\n"), edited);
  if (!change) return raw;
  const ends = raw.match(/\r\n|\r|\n/g);
  const often = ends.filter((end) => end === "\r\n").length * 2 >= ends.length ? "\r\n" : "\n";
  return raw.slice(0, fromEditor(raw, change.from)) + change.insert.replaceAll("\n", often) + raw.slice(fromEditor(raw, change.to));
}

/** A place of the editor as the file's text counts. */
function fromEditor(raw, place) {
  let at = 0;
  for (let passed = 0; passed < place; passed++) at += raw[at] === "\r" && raw[at + 1] === "\n" ? 2 : 1;
  return at;
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
