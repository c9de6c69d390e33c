"""Encode on a GPU at its speed: weights in half precision, texts without pads, a few texts as one
recorded graph.

    encoder = minisbert.load("all-MiniLM-L6-v2", compiled=True)  # where torch finds a GPU

    texts of a batch ── ids in one row (S,), lengths (N,) ── embeddings, layers ── pooling ──>
    vectors (N, W)

The eager encoder starts each of some hundred operations from Python, and a GPU waits for most of
them. Here a batch has up to 2^17 tokens, and a call with few texts replays a CUDA graph, which
starts all of its operations at once. The modules are the book's but for attention, which reads
texts that follow each other in one row. Imports the rooms up to ``models``. Legend as in
``core/bert.py``, and S tokens of all N texts.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.packing import states_by_view
from minisbert.architectures.relatives import RELATIVES
from minisbert.backends.graphs import RowAttention
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError, one_line
from minisbert.core.bert import Attention
from minisbert.models.batching import Tokens, budgeted_batches, check_ids, reporting, unpack
from minisbert.models.sentence_encoder import TEXT_TOKENS, SentenceEncoder, TextEncoder
from minisbert.system.console import say
from minisbert.system.devices import bfloat16_hardware, fitting_tokens
from minisbert.system.torch_internals import ragged_attention

GPU_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MOST_TOKENS = 2**17  # of a batch, pads counted: more are no faster
GRAPH_TEXTS = 64  # of a call that is a graph
LENGTH_STEP = 8  # lengths of graphs are multiples of it
KEPT = 128  # graphs; the one that was not used for longest goes


@dataclass
class Texts:
    """Where N texts are that follow each other in a row of S tokens; what is left of the row
    belongs to nobody.
    """

    edges: Tensor  # (N + 1,) int32: where each begins, and the last ends
    longest: int
    positions: Tensor  # (S,): of each token in its own text
    places: Tensor  # (N, longest): of each text's tokens in the row, -1 beyond its end
    padded: Tensor  # (S,): of each token in ``places``, flattened

    @classmethod
    def of(cls, lengths: Tensor, tokens: int, longest: int) -> "Texts":
        """lengths (N,) on any device; a row of ``tokens``, S, all computed there without a look at
        a value.
        """
        ends = lengths.cumsum(0)
        edges = nn.functional.pad(ends, (1, 0))  # (N + 1,)
        token = torch.arange(tokens, device=lengths.device)
        # tokens behind the last text count as its own
        text = torch.searchsorted(ends, token, right=True).clamp_max(len(lengths) - 1)  # (S,)
        positions = (token - edges[text]).clamp_max(longest - 1)
        column = torch.arange(longest, device=lengths.device)
        places = torch.where(column < lengths[:, None], edges[:-1, None] + column, -1)
        return cls(edges.int(), longest, positions, places, text * longest + positions)


def padded_attention(query: Tensor, key: Tensor, value: Tensor, texts: Texts) -> Tensor:
    """The book's attention within each text, (S, H, K) each, by way of a padded batch."""
    query, key, value = (
        x[texts.places.clamp_min(0)].transpose(1, 2) for x in (query, key, value)
    )  # (N, H, T, K)
    mask = (texts.places >= 0)[:, None, None, :]  # (N, 1, 1, T)
    context = nn.functional.scaled_dot_product_attention(query, key, value, mask)
    return context.transpose(1, 2).flatten(0, 1)[texts.padded]  # (S, H, K)


class RaggedAttention(RowAttention):
    """``core.bert.Attention`` for texts that follow each other in one row."""

    def forward(self, x: Tensor, texts: Texts) -> tuple[Tensor, None]:  # type: ignore[override]  # in place of a mask
        """x (1, S, D) -> (1, S, D), and no probabilities."""
        query, key, value = (
            self.qkv(x[0]).unflatten(-1, (3, self.heads, -1)).unbind(1)
        )  # (S, H, K) each
        # the kernel without pads is for half precision, and for heads of certain widths
        kernel = ragged_attention(query)
        if kernel is None:
            context = self.kernel(query, key, value, texts)
        else:
            context = kernel(query, key, value, texts.edges, texts.longest)
        return self.output(context.flatten(1))[None], None


