"""``minisbert.train``: the loop, the script around it, and what stops and continues a training."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert import train as module
from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.core.loop import fit
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import devices
from minisbert.system.console import run_command
from minisbert.system.progress import Bar
from minisbert.train import main, train
from minisbert.training import scores
from minisbert.training.base_loss import EncoderLoss
from minisbert.training.encoder_losses import SimCSE
from minisbert.training.masked import new_model, train_vocabulary
from minisbert.training.named_heads import add_head
from minisbert.training.state import Progress
from minisbert.training.teachers import Distillation
from tests import toys
from tests.conftest import ROOT
from tests.reference.plain_loop import independent_losses
from tests.toys import TIMELESS, dev_scores, losses, metrics, results, stop_at

ROWS = toys.scored_rows(40, seed=0)
DEV = toys.scored_rows(20, seed=1)
PAIRS = [(f"the {noun}", f"a {noun} is in the park") for noun in toys.NOUNS]
LEARNS = {"epochs": 12, "lr": 1e-2, "batch_size": 8, "dtype": "float32"}


@pytest.fixture
def encoder(tiny: Path) -> SentenceEncoder:
    return SentenceEncoder.load(tiny, device="cpu")


@pytest.fixture
def still(tiny: Path, tmp_path: Path) -> Path:
    """The folder of the tiny model without dropout."""
    return toys.without_dropout(tiny, tmp_path / "still")


def same(one: SentenceEncoder, other: SentenceEncoder) -> bool:
    """Return whether all weights are the same, bit for bit."""
    first = one.state_dict()
    second = other.state_dict()
    return all(torch.equal(value, second[name]) for name, value in first.items())


# -----------------------------------------------------------------------------
# the loop from Python


def test_training_is_in_place_and_keeps_the_best_weights_on_dev(encoder):
    """What is returned is the caller's own encoder, as good as at its best evaluation."""
    before = encoder.encode(["a cat"])
    progress = Progress()
    trained = train(encoder, ROWS, DEV, "cosine", **LEARNS, progress=progress)
    assert trained is encoder
    assert abs(encoder.encode(["a cat"]) - before).max() > 1e-3
    found = [entry["spearman"] for entry in progress.history]
    assert len(found) == 13
    # Releases of PyTorch draw other dropout masks: 0.14 with 2.6, 0.54 with 2.13.
    assert max(found) > found[0] + 0.1
    after = scores.evaluate_encoder(encoder, DEV).scores["spearman"]
    assert after == pytest.approx(max(found), abs=1e-9)


@pytest.mark.parametrize("loss", ["ranking", "triplet"])
def test_rows_may_be_dictionaries(encoder, tiny, loss):
    """The rows of a table by the names of its columns train to the weights of the tuples."""
    names = ("anchor", "positive", "negative")
    rows = toys.rows("triplets")
    dictionaries = [dict(zip(names, row, strict=True)) for row in rows]
    train(encoder, dictionaries, loss=loss)
    other = SentenceEncoder.load(tiny, device="cpu")
    assert same(encoder, train(other, rows, loss=loss))


def test_rows_may_be_a_dataset(encoder, tiny):
    """Whoever has odd data prepares it with Hugging Face's ``datasets``."""
    datasets = pytest.importorskip("datasets", reason="needs the datasets extra")
    table = {"sentence1": [], "sentence2": [], "score": []}
    for first, second, score in ROWS:
        table["sentence1"].append(first)
        table["sentence2"].append(second)
        table["score"].append(score)
    train(encoder, datasets.Dataset.from_dict(table), loss="cosine")
    other = SentenceEncoder.load(tiny, device="cpu")
    assert same(encoder, train(other, ROWS, loss="cosine"))


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        ("ranking", [{"source": "faq", "positive": b, "anchor": a} for a, b in PAIRS]),
        (
            "triplet",
            [{"negative": c, "positive": b, "anchor": a} for a, b, c in toys.rows("triplets")],
        ),
        ("cosine", [{"stars": 5 * s, "sentence2": b, "sentence1": a} for a, b, s in ROWS]),
    ],
)
def test_the_command_and_the_function_make_the_same_model(encoder, tiny, tmp_path, loss, rows):
    """The same rows in a file and as dictionaries: by the names of the columns and the scale."""
    columns = {"cosine": "sentence1,sentence2,stars"}.get(loss)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", str(tiny), "--loss", loss, "--data", str(data), "--epochs", "3"]
    words += ["--dev", "none", "--test", "none", "--out", str(tmp_path / "run"), "--device", "cpu"]
    if columns:
        words += ["--columns", columns]
    main(words)
    train(encoder, rows, loss=loss, epochs=3, columns=columns)
    assert same(encoder, SentenceEncoder.load(tmp_path / "run" / "model", device="cpu"))
    assert not same(encoder, SentenceEncoder.load(tiny, device="cpu"))


