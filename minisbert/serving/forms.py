"""The forms of requests and answers, as OpenAI, Cohere, Jina and TEI have them.

One table of JSON Schemas has the fields of requests: they are checked against it, and /openapi.json and /docs show it.
"""

import base64
from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.search.quantized import quantize

TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
IDS = {"type": "array", "items": {"type": "integer"}}
NAMED = {"type": "string", "description": "the name of the model, as GET /v1/models has it, or none"}
FLAG = {"type": "boolean"}
WHOLE = {"type": "integer", "minimum": 0}

EMBEDDINGS: dict[str, Any] = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "input": {
            "anyOf": [{"type": "string"}, TEXTS, IDS, {"type": "array", "items": IDS}],
            "description": "a text, texts, token ids, or lists of token ids",
        },
        "model": NAMED,
        "encoding_format": {"enum": ["float", "base64"], "default": "float"},
        "dimensions": {"type": "integer", "minimum": 1, "description": "the first columns, scaled to length 1 again"},
        "input_type": {"enum": ["query", "document"], "description": "chooses the model's prompt"},
    },
}
# Cohere's; int8 and uint8 are left out, because they need ranges, which a request of a few texts does not have
EMBED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "texts": TEXTS,
        "inputs": {"type": "array", "items": {"type": "object"}, "description": "texts in Cohere's longer form"},
        "model": NAMED,
        "input_type": {
            "enum": ["search_query", "search_document", "classification", "clustering"],
            "description": "chooses the model's prompt",
        },
        "embedding_types": {"type": "array", "items": {"enum": ["float", "base64", "binary", "ubinary"]}},
        "output_dimension": {"type": "integer", "minimum": 1, "description": "the first columns, of length 1 again"},
        "truncate": {"enum": ["END", "NONE"], "description": "cut a text that is too long, or refuse it"},
    },
}
RERANK: dict[str, Any] = {
    "type": "object",
    "required": ["query"],
    "properties": {
        "query": {"type": "string"},
        "documents": {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["text"]}]},
            "description": "as Cohere and Jina have it",
        },
        "texts": TEXTS | {"description": "instead of documents, as TEI has it; changes the form of the answer"},
        "model": NAMED,
        "top_n": WHOLE | {"description": "how many come back; 0 for all"},
        "top_k": WHOLE | {"description": "another name of top_n"},
        "return_documents": FLAG,
        "return_text": FLAG,
        "raw_scores": FLAG | {"description": "the model's outputs as they are, or from 0 to 1"},
        "truncate": FLAG | {"description": "cut a document that is too long, or refuse it"},
        "truncation_direction": {"enum": ["Right"]},
    },
}
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}}},
}


