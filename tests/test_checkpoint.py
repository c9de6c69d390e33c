"""A folder on disk <-> the modules: strict both ways, nothing skipped in silence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.bert import Bert, BertConfig
from minisbert.checkpoint import (
    SentenceConfig,
    load_bert,
    read_config,
    read_sentence_config,
    save_bert,
    write_sentence_config,
)
from minisbert.console import InputError
from minisbert.dialects import BERT


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(tiny, tmp_path / "model")


def edit_json(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")


def test_save_and_load_are_inverse_bit_for_bit(folder, tmp_path):
    bert = load_bert(folder)
    (tmp_path / "again").mkdir()
    save_bert(bert, tmp_path / "again")
    again = load_bert(tmp_path / "again")
    assert again.config == bert.config
    assert all(torch.equal(a, b) for a, b in zip(bert.parameters(), again.parameters(), strict=True))
    stored, saved = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert stored.keys() == saved.keys()


def test_a_loaded_model_is_in_eval_mode_float32_and_trainable(folder):
    edit_tensors(folder, lambda tensors: {name: value.half() for name, value in tensors.items()})
    bert = load_bert(folder)
    assert not bert.training
    assert all(parameter.dtype == torch.float32 and parameter.requires_grad for parameter in bert.parameters())


def test_every_parameter_has_one_name_in_the_table():
    config = BertConfig(7, 6, 3, 2, 5, 4)
    for pooler in (True, False):
        names = BERT.names(3, pooler)
        assert set(names) == {name for name, _ in Bert(config, pooler).named_parameters()}
        assert len(set(names.values())) == len(names)


def old_style(tensors):
    """As BERT was published: prefix, gamma and beta, pre-training heads, position ids."""
    renamed = {}
    for name, value in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        renamed[f"bert.{name}"] = value
    renamed["bert.embeddings.position_ids"] = torch.arange(32)[None]
    for name in BERT.skipped - {"embeddings.position_ids"}:
        renamed[name] = torch.ones(3)
    return renamed


def test_old_names_and_pretraining_heads_are_understood(tiny, folder):
    edit_tensors(folder, old_style)
    ours, theirs = load_bert(folder), load_bert(tiny)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_checkpoint_without_pooler_has_none(folder):
    edit_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if not k.startswith("pooler")})
    assert load_bert(folder).pooler is None


def test_all_faults_are_named_in_one_message(folder):
    def spoil(tensors):
        del tensors["embeddings.LayerNorm.bias"]
        del tensors["encoder.layer.1.output.dense.weight"]
        tensors["encoder.layer.2.output.dense.bias"] = torch.zeros(24)
        tensors["encoder.layer.0.attention.self.key.weight"] = torch.zeros(24, 23)
        tensors["pooler.dense.bias"] = torch.zeros(24, dtype=torch.int32)

    edit_tensors(folder, spoil)
    with pytest.raises(InputError) as error:
        load_bert(folder)
    message = str(error.value)
    for part in (
        "model.safetensors does not fit",
        "missing embeddings.LayerNorm.bias (24,)",
        "missing encoder.layer.1.output.dense.weight (24, 40)",
        "unexpected encoder.layer.2.output.dense.bias (24,)",
        "misshapen encoder.layer.0.attention.self.key.weight: (24, 23), config.json asks for (24, 24)",
        "pooler.dense.bias holds torch.int32",
    ):
        assert part in message


def test_half_a_pooler_is_a_fault(folder):
    edit_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "pooler.dense.bias"})
    with pytest.raises(InputError, match=r"missing pooler\.dense\.bias"):
        load_bert(folder)


def test_a_tensor_under_two_names_is_a_fault(folder):
    def twice(tensors):
        tensors["bert.pooler.dense.bias"] = tensors["pooler.dense.bias"].clone()

    edit_tensors(folder, twice)
    with pytest.raises(InputError, match=r"holds pooler.dense.bias twice"):
        load_bert(folder)


@pytest.mark.parametrize("keep", [0, 5, 2000, 50_000])
def test_a_file_cut_short_is_told(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="cut short or is not a safetensors file"):
        load_bert(folder)


def test_missing_weights_say_what_stands_there_instead(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors is missing$"):
        load_bert(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="several shards"):
        load_bert(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="pickle"):
        load_bert(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "t5"}, "model_type 't5' is not supported"),
        ({"model_type": ...}, "model_type None"),
        ({"hidden_act": "silu"}, "hidden_act 'silu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder True"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"hidden_size": ..., "vocab_size": ...}, "does not say vocab_size, hidden_size"),
        ({"num_attention_heads": 5}, "multiple of num_attention_heads"),
    ],
)
def test_a_config_that_cannot_be_computed_is_refused(folder, changes, message):
    edit_json(folder / "config.json", **changes)
    with pytest.raises(InputError, match=message) as error:
        read_config(folder)
    assert "config.json" in str(error.value)


def test_missing_folder_and_missing_or_broken_config(folder):
    with pytest.raises(InputError, match="not a folder"):
        read_config(folder / "nowhere")
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json, line 1: not valid JSON"):
        read_config(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config.json does not exist"):
        read_config(folder)


# ------------------------------------------------------------------- what stands behind the encoder


def test_the_new_layout_is_read(tiny):
    assert read_sentence_config(tiny) == (tiny, SentenceConfig("mean", normalize=True))


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_written_is_read_back(tmp_path, mode, normalize):
    write_sentence_config(SentenceConfig(mode, normalize), 24, 16, tmp_path)
    assert read_sentence_config(tmp_path) == (tmp_path, SentenceConfig(mode, normalize))


def test_old_flags_mean_the_same(folder):
    flags = {"word_embedding_dimension": 24, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert read_sentence_config(folder)[1].pooling == "max"


def test_an_encoder_in_a_folder_of_its_own(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert read_sentence_config(folder)[0] == folder / "0_Transformer"


def test_a_plain_encoder_says_nothing_about_pooling(folder):
    (folder / "modules.json").unlink()
    assert read_sentence_config(folder) == (folder, SentenceConfig(None, normalize=False))


@pytest.mark.parametrize("stated", [["mean", "max"], "weightedmean", []])
def test_poolings_that_are_not_built_are_refused(folder, stated):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": stated}))
    with pytest.raises(InputError, match="is not supported"):
        read_sentence_config(folder)


def test_anything_else_that_changes_the_vectors_is_refused(folder):
    edit_json(folder / "config_sentence_transformers.json", default_prompt_name="query")
    with pytest.raises(InputError, match="default_prompt_name"):
        read_sentence_config(folder)
    edit_json(folder / "config_sentence_transformers.json", default_prompt_name=None)
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(InputError, match="do_lower_case"):
        read_sentence_config(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="LSTM"):
        read_sentence_config(folder)


def test_a_pooling_config_that_is_missing(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"config.json does not exist"):
        read_sentence_config(folder)


@pytest.mark.parametrize("content", ["{}", '[{"idx": 0}]', "["])
def test_a_broken_module_list(folder, content):
    (folder / "modules.json").write_text(content)
    with pytest.raises(InputError, match=r"modules.json"):
        read_sentence_config(folder)
