"""A folder on disk <-> the modules: strict both ways, nothing skipped in silence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from minisbert.checkpoints.weights import fill, load_transformer, save_bert, write_safetensors
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.architectures.tiny import alter
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, REFERENCE, assert_parity


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(tiny, tmp_path / "model")


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_loaded_model_is_in_eval_mode_float32_and_trainable_and_saved_bit_for_bit(
    folder, dtype, tmp_path
):
    edit_tensors(folder, lambda tensors: {name: value.to(dtype) for name, value in tensors.items()})
    bert = load_transformer(folder)
    save_bert(bert, tmp_path)
    stored, saved = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    assert stored.keys() == saved.keys()
    assert all(torch.equal(saved[name], stored[name].float()) for name in stored)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert load_transformer(tmp_path).config == bert.config
    assert not bert.training
    assert all(
        parameter.dtype == torch.float32 and parameter.requires_grad
        for parameter in bert.parameters()
    )


# the heads of pre-training, as transformers names them: masked words, for ELECTRA replaced ones
HEADS = {
    "bert": [
        f"cls.predictions.{name}" for name in ("transform.dense", "transform.LayerNorm", "decoder")
    ],
    "distilbert": ["vocab_transform", "vocab_layer_norm", "vocab_projector"],
    "roberta": ["lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"],
    "electra": ["discriminator_predictions.dense", "discriminator_predictions.dense_prediction"],
}


def pretraining_heads(prefix):
    names = [f"{layer}.{part}" for layer in HEADS[prefix] for part in ("weight", "bias")]
    names += {
        "bert": ["cls.predictions.bias", "cls.seq_relationship.weight"],
        "roberta": ["lm_head.bias"],
    }.get(prefix, [])
    return {name: torch.ones(3) for name in names}


def old_style(folder):
    """As BERT was published: prefix, gamma and beta, pre-training heads, position ids."""

    def renamed(tensors):
        old = [
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            for name in tensors
        ]
        more = pretraining_heads("bert") | {"bert.embeddings.position_ids": torch.arange(32)[None]}
        return dict(zip([f"bert.{name}" for name in old], tensors.values(), strict=True)) | more

    edit_tensors(folder, renamed)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def split(folder):
    """The checkpoint in two files and an index; the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: (FIRST, SECOND)[i % 3 == 0] for i, name in enumerate(tensors)}
    for shard in (FIRST, SECOND):
        save_file(
            {name: tensors[name] for name, file in where.items() if file == shard}, folder / shard
        )
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


@pytest.mark.parametrize("change", [old_style, split])
def test_old_names_pretraining_heads_and_shards_are_understood(tiny, folder, change):
    """And saved as one file."""
    change(folder)
    found, expected = load_transformer(folder).state_dict(), load_transformer(tiny).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    saved = folder.with_name("saved")
    SentenceEncoder.load(folder).save(saved)
    assert [path.name for path in saved.glob("model*")] == ["model.safetensors"]
    assert (
        SentenceEncoder.load(saved).encode(["a cat"])
        == SentenceEncoder.load(tiny).encode(["a cat"])
    ).all()


def spoil(tensors):
    del tensors["embeddings.LayerNorm.bias"]
    tensors["encoder.layer.2.output.dense.bias"] = torch.zeros(24)
    tensors["encoder.layer.0.attention.self.key.weight"] = torch.zeros(24, 23)
    tensors["pooler.dense.bias"] = torch.zeros(24, dtype=torch.int32)


