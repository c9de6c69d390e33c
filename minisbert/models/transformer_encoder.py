"""Encoders with a transformer: a ``Bert`` of the book or a newer architecture in its place.

    batch ── packed_states ──> hidden (R, T, D) ── unpack ──> each text by itself (N, S, D)

``SentenceEncoder``, ``SparseEncoder`` and ``MultiVectorEncoder`` differ in what they make of the
hidden states.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.architectures.packing import packed_states
from minisbert.checkpoints.layout import EncoderSettings
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import PackedBatch, check_ids, check_inputs, same_text, unpack
from minisbert.models.properties import ExplainedModule
from minisbert.models.stored_encoder import StoredEncoder
from minisbert.system.devices import choose_dtype, move_to
from minisbert.system.torch_internals import fastest_linear

# Which models are in use now, in all threads.
#
# Held while modes, dtypes and devices change; notified when a call ends.
_lock = threading.Condition(threading.RLock())
# The networks that ``train`` is training, and in which thread. Several may share modules.
_trained: dict[nn.Module, int] = {}
# The model that each call computes with, and the thread of the call.
_computing: list[tuple[nn.Module, int]] = []
# The modules that were switched from train to eval mode, and how many calls still need them so.
_calls: dict[nn.Module, int] = {}


class ChangedBetweenCalls(ExplainedModule):
    """A model that no other thread changes while a call computes with it.

    ``double()``, ``to(device)`` and the like wait for the end of the call, and so does ``train()``,
    which would switch dropout on in its middle. A call that begins meanwhile waits for them.
    """

    # Not a public name of torch, but the method that ``to``, ``double``, ``half`` and ``cuda`` all
    # call; torch's own modules override it, too.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with self.between_calls():
            return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> Self:
        with self.between_calls():
            return super().train(mode)

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """Wait until no call of another thread computes with the model, and let none begin."""
        thread = threading.get_ident()

        def is_free() -> bool:
            """Return whether no other thread computes with one of the modules."""
            for model, caller in _computing:
                if caller != thread and share_modules(self, model):
                    return False
            return True

        with _lock:
            _lock.wait_for(is_free)
            yield


class TransformerEncoder(ChangedBetweenCalls, StoredEncoder):
    """A tokenizer and a ``Bert``. A kind defines what it makes of the hidden states."""

    def __init__(
        self, tokenizer: ModelTokenizer, bert: Encoder, settings: EncoderSettings | None = None
    ):
        super().__init__()
        self.tokenizer = tokenizer
        self.bert = bert
        self.settings = settings or EncoderSettings()
        self.hidden_size = bert.config.hidden_size

    # These are read from the parts, which may be moved or exchanged.
    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.bert.embeddings.word.weight.dtype

    @property
    def most_tokens(self) -> int:
        return self.bert.config.positions

    def on_device(self, device: str | torch.device | None) -> Self:
        return move_to(self, self.bert, device)

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Texts -> ``input_ids``, ``attention_mask`` and maybe ``token_type_ids``, (N, T) each.

        The names are those of sentence-transformers:

            encoder(features["input_ids"], features["attention_mask"])

        ``token_type_ids`` are left out for an encoder that has a single token type. Without texts
        the dictionary is empty.
        """
        if not len(check_texts(texts)):
            return {}
        encoded = self.tokenizer.encode(texts)
        ids, mask = pad_batch(encoded.ids, self.tokenizer.pad_id)
        if mask is None:
            mask = torch.ones_like(ids)
        features = {"input_ids": ids, "attention_mask": mask.long()}
        if self.bert.config.type_vocab_size > 1:
            features["token_type_ids"], _ = pad_batch(encoded.token_types, 0)
        return features

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the hidden states (B, T, D) of ``Bert.forward``, its products in ``dtype``.

        In bfloat16 only the encoder computes in it: pooling, heads and losses keep their precision,
        since sums over many numbers belong in float32 (Micikevicius et al. 2018, section 3).
        """
        check_inputs(self.bert.config, ids, mask, token_types)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.bert(ids, mask, token_types).to(self.dtype)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        """Enter eval mode without gradients; give the dtype of the matrix products."""
        product_dtype = torch.float32
        if dtype is not None:
            product_dtype, _ = choose_dtype(dtype, self.device)
        # Pooling, like the losses, is never in bfloat16, not even if the caller has switched
        # autocast on.
        no_autocast = torch.autocast(self.device.type, enabled=False)
        with evaluating(self), fastest_linear(), no_autocast:
            yield product_dtype


def text_states(bert: Encoder, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Compute each text's hidden states (N, S, D) and mask (N, S), without its prompt's."""
    check_ids(bert.config, batch.ids, batch.places.shape[1])
    weight = bert.embeddings.word.weight
    device = weight.device
    ids = batch.ids.to(device)  # (R, T)
    text_index = batch.text_index.to(device)  # (R, T)
    places = batch.places.to(device)  # (N, S)

    # The smallest mask that the batch allows: without a mask and positions, attention takes its
    # fastest kernel.
    mask: Tensor | None = None
    positions: Tensor | None = None
    if len(places) > len(ids):
        mask = same_text(text_index)  # texts share rows: (R, 1, T, T)
        positions = batch.positions.to(device)  # (R, T)
    elif batch.tokens < ids.numel():
        mask = text_index >= 0  # a row for each text, and pads: (R, T)
        positions = batch.positions.to(device)

    with torch.autocast(device.type, torch.bfloat16, enabled=batch.dtype == torch.bfloat16):
        states = packed_states(bert, ids, mask, positions)  # (R, T, D)
        hidden, real = unpack(states.to(weight.dtype), places)  # (N, S, D), (N, S)
    return hidden[:, batch.unpooled :], real[:, batch.unpooled :]


