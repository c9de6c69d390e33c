"""Read the vectors that ``certify`` judges: from a file, or from a server in OpenAI's protocol."""

import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.system.files import open_bytes
from minisbert.system.reading import reading

REQUEST_TEXTS = 16  # texts of a request
ANSWER_SECONDS = 60.0  # how long a server may be silent
ANSWER_BYTES = 64 * 2**20  # more is not read; 16 vectors take far less
KEY_VARIABLE = "MINISBERT_API_KEY"


def read_vector_file(path: str | Path) -> np.ndarray:
    """Read the vectors (N, D) of a ``.npy`` file, one row for each text, as float64.

    Raises ``InputError`` for a file that is missing, damaged or of another kind, and for anything
    but a matrix of finite numbers.
    """
    with reading(path):
        if Path(path).suffix.lower() != ".npy":
            raise ValueError(
                'the vectors must be in a .npy file: numpy.save("vectors.npy", vectors) writes one'
            )
        with open_bytes(Path(path)) as file:
            return as_matrix(np.lib.format.read_array(file, allow_pickle=False))


def as_matrix(array: np.ndarray) -> np.ndarray:
    """Return vectors (N, D) as float64.

    Raises ``ValueError`` for anything but a matrix of real, finite numbers.
    """
    if array.dtype.kind not in "fiub":  # floats, integers, unsigned integers, booleans
        raise ValueError(f"vectors must be real numbers, not {array.dtype}")
    values = array.astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"vectors must be a matrix (N, D), not {values.shape}")
    finite = np.isfinite(values).all(axis=1)  # (N,)
    if not finite.all():
        raise ValueError(f"row {finite.argmin() + 1} is not finite")
    return values


# ------------------------------------------------------------------------------------ from a server


def fetch_vectors(url: str, texts: Sequence[str], model: str) -> np.ndarray:
    """Ask a server for the vectors (N, D) of the texts, in order.

    ``url`` is the server's address, with or without ``/v1``; ``model`` is the name that the server
    knows. A key in ``MINISBERT_API_KEY`` is sent as a bearer token. Raises ``InputError`` for
    anything but one vector for each text.
    """
    server = url.rstrip("/").removesuffix("/embeddings").removesuffix("/v1")
    address = f"{server}/v1/embeddings"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--url {one_line(url)} must begin with http:// or https://")

    rows: list[np.ndarray] = []
    for start in range(0, len(texts), REQUEST_TEXTS):
        batch = list(texts[start : start + REQUEST_TEXTS])
        content = post(address, {"input": batch, "model": model, "encoding_format": "float"})
        try:
            vectors = openai_vectors(json.loads(content))
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            # Of these errors only a ValueError has a message for people, which is ours.
            why = "data[].embedding and data[].index are needed"
            if type(error) is ValueError:
                why = str(error)
            beginning = one_line(content[:200].decode(errors="replace"))
            raise InputError(
                f"{address} answered {beginning}, not OpenAI's form of embeddings: {why}"
            ) from error
        if len(vectors) != len(batch):
            raise InputError(f"{address} gave {len(vectors)} vectors for {len(batch)} texts")
        rows += vectors

    try:
        return as_matrix(np.array(rows))
    except ValueError as error:
        raise InputError(f"{address}: {error}") from error


def openai_vectors(answer: Any) -> list[np.ndarray]:
    """Return the vectors of an answer in OpenAI's form, by ``index``: any order is allowed."""
    entries = answer["data"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("data must be a list of objects, each with an index and an embedding")
    if not all(type(entry["index"]) is int for entry in entries):
        raise ValueError("data: each index must be an integer")
    in_order = sorted(entries, key=lambda entry: entry["index"])
    return [as_vector(entry["embedding"]) for entry in in_order]


def as_vector(numbers: Any) -> np.ndarray:
    """Return a list of numbers as a vector (D,); ``ValueError`` for base64, null and the like."""
    if isinstance(numbers, list):
        row = np.array(numbers)
        is_numeric = row.dtype.kind in "fiu"  # floats, integers, unsigned integers
        has_bool = any(isinstance(number, bool) for number in numbers)  # numpy takes True for 1
        if row.ndim == 1 and is_numeric and not has_bool:
            return row
    raise ValueError(
        f"an embedding must be a list of numbers, not {one_line(numbers)}: ask for floats, not "
        f"base64"
    )


class NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: texts and key are for the server that the user has named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, body: dict[str, Any]) -> bytes:
    """Post JSON and return the answer's body. Raises ``InputError`` for anything but status 200."""
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    key = os.environ.get(KEY_VARIABLE)
    if key:
        headers["Authorization"] = f"Bearer {key}".encode()  # a key may be any UTF-8
    try:
        request = Request(address, json.dumps(body).encode(), headers)
        with build_opener(NoRedirect).open(request, timeout=ANSWER_SECONDS) as response:
            content: bytes = response.read(ANSWER_BYTES)
            return content
    except HTTPError as error:
        reason = error.headers.get("Location") or error.reason
        raise InputError(f"{address} answered {error.code}: {one_line(reason)}") from error
    except (OSError, HTTPException, ValueError) as error:
        # The server refused, was silent or hung up, or there is no such address.
        reason = one_line(str(error) or type(error).__name__)
        raise InputError(f"{address} cannot be asked: {reason}") from error
