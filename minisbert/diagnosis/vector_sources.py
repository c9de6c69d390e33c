"""Read the vectors that ``certify`` judges from a file, or from a server that speaks OpenAI's protocol."""

import json
import os
import sys
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from minisbert.core import InputError, one_line, reading
from minisbert.core.weights import read_safetensors
from minisbert.system.files import open_bytes, read_text

REQUEST_TEXTS = 16  # texts of a request
ANSWER_SECONDS = 60.0  # without a byte
ANSWER_BYTES = 64 * 2**20  # many times what 16 vectors take
KEY_VARIABLE = "MINISBERT_API_KEY"
MOST = sys.float_info.max


def read_vectors(path: str | Path) -> np.ndarray:
    """Read the vectors (N, D) of a file, one row for each text, as float64.

    Raises ``InputError`` for a file that is missing, damaged or of another kind, and for anything but a matrix of
    finite numbers.
    """
    path = Path(path)
    with reading(path) as at:
        match path.suffix.lower():
            case ".npy":
                with open_bytes(path) as file:
                    return checked(np.lib.format.read_array(file, allow_pickle=False))
            case ".safetensors":
                open_bytes(path).close()  # refuses a pipe, which safetensors would wait for
                tensors = read_safetensors(path)
                tensor = next(iter(tensors.values())) if len(tensors) == 1 else tensors["vectors"]
                if tensor.is_floating_point():
                    tensor = tensor.double()  # NumPy has no bfloat16
                return checked(tensor.numpy())
            case ".jsonl":
                rows: list[list[float]] = []
                for at.line, line in enumerate(read_text(path).split("\n"), start=1):
                    if not line.strip():
                        continue
                    row = json.loads(line)
                    row = row["embedding"] if isinstance(row, dict) else row
                    # not isinstance: true is an int, too; an integer may be too large for a float
                    if not isinstance(row, list) or any(type(x) not in (int, float) or abs(x) > MOST for x in row):
                        raise ValueError("a list of numbers is needed, or an object with one under 'embedding'")
                    if rows and len(row) != len(rows[0]):
                        raise ValueError(f"{len(row)} numbers, in the lines before it {len(rows[0])}")
                    rows.append([float(value) for value in row])
                at.line = 0
                return checked(np.array(rows))
        raise ValueError("the name must end in .npy, .safetensors or .jsonl")


def checked(array: np.ndarray) -> np.ndarray:
    """Return vectors (N, D) as float64. Raises ``ValueError`` for anything but a matrix of real, finite numbers."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"vectors must be real numbers, not {array.dtype}")
    values = array.astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"vectors must be a matrix (N, D), not {values.shape}")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise ValueError(f"row {finite.argmin() + 1} is not finite")
    return values


def fetch_vectors(url: str, texts: Sequence[str], model: str) -> np.ndarray:
    """Ask a server for the vectors (N, D) of the texts, in order.

    ``url`` is the server's address, with or without ``/v1``; ``model`` is the name that the server knows. A key in
    ``MINISBERT_API_KEY`` is sent as a bearer token. Raises ``InputError`` for anything but one vector for each text.
    """
    address = url.rstrip("/").removesuffix("/embeddings").removesuffix("/v1") + "/v1/embeddings"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--url {one_line(url)} must begin with http:// or https://")
    rows: list[list[float]] = []
    for start in range(0, len(texts), REQUEST_TEXTS):
        batch = list(texts[start : start + REQUEST_TEXTS])
        content = post(address, {"input": batch, "model": model, "encoding_format": "float"})
        try:
            entries = sorted(json.loads(content)["data"], key=lambda entry: entry["index"])  # any order is allowed
            vectors = [entry["embedding"] for entry in entries]
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            shown = one_line(content[:200].decode(errors="replace"))
            raise InputError(f"{address} answered {shown}: not the form of OpenAI's embeddings") from error
        if len(vectors) != len(batch):
            raise InputError(f"{address} gave {len(vectors)} vectors for {len(batch)} texts")
        rows += vectors
    try:
        return checked(np.array(rows))
    except ValueError as error:
        raise InputError(f"{address}: {error}") from error


class NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: the texts and the key are for the server that the user has named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, body: dict[str, Any]) -> bytes:
    """Post JSON and return the answer's body. Raises ``InputError`` for anything but status 200."""
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    if os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}".encode()  # a key may be any UTF-8
    try:
        request = Request(address, json.dumps(body).encode(), headers)
        with build_opener(NoRedirect).open(request, timeout=ANSWER_SECONDS) as response:
            content: bytes = response.read(ANSWER_BYTES)
            return content
    except HTTPError as error:
        about = error.headers.get("Location") or error.reason
        raise InputError(f"{address} answered {error.code}: {one_line(about)}") from error
    except (OSError, HTTPException, ValueError) as error:  # refused, timed out, cut off, or no address
        raise InputError(f"{address} cannot be asked: {one_line(str(error) or type(error).__name__)}") from error
