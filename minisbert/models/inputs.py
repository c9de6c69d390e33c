"""What surrounds the forward pass of a batch: the check of its values, which are not checked in it, and eval mode."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from minisbert.core.bert import BertConfig
from minisbert.core.checks import check


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for a batch that ``Bert`` would fail at, or compute a wrong number from.

    That is ids not (B, T) or not in the vocabulary, more tokens than positions, token types that the model does not
    have, and a mask of another shape or with a row without a real token. ``Bert`` itself refuses a mask of floats.
    """
    check("ids (B, T), mask (B, T) True in every row, token_types (B, T)", ids, mask, token_types)
    check_ids(config, ids, ids.shape[1])
    types = config.type_vocab_size
    if token_types is not None and (token_types.min() < 0 or token_types.max() >= max(types, 1)):
        raise ValueError(f"token_types must be in 0..{max(types, 1) - 1}: this model has {types or 'no'} types")


def check_ids(config: BertConfig, ids: Tensor, longest: int) -> None:
    """Raise ``ValueError`` for ids that are not in the vocabulary, and for a text of more tokens than positions."""
    tokens, words = config.positions, config.vocab_size
    if longest > tokens:
        raise ValueError(f"{longest} tokens, but the position table has {tokens}: let the tokenizer cut them")
    if ids.min() < 0 or ids.max() >= words:
        found = f"ids run from {ids.min().item()} to {ids.max().item()}, the vocabulary from 0 to {words - 1}"
        raise ValueError(f"{found}: do tokenizer and weights belong together?")


_lock = threading.Lock()
_held: dict[nn.Module, tuple[int, bool]] = {}  # modules in ``evaluating``: by how many callers, and their own mode


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each module gets its own mode back (a caller may have frozen some).

    Several threads may evaluate one model: a module gets its mode back from the last of them.
    """
    modules = [module for model in models for module in model.modules()]
    with _lock:
        for module in modules:
            callers, mode = _held.get(module, (0, module.training))
            _held[module] = callers + 1, mode
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                _release(module)


def _release(module: nn.Module) -> None:
    callers, mode = _held.pop(module)
    if callers > 1:
        _held[module] = callers - 1, mode
    else:
        module.training = mode
