"""Drawings of what is made of hidden states: pooling, heads, losses, batches."""

from .pen import Pen

# all-MiniLM-L6-v2's vectors of three sentences: their first three of 384 numbers, and the cosines
# of neighbours
SENTENCES = {
    "A cat is asleep on the sofa.": ("0.16", "−0.09", "−0.04"),
    "A kitten naps on the couch.": ("0.05", "−0.02", "−0.04"),
    "The stock market fell today.": ("0.05", "0.02", "0.07"),
}
COSINES = ("0.77", "0.03")


def meaning() -> Pen:
    pen = Pen(
        520,
        178,
        "Sentences become numbers, and similar sentences similar numbers",
        "Three sentences, each with an arrow to a row of 384 numbers. The cosine of the cat on the "
        "sofa and the kitten "
        "on the couch is 0.77, that of the kitten and the stock market 0.03.",
    )
    pen.text(96, 18, "text", "small soft")
    pen.text(300, 18, "its embedding: 384 numbers", "small soft")
    pen.text(478, 18, "cosine", "small soft")
    for row, (sentence, numbers) in enumerate(SENTENCES.items()):
        top = 32 + 52 * row
        look = "b" if "market" in sentence else "a"
        pen.box(6, top, 184, 32, look=look)
        pen.text(98, top + 21, sentence, "small")
        pen.arrow((190, top + 16), (222, top + 16))
        pen.grid(222, top, [[look] * 3], (52, 32), [numbers])
        pen.text(392, top + 21, "…", "bold")
    for row, cosine in enumerate(COSINES):
        top = 48 + 52 * row
        pen.line((408, top + 4), (430, top + 4), (430, top + 48), (408, top + 48))
        pen.line((430, top + 26), (444, top + 26))
        pen.box(444, top + 10, 68, 32, look="lit" if row == 0 else "panel")
        pen.text(478, top + 31, cosine, "bold")
    return pen


def pooling() -> Pen:
    pen = Pen(
        520,
        240,
        "Pooling: many vectors to one, without the pads",
        "Hidden states of three tokens, (1, -3), (3, -1) and (2, -8), and a pad that holds (100, "
        "100). The mean is "
        "(2, -4), cls takes the first, (1, -3), max takes the largest of each column, (3, -1). The "
        "pad never counts.",
    )
    pen.text(118, 20, "hidden (T, D)", "mono")
    rows = (("1", "−3"), ("3", "−1"), ("2", "−8"), ("100", "100"))
    pen.grid(68, 32, [["a", "a"]] * 3 + [["pad"] * 2], (50, 40), rows)
    for row, name in enumerate(("[CLS]", "token", "[SEP]", "[PAD]")):
        pen.text(60, 57 + 40 * row, name, "small soft", "end")
    for line, (name, values, rule) in enumerate(
        (
            ("mean", ("2", "−4"), "sum of real tokens / 3"),
            ("cls", ("1", "−3"), "the first token"),
            ("max", ("3", "−1"), "largest of each column"),
        )
    ):
        top = 36 + 58 * line
        pen.arrow((168, 92), (192, 92), (192, top + 16), (214, top + 16))
        pen.text(246, top + 21, name, "bold")
        pen.grid(280, top, [["lit"] * 2], (36, 32), [values])
        pen.text(360, top + 21, rule, "small soft", "start")
    pen.text(118, 214, "mask: True, True, True, False", "small soft")
    pen.text(350, 214, "one vector (D,) for the text", "small soft")
    return pen


