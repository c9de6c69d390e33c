"""What a model was trained on, as far as the run beside its folder tells: to see which test pairs it has met."""

from itertools import combinations
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.data.datasets import duplicate_rows, nli_rows, scored_rows, triplet_rows
from minisbert.folder.model_folder import find_model
from minisbert.training.command_line import read_settings
from minisbert.training.run_folder import METRICS

# what reads the rows of an objective; a row of simcse is one sentence, those of distillation are not compared
READERS = dict.fromkeys(("cosine", "cosent", "cross-encoder", "siamese", "cross-attention"), scored_rows)
READERS |= {"softmax": nli_rows, "binary": duplicate_rows, "contrastive": duplicate_rows}
READERS |= dict.fromkeys(("triplet", "mnr", "simcse-supervised", "splade", "late-interaction"), triplet_rows)


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
            if options.objective not in (*READERS, "simcse"):
                return None, f"not known: the rows of objective {options.objective} are not compared with test pairs"
            rows = [] if options.objective == "simcse" else READERS[options.objective](options)[0]
        except InputError as error:
            return None, f"not known: {error}"
        pairs |= text_pairs(rows["train"] if isinstance(rows, dict) else rows)
        notes[run] = f"{options.data or 'the default data'} by objective {options.objective}, in {run}"
        run = Path(options.model).resolve().parent
    if not notes:
        return None, "not known: there is no run's config.json beside the model"
    return pairs, "; before that ".join(notes.values())


def text_pairs(rows: list[Any]) -> set[frozenset[str]]:
    """Every two texts of each row; two equal texts are a set of one."""
    values = (row if isinstance(row, tuple) else vars(row).values() for row in rows)
    found = ([text for text in texts if isinstance(text, str)] for texts in values)
    return {frozenset(pair) for texts in found for pair in combinations(texts, 2)}
