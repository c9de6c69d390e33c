"""Grading variants: the learner's file runs in a process that knows inputs only; its numbers are compared here.

``python -m lessons.grader.variant_grading FILE`` is that process: it reads the inputs from standard input, and writes a
line of JSON per variant.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lessons.grader import variants
from lessons.grader.cases import describe
from lessons.grader.guard import Refused, look, refusing, untouched
from lessons.grader.pieces import ROOT
from lessons.grader.sandbox import SECONDS, START_SECONDS, _forward, find, limit_memory, load, stop
from lessons.grader.variants import TOLERANCE, VARIANTS, Variant, answers, cases_of, settings_of
from minisbert.core import InputError
from minisbert.system.console import say
from minisbert.system.files import atomic_file, write_json

FILE = "variants.py"
READY = "ready\n"
SIGNS = {"passed": "P", "failed": "F", "refused": "R", "unwritten": "."}


@dataclass(frozen=True)
class Graded:
    """``status`` is passed, failed, refused or unwritten; ``reason`` says why, and what mistake gives these numbers."""

    name: str
    status: str
    reason: str = ""


def grade_folder(folder: Path, secret: bytes, student: str = "", seconds: float = SECONDS) -> list[Graded]:
    """The results of all variants in a student's folder. Raises ``InputError`` if it has no variants.py."""
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {FILE}: the teacher's sheet, filled in")
    cases = {name: cases_of(variant, secret, student) for name, variant in VARIANTS.items()}
    reports = run_child(path, cases, seconds)
    return [judged(VARIANTS[name], secret, student, report) for name, report in reports.items()]


def judged(variant: Variant, secret: bytes, student: str, report: dict[str, Any]) -> Graded:
    """What the reports of one variant are worth."""
    if "results" not in report:
        return Graded(variant.name, report["status"], report["reason"])
    settings, cases = settings_of(variant, secret, student), cases_of(variant, secret, student)
    ours = [[torch.tensor(x, dtype=torch.float64) for x in case] for case in report["results"]]
    expected = [answers(lambda *x: variant.function(*x, **settings), case) for case in cases]
    problem = difference(ours, expected)
    if not problem:
        return Graded(variant.name, "passed")
    for meaning, mistaken in variant.mistakes.items():
        taken = mistaken(settings)
        theirs = [answers(lambda *x, taken=taken: variant.function(*x, **taken), case) for case in cases]
        if difference(theirs, expected) and not difference(ours, theirs):
            return Graded(variant.name, "failed", f"these are exactly the numbers you get when {meaning}")
    return Graded(variant.name, "failed", problem)


def difference(ours: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> str:
    """Empty, or the first difference; gradients are looked at if all results are right."""
    for part in range(len(expected[0])):
        for number, (one, other) in enumerate(zip(ours, expected, strict=True), start=1):
            kind = f"hidden case {number}, gradient {part}" if part else f"hidden case {number}"
            if part >= len(one):
                return f"{kind}: no gradient comes back (a detach, an item(), a detour through numpy?)"
            if problem := describe(one[part], other[part], TOLERANCE):
                return f"{kind}: {problem}"
    return ""


def run_child(path: Path, cases: dict[str, list], seconds: float) -> dict[str, dict[str, Any]]:
    """A report per variant. A process that ends or hangs fails the variant it was busy with; the rest get a new one."""
    reports: dict[str, dict[str, Any]] = {}
    command = [sys.executable, "-m", "lessons.grader.variant_grading", str(path.resolve())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    while left := [name for name in VARIANTS if name not in reports]:
        # a session of its own, so that processes which the learner's code started end with it
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True, errors="replace", **pipes) as child:
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_forward, args=(child.stdout, lines), daemon=True).start()
            with contextlib.suppress(BrokenPipeError):
                json.dump({name: [[x.tolist() for x in case] for case in cases[name]] for name in left}, child.stdin)
                child.stdin.close()
            reason, limit = "it ended the process", START_SECONDS
            try:
                while line := lines.get(timeout=limit):
                    if line == READY or (report := understood(line)) is not None:
                        limit = seconds
                    if line != READY and report is not None and report["name"] in left:
                        reports[report["name"]] = report
            except queue.Empty:
                reason = f"still running after {limit:g} seconds: a loop that never ends?"
            finally:
                stop(child)
        for name in [name for name in left if name not in reports][:1]:  # it was at work
            reports[name] = {"name": name, "status": "failed", "reason": reason}
    return {name: reports[name] for name in VARIANTS}


def understood(line: str) -> dict[str, Any] | None:
    """A report; None for anything else, since the learner's code writes there too: forged numbers must be right."""
    try:
        report = json.loads(line)
        if "results" in report:
            for case in report["results"]:
                for x in case:
                    torch.tensor(x, dtype=torch.float64)
            fine = len(report["results"]) == variants.CASES and all(report["results"])
        else:
            fine = {*report} == {"name", "status", "reason"} and report["status"] in ("failed", "refused", "unwritten")
        return report if fine and isinstance(report["name"], str) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


