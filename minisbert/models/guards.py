"""Checks of arguments and batches before a forward pass, which checks no values itself, and eval mode around it."""

import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.core.bert import BertConfig
from minisbert.core.checks import check_shape, check_texts
from minisbert.core.tokenizer import Encoded


class NotFinite(InputError):
    """A model's output holds NaN or infinity."""


def check_count(name: str, value: object) -> None:
    """Raise ``InputError`` unless an argument is an integer from 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be an integer from 1, not {one_line(value)}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ``InputError`` unless an argument is one of the choices."""
    # A tensor is hashable, but ``in`` would compare it element by element.
    if not isinstance(value, Hashable) or isinstance(value, Tensor) or value not in choices:
        allowed = ", ".join(str(choice) for choice in choices if choice is not None)
        raise InputError(f"{name} must be one of {allowed}, not {one_line(value)}")


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        check_texts(texts)  # type: ignore[arg-type]  # which refuses them
    for i, text in enumerate(texts):
        check_texts([text], i)
        yield text


def check_tokens(encoded: Encoded, texts: Sequence[str]) -> Encoded:
    """Return what was given. Raises ``InputError`` for a text without a token, which an encoder cannot read."""
    for text, ids in zip(texts, encoded.ids, strict=True):
        if not len(ids):
            raise InputError(f"the text {one_line(text)} has no token, and this tokenizer adds none: remove the text")
    return encoded


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for inputs that would crash the model or silently give wrong numbers.

    These are a shape other than (B, T), a row of the mask without a real token, and what ``check_ids`` refuses.
    """
    if isinstance(ids, dict):
        raise TypeError('ids must be a tensor (B, T), not a dict: features["input_ids"], features["attention_mask"]')
    check_shape("ids", ids, None, None)
    for name, x in (("mask", mask), ("token_types", token_types)):
        if x is not None:
            check_shape(name, x, *ids.shape)
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # whoever records a graph has checked its input: values cannot be read then
    # On a GPU a lookup beyond a table is a failed assertion on the device, after which the process cannot use it.
    check_ids(config, ids, ids.shape[1], token_types)
    if mask is None:
        return
    real = mask.bool().any(dim=1)  # (B,)
    if not real.all():
        raise ValueError(f"row {int(real.int().argmin())} of the mask has no real token: attention would be 0/0")


def check_ids(config: BertConfig, ids: Tensor | np.ndarray, longest: int, token_types: Tensor | None = None) -> None:
    """Raise ``ValueError`` for ids or token types that the model does not have, or more tokens than positions."""
    if longest > config.positions:
        raise ValueError(f"{longest} tokens, but the position table has {config.positions}: let the tokenizer cut them")
    tables = [("ids", ids, config.vocab_size, "in its vocabulary: do tokenizer and weights belong together?")]
    if token_types is not None:
        tables.append(("token_types", token_types, config.type_vocab_size, "types"))
    for name, values, size, things in tables:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= max(size, 1):  # a model without token types is given zeros
            raise ValueError(f"{name} run from {low} to {high}, this model has {size or 'no'} {things}")


_lock = threading.Lock()
_modes: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()  # a stack for each module, one entry per call


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Switch to eval mode without gradients; then restore the mode of each module (a caller may have frozen some).

    Several threads may evaluate one model: the last of them restores the modes.
    """
    modules: list[nn.Module] = []
    for model in models:
        modules += model.modules()
    # A module remembers its modes in a stack. The thread that entered first has pushed the caller's mode, any other one
    # pushes False; whoever leaves last pops the caller's.
    with _lock:
        for module in modules:
            _modes.setdefault(module, []).append(module.training)
            vars(module)["training"] = False  # nn.Module's own assignment takes ten times as long
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                vars(module)["training"] = _modes[module].pop()
