// The controls of the interactive pieces, on their own page and in the lessons. All formulas are in numbers.js, all data
// in play_data.js; the front page has the attention of three sentences, in front_data.js.

const by = (id) => document.getElementById(id);
const on = (id, event, act) => by(id).addEventListener(event, act);

function make(tag, text = "", classes = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
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

// --------------------------------------------------------------------------------- ticks and axes

// A number as an axis shows it: 0.1 + 0.2 is 0.3.
const short = (value) => `${Number(value.toPrecision(6))}`;

// Round numbers from low to high, about five of them.
function roundTicks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step);
}

// The marks below a slider, with their numbers. A slider's thumb is 16 pixels wide, so that its middle never reaches the ends.
function addTicks(slider) {
  const values = slider.dataset.ticks.split(" ").map(Number);
  const labels = (slider.dataset.labels || slider.dataset.ticks).split(" ");
  const box = make("span", "", "play-slider");
  const ticks = make("span", "", "play-ticks");
  ticks.setAttribute("aria-hidden", "true");
  values.forEach((value, i) => {
    const tick = make("span", labels[i]);
    const share = (value - slider.min) / (slider.max - slider.min);
    tick.style.left = `calc(8px + ${share} * (100% - 16px))`;
    ticks.append(tick);
  });
  slider.replaceWith(box);
  box.append(slider, ticks);
}

// The axis above a column of bars: they go from 0 to 1.
function addScale(table) {
  const scale = make("span", "", "play-scale");
  scale.setAttribute("aria-hidden", "true");
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    const tick = make("span", `${value}`);
    tick.style.left = `${100 * value}%`;
    scale.append(tick);
  }
  table.tHead.rows[0].lastElementChild.append(scale);
}

// A picture is as wide as its place, so that its text is as large on a phone as elsewhere. Returns its width in pixels.
function widen(id, height, widest = 640) {
  const width = Math.max(240, Math.min(widest, by(id).parentElement.clientWidth));
  by(id).setAttribute("viewBox", `0 0 ${width} ${height}`);
  by(id).setAttribute("width", width);
  by(id).setAttribute("height", height);
  return width;
}

// A line from left to right with ticks below it, or above it; ``place`` gives the x of a value.
function axisAlong(values, place, y, left, right, { label = short, above = false } = {}) {
  const marks = values.flatMap((value) => [
    svg("line", { x1: place(value), x2: place(value), y1: y, y2: y + (above ? -5 : 5), class: "play-axis" }),
    svg("text", {
      x: place(value), y: y + (above ? -10 : 18), "text-anchor": "middle", class: "play-label",
    }, label(value)),
  ]);
  return [svg("line", { x1: left, x2: right, y1: y, y2: y, class: "play-axis" }), ...marks];
}

// A line from top to bottom with ticks on its left, and faint lines from them to the right.
function axisBeside(values, place, x, top, bottom, right) {
  const marks = values.flatMap((value) => [
    svg("line", { x1: x, x2: right, y1: place(value), y2: place(value), class: "play-grid" }),
    svg("line", { x1: x - 5, x2: x, y1: place(value), y2: place(value), class: "play-axis" }),
    svg("text", { x: x - 8, y: place(value) + 4, "text-anchor": "end", class: "play-label" }, short(value)),
  ]);
  return [...marks, svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: "play-axis" })];
}

// What is drawn again when the width of the window changes.
const pictures = [];
addEventListener("resize", () => pictures.forEach((show) => show()));

// ---------------------------------------------------------------------------------------- WordPiece