FAULTS = [
    (
        spoil,
        r"missing embeddings\.Lay.*\n.*unexpected encoder.*\n.*misshapen encoder.*\n.*pooler.* "
        r"torch\.int32",
    ),
    # without their scales they are not weights
    (
        lambda tensors: {name: x.to(torch.float8_e4m3fn) for name, x in tensors.items()},
        "float8_e4m3fn",
    ),
    (
        lambda tensors: tensors | {f"more.{i}": torch.ones(1) for i in range(100)},
        r"^[^\n]*(\n  unexpected more.*){20}\n  and 80 more$",
    ),
    # a terminal would obey a name
    (
        lambda tensors: tensors | {"a\x1b[2J\n": torch.ones(1)},
        r"\n  unexpected a\\x1b\[2J\\n \(1,\)$",
    ),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_tensors_that_do_not_fit_are_named(folder, change, message):
    edit_tensors(folder, change)
    with pytest.raises(InputError, match=message):
        load_transformer(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_is_filled_as_float32(tmp_path, dtype):
    """Whatever the module and the file have."""
    module = nn.Linear(3, 2).double()
    names = {"weight": "dense.kernel", "bias": "dense.bias"}
    tensors = {
        "dense.kernel": torch.arange(6, dtype=dtype).view(2, 3),
        "dense.bias": torch.ones(2, dtype=dtype),
    }
    fill(module, tensors, tmp_path, names)
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    for parameter in module.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad


def test_a_module_may_be_filled_under_its_own_names(tmp_path):
    """As the heads in our own files are."""
    module = nn.Linear(3, 2)
    fill(module, {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}, tmp_path)
    assert (module.weight.tolist(), module.bias.tolist()) == ([[0, 0, 0]] * 2, [1, 1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_or_no_number_is_refused_by_name(tmp_path, value):
    """The module is left as it was."""
    module = nn.Linear(3, 2)
    before = module.weight.clone()
    tensors = {"weight": torch.ones(2, 3), "bias": torch.ones(2, dtype=torch.int64)}
    tensors["weight"][1, 0] = value
    with pytest.raises(InputError, match=r"weight holds NaN or infinity\n  bias holds torch.int64"):
        fill(module, tensors, tmp_path / "f")
    assert torch.equal(module.weight, before)


def test_missing_weights_say_what_stands_there_instead(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors is missing$"):
        load_transformer(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        load_transformer(folder)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"a": "model-00003-of-00003.safetensors"},
            r"model-00003-of-00003\.safetensors is missing",
        ),
        ({"a": f"../model/{FIRST}"}, "not the name of a safetensors file"),
        ({"a": "pytorch_model.bin"}, r"pytorch_model\.bin"),
        ({"a": None}, "weight_map"),
        ({}, r"model\.safetensors is missing"),
        ({"a": FIRST}, r"does not fit .*\n  missing embeddings"),
    ],
)
def test_an_index_that_cannot_be_used(folder, where, message):
    index = split(folder)
    index.write_text(json.dumps({"weight_map": where}))
    with pytest.raises(InputError, match=message) as error:
        load_transformer(folder)
    assert str(folder) in str(error.value)


def test_a_tensor_in_two_shards_is_a_fault(folder):
    split(folder)
    name, tensor = next(iter(load_file(folder / FIRST).items()))
    save_file(load_file(folder / SECOND) | {name: tensor}, folder / SECOND)
    with pytest.raises(InputError, match=f"{SECOND} holds '{name}' twice, or another shard"):
        load_transformer(folder)


def test_a_config_without_sizes_or_without_a_config(folder):
    alter(folder, hidden_size=..., vocab_size=...)
    for path, fault in (
        (folder, "vocab_size"),
        (folder, "config.json"),
        (folder / "nowhere", "config.json"),
    ):
        with pytest.raises(InputError, match=f"{path}.*{fault}"):
            load_transformer(path)
        (folder / "config.json").unlink(missing_ok=True)


# ---------------------------------------------------------------------------------- other families


@pytest.mark.parametrize("name", ["tiny-distiluse", "tiny-roberta"])
def test_families_are_written_as_they_were_read(name, tmp_path):
    bert = load_transformer(REFERENCE / name)
    save_bert(bert, tmp_path)
    stored, saved = (load_file(path / "model.safetensors") for path in (REFERENCE / name, tmp_path))
    assert stored.keys() == saved.keys()
    assert all(torch.equal(stored[key], saved[key]) for key in stored)
    original, config = (
        json.loads((path / "config.json").read_text()) for path in (REFERENCE / name, tmp_path)
    )
    assert (
        original.items() >= {key: value for key, value in config.items() if key in original}.items()
    )


@pytest.mark.parametrize(
    ("source", "family", "prefix", "architecture"),
    [
        (REFERENCE / "tiny-distiluse", "distilbert", "distilbert", "DistilBertModel"),
        (REFERENCE / "tiny-roberta", "roberta", "roberta", "RobertaModel"),
        (REFERENCE / "tiny-roberta", "xlm-roberta", "roberta", "XLMRobertaModel"),
        (REFERENCE / "tiny-roberta", "camembert", "roberta", "CamembertModel"),
        (ROOT / "weights" / "tiny", "electra", "electra", "ElectraModel"),
    ],
)
def test_pretraining_heads_of_other_families_are_skipped_by_name(
    tmp_path, source, family, prefix, architecture
):
    folder = shutil.copytree(source, tmp_path / family)
    alter(folder, model_type=family)
    stored = load_file(folder / "model.safetensors")
    tensors = {
        f"{prefix}.{key}": value for key, value in stored.items() if not key.startswith("pooler")
    }
    tensors[f"{prefix}.embeddings.position_ids"] = torch.arange(32)[None]
    save_file(tensors | pretraining_heads(prefix), folder / "model.safetensors")
    expected = {
        name: value
        for name, value in load_transformer(source).named_parameters()
        if "pooler" not in name
    }
    found = load_transformer(folder)
    assert dict(found.named_parameters()).keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.named_parameters())
    save_bert(found, folder)
    saved = json.loads((folder / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == (family, [architecture])


# ------------------------------------------------------------------------------- sizes, before they
# are built


@pytest.mark.parametrize(
    ("source", "key", "value", "message"),
    [
        ("tiny-distiluse", "n_layers", 10**9, "n_layers 1000000000"),
        ("tiny", "hidden_size", 2**31 - 4, r"config\.json"),
        ("tiny", "vocab_size", 2**31 - 1, r"word_embeddings\.weight"),
        ("tiny-distiluse", "hidden_dim", 2**31 - 1, r"ffn\.lin1\.weight"),
    ],
)
def test_sizes_that_are_not_those_of_the_file_take_no_memory(
    source, key, value, message, tiny, tmp_path
):
    folder = shutil.copytree(tiny if source == "tiny" else REFERENCE / source, tmp_path / "model")
    alter(folder, **{key: value})
    with pytest.raises(InputError, match=message) as error:
        load_transformer(folder)
    assert str(folder) in str(error.value)


# ------------------------------------------------------------------------------------------ odd
# tensors


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3).cumsum(1).T,
        torch.ones(1).expand(3, 4),
        torch.arange(9.0)[::2],
        torch.tensor(5.0),
    ],
)
def test_tensors_that_are_not_contiguous_are_written_by_value(tmp_path, tensor):
    write_safetensors({"a": tensor, "b": tensor}, tmp_path / "x.safetensors")
    assert all(
        torch.equal(found, tensor) for found in load_file(tmp_path / "x.safetensors").values()
    )


