"""docs/examples/languages.py: its corpus, its measures by hand, and both of its runs on the tiny model."""

import runpy
from types import SimpleNamespace

import numpy as np
import pytest

from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def languages():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "examples" / "languages.py")))


def test_every_phrase_has_a_translation_and_no_sentence_is_in_two_splits(languages):
    tables = (languages.SUBJECTS, languages.ACTIONS, languages.PLACES, languages.OTHERS)
    rows = [languages.phrases(table) for table in tables]
    assert [len(table) for table in rows] == [16, 20, 16, 16]
    assert all(len(pair) == 2 and all(pair) and pair[0] != pair[1] for table in rows for pair in table)
    splits = languages.corpus()
    assert [len(splits[name]) for name in ("train", "dev", "test")] == [3200, 200, 200]
    for side in (0, 1):
        assert len({row[side] for pairs in splits.values() for row in pairs}) == 3600
    known = {text for row in splits["train"] for text in row}
    assert not known & {text for row in languages.phrases(languages.OTHERS) for text in row}


def test_measures_by_hand(languages):
    """Three unit vectors a language; the second sentence is nearest to the first translation, its own to the third."""
    english, spanish = np.eye(3), np.array([[0.8, 0.6, 0], [0, 0.28, 0.96], [0, 0, 1]])
    vectors = {f"{side}{i}": rows[i] for side, rows in (("e", english), ("s", spanish)) for i in range(3)}
    encoder = SimpleNamespace(encode=lambda texts, normalize_embeddings: np.array([vectors[text] for text in texts]))
    turned = np.roll(english, 1, axis=1) * 0.5 + english * 0.75**0.5
    teacher = SimpleNamespace(encode=lambda texts, normalize_embeddings: turned)
    found = languages.measure(encoder, [(f"e{i}", f"s{i}") for i in range(3)], teacher)
    assert found["cosine of translations"] == pytest.approx((0.8 + 0.28 + 1) / 3)
    assert found["of other pairs"] == pytest.approx((0.6 + 0.96) / 6)
    assert found["found, en -> es"] == found["found, es -> en"] == pytest.approx(2 / 3)
    assert found["English as before"] == pytest.approx(0.75**0.5)


def test_both_runs_on_the_tiny_model(languages, tiny, tmp_path, capsys):
    found = languages.main(tmp_path / "toy", str(tiny), "--max-steps", "2", "--lr", "1e-2", "--dtype", "float32")
    assert found.keys() == {"held out", "of other patterns"}
    for scores in found.values():
        assert list(scores) == ["before", "teacher", "labels"]
        assert all(-1 <= value <= 1.000001 for row in scores.values() for value in row.values())
    shown = capsys.readouterr().out
    assert "200 held out" in shown
    assert f"{found['held out']['teacher']['cosine of translations']:10.3f}" in shown
    for name in ("teacher", "labels"):
        assert isinstance(SentenceEncoder.load(tmp_path / "toy" / name / "model"), SentenceEncoder)