def test_what_is_left_out_of_the_rows_is_said(encoder, capsys):
    """A row without a text, a column, and the highest score that the others are divided by."""
    rows = [{"idx": 1, "sentence1": a, "sentence2": b, "label": 5 * s} for a, b, s in ROWS]
    rows[3]["sentence1"] = ""
    train(encoder, rows, loss="cosine", max_steps=1)
    line = "rows: 39 rows, 1 skipped (an empty text or no label); sentence1, sentence2, label / 5"
    assert f"{line}; not read: idx" in capsys.readouterr().err


def test_rows_in_no_batch_are_counted_with_the_text_that_they_share(encoder, capsys):
    """Of a hundred questions with one answer, each of the four batches takes one."""
    rows = [(f"question {i}", "contact us" if i % 2 else f"answer {i}") for i in range(200)]
    train(encoder, rows)
    line = "96 of 200 rows are in no batch: they share the text 'contact us'"
    assert line in capsys.readouterr().err
    train(encoder, PAIRS)
    assert "no batch" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "loss", "message"),
    [
        ([], "ranking", "rows is empty"),
        ([("a", "b")], "ranking", "one row has no negative"),
        ([("a", "b")] * 4, "ranking", "such as 'b', so no batch"),
        ([("cat", f"thing {i}") for i in range(20)], "ranking", "share a text, such as 'cat'"),
        ([("a",)] * 4, "simcse", "share a text, such as 'a'"),
        ([("a", "b", "x")] * 4, "softmax", "all rows have the class 'x'"),
    ],
)
def test_rows_without_a_batch_are_an_error(encoder, rows, loss, message):
    """The untrained model would come back as a trained one."""
    with pytest.raises(InputError, match=message):
        train(encoder, rows, loss=loss)


def test_a_single_step_of_the_warm_up_is_told_to_change_nothing(encoder, tiny, capsys):
    train(encoder, PAIRS[:2])
    assert same(encoder, SentenceEncoder.load(tiny, device="cpu"))
    assert "learning rate of 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer from 1"),
        ({"max_steps": -1}, "max_steps must be an integer from 1"),
        ({"batch_size": 1}, "compares the rows of a batch"),
        ({"lr": "2e-5"}, "lr must be"),
        ({"log_every": 0}, "log_every"),
        ({"schedule": "linar"}, "schedule must be linear"),
        ({"patience": 2}, "patience needs dev"),
        ({"resume": True}, "resume=True needs out"),
        ({"loss": SimCSE}, r"is a class: .*SimCSE\(\)"),
        ({"dev": 5}, "dev: a list of tuples is needed, not 5"),
        ({"dev": [("a", "b", 0.5)]}, "dev: a correlation needs at least two rows"),
    ],
)
def test_settings_that_are_none(encoder, settings, message):
    with pytest.raises(InputError, match=message):
        train(encoder, PAIRS, **settings)


def test_a_name_is_no_model():
    with pytest.raises(InputError, match="not 'tiny'"):
        train("tiny", PAIRS)


