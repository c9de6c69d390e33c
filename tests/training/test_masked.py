"""Masked words in the proportions of the paper; a new vocabulary, new weights, and the loss."""

import math

import pytest
import torch

from minisbert import SentenceEncoder
from minisbert.core import InputError
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.train import train
from minisbert.training.losses import mlm_losses
from minisbert.training.masked import (
    SPECIAL,
    MaskedWords,
    draw_masks,
    new_model,
    train_vocabulary,
)
from minisbert.training.state import Progress
from tests import toys

TEXTS = toys.sentences(60)
MASK = 4


# -----------------------------------------------------------------------------
# masks


def test_the_proportions_of_the_paper():
    """Devlin et al. 2019, section 3.1 and appendix A.1."""
    ids = torch.full((1000, 200), 7)
    inputs, chosen = draw_masks(
        ids, torch.ones_like(ids), MASK, 30_000, torch.Generator().manual_seed(0)
    )
    masked = inputs[chosen] == MASK
    stayed = inputs[chosen] == 7
    replaced = ~masked & ~stayed
    shares = [x.double().mean().item() for x in (chosen, masked, replaced, stayed)]
    # Of 200,000 tokens 30,000 are chosen: .006 is some three standard errors of their shares.
    assert shares == pytest.approx([0.15, 0.8, 0.1, 0.1], abs=0.006)


# -----------------------------------------------------------------------------
# vocabulary and model


@pytest.fixture(scope="module")
def model() -> MaskedLanguageModel:
    torch.manual_seed(0)
    return new_model(train_vocabulary(TEXTS, 200, max_length=32), layers=2, width=64)


def test_the_vocabulary_is_that_of_the_texts():
    tokenizer = train_vocabulary(TEXTS, 200)
    words = tokenizer.backend.get_vocab()
    assert [tokenizer.backend.id_to_token(i) for i in range(5)] == SPECIAL
    assert len(words) <= 200
    ids = tokenizer.encode(["The SAD cat"]).ids[0]
    assert tokenizer.tokens(ids) == ["[CLS]", "the", "sad", "cat", "[SEP]"]
    assert train_vocabulary(TEXTS, 200).backend.to_str() == tokenizer.backend.to_str()
    with pytest.raises(InputError, match="a vocabulary of 20"):
        train_vocabulary(TEXTS, 20)


def test_a_new_model_guesses_every_word_alike(model):
    probabilities = [share for _, share in model.fill_mask("a [MASK] in the park", top=1000)]
    vocabulary = len(model.head.bias)
    assert len(probabilities) == vocabulary
    assert sum(probabilities) == pytest.approx(1)
    assert max(probabilities) < 2 / vocabulary


def test_a_saved_model_loads_as_either(model, tmp_path):
    model.save(tmp_path / "model")
    again = MaskedLanguageModel.load(tmp_path / "model")
    assert again.fill_mask("a [MASK]") == model.fill_mask("a [MASK]")
    assert again.head.words is again.bert.embeddings.word.weight
    encoder = SentenceEncoder.load(tmp_path / "model")
    assert type(encoder) is SentenceEncoder
    assert (encoder.encode(TEXTS) == model.encode(TEXTS)).all()


@pytest.mark.parametrize(
    ("text", "top", "message"), [("a cat", 5, r"has no \[MASK\]"), ("a [MASK]", 0, "top must be")]
)
def test_nothing_to_fill(model, text, top, message):
    with pytest.raises(InputError, match=message):
        model.fill_mask(text, top)


@pytest.mark.reference
def test_transformers_and_sentence_transformers_open_it_with_the_same_numbers(model, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    for parameter in model.parameters():  # fresh weights hide bugs: LayerNorm's are 1 and 0
        torch.nn.init.normal_(parameter, std=0.1)
    model.save(tmp_path / "model")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer(["a cat is in the park", "the moon"], padding=True, return_tensors="pt")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    expected = theirs(**inputs, labels=labels)
    ours = MaskedLanguageModel.load(tmp_path / "model").double()
    chosen = inputs["attention_mask"].bool()
    logits = ours.logits(inputs["input_ids"], inputs["attention_mask"], chosen)
    assert torch.allclose(logits, expected.logits[chosen], rtol=0, atol=1e-10)
    loss = mlm_losses(logits, inputs["input_ids"][chosen]).mean()
    assert loss.item() == pytest.approx(expected.loss.item(), abs=1e-10)
    vectors = reference.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    assert abs(vectors - SentenceEncoder.load(tmp_path / "model").encode(TEXTS)).max() < 2e-6


def test_a_batch_without_a_hidden_word_has_the_loss_0(model, monkeypatch):
    loss = MaskedWords()
    network = loss.prepare(model, [("the cat",), ("a dog runs",)])
    monkeypatch.setattr(torch, "rand", lambda shape, generator: torch.ones(shape))
    value = loss.batch_loss(network, [0, 1])
    value.backward()
    assert value == 0


def test_training_learns_the_words():
    """From every word alike to what the texts say of cats."""
    torch.manual_seed(1)
    model = new_model(train_vocabulary(TEXTS, 200, 32), 1, 64)
    seen = []
    progress = Progress()
    train(
        model,
        toys.rows("sentences"),
        toys.scored_rows(20, seed=1),
        "mlm",
        epochs=30,
        batch_size=16,
        lr=5e-3,
        eval_every=1000,
        progress=progress,
        callback=lambda step, _: seen.append(step.loss),
    )
    assert seen[0] == pytest.approx(math.log(len(model.head.bias)), abs=0.7)  # every word alike
    assert seen[-1] < 2.5
    assert progress.metric == "masked_accuracy"
    assert progress.history[-1].keys() == {"step", "masked_accuracy", "spearman", "pearson"}
    assert {word for word, _ in model.fill_mask("the cat is [MASK]", 2)} == {"happy", "sad"}


def test_dev_may_be_texts_alone(model):
    """Then only the words that are hidden in them are guessed."""
    found = MaskedWords().evaluate(model, [("the cat is happy",), ("a dog is sad",)])
    assert found.scores.keys() == {"masked_accuracy"}


def test_an_encoder_without_its_language_model_is_refused(tiny):
    with pytest.raises(InputError, match="MaskedLanguageModel"):
        train(SentenceEncoder.load(tiny, device="cpu"), [("a cat",)], loss="mlm")
