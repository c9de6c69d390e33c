"""How equal is every piece to its reference, and which check catches each known mistake?

    python -m tests.parity_report                                        writes docs/parity*.md and docs/parity.png
    python -m tests.parity_report --out-markdown FILE --out-picture FILE

``pytest --parity-report`` prints the table of the pieces for the comparisons of that test run.
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
from minisbert.diagnosis.mistakes.planting import Mistake, unfused
from tests import by_hand_checks, checks, formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, Comparison, compare, golden

MINILM = ROOT / "weights" / "all-MiniLM-L6-v2"
FLOOR = 1e-17  # where the picture has a difference of exactly 0
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


# ----------------------------------------------------------------------------------------- the report

PAGES = {  # by what their names end in
    "": """\
# Parity: how equal, and would we notice a mistake?

For anyone who asks how we know that the numbers are right. `python -m tests.parity_report` writes this page. \
Every piece is compared with its reference (transformers, sentence-transformers, scipy, or torch's own functions) \
number by number: absolute differences against an absolute tolerance, \
in float64 except for the real weights. The golden files come from `tests/reference/make_reference.py`.

{results}

![Every piece's difference and tolerance, and the mistakes it catches]({picture})

Each row is a check: the difference closest to its tolerance, the tolerance, and the differences with one mistake \
planted. A difference of exactly 0 is drawn at {floor:g}; NaN is only in the table. Number by number: \
[every piece]({stem}-pieces.md), and [every known mistake]({stem}-mistakes.md).

{bits}""",
    "-pieces": """\
# Every piece against its reference

For anyone who wants every number behind [parity]({stem}.md). A line for several tensors shows the one closest to its \
tolerance. The last digits depend on the processor.

| check | compared | tensors | shape | dtype | max difference | mean difference | tolerance \
| % of tolerance | worst index |
|---|---|--:|---|---|--:|--:|--:|--:|---|
{pieces}
""",
    "-mistakes": """\
# Every known mistake

For anyone who wants every mistake behind [parity]({stem}.md). A mistake is caught by the first check, in the order of \
[the pieces]({stem}-pieces.md), with a number beyond its tolerance. \
The difference is that of the number furthest off in this check.

| mistake | what is wrong | piece | caught by | max difference | times the tolerance |
|---|---|---|---|--:|--:|
{mistakes}
""",
}


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


def pages(
    found: dict[str, list[Comparison]], catches: list[Catch], stem: str = "parity", picture: str = ""
) -> dict[str, str]:
    """The texts of the report's pages by their names; ``picture`` is the picture's path relative to them."""
    lines = {"results": results(found, catches), "pieces": rows_of_pieces(found), "mistakes": rows_of_mistakes(catches)}
    texts = {name: "\n".join(rows) for name, rows in lines.items()}
    texts |= {"stem": stem, "picture": picture, "bits": BITS.read_text(encoding="utf-8")}
    return {f"{stem}{end}.md": text.format(floor=FLOOR, **texts) for end, text in PAGES.items()}


# ---------------------------------------------------------------------------------------- the picture


def draw(found: dict[str, list[Comparison]], catches: list[Catch], path: Path) -> None:
    """For each check and tolerance the difference (a dot), the tolerance (a tick), mistakes caught there (crosses)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups: dict[tuple[str, float], list[Comparison]] = {}
    for check, comparisons in found.items():
        for comparison in comparisons:
            groups.setdefault((check, comparison.tolerance), []).append(comparison)
    plt.rcParams.update({"font.size": 10, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.24 * len(groups)), dpi=110, layout="constrained")
    for y, ((_, tolerance), group) in enumerate(groups.items()):
        at = max(max(group, key=share).largest, FLOOR)
        axes.plot([at, tolerance], [y, y], color="#c9d3dc", linewidth=1.2, zorder=1)
        axes.plot(at, y, "o", color="#1768ac", markersize=5.5, zorder=3)
        axes.plot([tolerance] * 2, [y - 0.36, y + 0.36], color="#222222", linewidth=1.8, zorder=2)
    places = list(groups)
    for _, check, worst in catches:
        if worst and math.isfinite(worst.largest):
            y = places.index((check, worst.tolerance))
            axes.plot(worst.largest, y, "x", color="#d1495b", markersize=5.5, markeredgewidth=1.3, zorder=3)
    axes.plot([], [], "o", color="#1768ac", label="largest difference from the reference")
    axes.plot([], [], "|", color="#222222", markersize=10, markeredgewidth=1.8, label="tolerance")
    axes.plot([], [], "x", color="#d1495b", label="difference with a known mistake planted")
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 3, None)
    axes.set_yticks(range(len(groups)), [label(check, group) for (check, _), group in groups.items()])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(f"absolute difference (log scale); exactly 0 is drawn at {FLOOR:g}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def label(check: str, group: list[Comparison]) -> str:
    """``bert_gradients`` -> ``bert gradients``; what the comparisons of one tolerance are, if the name does not say."""
    gradients = "gradient" not in check and all("gradient" in one.name for one in group)
    kind = "gradients" if gradients else "unit vectors" if all("vectors" in one.name for one in group) else ""
    return ", ".join(filter(None, [check.replace("_", " "), kind]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__.splitlines()[0])
    parser.add_argument("--out-markdown", type=Path, default=ROOT / "docs" / "parity.md", metavar="FILE")
    parser.add_argument("--out-picture", type=Path, default=ROOT / "docs" / "parity.png", metavar="FILE")
    options = parser.parse_args(arguments)
    with unfused():  # the checks and the mistakes are about the formulas as the book has them
        found = run_checks()
        catches = [catch(mistake) for mistake in MISTAKES.values()]
    report, picture = options.out_markdown.resolve(), options.out_picture.resolve()
    draw(found, catches, picture)
    report.parent.mkdir(parents=True, exist_ok=True)
    for name, text in pages(found, catches, report.stem, os.path.relpath(picture, report.parent)).items():
        (report.parent / name).write_text(text, "utf-8")
    missed = [entry.mistake.name for entry in catches if not entry.worst]
    print(f"wrote {report} and {picture}: {len(found)} checks, {len(catches)} mistakes, {len(missed)} not caught")


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads gain nothing for tensors this small
    main()
