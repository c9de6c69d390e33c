"""Students: what a teacher says is the target, whatever its tokenizer, width or head; and what
cannot be taught.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from minisbert.core import InputError
from minisbert.core.heads import ConcatHead
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.losses import kl_divergence_loss, margin_mse_loss, principal_columns
from minisbert.training.objectives import Objective, VectorNetwork
from minisbert.training.run import run_identity
from minisbert.training.settings import RunSettings, parse
from minisbert.training.train import load_trainable, main, make_objective
from tests import toys
from tests.conftest import ROOT

ROWS = [7, 0, 3, 12, 5]
TEACHERS = (
    "tiny-distiluse",
    "tiny-roberta",
)  # of other tokenizers; 13 columns of length 1, and 18 of any length


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("sentences", "--teacher", folder)`` -> the objective on the tiny model, or another, in
    float64.
    """

    def build(form: str, *flags: str, model: Path = tiny) -> Objective:
        data = ["--data", files[form], "--dev", files["dev"], "--test", files["test"]]
        options = parse(["--model", str(model), *data, *flags])
        task = make_objective(options, load_trainable(options, torch.device("cpu")))
        task.model.double().eval()
        return task

    return build


@pytest.fixture
def cross_encoder(tiny: Path, tmp_path: Path):
    """``cross_encoder("logit")`` -> the folder of a teacher with random weights in its head."""

    def save(task: str) -> Path:
        torch.manual_seed(0)
        model = PairModel(SentenceEncoder.load(tiny), ClassifierHead(24, dropout=0.0), task)
        model.save(tmp_path / task)
        return tmp_path / task

    return save


def reference(name: str) -> Path:
    return ROOT / "tests" / "reference" / name


def lines(path: str) -> list[list[str]]:
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()]
    return rows if len(rows[0]) == 1 else rows[1:]  # a table has a header


# -------------------------------------------------------------------------------------------
# vectors


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("form", ["sentences", "translations"])
def test_the_teachers_vector_of_the_first_text_is_the_target_of_all_texts_of_a_row(
    make, files, form, teacher
):
    task = make(form, "--teacher", str(reference(teacher)))
    rows = [lines(files[form])[row] for row in ROWS]
    wanted = torch.from_numpy(
        SentenceEncoder.load(reference(teacher)).encode([row[0] for row in rows])
    )
    wanted = functional.pad(
        functional.normalize(wanted), (0, 24 - wanted.shape[1])
    ).double()  # the student's width
    student = task.model.encode([text for row in rows for text in row], convert_to_tensor=True)
    expected = functional.mse_loss(student, wanted.repeat_interleave(len(rows[0]), dim=0))
    # the teacher's vectors are float32, and of other batches here
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-7)
    assert f"taught the vectors of {reference(teacher)}" in task.notes["train"]


def test_a_narrow_student_learns_the_principal_columns(make, tiny, files):
    """A direction that no vector has costs nothing, so that the student's cosines can be the
    teacher's.
    """
    task = make("sentences", "--teacher", str(tiny), model=reference("tiny-distiluse"))
    vectors = (
        SentenceEncoder.load(tiny)
        .encode([row[0] for row in lines(files["sentences"])])
        .astype(np.float64)
    )
    left, lengths, _ = np.linalg.svd(vectors, full_matrices=False)
    kept = left[:, :13] * lengths[:13]  # (N, 13), each column known but for its sign
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(task.targets.numpy()), np.abs(kept), atol=1e-5, rtol=0)
    np.testing.assert_allclose(
        (task.targets @ task.targets.T).numpy(), kept @ kept.T, atol=1e-5, rtol=0
    )
    assert "its 24 columns turned into 13" in task.notes["train"]


def test_principal_columns_keep_what_few_columns_can_and_have_one_sign():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(9, 3, generator=generator) @ torch.randn(3, 7, generator=generator)
    found = principal_columns(flat, 3)
    torch.testing.assert_close(found @ found.T, flat @ flat.T, rtol=0, atol=1e-4)
    assert (found.norm(dim=0).diff() <= 0).all()  # the longest axis first
    noise = 1e-6 * torch.randn(9, 7, generator=generator)
    torch.testing.assert_close(principal_columns(flat + noise, 3), found, rtol=0, atol=1e-4)
    assert torch.equal(principal_columns(flat, 9), torch.cat([flat, torch.zeros(9, 2)], dim=1))


def test_a_student_of_fewer_layers_begins_with_its_models(make, tiny):
    task = make("sentences", "--teacher", str(tiny), "--student-layers", "1")
    (layer,) = task.model.bert.layers
    last = SentenceEncoder.load(tiny).double().bert.layers[-1]
    assert all(
        torch.equal(value, last.state_dict()[name]) for name, value in layer.state_dict().items()
    )
    assert task.model.bert.config.num_hidden_layers == 1


def test_a_head_over_two_vectors_teaches_its_encoders_vectors(make, tiny, tmp_path):
    PairModel(
        SentenceEncoder.load(tiny), ConcatHead(24, outputs=3), "classes", ["a", "b", "c"]
    ).save(tmp_path / "nli")
    task, same = (
        make("sentences", "--teacher", str(folder)) for folder in (tmp_path / "nli", tiny)
    )
    assert torch.equal(task.targets, same.targets)
    assert run_identity(task, RunSettings()) == run_identity(same, RunSettings())


# --------------------------------------------------------------------------------------------
# scores


