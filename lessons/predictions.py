"""Guesses: a lesson asks for one before it shows the answer, and keeps it.

In a terminal and in a notebook ``predict`` asks; where nobody can answer (a test, the site) it
shows the choices. The first guess at a question counts. ``python -m lessons.check guesses`` adds
them up.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lessons.grader.pieces import MINE
from minisbert.core import read_json
from minisbert.system.files import atomic_file, write_json

FILE = MINE / "guesses.json"  # number -> guess, whether it was sure and right, number of choices


@dataclass
class Guess:
    """One question. ``given`` is the guess or None; ``sure`` whether it had an exclamation mark."""

    number: str
    choices: Sequence[str]
    given: str | None = None
    sure: bool = False

    def answer(self, right: str) -> None:
        """Print the answer beside the guess, and keep the guess if it is the first.

        ``right`` is one of the choices.
        """
        if right not in self.choices:
            raise ValueError(f"{right!r} is not one of the choices of {self.number}")
        if self.given is None:
            print(f"{self.number}  {right}")
            return
        is_right = self.given == right
        if is_right:
            print(f"{self.number}  {right}, as you said")
        else:
            print(f"{self.number}  {right}; you said: {self.given}")
        one = {"guess": self.given, "sure": self.sure, "right": is_right}
        one["choices"] = len(self.choices)
        FILE.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(FILE) as partial:
            write_json(partial, {self.number: one} | kept())  # the first guess counts


def kept() -> dict[str, Any]:
    return read_json(FILE) if FILE.exists() else {}


def shuffled(number: str, count: int) -> list[int]:
    """The places of a question's choices in an order that depends on its number alone.

    An author has habits.
    """
    return random.Random(number).sample(range(count), count)


def predict(number: str, question: str, choices: Sequence[str]) -> Guess:
    """Show a question and ask for a guess unless there was one: ``2``, or ``2!`` if sure.

    The choices are shown in another order than that of the lesson's source, the same every time.
    """
    choices = [choices[i] for i in shuffled(number, len(choices))]
    lines = [f"{number}  {question}"]
    lines += [f"      {i}  {choice}" for i, choice in enumerate(choices, start=1)]
    print("\n".join(lines))
    if number in kept():
        print(f"      your first guess: {kept()[number]['guess']}")
    count = len(choices)
    reply = ask(f"Your guess, 1 to {count} (2! if you are sure, Enter to skip): ", count)
    if reply is None:
        return Guess(number, choices)
    choice, sure = reply
    return Guess(number, choices, choices[choice - 1], sure)


def ask(question: str, count: int) -> tuple[int, bool] | None:
    """The number of a choice, and whether the guess is sure; None if there is no answer."""
    if "ipykernel" not in sys.modules and not (sys.stdin and sys.stdin.isatty()):
        return None
    try:
        while reply := input(question).strip():
            digits = reply.removesuffix("!")
            if digits.isdecimal() and 1 <= int(digits) <= count:
                return int(digits), reply.endswith("!")
            print(f"A number from 1 to {count}, please.")
    except (EOFError, NotImplementedError):  # a notebook that is run without a front end cannot ask
        pass
    return None


def show_share(name: str, guesses: list[dict[str, Any]]) -> None:
    if not guesses:
        return
    count = len(guesses)
    right = sum(guess["right"] for guess in guesses)
    chance = sum(1 / guess["choices"] for guess in guesses)
    shares = f"{right / count:.0%}; by chance {chance / count:.0%}"
    print(f"{name:9} {right} of {count} right ({shares})")


def show_guesses() -> None:
    """How many guesses were right: of the sure ones, and of all others beside chance."""
    found = list(kept().values())
    if not found:
        print("No guesses yet: the lessons ask for them under 'Predict, then run'.")
        return
    show_share("sure", [guess for guess in found if guess["sure"]])
    show_share("not sure", [guess for guess in found if not guess["sure"]])
    print("Whoever is well calibrated is nearly always right when sure, and beats chance when not.")