def test_dev_is_scored_at_the_end_of_each_epoch_although_epochs_differ_in_length(encoder):
    """Rows that share a text never meet, so an epoch has now ten batches, now eleven."""
    rows = [(toys.NOUNS[i % 7], f"the {toys.NOUNS[i % 19]} {i}") for i in range(60)]
    generator = torch.Generator().manual_seed(7)
    ends = []
    total = 0
    network_lengths = [2 * max(len(a.split()), len(b.split())) + 4 for a, b in rows]
    for _ in range(4):
        total += len(module.find_loss("ranking").batches(rows, network_lengths, 6, generator))
        ends.append(total)
    progress = Progress()
    train(encoder, rows, PAIRS, epochs=4, batch_size=6, seed=7, progress=progress)
    assert [entry["step"] for entry in progress.history] == [0, *ends]
    batches_of_epochs = np.diff([0, *ends])
    assert len(set(batches_of_epochs)) > 1


def test_a_callback_sees_real_steps_and_ends_the_training(encoder):
    """Step 0 is no step: it has no loss."""
    seen = []

    def stop(step, found):
        seen.append((step.number, step.loss, found))
        return step.number == 2

    train(encoder, PAIRS, DEV, eval_every=1, batch_size=4, callback=stop)
    assert [number for number, _, _ in seen] == [1, 2]
    assert all(np.isfinite(loss) for _, loss, _ in seen)
    assert all("spearman" in found for _, _, found in seen)


def test_the_encoder_is_in_eval_mode_and_at_its_best_after_ctrl_c(encoder, tiny, monkeypatch):
    """In a notebook the encoder lives on; dropout must be off."""

    def interrupted(*arguments, **options):
        yield from list(fit(*arguments, **options))[:3]
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(encoder, ROWS, DEV, "cosine", lr=1e-2, batch_size=8)
    assert not encoder.training
    assert same(encoder, SentenceEncoder.load(tiny, device="cpu"))


def test_training_leaves_the_random_generator_as_it_was(encoder):
    """The caller's own random numbers do not depend on whether something was trained before."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(encoder, PAIRS, max_steps=2)
    assert torch.equal(torch.rand(2), expected)


def test_what_the_loss_does_not_reach_can_be_trained_afterwards(encoder):
    """BERT's pooler is frozen only while other things are trained."""
    train(encoder, PAIRS, max_steps=1)
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_a_loss_of_ones_own(still):
    """A few lines: the rows are two texts and a number, the formula is the caller's."""

    class Manhattan(EncoderLoss):
        columns = module.find_loss("cosine").columns

        def formula(self, u, v, scores):
            distances = (u - v).abs().sum(dim=1)
            return (distances - (1 - scores)).pow(2).mean()

    plain = SentenceEncoder.load(still, device="cpu")
    seen = []

    def record(step, _):
        seen.append(step.loss)

    train(plain, ROWS[:8], loss=Manhattan(), dtype="float32", callback=record)
    other = SentenceEncoder.load(still, device="cpu")
    u = torch.from_numpy(other.encode([row[0] for row in ROWS[:8]]))
    v = torch.from_numpy(other.encode([row[1] for row in ROWS[:8]]))
    wanted = torch.tensor([row[2] for row in ROWS[:8]])
    expected = ((u - v).abs().sum(dim=1) - (1 - wanted)).pow(2).mean()
    assert seen[0] == pytest.approx(expected.item(), rel=1e-5)


def test_names_and_rows_that_do_not_fit(encoder):
    with pytest.raises(InputError, match="choose from cosine"):
        train(encoder, PAIRS, loss="mnr")
    with pytest.raises(InputError, match="scale"):
        train(encoder, [("a cat", "a dog", 500.0), ("a cat", "snow", 0.0)], loss="cosine")
    with pytest.raises(InputError, match="give --head"):
        train(encoder, ROWS, loss="mse")
    with pytest.raises(InputError, match="share a text"):
        train(encoder, [("a cat", "rain"), ("a cat", "snow")])


# -----------------------------------------------------------------------------
# the arithmetic


