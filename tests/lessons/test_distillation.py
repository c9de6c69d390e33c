"""Students: layers, losses, and what sentence-transformers makes of them. Parity is in the
``tests/parity``.
"""

import numpy as np
import pytest
import torch

from minisbert.core.encoder import cosine as cosine_of
from minisbert.core.losses import cosine_mse_loss
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.losses import (
    distillation_loss,
    keep_layers,
    kl_divergence_loss,
    margin_mse_loss,
    matryoshka_loss,
    spread_layers,
)
from tests.parity import (
    GRADIENT,
    MINILM_VECTOR,
    PIECE,
    REFERENCE,
    assert_parity,
    assert_same_weights,
)
from tests.reference.texts import SENTENCES


@pytest.mark.parametrize(("total", "keep"), [(6, 0), (6, 7), (0, 0)])
def test_layers_that_cannot_be_kept(total, keep):
    with pytest.raises(ValueError, match=f"{keep} of {total} layers"):
        spread_layers(total, keep)


@pytest.mark.parametrize("folder", ["tiny", "tiny-distiluse", "tiny-roberta"])
def test_a_student_of_any_family_encodes_and_is_saved(folder, tiny, tmp_path):
    student = SentenceEncoder.load(tiny if folder == "tiny" else REFERENCE / folder)
    student.bert = keep_layers(student.bert, [1])
    vectors = student.encode(SENTENCES)
    student.save(tmp_path / "student")
    again = SentenceEncoder.load(tmp_path / "student")
    assert again.bert.config.num_hidden_layers == 1
    assert_same_weights(again, student)
    # not to the bit: loaded weights lie in their file, at other offsets from a multiple of 64 bytes
    # than the student's copies in memory, and some CPUs round a product by where its operands lie
    np.testing.assert_allclose(again.encode(SENTENCES), vectors, atol=MINILM_VECTOR, rtol=0)


@pytest.mark.reference
def test_the_losses_are_those_of_sentence_transformers(tiny):
    """Its modules on the tiny model, float64: the value, and the gradient of the word
    embeddings.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.util import pairwise_cos_sim

    theirs = SentenceTransformer(str(tiny), device="cpu").double().eval()
    ours = SentenceEncoder.load(tiny).double()
    features = [
        theirs.tokenize(side)
        for side in (["a cat", "the dog runs"], ["the cat", "a red ball"], ["food", "sun"])
    ]
    targets, scores = (
        torch.tensor([0.75, 0.25]).double(),
        torch.tensor([[3.0, 1.0], [-2.0, 4.0]]).double(),
    )
    teacher = torch.randn(2, ours.width, generator=torch.Generator().manual_seed(0)).double()
    scaled = lambda a, b: 20 * pairwise_cos_sim(a, b)  # noqa: E731
    nested = losses.MatryoshkaLoss(
        theirs, losses.CosineSimilarityLoss(theirs), [5, 11, 24], [0.5, 2.0, 1.0]
    )
    expected = {
        "distillation": losses.MSELoss(theirs)(features[:1], teacher),
        "margin MSE": losses.MarginMSELoss(theirs, scaled)(features, scores),
        "KL divergence": losses.DistillKLDivLoss(theirs, scaled)(features, scores),
        "matryoshka": nested(features[:2], targets),
    }
    u, v, w = (ours(f["input_ids"], f["attention_mask"].bool()) for f in features)
    student = 20 * torch.stack([cosine_of(u, v), cosine_of(u, w)], dim=1)
    loss = lambda a, b: cosine_mse_loss(a, b, targets)  # noqa: E731
    found = {
        "distillation": distillation_loss(u, teacher),
        "margin MSE": margin_mse_loss(student, scores),
        "KL divergence": kl_divergence_loss(student, scores),
        "matryoshka": matryoshka_loss(loss, u, v, dims=(5, 11, 24), weights=(0.5, 2.0, 1.0)),
    }
    table, weight = (
        theirs[0].auto_model.embeddings.word_embeddings.weight,
        ours.bert.embeddings.word.weight,
    )
    for name, reference in expected.items():
        assert_parity(name, found[name], reference, PIECE)
        (gradient,) = torch.autograd.grad(found[name], weight, retain_graph=True)
        assert_parity(
            f"{name}, gradient", gradient, torch.autograd.grad(reference, table)[0], GRADIENT
        )


U = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "noun"),
    [
        (lambda: distillation_loss(U, U[:, :2]), "teacher"),
        (lambda: distillation_loss(U[:0], U[:0]), "student"),
        (lambda: matryoshka_loss(torch.dot, U, dims=(1, 4)), "dims"),
        (lambda: matryoshka_loss(torch.dot, U, U[:, :2], dims=(3,)), "dims"),
        (lambda: matryoshka_loss(torch.dot, U, dims=(0,)), "dims"),
        (lambda: matryoshka_loss(torch.dot, U, dims=()), "dims"),
        (lambda: matryoshka_loss(torch.dot, U[0], dims=(1,)), "vectors"),
    ],
)
def test_arguments_that_do_not_fit(call, noun):
    with pytest.raises(ValueError, match=f"{noun} .*must"):
        call()
