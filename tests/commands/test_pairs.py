"""The command that prints the closest pairs in a file; ``test_search.py`` tests the computation."""

import json
import shutil

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
    return sorted(((cosines[i, j], i, j) for i in range(5) for j in range(i + 1, 5)), reverse=True)


def test_pairs_are_printed_best_first_and_a_top_beyond_their_number_shows_all(
    tiny, file, expected, capsys
):
    shown = [f"{score:8.4f}  {SENTENCES[i]}\n{'':8}  {SENTENCES[j]}\n" for score, i, j in expected]
    assert shown[0] == "  1.0000  the dog\n          the dog\n"
    main([str(file), "--model", str(tiny), "--top", "4"])
    assert capsys.readouterr().out == "".join(shown[:4])
    main([str(file), "--model", str(tiny), "--top", "11"])
    printed, said = capsys.readouterr()
    assert len(printed.splitlines()) == 20
    assert "--top 11: 5 sentences make only 10 pairs" in said


def test_pairs_as_json_and_only_those_above_a_score(tiny, file, expected, capsys):
    limit = (expected[1][0] + expected[2][0]) / 2
    for options, count in ((["--top", "3"], 3), (["--min-score", str(limit)], 2)):
        main([str(file), "--model", str(tiny), *options, "--json"])
        captured = capsys.readouterr()
        content = json.loads(captured.out)
        assert (content["model"], content["sentences"]) == (str(tiny), 5)
        for pair, (score, i, j) in zip(content["pairs"], expected[:count], strict=True):
            assert pair.pop("score") == pytest.approx(score, abs=1e-6)
            assert pair == {"indices": [i, j], "texts": [SENTENCES[i], SENTENCES[j]]}
    assert "2 of the 10 closest pairs have a score of at least" in captured.err


def test_a_prompt_comes_before_each_sentence(tiny, file, tmp_path, capsys):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"same": "the sun "}}')
    whole, found = tmp_path / "whole.txt", []
    whole.write_text("".join(f"the sun {sentence}\n" for sentence in SENTENCES), encoding="utf-8")
    for texts, *prompt in (
        [whole],
        [file, "--prompt", "the sun "],
        [file, "--prompt-name", "same"],
        [file],
    ):
        main([str(texts), "--model", str(folder), *prompt, "--json"])
        found.append(
            [
                (pair["score"], pair["indices"])
                for pair in json.loads(capsys.readouterr().out)["pairs"]
            ]
        )
    assert found[0] == found[1] == found[2] != found[3]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("a dog\na cat\n", ["--min-score", "nan"], "--min-score"),
        ("a dog\n", [], "contains one sentence: a pair needs two"),
        ("\n", [], "is empty: it holds no text"),
    ],
)
def test_invalid_input_is_an_error(tiny, tmp_path, content, arguments, message):
    (tmp_path / "f.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        main([str(tmp_path / "f.txt"), "--model", str(tiny), *arguments])