function setUpWordPiece() {
  const vocabulary = new Map(PLAY.vocabulary.map((piece, id) => [piece, id]));
  let words, word, step;

  const restart = () => {
    [word, step] = [0, 0];
    show();
  };
  const toTheEnd = () => {
    words = splitWords(by("wp-text").value);
    word = words.length;
    show();
  };
  const advance = () => {
    if (!words.length) return;
    if (word >= words.length) [word, step] = [0, 0];
    step += 1;
    if (step > Math.max(1, tries(words[word], vocabulary).length)) [word, step] = [word + 1, 0];
  };
  const nextWord = () => {
    if (word < words.length) [word, step] = [word + 1, 0];
    else [word, step] = [0, 0];
  };

  // The word with the most tries: the example of a text that is cut to the end.
  const hardest = () => words.reduce((worst, one) =>
    (tries(one, vocabulary).length > tries(worst, vocabulary).length ? one : worst), words[0] || "");

  function show() {
    const done = word >= words.length;
    const current = done ? hardest() : words[word];
    const all = tries(current, vocabulary);
    const shown = done ? all : all.slice(0, step);
    by("wp-tries").replaceChildren(...shown.map((one) =>
      make("li", `${one.piece}: ${one.found ? "in the vocabulary, take it" : "not in the vocabulary"}`,
        one.found ? "play-found" : "")));
    const failed = !done && step > 0 && step >= all.length && (!all.length || !all.at(-1).found);
    const pieces = words.slice(0, word).flatMap((one) => wordPieces(one, vocabulary));
    const now = failed ? ["[UNK]"] : shown.filter((one) => one.found).map((one) => one.piece);
    const tokens = ["[CLS]", ...pieces, ...(done ? ["[SEP]"] : now)];
    if (done) {
      const most = words.length ? ` The most tries were for "${current}":` : "";
      by("wp-say").textContent = `All ${words.length} words are cut: ${tokens.length} tokens.${most}`;
    } else if (failed) {
      by("wp-say").textContent = `"${current}" cannot be cut to the end: the whole word is [UNK].`;
    } else {
      by("wp-say").textContent = `Word ${word + 1} of ${words.length}: "${current}".`;
    }
    by("wp-tokens").replaceChildren(...tokens.flatMap((piece) => {
      const token = make("span", piece, "play-token");
      token.append(make("small", ` ${vocabulary.get(piece)}`));
      return [token, " "];
    }));
  }

  on("wp-text", "input", toTheEnd);
  on("wp-start", "click", restart);
  on("wp-step", "click", () => (advance(), show()));
  on("wp-word", "click", () => (nextWord(), show()));
  on("wp-end", "click", toTheEnd);
  toTheEnd();
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
  const landing = by("play-attention").classList.contains("front"); // the landing page: less high, so that the cards below are seen
  fill("at-sentence", sentences.map(({ text }) => text));
  fill("at-layer", numbers(PLAY.layers), 3);
  fill("at-head", numbers(PLAY.heads), 1);

  const choose = (t) => {
    by("at-token").value = t;
    show();
  };

  // A square for each share, (T, T): the token of its row looks at the token of its column.
  function draw({ tokens }, matrix) {
    const T = tokens.length;
    const row = chosen("at-token");
    const available = Math.min(by("at-picture").parentElement.clientWidth, 720);
    const letter = available < 420 ? 7 : 8; // the width of one, in pixels
    const longest = letter * Math.max(...tokens.map((token) => token.length));
    const left = Math.max(longest, 10 * letter) + 10;
    const slope = [0.55, 0.84]; // of the names above the columns: they rise steeply to the right
    const top = slope[1] * longest + 14;
    const last = letter * tokens.at(-1).length * slope[0]; // of the last name, to the right of its column
    const across = Math.max(6, Math.min(48, (available - left - last) / T));
    const down = landing ? Math.min(across, 18, letter + 7) : across;
    const width = widen("at-picture", top + T * down + 2, available);
    const size = { "font-size": letter / 0.6 };

    const names = tokens.flatMap((token, t) => {
      const beside = svg("text", {
        x: left - 6, y: top + (t + 0.5) * down + letter / 2, "text-anchor": "end", class: "play-name", ...size,
      }, token);
      const x = left + (t + 0.5) * across + letter / 2;
      const above = svg("text", {
        x, y: top - 6, transform: `rotate(-57 ${x} ${top - 6})`, class: "play-name", ...size,
      }, token);
      beside.addEventListener("click", () => choose(t));
      return [beside, above];
    });
    names[2 * row].classList.add("play-chosen");

    const title = { x: left - 6, "text-anchor": "end", class: "play-axis-title", "font-size": letter / 0.62 };
    const titles = [
      svg("text", { ...title, y: top - 30 }, "looked at →"),
      svg("text", { ...title, y: top - 10 }, "looks ↓"),
    ];

    const squares = matrix.flatMap((shares, t) => shares.map((share, s) => {
      const place = { x: left + s * across, y: top + t * down, width: across, height: down };
      const square = svg("rect", { ...place, class: "play-square", "fill-opacity": share });
      const point = (inside) => {
        names[2 * t].classList.toggle("play-pointed", inside);
        names[2 * s + 1].classList.toggle("play-pointed", inside);
        by("at-square").textContent = inside ? `${tokens[t]} → ${tokens[s]}: ${share.toFixed(2)}` : "";
      };
      square.addEventListener("mouseenter", () => point(true));
      square.addEventListener("mouseleave", () => point(false));
      square.addEventListener("click", () => choose(t));
      return square;
    }));
    const ground = { x: left, y: top, width: T * across, height: T * down, class: "play-ground" };
    const frame = { x: left, y: top + row * down, width: T * across, height: down, class: "play-frame" };
    by("at-picture").replaceChildren(svg("rect", ground), ...squares, svg("rect", frame), ...names, ...titles);
    by("at-picture").style.maxWidth = `${width}px`;
  }

  const tokens = () => {
    const { tokens } = sentences[chosen("at-sentence")];
    fill("at-token", tokens, Math.max(1, tokens.indexOf("it")));
    show();
  };

  function show() {
    const sentence = sentences[chosen("at-sentence")];
    const [layer, head] = [chosen("at-layer"), chosen("at-head")];
    const matrix = attentionOf(sentence, layer, head, PLAY.heads);
    const row = matrix[chosen("at-token")];
    by("at-rows").replaceChildren(...sentence.tokens.map((token, i) => {
      const line = make("tr");
      line.append(Object.assign(make("th", token), { scope: "row" }), bar(row[i]));
      return line;
    }));
    draw(sentence, matrix);
    by("at-picture").setAttribute("aria-label",
      `Attention of layer ${layer}, head ${head}: a row for each token that looks, a column for each that is looked at`);
    const most = row.indexOf(Math.max(...row));
    by("at-say").textContent = (landing ? "" : `Layer ${layer}, head ${head}: `) +
      `"${sentence.tokens[chosen("at-token")]}" looks most at "${sentence.tokens[most]}" (${row[most].toFixed(2)}).`;
  }

  on("at-sentence", "change", tokens);
  for (const id of ["at-layer", "at-head", "at-token"]) on(id, "change", show);
  tokens();
  pictures.push(show);
}

