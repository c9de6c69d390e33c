"""The rows of a run: what ``--data``, ``--dev``, ``--test`` and ``--retrieval`` name."""

from dataclasses import dataclass
from typing import Any

from minisbert.core import InputError
from minisbert.data.columns import RowsDoNotFit
from minisbert.data.rows import as_needs
from minisbert.data.splits import read_splits
from minisbert.evaluation.retrieval import load_retrieval_folder
from minisbert.training.base_loss import Loss
from minisbert.training.options import Settings


@dataclass
class RunData:
    """Rows to train on, to choose the step by, and to report; dev and test may be searches."""

    train: list[tuple]
    dev: Any
    test: Any
    notes: list[str]  # lines that say what was read
    classes: list[str]  # of the training rows


def read_run(settings: Settings, loss: Loss) -> RunData:
    """Read the rows that the settings name, in the columns that the loss reads."""
    name = settings.data or loss.default_data
    if name is None:
        needs = as_needs(loss.columns)  # a loss may read rows of several forms
        raise InputError(f"--data FILE is needed: rows of {needs[0]}")
    dev = settings.dev
    test = settings.test

    # A model is judged by rows like those that it is trained on. Some losses have rows that do not
    # say how near two texts should be: they judge a head, but an encoder needs scored pairs.
    judges_itself = loss.judges_itself or settings.head is not None
    if not judges_itself:
        dev = dev or "stsb"
        test = test or "stsb"

    # A search takes the place of dev and test.
    searches: dict[str, Any] = {}
    if settings.retrieval:
        searches = load_retrieval_folder(settings.retrieval)
        dev = "none"
        test = "none"

    try:
        splits = read_splits(
            name,
            dev,
            test,
            loss.columns,
            settings.columns,
            settings.scale,
            judged_by=loss.judged_by,
            judges_itself=judges_itself,
            quotes=settings.quotes,
            limit=settings.limit,
            seed=settings.seed,
        )
    except RowsDoNotFit as error:
        raise InputError(
            f"{error} (the rows of --loss {settings.loss}; minisbert inspect {name} shows which "
            f"loss fits yours)"
        ) from None
    data = RunData(splits.train, splits.dev, splits.test, splits.notes, splits.classes)
    if settings.retrieval:
        data.dev = searches["dev"]
        data.test = searches["test"] or []
        # The lines of dev and test, which follow that of train, say "none".
        train_note, _, _, *remarks = splits.notes
        data.notes = [train_note]
        for split, search in searches.items():
            if search:
                queries = len(search.queries)
                data.notes.append(
                    f"{split:<6} the search in {settings.retrieval}: {queries:,} queries"
                )
        data.notes += remarks
    return data
