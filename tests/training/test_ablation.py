"""benchmarks/ablation.py: its tables are what it says, and their numbers those of single runs."""

import json
import random

import numpy as np
import pytest
import torch

from benchmarks.ablation import (
    TABLES,
    Augmented,
    SameMask,
    change,
    folder_name,
    main,
    read_synonyms,
    replace_word,
)
from minisbert import train
from minisbert.core import InputError, losses
from minisbert.core.tokenizer import pad_batch
from minisbert.training.options import parse
from tests import toys

TEN = "a b c d e f g h i j"


@pytest.mark.parametrize("table", TABLES)
def test_a_row_has_the_setting_in_its_name(table):
    """Options set what they can; losses of the benchmark the rest (see the next tests)."""
    assert len({folder_name(row.name) for row in TABLES[table]}) == len(TABLES[table])
    for row in TABLES[table]:
        usual = vars(parse(row.options.split()))
        options = vars(parse([*row.options.split(), *row.flags.split()]))
        value = row.name.split()[-1]
        changed = {name: options[name] for name in options if options[name] != usual[name]}
        if table == "concat":
            assert changed == {}
            assert ",".join(row.loss().features) == row.name
        elif table == "augmentation":
            augment, _, dropout = row.name.partition(", ")
            if dropout:
                assert dropout == "no dropout"
                assert changed == {"dropout": 0}
            else:
                assert changed == {}
            if augment == "none":
                augment = ""
            assert row.augment == augment
        elif row.loss is SameMask:
            assert changed == {"dropout": 0.1}
        else:
            expected = float(value) if table in ("dropout", "temperature") else value
            assert options[table] == expected
            assert changed.keys() <= {table}


def outcomes(change, text: str, *more) -> set[str]:
    """What 200 seeds make of a text."""
    return {change(text, *more, random.Random(seed)) for seed in range(200)}


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("crop:0.1", TEN, {TEN[:-2], TEN[2:]}),
        ("crop:0.3", "a b c d", {"a b c", "b c d"}),  # 2.8 words are 3
        ("delete:0.2", "a b c d e", {"b c d e", "a c d e", "a b d e", "a b c e", "a b c d"}),
        ("delete:0.1", "a b c d", {"a b c d"}),
        ("delete-one", "a b\tc", {"b c", "a c", "a b"}),
        ("delete-one", "a", {"a"}),
    ],
)
def test_every_outcome_of_a_change(form, text, expected):
    assert outcomes(change, text, form) == expected


