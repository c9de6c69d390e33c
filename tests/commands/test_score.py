"""``minisbert score``: score pairs from the command line."""

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
    heads = {
        "siamese": (siamese(24), "regression", ()),
        "joint": (JointHead(24), "regression", ()),
        "binary": (ConcatHead(24), "binary", ()),
        "classes": (ConcatHead(24, outputs=3), "classes", NLI_LABELS),
    }
    model = PairModel(encoder, *heads[request.param])
    model.folder = tmp_path / "model"
    model.save(model.folder)
    return model


def test_one_pair_has_the_models_score(trained, capsys):
    main(["--model", str(trained.folder), "a cat sits", "the dog runs"])
    printed = capsys.readouterr().out.strip()
    score = trained.predict(("a cat sits", "the dog runs"), apply_softmax=True)
    if trained.task == "classes":
        assert printed == "  ".join(
            f"{label} {value:.3f}" for label, value in zip(NLI_LABELS, score, strict=True)
        )
    else:
        scale = 5 if trained.task == "regression" else 1
        assert float(printed) == pytest.approx(scale * min(max(float(score), 0), 1), abs=0.005)


def constant(tiny, folder, score: float) -> str:
    """A model that gives every pair the same score: with zero weights a head returns its bias, a
    fifth of it.
    """
    model = PairModel(SentenceEncoder.load(tiny), siamese(24))
    torch.nn.init.zeros_(model.head.mlp[-1].weight)
    torch.nn.init.constant_(model.head.mlp[-1].bias, score / 5)
    model.save(folder)
    return str(folder)


def test_a_file_is_scored_line_by_line(trained, tmp_path, capsys):
    pairs = [("a cat", "a small dog"), ("the moon", "the sun and the rain"), ("a cat", "a cat")]
    lines = ["sentence1\tsentence2"]
    lines += [f"{first}\t{second}" for first, second in pairs]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    main(["--model", str(trained.folder), "--file", str(tmp_path / "pairs.tsv")])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    scores = trained.predict(pairs, apply_softmax=True).reshape(3, -1)
    if trained.task == "regression":
        scores = 5 * scores
    assert [tuple(row[-2:]) for row in rows] == pairs
    assert [float(value) for row in rows for value in row[:-2]] == pytest.approx(
        scores.flatten().tolist(), abs=1e-5
    )


def test_scores_are_clipped_for_display_but_not_in_files(tiny, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("text1\ttext2\na cat\ta dog\n")
    for raw, shown in ((-2.0, "0.00"), (7.0, "5.00")):
        model = ["--model", constant(tiny, tmp_path / "model", raw)]
        main([*model, "a cat", "a dog"])
        assert capsys.readouterr().out == f"{shown}\n"
        main([*model, "--file", str(tmp_path / "pairs.tsv")])
        assert float(capsys.readouterr().out.split("\t")[0]) == pytest.approx(raw, abs=1e-5)


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
    (tmp_path / "one.tsv").write_text("text1\ttext2\nonly one\n")
    (tmp_path / "empty.tsv").write_text("")
    places = {"tiny": tiny, "one": tmp_path / "one.tsv", "empty": tmp_path / "empty.tsv"}
    with pytest.raises(InputError, match=message):
        main([argument.format(**places) for argument in arguments])


def test_columns_of_a_file(tiny, tmp_path, capsys):
    """By name, and by number without a header; a header that names two texts is no pair, and no
    column is guessed.
    """
    model = constant(tiny, tmp_path / "model", 2.0)
    for name, content, columns in (
        ("a.csv", "id,left,right\n1,a cat,a dog\n", ["--columns", "right,left"]),
        ("b.tsv", "a cat\tx\ta dog\n", ["--columns", "3,1"]),
        ("c.jsonl", '{"sentence2": "a cat", "sentence1": "a dog"}\n', []),
        ("d.tsv", "sentence2\tsentence1\na cat\ta dog\n", []),
        ("e.tsv", "label\tsentence2\tsentence1\n1\ta cat\ta dog\n", []),
    ):
        (tmp_path / name).write_text(content)
        main(["--model", model, "--file", str(tmp_path / name), *columns])
        assert capsys.readouterr().out == "2.000000\ta dog\ta cat\n"
    with pytest.raises(InputError, match="columns"):
        main(["--model", model, "--file", str(tmp_path / "b.tsv")])
    (tmp_path / "empty_text.tsv").write_text("text1\ttext2\na cat\ta dog\na cat\t\n")
    with pytest.raises(InputError, match="line 3: two texts are needed"):
        main(["--model", model, "--file", str(tmp_path / "empty_text.tsv")])
