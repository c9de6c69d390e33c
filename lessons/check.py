"""The grader: write a piece of the package yourself, and the numbers tell you what is wrong with
it.

    python -m lessons.check start 05        stubs of lesson 05 to lessons/mine/lesson_05.py
    python -m lessons.check run 05          grade them; without a number, the next unsolved lesson
    python -m lessons.check hint 05         one more hint for the next unsolved piece
    python -m lessons.check answer 05 2     a hint for exercise 2; asked again, the answer
    python -m lessons.check quiz 05         five questions about lesson 05
    python -m lessons.check list            your progress
    python -m lessons.check guesses         how many of your predictions were right
    python -m lessons.check mine 05         your model in one file: your pieces, the rest of the book
    python -m lessons.check all --json results.json
    python -m lessons.check grade handed-in/*/ --out results
    python -m lessons.check class results
    python -m lessons.check project FOLDER  your search engine (lesson 18), on hidden queries

Exit codes: 0 everything that was run passed, 1 something did not, 2 the command could not be
carried out.
"""

import argparse
import re
import signal
import sys
from pathlib import Path

from lessons.grader import sandbox
from lessons.grader.classroom import FORMATS, class_table, grade_all, grade_class
from lessons.grader.pieces import (
    CHAPTERS,
    EXERCISES,
    LESSONS,
    MINE,
    PIECES,
    ROOT,
    Piece,
    mine,
    pieces_of,
    stars,
)
from lessons.grader.result import RUNGS, Progress, Result, place
from lessons.grader.stubs import lesson_stubs, source_of
from lessons.predictions import show_guesses
from lessons.quiz import show_quiz
from minisbert.core import InputError
from minisbert.system.console import run_command, say
from minisbert.system.files import atomic_file

RUN = "python -m lessons.check"
SETTINGS = "store = float32, int8 or bits; columns = N; candidates = N, for bits"
NUMBERS = {
    RUNGS[rung] for rung in ("example", "golden", "gradient", "traps")
}  # wrong there, a formula is wrong
BOARD = "leaderboard, a .csv that gets a row (default: lessons/mine/leaderboard.csv)"


def shown(path: Path) -> Path:
    """A path as one would type it, relative to the checkout's root."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


# -------------------------------------------------------------------------------------------- start


def start(lesson: int) -> None:
    """Write the stubs; an existing file is left as it is."""
    path = mine(lesson)
    pieces = pieces_of(lesson)
    if path.exists():
        say(f"{shown(path)} exists and stays as it is; move it away to start over")
    else:
        with atomic_file(path) as partial:
            partial.write_text(lesson_stubs(lesson), encoding="utf-8")
        say(f"wrote {shown(path)}")
    print(f"Lesson {lesson:02}, {LESSONS[lesson]}: {len(pieces)} to write\n")
    for piece in pieces:
        print(
            f"  {piece.master:<40}{stars(piece.level)}  {piece.minutes:>3} min\n      "
            f"{piece.what_for}"
        )
    print(f"\nEdit {shown(path)}, then: {RUN} run {lesson:02}")


# --------------------------------------------------------------------------------------------- run


def run(lesson: int | None) -> bool:
    """Grade a lesson and print each piece's ladder. Returns whether all passed."""
    progress = Progress()
    if lesson is None:
        unsolved = [piece.lesson for piece in PIECES.values() if progress.state(piece) != "passed"]
        if not unsolved:
            say("every piece is solved; checking all of them again")
            return grade_all(None)
        lesson = unsolved[0]
    pieces = pieces_of(lesson)
    if not mine(lesson).is_file():
        raise InputError(f"lesson {lesson:02} is not started: {RUN} start {lesson:02}")
    # importing torch alone takes seconds
    say(f"grading {len(pieces)} piece{'s' * (len(pieces) > 1)} of lesson {lesson:02} ...")
    results = sandbox.grade(lesson)
    progress.remember(results)
    print(f"Lesson {lesson:02}, {LESSONS[lesson]}")
    for piece, result in zip(pieces, results, strict=True):
        print_ladder(piece, result)
    left = [piece for piece, result in zip(pieces, results, strict=True) if not result.passed]
    print(f"\n{len(pieces) - len(left)} of {len(pieces)} passed.", end=" ")
    print(
        f"Next: {left[0].master}. A hint: {RUN} hint {lesson:02}"
        if left
        else "The lesson is solved."
    )
    return not left


def print_ladder(piece: Piece, result: Result) -> None:
    """One line per rung, up to the first that failed, and the known mistakes that explain it."""
    where = f"line {result.line}" if result.line else ""
    print(f"\n{piece.master:<40}{stars(piece.level)}  {result.status:<12}{where}")
    if result.status == "unwritten":
        return
    for title, holds, seen in result.rungs:
        failed = "open" if result.passed else "FAIL"  # a piece that passed lacks only its bonus
        print(
            f"  {'ok  ' if holds else failed}  "
            f"{title}{': ' if seen and not holds else ''}{'' if holds else seen}"
        )
    if result.mistakes:
        print_mistakes(piece, result)
    elif result.status == "failed" and result.rungs[-1][0] in NUMBERS:
        print(f"        Read again: {place(piece)}")