@pytest.mark.parametrize(("clip", "warmup"), [(0.05, 0.34), (0.0, 3)])
def test_the_loop_computes_what_torchs_own_pieces_compute(still, tmp_path, clip, warmup):
    """Batches, loss, schedule, clipping (0 is none), decay; a share of the steps is rounded up."""
    rows = toys.scored_rows(12, seed=5)
    out = tmp_path / "run"
    train(
        SentenceEncoder.load(still, device="cpu"),
        rows,
        loss="cosine",
        epochs=6,
        batch_size=12,
        lr=1e-3,
        weight_decay=0.1,
        warmup=warmup,
        clip=clip,
        dtype="float32",
        out=out,
        log_every=1,
    )
    expected = independent_losses(still, rows, epochs=6, lr=1e-3, warmup=3, clip=clip)
    # float32 sums in another order: 1e-6 of a loss of .2, where a forgotten clip or decay shows
    # from 1e-4 on
    np.testing.assert_allclose(losses(out), expected, atol=1e-6, rtol=0)
    rates = [line["lr"] for line in metrics(out) if "loss" in line]
    np.testing.assert_allclose(rates, np.array([0, 1, 2, 3, 2, 1]) * 1e-3 / 3, atol=1e-12, rtol=0)


def test_every_epoch_has_dropout_of_its_own(tiny, still):
    """Nothing is learned at rate 0: what moves the loss of all rows is dropout alone."""

    def losses_of_epochs(folder: Path) -> list[float]:
        model = SentenceEncoder.load(folder, device="cpu")
        seen = []

        def record(step, _):
            seen.append(step.loss)

        train(model, ROWS, loss="cosine", lr=0, batch_size=40, epochs=3, callback=record)
        return seen

    without = losses_of_epochs(still)
    assert max(without) - min(without) < 1e-6  # only the order of the rows changes the sums
    first, second, third = losses_of_epochs(tiny)
    assert min(abs(first - second), abs(first - third), abs(second - third)) > 1e-4


@pytest.mark.parametrize(("max_steps", "steps"), [(3, 3), (7, 7), (1000, 10)])
def test_max_steps_ends_a_run_with_the_rate_at_its_end(encoder, tmp_path, max_steps, steps):
    """Two epochs of five batches; the schedule is planned for the steps that are made."""
    out = tmp_path / "run"
    train(
        encoder, ROWS, loss="cosine", epochs=2, batch_size=8, lr=1.0, max_steps=max_steps,
        warmup=0, out=out, log_every=1,
    )  # fmt: skip
    rates = [line["lr"] for line in metrics(out)]
    assert rates == pytest.approx([1 - step / steps for step in range(steps)], abs=1e-12)


def test_a_line_of_the_log_is_the_mean_loss_since_the_line_before(tiny, tmp_path):
    for name, every in (("each", 1), ("grouped", 2)):
        model = SentenceEncoder.load(tiny, device="cpu")
        train(model, ROWS, loss="cosine", batch_size=8, out=tmp_path / name, log_every=every)
    one, two, three, four, five = losses(tmp_path / "each")
    expected = [(one + two) / 2, (three + four) / 2, five]  # the last line has one step
    assert losses(tmp_path / "grouped") == pytest.approx(expected, abs=1e-12)


def test_patience_ends_a_training_that_no_longer_gets_better(encoder, monkeypatch):
    found = iter([0.5, 0.6, 0.7, 0.95, 0.8, 0.9, 0.99])

    def scripted(model, rows, widths=()):
        return scores.Evaluation({"spearman": next(found)}, "spearman", 20, lambda rows: 0.0)

    monkeypatch.setattr("minisbert.training.base_loss.evaluate_encoder", scripted)
    progress = Progress()
    train(encoder, ROWS, DEV, "cosine", epochs=20, batch_size=8, patience=2, progress=progress)
    assert [entry["spearman"] for entry in progress.history] == [0.5, 0.6, 0.7, 0.95, 0.8, 0.9]
    assert (progress.step, progress.best_step) == (25, 15)


def test_the_head_has_a_rate_of_its_own(encoder):
    """At rate 0 the head stays as it was drawn; the encoder learns."""
    torch.manual_seed(1)
    model = add_head(encoder, "siamese", "regression")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    train(model, ROWS, loss="mse", lr=5e-3, head_lr=0.0, weight_decay=0.1)
    after = model.state_dict()
    moved = {name for name, x in after.items() if not torch.equal(x, before[name])}
    assert moved
    assert all(name.startswith("encoder.") for name in moved)


