"""The prompts of queries and documents: in each call those that sentence-transformers takes when it
runs.
"""

import argparse
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

import minisbert
from minisbert.checkpoints.layout import SENTENCE
from minisbert.commands.shared import ROLES, prompt_of
from minisbert.evaluation.retrieval import Retrieval, retrieval_scores
from minisbert.models.index import encode_with_progress
from minisbert.models.properties import say_unused
from minisbert.util import mine_hard_negatives
from tests.architectures.tiny import alter
from tests.conftest import ROOT

ARCHITECTURES = ROOT / "tests" / "reference" / "architectures"
FOLDERS = {
    "SentenceTransformer": ROOT / "weights" / "tiny",
    "SparseEncoder": ARCHITECTURES / "tiny-splade",
    "MultiVectorEncoder": ARCHITECTURES / "tiny-colbert",
}
PROMPTS = {
    "query": "the moon ",
    "document": "a dog ",
    "passage": "a woman eats ",
    "corpus": "under the sun ",
}
TEXTS = ["the cat sits on the mat", "bread"]
NAMES = [names for count in range(5) for names in combinations(PROMPTS, count)]
# every set of names, with each of them as the default, with one of the two that every model has,
# and without
CASES = [
    (names, default)
    for names in NAMES
    for default in dict.fromkeys((None, "query", "document", *names))
]


@pytest.fixture
def folder(tmp_path):
    """A function that makes a folder of a kind with these prompts."""

    def make(kind: str, names: tuple[str, ...], default: str | None = None) -> Path:
        shutil.copytree(FOLDERS[kind], tmp_path / "model", dirs_exist_ok=True)
        prompts = {name: PROMPTS[name] for name in names}
        alter(tmp_path / "model", SENTENCE, prompts=prompts, default_prompt_name=default)
        return tmp_path / "model"

    return make


def dense(vectors) -> np.ndarray:
    """Vectors of any kind, of either library, as rows."""
    rows = [
        each.to_dense() if isinstance(each, torch.Tensor) else torch.as_tensor(each)
        for each in vectors
    ]
    return np.concatenate([np.atleast_2d(row.numpy()) for row in rows])


@pytest.mark.reference
@pytest.mark.parametrize("kind", FOLDERS)
def test_every_set_of_names_and_every_default(folder, kind):
    """As sentence-transformers chooses."""
    import sentence_transformers

    assert len(CASES) == 64
    for names, default in CASES:
        path = folder(kind, names, default)
        ours = minisbert.load(path, device="cpu").double()  # in float32 SPLADE is off by 1.4e-6
        theirs = getattr(sentence_transformers, kind)(str(path), device="cpu").double()
        assert ours.prompts == theirs.prompts
        for call in ("encode_query", "encode_document", "encode"):
            found, expected = (dense(getattr(model, call)(TEXTS)) for model in (ours, theirs))
            np.testing.assert_allclose(
                found, expected, rtol=0, atol=1e-6, err_msg=f"{call}, {names}, {default}"
            )


def test_one_rule_for_all_that_encode_queries_and_documents(folder, monkeypatch, capsys):
    """Commands, evaluators and the server must not differ in their prompts."""
    pytest.importorskip("fastapi")
    from minisbert.serving.engine import Engine

    say_unused.cache_clear()
    encoder = minisbert.load(
        folder("SentenceTransformer", ("query", "passage"), "query"), device="cpu"
    )
    asked, encode = [], encoder.encode
    monkeypatch.setattr(
        encoder, "encode", lambda *a, **named: asked.append(named["prompt"]) or encode(*a, **named)
    )
    retrieval_scores(
        encoder, Retrieval(["a cat"], TEXTS, [{0: 1}], [None]), show_progress_bar=False
    )
    mine_hard_negatives([("a cat", TEXTS[0])], encoder, TEXTS)
    options = argparse.Namespace(
        **{f"{role}_prompt{end}": None for role in ROLES for end in ("", "_name")}
    )
    asked += [
        prompt_of(encoder, options, role) for role in ROLES
    ]  # of the commands search and mine
    engine = Engine("tiny", encoder)
    asked += [engine.prompt(role) for role in ("query", "document")]
    assert asked == [PROMPTS["query"], ""] * 4
    assert engine.prompt(None) == PROMPTS["query"]
    told = capsys.readouterr().err.splitlines()
    assert ['prompt_name="passage"' in line for line in told] == [True]


def test_the_queries_of_a_search_are_filled_up_without_a_prompt_too(folder):
    """ColBERT's queries are known by the call, not by a prompt."""
    encoder = minisbert.load(folder("MultiVectorEncoder", ()), device="cpu")
    found, expected = (
        encode_with_progress(encoder, TEXTS, "", query=True),
        encoder.encode_query(TEXTS),
    )
    np.testing.assert_array_equal(found.rows, expected.rows)
    assert len(found.rows) > len(encoder.encode_document(TEXTS).rows)
