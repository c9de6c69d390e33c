"""The command that prints the closest pairs in a file; ``test_search.py`` tests the computation."""

import json
import shutil
from itertools import combinations

import numpy as np
import pytest

from minisbert.commands.pairs import main
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder

SENTENCES = ["a small dog", "the moon is in the sky", "the dog", "rain and snow", "the dog"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def expected(tiny) -> list[tuple[float, int, int]]:
    """(cosine, i, j) of every pair, best first."""
    vectors = SentenceEncoder.load(tiny).encode(SENTENCES).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    scored = [(cosines[i, j], i, j) for i, j in combinations(range(len(SENTENCES)), 2)]
    return sorted(scored, reverse=True)


def test_pairs_are_printed_best_first(tiny, file, expected, capsys):
    """The score, then the two texts below each other."""
    main([str(file), "--model", str(tiny), "--top", "4"])
    lines = []
    for score, i, j in expected[:4]:
        lines.append(f"{score:8.4f}  {SENTENCES[i]}\n")
        lines.append(f"{'':8}  {SENTENCES[j]}\n")
    assert lines[:2] == ["  1.0000  the dog\n", "          the dog\n"]
    assert capsys.readouterr().out == "".join(lines)


def test_a_top_beyond_the_number_of_pairs_shows_all(tiny, file, capsys):
    """It is said, because a user may have expected more."""
    main([str(file), "--model", str(tiny), "--top", "11"])
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 20
    assert "--top 11: 5 sentences make only 10 pairs" in captured.err


def check_json(tiny, out: str, expected: list[tuple[float, int, int]]) -> None:
    content = json.loads(out)
    assert content["model"] == str(tiny)
    assert content["sentences"] == 5
    for pair, (score, i, j) in zip(content["pairs"], expected, strict=True):
        assert pair["score"] == pytest.approx(score, abs=1e-6)
        assert pair["indices"] == [i, j]
        assert pair["texts"] == [SENTENCES[i], SENTENCES[j]]


def test_pairs_as_json(tiny, file, expected, capsys):
    """With the numbers of the lines, from 0."""
    main([str(file), "--model", str(tiny), "--top", "3", "--json"])
    check_json(tiny, capsys.readouterr().out, expected[:3])


def test_only_pairs_above_a_score(tiny, file, expected, capsys):
    """How many were left out is said."""
    limit = (expected[1][0] + expected[2][0]) / 2
    main([str(file), "--model", str(tiny), "--min-score", str(limit), "--json"])
    captured = capsys.readouterr()
    check_json(tiny, captured.out, expected[:2])
    assert "2 of the 10 closest pairs have a score of at least" in captured.err


def test_a_prompt_comes_before_each_sentence(tiny, file, tmp_path, capsys):
    """By its text or its name, the scores are those of sentences that begin with it."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"same": "the sun "}}')
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(f"the sun {sentence}\n" for sentence in SENTENCES), encoding="utf-8")

    def ranking(*arguments: object) -> list[tuple[float, list[int]]]:
        main([*map(str, arguments), "--model", str(folder), "--json"])
        pairs = json.loads(capsys.readouterr().out)["pairs"]
        return [(pair["score"], pair["indices"]) for pair in pairs]

    expected = ranking(whole)
    assert ranking(file, "--prompt", "the sun ") == expected
    assert ranking(file, "--prompt-name", "same") == expected
    assert ranking(file) != expected


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("a dog\na cat\n", ["--min-score", "nan"], "--min-score"),
        ("a dog\n", [], "contains one sentence: a pair needs two"),
        ("\n", [], "is empty: it holds no text"),
    ],
)
def test_invalid_input_is_an_error(tiny, tmp_path, content, arguments, message):
    """Each is found before the sentences are encoded."""
    (tmp_path / "f.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        main([str(tmp_path / "f.txt"), "--model", str(tiny), *arguments])