def test_frozen_weights_stay_the_same_to_the_last_bit(encoder, tiny):
    encoder.bert.embeddings.requires_grad_(False)
    train(encoder, ROWS, loss="cosine", lr=1e-2, weight_decay=0.1)
    before = SentenceEncoder.load(tiny, device="cpu").bert
    assert torch.equal(encoder.bert.embeddings.word.weight, before.embeddings.word.weight)
    assert not torch.equal(
        encoder.bert.layers[0].feed_forward.up.weight, before.layers[0].feed_forward.up.weight
    )


def test_a_frozen_model_cannot_be_trained(encoder):
    """The optimizer's own error speaks of an empty list of parameters."""
    encoder.requires_grad_(False)
    with pytest.raises(InputError, match="frozen"):
        train(encoder, ROWS, loss="cosine")


def test_bfloat16_reaches_the_encoder_and_nothing_else(encoder, monkeypatch):
    """Matrix products in bfloat16; weights, vectors and losses in float32."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"amx_bf16"})
    linear = torch.nn.functional.linear
    loss = formulas.cosine_mse_loss
    products = set()
    vectors = set()

    def spy_linear(*inputs):
        found = linear(*inputs)
        products.add(found.dtype)
        return found

    def spy_loss(u, v, target):
        vectors.add((u.dtype, torch.is_autocast_enabled("cpu")))
        return loss(u, v, target)

    monkeypatch.setattr(torch.nn.functional, "linear", spy_linear)
    monkeypatch.setattr(formulas, "cosine_mse_loss", spy_loss)
    train(encoder, ROWS, loss="cosine", max_steps=2)
    assert products == {torch.bfloat16}
    assert vectors == {(torch.float32, False)}
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_a_loss_of_nan_names_its_rows_and_makes_no_step(encoder, monkeypatch):
    loss = formulas.cosine_mse_loss
    calls = []

    def sometimes(u, v, target):
        calls.append(len(u))
        if len(calls) == 3:
            return loss(u, v, target) * float("nan")
        return loss(u, v, target)

    monkeypatch.setattr(formulas, "cosine_mse_loss", sometimes)
    with pytest.raises(InputError, match=r"step 3: .*rows \d+, "):
        train(encoder, ROWS, loss="cosine", lr=5e-3, warmup=0, batch_size=8)
    assert all(parameter.isfinite().all() for parameter in encoder.parameters())


def test_weights_that_are_too_large_to_score_are_an_error_of_one_line(encoder):
    with pytest.raises(InputError, match=r"step [12]: .*lr"):
        train(encoder, ROWS, DEV, "cosine", lr=1e30, max_steps=2)


# -----------------------------------------------------------------------------
# what is shown


def test_the_bar_counts_whole_steps(encoder, monkeypatch):
    """``5/5 [.., 1.2step/s]``: a step is the unit, whatever a batch holds."""
    shown = []
    close = Bar.close

    def spy(bar):
        shown.append(str(bar))
        return close(bar)

    monkeypatch.setattr(Bar, "close", spy)
    train(encoder, ROWS, loss="cosine", batch_size=8)
    assert re.search(r"5/5 \[.*step", shown[-1])


def test_texts_that_are_cut_and_batches_that_are_smaller_are_said(encoder, capsys):
    train(encoder, [("cat " * 30, "a dog", 0.5), ("a", "b", 0.1)], loss="cosine")
    assert "1 of 4 texts were longer than 16 tokens and were cut" in capsys.readouterr().err
    answers = ("sun", "moon", "rain")
    train(encoder, [(f"the {i} cat", answers[i % 3]) for i in range(30)], max_steps=1)
    assert "most batches have 3 rows, not 32" in capsys.readouterr().err


# -----------------------------------------------------------------------------
# the script


@pytest.fixture(scope="module")
def flags(tiny: Path, files: dict[str, str]) -> list[str]:
    """A run of the tiny model on toy pairs, in the dtype whose bits are promised."""
    given = ["--model", str(tiny), *toys.flags(files, "cosine"), "--batch-size", "8"]
    return [*given, "--dtype", "float32", "--device", "cpu"]


@pytest.fixture
def run(flags: list[str], tmp_path: Path):
    """``run("name", "--epochs", "2")`` trains the tiny model on toy pairs -> the folder."""

    def start(name: str, *arguments: str) -> Path:
        main([*flags, "--out", str(tmp_path / name), *arguments])
        return tmp_path / name

    return start


QUICKLY = ("--epochs", "12", "--lr", "1e-2", "--dropout", "0")


def test_a_run_learns_and_writes_all_that_it_promises(run, tiny):
    folder = run("run", *QUICKLY, "--log-every", "5")
    written = {path.name for path in folder.iterdir()}
    assert written == {"config.json", "metrics.jsonl", "model", "results.json"}
    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["lr"], config["epochs"]) == (str(tiny), 1e-2, 12)

    lines = metrics(folder)
    # dev is scored before the training, and after each epoch of five steps
    assert [line["step"] for line in lines if "dev" in line] == list(range(0, 61, 5))
    assert [line["step"] for line in lines if "loss" in line] == list(range(5, 61, 5))
    assert losses(folder)[-1] < losses(folder)[0] / 2

    found = results(folder)
    assert found["steps"] == 60
    for split in ("dev", "test"):
        before = found["before"][split]["spearman"]
        after = found["after"][split]["spearman"]
        assert after > before + 0.2
    assert found["after"]["dev"]["spearman"] == max(dev_scores(folder))


def test_the_table_and_the_card_say_what_the_gain_is_worth(run, capsys):
    """The test's figures with a paired 95 % interval; of dev that it chose the step."""
    folder = run("run", *QUICKLY)
    gain = results(folder)["gain"]
    assert 0 < gain["low"] < gain["gain"] < gain["high"]
    printed = capsys.readouterr().out
    card = (folder / "model" / "README.md").read_text()
    interval = (
        f"test spearman {100 * gain['gain']:+.2f}, 95 % interval "
        f"{100 * gain['low']:+.2f} to {100 * gain['high']:+.2f} (20 rows)"
    )
    for text in (printed, card):
        assert interval in text
        assert "dev chose the step, so its scores are too good" in text
    assert "--epochs 12" in card
    assert "--seed" not in card  # the default


