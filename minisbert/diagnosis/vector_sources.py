"""A golden file: texts, a model's vectors of them and its settings, to check an engine later without the weights."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.checks import Place, check, check_texts
from minisbert.core.weights import read_safetensors
from minisbert.data.formats import number
from minisbert.data.lines import Rows
from minisbert.diagnosis.certificate import Case, check_count
from minisbert.diagnosis.hypotheses import ROUNDED, Certificate, quantization
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.files import atomic_file, open_bytes, write_json
from minisbert.system.progress import Bar

ENDINGS = (".npy", ".safetensors", ".jsonl", ".csv")
VECTOR_KEYS = ("embedding", "vector", "embeddings", "vectors", "values")  # of an object in a .jsonl, the first it has


class VectorFile(NamedTuple):
    """Vectors from a file: ``values`` (N, D) float64, finite; ``dtype`` is what the file holds, or ``text``."""

    values: np.ndarray
    dtype: str


def read_vectors(path: str | Path) -> VectorFile:
    """The vectors (N, D) of a file, one row for each text.

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
                tensor = tensors["vectors"] if len(tensors) != 1 else next(iter(tensors.values()))
                array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()  # numpy has no bfloat16
                dtype = str(tensor.dtype).removeprefix("torch.")
            case ".jsonl" | ".csv":
                array, dtype = read_text_rows(path, at), "text"
            case _:
                raise ValueError(f"the name must end in {', '.join(ENDINGS)}")
        return VectorFile(checked(array), dtype)


def checked(array: np.ndarray) -> np.ndarray:
    """The vectors (N, D) as float64; ``ValueError`` for anything but real, finite numbers."""
    values = array.astype(np.float64, casting="same_kind")  # raises for complex numbers and texts
    check("vectors (N, D)", values)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        kind = "infinity"
        if np.isnan(values[row]).any():
            kind = "NaN"
        raise ValueError(f"row {row + 1}: {kind} (in {int((~finite).sum()):,} of {len(values):,} rows)")
    return values


def read_text_rows(path: Path, at: Place) -> np.ndarray:
    """Rows of numbers: between commas, where a first line without any is a header, or lists in lines of JSON.

    A line may also be an object that has its list under one of ``VECTOR_KEYS``.
    """
    json, rows = path.suffix.lower() == ".jsonl", []
    for at.line, row in Rows(path).values() if json else Rows(path).cells(","):
        if isinstance(row, dict):
            row = next((row[key] for key in VECTOR_KEYS if key in row), None)
        if json and not (isinstance(row, list) and all(type(number) in (int, float) for number in row)):
            raise ValueError(f"a list of numbers is needed, or an object that has one under {VECTOR_KEYS[0]!r}")
        if json or at.line > 1 or any(number(cell) is not None for cell in row):
            rows.append(np.array([float(number) for number in row]))
            if len(rows[-1]) != len(rows[0]):
                raise ValueError(f"{len(rows[-1])} numbers, in the lines before it {len(rows[0])}")
    at.line = 0
    return np.array(rows)


