"""``python -m minisbert.train``: each of its losses trains, and its numbers are those of ``minisbert train``."""

import argparse

import pytest
import torch

from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import train
from minisbert.training.train import main
from tests import toys


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return toys.write_all(tmp_path_factory.mktemp("toys"))


def options(files, tiny, out, **changed):
    given = {"model": str(tiny), "data": files["scored"], "dev": files["dev"], "test": files["test"], "loss": "cosine"}
    given |= {"epochs": 1, "batch_size": 8, "lr": 1e-3, "seed": 42, "max_steps": None, "out": str(out)}
    return argparse.Namespace(**given | changed)


@pytest.mark.parametrize(
    ("loss", "content"),
    [
        ("cosine", None),
        ("ranking", "anchor,positive\na cat,the cat\nthe moon,a moon\na dog,the dog\nrain,the rain\n"),
        ("triplet", "anchor,positive,negative\na cat,the cat,snow\nthe moon,a moon,rain\n"),
        (
            "softmax",
            "gold_label,sentence1,sentence2\nentailment,a cat,the cat\nneutral,a dog,snow\ncontradiction,a,b\n",
        ),
        ("simcse", "text\na cat\nthe moon\na dog runs\n"),
    ],
    ids=["cosine", "ranking", "triplet", "softmax", "simcse"],
)
def test_each_loss_trains_a_model_that_opens(files, tiny, tmp_path, capsys, loss, content):
    changed = {}
    if content:
        (tmp_path / "rows.csv").write_text(content)
        changed["data"] = str(tmp_path / "rows.csv")
    train(options(files, tiny, tmp_path / "out", loss=loss, lr=1e-6, max_steps=2, batch_size=4, **changed))
    assert SentenceEncoder.load(tmp_path / "out" / "model").encode(["a cat"]).shape == (1, 24)
    assert "spearman" in capsys.readouterr().out
    with pytest.raises(InputError, match="exists"):
        train(options(files, tiny, tmp_path / "out"))


def test_the_scores_are_those_of_the_trainer(files, tiny, tmp_path, capsys):
    torch.set_num_threads(1)
    train(options(files, tiny, tmp_path / "bare", epochs=2))
    bare = capsys.readouterr().out
    flags = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"], "--model", str(tiny)]
    flags += ["--epochs", "2", "--batch-size", "8", "--lr", "1e-3", "--device", "cpu"]
    main([*flags, "--out", str(tmp_path / "run")])
    scores = toys.results(tmp_path / "run")
    for split in ("dev", "test"):
        assert f"{100 * scores['after'][split]['spearman']:.2f}" in bare.splitlines()[-1]
    assert scores["before"]["dev"]["spearman"] != scores["after"]["dev"]["spearman"], "training changed something"
