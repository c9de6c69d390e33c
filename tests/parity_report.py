"""How equal is every piece to its reference, and which check catches each known mistake?

    python -m tests.parity_report --out build/parity       writes pieces.md and mistakes.md, in some minutes

``pytest --parity-report`` prints the table of the pieces for the comparisons of that test run.
"""

import argparse
import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from lessons.mistakes import MISTAKES, planted
from minisbert.core.encoder import SentenceEncoder
from minisbert.diagnosis.planting import Mistake, unfused
from tests import by_hand_checks, checks, formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, Comparison, compare, golden

MINILM = ROOT / "weights" / "all-MiniLM-L6-v2"
# these get one line in the tables: the gradients of one piece, the parameters of one model
FOLDED = (
    (re.compile(r"^(?:(.+?),? )?gradient of .*"), "gradients"),
    (re.compile(r"^(?:(.+?),? )?after 10 steps .*"), "parameters after 10 steps"),
)


class Line(NamedTuple):
    """One or more comparisons of one kind, shown by the ``worst`` of them."""

    name: str
    worst: Comparison
    count: int


class Catch(NamedTuple):
    """How a mistake was caught: the first check that fails, and its number that is furthest off."""

    mistake: Mistake
    check: str = ""  # empty: no check failed
    worst: Comparison | None = None


def share(comparison: Comparison) -> float:
    """The share of the tolerance that is used; above 1 is a failure, and NaN is the worst of all."""
    return math.inf if math.isnan(comparison.largest) else comparison.used


def folded(name: str) -> str:
    """``gelu, gradient of input 0`` -> ``gelu, gradients``; most names stay the same."""
    for pattern, kind in FOLDED:
        if found := pattern.match(name):
            return ", ".join(part for part in (found[1], kind) if part)
    return name


def fold(comparisons: Iterable[Comparison]) -> list[Line]:
    """One line for comparisons of one kind or name; those closest to their tolerance come first."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(folded(comparison.name), []).append(comparison)
    lines = [Line(name, max(group, key=share), len(group)) for name, group in groups.items()]
    return sorted(lines, key=lambda line: -share(line.worst))


def cells(worst: Comparison, times: str) -> list[str]:
    """Shape and dtype in words."""
    return [times.join(map(str, worst.shape)) or "scalar", str(worst.dtype).removeprefix("torch.")]


def summary(comparisons: Iterable[Comparison]) -> list[str]:
    """A table for the terminal."""
    comparisons = list(comparisons)
    lines = fold(comparisons)
    width = max((len(line.name) for line in lines), default=0) + 2
    table = [f"{'':<{width}}{'tensors':>7}  {'worst shape':<17}{'dtype':<9}{'max':>9}{'mean':>10}{'used':>10}  at"]
    for name, worst, count in lines:
        shape, dtype = cells(worst, " x ")
        used = f"{100 * share(worst):.2g} %"
        kind = f"{name:<{width}}{count:>7}  {shape:<17}{dtype:<9}"
        table.append(f"{kind}{worst.largest:>9.1e}{worst.mean:>10.1e}{used:>10}  {worst.worst}")
    return [*table, f"{len(comparisons)} tensors compared; used: share of the absolute tolerance"]


# ------------------------------------------------------------------------------------------ the run


def minilm() -> Iterator[Comparison]:
    """The real model in float32 against its golden file: hidden states of real tokens, and unit vectors."""
    encoder, reference = SentenceEncoder.load(MINILM), golden("minilm")
    real = reference["mask"]
    with torch.no_grad():
        for i, state in enumerate(encoder.bert.hidden_states(reference["ids"], real)):
            yield compare(f"MiniLM hidden state {i}", state[real], reference[f"hidden.{i}"][real], MINILM_HIDDEN)
        yield compare("MiniLM vectors", encoder(reference["ids"], real), reference["vectors"], MINILM_VECTOR)


def run_checks() -> dict[str, list[Comparison]]:
    """The comparisons of every check, and those of the real weights if they have been fetched."""
    found = {name: list(check()) for name, check in checks.CHECKS.items()}
    if (MINILM / "model.safetensors").is_file():
        found["real MiniLM"] = list(minilm())
    return found


def catch(mistake: Mistake) -> Catch:
    """Plant a mistake and run the checks in order, up to the first with a wrong number."""
    with planted(mistake):
        for name, check in checks.CHECKS.items():
            seen = []
            # a check that crashes gives no more numbers: go on to the next
            with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
                seen.extend(check())
            wrong = [comparison for comparison in seen if not comparison.largest <= comparison.tolerance]
            if wrong:
                return Catch(mistake, name, max(wrong, key=share))
    return Catch(mistake)


# ----------------------------------------------------------------------------------------- the report

PIECES = """\
# Every piece against its reference

