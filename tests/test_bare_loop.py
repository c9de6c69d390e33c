"""``python -m minisbert.train``: each of its losses trains, and its numbers are those of
``minisbert train``.
"""

import argparse
import re

import pytest
import torch

from minisbert import train as bare
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import evaluate, main, train
from minisbert.training import train as trainer
from tests import toys


def options(files, tiny, out, **changed):
    given = {
        "model": str(tiny),
        "data": files["scored"],
        "dev": files["dev"],
        "test": files["test"],
        "loss": "cosine",
    }
    given |= {
        "epochs": 1,
        "batch_size": 8,
        "lr": 1e-3,
        "seed": 42,
        "quotes": True,
        "max_steps": None,
        "out": str(out),
    }
    return argparse.Namespace(**given | changed)


ROWS = {
    "ranking": "anchor,positive\na cat,the cat\nthe moon,a moon\na dog,the dog\nrain,the rain\n",
    "triplet": "anchor,positive,negative\na cat,the cat,snow\nthe moon,a moon,rain\n",
    "softmax": "gold_label,sentence1,sentence2\nentailment,a cat,the cat\nneutral,a "
    "dog,snow\ncontradiction,a,b\n",
    "simcse": "text\na cat\nthe moon\na dog runs\n",
}


@pytest.mark.parametrize("loss", bare.LOSSES)
def test_each_loss_trains_a_model_that_opens(files, tiny, tmp_path, capsys, loss):
    changed = {}
    if loss in ROWS:
        (tmp_path / "rows.csv").write_text(ROWS[loss])
        changed["data"] = str(tmp_path / "rows.csv")
    main(
        options(
            files, tiny, tmp_path / "out", loss=loss, lr=1e-6, max_steps=2, batch_size=4, **changed
        )
    )
    assert SentenceEncoder.load(tmp_path / "out" / "model").encode(["a cat"]).shape == (1, 24)
    assert "spearman" in capsys.readouterr().out
    with pytest.raises(InputError, match="exists"):
        main(options(files, tiny, tmp_path / "out"))


def test_the_scores_are_those_of_the_trainer(files, tiny, tmp_path, capsys):
    torch.set_num_threads(1)
    main(options(files, tiny, tmp_path / "bare", epochs=2))
    bare = capsys.readouterr().out.splitlines()[-2:]
    flags = [
        "--data",
        files["scored"],
        "--dev",
        files["dev"],
        "--test",
        files["test"],
        "--model",
        str(tiny),
    ]
    flags += ["--epochs", "2", "--batch-size", "8", "--lr", "1e-3", "--device", "cpu"]
    trainer.main([*flags, "--out", str(tmp_path / "run")])
    scores = toys.results(tmp_path / "run")
    for split, line in zip(("dev", "test"), bare, strict=True):
        assert line.startswith(split)
        assert line.endswith(f"{100 * scores['after'][split]['spearman']:.2f}")
    assert scores["before"]["dev"]["spearman"] != scores["after"]["dev"]["spearman"], (
        "training changed something"
    )
    rows = [
        re.findall(
            r"\| (?:dev|test) spearman .*", (tmp_path / folder / "model" / "README.md").read_text()
        )
        for folder in ("bare", "run")
    ]
    assert len(rows[0]) == 2
    assert rows[0] == rows[1]


PAIRS = [(f"the {noun}", f"a {noun} is in the park") for noun in toys.NOUNS]


def test_own_rows_without_dev_hold_some_out_and_keep_the_best(tiny, tmp_path, capsys):
    """Without a file for dev, 80 pairs are judged by 20 of them, and not by the STS Benchmark."""
    path = tmp_path / "pairs.csv"
    path.write_text(
        "anchor,positive\n"
        + "".join(f"the {i} {n},a {n} {i}\n" for i in range(4) for n in toys.NOUNS)
    )
    given = {
        "data": str(path),
        "dev": None,
        "test": None,
        "loss": "ranking",
        "lr": 1e-3,
        "epochs": 3,
    }
    main(options({"scored": "", "dev": "", "test": ""}, tiny, tmp_path / "out", **given))
    out = capsys.readouterr().out
    assert "held out of it (20 rows)" in out
    assert "ndcg@10" in out.splitlines()[-1]
    before, after = (
        float(score) for score in out.splitlines()[-1].split("ndcg@10 ")[1].split(" -> ")
    )
    assert before < after


def test_rows_from_python_train_the_encoder_itself(tiny):
    encoder = SentenceEncoder.load(tiny)
    rows = [{"anchor": anchor, "positive": positive} for anchor, positive in PAIRS]
    dev = [(*pair, 1.0) for pair in PAIRS[:3]] + [(PAIRS[0][0], "a sad man", 0.0)]
    before = encoder.encode(["a cat"])
    seen = []
    given = {"dev": dev, "epochs": 4, "batch_size": 8, "lr": 1e-3}
    assert (
        train(
            encoder, rows, **given, callback=lambda step, scores: seen.append((step.number, scores))
        )
        is encoder
    )
    assert [step for step, scores in seen if scores] == [0, 3, 6, 9, 12], (
        "dev is evaluated first and after each epoch"
    )
    assert abs(encoder.encode(["a cat"]) - before).max() > 1e-3
    best = max(scores["spearman"] for _, scores in seen if scores)
    assert evaluate(encoder, dev)["spearman"] == best
    assert not encoder.training


def test_a_callback_ends_the_training(tiny):
    steps = []

    def stop(step, scores):
        steps.append(step.number)
        return step.number == 2

    encoder = SentenceEncoder.load(tiny)
    train(encoder, PAIRS, batch_size=4, callback=stop)
    assert steps == [0, 1, 2]
    with pytest.raises(ValueError, match="loss"):
        train(encoder, [], loss="mnr")
    with pytest.raises(InputError, match="scores"):
        train(encoder, [("a cat", "a dog", 5), ("a cat", "snow", 0)], loss="cosine")


def test_an_interrupted_training_saves_the_best_weights(files, tiny, tmp_path, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        yield from list(fit(*arguments, **options))[:1]
        raise KeyboardInterrupt

    fit = bare.fit
    monkeypatch.setattr(bare, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main(options(files, tiny, tmp_path / "out"))
    trained = SentenceEncoder.load(tmp_path / "out" / "model").encode(["a cat"])
    assert (trained == SentenceEncoder.load(tiny).encode(["a cat"])).all()  # no epoch was over