def heads() -> Pen:
    pen = Pen(
        520,
        400,
        "Three heads: where do the sentences meet?",
        "Cross-encoder: both sentences go through Bert as one text, and the first token is scored; "
        "they meet in every "
        "layer. Siamese: each goes through Bert and pooling alone; absolute difference, product "
        "and u are scored; they "
        "meet after pooling. Cross-attention: each goes through Bert alone, then tokens of a "
        "attend to tokens of b; "
        "they meet after the encoder. One Bert serves both sentences.",
    )
    for column, (name, where) in enumerate(
        (
            ("cross-encoder", "in every layer"),
            ("siamese", "after pooling"),
            ("cross-attention", "after the encoder"),
        )
    ):
        left = 8 + 172 * column
        middle = left + 80
        pen.box(left, 4, 160, 392, look="panel")
        pen.text(middle, 26, name, "bold")
        pen.text(middle, 46, f"meet {where}", "small soft")
        if name == "cross-encoder":
            pen.box(left + 12, 60, 136, 30, "a [SEP] b", "a")
            pen.arrow((middle, 90), (middle, 112))
            pen.box(left + 12, 112, 136, 40, "Bert", "lit")
            pen.arrow((middle, 152), (middle, 282))
            pen.text(middle + 8, 220, "h[:, 0]", "mono", "start")
        else:
            pen.box(left + 12, 112, 136, 40, "Bert, twice", "paper")
            for side, (text, look) in enumerate((("a", "a"), ("b", "b"))):
                x = left + 12 + 72 * side
                pen.box(x, 60, 64, 30, text, look)
                pen.arrow((x + 32, 90), (x + 32, 112))
                pen.arrow((x + 32, 152), (x + 32, 174))
                if name == "siamese":
                    pen.box(x, 174, 64, 30, "pool", "paper")
                    pen.arrow((x + 32, 204), (x + 32, 236))
                    pen.text(x + 44, 224, "uv"[side], "mono")
            if name == "siamese":
                pen.box(left + 6, 236, 148, 30, look="lit")
                pen.text(middle, 255, "|u−v|; u*v; u", "mono")
                pen.arrow((middle, 266), (middle, 282))
            else:
                pen.box(left + 12, 174, 136, 48, look="lit")
                pen.text(middle, 194, "attention", "")
                pen.text(middle, 212, "q of a; k, v of b", "small")
                pen.text(middle, 240, "each token of a,", "small soft")
                pen.text(middle, 257, "and what it found", "small soft")
                pen.arrow((middle, 262), (middle, 282))
        pen.box(left + 40, 282, 80, 34, "mlp", "paper")
        pen.arrow((middle, 316), (middle, 348))
        pen.text(middle, 368, "score (B, 1)", "mono")
    return pen


def negatives() -> Pen:
    pen = Pen(
        500,
        330,
        "In-batch negatives: each row's wrong answers are the others' right ones",
        "A square of cosines of u_0 to u_3 with v_0 to v_3, divided by the temperature. The "
        "diagonal holds the right "
        "pairs. Softmax runs along each row; the loss is minus the log of the diagonal's share, on "
        "average over rows.",
    )
    for place in range(4):
        pen.text(137 + 54 * place, 40, f"v_{place}", "mono")
        pen.text(98, 78 + 46 * place, f"u_{place}", "mono", "end")
        looks = ["lit" if place == column else "b" for column in range(4)]
        labels = ["right" if place == column else "wrong" for column in range(4)]
        pen.grid(110, 50 + 46 * place, [looks], (54, 46), [labels])
    pen.text(218, 18, "cos(u_i, v_j) / tau, (B, B)", "mono")
    pen.box(107, 93, 222, 52, look="dashed")
    pen.arrow((334, 119), (362, 119))
    pen.text(368, 108, "softmax of a row,", "small", "start")
    pen.text(368, 126, "−log of the share", "small", "start")
    pen.text(368, 144, "of its right one", "small", "start")
    pen.text(218, 262, "loss = mean over the B rows", "")
    pen.text(218, 288, "B = 4: four right pairs, twelve wrong ones, no labels", "small soft")
    pen.text(218, 308, "B = 512: 511 wrong answers for each row", "small soft")
    return pen


