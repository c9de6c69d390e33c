"""Whole servers under load: minisbert, infinity-emb, and sentence-transformers behind FastAPI.

    python -m benchmarks.server_load          ours and sentence-transformers (serve extra)
    python -m benchmarks.server_load --infinity /path/to/infinity_emb --rounds 3

In every round each server is started in turn and answers OpenAI's /v1/embeddings over connections
that stay open:

one text       a client that sends single sentences of STS-B test one after the other: median and
               99th percentile, ms
16 texts       the same client with 16 sentences in a request: median, ms
64 clients     64 clients, each of which sends single sentences one after the other: requests a
               second; median and 99th percentile, ms
MiB            the server's peak memory, after all these requests

Figures are medians over the rounds. The clients run on the same cores, in one process without
threads.
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks import machine, peers
from benchmarks.encode_speed import MODEL, table, texts_of
from benchmarks.peers import turns
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command

CLIENTS = 64
FEW = 16  # texts in a request
LARGEST_DIFFERENCE = 1e-5  # from the eager encoder's vectors
SECONDS = 120  # to start
FASTAPI = """
import sys, uvicorn
from fastapi import FastAPI
from sentence_transformers import SentenceTransformer
model, app = SentenceTransformer(sys.argv[1], device="cpu"), FastAPI()

@app.get("/health")
def health():
    return {}

@app.post("/v1/embeddings")
def embed(request: dict):
    texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
    vectors = model.encode(texts).tolist()
    return {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


def commands(folder: Path, port: int, infinity: str | None) -> dict[str, list[str]]:
    """How each server is started."""
    ours = [sys.executable, "-m", "minisbert", "serve", str(folder)]
    ours += ["--port", str(port), "--any-model"]
    found = {"minisbert compiled": [*ours, "--compiled"], "minisbert": ours}
    if infinity:
        theirs = [infinity, "v2", "--model-id", str(folder), "--port", str(port)]
        theirs += ["--device", "cpu", "--url-prefix", "/v1", "--log-level", "error"]
        found["infinity-emb"] = [*theirs, "--no-bettertransformer"]
    found["sentence-transformers"] = [sys.executable, "-c", FASTAPI, str(folder), str(port)]
    return found


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[int]:
    """A server that answers; its process id."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        for _ in range(10 * SECONDS):
            if process.poll() is not None:
                raise InputError(f"a server ended before it answered: {command}")
            with suppress(OSError):
                post(port, ["the first request is slower"])
                break
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def post(port: int, texts: Sequence[str]) -> np.ndarray:
    """The vectors (N, D) that a server answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(
        "POST", "/v1/embeddings", body_of(texts), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.status != 200:
        raise InputError(f"a server answered {response.status}: {content[:200]!r}")
    rows = sorted(json.loads(content)["data"], key=lambda row: row["index"])
    return np.array([row["embedding"] for row in rows], np.float32)


def body_of(texts: Sequence[str]) -> bytes:
    return json.dumps({"model": "model", "input": list(texts), "encoding_format": "float"}).encode()


async def client(port: int, requests: Sequence[Sequence[str]]) -> list[float]:
    """Send the requests one after the other over one connection; the seconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds = []
    for texts in requests:
        body = body_of(texts)
        head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        start = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answered, re.IGNORECASE)
        await reader.readexactly(int(length[1]))
        seconds.append(time.perf_counter() - start)
        if b" 200 " not in answered.splitlines()[0]:
            raise InputError(f"a server answered {answered.splitlines()[0]!r}")
    writer.close()
    return seconds


async def clients(
    port: int, sentences: Sequence[str], requests: int, chance: random.Random
) -> tuple[list[float], float]:
    """Send ``requests`` single sentences from each of ``CLIENTS``: seconds of each, and of all."""
    start = time.perf_counter()
    tasks = [client(port, singles(sentences, requests, chance)) for _ in range(CLIENTS)]
    seconds = list(chain.from_iterable(await asyncio.gather(*tasks)))
    return seconds, time.perf_counter() - start


def singles(sentences: Sequence[str], requests: int, chance: random.Random) -> list[list[str]]:
    """So many requests of one random sentence each."""
    return [[chance.choice(sentences)] for _ in range(requests)]


def peak(pid: int) -> float:
    """The peak memory of a process in MiB. Linux only."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def milliseconds(seconds: Sequence[float], percent: float = 50) -> float:
    return float(1000 * np.percentile(seconds, percent))


def measure(
    folder: Path, sentences: list[str], infinity: str | None, rounds: int, requests: int
) -> dict:
    """The medians of every side."""
    measured = machine.measure()
    expected = SentenceEncoder.load(folder, device="cpu").encode(sentences[:FEW])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sides: dict[str, dict[str, list[float]]] = {}
    for round_, name, command in turns("serving", rounds, commands(folder, port, infinity)):
        chance = random.Random(round_)
        with started(command, port) as pid:
            difference = abs(post(port, sentences[:FEW]) - expected).max()
            if difference > LARGEST_DIFFERENCE:
                raise InputError(
                    f"{name} answers other vectors: the largest difference is {difference:.1e}"
                )
            asyncio.run(clients(port, sentences, 2, chance))  # not counted
            ones = asyncio.run(client(port, singles(sentences, requests, chance)))
            samples = [chance.sample(sentences, FEW) for _ in range(requests // 4)]
            few = asyncio.run(client(port, samples))
            many, whole = asyncio.run(clients(port, sentences, requests // 10, chance))
            figures = {
                "one": milliseconds(ones),
                "one99": milliseconds(ones, 99),
                "few": milliseconds(few),
                "rate": len(many) / whole,
                "many": milliseconds(many),
                "many99": milliseconds(many, 99),
                "mebibytes": peak(pid),
            }
        side = sides.setdefault(name, {})
        for what, value in figures.items():
            side.setdefault(what, []).append(value)

    medians: dict[str, dict[str, float]] = {}
    for name, side in sides.items():
        medians[name] = {what: statistics.median(values) for what, values in side.items()}
    return {"machine": measured, "sides": medians}


def show(found: dict) -> None:
    columns = ["one text, ms", "one text, p99", "16 texts, ms"]
    columns += ["64 clients, requests a second", "64 clients, ms", "64 clients, p99", "MiB"]
    rows = {}
    for name, row in found["sides"].items():
        cells = [f"{row[what]:.1f}" for what in ("one", "one99", "few")]
        cells.append(f"{row['rate']:,.0f}")
        cells += [f"{row['many']:.0f}", f"{row['many99']:.0f}"]
        cells.append(f"{row['mebibytes']:,.0f}")
        rows[name] = cells
    table("servers under load", found, columns, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--infinity", metavar="PATH", help="the program infinity_emb, in an environment of its own"
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=3, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--requests",
        type=bounded(int, 40),
        default=400,
        help="of one client (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.infinity and not shutil.which(options.infinity):
        raise InputError(f"--infinity {options.infinity} is not a program")
    peers.stay_offline()
    folder = ensure(MODEL)
    sentences = texts_of("stsb", SentenceEncoder.load(folder))
    found = measure(folder, sentences, options.infinity, options.rounds, options.requests)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    run_command(main)
