// The formulas of the playground, as plain functions. tests/test_play.py compares them with the package's.

const LONGEST_WORD = 100; // characters
const BLOCKS = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B920-2CEAF F900-FAFF 2F800-2FA1F"
  .split(" ").map((block) => block.split("-").map((end) => parseInt(end, 16)));

// Text to words and punctuation marks, in lower case and without accents: core/tokenizer.py.
function splitWords(text) {
  const cleaned = (c) => (/[\t\n\r\p{Zs}\p{Zl}\p{Zp}]/u.test(c) ? " " : /[\ufffd\p{Cc}\p{Cf}\p{Co}]/u.test(c) ? "" : c);
  const ideograph = (c) => BLOCKS.some(([first, last]) => first <= c.codePointAt(0) && c.codePointAt(0) <= last);
  const punctuation = (c) => /[!-/:-@[-`{-~\p{P}]/u.test(c);
  const spaced = [...text].map(cleaned).map((c) => (c && ideograph(c) ? ` ${c} ` : c)).join("");
  const bare = [...spaced.normalize("NFD")].filter((c) => !/\p{Mn}/u.test(c));
  const lower = [...bare.map((c) => c.toLowerCase()).join("")];
  return lower.map((c) => (punctuation(c) ? ` ${c} ` : c)).join("").split(" ").filter((word) => word);
}

// Every piece that WordPiece tries on a word, in order: {start, end, piece, found}. The vocabulary is a Map to ids.
function tries(word, vocabulary) {
  const letters = [...word];
  const steps = [];
  if (letters.length > LONGEST_WORD) return steps;
  for (let start = 0; start < letters.length; start = steps.at(-1).end) {
    for (let end = letters.length; end > start; end--) {
      const piece = (start ? "##" : "") + letters.slice(start, end).join("");
      steps.push({ start, end, piece, found: vocabulary.has(piece) });
      if (steps.at(-1).found) break;
    }
    if (!steps.at(-1).found) break;
  }
  return steps;
}

function wordPieces(word, vocabulary) {
  const steps = tries(word, vocabulary);
  return steps.length && steps.at(-1).found ? steps.filter((step) => step.found).map((step) => step.piece) : ["[UNK]"];
}

// Shares of scores times scale over the real places, 0 for the others; null if none is real: 0/0.
function maskedSoftmax(scores, real, scale) {
  const largest = Math.max(...scores.map((score, i) => (real[i] ? score * scale : -Infinity)));
  if (largest === -Infinity) return null;
  const exponentials = scores.map((score, i) => (real[i] ? Math.exp(score * scale - largest) : 0));
  const total = exponentials.reduce((sum, value) => sum + value, 0);
  return exponentials.map((value) => value / total);
}

// Nats: 0 if one share has everything, log(n) if n are equal.
function entropy(shares) {
  return shares.reduce((sum, share) => (share > 0 ? sum - share * Math.log(share) : sum), 0);
}

// Shares (T, T) of one head, from a sentence's bytes: 255 is 1.
function attentionOf(sentence, layer, head, heads) {
  const T = sentence.tokens.length;
  const first = (layer * heads + head) * T * T;
  return Array.from({ length: T }, (_, row) =>
    Array.from({ length: T }, (_, column) => sentence.shares[first + row * T + column] / 255));
}

// The numbers shifted to mean 0 and scaled to variance 1, times gamma plus beta: core/bert.py.
function layerNorm(numbers, gamma = 1, beta = 0, eps = 1e-12) {
  const mean = numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
  const variance = numbers.reduce((sum, x) => sum + (x - mean) ** 2, 0) / numbers.length;
  return { mean, variance, result: numbers.map((x) => ((x - mean) / Math.sqrt(variance + eps)) * gamma + beta) };
}

// max(d(a, p) - d(a, n) + margin, 0) of two distances: core/losses.py.
const tripletLoss = (positive, negative, margin) => Math.max(positive - negative + margin, 0);

const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
const unit = (a) => [a[0] / Math.hypot(...a), a[1] / Math.hypot(...a)];
// The gradient of f(unit(a)) with respect to a, from that with respect to unit(a).
function throughUnit(a, gradient) {
  const u = unit(a);
  const along = dot(gradient, u);
  return [0, 1].map((k) => (gradient[k] - along * u[k]) / Math.hypot(...a));
}

// SimCSE's loss of points on a circle against partners unit(point) + noise, and its gradient: core/losses.py.
function circleLoss(points, noise, temperature) {
  const B = points.length;
  const u = points.map(unit);
  const v = u.map((a, i) => [a[0] + noise[i][0], a[1] + noise[i][1]]);
  const w = v.map(unit);
  const toU = points.map(() => [0, 0]);
  const toW = points.map(() => [0, 0]);
  let loss = 0;
  for (let i = 0; i < B; i++) {
    const shares = maskedSoftmax(w.map((b) => dot(u[i], b)), Array(B).fill(true), 1 / temperature);
    loss -= Math.log(shares[i]) / B;
    for (let j = 0; j < B; j++) {
      const slope = (shares[j] - (i === j ? 1 : 0)) / (B * temperature);
      for (const k of [0, 1]) {
        toU[i][k] += slope * w[j][k];
        toW[j][k] += slope * u[i][k];
      }
    }
  }
  const gradient = points.map((point, i) => {
    const throughPartner = throughUnit(v[i], toW[i]);
    return throughUnit(point, [toU[i][0] + throughPartner[0], toU[i][1] + throughPartner[1]]);
  });
  return { loss, gradient };
}

// The start of an optimization of points by Adam (Kingma & Ba 2015, algorithm 1), and one step of it.
function circleStart(points) {
  const zeros = () => points.map(() => [0, 0]);
  return { points: points.map((point) => [...point]), m: zeros(), v: zeros(), taken: 0 };
}

function circleStep(state, noise, temperature, rate = 0.02) {
  const { gradient } = circleLoss(state.points, noise, temperature);
  state.taken += 1;
  state.points.forEach((point, i) => [0, 1].forEach((k) => {
    state.m[i][k] = 0.9 * state.m[i][k] + 0.1 * gradient[i][k];
    state.v[i][k] = 0.999 * state.v[i][k] + 0.001 * gradient[i][k] ** 2;
    const m = state.m[i][k] / (1 - 0.9 ** state.taken);
    const v = state.v[i][k] / (1 - 0.999 ** state.taken);
    point[k] -= (rate * m) / (Math.sqrt(v) + 1e-8);
  }));
}

// log of the mean over pairs of exp(-2 d^2), d the distance of unit vectors: lessons/by_hand/geometry.py.
function uniformity(points) {
  const u = points.map(unit);
  let sum = 0;
  for (let i = 0; i < u.length; i++)
    for (let j = 0; j < i; j++) sum += Math.exp(-2 * ((u[i][0] - u[j][0]) ** 2 + (u[i][1] - u[j][1]) ** 2));
  return Math.log(sum / ((u.length * (u.length - 1)) / 2));
}

// How many of each query's exact ten are among the ten found with the first columns of a compressed corpus. kind: int8;
// bits, of corpus and query; or float query, which leaves the query as it is: search/quantized.py.
function recallOf({ width, queries, codes, bits, low, step, exact }, kind, columns) {
  const N = codes.length / width;
  const first = Array.from({ length: columns }, (_, d) => d);
  const value = {
    int8: (n, d) => Math.fround(low[d] + Math.fround((codes[n * width + d] + 128.5) * step[d])),
    bits: (n, d) => 2 * ((bits[n * (width / 8) + (d >> 3)] >> (7 - (d & 7))) & 1) - 1,
  }[kind === "int8" ? "int8" : "bits"];
  const documents = Array.from({ length: N }, (_, n) => {
    const row = first.map((d) => value(n, d));
    const length = Math.hypot(...row);
    return row.map((number) => number / length);
  });
  let hits = 0;
  exact.forEach((wanted, i) => {
    const query = first.map((d) => queries[i * width + d]).map((x) => (kind === "bits" ? (x > 0 ? 1 : -1) : x));
    const length = Math.hypot(...query);
    const scores = documents.map((row) => Math.fround(row.reduce((sum, x, d) => sum + (x * query[d]) / length, 0)));
    const order = scores.map((_, n) => n).sort((a, b) => scores[b] - scores[a] || a - b).slice(0, wanted.length);
    hits += order.filter((n) => wanted.includes(n)).length;
  });
  return hits / (exact.length * exact[0].length);
}

if (typeof module !== "undefined") {
  module.exports = {
    splitWords, tries, wordPieces, maskedSoftmax, entropy, attentionOf, circleLoss, circleStart, circleStep, uniformity,
    recallOf, layerNorm, tripletLoss,
  };
}
