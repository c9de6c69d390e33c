"""Drawings of the model itself: the map, and the parts of ``core/bert.py`` and
``core/tokenizer.py``.
"""

from .pen import Pen

# The part of the map that a lesson is about; "" is the map without a light.
PARTS = {
    "02": "tokenizer",
    "03": "weights",
    "04": "embeddings",
    "05": "attention",
    "06": "layer",
    "07": "encoder",
    "08": "pooling",
    "09": "similarity",
}
PLAN = (
    "From top to bottom: texts; the tokenizer makes ids (B, T); embeddings make vectors (B, T, D); "
    "L layers, each of "
    "attention, add and LayerNorm, feed-forward, add and LayerNorm, keep that shape; pooling "
    "leaves (B, D); the cosine "
    "compares two texts. The weights file fills the embeddings and the layers. "
)


def model_map(lesson: str = "") -> Pen:
    """The whole model with the part that ``lesson`` is about in another colour."""
    part = PARTS.get(lesson, "")
    told = f"Lit: {part}, lesson {lesson}." if part else "Each part names its lesson."
    pen = Pen(520, 596, f"Map of the model{': ' + part if part else ''}", PLAN + told)

    def look(name: str, otherwise: str = "panel") -> str:
        return "lit" if name and name == part else otherwise

    pen.box(90, 134, 250, 332, look=look("encoder", "dashed"))
    pen.text(105, 456, "Bert  07", "small bold" if part == "encoder" else "small soft", "start")
    pen.box(104, 208, 222, 224, look=look("layer", "paper"))
    pen.text(112, 424, "Layer  06", "small soft" if part != "layer" else "small bold", "start")
    pen.text(318, 424, "L times", "small soft" if part != "layer" else "small", "end")
    pen.text(8, 22, "the numbers", "small soft", "start")
    pen.text(8, 38, "are lessons", "small soft", "start")
    steps = (
        (8, "", "texts", "", "A cat sits."),
        (64, "tokenizer", "Tokenizer", "02", "ids (B, T)"),
        (148, "embeddings", "Embeddings", "04", "(B, T, D)"),
        (224, "attention", "Attention", "05", ""),
        (274, "", "add, LayerNorm", "", "(B, T, D)"),
        (324, "", "FeedForward", "", ""),
        (374, "", "add, LayerNorm", "", "(B, T, D)"),
        (484, "pooling", "pool, normalize", "08", "(B, D)"),
        (544, "similarity", "cosine of two texts", "09", "one number"),
    )
    for number, (top, name, label, chapter, shape) in enumerate(steps):
        wide = 30 if name == "similarity" else 0
        pen.box(
            130 - wide / 2,
            top,
            170 + wide,
            34,
            look=look(name, "none" if label == "texts" else "panel"),
        )
        shown = f"{label}  {chapter}".strip()
        pen.text(215, top + 22, shown, "bold" if name and name == part else "")
        if number:
            above = steps[number - 1][0] + 34
            pen.arrow((215, above), (215, top))
        if shape:
            pen.text(352, top + 22, shape, "small mono" if number else "small soft", "start")
    pen.box(8, 208, 64, 62, look=look("weights"))
    for line, words in enumerate(("weights", "file", "03")):
        pen.text(40, 228 + 17 * line, words, "small bold" if part == "weights" else "small")
    pen.arrow((40, 208), (40, 165), (130, 165))
    pen.arrow((72, 239), (104, 239))
    return pen


def embeddings() -> Pen:
    pen = Pen(
        500,
        300,
        "Embeddings: three rows, one sum",
        "For each of the tokens [CLS], hello, [SEP] a row of the word table, a row of the position "
        "table and a row of "
        "the token type table are added column by column; LayerNorm of each sum gives the hidden "
        "state.",
    )
    for column, (token, row) in enumerate((("[CLS]", 101), ("hello", 7592), ("[SEP]", 102))):
        x = 130 + 125 * column
        pen.text(x + 50, 20, token, "bold")
        for line, (look, label) in enumerate(
            (("a", f"row {row}"), ("b", f"row {column}"), ("c", "row 0"))
        ):
            top = 36 + 54 * line
            pen.box(x, top, 100, 32, label, look)
            if line:
                pen.text(x + 50, top - 6, "+")
        pen.arrow((x + 50, 176), (x + 50, 198))
        pen.box(x, 198, 100, 32, "LayerNorm")
        pen.arrow((x + 50, 230), (x + 50, 252))
        pen.grid(x + 2, 254, [["lit"] * 6], (16, 18))
    for top, name in ((56, "word"), (110, "position"), (164, "token_type")):
        pen.text(10, top, name, "mono", "start")
    pen.text(10, 268, "x (B, T, D)", "mono", "start")
    pen.text(315, 293, "one vector of D numbers for each token", "small soft")
    return pen


