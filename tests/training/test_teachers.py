"""Students: what a teacher says is the target, whatever its tokenizer, width or head."""

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
from minisbert.train import train
from minisbert.training.losses import kl_divergence_loss, margin_mse_loss, principal_columns
from minisbert.training.teachers import Distillation
from tests import toys
from tests.conftest import ROOT

ROWS = [7, 0, 3, 12, 5]
# Both have another tokenizer than the student. Their vectors have 13 columns and length 1, and 18
# columns and any length.
TEACHERS = ("tiny-distiluse", "tiny-roberta")


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


def translations() -> list[tuple]:
    return [(f"the {noun}", f"la {noun[::-1]}") for noun in toys.NOUNS]


def several() -> list[tuple]:
    """A query, its positive and two negatives."""
    rows = zip(toys.rows("triplets"), toys.NOUNS, strict=True)
    return [(*row, f"the {noun} runs") for row, noun in rows]


# -----------------------------------------------------------------------------
# vectors


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("translated", [False, True])
def test_the_teachers_vector_of_the_first_text_is_the_target_of_all_texts_of_a_row(
    prepare, translated, teacher
):
    rows = translations() if translated else toys.rows("sentences")
    task = prepare(Distillation(teacher=str(reference(teacher))), rows=rows)
    chosen = [rows[row] for row in ROWS]
    opened = SentenceEncoder.load(reference(teacher), device="cpu")
    wanted = torch.from_numpy(opened.encode([row[0] for row in chosen]))
    missing = 24 - wanted.shape[1]  # to the student's width
    wanted = functional.pad(functional.normalize(wanted), (0, missing)).double()
    texts = [text for row in chosen for text in row]
    student = task.model.encode(texts, convert_to_tensor=True)
    expected = functional.mse_loss(student, wanted.repeat_interleave(len(chosen[0]), dim=0))
    # the teacher's vectors are float32, and of other batches here
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_a_narrow_student_learns_the_principal_columns(prepare, tiny, capsys):
    """The columns of the vectors' own SVD: what they leave out matters least for dot products."""
    rows = toys.rows("sentences")
    student = SentenceEncoder.load(reference("tiny-distiluse"), device="cpu")
    task = prepare(Distillation(teacher=str(tiny)), rows=rows, model=student)
    texts = [row[0] for row in rows]
    vectors = SentenceEncoder.load(tiny, device="cpu").encode(texts).astype(np.float64)
    left, lengths, _ = np.linalg.svd(vectors, full_matrices=False)
    kept = left[:, :13] * lengths[:13]  # (N, 13), each column known but for its sign
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    targets = task.loss.targets.numpy()
    np.testing.assert_allclose(np.abs(targets), np.abs(kept), atol=1e-5, rtol=0)
    np.testing.assert_allclose(targets @ targets.T, kept @ kept.T, atol=1e-5, rtol=0)
    assert "24 columns are turned into 13" in capsys.readouterr().err


def test_principal_columns_keep_what_few_columns_can_and_have_one_sign():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(9, 3, generator=generator) @ torch.randn(3, 7, generator=generator)
    found = principal_columns(flat, 3)
    torch.testing.assert_close(found @ found.T, flat @ flat.T, rtol=0, atol=1e-4)
    assert (found.norm(dim=0).diff() <= 0).all()  # the longest axis first
    noise = 1e-6 * torch.randn(9, 7, generator=generator)
    torch.testing.assert_close(principal_columns(flat + noise, 3), found, rtol=0, atol=1e-4)
    assert torch.equal(principal_columns(flat, 9), torch.cat([flat, torch.zeros(9, 2)], dim=1))


def test_a_head_over_two_vectors_teaches_its_encoders_vectors(prepare, tiny, tmp_path):
    head = ConcatHead(24, outputs=3)
    labels = ["a", "b", "c"]
    PairModel(SentenceEncoder.load(tiny), head, "classes", labels).save(tmp_path / "nli")
    tasks = [prepare(Distillation(teacher=str(each))) for each in (tmp_path / "nli", tiny)]
    assert torch.equal(tasks[0].loss.targets, tasks[1].loss.targets)
    assert tasks[0].loss.taught == tasks[1].loss.taught


# -----------------------------------------------------------------------------
# scores


