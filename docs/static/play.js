// The controls of the interactive pieces, on their own page and in the lessons. All formulas are in numbers.js, all data
// in play_data.js.

const by = (id) => document.getElementById(id);
const on = (id, event, act) => by(id).addEventListener(event, act);

function make(tag, text = "", classes = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function bar(share) {
  const cell = make("td");
  const outer = make("span", "", "play-bar");
  const inner = make("span");
  inner.style.width = `${100 * share}%`;
  outer.append(inner);
  cell.append(outer, make("span", share.toFixed(3), "play-number"));
  return cell;
}

function fill(select, labels, chosen = 0) {
  by(select).replaceChildren(...labels.map((label, value) => new Option(label, value, false, value === chosen)));
}

// ---------------------------------------------------------------------------------------- WordPiece

function setUpWordPiece() {
  const vocabulary = new Map(PLAY.vocabulary.map((piece, id) => [piece, id]));
  let words, word, step;

  const restart = () => {
    words = splitWords(by("wp-text").value);
    [word, step] = [0, 0];
    show();
  };
  const advance = () => {
    if (word >= words.length) return;
    step += 1;
    if (step > Math.max(1, tries(words[word], vocabulary).length)) [word, step] = [word + 1, 0];
  };
  const nextWord = () => {
    if (word < words.length) [word, step] = [word + 1, 0];
  };

  function show() {
    const done = word >= words.length;
    const all = done ? [] : tries(words[word], vocabulary);
    const shown = all.slice(0, step);
    by("wp-tries").replaceChildren(...shown.map((one) =>
      make("li", `${one.piece}: ${one.found ? "in the vocabulary, take it" : "not in the vocabulary"}`,
        one.found ? "play-found" : "")));
    const failed = step > 0 && step >= all.length && (!all.length || !all.at(-1).found);
    by("wp-say").textContent = done
      ? `All ${words.length} words are cut.`
      : failed ? `"${words[word]}" cannot be cut to the end: the whole word is [UNK].`
      : `Word ${word + 1} of ${words.length}: "${words[word]}".`;
    const pieces = words.slice(0, word).flatMap((one) => wordPieces(one, vocabulary));
    const current = failed ? ["[UNK]"] : shown.filter((one) => one.found).map((one) => one.piece);
    const tokens = ["[CLS]", ...pieces, ...current, ...(done ? ["[SEP]"] : [])];
    by("wp-tokens").replaceChildren(...tokens.flatMap((piece) => {
      const token = make("span", piece, "play-token");
      token.append(make("small", ` ${vocabulary.get(piece)}`));
      return [token, " "];
    }));
  }

  on("wp-text", "input", restart);
  on("wp-start", "click", restart);
  on("wp-step", "click", () => (advance(), show()));
  on("wp-word", "click", () => (nextWord(), show()));
  on("wp-end", "click", () => ((word = words.length), show()));
  restart();
}

// ------------------------------------------------------------------------------------------ softmax

function setUpSoftmax() {
  const rows = [[2, true], [1, true], [0, true], [-1, true], [3, false]].map(([score, real], number) => {
    const row = make("tr");
    const input = Object.assign(make("input"), { type: "number", step: 0.5, value: score });
    const box = Object.assign(make("input"), { type: "checkbox", checked: real });
    input.setAttribute("aria-label", `score ${number}`);
    box.setAttribute("aria-label", `place ${number} is real`);
    for (const control of [input, box]) {
      const cell = make("td");
      cell.append(control);
      row.append(cell);
      control.addEventListener("input", show);
    }
    row.append(make("td"));
    by("sm-rows").append(row);
    return { row, input, box };
  });

  function show() {
    const scale = Number(by("sm-scale").value);
    const real = rows.map(({ box }) => box.checked);
    const shares = maskedSoftmax(rows.map(({ input }) => Number(input.value)), real, scale);
    by("sm-shown").textContent = scale.toFixed(2);
    rows.forEach(({ row }, i) => row.lastChild.replaceWith(shares ? bar(shares[i]) : make("td", "0/0")));
    by("sm-say").textContent = shares
      ? `Entropy ${entropy(shares).toFixed(3)} of at most log(${real.filter(Boolean).length}) = ` +
        `${Math.log(real.filter(Boolean).length).toFixed(3)}.`
      : "No place is real: 0/0. The package refuses such a row before it computes.";
  }

  on("sm-scale", "input", show);
  show();
}

// ---------------------------------------------------------------------------------------- attention

function setUpAttention() {
  const sentences = PLAY.sentences.map(({ text, tokens, shares }) =>
    ({ text, tokens, shares: Uint8Array.from(atob(shares), (c) => c.charCodeAt(0)) }));
  const numbers = (count) => Array.from({ length: count }, (_, i) => i);
  const chosen = (id) => Number(by(id).value);
  fill("at-sentence", sentences.map(({ text }) => text));
  fill("at-layer", numbers(PLAY.layers), 3);
  fill("at-head", numbers(PLAY.heads), 1);

  // A square for each share, (T, T): who looks, from top to bottom, at whom, from left to right.
  function draw({ tokens }, matrix) {
    const T = tokens.length;
    const squares = matrix.flatMap((shares, t) => shares.map((share, s) => {
      const square = svg("rect", { x: s, y: t, width: 1, height: 1, class: "play-dot", "fill-opacity": share });
      square.addEventListener("click", () => ((by("at-token").value = t), show()));
      return square;
    }));
    const frame = svg("rect", { x: 0, y: chosen("at-token"), width: T, height: 1, class: "play-frame" });
    by("at-picture").setAttribute("viewBox", `-0.1 -0.1 ${T + 0.2} ${T + 0.2}`);
    by("at-picture").replaceChildren(...squares, frame);
  }

  const tokens = () => {
    const { tokens } = sentences[chosen("at-sentence")];
    fill("at-token", tokens, Math.max(1, tokens.indexOf("it")));
    show();
  };

  function show() {
    const sentence = sentences[chosen("at-sentence")];
    const matrix = attentionOf(sentence, chosen("at-layer"), chosen("at-head"), PLAY.heads);
    const row = matrix[chosen("at-token")];
    by("at-rows").replaceChildren(...sentence.tokens.map((token, i) => {
      const line = make("tr");
      line.append(Object.assign(make("th", token), { scope: "row" }), bar(row[i]));
      return line;
    }));
    draw(sentence, matrix);
    const most = row.indexOf(Math.max(...row));
    by("at-say").textContent = `"${sentence.tokens[chosen("at-token")]}" looks most at "${sentence.tokens[most]}".`;
  }

  on("at-sentence", "change", tokens);
  for (const id of ["at-layer", "at-head", "at-token"]) on(id, "change", show);
  tokens();
}

// ------------------------------------------------------------------------------------------- circle

function setUpCircle() {
  let state = circleStart(PLAY.points);

  function show() {
    const tau = Number(by("ci-tau").value);
    const { loss } = circleLoss(state.points, PLAY.noise, tau);
    by("ci-shown").textContent = tau.toFixed(2);
    const dots = state.points.map((point) => {
      const [x, y] = unit(point);
      return svg("circle", { cx: 100 * x, cy: -100 * y, r: 4, class: "play-dot" });
    });
    by("ci-picture").replaceChildren(svg("circle", { r: 100, class: "play-ring" }), ...dots);
    by("ci-say").textContent =
      `After ${state.taken} steps: loss ${loss.toFixed(3)}, uniformity ${uniformity(state.points).toFixed(2)} ` +
      "(lower is more evenly spread).";
  }
  const walk = (steps) => {
    for (let i = 0; i < steps; i++) circleStep(state, PLAY.noise, Number(by("ci-tau").value));
    show();
  };

  // Two steps for each picture, 300 steps in all; at once for those who want no moving pictures.
  let running = 0;
  const run = () => {
    running -= 1;
    walk(2);
    if (running > 0) requestAnimationFrame(run);
  };
  const start = () => {
    const idle = running <= 0;
    running = idle ? 150 : 0;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      walk(2 * running);
      running = 0;
    } else if (idle) {
      requestAnimationFrame(run);
    }
  };

  on("ci-tau", "input", show);
  on("ci-run", "click", start);
  on("ci-10", "click", () => walk(10));
  on("ci-200", "click", () => walk(200));
  on("ci-start", "click", () => {
    running = 0;
    state = circleStart(PLAY.points);
    show();
  });
  show();
}