def qkv() -> Pen:
    pen = Pen(
        520,
        420,
        "Query, key and value, with their shapes",
        "x (T, D) goes through three dense layers to q, k and v, (T, K) each for one head. q times "
        "k transposed, "
        "divided by the root of K, gives scores (T, T). Softmax makes each row sum to 1. The rows "
        "are weights for the "
        "rows of v: the context (T, K).",
    )
    pen.text(60, 20, "x (T, D)", "mono")
    pen.grid(12, 30, [["panel"] * 6] * 4, (16, 18))
    pen.text(60, 124, "one head of H", "small soft")
    for line, (name, look) in enumerate((("query", "a"), ("key", "b"), ("value", "c"))):
        top = 28 + 112 * line
        pen.arrow((112, 66), (130, 66), (130, top + 38), (150, top + 38))
        pen.box(150, top + 21, 66, 34, name)
        pen.arrow((216, top + 38), (238, top + 38))
        pen.text(268, top - 8, f"{name[0]} (T, K)", "mono")
        pen.grid(240, top + 2, [[look] * 3] * 4, (18, 18))
    pen.line((294, 66), (306, 66), (306, 122))
    pen.line((294, 178), (306, 178), (306, 122))
    pen.arrow((306, 122), (322, 122))
    pen.text(360, 62, "scores (T, T)", "mono")
    pen.text(360, 78, "q k^T / sqrt(K)", "small soft")
    pen.grid(324, 88, [["panel"] * 4] * 4)
    pen.text(416, 180, "softmax", "small")
    pen.arrow((398, 124), (436, 124))
    pen.text(474, 62, "shares", "mono")
    pen.text(474, 78, "row: sum 1", "small soft")
    share = ["panel", "lit"]
    pen.grid(
        438, 88, [[share[j == 2], share[j == 0], share[j == 1], share[j == 3]] for j in range(4)]
    )
    pen.arrow((474, 162), (474, 288), (411, 288))
    pen.arrow((296, 288), (389, 288))
    pen.dot(400, 288, 11, "×", "paper")
    pen.arrow((400, 299), (400, 326))
    pen.grid(373, 330, [["lit"] * 3] * 4)
    pen.text(364, 358, "context (T, K)", "mono", "end")
    pen.text(364, 376, "each row a mean of rows of v", "small soft", "end")
    return pen


def split_and_merge() -> Pen:
    pen = Pen(
        500,
        320,
        "Splitting the columns into heads, and merging them",
        "A matrix of T = 3 tokens and D = 6 columns is split into H = 3 heads of K = 2 columns: "
        "head 0 takes columns 0 "
        "and 1, head 1 columns 2 and 3, head 2 columns 4 and 5. Every head sees every token. After "
        "attention the "
        "heads' contexts are put side by side again.",
    )
    columns = ["a", "a", "b", "b", "c", "c"]
    pen.text(75, 20, "(B, T, D)", "mono")
    pen.grid(21, 30, [columns] * 3)
    pen.text(75, 108, "T = 3, D = 6", "small soft")
    pen.text(180, 46, "split", "mono")
    pen.arrow((140, 57), (220, 57))
    pen.text(370, 20, "(B, H, T, K)", "mono")
    for head, look in enumerate("abc"):
        left = 262 + 80 * head
        pen.grid(left, 30, [[look] * 2] * 3, (24, 18))
        pen.text(left + 24, 108, f"head {head}", "small")
        pen.arrow((left + 24, 118), (left + 24, 146))
        pen.box(left - 10, 146, 68, 32)
        pen.text(left + 24, 167, "attention", "small")
        pen.arrow((left + 24, 178), (left + 24, 206))
        pen.grid(left, 210, [[look] * 2] * 3, (24, 18))
    pen.text(370, 288, "each head has shares (T, T) of its own", "small soft")
    pen.text(180, 226, "merge", "mono")
    pen.arrow((250, 237), (140, 237))
    pen.grid(21, 210, [columns] * 3)
    pen.text(75, 288, "(B, T, D)", "mono")
    return pen


