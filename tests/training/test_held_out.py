"""Data of one's own is judged by rows that are held out of it; ties, the last weights, and how a
run ends.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch
from minisbert.training.objectives import Objective
from minisbert.training.settings import parse
from minisbert.training.train import load_trainable, main, make_objective

from minisbert.commands import inspect_
from minisbert.core import InputError
from minisbert.core import losses as formulas
from tests import toys

QUICK = [
    "--batch-size",
    "16",
    "--lr",
    "5e-3",
    "--epochs",
    "4",
    "--dropout",
    "0",
    "--dtype",
    "float32",
]


def pairs(count: int) -> list[tuple[bool, int, str, str]]:
    """Toy pairs whose texts are in no other row: each ends with the row's number."""
    return [
        (alike, score, f"{a} {i}", f"{b} {i}")
        for i, (alike, score, a, b) in enumerate(toys.pairs(count, 5))
    ]


@pytest.fixture
def own(tmp_path: Path):
    """``own("scored")`` -> a file of 300 rows."""
    nouns = [toys.NOUNS[i % len(toys.NOUNS)] for i in range(300)]
    others = [toys.NOUNS[(i + 1 + i // 20) % len(toys.NOUNS)] for i in range(300)]
    rows = pairs(300)
    tables = {
        "scored": ["score,sentence1,sentence2", *(f"{score},{a},{b}" for _, score, a, b in rows)],
        "labelled": [
            "label,sentence1,sentence2",
            *(f"{int(alike)},{a},{b}" for alike, _, a, b in rows),
        ],
        "pairs": [
            "anchor,positive",
            *(f"the {x} {i},a {x} is in the park {i}" for i, x in enumerate(nouns)),
        ],
        "triplets": ["anchor,positive,negative"],
    }
    for i, (noun, other) in enumerate(zip(nouns, others, strict=True)):
        tables["triplets"].append(
            f"the {noun} {i},a {noun} is slow {i},a {other} is slow {300 + i}"
        )

    def write(form: str) -> str:
        path = tmp_path / f"{form}.csv"
        path.write_text("\n".join(tables[form]) + "\n")
        return str(path)

    return write


@pytest.fixture
def make(tiny: Path):
    def build(*flags: str) -> Objective:
        options = parse(["--model", str(tiny), *flags])
        return make_objective(options, load_trainable(options, torch.device("cpu")))

    return build


@pytest.mark.parametrize(
    ("form", "metric"),
    [("scored", "spearman"), ("labelled", "f1"), ("pairs", "ndcg@10"), ("triplets", "ndcg@10")],
)
def test_the_command_that_inspect_prints_learns_from_300_rows(
    own, tiny, tmp_path, capsys, form, metric
):
    """No option but the model and how fast a tiny one learns: a better score on held-out rows, and
    another model.
    """
    inspect_.main([own(form), "--model", str(tiny)])
    command = re.search(r"minisbert train .*", capsys.readouterr().out)[0]
    run = tmp_path / "run"
    main([*shlex.split(command)[2:], *QUICK, "--out", str(run)])
    assert "dev held out of it (30 " in capsys.readouterr().err
    results = toys.results(run)
    assert results["after"]["dev"][metric] > results["before"]["dev"][metric] + 0.05
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert weights != (tiny / "model.safetensors").read_bytes()


def texts_of(rows: list) -> set[str]:
    return {text for row in rows for text in (row if isinstance(row, tuple) else row.texts)}


@pytest.mark.parametrize(
    ("objective", "form"), [("cosine", "scored"), ("siamese", "scored"), ("mnr", "triplets")]
)
def test_held_out_rows_share_no_text_with_the_training_rows(own, make, objective, form):
    flags = ["--objective", objective, "--data", own(form)]
    task = make(*flags)
    assert [len(task.rows[split]) for split in ("train", "dev", "test")] == [270, 30, 0]
    assert len(task.lengths) == 270
    assert not texts_of(task.rows["train"]) & texts_of(task.rows["dev"])
    assert task.notes["test"] == "none"
    assert make(*flags).rows == task.rows
    assert make(*flags, "--seed", "7").rows["dev"] != task.rows["dev"]
    shares = make(*flags, "--dev", "0.2", "--test", "0.1")
    assert [len(shares.rows[split]) for split in ("train", "dev", "test")] == [210, 60, 30]
    nothing = make(*flags, "--dev", "none")
    assert [len(nothing.rows[split]) for split in ("train", "dev", "test")] == [300, 0, 0]


def test_a_teachers_targets_are_those_of_the_rows_left_for_training(own, make, tiny):
    """A teacher of the same weights, so that each target is what the student itself says."""
    task = make("--teacher", str(tiny), "--data", own("pairs"))
    assert len(task.targets) == len(task.rows["train"]) == 270
    expected = task.encoder.encode([row[0] for row in task.rows["train"]], convert_to_tensor=True)
    torch.testing.assert_close(task.targets, expected.cpu(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective", "simcse", "--dev", "0.1"], "--dev 0.1: these rows have no scores"),
        (["--dev", "0.7"], "0.7: a share that is held out must be"),
        (["--dev", "none", "--patience", "2"], "--patience needs dev rows"),
        (["--dev", "missing.csv"], "missing.csv does not exist"),
    ],
)
def test_what_cannot_judge_is_refused(own, make, files, flags, message):
    data = files["sentences"] if "simcse" in flags else own("scored")
    with pytest.raises(InputError, match=message):
        make("--data", data, *flags)


def test_labelled_rows_can_do_without_dev_or_hold_out_another_share(make, files):
    flags = ["--objective", "binary", "--data", files["duplicates"]]
    for more, expected in (
        (["--dev", "none"], [27, 0, 13]),
        (["--dev", "0.4", "--test", "none"], [24, 16, 0]),
    ):
        task = make(*flags, *more)
        assert [len(task.rows[split]) for split in ("train", "dev", "test")] == expected


# ------------------------------------------------------------------------------------- how a run
# ends


def test_a_run_with_held_out_rows_resumes_to_the_same_bits(own, tiny, tmp_path):
    flags = [
        "--model",
        str(tiny),
        "--data",
        own("scored"),
        "--lr",
        "1e-3",
        "--log-every",
        "1",
        "--dtype",
        "float32",
    ]
    main([*flags, "--out", str(tmp_path / "whole")])
    toys.stop_at(4, (formulas, "cosine_mse_loss"), main, [*flags, "--out", str(tmp_path / "run")])
    main(["--resume", str(tmp_path / "run")])
    assert toys.metrics(tmp_path / "run") == toys.metrics(tmp_path / "whole")
    assert (
        toys.results(tmp_path / "run") | toys.TIMELESS
        == toys.results(tmp_path / "whole") | toys.TIMELESS
    )


@pytest.mark.parametrize(
    ("scores", "best", "said"),
    [
        ([0.5, 0.6, 0.8, 0.8], 6, "best on dev: step 6, spearman 80.00, in "),
        ([0.5, 0.9, 0.7, 0.8], 2, "best on dev: step 2, spearman 90.00, in "),
        (
            [0.9, 0.6, 0.7, 0.8],
            0,
            "none was better on dev than the untrained model, spearman 90.00, in ",
        ),
    ],
)
def test_the_later_of_two_equal_steps_is_kept_and_the_last_one_beside_the_best(
    tiny, files, tmp_path, monkeypatch, capsys, scores, best, said
):
    found = iter(scores)
    evaluate = lambda task, split: {"spearman": next(found) if split == "dev" else 0.0}  # noqa: E731
    monkeypatch.setattr(
        "minisbert.training.objectives.encoders.CosineRegression.evaluate", evaluate
    )
    flags = [
        "--model",
        str(tiny),
        *toys.flags(files, "cosine"),
        "--max-steps",
        "6",
        "--eval-every",
        "2",
    ]
    main([*flags, "--batch-size", "6", "--out", str(tmp_path / "run")])
    out, run = capsys.readouterr().out, tmp_path / "run"
    assert said + str(run / "model") in out
    assert (f"last: step 6, spearman 80.00, in {run / 'last'}" in out) == (best < 6)
    assert (run / "last" / "model.safetensors").exists() == (best < 6)
    assert ("try more --epochs, a higher --lr or another --objective" in out) == (best == 0)


def test_without_dev_rows_the_last_weights_are_the_model(own, tiny, tmp_path, capsys):
    flags = [
        "--model",
        str(tiny),
        "--data",
        own("scored"),
        "--dev",
        "none",
        "--max-steps",
        "3",
        "--lr",
        "1e-3",
    ]
    main([*flags, "--out", str(tmp_path / "run")])
    assert (
        f"no dev rows: the model of step 3 is in {tmp_path / 'run' / 'model'}"
        in capsys.readouterr().out
    )
    assert toys.results(tmp_path / "run")["after"] == {"dev": {}, "test": {}}
    trained = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert trained != (tiny / "model.safetensors").read_bytes()