def test_the_command_and_the_function_train_to_the_same_weights(run, tiny):
    folder = run("run", "--epochs", "2", "--lr", "1e-3")
    encoder = SentenceEncoder.load(tiny, device="cpu")
    train(encoder, ROWS, DEV, "cosine", epochs=2, batch_size=8, lr=1e-3, dtype="float32")
    assert same(encoder, SentenceEncoder.load(folder / "model", device="cpu"))


def test_the_untrained_model_is_kept_if_no_step_was_better(run, tiny, capsys):
    folder = run("run", "--lr", "0.3", "--epochs", "1")
    curve = dev_scores(folder)
    if curve[0] == max(curve):
        assert "no step was better on dev" in capsys.readouterr().out
        saved = SentenceEncoder.load(folder / "model", device="cpu")
        assert same(saved, SentenceEncoder.load(tiny, device="cpu"))
    assert results(folder)["after"]["dev"]["spearman"] == max(curve)


def test_another_seed_is_another_run(run):
    """Runs of one seed are compared below, where a resumed run has the bits of a whole one."""
    first = losses(run("7", "--seed", "7", "--log-every", "1"))
    other = losses(run("other", "--seed", f"{2**64 - 1}", "--log-every", "1"))
    assert first[0] != other[0]


def test_a_head_is_trained_saved_and_reported(run, files):
    """What results.json says of the best model is what the model in its folder does."""
    head = ("--loss", "mse", "--head", "cross-encoder")
    folder = run("run", *head, *QUICKLY)
    model = PairModel.load(folder / "model")
    found = model.predict([(a, b) for a, b, _ in DEV])
    pearson = np.corrcoef(found, [score for _, _, score in DEV])[0, 1]
    assert results(folder)["after"]["dev"]["pearson"] == pytest.approx(pearson, abs=1e-6)