# -------------------------------------------------------------------------- pre-trained by other
# libraries


SIZES = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 20, "max_position_embeddings": 11}
DISTILBERT = {
    "vocab_size": 31,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 20,
    "max_position_embeddings": 11,
}


@pytest.mark.reference
@pytest.mark.parametrize(
    ("family", "task", "sizes"),
    [
        ("Bert", "PreTraining", SIZES),
        ("Bert", "MaskedLM", SIZES),
        ("Roberta", "MaskedLM", SIZES | {"type_vocab_size": 1, "pad_token_id": 1}),
        ("DistilBert", "MaskedLM", DISTILBERT),
    ],
)
def test_checkpoints_of_masked_language_models(family, task, sizes, tmp_path):
    """The head for words is skipped by name; what is left are the encoder's hidden states."""
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}For{task}")(
        getattr(transformers, f"{family}Config")(**sizes)
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(5, 31, (3, 7))
    with torch.no_grad():
        expected = theirs.base_model(ids).last_hidden_state
        assert_parity(
            f"{family}For{task}", load_transformer(tmp_path)(ids), expected, MINILM_HIDDEN
        )


def test_floats_beside_a_quantization_config_are_taken_as_they_are(folder, tiny):
    alter(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert (
        SentenceEncoder.load(folder).encode(["a cat"])
        == SentenceEncoder.load(tiny).encode(["a cat"])
    ).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantized_weights_are_refused_with_the_remedy(folder, dtype):
    alter(folder, quantization_config={"bits": 8})
    name = "encoder.layer.0.attention.self.query.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(InputError, match=r"config\.json: quantization_config .* dequantize"):
        SentenceEncoder.load(folder)