def triplet() -> Pen:
    pen = Pen(
        500,
        330,
        "The triplet loss and its gradient",
        "Anchor at (0, 0), positive at (3, 4), negative at (0, 4.5). The distances are 5 and 4.5; "
        "with margin 1 the "
        "loss is 5 - 4.5 + 1 = 1.5. A step down the gradient moves the positive towards the "
        "anchor, the negative away "
        "from it, and the anchor by the sum of both, (0.6, -0.2).",
    )
    left, bottom, unit = 110, 280, 46

    def at(x: float, y: float) -> tuple[float, float]:
        return left + unit * x, bottom - unit * y

    pen.line(at(-1.2, 0), at(4.4, 0))
    pen.line(at(0, -0.6), at(0, 5.9))
    pen.line(at(0, 0), at(3, 4))
    pen.arrow(at(3, 4), at(3 - 0.6, 4 - 0.8), look="force")
    pen.arrow(at(0, 4.5), at(0, 5.5), look="force")
    pen.arrow(at(0, 0), at(0.6, -0.2), look="force")
    for point, label, look in (((0, 0), "a", "panel"), ((3, 4), "p", "c"), ((0, 4.5), "n", "b")):
        pen.dot(*at(*point), 12, label, look)
    pen.text(*at(3.4, 3.9), "positive (3, 4)", "small", "start")
    pen.text(*at(-0.4, 4.4), "negative", "small", "end")
    pen.text(*at(-0.4, 4.0), "(0, 4.5)", "small", "end")
    pen.text(*at(-0.4, 0.25), "anchor", "small", "end")
    pen.text(*at(1.75, 1.9), "d(a, p) = 5", "small", "start")
    pen.text(*at(0.25, 3.0), "d(a, n) = 4.5", "small", "start")
    pen.text(330, 224, "max(5 − 4.5 + 1, 0)", "mono", "start")
    pen.text(330, 246, "loss 1.5", "bold", "start")
    pen.text(*at(0.75, -0.45), "red: a step down the gradient", "small strong", "start")
    return pen


def gradient_cache() -> Pen:
    pen = Pen(
        520,
        400,
        "Gradient caching in three steps",
        "Step 1: the encoder runs over part 0 and part 1 without a graph, and only the vectors are "
        "kept. Step 2: the "
        "loss of all vectors together, and its gradient with respect to each vector, the cache. "
        "Step 3: each part runs "
        "again, now with a graph, and backward starts from its rows of the cache; the gradients of "
        "the weights add up.",
    )
    pen.text(12, 24, "1  vectors, part by part, without a graph", "bold", "start")
    for part, look in enumerate("ab"):
        top = 38 + 46 * part
        pen.box(12, top, 100, 34, f"part {part}", look)
        pen.arrow((112, top + 17), (140, top + 17))
        pen.box(140, top, 90, 34, "encoder")
        pen.arrow((230, top + 17), (262, top + 17))
        pen.grid(262, top - 1, [[look] * 5] * 2)
    pen.text(372, 80, "all vectors (B, D);", "small soft", "start")
    pen.text(372, 98, "the rest is dropped", "small soft", "start")
    pen.text(12, 156, "2  one loss over all rows", "bold", "start")
    pen.grid(12, 170, [["a"] * 5] * 2 + [["b"] * 5] * 2)
    pen.arrow((102, 206), (140, 206))
    pen.box(140, 189, 90, 34, "loss")
    pen.arrow((230, 206), (262, 206))
    pen.grid(262, 170, [["lit"] * 5] * 4)
    pen.text(372, 198, "the cache:", "small soft", "start")
    pen.text(372, 216, "dL/dv, (B, D)", "mono", "start")
    pen.text(12, 276, "3  each part again, backward from its rows of the cache", "bold", "start")
    for part, look in enumerate("ab"):
        top = 290 + 46 * part
        pen.box(12, top, 100, 34, f"part {part}", look)
        pen.arrow((112, top + 17), (140, top + 17))
        pen.box(140, top, 90, 34, "encoder")
        pen.arrow((262, top + 17), (230, top + 17), look="force")
        pen.grid(262, top - 1, [["lit"] * 5] * 2)
        pen.text(372, top + 22, f"rows of part {part}", "small soft", "start")
    pen.text(185, 394, "gradients of the weights add up", "small soft")
    return pen
