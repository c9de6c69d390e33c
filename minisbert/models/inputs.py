"""What surrounds the forward pass of a batch: the check of its values, which are not checked in it, and eval mode."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from minisbert.core.bert import BertConfig


class PerThread:
    """A counter of an object, 0 at first, that each thread sets and reads for itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> int:
        return vars(instance).get(self.name, {}).get(threading.get_ident(), 0)

    def __set__(self, instance: object, value: int) -> None:
        vars(instance).setdefault(self.name, {})[threading.get_ident()] = value


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for a batch that ``Bert`` would fail at, or compute a wrong number from.

    That is ids not (B, T) or not in the vocabulary, more tokens than positions, token types that the model does not
    have, and a mask of another shape, of floats, or with a row without a real token.
    """
    types = config.type_vocab_size
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"ids must be (B, T) with at least one token, not {tuple(ids.shape)}")
    check_ids(config, ids, ids.shape[1])
    for name, other in (("mask", mask), ("token_types", token_types)):
        if other is not None and other.shape != ids.shape:
            raise ValueError(f"{name} {tuple(other.shape)} must have the shape of ids, {tuple(ids.shape)}")
    if token_types is not None and (token_types.min() < 0 or token_types.max() >= max(types, 1)):
        raise ValueError(f"token_types must lie in 0..{max(types, 1) - 1}: this model has {types or 'no'} types")
    if mask is not None and mask.is_floating_point():
        raise ValueError("mask must be boolean or 0 and 1 as integers, not floats (no additive masks here)")
    if mask is not None and not (real := mask.bool().any(dim=1)).all():
        raise ValueError(f"row {int(real.int().argmin())} of the mask has no real token: attention would be 0/0")


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
