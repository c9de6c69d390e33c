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
        (9, 11, 12, 18, 15),
        "a model trained on your own pairs, and a score that you can defend",
    ),
    "III": Part(
        "Search",
        (10, 14, 19, 21, 23, 24),
        "a search engine over your own texts, with its price in bytes and milliseconds",
    ),
    "IV": Part(
        "Since BERT, and from nothing",
        (20, 26, 22),
        "the map of newer models, and an encoder that you made from an empty folder",
    ),
    "A": Part(
        "Appendix for engineers",
        (13, 25, 16, 17),
        "the same vectors from fewer pads, passes, bytes and gigabytes",
    ),
}
# The second appendix is no file of its own: what a published notebook gets wrong, where it was met.
FROM_THE_WILD = ((10, "Break it"), (12, "From the wild"))

CORE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 18)  # from a text to a trained, honestly judged encoder
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
    "Sunday afternoon": ((11, 18), ("losses.softmax_cross_entropy_loss",)),
}

# What a lesson takes for granted, directly. What else it mentions, it points to by number.
NEEDS = {
    0: (),
    1: (0,),
    2: (1,),
    3: (2,),
    4: (3,),
    5: (4,),
    6: (5,),
    7: (6,),
    8: (7,),
    9: (8,),
    10: (9,),
    11: (9,),
    12: (11,),
    13: (12,),
    14: (9,),
    15: (8,),
    16: (14, 18),
    17: (12,),
    18: (12,),
    19: (14, 18),
    20: (7,),
    21: (10, 19),
    22: (10, 19),
    23: (21,),
    24: (19,),
    25: (12,),
    26: (20,),
}


def needed(lesson: int) -> set[int]:
    """Return all lessons that a lesson builds on, directly or not: ``needed(3) == {0, 1, 2}``."""
    found = set(NEEDS[lesson])
    for before in NEEDS[lesson]:
        found |= needed(before)
    return found
