"""The same HTTP server around each library: what its requests cost in time and memory.

    python -m benchmarks.serve_speed                     all libraries, about five minutes
    python -m benchmarks.serve_speed --peers onnxruntime --rounds 1 --requests 10

In every round each library is served in turn by ``benchmarks/tiny_server.py``, with another function that encodes,
and answers requests one after the other. The columns are medians over all rounds:

one text       milliseconds of a request with one sentence of STS-B test that has 12 tokens
16 texts       milliseconds of a request with 16 sentences of STS-B test, other ones in every request
texts a second of requests with 64 sentences
MiB            the server's peak memory, after all these requests
start, s       from the start of the process to the answer to its first request

minisbert's packages are compiled first if the cache folder has none, which needs a C++ compiler; the others' files are
converted first (``benchmarks.conversion``). The others get token ids from the ``tokenizers`` library, sorted by length
in batches of 16, and numpy computes mean and length, so no server but minisbert's imports torch.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import torch

from benchmarks import machine, peers
from benchmarks.conversion import convert
from benchmarks.encode_speed import MODEL, table, texts_of
from benchmarks.peers import turns
from minisbert.backends.package import CompiledEncoder
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command

ROOT = Path(__file__).parents[1]
LIBRARIES = ("onnxruntime", "openvino")
TOKENS = 12  # of the sentence in a request of one
FEW, MANY = 16, 64  # texts in a request
LARGEST_DIFFERENCE = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.3}  # from the eager encoder's vectors

OURS = """
from functools import partial
import minisbert
encoder = minisbert.load({model!r}, compiled={compiled!r}, dtype={dtype!r} if {compiled!r} else None)
encode = partial(encoder.encode, dtype={dtype!r})
"""
ONNXRUNTIME = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
session = onnxruntime.InferenceSession("{files}/{dtype}.onnx", options, providers=["CPUExecutionProvider"])
run = lambda ids, mask, types: session.run(None, dict(input_ids=ids, attention_mask=mask, token_type_ids=types))[0]
"""
OPENVINO = """
import sys; sys.modules["openvino_telemetry"] = None
import openvino
settings = dict(INFERENCE_PRECISION_HINT="{hint}", INFERENCE_NUM_THREADS={threads}, PERFORMANCE_HINT="LATENCY")
request = openvino.Core().compile_model("{files}/openvino.xml", "CPU", settings).create_infer_request()
run = lambda *inputs: request.infer(inputs, share_inputs=True, share_outputs=True)[0]
"""
TOKENIZE_AND_POOL = """
import numpy as np
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file("{files}/model/tokenizer.json")
tokenizer.enable_truncation(256)
tokenizer.no_padding()

def encode(texts):
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
    vectors = [None] * len(ids)
    for rows in (order[start : start + 16] for start in range(0, len(order), 16)):
        longest = len(ids[rows[0]])
        batch = np.array([ids[row] + [0] * (longest - len(ids[row])) for row in rows])  # (B, T)
        mask = np.array([[1] * len(ids[row]) + [0] * (longest - len(ids[row])) for row in rows])
        sums = (run(batch, mask, np.zeros_like(batch)) * mask[..., None]).sum(axis=1)
        for row, vector in zip(rows, sums / np.linalg.norm(sums, axis=1, keepdims=True)):
            vectors[row] = vector
    return np.array(vectors)
"""
SERVE = """
from benchmarks.tiny_server import Server
server = Server(0, encode)
print(server.server_port, flush=True)
server.serve_forever()
"""


def servers(model: str, files: Path, libraries: Sequence[str], precisions: Sequence[str]) -> dict[str, str]:
    """The program of each server, by library and dtype."""
    threads = torch.get_num_threads()
    found = {}
    for name, compiled in (("minisbert compiled", True), ("minisbert", False)):
        for dtype in precisions:
            code = OURS.format(model=model, compiled=compiled, dtype=dtype)
            found[f"{name} {dtype}"] = code + SERVE
    if "onnxruntime" in libraries:
        for dtype in ("float32", "int8"):
            code = ONNXRUNTIME.format(files=files, dtype=dtype, threads=threads)
            found[f"onnxruntime {dtype}"] = code + TOKENIZE_AND_POOL.format(files=files) + SERVE
    if "openvino" in libraries:
        for dtype in precisions:
            hint = {"float32": "f32", "bfloat16": "bf16"}[dtype]
            code = OPENVINO.format(files=files, hint=hint, threads=threads)
            found[f"openvino {dtype}"] = code + TOKENIZE_AND_POOL.format(files=files) + SERVE
    return found


