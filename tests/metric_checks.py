"""Parity checks of metrics beyond correlation: each metric against ``classification_metrics.safetensors``.

Importing this module adds them to ``checks.CHECKS``. The values come from ``reference/metrics_reference.py``.
"""

from collections.abc import Callable, Iterator

import torch

from minisbert.objectives import more_metrics
from tests.checks import check
from tests.parity import PIECE, Comparison, compare, golden


def with_golden(name: str, metric: Callable[..., float | tuple[float, ...]], inputs: str) -> Comparison:
    """One metric of the named golden inputs against its golden value or values."""
    reference = golden("classification_metrics")
    found = metric(*(reference[key].numpy() for key in inputs.split()))
    value = torch.tensor(found if isinstance(found, tuple) else [found], dtype=torch.float64)
    return compare(name, value, reference[f"value.{name}"], PIECE)


@check
def decisions() -> Iterator[Comparison]:
    """Accuracy with two classes and with three; precision, recall and F1."""
    yield with_golden("accuracy", more_metrics.accuracy, "predicted labels")
    yield with_golden("accuracy_classes", more_metrics.accuracy, "predicted_classes classes")
    yield with_golden("precision_recall_f1", more_metrics.precision_recall_f1, "predicted labels")


@check
def thresholds() -> Iterator[Comparison]:
    """The best threshold and its value: with few ties, with many, and if predicting no 1 at all is best."""
    for name in ("few_ties", "many_ties", "reversed"):
        for metric in ("f1", "accuracy"):
            yield with_golden(
                f"threshold.{metric}.{name}",
                lambda x, y, metric=metric: more_metrics.best_threshold(x, y, metric),
                f"{name} labels",
            )


@check
def geometry() -> Iterator[Comparison]:
    """Triplet accuracy, alignment, uniformity and mean cosine of vectors with many different norms."""
    yield with_golden("triplet_accuracy", more_metrics.triplet_accuracy, "anchor positive negative")
    yield with_golden("alignment", more_metrics.alignment, "anchor positive")
    for name in ("anchor", "narrow"):
        yield with_golden(f"uniformity.{name}", more_metrics.uniformity, name)
        yield with_golden(f"mean_cosine.{name}", more_metrics.mean_off_diagonal_cosine, name)