class RaggedEncoder(nn.Module):
    """A ``SentenceEncoder``'s forward pass for texts in one row; takes its modules, and changes
    them.
    """

    def __init__(self, encoder: SentenceEncoder, dtype: torch.dtype):
        super().__init__()
        self.encoder = encoder.eval().requires_grad_(False)
        bert = encoder.bert
        for layer in bert.layers:
            layer.attention = RaggedAttention(cast(Attention, layer.attention), padded_attention)
        # pooling and the dense layers stay in float32: they add up many numbers
        for module in (bert.embeddings, bert.layers):
            module.to(dtype)

    def forward(self, ids: Tensor, lengths: Tensor, longest: int, skip: int = 0) -> Tensor:
        """ids (S,) and lengths (N,), ``skip`` tokens of each text not pooled -> vectors (N, W) in
        float32 or finer.
        """
        encoder, texts = self.encoder, Texts.of(lengths, len(ids), longest)
        # each layer reads where the texts are, in the place of a mask
        x = states_by_view(encoder.bert, ids[None], texts.positions[None], texts)  # (1, S, D)
        # whatever the layers compute in, what follows them does not compute in half precision
        hidden, real = unpack(
            x.to(torch.promote_types(x.dtype, torch.float32)), texts.places
        )  # (N, longest, D)
        return encoder.vectors(hidden[:, skip:], real[:, skip:])


def has_graph(folder: ModelFolder) -> bool:
    """Return whether a folder's encoder is the book's BERT, as DistilBERT, RoBERTa and ELECTRA are,
    too.
    """
    return folder.model_class == "SentenceEncoder" and folder.config[0] in RELATIVES


# ----------------------------------------------------------------------------------------------
# graphs


