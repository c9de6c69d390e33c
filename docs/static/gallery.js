// The live search of the gallery: the mean of the vectors of a text's tokens, from the table in docstrings.js.
// tests/test_play.py compares it with the package's StaticEncoder. splitWords and wordPieces are in numbers.js.

const unpacked = (text, kind) => new kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

// The unit vector of token ids: only the direction counts, so the sum will do for the mean.
function directionOf({ columns, codes, scales }, ids) {
  const sum = new Float64Array(columns);
  for (const id of ids) {
    for (let i = 0; i < columns; i++) sum[i] += scales[id] * codes[id * columns + i];
  }
  const length = Math.max(Math.hypot(...sum), 1e-12);
  return sum.map((value) => value / length);
}

// What is loaded once: numbers from base64, and the vector of each document.
function openTable(loaded) {
  const table = { ...loaded, codes: unpacked(loaded.codes, Int8Array), scales: unpacked(loaded.scales, Float32Array) };
  table.numbers = new Map(loaded.vocabulary.map((piece, id) => [piece, id]));
  const ids = unpacked(loaded.ids, Uint16Array);
  let start = 0;
  table.vectors = loaded.lengths.map((length) => directionOf(table, ids.subarray(start, (start += length))));
  return table;
}

// The best documents for a text, as [cosine, row].
function bestOf(table, text, count) {
  const pieces = splitWords(text).flatMap((word) => wordPieces(word, table.numbers));
  const query = directionOf(table, pieces.map((piece) => table.numbers.get(piece)));
  const scored = table.vectors.map((vector, row) => [vector.reduce((sum, x, i) => sum + x * query[i], 0), row]);
  return scored.sort(([a], [b]) => b - a).slice(0, count);
}

function setUpSearch() {
  const by = (id) => document.getElementById(id);
  const start = () => {
    const table = openTable(DOCSTRINGS);
    const show = () => {
      const hits = by("gs-query").value.trim() ? bestOf(table, by("gs-query").value, 5) : [];
      by("gs-hits").replaceChildren(...hits.map(([score, row]) => {
        const line = document.createElement("li");
        const name = document.createElement("code");
        name.textContent = table.names[row];
        line.append(name, ` ${table.texts[row]} (${score.toFixed(2)})`);
        return line;
      }));
      by("gs-say").textContent = hits.length ? `The best of ${table.texts.length} docstrings:` : "";
    };
    by("gs-load").hidden = true;
    by("gs-query").parentElement.hidden = false;
    by("gs-query").addEventListener("input", show);
    show();
    by("gs-query").focus();
  };
  by("gs-load").addEventListener("click", () => {
    by("gs-load").disabled = true;
    const script = document.createElement("script");
    script.src = "../_static/docstrings.js";
    script.onload = start;
    script.onerror = () => {
      by("gs-say").textContent = "The table could not be loaded.";
      by("gs-load").disabled = false;
    };
    document.head.append(script);
  });
}

if (typeof document !== "undefined") setUpSearch();
else module.exports = { openTable, bestOf };
