"""The losses by their names, as ``--loss`` and ``train(loss=...)`` take them.

A loss of your own is a class like these, and ``train(encoder, rows, loss=MyLoss())`` takes it.
"""

from typing import Literal

from minisbert.core import InputError
from minisbert.training.base_loss import Loss
from minisbert.training.encoder_losses import CoSENT, Cosine, Ranking, SimCSE, Triplet
from minisbert.training.head_losses import MSE, Binary, CandidateRanking, Softmax
from minisbert.training.masked import MaskedWords
from minisbert.training.options import Settings
from minisbert.training.teachers import Distillation

# For type checkers: the names in ``LOSSES``.
LossName = Literal[
    "cosine",
    "cosent",
    "ranking",
    "triplet",
    "simcse",
    "softmax",
    "mse",
    "binary",
    "mlm",
    "distillation",
]
LOSSES: dict[str, type[Loss]] = {
    "cosine": Cosine,
    "cosent": CoSENT,
    "ranking": Ranking,
    "triplet": Triplet,
    "simcse": SimCSE,
    "softmax": Softmax,
    "mse": MSE,
    "binary": Binary,
    "mlm": MaskedWords,
    "distillation": Distillation,
}


def find_loss(name: str | Loss, head: bool = False) -> Loss:
    """Return the loss of a name, with its default settings; a ``Loss`` is returned as it is.

    ``head``: the model has a head, so that "ranking" compares the scores of candidates.
    """
    if isinstance(name, Loss):
        return name
    if isinstance(name, type):
        raise InputError(
            f"loss {name.__name__} is a class: give an object of it, {name.__name__}()"
        )
    if name == "ranking" and head:
        return CandidateRanking()
    if name not in LOSSES:
        raise InputError(f"loss {name!r}: choose from {', '.join(LOSSES)}, or give a Loss")
    return LOSSES[name]()


def loss_of(settings: Settings, loss: Loss | None = None) -> Loss:
    """Make the loss of a run, with those of the run's settings that it has.

    ``loss`` takes the place of the one that the settings name; its settings are set in place.
    """
    loss = find_loss(loss or settings.loss, head=settings.head is not None)
    widths: tuple[int, ...] = ()
    if settings.matryoshka:
        widths = tuple(int(width) for width in settings.matryoshka.split(","))
    loss_settings = {
        "temperature": settings.temperature,
        "projection": settings.projection,
        "matryoshka": widths,
        "teacher": settings.teacher,
        "same_views": settings.dropout == 0,  # --dropout 0 asks for them
    }
    for name, value in loss_settings.items():
        if hasattr(loss, name):
            setattr(loss, name, value)
    return loss
