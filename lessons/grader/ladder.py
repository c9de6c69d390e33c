"""The ladder that a piece climbs: it runs, leaves its inputs alone, and gives the expected numbers.

``climb`` replaces the master by the learner's function (``planting.replaced``) and runs the piece's
hand examples, its parity checks and its traps on the package. Known mistakes climb the same ladder:
if one of them gives the learner's numbers, it is named.
"""

import contextlib
import copy
import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lessons.grader import (  # noqa: F401 (their cases)
    cases_by_hand,
    cases_encoder,
    cases_loop,
    cases_losses,
    cases_modern,
    cases_scores,
    cases_search,
    cases_sheets,
    cases_small,
    cases_text,
)
from lessons.grader.cases import (
    BONUS,
    CASES,
    RESULTS,
    Case,
    converted,
    describe,
    equal,
    form_problem,
    right,
)
from lessons.grader.guard import ALLOWED, Refused, refusing
from lessons.grader.pieces import Piece
from lessons.grader.result import RUNGS, Result
from lessons.grader.slips import known_mistakes
from lessons.mistakes.planting import planted, replaced
from minisbert.core import InputError, one_line
from minisbert.diagnosis.tracing import unfused
from tests.parity.checks import CHECKS

END = object()  # of a generator


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    rung: str
    name: str
    ok: bool
    detail: str = ""
    ours: Any = None  # the result; None if there is none


class Trouble(Exception):
    """The learner's function ended a check: it crashed, or returned another type or shape."""

    def __init__(self, text: str, rung: str = "runs"):
        super().__init__(text)
        self.rung = rung


# ----------------------------------------------------------------------------------------- one run


def look_at(piece: Piece, function: Callable, guard: bool = True) -> list[Finding]:
    """The findings of all checks with this function in the piece's place.

    Without warnings: a division by zero is a finding if its result is wrong.
    """
    torch.manual_seed(0)  # a mistake that draws random numbers must give the same ones each time
    found: list[Finding] = []
    calls: list[None] = []  # one entry per call of the function
    stand_in = watched(piece, function, found, calls, guard)
    quiet = warnings.catch_warnings(action="ignore")
    with quiet, unfused(), replaced(piece.original, stand_in, piece.owner, piece.path[-1]):
        for rung, name, run in checks_of(piece):
            before = len(calls)
            findings = attempt(rung, name, run)
            if not findings or len(calls) == before:  # nothing is proven
                findings.append(Finding(rung, name, False, "no check was run"))
            beyond = BONUS.get(piece.master)
            for finding in findings:
                bonus = beyond and re.search(beyond, f"{name} {finding.name}")
                found.append(replace(finding, rung="bonus") if bonus else finding)
    return found


def checks_of(piece: Piece) -> Iterator[tuple[str, str, Callable[[], Iterator[Finding]]]]:
    """Rung, name and findings of each check.

    Cases hold the package's functions as they are when they are made.
    """
    golden = [("golden", name, partial(from_check, name)) for name in piece.checks]
    for case in CASES[piece.master]():
        if case.rung == "traps":
            yield from golden
            golden = []
        yield case.rung, case.name, partial(from_case, case, piece.master)
    yield from golden


