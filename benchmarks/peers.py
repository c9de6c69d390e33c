"""The peers of the encoding benchmarks: other libraries over the same weights
(``benchmarks.conversion``).

Each is used as its documentation recommends, with as many threads as torch: texts sorted by length,
the fastest of a few batch sizes, and the faster of all threads in one batch or one thread in each
of several batches. sentence-transformers does everything itself; for the others, token ids come
from the ``tokenizers`` library, and numpy computes the mean over real tokens and scales it to
length 1.

sentence-transformers  bfloat16 by ``model_kwargs``
onnxruntime            int8 from a quantized file
openvino               bfloat16 by ``INFERENCE_PRECISION_HINT``
ctranslate2            int8 by ``compute_type``; it computes no bfloat16 on the CPU
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.system.console import say
from minisbert.system.progress import Bar

Encode = Callable[..., np.ndarray]  # (texts, batch_size) -> (N, D)
States = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids (B, T) and lengths (B,) -> (B, T, D)
# seconds before a side's turn: threads of the side before may spin for a while after their work
PAUSE = 0.2
BATCH_SIZES = (8, 16, 32, 64, 128)
NEEDS = {  # what each library needs to be installed
    "sentence-transformers": ("sentence_transformers",),
    "onnxruntime": ("onnxruntime", "onnx", "transformers"),
    "openvino": ("openvino", "onnx", "transformers"),
    "ctranslate2": ("ctranslate2", "transformers"),
}


@dataclass(frozen=True)
class Peer:
    """One library at one dtype.

    ``make(files, streams)`` loads it; ``streams`` batches are computed at a time.
    """

    library: str
    dtype: str
    make: Callable[[Path, int], Encode]
    streams: tuple[int, ...] = (1,)  # the numbers to choose from

    @property
    def name(self) -> str:
        return f"{self.library} {self.dtype}"


def require(true: bool, words: str) -> None:
    """Raise ``InputError`` unless what a benchmark measures is right."""
    if not true:
        raise InputError(f"nothing is reported, because {words}")


def stay_offline() -> None:
    """Keep the libraries, which are imported later, from look-ups in a hub and usage reports."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # subtle: with this package, ``import openvino`` reports to its makers
    sys.modules["openvino_telemetry"] = None


def installed(wanted: Sequence[str] | None) -> list[str]:
    """The libraries to compare with: those ``wanted``, by default all that are installed.

    Raises ``InputError`` if one that was asked for is missing; says which others are left out.
    """
    found = []
    for library, needs in NEEDS.items():
        if wanted is not None and library not in wanted:
            continue
        missing = [name for name in needs if find_spec(name) is None]
        if not missing:
            found.append(library)
            continue
        message = f"{library} is not compared: {', '.join(missing)} not installed; "
        message += "pip install '.[reference]'"
        if wanted is not None:
            raise InputError(message)
        say(message)
    return found


def peers(libraries: Sequence[str], bfloat16: bool) -> list[Peer]:
    """Every library at every dtype that it has; without ``bfloat16`` if the CPU lacks it."""
    threads = torch.get_num_threads()
    both = (1, threads) if threads > 1 else (1,)
    found = [
        Peer("sentence-transformers", "float32", partial(sentence_transformers, torch.float32)),
        Peer("sentence-transformers", "bfloat16", partial(sentence_transformers, torch.bfloat16)),
        Peer("onnxruntime", "float32", partial(onnxruntime, "float32"), both),
        Peer("onnxruntime", "int8", partial(onnxruntime, "int8"), both),
        Peer("openvino", "float32", partial(openvino, "f32"), both),
        Peer("openvino", "bfloat16", partial(openvino, "bf16"), both),
        Peer("ctranslate2", "float32", partial(ctranslate2, "float32"), both),
        Peer("ctranslate2", "int8", partial(ctranslate2, "int8"), both),
    ]
    if not bfloat16:
        found = [peer for peer in found if peer.dtype != "bfloat16"]
    return [peer for peer in found if peer.library in libraries]


# ------------------------------------------------------------------------------------ the libraries


