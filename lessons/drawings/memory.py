"""Drawings of how things lie in memory and on disk: the weights file, rows of several texts, bits;
and the loop.
"""

from .pen import Pen


def safetensors() -> Pen:
    pen = Pen(
        520,
        250,
        "A safetensors file",
        "Eight bytes hold n, the length of the header. n bytes hold the header, JSON: for each "
        "tensor its dtype, "
        "shape, begin and end. The rest is the tensors' numbers, row by row. Element (r, c) of a "
        "tensor (R, C) of "
        "float32 is at byte 8 + n + begin + 4 (r C + c).",
    )
    for left, width, label, look in (
        (12, 70, "n", "a"),
        (82, 150, "header (JSON)", "b"),
        (232, 120, "tensor", "c"),
        (352, 156, "next tensor ...", "c"),
    ):
        pen.box(left, 40, width, 44, label, look)
    for x, label in ((12, "0"), (82, "8"), (232, "8 + n")):
        pen.text(x, 32, label, "mono", "start" if x == 12 else "middle")
    pen.text(47, 104, "8 bytes", "small soft")
    pen.text(157, 104, "n bytes", "small soft")
    pen.text(508, 32, "the numbers, row by row", "small soft", "end")
    pen.line((232, 84), (150, 136))
    pen.line((352, 84), (402, 136))
    looks = [["c"] * 7, ["c", "c", "c", "lit", "c", "c", "c"], ["c"] * 7]
    pen.grid(150, 136, looks, (36, 22))
    pen.text(142, 174, "row r = 1", "small soft", "end")
    pen.text(276, 222, "column c = 3", "small soft")
    pen.line((276, 180), (276, 208))
    pen.text(260, 244, "at byte 8 + n + begin + 4 (r C + c)", "mono")
    return pen


def packed_rows() -> Pen:
    pen = Pen(
        520,
        370,
        "Two texts in one row, and the mask that keeps them apart",
        "A row of 12 tokens: five of the text A cat., four of the text Snow., three pads. "
        "Positions start again at 0 with each text. The mask is block-diagonal: a query may look "
        "at keys of its own text only.",
    )
    owners = ["a"] * 5 + ["b"] * 4 + ["pad"] * 3
    positions = [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]
    left, cell = 120, 20
    for start, width, name in ((0, 5, '"A cat."'), (5, 4, '"Snow."'), (9, 3, "pads")):
        pen.text(left + cell * (start + width / 2), 20, name, "small")
    pen.grid(left, 28, [owners], (cell, 24))
    pen.grid(left, 60, [owners], (cell, 24), [positions])
    pen.text(110, 45, "ids", "mono", "end")
    pen.text(110, 77, "positions", "mono", "end")
    pen.grid(
        left,
        104,
        [[row if row == column else "none" for column in owners] for row in owners],
        (cell, cell),
    )
    pen.text(110, 218, "query", "small soft", "end")
    pen.text(left + 120, 362, "key", "small soft")
    for line, (look, words) in enumerate(
        (("a", "same text: look"), ("none", "else: minus infinity"))
    ):
        pen.box(366, 130 + 52 * line, 18, 18, look=look)
        for part, word in enumerate(words.split(": ")):
            pen.text(392, 144 + 52 * line + 17 * part, word, "small soft", "start")
    return pen


def packed_bits() -> Pen:
    pen = Pen(
        500,
        320,
        "Signs to bits, bits to bytes, and Hamming's distance",
        "Eight columns of x: 1, then five times -1, 0, 2. Above 0 is 1, else 0: bits 10000001, one "
        "byte, 129. For y: "
        "-1 and seven times 1, bits 01111111, byte 127. Exclusive or gives 11111110: seven bits "
        "differ.",
    )
    numbers = {"x": (1, -1, -1, -1, -1, -1, 0, 2), "y": (-1, 1, 1, 1, 1, 1, 1, 1)}
    left, cell = 62, 40
    for line, (name, values) in enumerate(numbers.items()):
        top, bits = 30 + 96 * line, [int(value > 0) for value in values]
        pen.text(56, top + 21, name, "bold", "end")
        pen.grid(
            left,
            top,
            [["panel"] * 8],
            (cell, 30),
            [[str(value).replace("-", "−") for value in values]],
        )
        pen.text(56, top + 57, f"{name} > 0", "mono", "end")
        pen.grid(left, top + 36, [["a" if bit else "none" for bit in bits]], (cell, 30), [bits])
        byte = sum(bit << 7 - place for place, bit in enumerate(bits))
        pen.text(392, top + 21, "32 bytes", "small soft", "start")
        pen.text(392, top + 57, f"1 byte: {byte}", "small", "start")
    differ = [int((x > 0) != (y > 0)) for x, y in zip(*numbers.values(), strict=True)]
    pen.text(56, 251, "xor", "mono", "end")
    pen.grid(left, 230, [["lit" if bit else "none" for bit in differ]], (cell, 30), [differ])
    pen.text(392, 251, f"{sum(differ)} bits differ", "bold", "start")
    pen.text(222, 20, "the first column is the highest bit", "small soft")
    pen.text(222, 290, "Hamming's distance counts the ones", "small soft")
    return pen


def loop() -> Pen:
    steps = (
        ("schedule(step)", "the learning rate of this step"),
        ("optimizer.zero_grad()", "forget the last gradients"),
        ("loss(model, batch)", "one number; less is better"),
        ("backward()", "a gradient for every parameter"),
        ("clip_grad_norm_", "shorten it if it is too long"),
        ("optimizer.step()", "change the parameters"),
        ("yield Step", "the caller logs, evaluates, saves"),
    )
    pen = Pen(
        500,
        32 + 52 * len(steps),
        "One turn of the training loop",
        "For each batch, in order: "
        + "; ".join(f"{name}: {what}" for name, what in steps)
        + ". Then the next batch.",
    )
    pen.text(56, 22, "for batch in batches:", "mono", "start")
    for line, (name, what) in enumerate(steps):
        top = 38 + 52 * line
        pen.box(56, top, 180, 34, look="lit" if name == "optimizer.step()" else "panel")
        pen.text(146, top + 22, name, "mono")
        pen.text(252, top + 22, what, "small soft", "start")
        if line + 1 < len(steps):
            pen.arrow((146, top + 34), (146, top + 52))
    bottom = 38 + 52 * (len(steps) - 1) + 17
    pen.arrow((56, bottom), (24, bottom), (24, 55), (56, 55))
    return pen
