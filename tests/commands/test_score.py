"""``minisbert score``: score pairs from the command line."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from minisbert.commands.score import main
from minisbert.core import InputError
from minisbert.core.heads import ConcatHead, JointHead, siamese
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder

NLI_LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture(params=["siamese", "joint", "binary", "classes"])
def trained(request, tiny, tmp_path) -> PairModel:
    """A saved model with a random head of each kind, and its folder in ``.folder``."""
    torch.manual_seed(0)
    encoder = SentenceEncoder.load(tiny)
    if request.param == "siamese":
        model = PairModel(encoder, siamese(24), "regression")
    elif request.param == "joint":
        model = PairModel(encoder, JointHead(24), "regression")
    elif request.param == "binary":
        model = PairModel(encoder, ConcatHead(24), "binary")
    else:
        model = PairModel(encoder, ConcatHead(24, outputs=3), "classes", NLI_LABELS)
    model.folder = tmp_path / "model"
    model.save(model.folder)
    return model


@pytest.fixture
def constant(tiny, tmp_path) -> Callable[[float], str]:
    """Save a model that gives every pair the same score, and return its folder.

    With zero weights a head returns its bias, which is a fifth of the score.
    """

    def save(score: float) -> str:
        model = PairModel(SentenceEncoder.load(tiny), siamese(24))
        torch.nn.init.zeros_(model.head.mlp[-1].weight)
        torch.nn.init.constant_(model.head.mlp[-1].bias, score / 5)
        model.save(tmp_path / "constant")
        return str(tmp_path / "constant")

    return save


def test_one_pair_has_the_models_score(trained, capsys):
    """A grade from 0 to 5, a probability, or one for each class."""
    main(["--model", str(trained.folder), "a cat sits", "the dog runs"])
    printed = capsys.readouterr().out.strip()
    score = trained.predict(("a cat sits", "the dog runs"), apply_softmax=True)
    if trained.task == "classes":
        first, second, third = score
        assert printed == f"contradiction {first:.3f}  entailment {second:.3f}  neutral {third:.3f}"
    else:
        scale = 5 if trained.task == "regression" else 1
        assert float(printed) == pytest.approx(scale * min(max(float(score), 0), 1), abs=0.005)


def test_a_file_is_scored_line_by_line(trained, tmp_path, capsys):
    """Raw scores before the two texts, so that other programs can read on."""
    pairs = [("a cat", "a small dog"), ("the moon", "the sun and the rain"), ("a cat", "a cat")]
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "sentence1\tsentence2\na cat\ta small dog\nthe moon\tthe sun and the rain\na cat\ta cat\n"
    )
    main(["--model", str(trained.folder), "--file", str(path)])
    texts = []
    numbers = []
    for line in capsys.readouterr().out.splitlines():
        *scores, first, second = line.split("\t")
        texts.append((first, second))
        numbers.append([float(score) for score in scores])
    assert texts == pairs
    expected = trained.predict(pairs, apply_softmax=True).reshape(3, -1)
    if trained.task == "regression":
        expected = 5 * expected
    np.testing.assert_allclose(numbers, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("score", "shown"), [(-2.0, "0.00"), (7.0, "5.00")])
def test_a_score_is_clipped_for_display(constant, capsys, score, shown):
    """People expect a grade from 0 to 5."""
    main(["--model", constant(score), "a cat", "a dog"])
    assert capsys.readouterr().out == f"{shown}\n"


@pytest.mark.parametrize("score", [-2.0, 7.0])
def test_a_score_is_not_clipped_in_a_file(constant, tmp_path, capsys, score):
    """Clipped scores would tie."""
    path = tmp_path / "pairs.tsv"
    path.write_text("text1\ttext2\na cat\ta dog\n")
    main(["--model", constant(score), "--file", str(path)])
    printed = capsys.readouterr().out.split("\t")[0]
    assert float(printed) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere", "a", "b"], "nowhere"),
        (["--model", "{tiny}", "a", "b"], "head.json"),
        (["--model", "{tiny}", "a"], "two texts"),
        (["--model", "{tiny}"], "two texts"),
        (["--model", "{tiny}", "a", "b", "--file", "x.tsv"], "--file"),
        (["--model", "{tiny}", "--file", "{one}"], "line 2"),
        (["--model", "{tiny}", "--file", "{empty}"], "empty.tsv"),
        (["--model", "{tiny}", "--file", "missing.tsv"], "missing.tsv does not exist"),
    ],
)
def test_bad_input_is_an_error(tiny, tmp_path, arguments, message):
    """One line says which file or how many texts."""
    (tmp_path / "one.tsv").write_text("text1\ttext2\nonly one\n")
    (tmp_path / "empty.tsv").write_text("")
    places = {"tiny": tiny, "one": tmp_path / "one.tsv", "empty": tmp_path / "empty.tsv"}
    with pytest.raises(InputError, match=message):
        main([argument.format(**places) for argument in arguments])


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "id,left,right\n1,a cat,a dog\n", ["--columns", "right,left"]),
        ("b.tsv", "a cat\tx\ta dog\n", ["--columns", "3,1"]),
        ("c.jsonl", '{"sentence2": "a cat", "sentence1": "a dog"}\n', []),
        ("d.tsv", "sentence2\tsentence1\na cat\ta dog\n", []),
        ("e.tsv", "label\tsentence2\tsentence1\n1\ta cat\ta dog\n", []),
    ],
)
def test_columns_of_a_file(constant, tmp_path, capsys, name, content, columns):
    """By name, by number without a header, and in the order of their usual names."""
    (tmp_path / name).write_text(content)
    main(["--model", constant(2.0), "--file", str(tmp_path / name), *columns])
    assert capsys.readouterr().out == "2.000000\ta dog\ta cat\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a cat\tx\ta dog\n", "columns"),
        ("text1\ttext2\na cat\ta dog\na cat\t\n", "line 3: two texts are needed"),
    ],
)
def test_no_column_is_guessed_and_no_row_left_out(constant, tmp_path, content, message):
    """Scores of other texts, or beside other lines, would look like results."""
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        main(["--model", constant(2.0), "--file", str(path)])
