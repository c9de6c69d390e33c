"""Qwen3's folders: in both directions, their tokens, prompts, limits and sizes, training, bad input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.weights import BertConfig
from minisbert.models.modern.decoder import Decoder
from minisbert.models.modern.qwen3 import DecoderConfig
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.models.tuning import count_parameters
from minisbert.training.options import parse
from minisbert.training.registry import make_objective
from tests import toys
from tests.parity import PIECE, REFERENCE, assert_parity
from tests.reference.states import in_double
from tests.reference.texts import SENTENCES, TEXTS

FOLDER = REFERENCE / "modern" / "tiny-qwen3"
CONFIG = "config.json"


def alter(folder: Path, name: str, **changes) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "model")


def as_published(folder: Path) -> Path:
    """The settings under the names that files of 2025 have for them, names of tensors included."""
    alter(folder, CONFIG, architectures=["Qwen3ForCausalLM"], rope_parameters=..., layer_types=..., rope_theta=1000)
    alter(folder, CONFIG, rope_scaling=None, torch_dtype="bfloat16", dtype=..., eos_token_id=302, bos_token_id=302)
    alter(folder, "tokenizer_config.json", add_bos_token=False, split_special_tokens=False)
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def reference(folder: Path, texts: list[str], **options) -> torch.Tensor:
    from sentence_transformers import SentenceTransformer
    from transformers.models.qwen3 import modeling_qwen3

    with in_double(modeling_qwen3):
        model = SentenceTransformer(str(folder), device="cpu").double()
        return model.encode(texts, convert_to_tensor=True, **options)


@pytest.mark.reference
@pytest.mark.parametrize("make", [lambda folder: folder, as_published], ids=["of today", "of 2025"])
def test_folders_open_here_and_there_also_after_saving(folder, tmp_path, make):
    texts, encoder = [*SENTENCES, *TEXTS], SentenceEncoder.load(make(folder))
    encoder.save(tmp_path / "saved")
    ours = encoder.double().encode(texts, convert="tensor")
    assert_parity("Qwen3 folder", ours, reference(folder, texts), PIECE)
    assert_parity(
        "Qwen3 saved", SentenceEncoder.load(tmp_path / "saved").double().encode(texts, convert="tensor"), ours, PIECE
    )
    assert_parity("Qwen3 saved, there", reference(tmp_path / "saved", texts), ours, PIECE)
    queries = encoder.encode(texts, prompt_name="query", convert="tensor")
    assert_parity("Qwen3 queries", queries, reference(tmp_path / "saved", texts, prompt_name="query"), PIECE)


@pytest.mark.reference
def test_ids_of_texts_and_pairs(folder):
    from transformers import AutoTokenizer

    alter(folder, "tokenizer_config.json", model_max_length=23, add_bos_token=False, add_eos_token=False)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    texts = [
        *SENTENCES,
        *TEXTS,
        "<|im_end|> and <|endoftext|>",
        "e\u0301 is é",
        "it'S\r\n\r\n  12 ",
        "\ud7ff\U0001f468\u200d",
    ]
    assert ours.encode(texts).ids == theirs(texts, truncation=True)["input_ids"]
    pairs = theirs(texts, texts[::-1], truncation=True)["input_ids"]
    assert ours.encode_pairs(texts, texts[::-1]).ids == pairs


def test_shards_and_weights_in_bfloat16(folder):
    expected = SentenceEncoder.load(folder).encode(SENTENCES)
    tensors, places = load_file(folder / "model.safetensors"), {}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    (folder / "model.safetensors").unlink()
    for i, names in enumerate((sorted(tensors)[:9], sorted(tensors)[9:]), start=1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file)
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    encoder = SentenceEncoder.load(folder)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert (encoder.encode(SENTENCES) == expected).all()


def test_limits(folder):
    assert SentenceEncoder.load(folder).tokenizer.limit == 130  # of the tokenizer
    alter(folder, "sentence_bert_config.json", max_seq_length=7)
    encoder = SentenceEncoder.load(folder)
    assert [len(ids) for ids in encoder.tokenizer.encode(SENTENCES).ids] == [7, 6, 7, 1, 7]
    alter(folder, "sentence_bert_config.json", max_seq_length=...)
    alter(folder, "tokenizer_config.json", model_max_length=131072)
    assert SentenceEncoder.load(folder).tokenizer.limit == 160  # max_position_embeddings
    with pytest.raises(InputError, match=r"a maximum length of 161 is above the position table of .* which has 160"):
        SentenceEncoder.load(folder, limit=161)


def test_the_size_of_the_smallest_published_model():
    """Its numbers in docs/models.md; built without memory."""
    sizes = {"vocab_size": 151669, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    with torch.device("meta"):
        model = Decoder(DecoderConfig(**sizes, num_attention_heads=16, num_key_value_heads=8))
    assert count_parameters(model) == (595776512, 595776512)
    assert model.embeddings.word.weight.numel() == 155309056
    book = Bert(BertConfig(30522, 384, 6, 12, 1536, 512))
    matrices = [module.weight.numel() for module in book.layers.modules() if isinstance(module, torch.nn.Linear)]
    ours = [module.weight.numel() for module in model.layers.modules() if isinstance(module, torch.nn.Linear)]
    assert (sum(ours), sum(matrices)) == (440401920, 10616832)


def test_a_training_step_lowers_the_loss(tmp_path):
    (tmp_path / "rows.tsv").write_text("".join(toys.scored(12, seed=0)))
    data = [flag for name in ("--data", "--dev", "--test") for flag in (name, str(tmp_path / "rows.tsv"))]
    objective = make_objective(parse(data), SentenceEncoder.load(FOLDER).eval())
    parameters, losses = [*objective.model.parameters()], []
    for _ in range(3):
        losses.append(objective.loss(objective.network, list(range(12))))
        gradients = torch.autograd.grad(losses[-1], parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.02 * gradient
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "reads the first token of a pair, which in a decoder has seen nothing else"),
        (["--pooler-head"], "--pooler-head is for bert, .*, not for qwen3"),
    ],
)
def test_a_head_on_the_first_token_of_a_decoder_is_refused(tmp_path, flags, message):
    (tmp_path / "rows.tsv").write_text("".join(toys.scored(12, seed=0)))
    data = [flag for name in ("--data", "--dev", "--test") for flag in (name, str(tmp_path / "rows.tsv"))]
    with pytest.raises(InputError, match=message):
        make_objective(parse([*data, "--objective", "cross-encoder", *flags]), SentenceEncoder.load(FOLDER))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported, only 'default' is"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, "rope_type 'linear' is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported, only False is"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types 'sliding_attention' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ({"is_causal": False}, "is_causal False is not supported, only True is"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, not 'gelu'"),
        ({"head_dim": 9}, "head_dim 9 is odd"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 does not divide num_attention_heads"),
        ({"num_key_value_heads": ...}, "no key 'num_key_value_heads'"),
        ({"attention_dropout": 1.5}, "attention_dropout must be at least 0 and below 1, not 1.5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0 and below 1"),
        ({"rope_theta": -1, "rope_parameters": None}, "rope_theta must be above 0"),
        ({"rope_parameters": [1]}, r"rope_parameters must be an object, not \[1\]"),
        (
            {"model_type": "NewModel", "auto_map": {"AutoModel": "modeling.NewModel"}},
            r"model_type 'NewModel' needs code from its author \(auto_map\), which is never run here",
        ),
    ],
)
def test_settings_that_are_not_computed(folder, changes, message):
    with pytest.raises(InputError, match=rf"config\.json: .*{message}") as error:
        SentenceEncoder.load(alter(folder, CONFIG, **changes))
    assert "\n" not in str(error.value)
