"""The grader: write a piece of the package yourself; the numbers tell you what is wrong with it.

    python -m lessons.check start 05        stubs of lesson 05 to lessons/mine/lesson_05.py
    python -m lessons.check run 05          grade them; without a number, the next unsolved lesson
    python -m lessons.check hint 05         one more hint for the next unsolved piece
    python -m lessons.check answer 05 2     a hint for exercise 2; asked again, the answer
    python -m lessons.check quiz 05         five questions about lesson 05
    python -m lessons.check list            your progress
    python -m lessons.check guesses         how many of your predictions were right
    python -m lessons.check mine 05         your model in one file, the rest from the book
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
from lessons.hours import hours
from lessons.predictions import show_guesses
from lessons.quiz import show_quiz
from minisbert.core import InputError
from minisbert.system.console import run_command, say
from minisbert.system.files import atomic_file

RUN = "python -m lessons.check"
SETTINGS = "store = float32, int8 or bits; columns = N; candidates = N, for bits"
# A piece that fails on one of these rungs computes a wrong formula.
NUMBERS = {RUNGS[rung] for rung in ("example", "golden", "gradient", "traps")}
TEACHERS = ("all", "grade", "class", "project")
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
        print(f"  {piece.master:<40}{stars(piece.level)}  {piece.minutes:>3} min")
        print(f"      {piece.what_for}")
    cards = sum(piece.minutes for piece in pieces)
    page = hours()[lesson].pieces
    print(f"\n{cards} minutes for somebody who writes such functions every day; the lesson's page")
    print(f"allows {page}, for a student who knows torch.")
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
    # Importing torch alone takes seconds, so say first what happens.
    noun = "piece" if len(pieces) == 1 else "pieces"
    say(f"grading {len(pieces)} {noun} of lesson {lesson:02} ...")
    results = sandbox.grade(lesson)
    progress.remember(results)
    print(f"Lesson {lesson:02}, {LESSONS[lesson]}")
    for piece, result in zip(pieces, results, strict=True):
        print_ladder(piece, result)
    left = [piece for piece, result in zip(pieces, results, strict=True) if not result.passed]
    print(f"\n{len(pieces) - len(left)} of {len(pieces)} passed.", end=" ")
    if left:
        print(f"Next: {left[0].master}. A hint: {RUN} hint {lesson:02}")
    else:
        print("The lesson is solved.")
    return not left


def print_ladder(piece: Piece, result: Result) -> None:
    """One line per rung, up to the first that failed, and the known mistakes that explain it."""
    where = f"line {result.line}" if result.line else ""
    print(f"\n{piece.master:<40}{stars(piece.level)}  {result.status:<12}{where}")
    if result.status == "unwritten":
        return
    failed = "open" if result.passed else "FAIL"  # a piece that passed lacks only its bonus
    for title, holds, seen in result.rungs:
        if holds:
            print(f"  ok    {title}")
        elif seen:
            print(f"  {failed}  {title}: {seen}")
        else:
            print(f"  {failed}  {title}")
    if result.mistakes:
        print_mistakes(piece, result)
    elif result.status == "failed" and result.rungs[-1][0] in NUMBERS:
        print(f"        Read again: {place(piece, seen=result.rungs[-1][2])}")


def print_mistakes(piece: Piece, result: Result) -> None:
    """The mistakes that give these numbers, and where the lesson has the formula."""
    named = zip(result.meanings, result.mistakes, strict=True)
    meanings = ", or when ".join(f'{meaning} ("{name}")' for meaning, name in named)
    print(f"        These are exactly the numbers you get when {meanings}.")
    if result.unexplained:
        other = result.unexplained
        print(f"        Something else is wrong as well: {other} fails in another way.")
    print(f"        Read again: {place(piece, result.mistakes[0])}")


def hint(lesson: int, name: str | None) -> None:
    """The hints for a piece up to the next new one; the first fits what failed in the last run."""
    progress = Progress()
    piece = piece_called(lesson, name) if name else next_unsolved(lesson, progress)
    count = min(progress.hints.get(piece.master, 0) + 1, len(piece.hints))
    progress.hints[piece.master] = count
    progress.save()
    print(f"{piece.master}, {count} of {len(piece.hints)} hints")

    failed = progress.results.get(piece.master, {}).get("seen", "")
    first = fitting_hint(piece, failed)
    hints = [piece.hints[first], *piece.hints[:first], *piece.hints[first + 1 :]]
    for number, text in enumerate(hints[:count], start=1):
        print(f"  {number}. {text}")
    if count == len(piece.hints):
        line = source_of(piece.source).find(piece.path).lineno
        print(f"That was the last one. The master copy: {shown(piece.source)}, line {line}")


def piece_called(lesson: int, name: str) -> Piece:
    """The piece of a lesson whose name ends in ``name``."""
    pieces = pieces_of(lesson)
    chosen = [piece for piece in pieces if f".{piece.master}".endswith(f".{name}")]
    if not chosen:
        names = ", ".join(piece.master for piece in pieces)
        raise InputError(f"lesson {lesson:02} has no piece {name}: {names}")
    if len(chosen) > 1:
        which = ", ".join(".".join(piece.path) for piece in chosen)
        raise InputError(
            f"lesson {lesson:02} has {len(chosen)} pieces called {name}: which of {which}?"
        )
    return chosen[0]


def next_unsolved(lesson: int, progress: Progress) -> Piece:
    """The first piece of a lesson that has not passed, or its first one."""
    pieces = pieces_of(lesson)
    for piece in pieces:
        if progress.state(piece) != "passed":
            return piece
    return pieces[0]


def fitting_hint(piece: Piece, failed: str) -> int:
    """The index of the first hint that is for what failed; 0 if none is."""
    for i, pattern in enumerate(piece.fits):
        if pattern and re.search(pattern, failed):
            return i
    return 0


def answer(lesson: int, number: int) -> None:
    """The hint for an exercise; with its answer if the hint was shown before."""
    name = f"{lesson:02}.{number}"
    if name not in EXERCISES:
        names = [each for each in EXERCISES if each.startswith(f"{lesson:02}.")]
        numbers = ", ".join(each.partition(".")[2] for each in names)
        raise InputError(
            f"lesson {lesson:02} has answers to the exercises {numbers}; "
            f"{RUN} run grades the others"
        )
    exercise = EXERCISES[name]
    progress = Progress()
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
        if lesson == 14:
            title += f": {RUN} mine 14"
        print(f"{lesson:02}  {title}")
        for piece in pieces:
            state = progress.state(piece)
            if state == "passed":
                passed += 1
            line = (
                f"    {piece.master:<40}{stars(piece.level)}  {piece.minutes:>3} min  {state:<22}"
            )
            hints = progress.hints.get(piece.master, 0)
            if hints:
                line += f"{hints} of {len(piece.hints)} hints"
            print(line.rstrip())
    print(f"\n{passed} of {len(PIECES)} passed")


# ------------------------------------------------------------------------------------- the command


def lesson_number(text: str) -> int:
    if not text.isdigit() or int(text) not in LESSONS:
        raise argparse.ArgumentTypeError(
            f"lessons are numbered {min(LESSONS):02} to {max(LESSONS)}, not {text!r}"
        )
    return int(text)


def number_or_sentence(text: str) -> int | str:
    return lesson_number(text) if text.isdigit() else text


def parser() -> argparse.ArgumentParser:
    everything = argparse.ArgumentParser(
        prog=RUN,
        description="Rebuild the package piece by piece, graded by numbers.",
        epilog=f"Begin with: {RUN} start 01\nFor teachers: lessons/TEACHING.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = everything.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_learners_commands(commands)
    add_teachers_commands(commands)
    add_project(commands)
    return everything


def add_learners_commands(commands: argparse._SubParsersAction) -> None:
    number = {"type": lesson_number, "metavar": "NN", "help": "the lesson's number"}

    start = commands.add_parser("start", help="write the stubs of a lesson to lessons/mine/")
    start.add_argument("lesson", **number)

    run = commands.add_parser("run", help="grade a lesson, or the next unsolved one")
    run.add_argument("lesson", nargs="?", **number)

    hint = commands.add_parser("hint", help="one more hint for the next unsolved piece of a lesson")
    hint.add_argument("lesson", **number)
    about = "for this piece, by the end of its name"
    hint.add_argument("piece", nargs="?", metavar="PIECE", help=about)

    answer = commands.add_parser("answer", help="a hint for an exercise; asked again, its answer")
    answer.add_argument("lesson", **number)
    answer.add_argument("exercise", type=int, metavar="N", help="the exercise's number")

    quiz = commands.add_parser("quiz", help="five questions about a lesson")
    quiz.add_argument("lesson", **number)

    commands.add_parser("list", help="every piece and its status")
    commands.add_parser("guesses", help="how many of your predictions were right")

    about = "your model: write your pieces and the book's rest to one file, run it"
    mine = commands.add_parser("mine", help=about)
    mine.add_argument("lesson", nargs="?", **number | {"type": number_or_sentence})
    about = "for lessons 01, 05 and 08; - reads stdin"
    mine.add_argument("sentences", nargs="*", metavar="SENTENCE", help=about)
    chapters = ["all", *CHAPTERS]
    about = f"only compare the file with the book, or a chapter of it: {', '.join(CHAPTERS)}"
    mine.add_argument(
        "--diff", nargs="?", const="all", choices=chapters, metavar="CHAPTER", help=about
    )


def add_teachers_commands(commands: argparse._SubParsersAction) -> None:
    every = commands.add_parser("all", help="grade every lesson")
    about = "write the results there, and no progress"
    every.add_argument("--json", type=Path, metavar="FILE", help=about)
    about = "of that file (default: %(default)s)"
    every.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=about)

    grade = commands.add_parser("grade", help="grade the folders of many students")
    about = "with a student's lesson_*.py"
    grade.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help=about)
    about = "for a NAME.json per student"
    grade.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=about)
    about = "of these files (default: %(default)s)"
    grade.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=about)
    about = "students at a time (default: 1)"
    grade.add_argument("--jobs", type=int, default=1, metavar="N", help=about)
    about = "seconds per student (default: 600)"
    grade.add_argument("--limit", type=float, default=600, metavar="S", help=about)

    table = commands.add_parser("class", help="a table of the results of many students")
    about = "with the files that all --json wrote"
    table.add_argument("folder", type=Path, metavar="FOLDER", help=about)


def add_project(commands: argparse._SubParsersAction) -> None:
    project = commands.add_parser(
        "project",
        help="grade a search engine (lesson 18) on queries of held-out modules, and add it to a "
        "leaderboard",
        description="Grade a search engine (lesson 18). FOLDER holds a model and perhaps a "
        f"search.toml: {SETTINGS}.",
    )
    about = "with the model, in it or in FOLDER/model"
    project.add_argument("folder", type=Path, metavar="FOLDER", help=about)
    project.add_argument("--name", default="", help="on the leaderboard (default: the folder's)")
    board = MINE / "leaderboard.csv"
    project.add_argument("--board", type=Path, default=board, metavar="FILE", help=BOARD)
    about = "ask a random half of the queries, chosen by it"
    project.add_argument("--secret", default="", metavar="TEXT", help=about)
    about = "search in the docstrings of this Python source"
    project.add_argument("--source", type=Path, metavar="DIR", help=about)


def learners_command(options: argparse.Namespace) -> bool:
    """Carry out one of ``add_learners_commands``. Returns whether all that was graded passed."""
    if options.command == "run":
        return run(options.lesson)
    if options.command == "mine":
        return run_mine(options)
    if options.command == "start":
        start(options.lesson)
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
    return True


def run_mine(options: argparse.Namespace) -> bool:
    from lessons.grader.your_model import your_model

    lesson = options.lesson
    sentences = options.sentences
    if isinstance(lesson, str):  # no number: a sentence, for lesson 01
        sentences = [lesson, *sentences]
        lesson = 1
    if sentences == ["-"]:
        lines = [line.strip() for line in sys.stdin]
        sentences = [line for line in lines if line]
    return your_model(lesson, sentences, options.diff)


def teachers_command(options: argparse.Namespace) -> bool:
    """Carry out one of ``TEACHERS``. Returns whether all that was graded passed."""
    if options.command == "all":
        if options.format != FORMATS[0] and not options.json:
            raise InputError(f"--format {options.format} needs --json FILE")
        return grade_all(options.json, options.format)
    if options.command == "grade":
        return grade_class(
            options.folders, options.out, options.format, options.jobs, options.limit
        )
    if options.command == "class":
        class_table(options.folder)
    elif options.command == "project":
        from lessons.grader.project import grade_project

        grade_project(options.folder, options.board, options.name, options.secret, options.source)
    return True


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    # A signal becomes an exception, so that the code that ends the grader's processes runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.command not in ("all", "class", "grade"):
        MINE.mkdir(parents=True, exist_ok=True)
    command = teachers_command if options.command in TEACHERS else learners_command
    if not command(options):
        sys.stdout.flush()  # so that a closed pipe is still reported
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
