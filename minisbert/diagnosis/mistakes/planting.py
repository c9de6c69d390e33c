"""Plant a known mistake in the running package, and remove it again.

A mistake replaces one function or method, its ``target``, with a stand-in that takes the same arguments. The modules
of ``diagnosis/mistakes`` and ``lessons/mistakes`` fill the table ``MISTAKES``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
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


def mistake(owner: Any, attribute: str, name: str, meaning: str) -> Callable[[Callable], Callable]:
    """Decorator: enter a stand-in for ``owner.attribute`` into ``MISTAKES``."""

    def enter(stand_in: Callable) -> Callable:
        assert name not in MISTAKES, f"two mistakes are called {name!r}"
        MISTAKES[name] = Mistake(name, meaning, owner, attribute, stand_in)
        return stand_in

    return enter


def wrong_choices(owner: Any, attribute: str, right: Callable, *rows: tuple[str, str, dict[str, Any]]) -> None:
    """Enter a mistake for each row, name, meaning and keyword arguments: ``right`` called with these arguments."""
    for name, meaning, choices in rows:
        mistake(owner, attribute, name, meaning)(with_choices(right, choices))


def with_choices(function: Callable, choices: dict[str, Any]) -> Callable:
    """``functools.partial`` for keyword arguments, as a function: a class binds it as a method."""

    @wraps(function)
    def stand_in(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named, **choices)

    return stand_in


@contextmanager
def planted(chosen: Mistake) -> Iterator[None]:
    """Inside this context the package computes with the mistake."""
    with replaced(getattr(chosen.owner, chosen.attribute), chosen.stand_in, chosen.owner, chosen.attribute):
        yield


def with_each_mistake(compute: Callable[[], Any]) -> Iterator[tuple[Mistake, Any]]:
    """What ``compute`` gives with each mistake of this folder planted, unless the mistake breaks the code."""
    for chosen in [one for one in MISTAKES.values() if one.stand_in.__module__.startswith(__package__)]:
        try:
            with written_out(), planted(chosen):  # PyTorch's own operations contain what it replaces
                result = compute()
        except Exception:  # of any kind; then the mistake does not explain the numbers in question
            continue
        yield chosen, result


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
    """Put ``stand_in`` wherever the package holds ``original``: its home, modules that imported it, tables.

    Modules of this folder keep the original: a stand-in may call what it replaces.
    """
    places = places_of(original)
    if not isinstance(owner, type):
        places.append((vars(owner), attribute))
    try:
        for holder, key in places:
            holder[key] = stand_in
        with attribute_of_class(owner, attribute, stand_in):
            yield
    finally:
        for holder, key in places:
            holder[key] = original


def places_of(original: Callable) -> list[tuple[dict, Any]]:
    """The modules of the package, and the dictionaries in them, that hold a function: each with its key."""
    holders = []
    for name, module in sys.modules.items():
        if name.startswith("minisbert.") and not name.startswith("minisbert.diagnosis"):
            holders.append(vars(module))
            holders += [value for value in vars(module).values() if isinstance(value, dict)]
    return [(holder, key) for holder in holders for key, value in holder.items() if value is original]


@contextmanager
def attribute_of_class(owner: Any, attribute: str, value: Callable) -> Iterator[None]:
    """Inside this context the class ``owner`` has the attribute; of anything but a class nothing changes."""
    if not isinstance(owner, type):
        yield
        return
    inherited = attribute not in vars(owner)
    before = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)
