"""For teachers: everything that a student handed in graded into one file, and a table of a class."""

from collections import Counter
from pathlib import Path
from typing import Any

from lessons.grader import pieces, sandbox
from lessons.grader.pieces import LESSONS, PIECES, mine, pieces_of
from lessons.grader.result import RUNS, Progress, Result, as_json, file_digest, not_started, place, versions
from minisbert.core import InputError, read_json
from minisbert.system.console import LiveLine, say
from minisbert.system.files import atomic_file, write_json

FORMATS = ("minisbert", "gradescope")
SIGNS = {"passed": "P", "failed": "F", "refused": "R", "unwritten": "."}


def grade_all(out: Path | None, form: str = "minisbert") -> bool:
    """Grade every lesson: a line per piece. Returns whether all passed.

    With ``out`` the results go to that file and nowhere else. ``InputError``, also into the file, if the folder has
    nothing to grade.
    """
    if problem := nothing_to_grade():
        if out:
            write(out, failure(problem, form))
        raise InputError(problem)
    graded = []
    with LiveLine() as line:
        for lesson in dict.fromkeys(piece.lesson for piece in PIECES.values()):
            line.show(f"lesson {lesson:02} of {max(LESSONS)}")
            results = graded_lesson(lesson)
            graded.append((lesson, results))
            line.clear()
            for result in results:
                seen = "" if result.passed or not mine(lesson).is_file() else f"  {result.rungs[-1][2]}"
                print(f"{lesson:02}  {result.master:<40}{result.status:<12}{seen}".rstrip(), flush=True)
    results = [result for _, found in graded for result in found]
    passed = sum(result.passed for result in results)
    print(f"\n{passed} of {len(results)} passed")
    if out:
        write(out, gradescope(graded) if form == "gradescope" else as_json(graded))
    else:
        Progress().remember([result for result in results if file_digest(PIECES[result.master].lesson)])
    return passed == len(results)


def nothing_to_grade() -> str:
    folder = pieces.MINE
    if not folder.is_dir():
        return f"{folder} does not exist: MINISBERT_MINE must name the folder with a student's lesson_*.py"
    if not any(mine(lesson).is_file() for lesson in LESSONS):
        return f"{folder} has no lesson_*.py: nothing to grade (are they in a folder below it?)"
    return ""


def graded_lesson(lesson: int) -> list[Result]:
    if not mine(lesson).is_file():
        return [not_started(piece) for piece in pieces_of(lesson)]
    try:
        return sandbox.grade(lesson)
    except RuntimeError as error:  # one lesson that cannot be graded must not cost the others
        return [Result(piece.master, "failed", [(RUNS, False, str(error))]) for piece in pieces_of(lesson)]


def write(out: Path, content: dict) -> None:
    with atomic_file(out) as partial:
        write_json(partial, content)
    say(f"wrote {out}")


def failure(problem: str, form: str) -> dict:
    if form == "gradescope":
        return {"score": 0, "output": problem, "tests": []}
    return versions() | {"error": problem, "passed": 0, "of": len(PIECES), "pieces": []}


def gradescope(graded: list[tuple[int, list[Result]]]) -> dict:
    """``results.json`` as Gradescope's autograder reads it: a test per piece, with its difficulty as its points."""
    tests = []
    for lesson, results in graded:
        for result in results:
            points = PIECES[result.master].level
            tests.append(
                {"name": f"{lesson:02} {result.master}", "max_score": points, "score": points * result.passed}
                | {"status": "passed" if result.passed else "failed", "output": in_words(result)}
            )
    passed = sum(result.passed for _, results in graded for result in results)
    version = ", ".join(f"{name} {value}" for name, value in versions().items())
    return {"output": f"{passed} of {len(tests)} pieces passed ({version})", "tests": tests}


def in_words(result: Result) -> str:
    """The ladder of a piece, and the mistakes that explain it."""
    lines = [
        f"{'ok' if holds else 'FAIL'}  {title}{'' if holds else f': {seen}'}" for title, holds, seen in result.rungs
    ]
    if result.mistakes:
        lines.append(f"Known mistake: {' or '.join(result.mistakes)}")
        lines.append(f"Read again: {place(PIECES[result.master], result.mistakes[0])}")
    return "\n".join([result.status, *lines])


# ------------------------------------------------------------------------------------------ a class


def class_table(folder: Path) -> None:
    """Students by pieces, then the mistakes that were made most, from the files that ``all --json`` wrote there."""
    students = {path.stem: read_results(path) for path in sorted(folder.glob("*.json"))}
    if not students:
        raise InputError(f"{folder} has no *.json: python -m lessons.check all --json {folder}/NAME.json writes one")
    by_lesson = {lesson: pieces_of(lesson) for lesson in dict.fromkeys(piece.lesson for piece in PIECES.values())}
    width = max(len("student"), *map(len, students))
    heads = [f"{lesson:02}".ljust(len(inside)) for lesson, inside in by_lesson.items()]
    print(f"{'student':<{width}}  passed  {' '.join(heads)}")
    for name, found in students.items():
        status = {row["piece"]: row["status"] for row in found["pieces"]}
        signs = ["".join(SIGNS.get(status.get(p.master), "?") for p in inside) for inside in by_lesson.values()]
        passed, marks = f"{found['passed']}/{found['of']}", " ".join(sign.ljust(2) for sign in signs)
        print(f"{name:<{width}}  {passed:>6}  {marks}  {found.get('error', '')}".rstrip())
    print("\nP passed, F failed, R refused, . unwritten, ? not graded; pieces in the order of `list`")
    rows = [row for found in students.values() for row in found["pieces"]]
    print_most("Commonest mistakes", Counter((name, row["piece"]) for row in rows for name in row["mistakes"]))
    print_most(
        "Pieces that failed most", Counter((row["piece"], row["rung"]) for row in rows if row["status"] == "failed")
    )
    if len(graders := {found["grader"] for found in students.values()}) > 1:
        say(f"these files come from {len(graders)} versions of the grader: grade them again before you compare")


def read_results(path: Path) -> dict[str, Any]:
    found = read_json(path)
    rows = found.get("pieces")
    if not isinstance(rows, list) or not {"grader", "passed", "of"} <= found.keys():
        raise InputError(f"{path} is not what `all --json` writes: grade the student's folder again")
    return found


def print_most(title: str, counts: Counter) -> None:
    if counts:
        print(f"\n{title}")
    for (what, where), count in counts.most_common(10):
        print(f"  {count:>3}  {what}, {where}")