@contextmanager
def serving(code: str) -> Iterator[tuple[int, int]]:
    """A server's process id and port."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        if not (line := process.stdout.readline()):
            raise InputError("a server ended before it listened")
        yield process.pid, int(line)
    finally:
        process.kill()
        process.communicate()


def post(port: int, texts: Sequence[str]) -> np.ndarray:
    """The vectors that a server answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/", json.dumps(texts))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    if response.status != 200:
        raise InputError(f"a server answered {response.status}: {answer['error']}")
    return np.array(answer, np.float32)


def median_seconds(port: int, requests: Sequence[Sequence[str]]) -> float:
    """Of a request; the first is not counted."""
    seconds = []
    for texts in requests:
        body = json.dumps(texts)
        started = time.perf_counter()
        connection = HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", "/", body)
        connection.getresponse().read()
        seconds.append(time.perf_counter() - started)
        connection.close()
    return statistics.median(seconds[1:])


def peak(pid: int) -> float:
    """The peak memory of a process in MiB. Linux only."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def measure(
    codes: dict[str, str], encoder: SentenceEncoder, singles: list[str], texts: list[str], rounds: int, requests: int
) -> dict:
    """The medians of every side. ``singles`` are sent alone, ``texts`` together with others."""
    measured = machine.measure()
    found: dict[str, dict[str, list[float]]] = {
        name: {"one": [], "few": [], "rate": [], "mebibytes": [], "start": []} for name in codes
    }
    few, many = min(FEW, len(texts)), min(MANY, len(texts))
    expected = encoder.encode(texts[:few])
    for round_, name, code in turns("serving", rounds, codes):
        chance, side = random.Random(round_), found[name]
        started = time.perf_counter()
        with serving(code) as (pid, port):
            post(port, singles[:1])
            side["start"].append(time.perf_counter() - started)
            difference = abs(post(port, texts[:few]) - expected).max()
            if difference > LARGEST_DIFFERENCE[name.split()[-1]]:
                raise InputError(f"{name} answers other vectors: the largest difference is {difference:.1e}")
            ones = [[chance.choice(singles)] for _ in range(requests + 1)]
            side["one"].append(1000 * median_seconds(port, ones))
            side["few"].append(1000 * median_seconds(port, [chance.sample(texts, few) for _ in range(requests + 1)]))
            batches = [chance.sample(texts, many) for _ in range(requests // 4 + 2)]
            side["rate"].append(many / median_seconds(port, batches))
            side["mebibytes"].append(peak(pid))
    medians = {name: {what: statistics.median(values) for what, values in side.items()} for name, side in found.items()}
    return {"machine": measured, "sides": medians}


def show(found: dict) -> None:
    columns = ["one text, ms", "16 texts, ms", "texts a second", "MiB", "start, s"]
    rows = {
        name: (
            f"{row['one']:.1f}",
            f"{row['few']:.1f}",
            f"{row['rate']:,.0f}",
            f"{row['mebibytes']:,.0f}",
            f"{row['start']:.1f}",
        )
        for name, row in found["sides"].items()
    }
    table("HTTP requests, one after the other", found, columns, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES, help="compare with these (default: all installed)")
    parser.add_argument("--rounds", type=bounded(int, 1), default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--requests", type=bounded(int, 1), default=100, help="of each kind (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    peers.stay_offline()
    chosen = [name for name in peers.installed(options.peers) if name in LIBRARIES]
    folder = ensure(MODEL)
    encoder = SentenceEncoder.load(folder)
    texts = texts_of("stsb", encoder)
    counts = [len(ids) for ids in encoder.tokenizer.encode(texts).ids]
    singles = [text for text, count in zip(texts, counts, strict=True) if count == TOKENS]
    for dtype in machine.precisions():  # made now, if they are missing
        CompiledEncoder.load(folder, dtype=dtype)
    with tempfile.TemporaryDirectory() as converted:
        files = Path(converted)
        convert(folder, files, chosen)
        codes = servers(str(folder), files, chosen, machine.precisions())
        found = measure(codes, encoder, singles, texts, options.rounds, options.requests)
    print(json.dumps(found)) if options.json else show(found)


if __name__ == "__main__":
    run_command(main)
