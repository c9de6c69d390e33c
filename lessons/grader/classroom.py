"""For teachers: grade everything that a student handed in, and make a table of a class."""

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lessons.grader import pieces, sandbox
from lessons.grader.pieces import LESSONS, PIECES, mine, pieces_of
from lessons.grader.result import (
    RUNS,
    Progress,
    Result,
    as_json,
    file_digest,
    master_digests,
    not_started,
    place,
)
from minisbert.core import InputError, read_json
from minisbert.system.console import say
from minisbert.system.files import atomic_file, write_json
from minisbert.system.progress import Bar
from minisbert.system.reading import reading

FORMATS = ("minisbert", "gradescope")
SIGNS = {"passed": "P", "failed": "F", "refused": "R", "unwritten": "."}


def grade_all(out: Path | None, form: str = "minisbert") -> bool:
    """Grade every lesson: a line per piece. Returns whether all passed.

    With ``out`` the results go to that file and nowhere else. ``InputError``, also into the file,
    if the folder has nothing to grade.
    """
    if problem := nothing_to_grade():
        if out:
            write(out, failure(problem, form))
            say(f"wrote {out}")
        raise InputError(problem)
    graded = []
    with Bar(dict.fromkeys(piece.lesson for piece in PIECES.values()), unit=" lessons") as bar:
        for lesson in bar:
            bar.set_description(f"lesson {lesson:02}")
            results = graded_lesson(lesson)
            graded.append((lesson, results))
            bar.clear()
            for result in results:
                seen = (
                    ""
                    if result.passed or not mine(lesson).is_file()
                    else f"  {result.rungs[-1][2]}"
                )
                print(
                    f"{lesson:02}  {result.master:<40}{result.status:<12}{seen}".rstrip(),
                    flush=True,
                )
            if out:  # so that whatever ends the run costs one lesson
                write(out, gradescope(graded) if form == "gradescope" else as_json(graded))
    results: list[Result] = []
    for _, of_lesson in graded:
        results += of_lesson
    passed = sum(result.passed for result in results)
    print(f"\n{passed} of {len(results)} passed")
    if out:
        say(f"wrote {out}")
    else:
        Progress().remember(
            [result for result in results if file_digest(PIECES[result.master].lesson)]
        )
    return passed == len(results)


def nothing_to_grade() -> str:
    folder = pieces.MINE
    if not folder.is_dir():
        needed = "MINISBERT_MINE must name the folder with a student's lesson_*.py"
        return f"{folder} does not exist: {needed}"
    if not any(mine(lesson).is_file() for lesson in LESSONS):
        return f"{folder} has no lesson_*.py: nothing to grade (are they in a folder below it?)"
    return ""


def graded_lesson(lesson: int) -> list[Result]:
    if not mine(lesson).is_file():
        return [not_started(piece) for piece in pieces_of(lesson)]
    try:
        return sandbox.grade(lesson)
    except RuntimeError as error:  # one lesson that cannot be graded must not cost the others
        return [
            Result(piece.master, "failed", [(RUNS, False, str(error))])
            for piece in pieces_of(lesson)
        ]


def write(out: Path, content: dict) -> None:
    with atomic_file(out) as partial:
        write_json(partial, content)


def failure(problem: str, form: str) -> dict:
    if form == "gradescope":
        return {"score": 0, "output": problem, "tests": []}
    return as_json([]) | {"error": problem}


def gradescope(graded: list[tuple[int, list[Result]]]) -> dict:
    """``results.json`` for Gradescope: a test for each piece, its difficulty as its points."""
    tests = []
    for lesson, results in graded:
        for result in results:
            points = PIECES[result.master].level
            tests.append(
                {
                    "name": f"{lesson:02} {result.master}",
                    "max_score": points,
                    "score": points * result.passed,
                }
                | {"status": "passed" if result.passed else "failed", "output": in_words(result)}
            )
    passed = 0
    for _, results in graded:
        passed += sum(result.passed for result in results)
    return {"output": f"{passed} of {len(tests)} pieces passed", "tests": tests}


def in_words(result: Result) -> str:
    """The ladder of a piece, and the mistakes that explain it."""
    lines = []
    for title, holds, seen in result.rungs:
        lines.append(f"ok  {title}" if holds else f"FAIL  {title}: {seen}")
    if result.mistakes:
        lines.append(f"Known mistake: {' or '.join(result.mistakes)}")
        lines.append(f"Read again: {place(PIECES[result.master], result.mistakes[0])}")
    return "\n".join([result.status, *lines])


# ------------------------------------------------------------------------------------------ a class


