"""Mistakes that are a call with a wrong argument."""

import inspect
from collections.abc import Callable
from typing import Any

from lessons.mistakes.planting import mistake


def calls(owner: Any, attribute: str, formula: Callable | None = None) -> Callable[..., None]:
    """Return ``enter(name, meaning, **changes)``, which enters a mistake into ``MISTAKES``.

    The mistake calls the right function with changes. A change is a value, or a function of the
    right argument: ``scale=lambda scale: 1 / scale``. A ``formula`` is called instead if there is
    one: beside the right function's arguments it takes wrong choices, by default the right ones.
    """
    right = getattr(owner, attribute)  # kept from before anything is planted
    parameters = inspect.signature(right).parameters

    def enter(name: str, meaning: str, **changes: Any) -> None:
        of_the_call = {key: value for key, value in changes.items() if key in parameters}
        choices = {key: value for key, value in changes.items() if key not in parameters}

        def stand_in(*arguments: Any, **named: Any) -> Any:
            call = inspect.signature(right).bind(*arguments, **named)
            for key, change in of_the_call.items():
                if callable(change):
                    change = change(call.arguments.get(key, parameters[key].default))
                call.arguments[key] = change
            return (formula or right)(*call.args, **call.kwargs, **choices)

        mistake(owner, attribute, name, meaning)(stand_in)

    return enter
