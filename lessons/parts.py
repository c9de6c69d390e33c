"""How the course hangs together: four parts and two appendices, its core, and which lesson needs which."""

from typing import NamedTuple


class Part(NamedTuple):
    title: str
    lessons: tuple[int, ...]  # in the order in which to read them
    stop: str  # what you have if you stop here


PARTS = {
    "I": Part(
        "Read a sentence",
        (0, 1, 2, 3, 4, 5, 6, 7, 8),
        "an encoder that you understand to the last digit, and a way to find the bug in any other",
    ),
    "II": Part(
        "Judge and train",
        (9, 10, 11, 12, 13, 14),
        "a model trained on your own pairs, and a score that you can defend",
    ),
    "III": Part(
        "Search",
        (15, 16, 17, 18, 19, 20),
        "a search engine over your own texts, with its price in bytes and milliseconds",
    ),
    "IV": Part(
        "Since BERT, and from nothing",
        (21, 22, 23),
        "the map of newer models, and an encoder that you made from an empty folder",
    ),
    "A": Part(
        "Appendix for engineers",
        (24, 25, 26, 27, 28),
        "the same vectors from fewer pads, passes, bytes and gigabytes",
    ),
    "B": Part(
        "Appendix from the wild",
        (29,),
        "the checks of two lines that find what no score shows in somebody's notebook",
    ),
}

CORE = (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)  # from a text to a trained, honestly judged encoder
# Pieces of core lessons that nothing later builds on.
OPTIONAL = (
    "tokenizer.split_words",
    "losses.contrastive_loss",
    "backward.dense_gelu_backward",
    "losses.simcse_loss",
    "losses.nt_xent_loss",
    "losses.cosent_loss",
)
# A weekend: half days, their lessons, and the pieces to write.
WEEKEND = {
    "Saturday morning": ((1, 2), ("encoder.cosine_matrix",)),
    "Saturday afternoon": ((4, 5, 6), ("bert.layer_norm", "bert.attention")),
    "Sunday morning": ((7, 8, 9), ("pooling.mean_pool", "metrics.ranks")),
    "Sunday afternoon": ((10, 13), ("losses.softmax_cross_entropy_loss",)),
}

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
