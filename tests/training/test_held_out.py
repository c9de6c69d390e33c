"""Data of one's own is judged by rows that are held out of it; and how a run ends."""

import re
import shlex
from pathlib import Path

import pytest

from minisbert.commands import inspect_
from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.train import main
from minisbert.training.head_losses import Softmax
from minisbert.training.options import parse
from minisbert.training.run_data import read_run
from minisbert.training.scores import Evaluation
from minisbert.training.table import loss_of
from tests import toys

QUICK = ["--batch-size", "16", "--lr", "5e-3", "--epochs", "8"]
QUICK += ["--dropout", "0", "--dtype", "float32"]


def pairs(count: int) -> list[tuple[bool, int, str, str]]:
    """Toy pairs whose texts are in no other row: each ends with the row's number."""
    rows = []
    for i, (alike, score, a, b) in enumerate(toys.pairs(count, 5)):
        rows.append((alike, score, f"{a} {i}", f"{b} {i}"))
    return rows


@pytest.fixture
def own(tmp_path: Path):
    """``own("scored")`` -> a file of 300 rows."""
    scored = ["score,sentence1,sentence2"]
    labelled = ["label,sentence1,sentence2"]
    for alike, score, a, b in pairs(300):
        scored.append(f"{score},{a},{b}")
        labelled.append(f"{int(alike)},{a},{b}")

    positives = ["anchor,positive"]
    triplets = ["anchor,positive,negative"]
    for i in range(300):
        noun = toys.NOUNS[i % len(toys.NOUNS)]
        other = toys.NOUNS[(i + 1 + i // 20) % len(toys.NOUNS)]
        positives.append(f"the {noun} {i},a {noun} is in the park {i}")
        triplets.append(f"the {noun} {i},a {noun} is slow {i},a {other} is slow {300 + i}")

    tables = {"scored": scored, "labelled": labelled, "pairs": positives, "triplets": triplets}

    def write(form: str) -> str:
        path = tmp_path / f"{form}.csv"
        path.write_text("\n".join(tables[form]) + "\n")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("form", "metric"),
    [("scored", "spearman"), ("labelled", "f1"), ("pairs", "ndcg@10"), ("triplets", "ndcg@10")],
)
def test_the_command_that_inspect_prints_learns_from_300_rows(
    own, tiny, tmp_path, capsys, form, metric
):
    """It names only the model and the data: that must do for a better score on held-out rows."""
    inspect_.main([own(form), "--model", str(tiny)])
    command = re.search(r"minisbert train .*", capsys.readouterr().out)[0]
    run = tmp_path / "run"
    main([*shlex.split(command)[2:], *QUICK, "--out", str(run)])
    assert "50 rows held out of" in capsys.readouterr().err
    results = toys.results(run)
    assert results["after"]["dev"][metric] > results["before"]["dev"][metric] + 0.05
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert weights != (tiny / "model.safetensors").read_bytes()


def test_held_out_rows_share_no_text_with_the_training_rows(own, tiny):
    """For each loss; another seed holds out others."""
    for words, form in (("--loss cosine", "scored"), ("--loss ranking", "triplets")):
        words = [*words.split(), "--data", own(form)]
        settings = parse(words)
        data = read_run(settings, loss_of(settings))
        assert [len(rows) for rows in (data.train, data.dev, data.test)] == [200, 50, 50]
        texts = []
        for rows in (data.train, data.dev, data.test):
            texts.append({text for row in rows for text in row if isinstance(text, str)})
        assert not texts[0] & texts[1]
        assert not texts[0] & texts[2]
        assert not texts[1] & texts[2]
        again = parse([*words, "--seed", "7"])
        assert read_run(again, loss_of(again)).dev != data.dev


def test_a_loss_of_ones_own_says_that_its_rows_judge_no_encoder(files):
    """The loss says it, not its name: a subclass of Softmax is judged by scored pairs, too."""

    class OtherSoftmax(Softmax):
        """As Softmax."""

    settings = parse(["--data", files["nli"], "--dev", files["dev"], "--test", "none"])
    data = read_run(settings, OtherSoftmax())
    assert isinstance(data.dev[0][-1], float)


def test_softmax_holds_nothing_out_without_a_classifier(files):
    """Classes do not say how near two texts should be."""
    settings = parse(["--loss", "softmax", "--data", files["nli"], "--dev", files["dev"]])
    settings.test = files["test"]
    data = read_run(settings, loss_of(settings))
    assert len(data.train) == 60
    assert isinstance(data.dev[0][-1], float)


# -----------------------------------------------------------------------------
# how a run ends


def test_a_run_with_held_out_rows_resumes_to_the_same_bits(own, tiny, tmp_path):
    flags = ["--model", str(tiny), "--data", own("scored"), "--lr", "1e-3", "--log-every", "1"]
    flags += ["--dtype", "float32"]
    main([*flags, "--out", str(tmp_path / "whole")])
    toys.stop_at(4, (formulas, "cosine_mse_loss"), main, [*flags, "--out", str(tmp_path / "run")])
    main(["--resume", str(tmp_path / "run")])
    assert toys.metrics(tmp_path / "run") == toys.metrics(tmp_path / "whole")
    found = [toys.results(tmp_path / name) | toys.TIMELESS for name in ("run", "whole")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([0.5, 0.6, 0.8, 0.8], "best on dev: step 6, spearman 80.00, in "),
        ([0.5, 0.9, 0.7, 0.8], "best on dev: step 2, spearman 90.00, in "),
        (
            [0.9, 0.6, 0.7, 0.8],
            "no step was better on dev than the untrained model, spearman 90.00, in ",
        ),
    ],
)
def test_the_later_of_two_equal_steps_is_kept(
    tiny, files, tmp_path, monkeypatch, capsys, scores, said
):
    found = iter([0.0, *scores, 0.0])  # of test before, of dev, and of test after

    def scripted(encoder, rows, widths=()):
        score = next(found)
        return Evaluation({"spearman": score}, "spearman", 20, lambda rows: score)

    monkeypatch.setattr("minisbert.training.base_loss.evaluate_encoder", scripted)
    flags = ["--model", str(tiny), *toys.flags(files, "cosine"), "--max-steps", "6"]
    run = tmp_path / "run"
    main([*flags, "--eval-every", "2", "--batch-size", "6", "--out", str(run)])
    out = capsys.readouterr().out
    assert said + str(run / "model") in out
    assert ("try more --epochs, another --lr or --loss" in out) == said.startswith("no step")


def test_without_dev_rows_the_last_weights_are_the_model(own, tiny, tmp_path, capsys):
    flags = ["--model", str(tiny), "--data", own("scored"), "--dev", "none", "--max-steps", "3"]
    main([*flags, "--lr", "1e-3", "--out", str(tmp_path / "run")])
    said = f"no dev rows: the model of step 3 is in {tmp_path / 'run' / 'model'}"
    assert said in capsys.readouterr().out
    results = toys.results(tmp_path / "run")
    assert results["after"] == {}
    assert results["best_step"] is None
    trained = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert trained != (tiny / "model.safetensors").read_bytes()


def test_rows_of_another_loss_are_refused_with_the_name_of_this_one(own, tiny, tmp_path):
    """The default loss was not chosen, so an error that does not name it says too little."""
    flags = ["--model", str(tiny), "--data", own("pairs"), "--out", str(tmp_path / "run")]
    with pytest.raises(InputError, match="--loss cosine"):
        main(flags)
