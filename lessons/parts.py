"""How the course hangs together: its parts, its core, what needs what, and the book in pieces."""

import ast
from collections.abc import Iterator, Sequence
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
    14: (11,),
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


# What no lesson steps through: how the files of a folder are read and refused, what pairs need
# before lesson 15, and the checks of arguments. ``python -m lessons.appendix`` prints it.
APPENDIX: dict[str, tuple[str, ...]] = {
    "checks": (
        "top",
        "one_line",
        "read_json",
        "check_texts",
        "check_shape",
        "check_integer",
        "check_number",
        "check_one_of",
    ),
    "tokenizer": (
        "cleaned",
        "backend_ids",
        "template",
        "special_tokens",
        "check_limit",
        "check_pairs",
        "Tokenizer.load",
        "Tokenizer.encode_pairs",
        "Tokenizer.tokens",
    ),
    "weights": (
        "BertConfig",
        "canonical",
        "is_skipped",
        "read_config",
        "read_safetensors",
        "read_tensors",
    ),
    "pooling": ("Pooling",),
    "encoder": ("read_modules", "read_pooling", "token_limit", "SentenceEncoder.similarity"),
    "losses": ("check_vectors", "check_candidates"),
    "data": ("padded_tokens", "EncodesTexts"),
}


class Unit(NamedTuple):
    """A piece of a chapter that is read at once: a function, a method, or the chapter's top."""

    name: str  # "attention", "Attention.split", "top"
    first: int  # its lines in the file, the comments above it included
    last: int


def units(chapter: str) -> list[Unit]:
    """A chapter of the book in pieces, in order: each of its lines is in one of them.

    A class with several methods comes method by method; its head belongs to the first.
    """
    text = chapter_file(chapter).read_text(encoding="utf-8")
    lines = text.splitlines()
    found: list[Unit] = []
    for name, start, end in definitions(ast.parse(text)):
        if not found:  # the chapter's docstring and imports
            while lines[start - 2].startswith(("#", "@")):
                start -= 1
            found.append(Unit("top", 1, start - 1))
        found.append(Unit(name, found[-1].last + 1, end))
    if not found:
        return [Unit("top", 1, len(lines))]
    found[-1] = found[-1]._replace(last=len(lines))
    return found


def definitions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """The functions of a file, the methods of its classes, and classes with fewer than two methods.

    By name, with the line where it begins, which for a first method is the class's, and the last.
    """
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
        if isinstance(node, ast.FunctionDef) or len(methods) < 2:
            yield node.name, node.lineno, node.end_lineno or 0
            continue
        for method in methods:
            yield f"{node.name}.{method.name}", node.lineno, method.end_lineno or 0


def chapter_file(chapter: str) -> Path:
    return Path(core.__path__[0], f"{chapter}.py")


def chosen_units(chapter: str, names: Sequence[str]) -> list[Unit]:
    """The units of these names, in the chapter's order; all without a name.

    A class's name stands for its methods. ``ValueError`` for a name that is not there.
    """
    everything = units(chapter)
    if not names:
        return everything
    found = []
    for unit in everything:
        if unit.name in names or unit.name.split(".")[0] in names:
            found.append(unit)
    for name in names:
        if not any(name in (unit.name, unit.name.split(".")[0]) for unit in found):
            raise ValueError(f"core/{chapter}.py has no {name}")
    return found
