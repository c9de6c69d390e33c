"""Before and around a forward pass, which checks no values itself: the check of a batch, and eval mode."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

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


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for a batch that ``Bert`` would fail at, or compute a wrong number from.

    That is another shape than (B, T), a row of the mask without a real token, and what ``check_ids`` finds.
    """
    check("ids (B, T), mask (B, T), token_types (B, T)", ids, mask, token_types)
    check_ids(config, ids, ids.shape[1], token_types)
    if mask is not None and not (real := mask.bool().any(dim=1)).all():
        raise ValueError(f"row {int(real.int().argmin())} of the mask has no real token: attention would be 0/0")


def check_ids(config: BertConfig, ids: Tensor, longest: int, token_types: Tensor | None = None) -> None:
    """Raise ``ValueError`` for ids or token types that the model does not have, or more tokens than positions."""
    if longest > config.positions:
        raise ValueError(f"{longest} tokens, but the position table has {config.positions}: let the tokenizer cut them")
    known = "in its vocabulary: do tokenizer and weights belong together?"
    for name, found, size, what in (
        ("ids", ids, config.vocab_size, known),
        ("token_types", token_types, config.type_vocab_size, "types"),
    ):
        if found is not None and (found.min() < 0 or found.max() >= max(size, 1)):
            runs = f"{name} run from {found.min().item()} to {found.max().item()}"
            raise ValueError(f"{runs}, this model has {size or 'no'} {what}")


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
