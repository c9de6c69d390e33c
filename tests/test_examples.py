"""docs/examples: vectors before transformers, sentences in two languages."""

import math
import runpy
from types import SimpleNamespace

import pytest
import torch

from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT


def example(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py")))


@pytest.fixture(scope="module")
def before():
    return example("before_transformers")


def test_a_bag_counts_words_and_idf_forgets_those_that_all_texts_have(before):
    counts = before.bag([[0, 1, 1], [0]], 3)
    assert counts.to_dense().tolist() == [[1, 2, 0], [1, 0, 0]]
    assert before.idf(counts)[:2].tolist() == pytest.approx([0, math.log(2)])


def test_pairs_are_within_a_text_and_a_window_and_those_that_meet_by_chance_have_no_weight(before):
    pairs = before.pairs_of([[0, 1, 2], [3, 4]], window=1)
    assert sorted(map(tuple, pairs.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)]
    assert len(before.pairs_of([[0, 1, 2], [3, 4]], window=2)) == 8

    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [2, 0], [0, 1], [1, 0], [1, 2], [2, 1]])
    found = before.contexts(pairs, 3).to_dense()
    # The pair occurs twice of 8, each word 3 times.
    assert found[0, 1].item() == pytest.approx(math.log(2 * 8 / (3 * 3)))
    assert found[0, 0] == 0
    assert torch.equal(found, found.T)


def test_the_directions_of_a_matrix_of_low_rank_lose_nothing(before):
    torch.manual_seed(0)
    matrix = torch.randn(9, 2) @ torch.randn(2, 7)
    table = before.reduce(matrix, 2)
    assert torch.allclose(table.T @ table, torch.eye(2), atol=1e-5)
    assert torch.allclose(table @ (table.T @ matrix), matrix, atol=1e-4)


def test_the_skip_gram_loss_by_hand_and_words_with_like_neighbours_become_alike(before):
    center = torch.zeros(4, 3)
    wrong = torch.randn(4, 5, 3)
    at_zero = before.skip_gram_loss(center, torch.randn(4, 3), wrong).item()
    assert at_zero == pytest.approx(6 * math.log(2))
    near = torch.tensor([[2.0, 0.0]])
    found = before.skip_gram_loss(near, near, torch.tensor([[[0.0, 1.0]]])).item()
    assert found == pytest.approx(math.log(1 + math.exp(-4)) + math.log(2))

    # 1 and 3 share neighbours, 5 does not.
    texts = [[0, 1, 2], [0, 3, 2], [4, 5, 6], [4, 7, 6]] * 50
    table = before.word2vec(before.pairs_of(texts, 2), 8, 8, epochs=20, batch=64, rate=0.05)
    table = torch.nn.functional.normalize(table)
    assert table[1] @ table[3] > 0.5 > table[1] @ table[5]


def test_both_runs_on_the_tiny_model(tiny, tmp_path, capsys):
    options = ["--max-steps", "2", "--lr", "1e-2", "--dtype", "float32"]
    found = example("languages").main(tmp_path / "toy", str(tiny), *options)
    assert found.keys() == {"held out", "of other patterns"}
    for scores in found.values():
        assert list(scores) == ["before", "teacher", "labels"]
        for row in scores.values():
            assert all(-1 <= value <= 1.000001 for value in row.values())
    shown = capsys.readouterr().out
    assert "200 held out" in shown
    assert f"{found['held out']['teacher']['cosine of translations']:10.3f}" in shown
    for name in ("teacher", "labels"):
        assert isinstance(SentenceEncoder.load(tmp_path / "toy" / name / "model"), SentenceEncoder)
