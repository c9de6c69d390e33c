"""Where ``certify`` gets vectors from: a file, a server that speaks OpenAI's protocol, a golden file.

A golden file holds texts, a model's vectors of them and its settings, to check an engine later without the weights.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.checks import Place, check, check_texts
from minisbert.core.weights import read_safetensors
from minisbert.data.formats import number
from minisbert.data.lines import Rows
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.files import atomic_file, open_bytes, write_json
from minisbert.system.progress import Bar


class VectorFile(NamedTuple):
    """Vectors: ``values`` (N, D) float64, finite; ``dtype`` is what the file holds, ``text``, or ``served``."""

    values: np.ndarray
    dtype: str


def checked(array: np.ndarray) -> np.ndarray:
    """Return vectors (N, D) as float64. Raises ``ValueError`` for anything but real, finite numbers."""
    # raises for complex numbers and texts
    values = array.astype(np.float64, casting="same_kind")
    check("vectors (N, D)", values)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        kind = "NaN" if np.isnan(values[row]).any() else "infinity"
        raise ValueError(f"row {row + 1}: {kind} (in {int((~finite).sum()):,} of {len(values):,} rows)")
    return values


# ------------------------------------------------------------------------------------------ from a file

VECTOR_ENDINGS = (".npy", ".safetensors", ".jsonl", ".csv")
VECTOR_KEYS = ("embedding", "vector", "embeddings", "vectors", "values")  # of an object in a .jsonl, the first it has


def read_vectors(path: str | Path) -> VectorFile:
    """Read the vectors (N, D) of a file, one row for each text.

    Raises ``InputError`` for a file that is missing, damaged, empty or of another kind, for anything but a matrix of
    real numbers, and for NaN and infinity, with the row.
    """
    path = Path(path)
    with reading(path) as at:
        match path.suffix.lower():
            case ".npy":
                with open_bytes(path) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                dtype = str(array.dtype)
            case ".safetensors":
                open_bytes(path).close()  # refuses a pipe, which safetensors would wait for
                tensors = read_safetensors(path)
                tensor = next(iter(tensors.values())) if len(tensors) == 1 else tensors["vectors"]
                dtype = str(tensor.dtype).removeprefix("torch.")
                if tensor.is_floating_point():
                    tensor = tensor.double()  # NumPy has no bfloat16
                array = tensor.numpy()
            case ".jsonl":
                array, dtype = matrix_of(json_rows(path, at), at), "text"
            case ".csv":
                array, dtype = matrix_of(comma_rows(path, at), at), "text"
            case _:
                raise ValueError(f"the name must end in {', '.join(VECTOR_ENDINGS)}")
        return VectorFile(checked(array), dtype)


def json_rows(path: Path, at: Place) -> Iterator[list[float]]:
    """Yield the list of numbers in each line, or that of an object under one of ``VECTOR_KEYS``."""
    for at.line, row in Rows(path).values():
        if isinstance(row, dict):
            row = next((row[key] for key in VECTOR_KEYS if key in row), None)
        # not isinstance: true is an int, too
        if not isinstance(row, list) or any(type(value) not in (int, float) for value in row):
            raise ValueError(f"a list of numbers is needed, or an object that has one under {VECTOR_KEYS[0]!r}")
        yield row


def comma_rows(path: Path, at: Place) -> Iterator[list[str]]:
    """Yield the numbers between commas in each line. A first line without any number is a header."""
    for at.line, row in Rows(path).cells(","):
        if at.line > 1 or any(number(cell) is not None for cell in row):
            yield row


def matrix_of(lines: Iterable[Sequence[Any]], at: Place) -> np.ndarray:
    """Stack the numbers of the lines; an error about all of them has no line."""
    rows: list[np.ndarray] = []
    for line in lines:
        if rows and len(line) != len(rows[0]):
            raise ValueError(f"{len(line)} numbers, in the lines before it {len(rows[0])}")
        rows.append(np.array([float(value) for value in line]))
    at.line = 0
    return np.array(rows)


# ---------------------------------------------------------------------------------------- from a server

REQUEST_TEXTS = 16  # texts of a request
ANSWER_SECONDS = 60.0  # for a whole answer
ANSWER_BYTES = 64 * 2**20  # many times what 16 vectors take
KEY_VARIABLE = "MINISBERT_API_KEY"


def fetch_vectors(url: str, texts: Sequence[str], model: str = "") -> VectorFile:
    """Ask a server for the vectors (N, D) of the texts, in order.

    ``url`` is the server's address, such as ``http://127.0.0.1:8080``, with or without ``/v1``. ``model`` is the name
    that the server knows. A key in the variable ``MINISBERT_API_KEY`` is sent as a bearer token. Raises ``InputError``
    with the server's own words for anything but one vector for each text.
    """
    address = url.rstrip("/").removesuffix("/embeddings").removesuffix("/v1") + "/v1/embeddings"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--url {one_line(url)} must begin with http:// or https://")
    rows: list[list[float]] = []
    for start in Bar(range(0, len(texts), REQUEST_TEXTS), desc="asking the server", unit=" requests"):
        batch = list(texts[start : start + REQUEST_TEXTS])
        content = ask(address, {"input": batch, "model": model, "encoding_format": "float"})
        try:
            answer = json.loads(content)
            entries = sorted(answer["data"], key=lambda entry: entry["index"])  # a server may answer in any order
            vectors = [entry["embedding"] for entry in entries]
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            shown = one_line(content[:200].decode(errors="replace"))
            raise InputError(f"{address} answered {shown}: not the form of OpenAI's embeddings") from error
        if len(vectors) != len(batch):
            raise InputError(f"{address} gave {len(vectors)} vectors for {len(batch)} texts")
        rows += vectors
    try:
        return VectorFile(checked(np.array(rows)), "served")
    except (ValueError, TypeError) as error:
        raise InputError(f"{address}: {error}") from error


class NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: the texts and the key are for the server that the user has named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(address: str, body: dict[str, Any]) -> bytes:
    """Post JSON and return the answer's body. Raises ``InputError`` in one line for anything but status 200."""
    answers: SimpleQueue[bytes | InputError] = SimpleQueue()
    # subtle: the time-out of a socket starts anew with every byte. A server that drips would hold up the thread for
    # hours; a daemon does not hold up the end of the process
    Thread(target=lambda: answers.put(post(address, body)), daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        raise InputError(f"{address} gave no whole answer in {ANSWER_SECONDS:g} s") from None
    if isinstance(answer, InputError):
        raise answer
    return answer


def post(address: str, body: dict[str, Any]) -> bytes | InputError:
    try:
        headers: dict[str, Any] = {"Content-Type": "application/json"}
        if os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}".encode()  # a key may be any UTF-8
        request = Request(address, json.dumps(body).encode(), headers)
        response: HTTPResponse
        try:
            with build_opener(NoRedirect).open(request, timeout=ANSWER_SECONDS) as response:
                content = response.read(ANSWER_BYTES + 1)
        except HTTPError as error:
            about = error.headers.get("Location") or error.read(500).decode(errors="replace")
            return InputError(f"{address} answered {error.code} {one_line(error.reason)}: {one_line(about)}")
    except (OSError, HTTPException, ValueError) as error:  # refused, timed out, cut off, or no address
        return InputError(f"{address} cannot be asked: {one_line(str(error) or type(error).__name__)}")
    if len(content) > ANSWER_BYTES:
        return InputError(f"{address} answered with more than {ANSWER_BYTES // 2**20} MiB for {REQUEST_TEXTS} texts")
    return content