def mask() -> Pen:
    pen = Pen(
        520,
        230,
        "The mask: a pad gets no share",
        "Scores of three tokens, the third a pad. The mask sets the pad's column to minus infinity "
        "before the "
        "softmax, so its share is exactly 0: rows one half, one half, 0; one quarter, three "
        "quarters, 0; three "
        "quarters, one quarter, 0. The pad's own row is computed, and nobody reads it.",
    )
    rows = (("0", "0", "0"), ("0", "log 3", "0"), ("log 3", "0", "0"))
    hidden = [[*row[:2], "−∞"] for row in rows]
    shares = (("1/2", "1/2", "0"), ("1/4", "3/4", "0"), ("3/4", "1/4", "0"))
    for left, name, values in (
        (54, "scores", rows),
        (216, "masked", hidden),
        (378, "shares", shares),
    ):
        pen.text(left + 66, 20, name, "bold")
        for column, key in enumerate(("s = 0", "1", "pad")):
            pen.text(left + 22 + 44 * column, 42, key, "small soft")
        looks = [["panel", "panel", "pad"]] * 2 + [["pad"] * 3]
        if name == "shares":
            looks = [["lit", "lit", "pad"]] * 2 + [["pad"] * 3]
        pen.grid(left, 50, looks, (44, 40), values)
    for row, query in enumerate(("t = 0", "1", "pad")):
        pen.text(48, 75 + 40 * row, query, "small soft", "end")
    pen.arrow((190, 110), (212, 110))
    pen.arrow((352, 110), (374, 110))
    pen.text(201, 196, "masked_fill", "mono")
    pen.text(363, 196, "softmax", "mono")
    pen.text(
        260,
        220,
        "The column of the pad: 0. The row of the pad: computed, never read.",
        "small soft",
    )
    return pen


def residual() -> Pen:
    pen = Pen(
        500,
        470,
        "The residual stream through one layer",
        "x goes straight down through the layer. Attention reads x, and its result is added to x; "
        "LayerNorm follows "
        "the sum. The feed-forward block reads that, its result is added, LayerNorm follows. Both "
        "blocks only add to "
        "the stream; the shape is (B, T, D) everywhere, and (B, T, F) inside the feed-forward "
        "block.",
    )
    pen.text(120, 22, "x (B, T, D)", "mono")
    pen.line((120, 30), (120, 430))
    for top, name, does, norm in (
        (50, "attention", "moves between tokens", "attention_norm"),
        (250, "feed_forward", "D to F, GELU, F to D", "feed_forward_norm"),
    ):
        pen.arrow((120, top), (350, top), (350, top + 24))
        pen.box(255, top + 24, 190, 50, look="lit")
        pen.text(350, top + 46, name, "mono")
        pen.text(350, top + 64, does, "small")
        pen.arrow((350, top + 74), (350, top + 98), (131, top + 98))
        pen.dot(120, top + 98, 11, "+", "paper")
        pen.box(45, top + 130, 150, 36, look="panel")
        pen.text(120, top + 153, norm, "mono")
    pen.text(215, 86, "reads x", "small soft")
    pen.text(240, 166, "what it found is added", "small soft", "start")
    pen.text(240, 366, "what it computed is added", "small soft", "start")
    pen.arrow((120, 420), (120, 446))
    pen.text(136, 456, "x of the next layer, (B, T, D)", "mono", "start")
    return pen


def wordpiece() -> Pen:
    pen = Pen(
        500,
        352,
        "WordPiece cuts from the left, the longest piece first",
        "The word encoders. From its start encoders, encoder, encode, encod, enco and enc are not "
        "in the vocabulary, "
        "en is. From there ##coders and ##coder are not, ##code is. The rest, ##rs, is. Pieces: "
        "en, ##code, ##rs.",
    )
    word, pieces = "encoders", ("en", "code", "rs")
    for place, letter in enumerate(word):
        pen.text(37 + 30 * place, 24, letter, "bold")
    start, top = 0, 38
    for piece in pieces:
        for end in range(len(word), start + len(piece) - 1, -1):
            found = end == start + len(piece)
            pen.box(22 + 30 * start, top, 30 * (end - start), 18, look="lit" if found else "none")
            tried = ("##" if start else "") + word[start:end]
            pen.text(280, top + 14, tried, "mono", "start")
            pen.text(
                370,
                top + 14,
                "take it" if found else "not in V",
                "small bold" if found else "small soft",
                "start",
            )
            top += 23
        start += len(piece)
    pen.arrow((142, top - 2), (142, top + 22))
    for left, width, piece in ((22, 60, "en"), (82, 120, "##code"), (202, 60, "##rs")):
        pen.box(left, top + 26, width, 30, look="lit")
        pen.text(left + width / 2, top + 46, piece, "mono")
    return pen