def check_form(content: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a request with a value for each field: null is as good as absent, and either the default.

    Raises ``InputError`` for a value of another kind; lists and texts are left to those who read them.
    """
    values = {}
    for name, schema in form["properties"].items():
        value = content.get(name)
        if value is None:
            value = schema.get("default")
        elif "enum" in schema and value not in schema["enum"]:
            raise InputError(f"{name} is not one of {', '.join(schema['enum'])}")
        elif schema.get("type") == "boolean" and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false")
        elif schema.get("type") == "integer" and (type(value) is not int or value < schema["minimum"]):
            raise InputError(f"{name} must be an integer from {schema['minimum']}")
        values[name] = value
    return content | values


def read_inputs(given: Any) -> list[str | list[int]]:
    """Read ``input`` as a list of texts or rows of token ids. Raises ``InputError``."""
    if isinstance(given, str) or (given and is_ids(given)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise InputError("input is not a text, a list of texts, token ids, or a list of lists of token ids")
    for i, each in enumerate(given):
        if not isinstance(each, str) and not is_ids(each):
            raise InputError(f"input[{i}] is neither a text nor a list of token ids")
    return given


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(x) is int for x in given)  # True and False are no ids


def read_embed_texts(content: dict[str, Any]) -> list[str]:
    """Read the texts of an embedding in Cohere's form, ``texts`` or ``inputs``. Raises ``InputError``."""
    if content.get("images") is not None or content.get("max_tokens") is not None:
        raise InputError("images and max_tokens are not for this model: send texts, which it cuts at its own limit")
    name = "texts"
    if content["texts"] is None and content["inputs"] is not None:
        name = "inputs"
    given = content[name]
    if not isinstance(given, list) or not given:
        raise InputError("send texts, a list of texts")
    texts: list[str] = []
    for i, each in enumerate(given):
        if name == "inputs":
            match each:
                case {"content": [{"type": "text", "text": each}]}:
                    pass
        if not isinstance(each, str):
            raise InputError(f"{name}[{i}] is not one text")
        texts.append(each)
    return texts


def read_types(given: Any) -> list[str]:
    """Read ``embedding_types``, [] if there are none. Raises ``InputError``."""
    types = EMBED["properties"]["embedding_types"]["items"]["enum"]
    if given is None:
        return []
    if not isinstance(given, list) or any(each not in types for each in given):
        raise InputError(f"embedding_types is {one_line(given)}, not a list of {', '.join(types)}")
    return given


def read_documents(content: dict[str, Any]) -> tuple[str, list[str], bool]:
    """Read the query and the documents of a reranking, and whether it has TEI's form. Raises ``InputError``."""
    name = "documents"
    if content["texts"] is not None:
        name = "texts"
        if content["documents"] is not None:
            raise InputError("documents and texts are two names of one list: send one of them")
    query, given = content["query"], content[name]
    if not isinstance(query, str) or not isinstance(given, list) or not given:
        raise InputError("send a query, which is a text, and documents (TEI: texts), a list of texts")
    documents: list[str] = []
    for i, text in enumerate(given):
        if isinstance(text, dict):  # as Cohere's clients may send them
            text = text.get("text")
        if not isinstance(text, str):
            raise InputError(f"{name}[{i}] is neither a text nor an object with a text")
        documents.append(text)
    return query, documents, name == "texts"


# ---------------------------------------------------------------------------------- answers


def as_type(vectors: np.ndarray, name: str) -> list[Any]:
    """Convert vectors (N, D) to lists of numbers, base64 of little-endian float32, or bits, packed by eights."""
    if name == "base64":
        return [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    if name == "float":
        return vectors.tolist()
    return quantize(vectors, name).tolist()


def ranking(order: list[int], scores: list[float], shown: list[Any] | None, is_tei: bool) -> list[dict[str, Any]]:
    """Return the rows of a reranking under TEI's names, or the others', with the documents ``shown``."""
    results = []
    for row in order:
        result: dict[str, Any] = {"index": row}
        result["score" if is_tei else "relevance_score"] = scores[row]
        if shown is not None:
            result["text" if is_tei else "document"] = shown[row]
        results.append(result)
    return results


# ---------------------------------------------------------------------------------- what the server has


def openapi(operations: Iterable[tuple[str, str, str, dict[str, Any] | None]]) -> dict[str, Any]:
    """Return the OpenAPI document of operations: method, path, what it does, and the form of its request or None."""
    paths: dict[str, Any] = {}
    error = {"description": "an error", "content": {"application/json": {"schema": ERROR}}}
    for method, path, about, form in operations:
        plain = path.replace(":path", "")  # Starlette's word for a name with slashes
        operation: dict[str, Any] = {
            "summary": about,
            "responses": {"200": {"description": "the answer"}, "default": error},
        }
        if "{name}" in plain:
            name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [name]
        if form is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": form}}}
        paths[plain] = {method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "minisbert serve", "version": __version__},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
        "paths": paths,
    }


def page(document: dict[str, Any]) -> str:
    """Show an OpenAPI document as HTML, without scripts: each path, what it does, and the fields of its request."""
    parts = ["<!doctype html><meta charset=utf-8><title>minisbert serve</title><h1>minisbert serve</h1>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a></p>')
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>")
            if "requestBody" in operation:
                fields = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
                rows = [f"<li><code>{name}</code> {escape(shape(schema))}" for name, schema in fields.items()]
                parts.append(f"<ul>{''.join(rows)}</ul>")
    return "\n".join(parts)


def shape(schema: dict[str, Any]) -> str:
    """Say what a field holds: its kind or its values, and its description."""
    kind = schema.get("type", "")
    if "enum" in schema:
        kind = " or ".join(schema["enum"])
    return "; ".join(filter(None, (kind, schema.get("description"))))