MARK = "golden vectors"
LINE = "Line {} of the log tells of a ship, its crew and the weather."
# one word, capitals, accents, numbers, another script, and lengths on both sides of the usual limits
TEXTS = (
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
    """Twenty texts that most mistakes of an engine show in."""
    return [*TEXTS, *(" ".join(LINE.format(100 * count + i) for i in range(count)) for count in LINES)]


@dataclass(frozen=True)
class Golden:
    """What a golden file holds; ``about`` says in words what the vectors (N, D) are."""

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
    # nine digits are enough for every float32
    rows = [[float(f"{value:.9g}") for value in row] for row in vectors.tolist()]
    content = {"minisbert": MARK, "model": model, "about": about, "texts": list(texts), "vectors": rows}
    with atomic_file(path) as partial:
        write_json(partial, content)


def read_golden(path: Path) -> Golden:
    """The contents of a golden file; ``InputError`` for any other file."""
    content = read_json(path)
    if content.get("minisbert") != MARK:
        raise InputError(f"{path} is not a golden file: minisbert certify --write-golden writes one")
    with reading(path):
        texts, vectors = check_texts(content["texts"]), checked(np.array(content["vectors"]))
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts and {len(vectors)} vectors")
        return Golden(str(content["model"]), str(content["about"]), texts, vectors)


def certify_golden(golden: Golden, values: np.ndarray, name: object = "the vectors") -> Certificate:
    """Compare ``values`` (N, W), which errors call ``name``, with the file's. Only the model itself can name a cause.

    Raises ``InputError`` for another number of rows or columns.
    """
    check_count(golden.texts, values, name)
    code = quantization(golden.vectors, values)
    if code is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    if golden.vectors.shape != values.shape:
        widths = f"{values.shape[1]} columns, the golden file's vectors have {golden.vectors.shape[1]}"
        raise InputError(f"{name}: {widths}")
    case = Case(None, golden.texts, golden.vectors, values, "")
    return case.zeros() or case.rounded() or case.order() or case.lengths() or case.unexplained()


PATHS = {"openai": "/v1/embeddings", "tei": "/embed", "ollama": "/api/embed"}
BATCH = 16  # texts of a request; text-embeddings-inference takes 32
SECONDS = 60  # for an answer
KEY = "MINISBERT_API_KEY"


def fetch_vectors(url: str, texts: Sequence[str], api: str = "openai", model: str = "") -> VectorFile:
    """The vectors (N, D) that a server gives for the texts, in order.

    ``url`` is the server's address, such as ``http://127.0.0.1:8080``; an address that has the path of the API already
    is taken as it is. ``model`` is the name that the server knows. A key in the variable ``MINISBERT_API_KEY`` is sent
    as a bearer token. Raises ``InputError`` with the server's own words for anything but one vector for each text.
    """
    address, path = url.rstrip("/"), PATHS[api]
    if address.endswith("/v1"):
        address = address.removesuffix("/v1")
    if not address.endswith(path):
        address += path
    rows: list[list[float]] = []
    for start in Bar(range(0, len(texts), BATCH), desc="asking the server", unit=" requests"):
        batch = list(texts[start : start + BATCH])
        answer = ask(address, body_of(api, batch, model))
        try:
            found = vectors_of(api, answer)
        except (LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{address} answered {one_line(answer)}: not the form of --api {api}") from error
        if len(found) != len(batch):
            raise InputError(f"{address} gave {len(found)} vectors for {len(batch)} texts")
        rows += found
    try:
        return VectorFile(checked(np.array(rows)), "served")
    except (ValueError, TypeError) as error:
        raise InputError(f"{address}: {error}") from error


def body_of(api: str, texts: list[str], model: str) -> dict[str, Any]:
    if api == "tei":
        return {"inputs": texts, "truncate": True}
    body: dict[str, Any] = {"input": texts, "model": model}
    if api == "openai":
        body["encoding_format"] = "float"
    return body


def vectors_of(api: str, answer: Any) -> list[list[float]]:
    if api == "tei":
        return list(answer)
    if api == "ollama":
        return list(answer["embeddings"])
    return [entry["embedding"] for entry in sorted(answer["data"], key=lambda entry: entry["index"])]


def ask(address: str, body: dict[str, Any]) -> Any:
    """The JSON of an answer; ``InputError`` in one line for any other."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {os.environ[KEY]}"
    try:
        request = Request(address, json.dumps(body).encode(), headers)
        with urlopen(request, timeout=SECONDS) as response:
            content = response.read()
    except HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise InputError(f"{address} answered {error.code} {error.reason}: {one_line(said)}") from error
    except (OSError, HTTPException, ValueError) as error:  # refused, timed out, cut off, or no address
        raise InputError(f"{address} cannot be asked: {one_line(str(error) or type(error).__name__)}") from error
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{address} answered {one_line(content[:200].decode(errors='replace'))}: not JSON") from error
