"""Students: layers, losses, and what sentence-transformers makes of them. Parity is in the ``*_checks.py``."""

import copy
import itertools
import re

import numpy as np
import pytest
import torch

from minisbert.core.encoder import cosine as cosine_of
from minisbert.core.losses import cosine_mse_loss
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.distillation import (
    distillation_loss,
    keep_layers,
    kl_divergence_loss,
    margin_mse_loss,
    matryoshka_loss,
    spread_layers,
)
from tests.parity import GRADIENT, MINILM_VECTOR, PIECE, assert_parity, assert_same_weights
from tests.reference.texts import SENTENCES


def test_layers_are_ascending_and_reach_from_end_to_end():
    for total, keep in ((n, keep) for n in (1, 2, 5, 12, 24) for keep in range(1, n + 1)):
        layers = spread_layers(total, keep)
        gaps = {b - a for a, b in itertools.pairwise(layers)}
        assert len(layers) == keep
        assert layers == sorted(set(layers))
        assert layers[-1] == total - 1
        assert keep == 1 or layers[0] == 0
        assert not gaps or max(gaps) - min(gaps) <= 1
    for total, keep in ((6, 0), (6, 7), (0, 0)):
        with pytest.raises(ValueError, match=f"{keep} of {total} layers"):
            spread_layers(total, keep)


@pytest.mark.parametrize("layers", [[], [2], [-1, 1], [0, 0], [1, 0]])
def test_a_student_of_no_such_layers(tiny, layers):
    with pytest.raises(ValueError, match=r"must be some of 0 to 1, ascending, each once"):
        keep_layers(SentenceEncoder.load(tiny).bert, layers)


def student_of(folder, layers) -> SentenceEncoder:
    encoder = SentenceEncoder.load(folder)
    student = copy.deepcopy(encoder)
    student.bert = keep_layers(encoder.bert, layers)
    return student


@pytest.mark.parametrize("folder", ["tiny", "tiny-distiluse", "tiny-roberta"])
def test_a_student_of_any_family_encodes_and_is_saved(folder, tiny, tmp_path):
    student = student_of(tiny if folder == "tiny" else tiny.parents[1] / "tests" / "reference" / folder, [1])
    vectors = student.encode(SENTENCES)
    student.save(tmp_path / "student")
    again = SentenceEncoder.load(tmp_path / "student")
    assert again.bert.config.num_hidden_layers == 1
    assert_same_weights(again, student)
    # not to the bit: loaded weights lie in their file, at other offsets from a multiple of 64 bytes than the student's
    # copies in memory, and some CPUs round a product by where its operands lie
    np.testing.assert_allclose(again.encode(SENTENCES), vectors, atol=MINILM_VECTOR, rtol=0)


@pytest.mark.reference
def test_a_student_opens_in_sentence_transformers(tiny, tmp_path):
    from sentence_transformers import SentenceTransformer

    student = student_of(tiny, [1])
    student.save(tmp_path / "student")
    theirs = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    assert np.abs(theirs.encode(SENTENCES) - student.encode(SENTENCES)).max() < 2e-6


@pytest.mark.reference
def test_the_losses_are_those_of_sentence_transformers(tiny):
    """Its modules on the tiny model, float64: the value, and the gradient of the word embeddings."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.util import pairwise_cos_sim

    theirs = SentenceTransformer(str(tiny), device="cpu").double().eval()
    ours = SentenceEncoder.load(tiny).double()
    sides = [["a cat", "the dog runs"], ["the cat", "a red ball"]]
    features = [theirs.tokenize(side) for side in sides]
    targets = torch.tensor([0.75, 0.25]).double()
    batches = [(f["input_ids"], f["attention_mask"].bool()) for f in features]
    teacher = torch.randn(2, ours.width, generator=torch.Generator().manual_seed(0)).double()
    cosine = losses.CosineSimilarityLoss(theirs)
    scaled = lambda a, b: 20 * pairwise_cos_sim(a, b)  # noqa: E731
    scores = torch.tensor([[3.0, 1.0], [-2.0, 4.0]]).double()
    others = [*features, theirs.tokenize(["food", "the moon"])]
    batches.append((others[2]["input_ids"], others[2]["attention_mask"].bool()))
    student = lambda *x: 20 * torch.stack([cosine_of(x[0], y) for y in x[1:]], dim=1)  # noqa: E731
    nested = losses.MatryoshkaLoss(theirs, cosine, [5, 11, 24], [0.5, 2.0, 1.0])

    def matryoshka(u, v, w):
        loss = lambda a, b: cosine_mse_loss(a, b, targets)  # noqa: E731
        return matryoshka_loss(loss, u, v, dims=(5, 11, 24), weights=(0.5, 2.0, 1.0))

    margin, divergence = losses.MarginMSELoss(theirs, scaled), losses.DistillKLDivLoss(theirs, scaled)
    for name, expected, result in (
        ("distillation", losses.MSELoss(theirs)(features[:1], teacher), lambda u, *_: distillation_loss(u, teacher)),
        ("margin MSE", margin(others, scores), lambda *x: margin_mse_loss(student(*x), scores)),
        ("KL divergence", divergence(others, scores), lambda *x: kl_divergence_loss(student(*x), scores)),
        ("matryoshka", nested(features, targets), matryoshka),
    ):
        table = theirs[0].auto_model.embeddings.word_embeddings.weight
        found = result(*(ours(ids, mask) for ids, mask in batches))
        assert_parity(name, found, expected, PIECE)
        (gradient,) = torch.autograd.grad(found, ours.bert.embeddings.word.weight)
        assert_parity(f"{name}, gradient", gradient, torch.autograd.grad(expected, table)[0], GRADIENT)


U = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: distillation_loss(U, U[:1]), "teacher must be (B, D)"),
        (lambda: distillation_loss(U[:0], U[:0]), "student must be (B, D)"),
        (lambda: matryoshka_loss(torch.dot, U, dims=(1, 4)), "dims [1, 4] must be numbers from 1 to 3"),
        (lambda: matryoshka_loss(torch.dot, U, U[:, :2], dims=(3,)), "from 1 to 2, the width of the vectors"),
        (lambda: matryoshka_loss(torch.dot, U, dims=()), "dims [] must be"),
        (lambda: matryoshka_loss(torch.dot, U, dims=(1, 2), weights=(1.0,)), "1 weights for 2 dims"),
        (lambda: matryoshka_loss(torch.dot, U[0], dims=(1,)), "vectors must be (B, D), not (3,)"),
        (lambda: matryoshka_loss(torch.dot, dims=(1,)), "vectors must be (B, D), not none"),
    ],
)
def test_arguments_that_do_not_fit(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