A line for several tensors shows the one closest to its tolerance. The last digits depend on the processor.

| check | compared | tensors | shape | dtype | max difference | mean difference | tolerance \
| % of tolerance | worst index |
|---|---|--:|---|---|--:|--:|--:|--:|---|
"""
MISTAKEN = """\
# Every known mistake

A mistake is caught by the first check with a number beyond its tolerance; the difference is that of the number furthest
off in this check.

| mistake | what is wrong | piece | caught by | max difference | times the tolerance |
|---|---|---|---|--:|--:|
"""


def table_row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def results(found: dict[str, list[Comparison]], catches: list[Catch]) -> Iterator[str]:
    caught = [entry for entry in catches if entry.worst]
    every = [comparison for comparisons in found.values() for comparison in comparisons]
    failing = sum(not comparison.largest <= comparison.tolerance for comparison in every)
    yield f"- {len(every)} tensors compared, {failing or 'none'} beyond {'their' if failing else 'its'} tolerance."
    yield f"- {len(catches)} known mistakes planted one at a time, {len(caught)} caught by their numbers."
    if caught:
        least = min(caught, key=lambda entry: share(entry.worst))
        times = f"{float(f'{share(least.worst):.2g}'):,.0f}"
        yield f"- The mistake hardest to see, *{least.mistake.name}*, is off by {times} times the tolerance."


def rows_of_pieces(found: dict[str, list[Comparison]]) -> Iterator[str]:
    for check, comparisons in found.items():
        for name, worst, count in fold(comparisons):
            differences = [f"{value:.1e}" if value else "0" for value in (worst.largest, worst.mean)]
            used = 100 * share(worst)
            rest = [f"{worst.tolerance:g}", f"{used:.1e}" if 0 < used < 1e-2 else f"{used:.2g}"]
            index = ", ".join(map(str, worst.worst))
            yield table_row(check, name, count, *cells(worst, " × "), *differences, *rest, index)


def rows_of_mistakes(catches: list[Catch]) -> Iterator[str]:
    for mistake, check, worst in catches:
        shown = [check, f"{worst.largest:.1e}", f"{share(worst):.1e}"] if worst else ["**nothing**", "", ""]
        yield table_row(mistake.name, mistake.meaning, f"`{mistake.target}`", *shown)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "parity", metavar="FOLDER")
    options = parser.parse_args(arguments)
    with unfused():  # the checks and the mistakes are about the formulas as the book has them
        found = run_checks()
        catches = [catch(mistake) for mistake in MISTAKES.values()]
    options.out.mkdir(parents=True, exist_ok=True)
    for name, head, rows in (
        ("pieces", PIECES, rows_of_pieces(found)),
        ("mistakes", MISTAKEN, rows_of_mistakes(catches)),
    ):
        (options.out / f"{name}.md").write_text(head + "\n".join([*rows, ""]), "utf-8")
    print("\n".join(results(found, catches)))
    print(f"{options.out}: pieces.md and mistakes.md")


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads gain nothing for tensors this small
    main()
