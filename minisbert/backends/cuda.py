"""Encode on a GPU at its speed: half precision, no pads, a few texts as one recorded graph.

    encoder = minisbert.load("all-MiniLM-L6-v2", compiled=True)  # where torch finds a GPU

    texts ── ids in one row (S,), lengths (N,) ── embeddings, layers ── pooling ──> vectors (N, W)

The eager encoder starts each of some hundred operations from Python, and a GPU waits for most of
them. Here a batch has up to 2^17 tokens, and a call with few texts replays a CUDA graph, which
starts all of its operations at once. The modules are the book's but for attention, which reads
texts that follow each other in one row. Imports the rooms up to ``models``. Legend as in
``core/bert.py``, and S tokens of all N texts.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.offset_encoder import OffsetEncoder
from minisbert.architectures.packing import states_by_view
from minisbert.architectures.relatives import RELATIVES
from minisbert.backends.graphs import joined_projections
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError, one_line
from minisbert.core.bert import Attention, Bert
from minisbert.models.batching import Tokens, budgeted_batches, check_ids, unpack
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import DenseEncoder
from minisbert.system.console import say, warn
from minisbert.system.devices import bfloat16_hardware, fitting_tokens
from minisbert.system.torch_internals import ragged_attention

GPU_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MOST_TOKENS = 2**17  # in a batch, pads counted: more are no faster
GRAPH_TEXTS = 64  # a call with more texts is no graph
LENGTH_STEP = 8  # lengths of graphs are multiples of it
KEPT = 128  # so many graphs are kept; the one that was not used for longest goes


@dataclass
class TextPlaces:
    """Where N texts are that follow each other in a row of S tokens.

    What is left of the row belongs to nobody.
    """

    edges: Tensor  # (N + 1,) int32: where each begins, and the last ends
    longest: int
    positions: Tensor  # (S,): of each token in its own text
    places: Tensor  # (N, longest): of each text's tokens in the row, -1 beyond its end
    padded: Tensor  # (S,): of each token in ``places``, flattened

    @classmethod
    def of(cls, lengths: Tensor, tokens: int, longest: int) -> "TextPlaces":
        """lengths (N,) on any device; a row of ``tokens``, S. Nothing looks at a value there."""
        ends = lengths.cumsum(0)
        edges = nn.functional.pad(ends, (1, 0))  # (N + 1,)
        token = torch.arange(tokens, device=lengths.device)
        # Tokens behind the last text count as its own.
        text = torch.searchsorted(ends, token, right=True).clamp_max(len(lengths) - 1)  # (S,)
        positions = (token - edges[text]).clamp_max(longest - 1)
        column = torch.arange(longest, device=lengths.device)
        places = torch.where(column < lengths[:, None], edges[:-1, None] + column, -1)
        return cls(edges.int(), longest, positions, places, text * longest + positions)


def padded_attention(query: Tensor, key: Tensor, value: Tensor, texts: TextPlaces) -> Tensor:
    """The book's attention within each text, (S, H, K) each, by way of a padded batch."""
    places = texts.places.clamp_min(0)  # (N, T): a pad is any token, since the mask hides it
    padded_query = query[places].transpose(1, 2)  # (N, H, T, K)
    padded_key = key[places].transpose(1, 2)
    padded_value = value[places].transpose(1, 2)
    mask = (texts.places >= 0)[:, None, None, :]  # (N, 1, 1, T)
    context = nn.functional.scaled_dot_product_attention(
        padded_query, padded_key, padded_value, mask
    )  # (N, H, T, K)
    return context.transpose(1, 2).flatten(0, 1)[texts.padded]  # (S, H, K)


class RaggedAttention(nn.Module):
    """``core.bert.Attention`` for texts that follow each other in one row.

    Instead of a mask it reads where the texts are.
    """

    def __init__(self, attention: Attention):
        super().__init__()
        self.heads = attention.heads
        self.qkv = joined_projections(attention)
        self.output = attention.output

    def forward(self, x: Tensor, texts: TextPlaces) -> tuple[Tensor, None]:
        """x (1, S, D) -> (1, S, D), and no probabilities."""
        qkv = self.qkv(x[0]).unflatten(-1, (3, self.heads, -1))  # (S, 3, H, K)
        query, key, value = qkv.unbind(1)  # (S, H, K) each
        # The kernel without pads is for half precision, and for heads of certain widths.
        kernel = ragged_attention(query)
        if kernel is None:
            context = padded_attention(query, key, value, texts)
        else:
            context = kernel(query, key, value, texts.edges, texts.longest)
        return self.output(context.flatten(1))[None], None


