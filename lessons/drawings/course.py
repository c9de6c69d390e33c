"""The course as a drawing: its parts from top to bottom, its core lit, and arrows from what a lesson needs."""

from lessons.parts import CORE, NEEDS, PARTS

from .pen import Pen

WIDTH, HEIGHT, ACROSS, LEFT = 90, 40, 104, 2  # of a box, from one column to the next, before the first
NAMES = {
    0: "before", 1: "embedding", 2: "text to ids", 3: "weights file", 4: "embeddings", 5: "attention", 6: "layer",
    7: "encoder", 8: "pooling", 9: "similarity", 10: "losses", 11: "the loop", 12: "for real", 13: "your pieces",
    14: "three heads", 15: "search", 16: "your engine", 17: "one or many", 18: "two stages", 19: "an index",
    20: "positions", 21: "who looks", 22: "from nothing", 23: "packing", 24: "fewer passes", 25: "small",
    26: "big batches",
}  # fmt: skip
# lesson -> column and top
PLACES = {
    0: (0, 26), 1: (1, 26), 2: (2, 26), 3: (3, 26), 4: (4, 26),
    5: (0, 94), 6: (1, 94), 7: (2, 94), 8: (3, 94),
    13: (0, 184), 9: (1, 184), 10: (2, 184), 11: (3, 184), 12: (4, 184),
    14: (0, 274), 15: (1, 274), 16: (4, 274),
    18: (2, 342), 17: (3, 342), 19: (4, 342),
    20: (0, 426), 21: (1, 426), 22: (3, 426),
    23: (0, 510), 24: (1, 510), 25: (2, 510), 26: (3, 510),
}  # fmt: skip
TITLES = {"I": 16, "II": 158, "III": 248, "IV": 416, "A": 500}  # part -> the base line of its title
# arrows that are no straight line between two neighbours: where they turn
TURNS = {
    (4, 5): ((463, 80), (47, 80)),
    (8, 9): ((359, 168), (151, 168)),
    (8, 13): ((359, 168), (47, 168)),
    (9, 14): ((151, 258), (47, 258)),
    (14, 17): ((47, 328), (339, 328)),
    (16, 17): ((443, 328), (379, 328)),
}
FAR = {20: (7,), 22: (14, 16), 23: (11,), 24: (11,), 25: (12, 15), 26: (11,)}  # told in words


def course() -> Pen:
    """All lessons by part; an arrow, or *after*, leads from each lesson to those that need it."""
    told = [f"{PARTS[part].title}: {', '.join(f'{n:02} {NAMES[n]}' for n in PARTS[part].lessons)}." for part in PARTS]
    pen = Pen(520, 582, "What needs what: the parts of the course", " ".join(told) + " Coloured: the core.")
    for part, y in TITLES.items():
        name = "" if part == "A" else f"{part}. "
        pen.text(4, y, name + PARTS[part].title, "small bold", "start")
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