# ----------------------------------------------------------------------------------- the commands


def write_sheet(key: Path, out: Path, student: str = "") -> None:
    """``variants sheet``. Raises ``InputError`` if it would replace a file: somebody's answers may be in it."""
    secret = variants.read_secret(key)
    if out.exists():
        raise InputError(f"{out} exists and may hold answers: write to another file")
    with atomic_file(out) as partial:
        partial.write_text(variants.sheet(secret, student), encoding="utf-8")
    say(f"wrote {out}: {len(VARIANTS)} functions to write")


def grade_variants(key: Path, folders: list[Path], per_student: bool, out: Path | None) -> bool:
    """``variants grade``: students by variants, and why. A folder without an answer does not stop the others."""
    secret, table = variants.read_secret(key), {}
    if inside := next((folder for folder in folders if key.resolve().is_relative_to(folder.resolve())), None):
        raise InputError(f"{key} lies in {inside}, which a student has: keep it elsewhere, and choose a new one")
    width = max(len("student"), *(len(folder.resolve().name) for folder in folders))
    print(f"{'student':<{width}}  passed  {' '.join(f'{number}' for number in range(1, len(VARIANTS) + 1))}")
    for folder in folders:
        student = folder.resolve().name
        try:
            graded = grade_folder(folder, secret, student if per_student else "")
        except InputError as error:
            graded = [Graded(name, "failed", str(error)) for name in VARIANTS]
        table[student] = [vars(one) for one in graded]
        passed, signs = sum(one.status == "passed" for one in graded), " ".join(SIGNS[one.status] for one in graded)
        print(f"{student:<{width}}  {f'{passed}/{len(graded)}':>6}  {signs}", flush=True)
        if out:  # as they come: nothing is lost if the command is stopped
            with atomic_file(out) as partial:
                write_json(partial, table)
    print("\nP passed, F failed, R refused, . unwritten; " + ", ".join(f"{i} {x}" for i, x in enumerate(VARIANTS, 1)))
    for student, rows in table.items():
        for row in rows:
            if row["status"] not in ("passed", "unwritten"):
                print(f"{student}, {row['name']}: {row['reason']}")
    return all(row["status"] == "passed" for rows in table.values() for row in rows)


# ------------------------------------------------------------------------------------ from inside


def main(path: Path) -> None:
    cases = json.load(sys.stdin)
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    limit_memory()
    channel.write(READY)
    for report in reports_on(path, cases):
        channel.write(json.dumps(report) + "\n")


def reports_on(path: Path, cases: dict[str, list]) -> Iterator[dict[str, Any]]:
    """Load the learner's file and run each variant on its cases."""
    pieces = {name: VARIANTS[name].piece for name in cases}
    objections, space, reason = {}, {}, ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        objections = look(text, [*pieces.values()])
        space = load(path, text, [*pieces.values()]) if len(objections) < len(pieces) else {}
    except SyntaxError as error:
        reason = f"line {error.lineno}: not Python: {error.msg}"
    except Refused as refused:
        objections = {piece.master: str(refused) for piece in pieces.values()}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        reason = f"the file cannot be loaded: {type(error).__name__}: {error}"
    for name, piece in pieces.items():
        function, problem = find(space, piece, path) if not reason else (None, reason)
        if piece.master in objections:
            report = {"status": "refused", "reason": objections[piece.master]}
        elif function is None:
            report = {"status": "failed", "reason": problem}
        else:
            report = attempted(function, VARIANTS[name], cases[name])
        yield {"name": name} | report


def attempted(function: Any, variant: Variant, cases: list) -> dict[str, Any]:
    """The numbers of all cases, or why there are none."""
    try:
        with untouched(), refusing(variant.refused):
            results = []
            for case in cases:
                inputs = [torch.tensor(x, dtype=None if isinstance(flat(x), bool) else torch.float64) for x in case]
                found = answers(function, inputs)
                if not all(isinstance(x, torch.Tensor) for x in found):
                    return {"status": "failed", "reason": "the result is not a tensor"}
                results.append([x.double().tolist() for x in found])
            return {"results": results}
    except NotImplementedError:
        return {"status": "unwritten", "reason": "it raises NotImplementedError"}
    except Refused as refused:
        return {"status": "refused", "reason": str(refused)}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        from lessons.grader.ladder import told  # here: it imports all cases

        return {"status": "failed", "reason": told(error, function)}


def flat(x: Any) -> Any:
    while isinstance(x, list):
        x = x[0]
    return x


if __name__ == "__main__":
    main(Path(sys.argv[1]))
