"""The course as a drawing: its parts from top to bottom, its core lit, and arrows from what a
lesson needs.
"""

from lessons.parts import CORE, NEEDS, PARTS

from .pen import Pen

WIDTH, HEIGHT, ACROSS, LEFT = (
    90,
    40,
    104,
    2,
)  # of a box, from one column to the next, before the first
NAMES = {
    0: "before", 1: "embedding", 2: "text to ids", 3: "weights file", 4: "embeddings", 5: "attention", 6: "layer",
    7: "encoder", 8: "pooling", 9: "similarity", 10: "losses", 11: "the loop", 12: "one number", 13: "for real",
    14: "your pieces", 15: "three heads", 16: "search", 17: "fewer bytes", 18: "your engine", 19: "one or many",
    20: "two stages", 21: "an index", 22: "a tool", 23: "since BERT", 24: "from nothing", 25: "packing",
    26: "fewer passes", 27: "fewer layers", 28: "big batches", 29: "more losses", 30: "in the wild",
    31: "failures", 32: "leaderboards", 33: "prompts", 34: "for LLMs",
}  # fmt: skip
# lesson -> column and top
PLACES = {
    0: (0, 26), 1: (1, 26), 2: (2, 26), 4: (3, 26), 5: (4, 26),
    6: (0, 94), 7: (1, 94), 8: (2, 94), 3: (4, 94),
    9: (0, 184), 10: (1, 184), 11: (2, 184), 12: (3, 184), 13: (4, 184), 14: (2, 252),
    15: (0, 342), 16: (1, 342), 17: (2, 342), 18: (4, 342),
    22: (1, 410), 20: (2, 410), 19: (3, 410), 21: (4, 410),
    23: (0, 494), 24: (2, 494),
    25: (0, 578), 26: (1, 578), 27: (2, 578), 28: (3, 578), 29: (4, 578),
    30: (0, 662), 31: (1, 662), 32: (2, 662), 33: (3, 662), 34: (4, 662),
}  # fmt: skip
TITLES = {
    "I": 16,
    "II": 174,
    "III": 332,
    "IV": 484,
    "A": 568,
    "B": 652,
}  # part -> the base line of its title
# arrows that are no straight line between two neighbours: where they turn
TURNS = {
    (5, 6): ((463, 80), (47, 80)),
    (8, 9): ((255, 160), (47, 160)),
    (9, 16): ((47, 240), (151, 240)),
    (15, 19): ((47, 396), (339, 396)),
    (18, 19): ((443, 396), (379, 396)),
}
# told in words
FAR = {
    3: (2,),
    14: (8,),
    22: (21,),
    23: (11,),
    24: (15, 18),
    25: (11,),
    26: (11,),
    27: (13, 17),
    28: (11,),
    29: (10,),
    30: (11, 15),
    31: (15, 18),
    32: (13, 18),
    33: (11,),
    34: (22,),
}


def course() -> Pen:
    """All lessons by part; an arrow, or *after*, leads from each lesson to those that need it."""
    told = [
        f"{PARTS[part].title}: {', '.join(f'{n:02} {NAMES[n]}' for n in PARTS[part].lessons)}."
        for part in PARTS
    ]
    pen = Pen(
        520,
        734,
        "What needs what: the parts of the course",
        " ".join(told) + " Coloured: the core.",
    )
    for part, y in TITLES.items():
        name = "" if part in "AB" else f"{part}. "
        left = 60 if part in ("II", "III") else 4  # beside the arrow that comes down there
        pen.text(left, y, name + PARTS[part].title, "small bold", "start")
    pen.text(516, 16, "coloured: the core", "small soft", "end")
    for after, befores in NEEDS.items():
        for before in befores:
            if before not in FAR.get(after, ()):
                pen.arrow(*route(before, after))
    for lesson, (column, top) in PLACES.items():
        x = LEFT + ACROSS * column
        pen.box(x, top, WIDTH, HEIGHT, look="lit" if lesson in CORE else "panel")
        pen.text(x + WIDTH / 2, top + 17, f"{lesson:02}", "bold")
        pen.text(x + WIDTH / 2, top + 33, NAMES[lesson], "small")
        if lesson in FAR:
            numbers = ", ".join(f"{n:02}" for n in FAR[lesson])
            pen.text(x + WIDTH / 2, top + HEIGHT + 15, f"after {numbers}", "small soft")
    return pen


def route(before: int, after: int) -> list[tuple[float, float]]:
    """The points of an arrow: along the row, straight down, or round the corners of ``TURNS``."""
    (column, top), (to_column, to_top) = PLACES[before], PLACES[after]
    x, to_x = (LEFT + ACROSS * place + WIDTH / 2 for place in (column, to_column))
    if (before, after) in TURNS:
        first, last = TURNS[before, after]
        return [(first[0], top + HEIGHT), first, last, (last[0], to_top)]
    if top == to_top:
        step = WIDTH / 2 if to_x > x else -WIDTH / 2
        return [(x + step, top + HEIGHT / 2), (to_x - step, top + HEIGHT / 2)]
    return [(x, top + HEIGHT), (to_x, to_top)]