# ------------------------------------------------------------------------------------------ golden files

GOLDEN_MARK = "golden vectors"
LINE = "Line {} of the log tells of a ship, its crew and the weather."
# one word, capitals, accents, numbers, another script, and lengths on both sides of the usual limits
GOLDEN_TEXTS = (
    "rain",
    "A cat sits on the mat.",
    "NASA and the BBC are in the U.S. and the U.K.",
    "Zoë's café serves crème brûlée.",
    "It costs $3.50, or 4,99 €; that's 20 % off!",
    "кошка сидит на коврике",
    "猫が座っている。",
    "unbelievably, antidisestablishmentarianism",
    "Is this a question?",
    "white   space \t everywhere",
    "def mean(x): return sum(x) / len(x)",
    "An older man with a grey hat plays the guitar in front of a house while two children dance.",
    "[CLS] and [SEP] are special, [MASK] is, too",
    "query: how does photosynthesis work",
)
LINES = (3, 8, 11, 20, 30, 45)  # of the log, about 45 to 700 tokens


def golden_texts() -> list[str]:
    """Return twenty texts that most mistakes of an engine show in."""
    texts = list(GOLDEN_TEXTS)
    for count in LINES:
        texts.append(" ".join(LINE.format(100 * count + i) for i in range(count)))
    return texts


@dataclass(frozen=True)
class Golden:
    """Contents of a golden file; ``about`` describes the vectors (N, D) in words."""

    model: str
    about: str
    texts: list[str]
    vectors: np.ndarray


def write_golden(
    encoder: SentenceEncoder, texts: Sequence[str], path: Path, prompt: str | None, model: str, about: str
) -> None:
    """Encode the texts and write the golden file of a model of this name."""
    vectors = encoder.encode(texts, prompt=prompt)  # (N, D)
    prompt = choose_prompt(encoder.settings, prompt)
    if prompt:
        about += f", prompt {prompt!r}"
    rows = []
    for row in vectors.tolist():
        # nine digits are enough for every float32
        rows.append([float(f"{value:.9g}") for value in row])
    content = {"minisbert": GOLDEN_MARK, "model": model, "about": about, "texts": list(texts), "vectors": rows}
    with atomic_file(path) as partial:
        write_json(partial, content)


def read_golden(path: Path) -> Golden:
    """Read a golden file. Raises ``InputError`` for any other file."""
    content = read_json(path)
    if content.get("minisbert") != GOLDEN_MARK:
        raise InputError(f"{path} is not a golden file: minisbert certify --write-golden writes one")
    with reading(path):
        texts, vectors = check_texts(content["texts"]), checked(np.array(content["vectors"]))
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts and {len(vectors)} vectors")
        return Golden(str(content["model"]), str(content["about"]), texts, vectors)
