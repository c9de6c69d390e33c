"""Changes to a model before training: frozen layers and another dropout rate; and its number of parameters."""

from dataclasses import replace

from torch import nn

from minisbert.core.bert import Attention, Bert


def freeze(bert: Bert, layers: int, embeddings: bool = False) -> None:
    """Freeze the lowest ``layers``, and optionally the embeddings; their dropout stays on.

    Raises ``ValueError`` for more layers than the encoder has.
    """
    if not 0 <= layers <= len(bert.layers):
        raise ValueError(f"{layers} layers cannot be frozen: this encoder has {len(bert.layers)}")
    for layer in bert.layers[:layers]:
        layer.requires_grad_(False)
    if embeddings:
        bert.embeddings.requires_grad_(False)


def set_dropout(bert: Bert, rate: float) -> None:
    """Set the rate of all dropout in the encoder, for hidden states and attention, and in its ``config``.

    Raises ``ValueError`` for a rate outside [0, 1).
    """
    bert.config = replace(bert.config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    for module in bert.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, Attention):
            module.dropout = rate


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """The number of parameters of a module, and of those that are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)