def attempt(rung: str, name: str, run: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one check, up to the point where the learner's function ends it."""
    found = []
    try:
        for finding in run():
            found.append(finding)
    except NotImplementedError:
        raise
    except Trouble as trouble:
        where = "traps" if rung == "traps" and trouble.rung == "runs" else trouble.rung
        found.append(Finding(where, name, False, f"{name}: {trouble}"))
    except (Exception, KeyboardInterrupt) as error:
        # of autograd, or of the package, which could not go on with the learner's result
        about_gradients = "grad" in str(error) and "inference" not in str(error).lower()
        cut = isinstance(error, RuntimeError) and about_gradients
        text = (
            "no gradient comes back (a detach, an item(), a detour through numpy?)"
            if cut
            else one_line(error)
        )
        if isinstance(error, KeyError):
            key = error.args[0]
            text = f"there is no entry {key!r}: is a dictionary (trace, say) filled in or returned?"
        rung = "gradient" if cut and rung == "golden" else rung
        found.append(Finding(rung, name, False, f"{name}: {text}"))
    return found


def from_case(case: Case, master: str) -> Iterator[Finding]:
    ours = case.run()
    tolerance = 6e-5 if case.rung == "example" else 1e-9
    problem = describe(ours, case.expected, tolerance, case.results or RESULTS.get(master, ()))
    yield Finding(
        case.rung, case.name, not problem, f"{case.name}: {problem}" if problem else "", ours
    )


def from_check(name: str) -> Iterator[Finding]:
    for result in CHECKS[name]():
        rung = "gradient" if "gradient" in result.name else "golden"
        problem = describe(result.ours, result.reference, result.tolerance)
        yield Finding(
            rung,
            result.name,
            not problem,
            f"{result.name}: {problem}" if problem else "",
            result.ours,
        )


def watched(
    piece: Piece, function: Callable, found: list[Finding], calls: list[None], guard: bool
) -> Callable:
    """The function, watched for changes to its inputs and for the type and shape of its result."""

    inside = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:  # of a function that calls itself the outer call is watched
            return function(*args, **kwargs)
        calls.append(None)
        # An __init__ gets an object that has nothing yet: it is meant to be changed.
        inputs = args[1:] if piece.is_init else args
        # An iterator can be read once, and is the learner's: there is no second answer to compare,
        # and a model that comes with it is there to be trained.
        used_up = any(isinstance(value, Iterator) for value in args)
        if used_up:
            inputs = ()
        before = kept([*inputs, *kwargs.values()])
        expected = None
        if not (piece.is_init or used_up):
            expected = answer_of_the_master(piece, args, kwargs)
        inside = True
        try:
            result = guarded_call(piece, function, args, kwargs, guard)
        finally:
            inside = False
        if inspect.isgenerator(result):
            result = steps_of(result, piece, function, guard)
        after = kept([*inputs, *kwargs.values()])
        names = list(inspect.signature(piece.original).parameters)[: len(args)]
        names = [*names[len(args) - len(inputs) :], *kwargs]
        for name, one, other in zip(names, before, after, strict=False):
            if not equal(one, other, 0.0):
                text = f"the argument {name} is not what it was before the call"
                found.append(Finding("inputs", "inputs", False, text))
        if used_up:
            return result
        return in_form(result, expected, piece, found, args)

    return call


def in_form(result: Any, expected: Any, piece: Piece, found: list[Finding], args: tuple) -> Any:
    """The result with the expected dtype; ``Trouble`` if its type or shape is another one."""
    problem = form_problem(result, expected, RESULTS.get(piece.master, ()))
    if not problem:
        return result
    turned = converted(result, expected)
    if turned is None:
        raise Trouble(problem + shape_of_an_argument(result, expected, piece, args))
    # Its numbers may still tell what is wrong.
    found.append(Finding("runs", "dtype", False, problem))
    return turned


def shape_of_an_argument(result: Any, expected: Any, piece: Piece, args: tuple) -> str:
    """``, the shape of b``, if a result of a wrong shape has that of one argument alone.

    Then something was computed from that argument that should come from another.
    """
    shape = getattr(result, "shape", ())
    right_shape = getattr(expected, "shape", shape)
    # Exchanged axes are another mistake, which ``form_problem`` has looked for.
    if len(shape) < 2 or sorted(shape) == sorted(right_shape):
        return ""
    names = []
    for name, value in zip(inspect.signature(piece.original).parameters, args, strict=False):
        if getattr(value, "shape", ()) == shape:
            names.append(name)
    return f", the shape of {names[0]}" if len(names) == 1 else ""


def guarded_call(
    piece: Piece, function: Callable, args: tuple, kwargs: dict[str, Any], guard: bool
) -> Any:
    """What the learner's function returns; ``Trouble`` if it ends in any other way."""
    try:
        with refusing(piece.refused, piece.original) if guard else contextlib.nullcontext():
            return function(*args, **kwargs)
    except (NotImplementedError, Trouble):  # of another piece, which has said it already
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        text = told(error, function)
        if isinstance(error, RuntimeError) and "in-place" in str(error):
            raise Trouble(f"an argument is changed in place ({text})", "inputs") from error
        raise Trouble(text) from error


def answer_of_the_master(piece: Piece, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the package's function returns, without any effect on the arguments or on chance."""
    copies = {name: copied(value) for name, value in kwargs.items()}
    with torch.no_grad():
        state = torch.get_rng_state()
        expected = piece.original(*map(copied, args), **copies)
        torch.set_rng_state(state)
    return expected


def steps_of(generator: Iterator, piece: Piece, function: Callable, guard: bool) -> Iterator:
    """What the learner's generator yields; each of its steps is guarded as a call is."""
    while True:
        try:
            with refusing(piece.refused, piece.original) if guard else contextlib.nullcontext():
                value = next(generator, END)
        except (
            NotImplementedError,
            Trouble,
            InputError,
        ):  # the last is the package's, which a case may expect
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise Trouble(told(error, function)) from error
        if value is END:
            return
        yield value


def told(error: BaseException, function: Callable) -> str:
    """An exception in one line, with the last line of the learner's file that it came through."""
    file = inspect.unwrap(function).__code__.co_filename
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    where = f", line {lines[-1]}" if lines else ""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, RecursionError):
        text = "it calls itself without end"
    elif isinstance(error, NameError) and error.name in ALLOWED:
        text += f": is import {error.name} missing at the top of the file?"
    elif "does not have a grad_fn" in text:
        text += ": a detach, or are graphs off here (torch.enable_grad() turns them on)?"
    return f"{type(error).__name__}{where}: {text}"


def kept(value: Any) -> Any:
    """A copy to compare with later, without what a piece is meant to change (a trace, say)."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, nn.Module):
        return [kept(parameter) for parameter in value.parameters()]
    if isinstance(value, list | tuple):
        return [kept(inner) for inner in value]
    return value if isinstance(value, int | float | str | bool) else None


def copied(value: Any) -> Any:
    """A copy of an argument for the master, whose changes then have no effect."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)
    if isinstance(value, torch.Generator):
        return torch.Generator().set_state(value.get_state())
    return dict(value) if isinstance(value, dict) else value


# --------------------------------------------------------------------------------------- the ladder


def climb(piece: Piece, function: Callable, guard: bool = True) -> Result:
    """Rung by rung up to the first that fails, while ``guard`` refuses ready-made functions."""
    try:
        found = look_at(piece, function, guard)
    except NotImplementedError:
        return Result(
            piece.master, "unwritten", [("not written yet", False, "it raises NotImplementedError")]
        )
    except Refused as refused:
        return Result(piece.master, "refused", [("refused", False, str(refused))])
    result = Result(piece.master, "passed")
    for rung, title in RUNGS.items():
        here = [finding for finding in found if finding.rung == rung]
        wrong = [finding for finding in here if not finding.ok]
        if not here and rung in ("example", "golden"):  # without a check nothing is proven
            wrong = [Finding(rung, "", False, "no check was run")]
        if wrong:
            result.status = "passed" if rung == "bonus" else "failed"
            result.rungs.append((title, False, wrong[0].detail))
            result.mistakes, result.unexplained = fingerprints(piece, found)
            result.meanings = [known_mistakes()[name].meaning for name in result.mistakes]
            break
        if here or rung in ("runs", "inputs"):
            result.rungs.append((title, True, f"{len(here)} of {len(here)}" if here else ""))
    return result


def fingerprints(piece: Piece, found: list[Finding]) -> tuple[list[str], str]:
    """The known mistakes that give these numbers, and the first number they do not explain.

    On the first rung with wrong numbers a mistake must give the first of them. Of several, those
    that explain most are named, and of these, if there are any, those that agree on everything else
    as well. Numbers that many mistakes could give (NaN, whole numbers, yes or no) prove nothing
    alone: there the mistake must agree on the whole rung, in traps on everything, and so it must
    if nothing but hand examples fail. And a mistake that would fail a hand example otherwise was
    not made.
    """
    rung = next(
        (
            r
            for r in ("golden", "gradient", "traps", "bonus", "example")
            if any(f.rung == r and not f.ok for f in found)
        ),
        None,
    )
    wrong = [finding for finding in found if finding.rung == rung and not finding.ok]
    ours = numbers(found)
    explained: dict[str, list[Finding]] = {}
    for name, mistake in known_mistakes().items() if wrong else ():
        if mistake.target == piece.master or mistake.target in piece.parts:
            seen = look_at_mistake(name, piece)
            theirs = numbers(seen)
            if not made(seen, found):
                continue
            alike = [
                finding for finding in wrong if same(finding.ours, theirs.get((rung, finding.name)))
            ]
            weak = rung in ("traps", "example") or not any(map(telling, alike))
            if wrong[0] in alike and not (
                weak and (len(alike) < len(wrong) or not agree(ours, theirs, rung))
            ):
                explained[name] = alike
    most = max(map(len, explained.values()), default=0)
    best = [name for name, alike in explained.items() if len(alike) == most]
    whole = [name for name in best if agree(numbers(look_at_mistake(name, piece)), ours)]
    names = whole if whole or rung in ("traps", "example") else best
    names = [name for name in names if known_mistakes()[name].target == piece.master] or names
    left = (
        [finding.name for finding in wrong if finding not in explained[names[0]]] if names else []
    )
    return names, left[0] if left else ""


def made(mistake: list[Finding], found: list[Finding]) -> bool:
    """Could the learner have made it? Hand examples that it fails, they fail in the same way."""
    ours = {finding.name: finding.ours for finding in found if finding.rung == "example"}
    wrong = [finding for finding in mistake if finding.rung == "example" and not finding.ok]
    return all(
        finding.ours is None or same(ours.get(finding.name), finding.ours) for finding in wrong
    )


def telling(finding: Finding) -> bool:
    """Is this a result that hardly two mistakes share? It has a finite, broken number."""
    values = finding.ours if isinstance(finding.ours, tuple) else (finding.ours,)
    tensors = [
        torch.as_tensor(x).detach() for x in values if isinstance(x, Tensor | np.ndarray | float)
    ]
    return any((x.isfinite() & (x != x.round())).any() for x in tensors if x.is_floating_point())


def same(one: Any, other: Any) -> bool:
    """Two results that one mistake could give in two styles: None is no result."""
    if isinstance(other, tuple):
        fits = isinstance(one, tuple) and len(one) == len(other)
        return fits and all(a is b or same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape:
        single = torch.float32 in (one.dtype, other.dtype)
        scale = other.detach().double().abs().nan_to_num(posinf=1.0).clamp_min(1.0)
        return bool(
            right(
                one.detach().double() / scale,
                other.detach().double() / scale,
                1e-5 if single else 1e-9,
            ).all()
        )
    return one is not None and equal(one, other, 1e-9)


@cache
def look_at_mistake(name: str, piece: Piece) -> list[Finding]:
    """The findings for a piece with a known mistake in it, or in one of its parts."""
    mistake = known_mistakes()[name]
    if mistake.target == piece.master:
        return look_at(piece, mistake.stand_in, guard=False)
    with planted(mistake):
        return look_at(piece, piece.original, guard=False)


def numbers(found: list[Finding]) -> dict[tuple[str, str], Any]:
    return {
        (finding.rung, finding.name): finding.ours
        for finding in found
        if finding.rung not in ("runs", "inputs")
    }


def agree(
    one: dict[tuple[str, str], Any], other: dict[tuple[str, str], Any], rung: str | None = None
) -> bool:
    """Are all results the same, or all of one rung?"""
    if rung is not None:
        one = {key: x for key, x in one.items() if key[0] == rung}
        other = {key: x for key, x in other.items() if key[0] == rung}
    return one.keys() == other.keys() and all(
        one[key] is other[key] or same(one[key], other[key]) for key in one
    )
