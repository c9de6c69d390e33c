"""Losses on the tiny model, ready to compute."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.base_loss import Loss
from minisbert.training.named_heads import add_head
from minisbert.training.table import find_loss
from tests import toys


@pytest.fixture
def prepare(tiny: Path) -> Callable[..., SimpleNamespace]:
    """Prepare a loss on toy rows: ``prepare("cosine")`` or ``prepare(MSE(), head="siamese")``.

    Gives its loss, model, rows and network, the network in float64 and eval mode.
    """

    def build(
        loss: str | Loss,
        head: str = "",
        rows: list[tuple] | None = None,
        model: SentenceEncoder | None = None,
    ) -> SimpleNamespace:
        torch.manual_seed(3)
        model = model or SentenceEncoder.load(tiny, device="cpu")
        name = str(loss)
        if isinstance(loss, Loss):
            name = type(loss).__name__.lower()
        loss = find_loss(loss, head=bool(head))
        if rows is None:
            rows = toys.rows(toys.FORM.get(name, "triplets"))
        if head:
            labels = []
            if loss.task == "classes":
                labels = sorted(toys.NLI_LABELS)
            model = add_head(model, head, loss.task, labels)
        network = loss.prepare(model, rows)
        network.double().eval()
        if loss.targets is not None and loss.targets.is_floating_point():
            loss.targets = loss.targets.double()
        return SimpleNamespace(loss=loss, model=model, rows=rows, network=network)

    return build