def test_a_word_is_replaced_by_a_synonym_of_the_file(tmp_path):
    path = tmp_path / "synonyms.txt"
    path.write_text("Big, large,huge\n\nlarge\t , sizeable\ncat, Cat\n")
    synonyms = read_synonyms(str(path))
    expected = {
        "big": ["large", "huge"],
        "large": ["Big", "huge", "sizeable"],
        "huge": ["Big", "large"],
    }
    assert synonyms == expected | {"sizeable": ["large"]}
    assert outcomes(replace_word, "A HUGE, big cat!", synonyms) == {
        "A Big, big cat!",
        "A large, big cat!",
        "A HUGE, large cat!",
        "A HUGE, huge cat!",
    }
    for content, message in (
        ("big, large\nsmall,\n", "line 2: one word"),
        ("cat, CAT\n", "holds no synonyms"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            read_synonyms(str(path))


def test_an_augmented_view_has_other_words_and_a_seed_decides_which(prepare):
    rows = toys.rows("sentences")
    seconds = []
    for seed in (1, 1, 2):
        task = prepare(Augmented("delete-one", seed, {}), rows=rows)
        first = task.network.encoded[0].ids
        second = task.network.encoded[1].ids
        assert first == task.model.tokenizer.encode([text for (text,) in rows]).ids
        # each toy word is one token
        assert [len(ids) for ids in second] == [len(ids) - 1 for ids in first]
        seconds.append(second)
    assert seconds[0] == seconds[1] != seconds[2]


def test_the_same_mask_twice_is_two_forwards_from_one_random_state(prepare):
    """Loss and gradient: each view computed alone, with the generator set back in between."""
    rows = [7, 0, 3, 12, 5]
    task = prepare(SameMask(temperature=0.5), rows=toys.rows("sentences"))
    encoder = task.model
    task.network.train()
    encoded = encoder.tokenizer.encode([text for (text,) in task.rows])
    ids, mask = pad_batch([encoded.ids[row] for row in rows], encoder.tokenizer.pad_id)
    views = []
    for _ in range(2):
        torch.manual_seed(1)
        views.append(encoder(ids, mask))
    expected = losses.simcse_loss(*views, temperature=0.5)
    weight = encoder.bert.embeddings.word.weight
    gradient = torch.autograd.grad(expected, weight)[0]
    torch.manual_seed(1)
    found = task.loss.batch_loss(task.network, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.autograd.grad(found, weight)[0], gradient, rtol=0, atol=1e-9)
    task.network.eval()
    # dropout was alive
    assert abs(task.loss.batch_loss(task.network, rows) - found) > 1e-4


def test_a_cell_trains_its_own_loss(tiny, files, tmp_path, capsys):
    """The first steps' losses of the same rows and seed differ from row to row."""
    command = ["concat", "--data", files["nli"], "--model", str(tiny)]
    command += ["--out", str(tmp_path), "--seeds", "1"]
    judged = ["--dev", files["dev"], "--test", "none", "--log-every", "1"]
    main([*command, "--max-steps", "1", "--limit", "30", "--json", "--", *judged])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [
        "u,v",
        "|u-v|",
        "u*v",
        "|u-v|,u*v",
        "u,v,u*v",
        "u,v,|u-v|",
        "u,v,|u-v|,u*v",
    ]
    firsts = {toys.losses(folder)[0] for folder in tmp_path.iterdir()}
    assert len(firsts) == 7


def test_a_table_equals_single_runs_and_continues(tiny, files, tmp_path, monkeypatch, capsys):
    """Each cell is trained again by hand; mean and spread are numpy's. Its model is not kept."""
    out = tmp_path / "out"
    runs = []
    data = toys.flags(files, "cosine")[2:]  # without --loss cosine
    data += ["--lr", "1e-2"]
    table = ["pooling", "--model", str(tiny), "--out", str(out), "--epochs", "1"]
    table += ["--seeds", "1,2", "--json"]
    command = [*table, "--", *data]
    start = train.main

    def first_max_fails(arguments: list[str], loss=None) -> None:
        runs.append(parse(arguments))
        if runs[-1].pooling == "max" and len(runs) < 6:
            raise RuntimeError("out of memory")
        start(arguments, loss)

    monkeypatch.setattr(train, "main", first_max_fails)
    with pytest.raises(InputError, match="2 of 6 cells failed"):
        main(command)
    assert "STSb max, seed 1 failed: RuntimeError: out of memory" in capsys.readouterr().err
    main(command)
    assert [(run.pooling, run.seed) for run in runs[6:]] == [("max", 1), ("max", 2)]
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row, pooling in zip(rows, ("mean", "max", "cls"), strict=True):
        before = []
        after = []
        for seed in (1, 2):
            cell = out / f"STSb-{pooling}-seed{seed}"
            assert sorted(path.name for path in cell.iterdir()) == [
                "config.json",
                "metrics.jsonl",
                "results.json",
            ]
            folder = tmp_path / "single" / pooling / str(seed)
            single = ["--model", str(tiny), "--pooling", pooling, "--seed", str(seed)]
            single += ["--batch-size", "16", "--out", str(folder)]
            start([*single, *data])
            scores = toys.dev_scores(folder)
            before.append(100 * scores[0])
            after.append(100 * scores[-1])
        assert row["name"] == f"STSb {pooling}"
        assert row["before"] == pytest.approx(before[0], abs=1e-12)
        assert row["mean"] == pytest.approx(np.mean(after), abs=1e-12)
        assert row["sd"] == pytest.approx(np.std(after, ddof=1), abs=1e-12)
    refusal = r"-seed1 was run with limit None instead of 24: choose another --out"
    with pytest.raises(InputError, match=refusal):
        main([*table, "--limit", "24", "--", *data])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("concat", "--data"),
        ("augmentation --data x.txt --synonyms no.txt", "no.txt"),
        ("pooling -- --teacher x", "--teacher"),
    ],
)
def test_an_invalid_table_is_an_error_before_anything_runs(arguments, message, monkeypatch):
    monkeypatch.setattr(train, "main", lambda arguments: pytest.fail("a run was started"))
    with pytest.raises(InputError, match=message):
        main(arguments.split())
