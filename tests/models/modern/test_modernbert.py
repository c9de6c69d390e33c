"""ModernBERT: the reference's numbers, windows, rotation, packed rows, settings of published models, bad input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.core import InputError
from minisbert.models.modern.modernbert import ModernBert, ModernBertConfig, geglu, local_mask
from minisbert.models.modern.modernbert_files import MODERNBERT
from minisbert.models.modern.rotary import rotary, rotate
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity
from tests.reference.states import in_double
from tests.reference.texts import SENTENCES, TEXTS

FOLDER = REFERENCE / "modern" / "tiny-modernbert"
# batch 4, tokens 17, heads 3, width 24, feed-forward 29, layers 4, vocabulary 131, windows of 3 to each side
SIZES = {
    "vocab_size": 131,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 60,
    "local_attention": 6,
    "pad_token_id": 0,
}
LENGTHS = torch.tensor([17, 2, 5, 9])
CONFIG = "config.json"


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and "bias" not in name), std=0.3)
    return model.double().eval()


def random_model(**changes) -> ModernBert:
    return randomise(ModernBert(ModernBertConfig(**SIZES | changes)))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(131, (4, 17), generator=generator), torch.arange(17) < LENGTHS[:, None]


def alter(folder: Path, name: str = CONFIG, **changes) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "model")


# ----------------------------------------------------------------------------------------- the numbers


def test_worked_numbers_of_the_docstrings(written_out):
    pair = torch.tensor([1.0, 2.0])
    assert geglu(pair).item() == pytest.approx(1.6827, abs=5e-5)
    assert geglu(pair, "silu").item() == pytest.approx(1.4621, abs=5e-5)
    assert local_mask(torch.tensor([[0, 1, 2]]), None, 1)[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    cos, sin = rotary(torch.tensor([[2]]), 4, 10000.0, torch.float64)
    angles = torch.tensor([2, 0.02, 2, 0.02], dtype=torch.float64)
    assert_parity("angles", torch.stack([cos, sin]).flatten(), torch.cat([angles.cos(), angles.sin()]), PIECE)
    quarter = rotate(torch.tensor([3.0, 4.0]), torch.zeros(2), torch.ones(2))
    assert quarter.tolist() == [-4, 3]


@pytest.mark.reference
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "hidden_activation": "silu"},
        {"local_attention": 5, "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 7},
        {"global_attn_every_n_layers": 2, "global_rope_theta": 300.0, "local_rope_theta": 9.0, "norm_eps": 0.1},
    ],
    ids=["as published", "biases and silu", "an odd window", "settings of transformers 4"],
)
@pytest.mark.parametrize("pads", [True, False], ids=["padded", "full"])
def test_random_models_equal_transformers(changes, pads):
    """Every layer and every gradient, also of texts that are longer than a window."""
    from transformers import ModernBertConfig, ModernBertModel
    from transformers.models.modernbert import modeling_modernbert

    ids, mask = batch()
    mask = mask if pads else torch.ones_like(mask)
    special = {f"{name}_token_id": 1 for name in ("bos", "eos", "cls", "sep")}
    with in_double(modeling_modernbert):
        config = ModernBertConfig(**SIZES | special | changes, attn_implementation="eager")
        theirs = randomise(ModernBertModel(config))
        out = theirs(ids, mask.long(), output_hidden_states=True)
    ours = MODERNBERT.encoder(MODERNBERT.read(config.to_dict()), False).double().eval()
    assert ours.config == MODERNBERT.read(SIZES | changes)
    names, known = MODERNBERT.names(len(ours.layers), False), theirs.state_dict()
    ours.load_state_dict({name: known[names[name]] for name, _ in ours.named_parameters()})
    assert len(known) == len(ours.state_dict())
    states = ours.hidden_states(ids, mask if pads else None)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"ModernBERT state {i}", state[mask], expected[mask], PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    for hidden in (states[-1], out.last_hidden_state):
        (hidden * pull).sum().backward()
    for name, parameter in ours.named_parameters():
        expected = theirs.get_parameter(names[name]).grad
        expected = torch.zeros_like(parameter) if expected is None else expected
        if name == "embeddings.word.weight":  # transformers gives no gradient to the padding's own row
            parameter.grad[changes.get("pad_token_id", 0)] = 0
        assert_parity(f"ModernBERT gradient of {name}", parameter.grad, expected, GRADIENT)


# ---------------------------------------------------------------------- what a token sees, and packed rows


def test_a_local_layer_sees_its_window_and_a_global_one_everything():
    ids, _ = batch()
    changed = ids[:1].clone()
    changed[0, 16] = (ids[0, 16] + 1) % 131
    for kind, seen in (("sliding_attention", 3), ("full_attention", 16)):
        model = random_model(num_hidden_layers=1, layer_types=[kind])
        differs = (model(ids[:1]) != model(changed)).any(dim=-1)[0]
        assert differs.tolist() == [place >= 16 - seen for place in range(17)]


def test_only_distances_count():
    model, (ids, _) = random_model(), batch()
    moved = model(ids, positions=torch.arange(100, 117)[None].expand(4, -1))
    assert_parity("moved", moved, model(ids), PIECE)


def test_dropout_is_only_in_training():
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "mlp_dropout"):
        model, (ids, _) = random_model(**{name: 0.5}), batch()
        assert torch.equal(model(ids), model(ids))
        assert not torch.equal(model.train()(ids), model.eval()(ids))


def test_in_bfloat16_the_vectors_are_nearly_the_same():
    encoder = SentenceEncoder.load(FOLDER)
    with torch.autocast("cpu", torch.bfloat16):
        low = encoder.bert(ids := torch.tensor([encoder.tokenizer.encode(SENTENCES).ids[0]]))
    assert_parity("bfloat16", low.float(), encoder.bert(ids), 0.15)  # 8 bits: .4 % of states of up to 7, in 4 layers


# ---------------------------------------------------------------------------- folders, here and elsewhere


def reference(folder: Path, **options) -> torch.Tensor:
    from sentence_transformers import SentenceTransformer
    from transformers.models.modernbert import modeling_modernbert

    with in_double(modeling_modernbert):
        model = SentenceTransformer(str(folder), device="cpu").double()
        return model.encode([*SENTENCES, *TEXTS], convert_to_tensor=True, **options)


# what config.json and the pooling of published embedders state beyond sizes; granite's as quoted by people who port it
OLD = {"rope_parameters": ..., "layer_types": ..., "global_attn_every_n_layers": 3, "classifier_pooling": "mean"}
OLD |= {"local_rope_theta": 10000.0, "layer_norm_eps": 1e-5, "position_embedding_type": "absolute"}
OLD |= {"sparse_prediction": False, "reference_compile": False, "deterministic_flash_attn": False}
PUBLISHED = {
    "nomic-ai/modernbert-embed-base": ({"global_rope_theta": 160000.0}, "mean"),
    "Alibaba-NLP/gte-modernbert-base": ({"global_rope_theta": 160000.0, "gradient_checkpointing": False}, "cls"),
    "ibm-granite/granite-embedding-english-r2": ({"global_rope_theta": 80000.0}, "cls"),
    "a multilingual granite": ({"global_rope_theta": 150000.0, "hidden_activation": "silu"}, "cls"),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_models_here_and_there_also_after_saving(folder, tmp_path, name):
    changes, pooling = PUBLISHED[name]
    alter(folder, **OLD | changes)
    alter(folder, "1_Pooling/config.json", pooling_mode=pooling)
    encoder = SentenceEncoder.load(folder)
    encoder.save(tmp_path / "saved")
    ours = encoder.double().encode([*SENTENCES, *TEXTS], convert="tensor")
    assert_parity(f"{name}, there", ours, reference(folder), PIECE)
    again = SentenceEncoder.load(tmp_path / "saved").double().encode([*SENTENCES, *TEXTS], convert="tensor")
    assert_parity(f"{name}, saved", again, ours, PIECE)
    assert_parity(f"{name}, saved, there", reference(tmp_path / "saved"), ours, PIECE)


@pytest.mark.reference
def test_ids_of_texts_and_pairs(folder):
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, *TEXTS, "e\u0301 is é", "two  spaces \n\n and [MASK] ", "x" * 200]
    assert ours.encode(texts).ids == theirs(texts, truncation=True)["input_ids"]
    pairs = theirs(texts, texts[::-1], truncation=True)["input_ids"]
    assert ours.encode_pairs(texts, texts[::-1]).ids == pairs


def test_a_masked_language_model_is_an_encoder_and_a_head_to_skip(folder):
    expected = SentenceEncoder.load(folder).encode(SENTENCES)
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    more = {"head.dense.weight": torch.ones(2, 2), "head.norm.weight": torch.ones(2), "decoder.bias": torch.ones(2)}
    save_file(tensors | more, folder / "model.safetensors")
    assert (SentenceEncoder.load(folder).encode(SENTENCES) == expected).all()


def test_layers_of_any_order_are_saved(tmp_path):
    encoder = SentenceEncoder.load(FOLDER)
    for kinds in (["sliding_attention", "full_attention"] * 2, ["full_attention"] * 4, ["sliding_attention"] * 4):
        config = ModernBertConfig(**SIZES | {"layer_types": kinds})
        assert MODERNBERT.read(MODERNBERT.write(vars(config))) == config
    encoder.save(tmp_path / "saved")
    assert SentenceEncoder.load(tmp_path / "saved").bert.config == encoder.bert.config


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling and quantization_config are not supported"),
        ({"quantization_config": {"bits": 4}}, "rope_scaling and quantization_config are not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "rope_type 'linear' is not supported"),
        ({"rope_parameters": 5}, "config.json"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must be full_attention or sliding_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types must be full_attention or sliding_attention for each layer"),
        ({"layer_types": ..., "global_attn_every_n_layers": 0}, "global_attn_every_n_layers must be an integer from 1"),
        ({"local_attention": 0}, "local_attention must be an integer from 1, not 0"),
        ({"hidden_activation": "relu"}, "hidden_activation must be gelu|silu, not 'relu'"),
        ({"num_attention_heads": 5}, "hidden_size 24 does not give every head an even number of columns"),
        ({"norm_bias": True}, "missing embeddings.norm.bias (24,)"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_settings_that_are_not_computed(folder, changes, message):
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(alter(folder, **changes))
    assert str(folder) in str(error.value)
    assert message in str(error.value)


def test_more_tokens_than_positions(folder):
    with pytest.raises(InputError, match=r"a maximum length of 91 is above the position table of .* which has 90"):
        SentenceEncoder.load(folder, limit=91)


def test_a_reranker_is_refused_by_name(folder):
    alter(folder, architectures=["ModernBertForSequenceClassification"])
    with pytest.raises(InputError, match="architectures 'ModernBertForSequenceClassification' is not supported"):
        PairModel.load(folder)
