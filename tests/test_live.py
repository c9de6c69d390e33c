"""Live against transformers and sentence-transformers as installed (``reference`` extra)."""

import os

import pytest
import torch

from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core.bert import Bert
from minisbert.data.rows import SPLITS, load_scored_pairs
from tests.parity import GRADIENT, PIECE, assert_parity

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip(
    "transformers", reason="needs the reference extra: pip install '.[reference]'"
)
pytestmark = pytest.mark.reference


def randomise(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Every parameter random (gamma around 1), float64 with float32 values."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.2 * torch.randn(parameter.shape)
            is_gamma = name.endswith(("LayerNorm.weight", "layer_norm.weight"))
            parameter.copy_(1 + noise if is_gamma else noise)
    return model.double().eval()


def through_disk(reference: torch.nn.Module, folder) -> Bert:
    """The same weights by way of Hugging Face's own save and our own load."""
    reference.float().save_pretrained(folder)
    reference.double()
    return load_transformer(folder).double()


CONFIGURATIONS = {
    # (family, vocabulary, width, layers, heads, feed-forward, positions), lengths of texts
    "one layer": (("bert", 53, 20, 1, 4, 31, 17), (13, 2, 6)),
    "one head": (("bert", 41, 14, 3, 1, 22, 12), (9, 4, 2, 7)),
    "batch of one": (("bert", 67, 30, 2, 5, 48, 20), (11,)),
    "many layers, odd widths": (("bert", 29, 21, 7, 3, 10, 9), (7, 3, 5, 2, 6)),
    "every position taken": (("bert", 31, 12, 2, 2, 50, 15), (15, 1)),
    "DistilBERT": (("distilbert", 47, 15, 3, 5, 26, 14), (12, 2, 7)),
    "DistilBERT, one layer, one head": (("distilbert", 37, 11, 1, 1, 16, 10), (8, 3)),
    "RoBERTa": (("roberta", 43, 18, 2, 3, 25, 17), (14, 5, 2, 9)),
    "RoBERTa, another padding index": (("roberta", 61, 10, 2, 2, 19, 21), (6,)),
    "XLM-RoBERTa": (("xlm-roberta", 59, 16, 2, 4, 23, 18), (12, 2, 7)),
}
TYPES = {"bert": 2, "roberta": 1, "xlm-roberta": 1, "distilbert": 0}
MODELS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
}
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def random_reference(seed: int, family: str, *sizes: int) -> torch.nn.Module:
    settings = dict(zip(SIZES, sizes, strict=True), attn_implementation="eager")
    # Two different rates, so that they cannot be confused.
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    settings |= rates | {
        "type_vocab_size": TYPES[family],
        "pad_token_id": 0 if family == "bert" else 1 + seed % 3,
    }
    if family == "distilbert":
        del settings["type_vocab_size"], settings["pad_token_id"]
        theirs = ENCODER_FAMILIES[family].settings
        settings = {theirs.get(key, key): value for key, value in settings.items()}
    config = getattr(transformers, f"{MODELS[family]}Config")(**settings)
    return randomise(getattr(transformers, f"{MODELS[family]}Model")(config), seed)


def masked(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_random_models_forward_and_backward(name, tmp_path):
    (family, *sizes), lengths = CONFIGURATIONS[name]
    vocabulary = sizes[0]
    layers = sizes[2]
    reference = random_reference(len(name), family, *sizes)
    ours = through_disk(reference, tmp_path)
    mask = masked(lengths)
    pad = ours.config.pad_token_id
    ids = torch.randint(pad + 1, vocabulary, mask.shape).masked_fill(~mask, pad)
    types = torch.randint(0, max(TYPES[family], 1), mask.shape)

    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if TYPES[family]:
        inputs["token_type_ids"] = types
    out = reference(**inputs, output_hidden_states=True)
    states = ours.hidden_states(ids, mask, types)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"{name}, hidden state {i}", state[mask], expected[mask], PIECE)
    if ours.pooler is not None:
        assert_parity(f"{name}, pooler", ours.pool(states[-1]), out.pooler_output, PIECE)

    pull = torch.randn(states[-1].shape, dtype=torch.float64) * mask[..., None]
    (out.last_hidden_state * pull).sum().backward()
    (states[-1] * pull).sum().backward()
    names = ENCODER_FAMILIES[family].names(layers, ours.pooler is not None)
    expected = dict(reference.named_parameters())
    for parameter_name, parameter in ours.named_parameters():
        if not parameter_name.startswith("pooler"):
            gradient = expected[names[parameter_name]].grad
            assert_parity(
                f"{name}, gradient of {parameter_name}", parameter.grad, gradient, GRADIENT
            )


@pytest.mark.parametrize("name", ["many layers, odd widths", "DistilBERT", "RoBERTa"])
def test_training_mode_drops_the_same_numbers(name, tmp_path):
    """With one seed both sides drop the same places, in the same order and probability."""
    (family, *sizes), lengths = CONFIGURATIONS[name]
    reference = random_reference(0, family, *sizes)
    ours = through_disk(reference, tmp_path).train()
    mask = masked(lengths)
    ids = torch.randint(5, sizes[0], mask.shape).masked_fill(~mask, ours.config.pad_token_id)
    torch.manual_seed(1)
    expected = reference.train()(ids, mask.long()).last_hidden_state
    torch.manual_seed(1)
    state = ours(ids, mask)
    assert_parity(f"{name}, in training mode", state[mask], expected[mask], PIECE)
    assert not torch.allclose(state, ours(ids, mask))


@pytest.mark.parametrize("name", ["one layer", "DistilBERT", "RoBERTa", "XLM-RoBERTa"])
def test_what_we_save_transformers_opens(name, tmp_path):
    (family, *sizes), _ = CONFIGURATIONS[name]
    reference = random_reference(1, family, *sizes)
    ours = through_disk(reference, tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    save_bert(ours, tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").double().eval()
    assert type(again) is type(reference)
    ids = torch.randint(5, sizes[0], (3, 7))
    with torch.no_grad():
        assert_parity(
            f"{name}, saved", again(ids).last_hidden_state, reference(ids).last_hidden_state, PIECE
        )


@pytest.fixture(scope="module")
def sentences(stsb) -> list[str]:
    """Every sentence of the STS Benchmark, firsts and seconds."""
    pairs = []
    for split in SPLITS:
        pairs += load_scored_pairs("stsb", split)
    return [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]


@pytest.mark.weights
def test_token_ids_of_every_stsb_sentence_alone_and_in_pairs(minilm, sentences):
    reference = transformers.AutoTokenizer.from_pretrained(minilm)
    ours = read_tokenizer(minilm)
    assert len(sentences) == 2 * (5749 + 1500 + 1379)
    expected = reference(sentences, truncation=True, max_length=256)
    assert ours.encode(sentences).ids == expected["input_ids"]
    firsts = sentences[: len(sentences) // 2]
    seconds = sentences[len(sentences) // 2 :]
    # Texts over the limit: forty sentences in one; the first longer, the second, both.
    long = [" ".join(sentences[i : i + 40]) for i in range(0, 400, 40)]
    firsts = firsts + long + sentences[:10] + long
    seconds = seconds + sentences[:10] + long + long[::-1]
    expected = reference(firsts, seconds, truncation=True, max_length=256)
    pairs = ours.encode_pairs(firsts, seconds)
    assert pairs.ids == expected["input_ids"]
    assert pairs.token_types == expected["token_type_ids"]
    assert sum(pairs.truncated) == 30
    assert ours.encode(long).ids == reference(long, truncation=True, max_length=256)["input_ids"]
