"""Mistakes that are a call with a wrong argument."""

import inspect
from collections.abc import Callable
from typing import Any

from lessons.mistakes.planting import mistake


def calls(owner: Any, attribute: str, formula: Callable | None = None) -> Callable[..., None]:
    """Return ``enter(name, meaning, **changes)``: it enters a mistake that calls the right function
    with changes.

    A change is a value, or a function of the right argument: ``scale=lambda scale: 1 / scale``. A
    ``formula`` is called instead if there is one: beside the right function's arguments it takes
    wrong choices, by default the right ones.
    """
    right = getattr(owner, attribute)  # kept from before anything is planted
    signature, formula = inspect.signature(right), formula or right

    def enter(name: str, meaning: str, **changes: Any) -> None:
        choices = {key: value for key, value in changes.items() if key not in signature.parameters}

        def stand_in(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named)
            for key in changes.keys() - choices:
                change, old = (
                    changes[key],
                    given.arguments.get(key, signature.parameters[key].default),
                )
                given.arguments[key] = change(old) if callable(change) else change
            return formula(*given.args, **given.kwargs, **choices)

        mistake(owner, attribute, name, meaning)(stand_in)

    return enter