class RaggedEncoder(nn.Module):
    """A ``SentenceEncoder``'s forward pass for texts in one row; it changes the modules."""

    def __init__(self, encoder: SentenceEncoder, dtype: torch.dtype):
        super().__init__()
        self.encoder = encoder.eval().requires_grad_(False)
        bert = encoder.bert
        for layer in bert.layers:
            layer.attention = RaggedAttention(cast(Attention, layer.attention))
        # Pooling and the dense layers stay in float32, because they add up many numbers.
        for module in (bert.embeddings, bert.layers):
            module.to(dtype)

    def forward(self, ids: Tensor, lengths: Tensor, longest: int, unpooled: int = 0) -> Tensor:
        """ids (S,) and lengths (N,) -> vectors (N, W) in float32 or finer.

        ``unpooled`` tokens at the start of each text are not pooled.
        """
        texts = TextPlaces.of(lengths, len(ids), longest)
        # Instead of a mask each layer reads where the texts are.
        bert = cast(Bert | OffsetEncoder, self.encoder.bert)
        x = states_by_view(bert, ids[None], texts.positions[None], texts)  # (1, S, D)
        # Whatever the layers compute in, what follows them does not compute in half precision.
        states = x.to(torch.promote_types(x.dtype, torch.float32))
        hidden, real = unpack(states, texts.places)  # (N, longest, D), (N, longest)
        return self.encoder.vectors(hidden[:, unpooled:], real[:, unpooled:])


def has_graph(folder: ModelFolder) -> bool:
    """Return whether a folder's encoder is the book's BERT, as DistilBERT or RoBERTa is, too."""
    return folder.model_class == "SentenceEncoder" and folder.encoder.config[0] in RELATIVES


# ------------------------------------------------------------------------------------------ graphs


@contextmanager
def warming_up() -> Iterator[None]:
    """Compute on a stream of its own what a graph will hold.

    At first use libraries take memory and choose kernels.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def record_graph(compute: Callable[[], Tensor], pool: Any = None) -> Callable[[], Tensor]:
    """Record a computation as a CUDA graph; return a function that replays it.

    Its result is the same tensor each time. Graphs of one ``pool`` share the memory of what they
    compute in between, so no two may run at once.
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


@dataclass
class Recording:
    """A graph and its input: N x longest ids, of which the texts take the first, and N lengths."""

    host: Tensor  # the input on the CPU, (N longest + N,) int32
    inputs: Tensor  # the same on the device
    replay: Callable[[], Tensor]


class Graphs:
    """Replays of ``compute(ids, lengths, longest, unpooled)``.

    There is one for each number of texts and rounded length.
    """

    def __init__(
        self,
        compute: Callable[..., Tensor],
        device: torch.device,
        limit: int,
        capture: Callable = record_graph,
        most: int = KEPT,
    ):
        self.compute = compute
        self.device = device
        self.limit = limit
        self.capture = capture
        self.most = most
        # By the number of texts, the rounded length and ``unpooled``; the last used comes last.
        self.kept: OrderedDict[tuple[int, int, int], Recording] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.lock = threading.Lock()  # two calls must not share a graph's tensors

    def __call__(self, ids: np.ndarray, lengths: np.ndarray, unpooled: int = 0) -> Tensor:
        """ids (S,) and lengths (N,) -> vectors (N, W) on the CPU.

        Raises ``RuntimeError`` if torch cannot record.
        """
        count = len(lengths)
        rounded = math.ceil(int(lengths.max()) / LENGTH_STEP) * LENGTH_STEP
        longest = min(rounded, self.limit)
        key = (count, longest, unpooled)
        with self.lock:
            if key not in self.kept:
                self.kept[key] = self.record(count, longest, unpooled)
                if len(self.kept) > self.most:
                    self.kept.popitem(last=False)
            self.kept.move_to_end(key)
            recording = self.kept[key]

            # The input is one row of numbers: the ids, zeros up to the graph's size, the lengths.
            row = recording.host.numpy()
            row[: len(ids)] = ids
            row[len(ids) : -count] = 0
            row[-count:] = lengths
            recording.inputs.copy_(recording.host, non_blocking=True)
            return recording.replay().cpu()  # which waits for the graph

    def record(self, count: int, longest: int, unpooled: int) -> Recording:
        """Record the computation for so many texts of at most ``longest`` tokens."""
        pinned = self.device.type == "cuda"
        host = torch.zeros(count * longest + count, dtype=torch.int32, pin_memory=pinned)
        host[-count:] = longest
        inputs = host.to(self.device)
        ids = inputs[:-count]  # (N longest,)
        lengths = inputs[-count:]  # (N,)

        def compute() -> Tensor:
            return self.compute(ids, lengths, longest, unpooled)

        return Recording(host, inputs, self.capture(compute, self.pool))


# ----------------------------------------------------------------------------------------- encoder


@dataclass
class RaggedBatch:
    """N texts in one row of S tokens."""

    ids: np.ndarray  # (S,) int32
    lengths: np.ndarray  # (N,) int32
    texts: list[int]  # their numbers in the call
    unpooled: int  # so many tokens at the start of each text, its prompt's, are not pooled
    vectors: Tensor | None = None  # on the CPU, or on their way there until ``done``
    done: torch.cuda.Event | None = None


