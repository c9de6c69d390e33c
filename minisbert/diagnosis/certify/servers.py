"""Vectors from a server over HTTP: OpenAI's protocol, that of text-embeddings-inference, and Ollama's."""

import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.diagnosis.certify.vector_files import VectorFile, checked
from minisbert.system.progress import Bar

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