// ------------------------------------------------------------------------------------------- circle

function setUpCircle() {
  let state, losses; // the loss before each step and after the last
  const tau = () => Number(by("ci-tau").value);
  const restart = () => {
    state = circleStart(PLAY.points);
    losses = [circleLoss(state.points, PLAY.noise, tau()).loss];
  };

  function drawCircle() {
    const width = widen("ci-picture", 290, 320);
    const [middle, radius] = [width / 2, 105];
    const place = (cosine, sine, far = 1) => [middle + far * radius * cosine, 145 - far * radius * sine];
    const dots = (points, classes) => points.map((point) => {
      const [cx, cy] = place(...unit(point));
      return svg("circle", { cx, cy, r: 4, class: classes });
    });
    const degrees = [0, 45, 90, 135, 180, 225, 270, 315].flatMap((angle) => {
      const turned = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
      const [[x1, y1], [x2, y2], [x, y]] = [place(...turned, 1.05), place(...turned, 1.1), place(...turned, 1.24)];
      return [
        svg("line", { x1, y1, x2, y2, class: "play-axis" }),
        svg("text", { x, y: y + 4, "text-anchor": "middle", class: "play-label" }, `${angle}°`),
      ];
    });
    by("ci-picture").replaceChildren(
      svg("circle", { cx: middle, cy: 145, r: radius, class: "play-ring" }), ...degrees,
      ...dots(PLAY.points, "play-hollow"), ...dots(state.points, "play-dot"));
  }

  function drawCurve() {
    const width = widen("ci-curve", 290, 480);
    const [left, right, top, bottom] = [46, width - 14, 24, 240];
    const last = Math.max(200, losses.length - 1);
    const highest = Math.max(1, ...losses);
    const across = (step) => left + ((right - left) * step) / last;
    const up = (loss) => bottom - ((bottom - top) * loss) / highest;
    const line = losses.map((loss, step) => `${across(step)},${up(loss)}`).join(" ");
    by("ci-curve").replaceChildren(
      ...axisBeside(roundTicks(0, highest), up, left, top, bottom, right),
      ...axisAlong(roundTicks(0, last), across, bottom, left, right),
      svg("text", { x: left, y: 14, "text-anchor": "middle", class: "play-label" }, "loss"),
      svg("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle", class: "play-label" }, "step"),
      svg("polyline", { points: line, class: "play-curve" }));
  }

  function show() {
    const { loss } = circleLoss(state.points, PLAY.noise, tau());
    by("ci-shown").textContent = tau().toFixed(2);
    drawCircle();
    drawCurve();
    by("ci-say").textContent =
      `After ${state.taken} steps: loss ${loss.toFixed(3)}, uniformity ${uniformity(state.points).toFixed(2)} ` +
      "(lower is more evenly spread).";
  }
  const walk = (steps) => {
    for (let i = 0; i < steps; i++) {
      circleStep(state, PLAY.noise, tau());
      losses.push(circleLoss(state.points, PLAY.noise, tau()).loss);
    }
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
    restart();
    show();
  });
  restart();
  walk(200); // an example: what the first 200 steps do
  pictures.push(show);
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
  const tried = new Map([["float32, 384 columns", { kind: "float32", bytes: 4 * index.width, recall: 1 }]]);
  const attempt = (kind, columns) => {
    const found = { kind, bytes: kind === "int8" ? columns : columns / 8, recall: recallOf(index, kind, columns) };
    tried.set(`${kind}, ${columns} columns`, found);
    return found;
  };

  // A circle for int8 and float32, a square for bits, a hollow square for bits that a float query searches.
  function mark({ kind, bytes, recall }, across, up) {
    const [x, y] = [across(bytes), up(recall)];
    if (kind === "bits") return svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, class: "play-dot" });
    if (kind === "float query") return svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10, class: "play-hollow" });
    return svg("circle", { cx: x, cy: y, r: 5, class: kind === "int8" ? "play-dot" : "play-hollow" });
  }

  function draw() {
    const width = widen("by-picture", 284, 480);
    const [left, right, top, bottom] = [46, width - 20, 40, 240];
    const across = (bytes) => left + ((right - left) * Math.log2(bytes / 2)) / Math.log2(2048 / 2);
    const up = (recall) => bottom - (bottom - top) * recall;
    const legend = [["float32", "float32"], ["int8", "int8"], ["bits", "bits"], ["float query", "bits, float query"]];
    let x = 4;
    const keys = legend.flatMap(([kind, name]) => {
      const key = mark({ kind, bytes: 0, recall: 0 }, () => x + 6, () => 12);
      const text = svg("text", { x: x + 16, y: 16, class: "play-label" }, name);
      x += 24 + 6.2 * name.length;
      return [key, text];
    });
    by("by-picture").replaceChildren(
      ...axisBeside([0, 0.25, 0.5, 0.75, 1], up, left, top, bottom, right),
      ...axisAlong([3, 6, 12, 24, 48, 96, 192, 384, 1536], across, bottom, left, right),
      svg("text", { x: 8, y: top - 8, class: "play-label" }, "recall"),
      svg("text", { x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle", class: "play-label" }, "bytes a vector"),
      ...keys, ...[...tried.values()].map((one) => mark(one, across, up)));
  }

  function show() {
    const found = attempt(by("by-kind").value, Number(by("by-columns").value));
    const rows = [...tried].sort(([, a], [, b]) => b.bytes - a.bytes);
    by("by-rows").replaceChildren(...rows.map(([name, { bytes, recall }]) => {
      const line = make("tr");
      line.append(Object.assign(make("th", name), { scope: "row" }), make("td", `${bytes}`), bar(recall));
      return line;
    }));
    by("by-say").textContent = `${found.bytes} bytes a vector: recall ${found.recall.toFixed(3)}.`;
    draw();
  }

  for (const id of ["by-kind", "by-columns"]) on(id, "change", show);
  for (const columns of [384, 192]) attempt("int8", columns); // examples
  show();
  pictures.push(draw);
}

// ---------------------------------------------------------------------------------------- LayerNorm

function setUpLayerNorm() {
  const inputs = [0, 1, 2, 3].map((i) => by(`ln-x${i}`));

  // Two axes, one above the other, and a line from each number to its result.
  function draw(before, after) {
    const width = widen("ln-picture", 130);
    const [left, right] = [60, width - 20];
    const place = (low, high) => (value) => left + ((right - left) * (value - low)) / (high - low);
    const lines = [[before, 30, "x"], [after, 105, "result"]].map(([values, y, name], i) => {
      const low = Math.floor(Math.min(...values) - 0.5);
      const high = Math.ceil(Math.max(...values) + 0.5);
      const at = place(low, high);
      return {
        axis: [...axisAlong(roundTicks(low, high), at, y, left, right, { above: i === 0 }),
          svg("text", { x: 0, y: y + 4, class: "play-label" }, name)],
        dots: values.map((value) => svg("circle", { cx: at(value), cy: y, r: 5, class: "play-dot" })),
        places: values.map(at),
      };
    });
    const [above, below] = lines;
    const links = above.places.map((x, i) =>
      svg("line", { x1: x, y1: 30, x2: below.places[i], y2: 105, class: "play-link" }));
    by("ln-picture").replaceChildren(...links, ...above.axis, ...below.axis, ...above.dots, ...below.dots);
  }

  function show() {
    const eps = 10 ** Number(by("ln-eps").value);
    const [gamma, beta] = [Number(by("ln-gamma").value), Number(by("ln-beta").value)];
    const numbers = inputs.map((input) => Number(input.value));
    const { mean, variance, result } = layerNorm(numbers, gamma, beta, eps);
    by("ln-shown").textContent = `1e${by("ln-eps").value}`;
    by("ln-eps").setAttribute("aria-valuetext", `1e${by("ln-eps").value}`);
    by("ln-say").textContent = `Mean ${mean.toFixed(3)}, variance ${variance.toFixed(3)}; ` +
      `result ${result.map((x) => x.toFixed(3)).join(", ")}.`;
    draw(numbers, result);
  }

  for (const control of [...inputs, by("ln-eps"), by("ln-gamma"), by("ln-beta")]) {
    control.addEventListener("input", show);
  }
  show();
  pictures.push(show);
}

// ------------------------------------------------------------------------------------------ triplet

function setUpTriplet() {
  const ids = ["tr-positive", "tr-negative", "tr-margin"];

  // Distances to the left of a are those of n, to the right those of p; a zone has the places of n without a loss.
  function draw(positive, negative, margin) {
    const width = widen("tr-picture", 110);
    const [left, right] = [16, width - 16];
    const place = (x) => left + ((right - left) * (x + 5.2)) / 8.4;
    const zone = { x: left, y: 22, width: Math.max(0, place(-positive - margin) - left), height: 48, class: "play-zone" };
    const dots = [["a", 0], ["p", positive], ["n", -negative]].flatMap(([name, x]) => [
      svg("circle", { cx: place(x), cy: 70, r: 5, class: "play-dot" }),
      svg("text", { x: place(x), y: 60, "text-anchor": "middle", class: "play-label" }, name),
    ]);
    by("tr-picture").replaceChildren(
      svg("rect", zone),
      svg("text", { x: left, y: 16, class: "play-label" }, "n in the shaded part: loss 0"),
      ...axisAlong([-5, -4, -3, -2, -1, 0, 1, 2, 3], place, 70, left, right, { label: (value) => short(Math.abs(value)) }),
      svg("text", { x: right, y: 106, "text-anchor": "end", class: "play-label" }, "distance from a"),
      ...dots);
  }

  function show() {
    const [positive, negative, margin] = ids.map((id) => Number(by(id).value));
    const loss = tripletLoss(positive, negative, margin);
    ids.forEach((id) => (by(`${id}-shown`).textContent = Number(by(id).value).toFixed(2)));
    draw(positive, negative, margin);
    by("tr-say").textContent = `Loss ${loss.toFixed(2)}. ` + (loss > 0
      ? "A step pulls p nearer and pushes n away."
      : "n is further away than p by the margin: the gradient is 0, and this triplet teaches nothing.");
  }

  for (const id of ids) on(id, "input", show);
  show();
  pictures.push(show);
}

document.querySelectorAll(".play input[data-ticks]").forEach(addTicks);
document.querySelectorAll(".play table.play-bars").forEach(addScale);
const THINGS = {
  wordpiece: setUpWordPiece, layernorm: setUpLayerNorm, softmax: setUpSoftmax, attention: setUpAttention,
  circle: setUpCircle, triplet: setUpTriplet, bytes: setUpBytes,
};
for (const [name, setUp] of Object.entries(THINGS)) if (by(`play-${name}`)) setUp();
