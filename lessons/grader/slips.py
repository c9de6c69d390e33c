"""What learners often write: more known mistakes, as bodies of pieces (``slips.toml``).

``lessons/mistakes`` has the mistakes that lessons plant into the running model and whose effect
their pages discuss. These here are for the grader alone, which names them by their numbers.
"""

import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from lessons.grader.pieces import PIECES, Piece
from lessons.grader.stubs import own_class_cells, stub
from lessons.mistakes import MISTAKES
from lessons.mistakes.planting import Mistake

FILE = Path(__file__).parent / "slips.toml"


def _read() -> dict[str, Mistake]:
    slips = {}
    for entry in tomllib.loads(FILE.read_text(encoding="utf-8"))["slip"]:
        name = entry["name"]
        assert name not in slips | MISTAKES, f"two mistakes are called {name!r}"
        piece = PIECES[entry["piece"]]
        function = written(piece, entry["body"])
        slips[name] = Mistake(name, entry["meaning"], piece.owner, piece.path[-1], function)
    return slips


def written(piece: Piece, body: str) -> Any:
    """The piece with this body, in a copy of its module's names."""
    text = stub(piece).replace(
        f'raise NotImplementedError("{piece.master}")',
        textwrap.indent(body.strip(), "    ").strip(),
    )
    space = dict(vars(piece.original_module))
    if len(piece.path) == 1:
        exec(compile(text, f"<{piece.master} in {FILE.name}>", "exec"), space)
        return space[piece.path[0]]
    # In a class, for its ``super()``, which is that of the package's class.
    text = "class Written:\n" + textwrap.indent(text, "    ")
    exec(compile(text, f"<{piece.master} in {FILE.name}>", "exec"), space)
    for cell in own_class_cells(space["Written"]):
        cell.cell_contents = piece.owner
    return vars(space["Written"])[piece.path[1]]


@cache
def known_mistakes() -> dict[str, Mistake]:
    """All that the grader can name: those of the lessons' tables, and the slips."""
    return MISTAKES | _read()