def class_table(folder: Path) -> None:
    """Students by pieces, and the mistakes that were made most, from files of ``all --json``."""
    paths = sorted(folder.glob("*.json"))
    students = {path.stem: read_results(path) for path in paths}
    if not paths:
        raise InputError(
            f"{folder} has no *.json: python -m lessons.check all --json {folder}/NAME.json writes "
            f"one"
        )
    lessons = dict.fromkeys(piece.lesson for piece in PIECES.values())
    by_lesson = {lesson: pieces_of(lesson) for lesson in lessons}
    masters = master_digests()
    width = max(len("student"), *map(len, students))
    heads = [f"{lesson:02}".ljust(len(inside)) for lesson, inside in by_lesson.items()]
    print(f"{'student':<{width}}  passed  {' '.join(x.ljust(2) for x in heads)}")
    for name, found in students.items():
        rows = {row["piece"]: row for row in found["pieces"]}
        signs = []
        for part in by_lesson.values():
            of_pieces = [sign(rows.get(p.master), masters.get(p.master)) for p in part]
            signs.append("".join(of_pieces))
        passed = sum(row["status"] == "passed" for row in rows.values())
        share = f"{passed}/{len(PIECES)}"
        marks = " ".join(x.ljust(2) for x in signs)
        print(f"{name:<{width}}  {share:>6}  {marks}  {found.get('error', '')}".rstrip())
    print(
        "\nP passed, M passed with the very code of the package, F failed, R refused, . unwritten, "
        "? not graded;"
    )
    print("pieces in the order of `list`")
    mistakes: Counter = Counter()
    failed: Counter = Counter()
    for found in students.values():
        for row in found["pieces"]:
            mistakes.update((name, row["piece"]) for name in row["mistakes"])
            if row["status"] == "failed":
                failed[row["piece"], row["rung"]] += 1
    print_most("Commonest mistakes", mistakes)
    print_most("Pieces that failed most", failed)


def read_results(path: Path) -> dict[str, Any]:
    """What ``all --json`` wrote, or the error: one damaged file must not cost the others."""
    try:
        with reading(path):
            found = read_json(path)
            if not isinstance(found["pieces"], list) or not all(
                isinstance(row, dict) for row in found["pieces"]
            ):
                raise ValueError("pieces must be a list of dicts")
            found["pieces"] = [row for row in found["pieces"] if row["piece"] in PIECES]
            for row in found["pieces"]:
                row["status"], row["mistakes"], row["rung"]  # each must be there
            return found
    except InputError as error:
        say(f"{error}: not what `all --json` writes; grade the student's folder again")
        return {"pieces": [], "error": "this file cannot be read"}


def sign(row: dict[str, Any] | None, master: str | None) -> str:
    if row and row["status"] == "passed" and master and row.get("function_sha256") == master:
        return "M"
    return SIGNS.get(row["status"], "?") if row else "?"


def grade_class(folders: list[Path], out: Path, form: str, jobs: int, seconds: float) -> bool:
    """``all --json`` for each student's folder, ``jobs`` at a time.

    Each runs in a process of its own with a time limit.
    """
    if wrong := [folder for folder in folders if not folder.is_dir()]:
        raise InputError(f"{wrong[0]} is not a folder")
    if len({folder.name for folder in folders}) < len(folders):
        raise InputError(
            "two of these folders have the same name, which is to be the name of their results"
        )
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        ended = list(pool.map(lambda folder: grade_student(folder, out, form, seconds), folders))
    for folder, problem in zip(folders, ended, strict=True):
        print(f"{folder.name}: {problem or f'wrote {out / folder.name}.json'}")
    return not any(ended)


def grade_student(folder: Path, out: Path, form: str, seconds: float) -> str:
    """Empty, or why there is no complete result."""
    result = out.resolve() / f"{folder.name}.json"
    command = [
        sys.executable,
        "-m",
        "lessons.check",
        "all",
        "--json",
        str(result),
        "--format",
        form,
    ]
    environment = os.environ | {"MINISBERT_MINE": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
    streams = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "text": True,
        "errors": "replace",
    }
    with subprocess.Popen(command, cwd=pieces.ROOT, env=environment, **streams) as child:
        try:
            _, said = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.terminate()  # it ends the process that it has started, too
            return f"stopped after {seconds:g} seconds; {result} has what was graded until then"
    return "" if child.returncode in (0, 1) else (said.strip().splitlines() or ["no message"])[-1]


def print_most(title: str, counts: Counter) -> None:
    if counts:
        print(f"\n{title}")
    for (what, where), count in counts.most_common(10):
        print(f"  {count:>3}  {what}, {where}")
