"""MPNet: the reference's numbers on a golden file and on random models, packed rows, folders, texts, bad input."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.core import InputError
from minisbert.models.checkpoint import save_bert
from minisbert.models.modern.mpnet import MPNET, MPNet, MPNetConfig, biased_attention, relative_buckets
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.training.options import parse
from minisbert.training.registry import make_objective
from tests import toys
from tests.checks import other_family
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity, golden
from tests.reference.texts import SENTENCES

FOLDER = REFERENCE / "modern" / "tiny-mpnet"
# batch 3, tokens 140, heads 3, head width 4, width 12, feed-forward 19, layers 2, vocabulary 31
CONFIG = MPNetConfig(
    vocab_size=31,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=19,
    max_position_embeddings=151,
)
LENGTHS = (140, 2, 95)


def random_model(config: MPNetConfig = CONFIG, seed: int = 0) -> MPNet:
    torch.manual_seed(seed)
    model = MPNet(config).double().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.3)
    return model


def ragged(lengths=LENGTHS, words: int = CONFIG.vocab_size):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(2, words, mask.shape).masked_fill(~mask, 1), mask  # 1 is the padding


# ------------------------------------------------------------------------------------------ the numbers


def test_worked_numbers_of_the_docstrings():
    before, after = torch.tensor([0, -1, -7, -8, -11, -12, -200]), torch.tensor([1, 7, 8, 200])
    assert relative_buckets(before).tolist() == [0, 1, 7, 8, 8, 9, 15]
    assert relative_buckets(after).tolist() == [17, 23, 24, 31]
    begins = torch.tensor([8, 12, 16, 23, 32, 46, 64, 91])
    assert relative_buckets(-begins).tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert relative_buckets(1 - begins).tolist() == [7, 8, 9, 10, 11, 12, 13, 14]


@pytest.mark.reference
def test_buckets_of_every_distance():
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-1000, 1001)
    assert torch.equal(relative_buckets(distances), MPNetEncoder.relative_position_bucket(distances))


def test_a_bias_of_zero_changes_nothing_and_a_large_one_decides(written_out):
    query, key, value = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert_parity("no bias", biased_attention(query, key, value, torch.zeros(5, 5))[0], plain, PIECE)
    context, probabilities = biased_attention(query, key, value, 1e4 * torch.eye(5))
    assert torch.equal(probabilities, torch.eye(5).double().expand(2, 3, 5, 5))
    assert torch.equal(context, value)


def check_golden() -> None:
    results = list(other_family("modern/tiny-mpnet"))
    assert len([result for result in results if "gradient" in result.name]) == 37, "all but the pooler"
    assert not [str(result) for result in results if not result.largest <= result.tolerance]


def test_golden_values_of_the_fused_operation():
    check_golden()


def test_golden_values_as_written_out(written_out):
    check_golden()


def test_token_ids_are_the_references():
    reference, tokenizer = golden("modern/tiny-mpnet"), Tokenizer.load(FOLDER)
    expected = [ids[mask].tolist() for ids, mask in zip(reference["ids"], reference["mask"], strict=True)]
    assert tokenizer.encode(SENTENCES).ids == expected
    pairs = tokenizer.encode_pairs(SENTENCES, SENTENCES[::-1])
    assert pairs.ids == [reference[f"pair.{i}"].tolist() for i in range(len(SENTENCES))]
    assert not any(map(any, pairs.token_types))


@pytest.mark.reference
@pytest.mark.parametrize(("heads", "width", "layers", "inner"), [(1, 7, 1, 5), (3, 12, 2, 19), (4, 8, 3, 11)])
def test_random_models_equal_transformers(tmp_path, heads, width, layers, inner):
    """Every layer, the pooler and every gradient, at distances up to 139."""
    from transformers import MPNetModel

    config = MPNetConfig(31, width, layers, heads, inner, 151, layer_norm_eps=1e-5)
    model = random_model(config, seed=width)
    save_bert(model.float(), tmp_path)  # float32 on disk: the same numbers on both sides
    model = model.double()
    theirs = MPNetModel.from_pretrained(tmp_path, attn_implementation="eager").double().eval()
    ids, mask = ragged()
    out = theirs(ids, mask.long(), output_hidden_states=True)
    states = model.hidden_states(ids, mask)
    assert len(states) == len(out.hidden_states) == layers + 1
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"MPNet state {i}", state[mask], expected[mask], PIECE)
    assert_parity("MPNet pooler", model.pool(states[-1]), out.pooler_output, PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    for hidden, pooled in ((states[-1], model.pool(states[-1])), (out.last_hidden_state, out.pooler_output)):
        ((hidden * pull).sum() + pooled.sum()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    names = MPNET.names(layers, pooler=True)
    assert {names[name] for name, _ in model.named_parameters()} == gradients.keys()
    for name, parameter in model.named_parameters():
        expected = gradients[names[name]]
        if name in ("embeddings.word.weight", "embeddings.position.weight"):  # theirs leaves out the padding's row
            expected = expected.index_copy(0, torch.tensor([1]), parameter.grad[1:2])
        assert_parity(f"MPNet gradient of {name}", parameter.grad, expected, GRADIENT)


# ------------------------------------------------------------------------------ batches and packed rows


def test_the_order_of_the_words_counts_also_without_absolute_positions():
    model, (ids, _) = random_model(), ragged((11,))
    model.embeddings.position.weight.data.zero_()
    assert not torch.allclose(model(ids)[0, 0], model(ids[:, [0, *range(10, 0, -1)]])[0, 0])
    model.relative.weight.data.zero_()
    assert_parity("a bag of words", model(ids)[0, 0], model(ids[:, [0, *range(10, 0, -1)]])[0, 0], PIECE)


def test_a_fresh_model_starts_as_the_book_does():
    torch.manual_seed(0)
    fresh = MPNet(MPNetConfig(90, 60, 2, 4, 80, 20, initializer_range=0.3))
    for weight in (fresh.relative.weight, fresh.layers[1].attention.key.weight, fresh.embeddings.word.weight):
        assert weight.std().item() == pytest.approx(0.3, rel=0.15)
    assert not any(module.bias.any() for module in fresh.modules() if isinstance(module, torch.nn.Linear))


def test_dropout_is_on_the_probabilities_in_training_alone():
    model, (ids, mask) = (
        random_model(replace(CONFIG, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)),
        ragged(),
    )
    assert torch.equal(model(ids, mask), random_model()(ids, mask))
    assert not torch.allclose(model.train()(ids, mask)[0], model.eval()(ids, mask)[0])


# ---------------------------------------------------------------------------- folders, here and elsewhere


def test_saving_writes_what_was_read(tmp_path):
    SentenceEncoder.load(FOLDER).save(tmp_path / "saved")
    stored, saved = (load_file(folder / "model.safetensors") for folder in (FOLDER, tmp_path / "saved"))
    assert stored.keys() == saved.keys()
    assert all(torch.equal(stored[name], saved[name]) for name in stored)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (FOLDER, tmp_path / "saved"))
    assert after.items() <= before.items()


@pytest.mark.reference
def test_a_saved_folder_opens_in_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder = SentenceEncoder.load(FOLDER)
    with torch.no_grad():
        encoder.bert.relative.weight += 1 + torch.rand(32, 3)
    encoder.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").double()
    ours = encoder.double().encode(SENTENCES, convert="tensor")
    assert_parity("saved MPNet", ours, theirs.encode(list(SENTENCES), convert_to_tensor=True), PIECE)


def test_a_masked_language_model_is_an_encoder_and_a_head_to_skip(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    tensors = {f"mpnet.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["mpnet.embeddings.position_ids"] = torch.arange(29)[None]  # in files of old
    parts = ("dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias", "decoder.weight", "bias")
    save_file(tensors | {f"lm_head.{part}": torch.ones(2) for part in parts}, folder / "model.safetensors")
    ours, plain = (SentenceEncoder.load(each).double() for each in (folder, FOLDER))
    assert (ours.encode(SENTENCES) == plain.encode(SENTENCES)).all()


def unusual_texts(count: int) -> list[str]:
    """Words of the vocabulary, special tokens, letters of many scripts, spaces of every kind."""
    chance = random.Random(0)
    parts = "the cat É ﬁ 中 <mask> </s> <s> [UNK] ## running it's ß İ 😀 ... !".split()
    parts += [" ", "  ", "\t", "\n", "\u200b", "\ufffd", "\x00", "x" * 101]
    scripts = [(32, 127), (160, 0x3000), (0x4E00, 0xD000), (0x1F300, 0x1F700)]

    def part() -> str:
        common = chance.random() < 0.8
        return (
            chance.choice(parts) + " " * chance.randrange(2)
            if common
            else chr(chance.randrange(*chance.choice(scripts)))
        )

    return ["".join(part() for _ in range(chance.randrange(14))) for _ in range(count)]


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"strip_accents": False, "cls_token": "<mask>"}])
def test_ids_of_thousands_of_texts(tmp_path, options):
    from transformers import AutoTokenizer

    folder = shutil.copytree(FOLDER, tmp_path / "model")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options | {"model_max_length": 21}))
    (folder / "sentence_bert_config.json").unlink()
    ours, theirs, texts = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder), unusual_texts(2000)
    assert ours.encode(texts).ids == theirs(texts, truncation=True)["input_ids"]
    pairs = theirs(texts, texts[::-1], truncation=True)["input_ids"]
    assert ours.encode_pairs(texts, texts[::-1]).ids == pairs


# --------------------------------------------------------------------------------- training, exporting


def test_a_training_step_lowers_the_loss(tmp_path):
    (tmp_path / "rows.tsv").write_text("".join(toys.scored(12, seed=0)))
    data = [flag for name in ("--data", "--dev", "--test") for flag in (name, str(tmp_path / "rows.tsv"))]
    objective = make_objective(parse(data), SentenceEncoder.load(FOLDER).eval())
    parameters = [parameter for name, parameter in objective.model.named_parameters() if "pooler" not in name]
    losses = []
    for _ in range(3):
        losses.append(objective.loss(objective.network, list(range(12))))
        gradients = torch.autograd.grad(losses[-1], parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    assert losses[0] > losses[1] > losses[2]
    assert (SentenceEncoder.load(FOLDER).bert.relative.weight != objective.encoder.bert.relative.weight).any()


# ------------------------------------------------------------------------------------------- bad input


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "bad")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("relative_attention_num_buckets", 64, "relative_attention_num_buckets 64 is not supported, only 32 is"),
        ("pad_token_id", 0, "pad_token_id 0 is not supported, only 1 is"),
        ("hidden_act", "relu", "hidden_act must be gelu, not 'relu'"),
        ("num_attention_heads", 4, "not a multiple of num_attention_heads"),
        ("max_position_embeddings", 2, "leaves no position"),
    ],
)
def test_settings_that_are_not_computed(folder, key, value, message):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"config\.json.*{message}"):
        SentenceEncoder.load(folder)


def test_a_file_without_its_biases(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.relative_attention_bias.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"missing encoder\.relative_attention_bias\.weight \(32, 3\)"):
        SentenceEncoder.load(folder)


def test_padding_in_a_text_and_more_tokens_than_positions():
    encoder = SentenceEncoder.load(FOLDER)
    with pytest.raises(InputError, match="the text 'a <pad> dog' contains <pad>"):
        encoder.encode(["a <pad> dog"])
    with pytest.raises(InputError, match=r"maximum length of 28 is above the position table of .* which has 27"):
        SentenceEncoder.load(FOLDER, limit=28)
