"""What a model was trained on, as far as the run beside its folder tells: to see which test pairs it has met."""

from itertools import combinations
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.data.datasets import duplicate_rows, nli_rows, scored_rows, triplet_rows
from minisbert.models.folders import find_model
from minisbert.training.folder import METRICS
from minisbert.training.options import read_settings
from minisbert.training.settings import RunSettings


def trained_on(model: str | Path) -> tuple[set[frozenset[str]] | None, str]:
    """Every two texts that shared a training row, in any order, and a note that says of which runs.

    A run that began with another run's model counts that one's rows too. None if there is no run beside the model, or
    if its rows cannot be read any more; the note says why.
    """
    pairs: set[frozenset[str]] = set()
    notes: dict[Path, str] = {}
    run = find_model(model).resolve().parent
    while (run / "config.json").is_file() and (run / METRICS).is_file() and run not in notes:
        try:
            options = read_settings(run / "config.json")
            pairs |= text_pairs(training_rows(options))
        except InputError as error:
            return None, f"not known: {error}"
        notes[run] = f"{options.data or 'the default data'} by objective {options.objective}, in {run}"
        run = Path(options.model).resolve().parent
    if not notes:
        return None, "not known: there is no run's config.json beside the model"
    return pairs, "; before that ".join(notes.values())


def training_rows(options: RunSettings) -> list[Any]:
    """The training rows of a run; none for plain sentences, which share no row."""
    if options.objective in ("cosine", "cosent", "cross-encoder", "siamese", "cross-attention"):
        return scored_rows(options)[0]["train"]
    if options.objective == "softmax":
        return nli_rows(options)[0]["train"]
    if options.objective in ("binary", "contrastive"):
        return duplicate_rows(options)[0]["train"]
    if options.objective in ("triplet", "mnr", "simcse-supervised", "splade", "late-interaction"):
        return triplet_rows(options)[0]
    if options.objective == "simcse":
        return []
    raise InputError(f"the rows of objective {options.objective} are not compared with test pairs")


def text_pairs(rows: list[Any]) -> set[frozenset[str]]:
    """Every two texts of each row; two equal texts are a set of one."""
    values = (row if isinstance(row, tuple) else vars(row).values() for row in rows)
    found = ([text for text in texts if isinstance(text, str)] for texts in values)
    return {frozenset(pair) for texts in found for pair in combinations(texts, 2)}