// -------------------------------------------------------------------------------------------- bytes

function setUpBytes() {
  const buffer = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const { queries, codes, bits } = PLAY.index;
  const index = {
    ...PLAY.index,
    queries: new Float32Array(buffer(queries)),
    codes: new Int8Array(buffer(codes)),
    bits: new Uint8Array(buffer(bits)),
  };
  const tried = new Map([["float32, 384 columns", { bytes: 4 * index.width, recall: 1 }]]);

  function show() {
    const [kind, columns] = [by("by-kind").value, Number(by("by-columns").value)];
    const found = { bytes: kind === "int8" ? columns : columns / 8, recall: recallOf(index, kind, columns) };
    tried.set(`${kind}, ${columns} columns`, found);
    const rows = [...tried].sort(([, a], [, b]) => b.bytes - a.bytes);
    by("by-rows").replaceChildren(...rows.map(([name, { bytes, recall }]) => {
      const line = make("tr");
      line.append(Object.assign(make("th", name), { scope: "row" }), make("td", `${bytes}`), bar(recall));
      return line;
    }));
    by("by-say").textContent = `${found.bytes} bytes a vector: recall ${found.recall.toFixed(3)}.`;
  }

  for (const id of ["by-kind", "by-columns"]) on(id, "change", show);
  show();
}

