"""Two stages: the candidates are sorted by the pair model, what is behind them stays."""

import json

import numpy as np
import pytest

from minisbert.commands.evaluate import main
from minisbert.core import InputError
from minisbert.evaluation.retrieval import rerank, two_stage_search
from minisbert.models.sentence_encoder import SentenceEncoder

TEXTS = ["a cat", "a dog", "the moon", "two guitars", "snow"]


class Longest:
    """Likes long texts."""

    def predict(self, pairs: list[tuple[str, str]], show_progress_bar: bool = False) -> np.ndarray:
        return np.array([float(len(text)) for _, text in pairs])


class Classes:
    def predict(self, pairs: list[tuple[str, str]], show_progress_bar: bool = False) -> np.ndarray:
        return np.ones((len(pairs), 3))


def test_candidates_are_sorted_by_the_model_and_ties_stay():
    scores, indices = rerank(Longest(), ["q", "r"], TEXTS, np.array([[0, 1, 2], [4, 3, 0]]))
    assert indices.tolist() == [[2, 0, 1], [3, 0, 4]]
    assert scores.tolist() == [[8, 5, 5], [11, 5, 4]]


def test_what_is_behind_the_candidates_follows():
    def search(queries, corpus, k, progress):
        return np.array([[0.9, 0.8, 0.7]]), np.array([[4, 0, 3]])

    both = two_stage_search(search, Longest(), ["q"], TEXTS, candidates=2)
    assert both(None, None, 3, False)[1].tolist() == [[0, 4, 3]]


def test_a_model_of_classes_has_no_order():
    with pytest.raises(InputError, match="one score for a pair"):
        rerank(Classes(), ["q"], TEXTS, np.array([[0, 1]]))


def test_a_reranker_that_knows_the_answers_finds_all_that_the_search_has_found(
    tiny, tmp_path, capsys, monkeypatch
):
    """accuracy@1 becomes the share of answers among the candidates, which is counted by hand from
    the vectors.
    """
    answers = [3, 4, 0, 2, 1]
    rows = {
        "queries.jsonl": [{"_id": f"q{i}", "text": text[::-1]} for i, text in enumerate(TEXTS)],
        "corpus.jsonl": [{"_id": f"d{i}", "text": text} for i, text in enumerate(TEXTS)],
    }
    for name, some in rows.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in some))
    (tmp_path / "qrels.tsv").write_text(
        "".join(f"q{i}\td{answer}\t1\n" for i, answer in enumerate(answers))
    )
    right = {(text[::-1], TEXTS[answer]) for text, answer in zip(TEXTS, answers, strict=True)}

    class Teacher:
        def predict(self, pairs, show_progress_bar=False):
            return np.array([float(pair in right) for pair in pairs])

    monkeypatch.setattr("minisbert.models.pair_model.PairModel.load", lambda *_, **__: Teacher())
    files = {"queries": "queries.jsonl", "corpus": "corpus.jsonl", "qrels": "qrels.tsv"}
    flags = [f"--{name}={tmp_path / file}" for name, file in files.items()]
    main([*flags, "--model", str(tiny), "--rerank", "any", "--candidates", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(tiny)
    cosines = encoder.encode([text[::-1] for text in TEXTS]) @ encoder.encode(TEXTS).T
    first_three = np.argsort(-cosines, axis=1)[:, :3]
    share = np.mean(
        [answer in row for answer, row in zip(answers, first_three.tolist(), strict=True)]
    )
    assert 0 < share < 1
    assert found["accuracy@1"] == share
    assert found["rerank"] == "any"
