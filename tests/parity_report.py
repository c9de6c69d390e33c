"""How equal is every piece to its reference, and which check catches each known mistake?

    python -m tests.parity_report                                        writes docs/parity.md and docs/parity.png
    python -m tests.parity_report --out-markdown FILE --out-picture FILE

``pytest --parity-report`` prints the first of the two tables for the comparisons of that test run.
The picture needs the ``plots`` extra.
"""

import argparse
import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from lessons.mistakes import MISTAKES, planted
from minisbert.core.encoder import SentenceEncoder
from minisbert.diagnosis.mistakes.planting import Mistake, written_out
from tests import checks, formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, Comparison, compare, golden
from tests.parity_picture import FLOOR, draw

MINILM = ROOT / "weights" / "all-MiniLM-L6-v2"
BITS = ROOT / "tests" / "parity_bits.md"  # a section of the report: it is written, not computed
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


# ----------------------------------------------------------------------------------------- the tables


def table_row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def overview(found: dict[str, list[Comparison]], catches: list[Catch]) -> list[str]:
    """The report's first lines: what was compared, and the three results."""
    caught = [entry for entry in catches if entry.worst]
    count = sum(len(comparisons) for comparisons in found.values())
    failing = [c for comparisons in found.values() for c in comparisons if not c.largest <= c.tolerance]
    text = [
        "# Parity: how equal, and would we notice a mistake?",
        "",
        "Generated by `python -m tests.parity_report`. Every piece is compared with its reference (transformers,"
        " sentence-transformers, scipy, or torch's own functions) number by number: absolute differences against an"
        " absolute tolerance, in float64 except for the real weights. The golden files come from"
        " `tests/reference/make_reference.py`.",
        "",
        f"- {count} tensors compared, {len(failing) or 'none'} beyond {'their' if failing else 'its'} tolerance.",
        f"- {len(catches)} known mistakes planted one at a time, {len(caught)} caught by their numbers.",
    ]
    if caught:
        least = min(caught, key=lambda entry: share(entry.worst))
        times = f"{float(f'{share(least.worst):.2g}'):,.0f}"
        text += [f"- The mistake hardest to see, *{least.mistake.name}*, is off by {times} times the tolerance."]
    return text


def table_of_pieces(found: dict[str, list[Comparison]]) -> list[str]:
    text = [
        "## Every piece against its reference",
        "",
        "A line for several tensors shows the one closest to its tolerance. The last digits depend on the processor.",
        "",
        "| check | compared | tensors | shape | dtype | max difference | mean difference | tolerance"
        " | % of tolerance | worst index |",
        "|---|---|--:|---|---|--:|--:|--:|--:|---|",
    ]
    for check, comparisons in found.items():
        for name, worst, count in fold(comparisons):
            differences = [f"{value:.1e}" if value else "0" for value in (worst.largest, worst.mean)]
            used = 100 * share(worst)
            rest = [f"{worst.tolerance:g}", f"{used:.1e}" if 0 < used < 1e-2 else f"{used:.2g}"]
            index = ", ".join(map(str, worst.worst))
            text.append(table_row(check, name, count, *cells(worst, " × "), *differences, *rest, index))
    return text


def table_of_mistakes(catches: list[Catch]) -> list[str]:
    text = [
        "## Every known mistake",
        "",
        "A mistake is caught by the first check, in the order of the table above, with a number beyond its tolerance."
        " The difference is that of the number furthest off in this check.",
        "",
        "| mistake | what is wrong | piece | caught by | max difference | times the tolerance |",
        "|---|---|---|---|--:|--:|",
    ]
    for mistake, check, worst in catches:
        shown = [check, f"{worst.largest:.1e}", f"{share(worst):.1e}"] if worst else ["**nothing**", "", ""]
        text.append(table_row(mistake.name, mistake.meaning, f"`{mistake.target}`", *shown))
    return text


def markdown(found: dict[str, list[Comparison]], catches: list[Catch], picture: str = "") -> str:
    """The report; ``picture`` is the picture's path relative to it."""
    text = overview(found, catches)
    if picture:
        text += [
            "",
            f"![Every piece's difference and tolerance, and the mistakes it catches]({picture})",
            "",
            "Each row is a check: the difference closest to its tolerance, the tolerance, and the differences with"
            f" one mistake planted. A difference of exactly 0 is drawn at {FLOOR:g}; NaN is only in the table.",
        ]
    bits = BITS.read_text(encoding="utf-8").splitlines()
    return "\n".join([*text, "", *bits, "", *table_of_pieces(found), "", *table_of_mistakes(catches)]) + "\n"


# ---------------------------------------------------------------------------------------- the picture


def picture_rows(
    found: dict[str, list[Comparison]], catches: list[Catch]
) -> tuple[list[tuple[str, float, float]], list[tuple[int, float]]]:
    """What ``draw`` draws: a row for each check and tolerance, and the mistakes caught there."""
    rows: list[tuple[str, float, float]] = []
    places: dict[tuple[str, float], int] = {}
    for check, comparisons in found.items():
        for tolerance in dict.fromkeys(c.tolerance for c in comparisons):
            group = [c for c in comparisons if c.tolerance == tolerance]
            words = [check.replace("_", " ")]
            if all("gradient" in c.name for c in group) and "gradient" not in check:
                words.append("gradients")
            elif all("vectors" in c.name for c in group):
                words.append("unit vectors")
            places[check, tolerance] = len(rows)
            rows.append((", ".join(words), max(group, key=share).largest, tolerance))
    shown = [entry for entry in catches if entry.worst and math.isfinite(entry.worst.largest)]
    return rows, [(places[entry.check, entry.worst.tolerance], entry.worst.largest) for entry in shown]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__.splitlines()[0])
    parser.add_argument("--out-markdown", type=Path, default=ROOT / "docs" / "parity.md", metavar="FILE")
    parser.add_argument("--out-picture", type=Path, default=ROOT / "docs" / "parity.png", metavar="FILE")
    options = parser.parse_args(arguments)
    with written_out():  # the checks and the mistakes are about the formulas as the book has them
        found = run_checks()
        catches = [catch(mistake) for mistake in MISTAKES.values()]
    report, picture = options.out_markdown.resolve(), options.out_picture.resolve()
    draw(*picture_rows(found, catches), picture)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(markdown(found, catches, os.path.relpath(picture, report.parent)), "utf-8")
    missed = [entry.mistake.name for entry in catches if not entry.worst]
    print(f"wrote {report} and {picture}: {len(found)} checks, {len(catches)} mistakes, {len(missed)} not caught")


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads gain nothing for tensors this small
    main()
