"""Plant a known mistake in the running package, and remove it again.

A mistake replaces one function or method, its ``target``, with a stand-in that takes the same
arguments. The other files of this folder fill the table ``MISTAKES``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """A wrong function or method, and the right one's place."""

    name: str  # short, for tables: "no attention mask"
    meaning: str  # what is wrong, as a clause: "pads take part in attention"
    owner: Any  # the module or class that holds the piece
    attribute: str  # the piece's name there
    stand_in: Callable

    @property
    def target(self) -> str:
        """The piece that it replaces: ``bert.attention``, ``bert.Layer.forward``."""
        if isinstance(self.owner, type):
            module = self.owner.__module__.rpartition(".")[2]
            return f"{module}.{self.owner.__name__}.{self.attribute}"
        module = self.owner.__name__.rpartition(".")[2]
        return f"{module}.{self.attribute}"


MISTAKES: dict[str, Mistake] = {}


def mistake(owner: Any, attribute: str, name: str, meaning: str) -> Callable[[Callable], Callable]:
    """Decorator: enter a stand-in for ``owner.attribute`` into ``MISTAKES``."""

    def enter(stand_in: Callable) -> Callable:
        assert name not in MISTAKES, f"two mistakes are called {name!r}"
        MISTAKES[name] = Mistake(name, meaning, owner, attribute, stand_in)
        return stand_in

    return enter


def wrong_choices(
    owner: Any, attribute: str, right: Callable, *rows: tuple[str, str, dict[str, Any]]
) -> None:
    """Enter a mistake for each row: name, meaning, and keyword arguments for ``right``."""

    def with_choices(choices: dict[str, Any]) -> Callable:
        # subtle: a function, not functools.partial, which a class would not bind as a method
        @wraps(right)
        def stand_in(*arguments: Any, **named: Any) -> Any:
            return right(*arguments, **named, **choices)

        return stand_in

    for name, meaning, choices in rows:
        mistake(owner, attribute, name, meaning)(with_choices(choices))


@contextmanager
def planted(chosen: Mistake) -> Iterator[None]:
    """Within this context the package computes with the mistake."""
    original = getattr(chosen.owner, chosen.attribute)
    with replaced(original, chosen.stand_in, chosen.owner, chosen.attribute):
        yield


@contextmanager
def replaced(original: Callable, stand_in: Callable, owner: Any, attribute: str) -> Iterator[None]:
    """Within this context the package calls ``stand_in`` wherever it refers to ``original``.

    A method has one reference, its class. A function has its module, the modules that imported it,
    and tables.
    """
    with ExitStack() as undo:
        if isinstance(owner, type):
            if attribute in vars(owner):
                undo.callback(setattr, owner, attribute, vars(owner)[attribute])
            else:  # it was inherited: a copy here would hide later changes of the parent
                undo.callback(delattr, owner, attribute)
            setattr(owner, attribute, stand_in)
        else:
            for holder, key in [(vars(owner), attribute), *references(original)]:
                undo.callback(holder.__setitem__, key, original)
                holder[key] = stand_in
        yield


def references(original: Callable) -> list[tuple[dict, Any]]:
    """List where the package or lessons/by_hand holds a function, as dictionary and key.

    The dictionary is a table, or the variables of a module.
    """
    holders: list[dict] = []
    for name, module in sys.modules.items():
        # not those of lessons.mistakes: a stand-in may call what it replaces
        if name.startswith(("minisbert.", "lessons.by_hand.")):
            variables = vars(module)
            holders.append(variables)
            holders += [value for value in variables.values() if isinstance(value, dict)]

    found = []
    for holder in holders:
        for key, value in holder.items():
            if value is original:
                found.append((holder, key))
    return found