@contextmanager
def warming_up() -> Iterator[None]:
    """Compute on a stream of its own what a graph will hold: libraries take memory and choose
    kernels at first use.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def recorded(compute: Callable[[], Tensor], pool: Any = None) -> Callable[[], Tensor]:
    """Record a computation as a CUDA graph; return a function that replays it, with the same tensor
    as its result.

    Graphs of one ``pool`` share the memory of what they compute in between, so no two may run at
    once.
    """
    with warming_up():
        compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = compute()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class Graphs:
    """Replays of ``compute(ids, lengths, longest, skip)``, one for each number of texts and rounded
    length.

    Each has tensors of its own for its input: (N, longest) ids, of which the texts take the first,
    and N lengths.
    """

    def __init__(
        self,
        compute: Callable[..., Tensor],
        device: torch.device,
        limit: int,
        capture: Callable = recorded,
    ):
        self.compute, self.device, self.limit, self.capture = compute, device, limit, capture
        # by shape: the input on the CPU, the one on the device, the replay
        self.kept: OrderedDict[tuple, tuple[Tensor, Tensor, Callable]] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.lock = threading.Lock()  # two calls must not share a graph's tensors

    def __call__(self, ids: np.ndarray, lengths: np.ndarray, skip: int = 0) -> Tensor:
        """ids (S,) and lengths (N,) -> vectors (N, W) on the CPU. Raises ``RuntimeError`` if torch
        cannot record.
        """
        count, longest = (
            len(lengths),
            min(-(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP, self.limit),
        )
        key = count, longest, skip
        with self.lock:
            if key not in self.kept:
                host = torch.zeros(
                    count * longest + count,
                    dtype=torch.int32,
                    pin_memory=self.device.type == "cuda",
                )
                host[-count:] = longest
                inputs = host.to(self.device)
                compute = partial(self.compute, inputs[:-count], inputs[-count:], longest, skip)
                self.kept[key] = host, inputs, self.capture(compute, self.pool)
                if len(self.kept) > KEPT:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(key)
            host, inputs, replay = self.kept[key]
            row = host.numpy()
            row[: len(ids)], row[len(ids) : -count], row[-count:] = ids, 0, lengths
            inputs.copy_(host, non_blocking=True)
            return replay().cpu()  # which waits for the graph


# ---------------------------------------------------------------------------------------------
# encoder


@dataclass
class RaggedBatch:
    """N texts in one row: ``ids`` (S,) and ``lengths`` (N,), int32. ``texts`` are their numbers in
    the call.
    """

    ids: np.ndarray
    lengths: np.ndarray
    texts: list[int]
    prompt: int  # so many tokens at the start of each text are not pooled
    vectors: Tensor | None = None  # on the CPU, or on their way there until ``done``
    done: torch.cuda.Event | None = None


class CudaEncoder(TextEncoder):
    """``encode`` and ``similarity`` of a ``SentenceEncoder`` on a GPU, whose modules it takes."""

    dtype = torch.float32

    def __init__(
        self,
        encoder: SentenceEncoder,
        folder: Path,
        dtype: torch.dtype,
        capture: Callable = recorded,
    ):
        nn.Module.__init__(self)
        self.folder, self.device = folder, encoder.device
        self.compiled_dtype = str(dtype).removeprefix("torch.")
        self.tokenizer, self.settings, self.normalize = (
            encoder.tokenizer,
            encoder.settings,
            encoder.normalize,
        )
        self.width, self.hidden_size, self.pooling_mode = (
            encoder.width,
            encoder.hidden_size,
            encoder.pooling_mode,
        )
        self.most_tokens, self.config = encoder.most_tokens, encoder.bert.config
        self.compute = RaggedEncoder(encoder, dtype)
        self.graphs: Graphs | None = Graphs(self.compute, self.device, self.most_tokens, capture)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[None]:
        if dtype not in (None, "auto", self.compiled_dtype):
            raise InputError(
                f"this encoder computes in {self.compiled_dtype}, not in {dtype}: choose it at load"
            )
        with ExitStack() as stack:
            if self.device.type == "cuda":  # of several GPUs this one records
                stack.enter_context(torch.cuda.device(self.device))
            stack.enter_context(torch.inference_mode())
            yield

    def batches(self, tokens: Tokens, batch_size: int | None = None) -> Iterator[Any]:  # type: ignore[override]
        batch_tokens = MOST_TOKENS
        if batch_size is not None:
            batch_tokens = TEXT_TOKENS * batch_size
        # asking for the free memory takes longer than a few texts
        elif self.device.type == "cuda" and len(tokens.ids) > GRAPH_TEXTS:
            batch_tokens = min(MOST_TOKENS, fitting_tokens(self.device, self.hidden_size))
        return reporting(self.started(tokens, batch_tokens), tokens.progress)

    def started(self, tokens: Tokens, batch_tokens: int) -> Iterator[RaggedBatch]:
        """Yield batches that the GPU computes: each is begun before the one ahead of it is copied
        and stored.
        """
        lengths = np.fromiter(map(len, tokens.ids), np.int32, len(tokens.ids))
        waiting = None
        for texts in budgeted_batches(cast(Sequence[int], lengths), batch_tokens):
            joined = b"".join([tokens.ids[text] for text in texts])  # type: ignore[misc]  # arrays
            ids = np.frombuffer(joined, dtype=np.intc)
            check_ids(self.config, ids, int(lengths[texts[0]]))
            batch = RaggedBatch(ids, lengths[texts], texts, tokens.prompt)
            # not the last of many batches: graphs are for calls with few texts
            if len(texts) < len(tokens.ids) or not self.replay(batch):
                self.start(batch)
            if waiting is not None:
                yield waiting
            waiting = batch
        if waiting is not None:
            yield waiting

    def replay(self, batch: RaggedBatch) -> bool:
        """Compute a few texts by a graph; return whether that was possible. If torch cannot record,
        say so once.
        """
        if self.graphs is None or len(batch.texts) > GRAPH_TEXTS:
            return False
        try:
            batch.vectors = self.graphs(batch.ids, batch.lengths, batch.prompt)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            say(f"no CUDA graph, so few texts take longer: {one_line(error)}")
            self.graphs = None
        return batch.vectors is not None

    def start(self, batch: RaggedBatch) -> None:
        """Let the GPU compute a batch's vectors and copy them to the CPU; ``states`` waits for
        them.
        """
        sent = []
        for numbers in (batch.ids, batch.lengths):
            host = torch.empty(
                len(numbers), dtype=torch.int32, pin_memory=self.device.type == "cuda"
            )
            # not by torch, whose threads would then wait at full speed in the tokenizer's way
            host.numpy()[:] = numbers
            sent.append(host.to(self.device, non_blocking=True))
        computed = self.compute(*sent, int(batch.lengths[0]), batch.prompt)
        batch.vectors = computed.to("cpu", non_blocking=True)
        if self.device.type == "cuda":
            batch.done = torch.cuda.current_stream().record_event()

    def states(self, batch: RaggedBatch) -> tuple[Tensor]:  # type: ignore[override]  # of the batches above
        if batch.done is not None:
            batch.done.synchronize()
        return (cast(Tensor, batch.vectors),)

    def vectors(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        return hidden  # pooled and scaled on the GPU


def choose_half(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype by name; for None bfloat16, or float16 on a GPU without it."""
    if name not in (None, "auto", *GPU_DTYPES):
        raise InputError(f"dtype {one_line(name)} on a GPU: choose {', '.join(GPU_DTYPES)}")
    able, reason = bfloat16_hardware(device)
    if name in GPU_DTYPES and (able or name != "bfloat16"):
        return GPU_DTYPES[name]
    if name == "bfloat16":
        raise InputError(f"bfloat16 cannot be used: {reason}; choose float16 or float32")
    if not able:
        say(f"dtype float16: {reason} for bfloat16")
        return torch.float16
    return torch.bfloat16