def print_mistakes(piece: Piece, result: Result) -> None:
    """The mistakes that give these numbers, and where the lesson has the formula."""
    named = zip(result.meanings, result.mistakes, strict=True)
    meanings = ", or when ".join(f'{meaning} ("{name}")' for meaning, name in named)
    print(f"        These are exactly the numbers you get when {meanings}.")
    if result.unexplained:
        print(
            f"        Something else is wrong as well: {result.unexplained} fails in another way."
        )
    print(f"        Read again: {place(piece, result.mistakes[0])}")


def hint(lesson: int, name: str | None) -> None:
    """The hints for a piece up to the next new one; the first is the one that fits what failed in
    the last run.
    """
    progress = Progress()
    pieces = pieces_of(lesson)
    unsolved = [piece for piece in pieces if progress.state(piece) != "passed"] or pieces
    chosen = (
        [piece for piece in pieces if f".{piece.master}".endswith(f".{name}")] if name else unsolved
    )
    if not chosen:
        raise InputError(
            f"lesson {lesson:02} has no piece {name}: {', '.join(piece.master for piece in pieces)}"
        )
    if name and len(chosen) > 1:
        which = ", ".join(".".join(piece.path) for piece in chosen)
        raise InputError(
            f"lesson {lesson:02} has {len(chosen)} pieces called {name}: which of {which}?"
        )
    piece = chosen[0]
    count = min(progress.hints.get(piece.master, 0) + 1, len(piece.hints))
    progress.hints[piece.master] = count
    progress.save()
    print(f"{piece.master}, {count} of {len(piece.hints)} hints")
    failed = progress.results.get(piece.master, {}).get("seen", "")
    first = next(
        (i for i, pattern in enumerate(piece.fits) if pattern and re.search(pattern, failed)), 0
    )
    hints = [piece.hints[first], *piece.hints[:first], *piece.hints[first + 1 :]]
    for number, text in enumerate(hints[:count], start=1):
        print(f"  {number}. {text}")
    if count == len(piece.hints):
        line = source_of(piece.source).find(piece.path).lineno
        print(f"That was the last one. The master copy: {shown(piece.source)}, line {line}")


def answer(lesson: int, number: int) -> None:
    """The hint for an exercise; with its answer if the hint was shown before."""
    found = {
        name: exercise for name, exercise in EXERCISES.items() if name.startswith(f"{lesson:02}.")
    }
    name = f"{lesson:02}.{number}"
    if name not in found:
        numbers = ", ".join(name.partition(".")[2] for name in found)
        raise InputError(
            f"lesson {lesson:02} has answers to the exercises {numbers}; {RUN} run grades the "
            f"others"
        )
    progress, exercise = Progress(), found[name]
    print(f"{name}  {stars(exercise['hard'])} hard  {stars(exercise['matters'])} important")
    print(f"\nHint: {exercise['hint']}")
    if progress.hints.get(name):
        print(f"\nAnswer: {exercise['answer']}")
    else:
        print(f"\nThe same command again shows the answer: {RUN} answer {lesson:02} {number}")
    progress.hints[name] = 1
    progress.save()


# -------------------------------------------------------------------------------------------- list


def show_progress() -> None:
    progress = Progress()
    passed = 0
    for lesson, title in LESSONS.items():
        pieces = [piece for piece in PIECES.values() if piece.lesson == lesson]
        print(f"{lesson:02}  {title}" + (f": {RUN} mine 14" if lesson == 14 else ""))
        for piece in pieces:
            state, hints = progress.state(piece), progress.hints.get(piece.master, 0)
            passed += state == "passed"
            told = f"{hints} of {len(piece.hints)} hints" if hints else ""
            print(
                f"    {piece.master:<40}{stars(piece.level)}  {piece.minutes:>3} min  "
                f"{state:<22}{told}".rstrip()
            )
    print(f"\n{passed} of {len(PIECES)} passed")


# ----------------------------------------------------------------------------------------- the
# command


def lesson_number(text: str) -> int:
    if not text.isdigit() or int(text) not in LESSONS:
        raise argparse.ArgumentTypeError(
            f"lessons are numbered {min(LESSONS):02} to {max(LESSONS)}, not {text!r}"
        )
    return int(text)


