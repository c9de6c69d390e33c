"""How the course hangs together: four parts and two appendices, its core, and which lesson needs which."""

from typing import NamedTuple


class Part(NamedTuple):
    title: str
    lessons: tuple[int, ...]  # in the order in which to read them


PARTS = {
    "I": Part("Read a sentence", (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    "II": Part("Judge and train", (9, 10, 11, 12, 13, 14)),
    "III": Part("Search", (15, 16, 17, 18, 19, 20)),
    "IV": Part("Since BERT, and from nothing", (21, 22, 23)),
    "A": Part("Appendix for engineers", (24, 25, 26, 27, 28)),
    "B": Part("Appendix from the wild", (29,)),
}

CORE = (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)  # from a text to a trained, honestly judged encoder

# What a lesson takes for granted, directly. What else it mentions, it points to by number.
NEEDS = {
    0: (),
    1: (0,),
    2: (1,),
    3: (2,),
    4: (2,),
    5: (4,),
    6: (5,),
    7: (6,),
    8: (7,),
    9: (8,),
    10: (9,),
    11: (10,),
    12: (11,),
    13: (12,),
    14: (8,),
    15: (9,),
    16: (9,),
    17: (13, 16),
    18: (15, 17),
    19: (18,),
    20: (17,),
    21: (7,),
    22: (21,),
    23: (15, 17),
    24: (11,),
    25: (11,),
    26: (13, 16),
    27: (26,),
    28: (11,),
    29: (11, 15),
}


def needed(lesson: int) -> set[int]:
    """Return all lessons that a lesson builds on, directly or not: ``needed(3) == {0, 1, 2}``."""
    found = set(NEEDS[lesson])
    for before in NEEDS[lesson]:
        found |= needed(before)
    return found
