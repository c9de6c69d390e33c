"""What clients send: the fields of a request, checked."""

from typing import Any

from minisbert.serving.engine import Engine


class Refusal(Exception):
    """An answer other than 200: its status, a message, its type in OpenAI's terms, and headers."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", **headers: str):
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": None}}


def read_inputs(engine: Engine, given: Any, most: int) -> list[str | list[int]]:
    """``input`` as a list of texts or rows of token ids. Raises ``Refusal`` or ``InputError``."""
    if isinstance(given, str) or (isinstance(given, list) and given and is_ids(given)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise Refusal(400, "input is not a text, a list of texts, token ids, or a list of lists of token ids")
    check_count("input", given, most)
    for i, each in enumerate(given):
        if not isinstance(each, str) and not is_ids(each):
            raise Refusal(400, f"input[{i}] is neither a text nor a list of token ids")
        engine.check(i, each)
    return given


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(x) is int for x in given)


def check_count(name: str, given: list[Any], most: int) -> None:
    """Raise ``Refusal`` for more texts than a request may have."""
    if len(given) > most:
        raise Refusal(413, f"{name} has {len(given):,} texts, at most {most:,} are accepted")


def read_count(content: dict[str, Any], name: str, most: int) -> int:
    """An integer from 1 to ``most``, which is the default. Raises ``Refusal``."""
    value = content.get(name)
    if value is None:
        return most
    if type(value) is not int or value not in range(1, most + 1):
        raise Refusal(400, f"{name} is not an integer from 1 to {most}")
    return value


def read_choice(content: dict[str, Any], name: str, choices: tuple[str | None, ...]) -> Any:
    """One of a few values, the first of which is the default. Raises ``Refusal`` for any other."""
    value = content.get(name, choices[0])
    if value not in choices:
        raise Refusal(400, f"{name} is not one of {', '.join(filter(None, choices))}")
    return value


def read_documents(engine: Engine, content: dict[str, Any], most: int) -> tuple[str, list[str]]:
    """The query and the documents of a reranking request. Raises ``Refusal`` or ``InputError``."""
    query, given = content.get("query"), content.get("documents")
    if not isinstance(query, str) or not isinstance(given, list) or not given:
        raise Refusal(400, "a reranking request has a query, which is a text, and documents, a list of texts")
    check_count("documents", given, most)
    engine.check(0, query)
    documents = [each.get("text") if isinstance(each, dict) else each for each in given]
    for i, text in enumerate(documents):
        if not isinstance(text, str):
            raise Refusal(400, f"documents[{i}] is neither a text nor an object with a text")
        engine.check(i, text)
    return query, documents