def sentence_transformers(
    dtype: torch.dtype, folder: Path, streams: int, device: str = "cpu"
) -> Encode:
    """It has one stream: torch's threads share each batch.

    ``folder`` is the model's, or one that holds it.
    """
    from sentence_transformers import SentenceTransformer

    model = folder / "model"
    peer = SentenceTransformer(
        str(model if model.exists() else folder), device=device, model_kwargs={"dtype": dtype}
    )

    def encode(texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        vectors = peer.encode(list(texts), batch_size=batch_size, convert_to_tensor=True)
        return vectors.float().cpu().numpy()  # numpy has no bfloat16

    return encode


def onnxruntime(name: str, files: Path, streams: int) -> Encode:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads() // streams
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(
        str(files / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
    )

    def states(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        feed = {
            "input_ids": ids,
            "attention_mask": real(ids, lengths),
            "token_type_ids": np.zeros_like(ids),
        }
        return session.run(None, feed)[0]

    return encoder(states, files, streams)


def openvino(hint: str, files: Path, streams: int) -> Encode:
    import openvino as ov

    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        "NUM_STREAMS": streams,
    }
    compiled = ov.Core().compile_model(files / "openvino.xml", "CPU", settings)
    local = threading.local()  # a request computes one batch at a time

    def states(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if not hasattr(local, "request"):
            local.request = compiled.create_infer_request()
        inputs = [ids, real(ids, lengths), np.zeros_like(ids)]
        return local.request.infer(inputs, share_inputs=True, share_outputs=True)[0]

    return encoder(states, files, streams)


def ctranslate2(compute_type: str, files: Path, streams: int) -> Encode:
    import ctranslate2 as ct

    threads = {"inter_threads": streams, "intra_threads": torch.get_num_threads() // streams}
    peer = ct.Encoder(
        str(files / "ctranslate2"), device="cpu", compute_type=compute_type, **threads
    )

    def states(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        batch = ct.StorageView.from_array(ids.astype(np.int32))
        counts = ct.StorageView.from_array(lengths.astype(np.int32))
        return np.asarray(peer.forward_batch(batch, counts).last_hidden_state)

    return encoder(states, files, streams)


# --------------------------------------------------------------------------------- texts to vectors


def real(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mask (B, T): 1 for real tokens, 0 for padding."""
    return (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)


def encoder(states: States, files: Path, streams: int, limit: int = 256) -> Encode:
    """Ids sorted by length, padded to the longest of the batch; mean over tokens, length 1."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(limit)
    tokenizer.no_padding()
    pool = ThreadPoolExecutor(streams)

    def pooled(rows: list[list[int]]) -> np.ndarray:
        lengths = np.array([len(row) for row in rows])
        longest = lengths.max()
        ids = np.array([row + [0] * (longest - len(row)) for row in rows])  # (B, T)
        mask = real(ids, lengths)[..., None]  # (B, T, 1)
        means = (states(ids, lengths) * mask).sum(axis=1) / mask.sum(axis=1)  # (B, D)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def encode(texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        batches = []
        for start in range(0, len(order), batch_size):
            batches.append([ids[row] for row in order[start : start + batch_size]])
        run = map if len(batches) == 1 or streams == 1 else pool.map
        vectors = np.concatenate(list(run(pooled, batches)))
        unsorted = np.empty(vectors.shape, np.float32)
        unsorted[order] = vectors
        return unsorted

    return encode


def turns(what: str, rounds: int, sides: dict[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Every side's turn in every round, after a pause, with a progress line."""
    with Bar(total=rounds * len(sides), desc=what, unit=" turns") as bar:
        for round_ in range(rounds):
            for name, encode in sides.items():
                time.sleep(PAUSE)
                yield round_, name, encode
                bar.update()


def one_stream(peer: Peer, files: Path, batch_size: int) -> Encode:
    """The peer with all threads in each batch."""
    return partial(peer.make(files, 1), batch_size=batch_size)


def fastest(peer: Peer, files: Path, texts: Sequence[str]) -> Encode:
    """The peer at the batch size and number of streams that are fastest; says which these are.

    The sizes are compared with one stream, by the better of two runs each; then the streams at the
    best size.
    """

    def seconds(encode: Encode, size: int) -> float:
        times = []
        for _ in range(2):
            started = time.perf_counter()
            encode(texts, batch_size=size)
            times.append(time.perf_counter() - started)
        return min(times)

    encoders = [peer.make(files, streams) for streams in peer.streams]
    sizes = [size for size in BATCH_SIZES if size <= len(texts)] or [BATCH_SIZES[0]]
    tried = {size: seconds(encoders[0], size) for size in sizes}
    size = min(tried, key=tried.get)

    best = encoders[0]
    choice = f"{peer.name}: batches of {size}"
    for encode, streams in zip(encoders[1:], peer.streams[1:], strict=True):
        if seconds(encode, size) < tried[size]:
            best = encode
            choice = f"{peer.name}: batches of {size}, {streams} at a time"
    say(choice)
    return partial(best, batch_size=size)