@pytest.mark.parametrize("task", ["logit", "binary", "regression"])
@pytest.mark.parametrize("form", ["triplets", "several"])
def test_a_cross_encoder_teaches_margins_or_the_softmax_of_its_scores(
    prepare, cross_encoder, form, task
):
    rows = toys.rows("triplets") if form == "triplets" else several()
    taught = prepare(Distillation(teacher=str(cross_encoder(task))), rows=rows)
    teacher = PairModel.load(cross_encoder(task), device="cpu")
    chosen = [rows[row] for row in ROWS]
    scores = [teacher.predict([(row[0], text) for text in row[1:]]) for row in chosen]
    logits = torch.tensor(np.stack(scores)).double()  # (B, C)
    if task == "binary":
        logits = torch.logit(logits)  # ``predict`` gives probabilities
    if task == "regression":
        logits = 20 * logits
    cosines = []
    for row in chosen:
        vectors = taught.model.encode(list(row), convert_to_tensor=True)
        vectors = functional.normalize(vectors)
        cosines.append(20 * vectors[1:] @ vectors[0])
    student = torch.stack(cosines)  # (B, C)
    if form == "triplets":
        expected = functional.mse_loss(student[:, 0] - student[:, 1], logits[:, 0] - logits[:, 1])
    else:
        expected = functional.kl_div(
            student.log_softmax(dim=1),
            logits.log_softmax(dim=1),
            log_target=True,
            reduction="batchmean",
        )
    found = taught.loss.batch_loss(taught.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)  # float32 logits


def test_losses_of_scores_by_hand():
    assert margin_mse_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 2.0]])) == 4
    found = kl_divergence_loss(torch.zeros(1, 2), torch.tensor([[math.log(3), 0]]))
    assert found.item() == pytest.approx(0.13081, abs=5e-6)

    for loss in (margin_mse_loss, kl_divergence_loss):
        with pytest.raises(ValueError, match="teacher must have shape"):
            loss(torch.ones(2, 2), torch.ones(2, 3))


# -----------------------------------------------------------------------------
# training


def test_a_student_learns(tiny, cross_encoder):
    for teacher, rows in (
        (reference("tiny-distiluse"), toys.rows("sentences")),
        (cross_encoder("regression"), toys.rows("triplets")),
    ):
        seen = []
        student = SentenceEncoder.load(tiny, device="cpu")
        loss = Distillation(teacher=str(teacher))
        train(
            student, rows, loss=loss, epochs=4, batch_size=8, lr=5e-3,
            callback=lambda step, _, seen=seen: seen.append(step.loss),
        )  # fmt: skip
        assert np.mean(seen[-3:]) < np.mean(seen[:3]) / 1.5


def test_another_teacher_or_other_sentences_are_another_training(prepare, tmp_path):
    """What ``resume`` compares; the same tokens for a student may be other words for a teacher."""
    teacher = shutil.copytree(reference("tiny-roberta"), tmp_path / "teacher")
    rows = toys.rows("sentences")
    respelled = [(text.replace("the cat", "the Cat"),) for (text,) in rows]

    def identity(rows: list[tuple]) -> str:
        return prepare(Distillation(teacher=str(teacher)), rows=rows).loss.taught

    first = identity(rows)
    assert identity(rows) == first
    assert identity(respelled) != first
    other = SentenceEncoder.load(teacher, device="cpu")
    other.bert.layers[0].attention.query.bias.data[0] += 1e-3
    other.save(teacher)
    assert identity(rows) != first


@pytest.mark.parametrize(
    ("rows", "teacher", "message"),
    [
        ([("a cat",)], "", "needs a teacher"),
        ([("a cat",)], "no-such-model", "no model 'no-such-model'"),
        ([("a", "b", "c")], "TINY", "a teacher's vectors need a sentence and a translation"),
        ([("a", "b")], "CROSS", "teaches rows with a negative"),
        ([("a",)], "CROSS", "teaches rows with a negative"),
    ],
)
def test_what_cannot_be_taught(prepare, tiny, cross_encoder, rows, teacher, message):
    folders = {"TINY": str(tiny), "CROSS": str(cross_encoder("logit")), "": None}
    with pytest.raises(InputError, match=message) as refused:
        prepare(Distillation(teacher=folders.get(teacher, teacher)), rows=rows)
    assert "\n" not in str(refused.value)