def number_or_sentence(text: str) -> int | str:
    return lesson_number(text) if text.isdigit() else text


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog=RUN,
        description="Rebuild the package piece by piece, graded by numbers.",
        epilog=f"Begin with: {RUN} start 01\nFor teachers: lessons/TEACHING.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    number = {"type": lesson_number, "metavar": "NN", "help": "the lesson's number"}
    commands.add_parser("start", help="write the stubs of a lesson to lessons/mine/").add_argument(
        "lesson", **number
    )
    running = commands.add_parser("run", help="grade a lesson, or the next unsolved one")
    running.add_argument("lesson", nargs="?", **number)
    hinting = commands.add_parser(
        "hint", help="one more hint for the next unsolved piece of a lesson"
    )
    hinting.add_argument("lesson", **number)
    hinting.add_argument(
        "piece", nargs="?", metavar="PIECE", help="for this piece, by the end of its name"
    )
    answering = commands.add_parser(
        "answer", help="a hint for an exercise; asked again, its answer"
    )
    answering.add_argument("lesson", **number)
    answering.add_argument("exercise", type=int, metavar="N", help="the exercise's number")
    commands.add_parser("quiz", help="five questions about a lesson").add_argument(
        "lesson", **number
    )
    commands.add_parser("list", help="every piece and its status")
    commands.add_parser("guesses", help="how many of your predictions were right")
    everything = commands.add_parser("all", help="grade every lesson")
    everything.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results there, and no progress"
    )
    everything.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="of that file (default: %(default)s)"
    )
    students = commands.add_parser("grade", help="grade the folders of many students")
    students.add_argument(
        "folders", type=Path, nargs="+", metavar="FOLDER", help="with a student's lesson_*.py"
    )
    students.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="for a NAME.json per student"
    )
    students.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="of these files (default: %(default)s)",
    )
    students.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="students at a time (default: 1)"
    )
    students.add_argument(
        "--limit", type=float, default=600, metavar="S", help="seconds per student (default: 600)"
    )
    table = commands.add_parser("class", help="a table of the results of many students")
    table.add_argument(
        "folder", type=Path, metavar="FOLDER", help="with the files that all --json wrote"
    )
    project = commands.add_parser(
        "project",
        help="grade a search engine (lesson 18) on queries of held-out modules, and add it to a "
        "leaderboard",
        description=f"Grade a search engine (lesson 18). FOLDER holds a model and perhaps a "
        f"search.toml: {SETTINGS}.",
    )
    project.add_argument(
        "folder", type=Path, metavar="FOLDER", help="with the model, in it or in FOLDER/model"
    )
    project.add_argument("--name", default="", help="on the leaderboard (default: the folder's)")
    project.add_argument(
        "--board", type=Path, default=MINE / "leaderboard.csv", metavar="FILE", help=BOARD
    )
    project.add_argument(
        "--secret",
        default="",
        metavar="TEXT",
        help="ask a random half of the queries, chosen by it",
    )
    project.add_argument(
        "--source", type=Path, metavar="DIR", help="search in the docstrings of this Python source"
    )
    model = commands.add_parser(
        "mine", help="your model: write your pieces and the book's rest to one file, run it"
    )
    model.add_argument("lesson", nargs="?", **number | {"type": number_or_sentence})
    model.add_argument(
        "sentences", nargs="*", metavar="SENTENCE", help="for lessons 01, 05 and 08; - reads stdin"
    )
    about = f"only compare the file with the book, or a chapter of it: {', '.join(CHAPTERS)}"
    model.add_argument(
        "--diff", nargs="?", const="all", choices=["all", *CHAPTERS], metavar="CHAPTER", help=about
    )
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    # an exception, so that the code that ends the grader's processes runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.command not in ("all", "class", "grade"):
        MINE.mkdir(parents=True, exist_ok=True)
    good = True
    if options.command == "start":
        start(options.lesson)
    elif options.command == "run":
        good = run(options.lesson)
    elif options.command == "hint":
        hint(options.lesson, options.piece)
    elif options.command == "answer":
        answer(options.lesson, options.exercise)
    elif options.command == "quiz":
        show_quiz(options.lesson)
    elif options.command == "list":
        show_progress()
    elif options.command == "guesses":
        show_guesses()
    elif options.command == "all":
        if options.format != FORMATS[0] and not options.json:
            raise InputError(f"--format {options.format} needs --json FILE")
        good = grade_all(options.json, options.format)
    elif options.command == "grade":
        good = grade_class(
            options.folders, options.out, options.format, options.jobs, options.limit
        )
    elif options.command == "class":
        class_table(options.folder)
    elif options.command == "project":
        from lessons.grader.project import grade_project

        grade_project(options.folder, options.board, options.name, options.secret, options.source)
    elif options.command == "mine":
        from lessons.grader.your_model import your_model

        if isinstance(options.lesson, str):  # no number: a sentence, for lesson 01
            options.lesson, options.sentences = 1, [options.lesson, *options.sentences]
        if options.sentences == ["-"]:
            options.sentences = [line.strip() for line in sys.stdin if line.strip()]
        good = your_model(options.lesson, options.sentences, options.diff)
    if not good:
        sys.stdout.flush()  # so that a closed pipe is still reported
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