// ---------------------------------------------------------------------------------------- LayerNorm

function setUpLayerNorm() {
  const inputs = [0, 1, 2, 3].map((i) => by(`ln-x${i}`));

  function show() {
    const eps = 10 ** Number(by("ln-eps").value);
    const [gamma, beta] = [Number(by("ln-gamma").value), Number(by("ln-beta").value)];
    const { mean, variance, result } = layerNorm(inputs.map((input) => Number(input.value)), gamma, beta, eps);
    by("ln-shown").textContent = `1e${by("ln-eps").value}`;
    by("ln-say").textContent = `Mean ${mean.toFixed(3)}, variance ${variance.toFixed(3)}; ` +
      `result ${result.map((x) => x.toFixed(3)).join(", ")}.`;
  }

  for (const control of [...inputs, by("ln-eps"), by("ln-gamma"), by("ln-beta")]) {
    control.addEventListener("input", show);
  }
  show();
}

// ------------------------------------------------------------------------------------------ triplet

function setUpTriplet() {
  const ids = ["tr-positive", "tr-negative", "tr-margin"];

  function show() {
    const [positive, negative, margin] = ids.map((id) => Number(by(id).value));
    const loss = tripletLoss(positive, negative, margin);
    ids.forEach((id) => (by(`${id}-shown`).textContent = Number(by(id).value).toFixed(2)));
    const dots = [["a", 0], ["p", positive], ["n", -negative]].flatMap(([name, x]) => {
      const label = svg("text", { x: 40 * x, y: -10, "text-anchor": "middle", class: "play-label" });
      label.textContent = name;
      return [svg("circle", { cx: 40 * x, cy: 0, r: 4, class: "play-dot" }), label];
    });
    const line = svg("line", { x1: -125, x2: 125, y1: 0, y2: 0, class: "play-ring" });
    by("tr-picture").replaceChildren(line, ...dots);
    by("tr-say").textContent = `Loss ${loss.toFixed(2)}. ` + (loss > 0
      ? "A step pulls p nearer and pushes n away."
      : "n is further away than p by the margin: the gradient is 0, and this triplet teaches nothing.");
  }

  for (const id of ids) on(id, "input", show);
  show();
}

const THINGS = {
  wordpiece: setUpWordPiece, layernorm: setUpLayerNorm, softmax: setUpSoftmax, attention: setUpAttention,
  circle: setUpCircle, triplet: setUpTriplet, bytes: setUpBytes,
};
for (const [name, setUp] of Object.entries(THINGS)) if (by(`play-${name}`)) setUp();
