"""Fixtures for tests that encode: what is encoded, and nothing more."""

from collections.abc import Callable

import pytest

from minisbert.models.sentence_encoder import SentenceEncoder


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The texts that are encoded, in order, from the first ``clear`` on."""
    texts, encode = [], SentenceEncoder.encode

    def noted(self, given, *rest, **options):
        texts.extend(given)
        return encode(self, given, *rest, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", noted)
    return texts


@pytest.fixture
def once(monkeypatch) -> Callable[[], None]:
    """A function that forbids further encoding."""
    return lambda: monkeypatch.setattr(SentenceEncoder, "encode", lambda *_, **__: pytest.fail("it was encoded again"))


@pytest.fixture
def no_model(monkeypatch) -> Callable[[], None]:
    """A function that forbids loading a model."""
    return lambda: monkeypatch.setattr(SentenceEncoder, "load", lambda *_, **__: pytest.fail("a model was loaded"))
