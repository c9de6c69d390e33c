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
        others = ", ".join(f"{number:02}" for number in found)
        raise InputError(f"lesson {lesson:02} has no quiz; these have one: {others}")
    replies = {}
    for question in found[lesson]:
        print(f"\n{question.at}  {question.ask}")
        for number, choice in enumerate(question.choices, start=1):
            print(f"      {number}  {choice}")
        reply = ask(f"1 to {len(question.choices)} (Enter to skip): ", len(question.choices))
        if reply is None:
            replies[question] = None
            continue
        choice, _ = reply
        replies[question] = choice
        if choice == question.right:
            print(f"Right: {question.why[choice - 1]}")
        else:
            print(f"No: {question.why[choice - 1]}")
            print(f"Right is {question.right}: {question.why[question.right - 1]}")
    if all(reply is None for reply in replies.values()):
        print("\nNobody answered.", end=" ")
        print("In a terminal the quiz asks for the number of a choice after each question.")
        return
    wrong = [question for question, choice in replies.items() if choice != question.right]
    print(f"\n{len(replies) - len(wrong)} of {len(replies)} right.", end=" ")
    if wrong:
        again = dict.fromkeys(question.read for question in wrong)
        print(f"Read: {', '.join(again)}.")
    else:
        print("Go on to the next lesson.")
