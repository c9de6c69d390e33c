"""How the course hangs together: its parts, its core, which lesson needs which chapters."""

import ast
from pathlib import Path
from typing import NamedTuple

from minisbert import core


class Part(NamedTuple):
    title: str
    lessons: tuple[int, ...]  # in the order in which to read them


PARTS = {
    "I": Part("Read a sentence", (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    "II": Part("Judge and train", (9, 10, 11, 12, 13, 14)),
    "III": Part("Search", (15, 16, 17, 18, 19, 20, 21, 22)),
    "IV": Part("Since BERT, and from nothing", (23, 24)),
    "A": Part("Appendix", (25, 26, 27, 28, 29)),
    "B": Part("Sheets", (30, 31, 32, 33, 34)),
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
    17: (16,),
    18: (13, 17),
    19: (15, 18),
    20: (19,),
    21: (18,),
    22: (20, 21),
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


def needed(lesson: int) -> set[int]:
    """Return all lessons that a lesson builds on, directly or not: ``needed(3) == {0, 1, 2}``."""
    found = set(NEEDS[lesson])
    for before in NEEDS[lesson]:
        found |= needed(before)
    return found


# What each lesson reads of ``minisbert/core``: whole chapters, or definitions with the lines
# between them and the last.
BOOK: dict[int, dict[str, tuple[str, ...] | None]] = {
    1: {"__init__": None},
    2: {"tokenizer": None, "checks": ("check_texts",)},
    3: {
        "weights": None,
        "checks": ("InputError", "one_line", "reading", "read_json"),
        "encoder": ("read_modules", "read_pooling", "token_limit", "load_bert"),
    },
    4: {"bert": ("layer_norm", "LayerNorm", "Embeddings")},
    5: {"bert": ("attention", "attend", "Attention")},
    6: {"bert": ("gelu", "FeedForward", "Layer")},
    7: {"bert": ("Bert",)},
    8: {"pooling": None, "encoder": ("SentenceEncoder",)},
    9: {"metrics": None, "encoder": ("normalize", "cosine", "cosine_matrix")},
    10: {
        "losses": (
            "check_vectors",
            "check_candidates",
            "mse_loss",
            "cosine_mse_loss",
            "softmax_cross_entropy_loss",
            "triplet_loss",
            "multiple_negatives_ranking_loss",
            "simcse_loss",
        ),
        "checks": ("check_shape", "check_integer", "check_number", "check_one_of"),
    },
    11: {"loop": None, "data": None},
    15: {"heads": None},
    29: {"losses": ("contrastive_loss",)},
}


def passages(lesson: int) -> list[tuple[Path, int, int]]:
    """The file, the first line and the last of each passage of the book that a lesson reads."""
    found: list[tuple[Path, int, int]] = []
    for chapter, wanted in BOOK.get(lesson, {}).items():
        path = Path(core.__path__[0], f"{chapter}.py")
        text = path.read_text(encoding="utf-8")
        body = ast.parse(text).body
        definitions = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        ends = [node.end_lineno or 0 for node in definitions[:-1]] + [len(text.splitlines())]
        first = 1
        for definition, last in zip(definitions or [None], ends, strict=True):
            if wanted is None or (definition and definition.name in wanted):
                if found and found[-1][0] == path and found[-1][2] == first - 1:
                    first = found.pop()[1]  # it follows the passage before
                found.append((path, first, last))
            first = last + 1
    return found
