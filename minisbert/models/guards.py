"""Checks of arguments and batches before a forward pass, which checks no values itself, and eval mode around it."""

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.core.bert import BertConfig
from minisbert.core.checks import check


class PerThread:
    """A counter of an object, 0 at first, that each thread sets and reads for itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> int:
        return vars(instance).get(self.name, {}).get(threading.get_ident(), 0)

    def __set__(self, instance: object, value: int) -> None:
        vars(instance).setdefault(self.name, {})[threading.get_ident()] = value


def check_count(name: str, value: object) -> None:
    """Raise ``InputError`` unless an argument is an integer from 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be an integer from 1, not {one_line(value)}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ``InputError`` unless an argument is one of the choices."""
    if not isinstance(value, Hashable) or isinstance(value, Tensor) or value not in choices:
        allowed = ", ".join(map(str, choices))
        raise InputError(f"{name} must be one of {allowed}, not {one_line(value)}")


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for inputs that would crash the model or silently give wrong numbers.

    These are another shape than (B, T), a row of the mask without a real token, and what ``check_ids`` finds.
    """
    check("ids (B, T), mask (B, T), token_types (B, T)", ids, mask, token_types)
    check_ids(config, ids, ids.shape[1], token_types)
    if mask is None:
        return
    real = mask.bool().any(dim=1)  # (B,)
    if not real.all():
        raise ValueError(f"row {int(real.int().argmin())} of the mask has no real token: attention would be 0/0")


def check_ids(config: BertConfig, ids: Tensor, longest: int, token_types: Tensor | None = None) -> None:
    """Raise ``ValueError`` for ids or token types that the model does not have, or more tokens than positions."""
    if longest > config.positions:
        raise ValueError(f"{longest} tokens, but the position table has {config.positions}: let the tokenizer cut them")
    check_range("ids", ids, config.vocab_size, "in its vocabulary: do tokenizer and weights belong together?")
    if token_types is not None:
        check_range("token_types", token_types, config.type_vocab_size, "types")


def check_range(name: str, values: Tensor, size: int, things: str) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= max(size, 1):  # a model without token types is given zeros
        raise ValueError(f"{name} run from {low} to {high}, this model has {size or 'no'} {things}")


_lock = threading.Lock()
_modes: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()  # of modules in ``evaluating``, before each call


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each module is in its own mode again (a caller may have frozen some).

    Several threads may evaluate one model: the last of them restores the modes.
    """
    modules = [module for model in models for module in model.modules()]
    with _lock:
        for module in modules:
            _modes.setdefault(module, []).append(module.training)
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                module.training = _modes[module].pop()