class CudaEncoder(DenseEncoder):
    """``encode`` and ``similarity`` of a ``SentenceEncoder`` on a GPU, whose modules it takes."""

    dtype = torch.float32

    def __init__(
        self,
        encoder: SentenceEncoder,
        folder: Path,
        dtype: torch.dtype,
        capture: Callable = record_graph,
    ):
        super().__init__()
        self.folder = folder
        self.compiled_dtype = str(dtype).removeprefix("torch.")
        self.tokenizer = encoder.tokenizer
        self.settings = encoder.settings
        self.normalize = encoder.normalize
        self.width = encoder.width
        self.hidden_size = encoder.hidden_size
        self.config = encoder.bert.config
        self.compute = RaggedEncoder(encoder, dtype)
        self.graphs: Graphs | None = Graphs(self.compute, self.device, self.most_tokens, capture)

    @property
    def device(self) -> torch.device:
        return self.compute.encoder.device

    @property
    def pooling_mode(self) -> str:
        return self.compute.encoder.pooling_mode

    @property
    def most_tokens(self) -> int:
        return self.config.positions

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        if dtype not in (None, "auto", self.compiled_dtype):
            raise InputError(
                f"this encoder computes in {self.compiled_dtype}, not in {dtype}: choose it at load"
            )
        gpu: AbstractContextManager = nullcontext()
        if self.device.type == "cuda":
            gpu = torch.cuda.device(self.device)  # of several GPUs this one records
        with gpu, torch.inference_mode():
            yield self.dtype  # which no batch reads: the weights have their own

    def batches(self, tokens: Tokens, batch_tokens: int | None = None) -> Iterator[RaggedBatch]:
        """Yield batches that the GPU computes, the longest texts first.

        Each is begun before the one ahead of it is copied and stored.
        """
        batch_tokens = batch_tokens or self.usual_batch_tokens(tokens)
        lengths = np.fromiter(map(len, tokens.ids), np.int32, len(tokens))
        waiting = None
        for texts in budgeted_batches(lengths, batch_tokens):
            ids = np.frombuffer(b"".join([tokens.ids[text] for text in texts]), dtype=np.intc)
            check_ids(self.config, ids, int(lengths[texts[0]]))
            batch = RaggedBatch(ids, lengths[texts], texts, tokens.unpooled)
            # Graphs are for calls with few texts, not for the last of many batches.
            replayed = False
            if len(texts) == len(tokens):
                replayed = self.replay(batch)
            if not replayed:
                self.start(batch)
            if waiting is not None:
                yield waiting
            waiting = batch
        if waiting is not None:
            yield waiting

    def usual_batch_tokens(self, tokens: Tokens) -> int:
        # To ask for the GPU's free memory takes longer than to encode a few texts.
        if self.device.type != "cuda" or len(tokens) <= GRAPH_TEXTS:
            return MOST_TOKENS
        return min(MOST_TOKENS, fitting_tokens(self.device, self.hidden_size))

    def replay(self, batch: RaggedBatch) -> bool:
        """Compute a few texts by a graph; return whether that was possible.

        If torch cannot record, say so once.
        """
        if self.graphs is None or len(batch.texts) > GRAPH_TEXTS:
            return False
        try:
            batch.vectors = self.graphs(batch.ids, batch.lengths, batch.unpooled)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warn(f"no CUDA graph, so few texts take longer: {one_line(error)}")
            self.graphs = None
        return batch.vectors is not None

    def start(self, batch: RaggedBatch) -> None:
        """Let the GPU compute a batch's vectors and copy them to the CPU; ``embed`` waits."""
        ids = self.send(batch.ids)
        lengths = self.send(batch.lengths)
        computed = self.compute(ids, lengths, int(batch.lengths[0]), batch.unpooled)
        batch.vectors = computed.to("cpu", non_blocking=True)
        if self.device.type == "cuda":
            batch.done = torch.cuda.current_stream().record_event()

    def send(self, numbers: np.ndarray) -> Tensor:
        """Copy int32 numbers to the device, without waiting for it."""
        pinned = self.device.type == "cuda"
        host = torch.empty(len(numbers), dtype=torch.int32, pin_memory=pinned)
        # Not by torch, whose threads would then wait at full speed in the tokenizer's way.
        host.numpy()[:] = numbers
        return host.to(self.device, non_blocking=True)

    def embed(self, batch: RaggedBatch) -> Tensor:
        """Wait for the vectors (N, W) of a batch; the GPU has pooled and scaled them."""
        if batch.done is not None:
            batch.done.synchronize()
        return cast(Tensor, batch.vectors)


def choose_gpu_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype by name; for None bfloat16, or float16 on a GPU without it."""
    if name not in (None, "auto", *GPU_DTYPES):
        raise InputError(f"dtype {one_line(name)} on a GPU: choose {', '.join(GPU_DTYPES)}")
    if name in ("float16", "float32"):
        return GPU_DTYPES[name]
    able, reason = bfloat16_hardware(device)
    if able:
        return torch.bfloat16
    if name == "bfloat16":
        raise InputError(f"bfloat16 cannot be used: {reason}; choose float16 or float32")
    say(f"dtype float16: {reason} for bfloat16")
    return torch.float16