def test_a_run_is_named_after_its_data_loss_and_model(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main([*flags, "--max-steps", "1"])
    assert (tmp_path / "runs" / "scored-cosine-tiny" / "results.json").is_file()


def test_evaluation_every_few_steps(run):
    folder = run("run", "--epochs", "2", "--eval-every", "3")
    assert [line["step"] for line in metrics(folder) if "dev" in line] == [0, 3, 6, 9, 10]


def test_both_entries_are_the_same_program():
    """``python -m minisbert.train`` reads the options that ``minisbert train`` reads."""
    helps = []
    for words in (["-m", "minisbert", "train"], ["-m", "minisbert.train"]):
        done = subprocess.run(
            [sys.executable, *words, "--help"], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        helps.append(done.stdout)
    assert helps[0] == helps[1]
    assert "default: None" not in helps[0]


# -----------------------------------------------------------------------------
# stopped and resumed

LOSS = (formulas, "cosine_mse_loss")
EVALUATION = (scores, "correlate")
DROPOUT = ("--lr", "5e-3", "--epochs", "3", "--log-every", "3")  # 15 steps in 3 epochs of 5


def test_ctrl_c_keeps_the_best_weights_and_says_how_to_go_on(run, tiny, tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*LOSS, toys.interrupt_at(3, formulas.cosine_mse_loss))
        with pytest.raises(SystemExit, match="130"):
            run_command(lambda: run("run", "--lr", "5e-3", "--log-every", "1"))
    said = capsys.readouterr().err
    assert "stopped at step 2: the best weights so far, of step 0," in said
    assert f"--resume {folder}" in said
    assert len(losses(folder)) == 2
    assert not (folder / "results.json").exists()
    saved = SentenceEncoder.load(folder / "model", device="cpu")
    assert same(saved, SentenceEncoder.load(tiny, device="cpu"))


def test_a_run_that_diverges_is_not_to_be_resumed(run, monkeypatch, capsys):
    """It would come to the same step."""
    monkeypatch.setattr(*LOSS, lambda u, v, target: u.sum() * float("nan"))
    with pytest.raises(InputError, match="step 1"):
        run("run")
    said = capsys.readouterr().err
    assert "begin anew with --overwrite" in said
    assert "--resume" not in said


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    main([*flags, *DROPOUT, "--out", str(folder)])
    return folder


def resume(folder: Path, *arguments: str) -> None:
    torch.manual_seed(0)  # whatever has drawn random numbers since
    main(["--resume", str(folder), *arguments])


def assert_same_run(one: Path, other: Path) -> None:
    """Every logged loss, rate and score, the kept model and the results: to the last bit."""
    assert metrics(one) == metrics(other)
    assert results(one) | TIMELESS == results(other) | TIMELESS
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (one, other)]
    assert weights[0] == weights[1]
    assert not [*one.glob("state*"), *one.glob("best*")]


# A run is stopped in the first step, within an epoch, at the ends of epochs and in the last step;
# and in the evaluation of dev before the training, and after an epoch.
@pytest.mark.exact("one side is computed in a fixture, before the mode begins")
@pytest.mark.parametrize(
    ("call", "target"),
    [
        (1, LOSS),
        (5, LOSS),
        (6, LOSS),
        (15, LOSS),
        (2, EVALUATION),
        (3, EVALUATION),
        (5, EVALUATION),
    ],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(run, whole, tmp_path, call, target):
    """To the last bit, its dropout masks included."""
    stop_at(call, target, run, "run", *DROPOUT)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.exact("one side is computed in a fixture, before the mode begins")
def test_a_run_can_be_stopped_again_and_again(run, whole, tmp_path):
    stop_at(4, LOSS, run, "run", *DROPOUT)
    for call in (3, 1, 6):
        stop_at(call, LOSS, resume, tmp_path / "run")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def heads_and_other_models(tiny: Path) -> dict:
    """Models, rows and losses that differ in what a state must hold."""
    encoder = SentenceEncoder.load(tiny, device="cpu")
    texts = [row[0] for row in toys.rows("sentences")]
    torch.manual_seed(5)
    teacher = SentenceEncoder.load(tiny, pooling="max", device="cpu")
    return {
        "head": (add_head(encoder, "cross-encoder", "regression"), "scored", "mse"),
        "classes": (encoder, "nli", "softmax"),
        "projection": (encoder, "sentences", SimCSE(projection=True)),
        "in batch": (encoder, "triplets", "ranking"),
        "tied weights": (new_model(train_vocabulary(texts, 200, 32), 1, 64), "sentences", "mlm"),
        "teacher": (encoder, "sentences", Distillation(teacher=teacher)),
    }


@pytest.mark.exact("the same training twice in a process")
@pytest.mark.parametrize(
    "name", ["head", "classes", "projection", "in batch", "tied weights", "teacher"]
)
def test_whatever_is_trained_resumes_to_the_same_bits(tiny, tmp_path, name):
    """Each has weights outside the encoder, or targets, that a state must not lose."""
    given = {"epochs": 2, "batch_size": 6, "lr": 1e-3, "dtype": "float32", "log_every": 1}

    def train_until(out: str, last: int | None) -> SentenceEncoder:
        """Begin or resume the training in a folder, and stop it after step ``last``."""
        model, form, loss = heads_and_other_models(tiny)[name]
        return train(
            model,
            toys.rows(form),
            loss=loss,
            **given,
            out=tmp_path / out,
            resume=True,
            callback=lambda step, _: step.number == last,
        )

    whole = train_until("whole", None)
    train_until("stopped", 2)
    train_until("stopped", 5)
    resumed = train_until("stopped", None)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    assert same(resumed, whole)


@pytest.mark.exact("the same training twice in a process")
def test_resume_from_python_ends_in_the_same_weights(tiny, tmp_path):
    """Without ``resume`` the state in the folder is left alone and overwritten."""
    given = {"loss": "cosine", "epochs": 3, "batch_size": 8, "lr": 5e-3, "dtype": "float32"}
    whole = train(SentenceEncoder.load(tiny, device="cpu"), ROWS, DEV, **given)
    out = {"out": tmp_path / "run", "resume": True}
    stopped = SentenceEncoder.load(tiny, device="cpu")
    train(stopped, ROWS, DEV, **given, **out, callback=lambda step, _: step.number == 7)
    resumed = SentenceEncoder.load(tiny, device="cpu")
    train(resumed, ROWS, DEV, **given, **out)
    assert same(resumed, whole)
    with pytest.raises(InputError, match="settings have changed"):
        train(resumed, ROWS, DEV, **given | {"lr": 1e-3}, **out)


def test_a_resumed_run_keeps_its_number_of_threads(run, monkeypatch, tmp_path):
    """Another number would split sums otherwise."""
    threads = []
    set_threads = torch.set_num_threads

    def spy(count):
        threads.append(count)
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", spy)
    stop_at(3, LOSS, run, "run", *DROPOUT, "--threads", "2")
    set_threads(1)
    resume(tmp_path / "run")
    assert threads[-1] == 2
    set_threads(1)


def test_only_how_often_to_log_and_save_may_change(run, tmp_path):
    stop_at(3, LOSS, run, "run", *DROPOUT)
    for changed in (["--lr", "0.0001"], ["--loss", "cosent"], ["--patience", "3"]):
        with pytest.raises(InputError, match=changed[0]):
            resume(tmp_path / "run", *changed)
    resume(tmp_path / "run", "--save-every", "2", "--log-every", "1")
    assert len(losses(tmp_path / "run")) == 13


def test_a_run_that_cannot_be_resumed_says_why(run, tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        resume(tmp_path / "none")
    with pytest.raises(InputError, match="finished"):
        resume(run("whole", "--max-steps", "1"))
    with pytest.raises(InputError, match="folder of a run"):
        resume(tmp_path / "whole" / "model")
    stop_at(3, LOSS, run, "run", *DROPOUT)
    with pytest.raises(InputError, match="--resume"):
        run("run")
    with pytest.raises(InputError, match="--overwrite"):
        resume(tmp_path / "run", "--overwrite")
    (tmp_path / "run" / "state.json").unlink()
    with pytest.raises(InputError, match="state"):
        resume(tmp_path / "run")


def test_an_interrupt_of_the_final_evaluation_loses_nothing(run, whole, tmp_path):
    """The last table scores test again, of the best model; no other step is made."""
    # The evaluations are: test and dev before the training, dev after each of three epochs, test.
    stop_at(6, EVALUATION, run, "run", *DROPOUT)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
