"""How equal, and would we notice? The numbers of every parity check, and of every mistake planted on purpose.

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
from dataclasses import dataclass
from pathlib import Path

import torch

from minisbert.mistakes import MISTAKES, planted
from minisbert.mistakes.planting import Mistake
from minisbert.models.sentence_encoder import SentenceEncoder
from tests import checks, formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401  (their checks)
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, Comparison, compare, golden

FLOOR = 1e-17  # where a difference of exactly 0 is drawn
MINILM = ROOT / "weights" / "all-MiniLM-L6-v2"
# one line in the tables for: the gradients of one piece, the parameters of one model
FOLDED = (
    (re.compile(r"^(?:(.+?),? )?gradient of .*"), "gradients"),
    (re.compile(r"^(?:(.+?),? )?after 10 steps .*"), "parameters after 10 steps"),
)


@dataclass(frozen=True)
class Line:
    """One or many comparisons of one kind: ``worst`` stands for all of them."""

    name: str
    worst: Comparison
    count: int


@dataclass(frozen=True)
class Catch:
    """What gave a mistake away: the first check that fails, and there the number that is furthest off."""

    mistake: Mistake
    check: str = ""  # empty: nothing did
    worst: Comparison | None = None


def share(comparison: Comparison) -> float:
    """Of its tolerance; above 1 is a failure, and NaN is the worst of all."""
    return math.inf if math.isnan(comparison.largest) else comparison.used


def folded(name: str) -> str:
    """``gelu, gradient of input 0`` -> ``gelu, gradients``; most names stay as they are."""
    for pattern, kind in FOLDED:
        if found := pattern.match(name):
            return ", ".join(part for part in (found[1], kind) if part)
    return name


def fold(comparisons: Iterable[Comparison]) -> list[Line]:
    """Comparisons of one kind or of the same name in one line each; closest to its tolerance first."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(folded(comparison.name), []).append(comparison)
    lines = [Line(name, max(group, key=share), len(group)) for name, group in groups.items()]
    return sorted(lines, key=lambda line: -share(line.worst))


def summary(comparisons: Iterable[Comparison]) -> list[str]:
    """A table for the terminal."""
    comparisons = list(comparisons)
    lines = fold(comparisons)
    width = max((len(line.name) for line in lines), default=0) + 2
    table = [f"{'':<{width}}{'tensors':>7}  {'worst shape':<17}{'dtype':<9}{'max':>9}{'mean':>10}{'used':>10}  at"]
    for line in lines:
        worst = line.worst
        shape, dtype = " x ".join(map(str, worst.shape)), str(worst.dtype).removeprefix("torch.")
        used = f"{100 * share(worst):.2g} %"
        table.append(
            f"{line.name:<{width}}{line.count:>7}  {shape:<17}{dtype:<9}{worst.largest:>9.1e}{worst.mean:>10.1e}"
            f"{used:>10}  {worst.worst}"
        )
    return [*table, f"{len(comparisons)} tensors compared; used: share of the tolerance, absolute"]


# ------------------------------------------------------------------------------------------ the run


def minilm() -> Iterator[Comparison]:
    """The real model in float32 beside its golden file: hidden states of real tokens, and unit vectors."""
    encoder, reference = SentenceEncoder.load(MINILM), golden("minilm")
    real = reference["mask"]
    with torch.no_grad():
        for i, state in enumerate(encoder.bert.hidden_states(reference["ids"], real)):
            yield compare(f"MiniLM hidden state {i}", state[real], reference[f"hidden.{i}"][real], MINILM_HIDDEN)
        yield compare("MiniLM vectors", encoder(reference["ids"], real), reference["vectors"], MINILM_VECTOR)


def run_checks() -> dict[str, list[Comparison]]:
    """Every check's comparisons; those of the real weights where they are there."""
    found = {name: list(check()) for name, check in checks.CHECKS.items()}
    if (MINILM / "model.safetensors").is_file():
        found["real MiniLM"] = list(minilm())
    return found


def catch(mistake: Mistake) -> Catch:
    """Plant a mistake and run the checks, in order, up to the first with a wrong number."""
    with planted(mistake):
        for name, check in checks.CHECKS.items():
            seen = []
            # a crash tells no numbers: go on
            with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
                seen.extend(check())
            wrong = [comparison for comparison in seen if not comparison.largest <= comparison.tolerance]
            if wrong:
                return Catch(mistake, name, max(wrong, key=share))
    return Catch(mistake)


# ----------------------------------------------------------------------------------------- the tables


def multiple(value: float) -> str:
    """Of a tolerance, two digits of it."""
    return "not a number" if math.isinf(value) else f"{value:.1e}"


def percent(value: float) -> str:
    return f"{100 * value:.1e}" if 0 < value < 1e-4 else f"{100 * value:.2g}"


def cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def markdown(found: dict[str, list[Comparison]], catches: list[Catch], picture: str = "") -> str:
    """The report; ``picture`` is its path as seen from the report."""
    caught = [entry for entry in catches if entry.worst]
    count = sum(len(comparisons) for comparisons in found.values())
    failing = [c for comparisons in found.values() for c in comparisons if not c.largest <= c.tolerance]
    least = min(caught, key=lambda entry: share(entry.worst), default=None)
    text = ["# Parity: how equal, and would we notice?", ""]
    text += [
        "Made by `python -m tests.parity_report`; not written by hand. Every piece is compared with its reference"
        " (transformers, sentence-transformers, scipy or a function of torch's own), number by number: absolute"
        " differences against an absolute tolerance, float64 but for the real weights. The golden files come from"
        " `tests/reference/make_reference.py`.",
        "",
        f"- {count} tensors compared, {len(failing) or 'none'} beyond {'their' if failing else 'its'} tolerance.",
        f"- {len(catches)} known mistakes planted one by one, {len(caught)} caught by their numbers.",
    ]
    if least:
        text += [
            f"- The mistake that is hardest to see, *{least.mistake.name}*, is off by"
            f" {float(f'{share(least.worst):.2g}'):,.0f} times the tolerance."
        ]
    if picture:
        text += ["", f"![Difference of every piece, its tolerance, and every mistake]({picture})", ""]
        text += [
            "Each row is a check: the number that comes closest to its tolerance, the tolerance, and where that check's"
            f" numbers land when a mistake is planted. A difference of exactly 0 is drawn at {FLOOR:g}; a mistake whose"
            " numbers are not numbers is only in the table."
        ]
    text += ["", "## Every piece beside its reference", ""]
    text += [
        "Of many tensors the one that comes closest to its tolerance stands for all. Processors round differently:"
        " the last digits of these differences are those of one machine.",
        "",
        "| check | what is compared | tensors | shape | dtype | max difference | mean | tolerance | used, % | at |",
        "|---|---|--:|---|---|--:|--:|--:|--:|---|",
    ]
    for check, comparisons in found.items():
        for line in fold(comparisons):
            worst = line.worst
            cells = [
                check,
                line.name,
                line.count,
                " × ".join(map(str, worst.shape)) or "scalar",
                str(worst.dtype).removeprefix("torch."),
                f"{worst.largest:.1e}" if worst.largest else "0",
                f"{worst.mean:.1e}" if worst.mean else "0",
                f"{worst.tolerance:g}",
                percent(share(worst)),
                ", ".join(map(str, worst.worst)),
            ]
            text.append(f"| {' | '.join(cell(value) for value in cells)} |")
    text += ["", "## Every known mistake, planted", ""]
    text += [
        "Caught by: the first check, in the order of the table above, with a number out of tolerance; there the"
        " number that is furthest off, as a multiple of its tolerance.",
        "",
        "| mistake | what is wrong | where | caught by | difference | times the tolerance |",
        "|---|---|---|---|--:|--:|",
    ]
    for entry in catches:
        mistake, worst = entry.mistake, entry.worst
        shown = [entry.check, f"{worst.largest:.1e}", multiple(share(worst))] if worst else ["**nothing**", "", ""]
        cells = [mistake.name, mistake.meaning, f"`{mistake.target}`", *shown]
        text.append(f"| {' | '.join(cell(value) for value in cells)} |")
    return "\n".join(text) + "\n"


# ---------------------------------------------------------------------------------------- the picture


def draw(found: dict[str, list[Comparison]], catches: list[Catch], path: Path) -> None:
    """One row a piece: where it is (dot), how far it may go (tick), where the mistakes caught there land (crosses)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = []  # label, check, tolerance, and of these the comparison closest to it
    for check, comparisons in found.items():
        for tolerance in dict.fromkeys(c.tolerance for c in comparisons):
            group = [c for c in comparisons if c.tolerance == tolerance]
            words = [check.replace("_", " ")]
            if all("gradient" in c.name for c in group) and "gradient" not in check:
                words.append("gradients")
            elif all("vectors" in c.name for c in group):
                words.append("unit vectors")
            rows.append((", ".join(words), check, tolerance, max(group, key=share)))
    places = {(check, tolerance): y for y, (_, check, tolerance, _) in enumerate(rows)}

    plt.rcParams.update({"font.size": 10, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.24 * len(rows)), dpi=110, layout="constrained")
    for y, (_, _, _, worst) in enumerate(rows):
        at = max(worst.largest, FLOOR)
        axes.plot([at, worst.tolerance], [y, y], color="#c9d3dc", linewidth=1.2, zorder=1)
        axes.plot(at, y, "o", color="#1768ac", markersize=5.5, zorder=3)
        axes.plot([worst.tolerance] * 2, [y - 0.36, y + 0.36], color="#222222", linewidth=1.8, zorder=2)
    for entry in catches:
        if entry.worst and math.isfinite(entry.worst.largest):
            y = places[entry.check, entry.worst.tolerance]
            axes.plot(entry.worst.largest, y, "x", color="#d1495b", markersize=5.5, markeredgewidth=1.3, zorder=3)
    axes.plot([], [], "o", color="#1768ac", label="largest difference from the reference")
    axes.plot([], [], "|", color="#222222", markersize=10, markeredgewidth=1.8, label="tolerance")
    axes.plot([], [], "x", color="#d1495b", label="the same with one known mistake planted")
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 3, None)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"absolute difference, logarithmic; exactly 0 is drawn at {FLOOR:g}")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__.splitlines()[0])
    parser.add_argument("--out-markdown", type=Path, default=ROOT / "docs" / "parity.md", metavar="FILE")
    parser.add_argument("--out-picture", type=Path, default=ROOT / "docs" / "parity.png", metavar="FILE")
    options = parser.parse_args(arguments)
    found = run_checks()
    catches = [catch(mistake) for mistake in MISTAKES.values()]
    report, picture = options.out_markdown.resolve(), options.out_picture.resolve()
    draw(found, catches, picture)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(markdown(found, catches, os.path.relpath(picture, report.parent)), "utf-8")
    missed = [entry.mistake.name for entry in catches if not entry.worst]
    print(f"wrote {report} and {picture}: {len(found)} checks, {len(catches)} mistakes, {len(missed)} not caught")


if __name__ == "__main__":
    torch.set_num_threads(1)  # tensors this small gain nothing from a second thread, and lose much on a busy machine
    main()
