"""Answers as learners write them: ``answers.toml``, put into the lesson's stubs and graded."""

import textwrap
import tomllib

from lessons.grader import sandbox
from lessons.grader.pieces import PIECES, mine
from lessons.grader.result import Result
from lessons.grader.stubs import lesson_stubs
from tests.conftest import ROOT

ANSWERS = tomllib.loads((ROOT / "tests" / "lessons" / "answers.toml").read_text(encoding="utf-8"))
FIRST = {
    answer["piece"]: answer["body"] for answer in reversed(ANSWERS["right"]) if "body" in answer
}


def filled(stubs: str, master: str, body: str, more: str = "") -> str:
    """The stubs with this body in the place of the piece's error, and ``more`` after it."""
    written = textwrap.indent(body.strip(), "    " * len(PIECES[master].path)).lstrip()
    return stubs.replace(f'raise NotImplementedError("{master}")', written + more)


def graded(master: str, body: str, top: str = "", before: str = "", beside: str = "") -> Result:
    """A piece with this body: ``top`` begins the file, ``before`` precedes its def, ``beside``
    follows its body.
    """
    piece = PIECES[master]
    outer = "    " * (len(piece.path) - 1)
    text = lesson_stubs(piece.lesson)
    if before:
        definition = f"{outer}def {piece.path[-1]}("
        text = text.replace(definition, f"{outer}{before}\n{definition}", 1)
    more = f"\n\n{textwrap.indent(beside, outer)}" if beside else ""
    mine(piece.lesson).write_text(top + filled(text, master, body, more), encoding="utf-8")
    messages: list[dict] = []
    sandbox.grade_here(piece.lesson, [master], lambda **message: messages.append(message))
    return Result(**messages[-1]["result"])


def result_of(answer: dict) -> Result:
    """Grade an answer of the table: its own body, or the changes of the first right one."""
    body = answer.get("body") or FIRST[answer["piece"]]
    for old, new in answer.get("change", []):
        assert old in body
        body = body.replace(old, new)
    around = {key: answer[key] for key in ("top", "before", "beside") if key in answer}
    return graded(answer["piece"], body, **around)
