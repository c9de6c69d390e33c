"""Plant a known mistake in the running package, and remove it again.

A mistake replaces one function or method, its ``target``, with a stand-in that takes the same arguments. The modules
listed in ``diagnosis/mistakes`` and ``lessons/mistakes`` fill the table ``MISTAKES``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minisbert.core import bert


@dataclass(frozen=True)
class Mistake:
    name: str  # short, for tables: "no attention mask"
    meaning: str  # what is wrong, as a clause: "pads take part in attention"
    owner: Any  # the module or class that holds the piece
    attribute: str  # the piece's name there
    stand_in: Callable

    @property
    def target(self) -> str:
        """The piece that it replaces: ``bert.attention``, ``bert.Layer.forward``."""
        if isinstance(self.owner, type):
            return f"{self.owner.__module__.rpartition('.')[2]}.{self.owner.__name__}.{self.attribute}"
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.attribute}"


MISTAKES: dict[str, Mistake] = {}


def forward_mistakes() -> list[Mistake]:
    """The mistakes that ``trace`` and ``certify`` look for: those of this folder, without the lessons' other ones."""
    return [one for one in MISTAKES.values() if one.stand_in.__module__.startswith(__package__)]


def mistake(owner: Any, attribute: str, name: str, meaning: str) -> Callable[[Callable], Callable]:
    """Decorator: enter a stand-in for ``owner.attribute`` into ``MISTAKES``."""

    def enter(stand_in: Callable) -> Callable:
        assert name not in MISTAKES, f"two mistakes are called {name!r}"
        MISTAKES[name] = Mistake(name, meaning, owner, attribute, stand_in)
        return stand_in

    return enter


@contextmanager
def planted(chosen: Mistake) -> Iterator[None]:
    """Inside this context the package computes with the mistake."""
    with replaced(getattr(chosen.owner, chosen.attribute), chosen.stand_in, chosen.owner, chosen.attribute):
        yield


@contextmanager
def written_out() -> Iterator[None]:
    """Inside this context the encoder's three formulas are computed as the book writes them out (``bert.FUSED``)."""
    before, bert.FUSED = bert.FUSED, False
    try:
        yield
    finally:
        bert.FUSED = before


@contextmanager
def replaced(original: Callable, stand_in: Callable, owner: Any, attribute: str) -> Iterator[None]:
    """Put ``stand_in`` wherever the package holds ``original``: its home, modules that imported it, tables."""
    modules = [*_package(), *([] if isinstance(owner, type) else [owner])]
    places = [(vars(module), key) for module in modules for key, value in vars(module).items() if value is original]
    tables = [table for module in _package() for table in vars(module).values() if isinstance(table, dict)]
    places += [(table, key) for table in tables for key, value in table.items() if value is original]
    inherited = isinstance(owner, type) and attribute not in vars(owner)
    try:
        if isinstance(owner, type):
            setattr(owner, attribute, stand_in)
        for table, key in places:
            table[key] = stand_in
        yield
    finally:
        if inherited:
            delattr(owner, attribute)
        elif isinstance(owner, type):
            setattr(owner, attribute, original)
        for table, key in places:
            table[key] = original


def _package() -> list[Any]:
    """The package's loaded modules, without those of mistakes: a stand-in may call what it replaces."""
    loaded = [(name, module) for name, module in sys.modules.items() if name.startswith("minisbert.") and module]
    return [module for name, module in loaded if not name.startswith("minisbert.diagnosis")]