@pytest.mark.parametrize("task", ["logit", "binary", "regression"])
@pytest.mark.parametrize("form", ["triplets", "several"])
def test_a_cross_encoder_teaches_margins_or_the_softmax_of_its_scores(
    make, files, cross_encoder, form, task
):
    taught = make(form, "--teacher", str(cross_encoder(task)))
    teacher = PairModel.load(cross_encoder(task))
    rows = [lines(files[form])[row] for row in ROWS]
    scores = [teacher.predict([(row[0], text) for text in row[1:]]) for row in rows]
    undo = {"logit": lambda x: x, "binary": torch.logit, "regression": lambda x: 20 * x}[task]
    logits = undo(torch.tensor(np.stack(scores)).double())  # (B, C)
    vectors = [
        functional.normalize(taught.model.encode(row, convert_to_tensor=True)) for row in rows
    ]
    cosines = 20 * torch.stack([v[1:] @ v[0] for v in vectors])  # (B, C)
    if form == "triplets":
        expected = functional.mse_loss(cosines[:, 0] - cosines[:, 1], logits[:, 0] - logits[:, 1])
    else:
        student, wanted = cosines.log_softmax(dim=1), logits.log_softmax(dim=1)
        expected = functional.kl_div(student, wanted, log_target=True, reduction="batchmean")
    torch.testing.assert_close(
        taught.loss(taught.network, ROWS), expected, rtol=0, atol=1e-4
    )  # float32 logits
    assert ("by margin MSE" if form == "triplets" else "by KL divergence") in taught.notes["train"]


def test_losses_of_scores_by_hand():
    assert margin_mse_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 2.0]])) == 4
    found = kl_divergence_loss(torch.zeros(1, 2), torch.tensor([[math.log(3), 0]]))
    assert found.item() == pytest.approx(0.13081, abs=5e-6)

    for loss in (margin_mse_loss, kl_divergence_loss):
        with pytest.raises(ValueError, match="teacher must have shape"):
            loss(torch.ones(2, 2), torch.ones(2, 3))


# ---------------------------------------------------------------------------------------- whole
# runs


@pytest.mark.parametrize("form", ["sentences", "triplets"])
def test_a_student_learns_and_a_stopped_run_resumes_to_the_same_bits(
    tiny, files, cross_encoder, form, tmp_path
):
    teacher = reference("tiny-distiluse") if form == "sentences" else cross_encoder("regression")
    flags = [
        *toys.flags(files, "distillation", "--teacher", str(teacher), "--data", files[form]),
        "--model",
        str(tiny),
    ]
    flags += [
        "--batch-size",
        "8",
        "--epochs",
        "4",
        "--lr",
        "5e-3",
        "--log-every",
        "1",
        "--dtype",
        "float32",
    ]
    main([*flags, "--out", str(tmp_path / "whole")])
    losses = toys.losses(tmp_path / "whole")
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) / 1.5
    toys.stop_at(5, (VectorNetwork, "forward"), main, [*flags, "--out", str(tmp_path / "run")])
    main(["--resume", str(tmp_path / "run")])
    assert toys.metrics(tmp_path / "run") == toys.metrics(tmp_path / "whole")
    first, second = (tmp_path / run / "model" / "model.safetensors" for run in ("whole", "run"))
    assert first.read_bytes() == second.read_bytes()


def test_another_teacher_or_other_sentences_are_another_run(make, tiny, files, tmp_path):
    teacher = shutil.copytree(reference("tiny-roberta"), tmp_path / "teacher")

    def identity(*flags: str) -> str:
        return run_identity(make("sentences", "--teacher", str(teacher), *flags), RunSettings())

    first, same = identity(), identity()
    other = SentenceEncoder.load(teacher)
    other.bert.layers[0].attention.query.bias.data[0] += 1e-3
    other.save(teacher)
    changed = identity()
    path = tmp_path / "respelled.txt"
    path.write_text(
        Path(files["sentences"]).read_text().replace("the cat", "the Cat")
    )  # the same tokens for a student
    respelled = identity("--data", str(path))
    assert first == same
    assert len({first, changed, respelled}) == 3


# ------------------------------------------------------------------------------- what cannot be
# used


@pytest.mark.parametrize(
    ("form", "flags", "message"),
    [
        (
            "sentences",
            ["--objective", "distillation"],
            "objective distillation needs --teacher MODEL",
        ),
        ("sentences", ["--teacher", "no-such-model"], "no model 'no-such-model'"),
        (
            "sentences",
            ["--teacher", "TINY", "--student-layers", "3"],
            "--student-layers 3: .*tiny has 2 layers",
        ),
        (
            "sentences",
            ["--teacher", "TINY", "--objective", "mnr"],
            "--teacher is not for objective mnr",
        ),
        (
            "sentences",
            ["--teacher", "TINY", "--recipe", "sts-siamese"],
            "--teacher is not for objective siamese",
        ),
        (
            "triplets",
            ["--teacher", "TINY"],
            "rows of 3 texts; a teacher's vectors need a sentence and a translation",
        ),
        ("scored", ["--teacher", "TINY"], "anchor"),
        (
            "nli",
            ["--teacher", "TINY"],
            "rows of 3 texts; a teacher's vectors need a sentence and a translation",
        ),
        (
            "translations",
            ["--teacher", "CROSS"],
            r"\(20 pairs\): a cross-encoder teaches rows with a negative",
        ),
        ("sentences", ["--teacher", "CROSS"], "anchor"),
    ],
)
def test_what_cannot_be_taught(make, tiny, cross_encoder, form, flags, message):
    folders = {"TINY": str(tiny), "CROSS": str(cross_encoder("logit"))}
    with pytest.raises(InputError, match=message) as refused:
        make(form, *(folders.get(flag, flag) for flag in flags))
    assert "\n" not in str(refused.value)
