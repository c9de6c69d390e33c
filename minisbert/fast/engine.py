"""The fused encoder of one model, built once and kept: one sentence in half the time, or less.

Reading the live weights costs time in every call: oneDNN takes them as they lie, and for bfloat16 they are rounded
first. With many tokens that is nothing, with one sentence it is most of the call. So the second call copies the layers'
weights, laid out for oneDNN: in bfloat16 always, in float32 if it has few tokens. A program that encodes once, however
much, keeps no copy. ``prepare`` makes it at once.

A copy is never stale. Torch marks the weights' memory (``kernels.watch``) and drops the mark when anything writes to
it, in any thread: an optimizer, ``load_state_dict``, ``parameter.data.add_``, ``parameter.detach().numpy()``. New
modules, parameters and hooks are noticed too. After a change the weights themselves are read again. If they change
often, the next copy is made after ten times as many calls.

Not noticed are writes to an address that was taken before the copy was made. So weights that a NumPy array or another
tensor shares are not copied; an address kept by C code is the caller's business. Nothing is copied in train mode.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.fast import kernels
from minisbert.fast.fused import FusedBert, is_plain
from minisbert.fast.kernels import Parts, memory_state, storages, unwatch, watch

FEW = 512  # tokens in a call: with more, a float32 copy saves less than a tenth

# for all engines together, because two encoders may share modules
_lock = threading.Lock()
_reading: dict[object, set[int]] = {}  # the weights, by id, that each running call reads in place


class Engine:
    """Gives the ``FusedBert`` of a model's present weights.

    Threads may share it. A call computes with the weights that it finds at its start if they are copied; otherwise it
    reads them on the way. So a change by another thread may show in some of a call's vectors and not in others, and
    shows in all of the next call's.
    """

    def __init__(self) -> None:
        self._model: Bert | None = None  # whose modules were found plain, in ``_parts``
        self._weights: list[torch.nn.Parameter] = []  # of its layers
        self._files = storages([])
        self._reset()

    def __reduce__(self) -> tuple:
        return Engine, ()  # a copy of the encoder has weights of its own

    def loaded(self, model: Bert) -> None:
        """The layers' weights are memory of a file that was just read, so only the model has it."""
        self._files = storages(model.layers.parameters())

    @contextmanager
    def fused(self, model: Bert, dtype: torch.dtype, tokens: int) -> Iterator[FusedBert | None]:
        """The encoder for one call with ``tokens`` tokens; None if the model has other modules than the book's.

        Those compute in the weights' own dtype: raises ``InputError`` for another.
        """
        call = object()
        with _lock:
            found = self._find(model, dtype, tokens)
            if found is not None and not found.copied:
                unwatch(self._weights)
                _reading[call] = {id(weight) for weight in self._weights}
        if found is None and dtype != model.embeddings.word.weight.dtype:
            raise InputError("bfloat16 needs the encoder's own modules; this one has others or hooks: use float32")
        try:
            yield found
        finally:
            with _lock:
                _reading.pop(call, None)

    def prepare(self, model: Bert, dtype: torch.dtype) -> None:
        """Copy the weights now. Raises ``InputError`` if that cannot be done without a risk of stale vectors."""
        with _lock:
            if not self._knows(model):
                raise InputError("prepare needs the encoder's own modules; this one has others or hooks")
            cpu = model.embeddings.word.weight.device.type == "cpu"
            if not (kernels.ONEDNN and kernels.COPY_ON_WRITE and cpu) or dtype == torch.float64:
                return  # there is nothing to lay out, or no way to notice changes
            if self._read():
                raise InputError("prepare needs an encoder that no other thread is using")
            self._check_copies()
            if dtype not in self._copies and not self._copy(dtype):
                shared = "prepare needs weights in memory of their own, not shared with another tensor, NumPy array"
                raise InputError(f"{shared} or process: copy.deepcopy(encoder) has its own")

    def _reset(self) -> None:
        self._copies: dict[torch.dtype, FusedBert] = {}
        self._state: list[tuple] = []  # of the weights' memory, when it was copied
        self._calls, self._needed = 0, 1  # calls since the last change, and those before the weights are copied

    def _find(self, model: Bert, dtype: torch.dtype, tokens: int) -> FusedBert | None:
        if not self._knows(model):
            return None
        if self._check_copies():
            # subtle: whoever changed some may be writing the others now, in another thread. Two threads must not remove
            # a mark at the same time, so this call leaves the marks alone
            return FusedBert(model, dtype, copy=True)
        self._calls += 1
        if dtype in self._copies:
            return self._copies[dtype]
        # subtle: weights that are watched must not be read in place, because oneDNN's reading looks like writing
        if (self._copies or self._may_copy(dtype, tokens)) and self._copy(dtype):
            return self._copies[dtype]
        return FusedBert(model, dtype) if dtype != self._live.dtype else self._live

    def _knows(self, model: Bert) -> bool:
        """Is the model made of the book's modules, without hooks? Looks closely only at what is new."""
        if model is self._model and self._parts.unchanged():
            return True
        self._model = None
        self._reset()
        if not is_plain(model):
            return False
        self._model, self._parts = model, Parts(model)
        self._weights = list(model.layers.parameters())
        self._live = FusedBert(model, model.embeddings.word.weight.dtype)
        return True

    def _check_copies(self) -> bool:
        """Drop the copies of weights that have changed; were there any?"""
        if not self._copies or memory_state(self._weights) == self._state:
            return False
        often = self._calls <= 10 * self._needed
        self._copies = {}
        self._calls, self._needed = 0, 10 * self._needed if often else 1
        return True

    def _read(self) -> bool:
        """Does a running call read the weights in place? ``watch`` would disturb it."""
        ours = {id(weight) for weight in self._weights}
        return any(not ours.isdisjoint(others) for others in _reading.values())

    def _may_copy(self, dtype: torch.dtype, tokens: int) -> bool:
        pays = dtype == torch.bfloat16 or (dtype == torch.float32 and tokens <= FEW)
        trained = self._model.training or any(weight.grad is not None for weight in self._weights)
        return kernels.ONEDNN and pays and not trained and self._calls > self._needed and not self._read()

    def _copy(self, dtype: torch.dtype) -> bool:
        if not self._copies:
            if not watch(self._weights, self._files):
                self._needed *= 10  # asking again at every call would take time
                return False
            self._state = memory_state(self._weights)
        self._copies[dtype] = FusedBert(self._model, dtype, copy=True)
        return True