def token_states(bert: Encoder, batch: PackedBatch) -> list[Tensor]:
    """Compute the hidden states (T, D) of each text, its prompt's included."""
    hidden, mask = text_states(bert, replace(batch, unpooled=0))
    return [states[real] for states, real in zip(hidden, mask, strict=True)]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode without gradients, then restore the mode of each module.

    A caller may have frozen some modules. Several threads may evaluate one model, or models that
    share modules: the last of them restores the modes. ``InputError`` if another thread trains one
    of the modules: each step changes the weights, and dropout is on.
    """
    call = (model, threading.get_ident())
    switched = []
    with _lock:
        for network, thread in _trained.items():
            if thread != threading.get_ident() and share_modules(network, model):
                raise InputError(
                    "another thread is training this model: wait for train() to return, or compute "
                    "with a copy that was made before it, copy.deepcopy(model)"
                )
        _computing.append(call)
        for module in model.modules():
            # A module in eval mode stays as it is. But if another call has switched it, that call
            # may end first and must not switch it back, so this one is counted too.
            if module.training or module in _calls:
                module.training = False
                _calls[module] = _calls.get(module, 0) + 1
                switched.append(module)
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            _computing.remove(call)
            for module in switched:
                _calls[module] -= 1
                if _calls[module] == 0:
                    del _calls[module]
                    module.training = True
            _lock.notify_all()


@contextmanager
def training_in_this_thread(network: nn.Module) -> Iterator[None]:
    """Let only this thread compute with the modules of ``network`` while it trains them.

    ``InputError`` if another thread computes with one of them now, or trains it.
    """
    with _lock:
        computing = [model for model, _ in _computing]
        for model in [*computing, *_trained]:
            if share_modules(network, model):
                raise InputError(
                    "another thread computes with the model that is to be trained: wait for it, or "
                    "train a copy, copy.deepcopy(model)"
                )
        _trained[network] = threading.get_ident()
    try:
        yield
    finally:
        with _lock:
            del _trained[network]


def share_modules(a: nn.Module, b: nn.Module) -> bool:
    """Return whether two models have a module in common, such as the encoder under a head."""
    return not set(a.modules()).isdisjoint(b.modules())
