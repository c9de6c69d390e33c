"""Five questions a lesson, asked in the terminal; nothing is kept.

They are in ``grader/quiz.toml``, with a reason for each choice.
"""

import tomllib
from dataclasses import dataclass

from lessons.grader.pieces import ROOT
from lessons.predictions import ask, shuffled
from minisbert.core import InputError


@dataclass(frozen=True)
class Question:
    at: str  # lesson and number: "05.2"
    read: str  # the lesson's section that has the answer
    ask: str
    choices: tuple[str, ...]
    right: int  # counted from 1
    why: tuple[str, ...]  # for each choice, why it is right or wrong


def questions() -> dict[int, list[Question]]:
    """The questions of each lesson that has a quiz, their choices in a drawn order."""
    text = (ROOT / "lessons" / "grader" / "quiz.toml").read_text(encoding="utf-8")
    found: dict[int, list[Question]] = {}
    for entry in tomllib.loads(text)["questions"]:
        order = shuffled(entry["at"], len(entry["choices"]))
        entry["right"] = order.index(entry["right"] - 1) + 1
        for key in ("choices", "why"):
            entry[key] = tuple(entry[key][i] for i in order)
        question = Question(**entry)
        found.setdefault(int(question.at[:2]), []).append(question)
    return found


def show_quiz(lesson: int) -> None:
    """Ask the lesson's questions; where nobody can answer, show them."""
    found = questions()
    if lesson not in found:
        raise InputError(
            f"lesson {lesson:02} has no quiz; these have one: {', '.join(f'{n:02}' for n in found)}"
        )
    replies = {}
    for question in found[lesson]:
        print(f"\n{question.at}  {question.ask}")
        print(
            *(
                f"      {number}  {choice}"
                for number, choice in enumerate(question.choices, start=1)
            ),
            sep="\n",
        )
        reply = ask(f"1 to {len(question.choices)} (Enter to skip): ", len(question.choices))
        replies[question] = reply and reply[0]
        if reply:
            print(
                f"{'Right' if reply[0] == question.right else 'No'}: {question.why[reply[0] - 1]}"
            )
            if reply[0] != question.right:
                print(f"Right is {question.right}: {question.why[question.right - 1]}")
    if all(reply is None for reply in replies.values()):
        print(
            "\nNobody answered. In a terminal the quiz asks for the number of a choice after each "
            "question."
        )
        return
    good = sum(reply == question.right for question, reply in replies.items())
    print(f"\n{good} of {len(replies)} right.", end=" ")
    again = dict.fromkeys(
        question.read for question, reply in replies.items() if reply != question.right
    )
    print(f"Read: {', '.join(again)}." if again else "Go on to the next lesson.")
