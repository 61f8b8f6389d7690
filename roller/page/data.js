// Reads the data block: base64, gzip, a length, JSON, and the columns that the JSON refers to.

const COLUMN_TYPES = { f8: Float64Array, u4: Uint32Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array };

async function readData() {
  const coded = atob(document.getElementById("data").textContent.trim());
  const zipped = Uint8Array.from(coded, (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(all.buffer).getUint32(0, true);
  const columns = all.subarray(4 + length);
  let pool = null; // all numbers of 64 bits, sorted, each once; it comes first in the JSON
  const revive = (key, value) => {
    if (!value || !value.$column) return value;
    const column = readColumn(columns, value);
    if (value.pooled) return Float64Array.from(column, (place) => pool[place]);
    return key === "pool" && !pool ? (pool = column) : column;
  };
  return JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + length)), revive).data;
}

/** Bytes of equal significance lie side by side in the file; put each number together again (little-endian). */
function readColumn(columns, { $column, count, at }) {
  const Type = COLUMN_TYPES[$column];
  const width = Type.BYTES_PER_ELEMENT;
  const together = new Uint8Array(count * width);
  for (let byte = 0, from = at; byte < width; byte++)
    for (let row = 0; row < count; row++) together[row * width + byte] = columns[from++];
  return new Type(together.buffer);
}
