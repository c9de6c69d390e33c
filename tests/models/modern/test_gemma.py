"""EmbeddingGemma: the reference's numbers, windows, packed rows, folders in both directions, bad input."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.core import InputError
from minisbert.models.modern.gemma import GEMMA, Gemma, GemmaConfig, gelu_gate
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.training.distillation import keep_layers
from tests.models.modern.test_qwen3 import alter
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity
from tests.reference.states import in_double
from tests.reference.texts import SENTENCES, TEXTS

FOLDER = REFERENCE / "modern" / "tiny-gemma"
CONFIG = "config.json"
LOCAL, GLOBAL = "sliding_attention", "full_attention"
# batch 4, tokens 19, heads 4 and 2, head width 6, width 16, feed-forward 23, layers 3, vocabulary 131
SIZES = {
    "vocab_size": 131,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 23,
    "max_position_embeddings": 40,
    "query_pre_attn_scalar": 9,
    "sliding_window": 7,
    "rms_norm_eps": 1e-2,
}
LENGTHS = torch.tensor([19, 2, 11, 7])


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def random_model(layers: str = "LGL") -> Gemma:
    kinds = tuple({"L": LOCAL, "G": GLOBAL}[letter] for letter in layers)
    bases = {"rope_theta": 900.0, "rope_local_base_freq": 50.0}
    return randomise(Gemma(GemmaConfig(**SIZES | bases | {"num_hidden_layers": len(kinds), "layer_types": kinds})))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, 131, (4, 19), generator=generator), torch.arange(19) < LENGTHS[:, None]


# ----------------------------------------------------------------------------------------- the numbers


def test_worked_number_of_the_docstring():
    assert gelu_gate(torch.tensor(1.0), torch.tensor(2.0)).item() == pytest.approx(1.6824, abs=5e-5)


@pytest.mark.reference
@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": [LOCAL, GLOBAL, LOCAL], "rope_parameters": {LOCAL: {"rope_theta": 50.0}, GLOBAL: None}},
        {"num_hidden_layers": 7, "attention_bias": True, "sliding_window": 6, "rope_local_base_freq": 70.0},
    ],
    ids=["kinds stated", "every sixth sees all"],
)
def test_random_models_equal_transformers(changes, side):
    """Every layer and every gradient, with pads on either side."""
    from transformers import Gemma3TextConfig, Gemma3TextModel
    from transformers.models.gemma3 import modeling_gemma3

    ids, mask = batch()
    mask = {"left": mask.flip(1), "right": mask, "none": torch.ones_like(mask)}[side]
    stated = SIZES | changes | {"use_bidirectional_attention": True}
    with in_double(modeling_gemma3):
        theirs = randomise(Gemma3TextModel(Gemma3TextConfig(**stated, attn_implementation="eager")))
        out = theirs(ids, mask.long(), output_hidden_states=True)
    ours = GEMMA.encoder(GEMMA.read(stated), False).double().eval()
    names, known = GEMMA.names(len(ours.layers), False), theirs.state_dict()
    ours.load_state_dict({name: known[names[name]] for name, _ in ours.named_parameters()})
    states = ours.hidden_states(ids, None if side == "none" else mask)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"Gemma state {i}", state[mask], expected[mask], PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    for hidden in (states[-1], out.last_hidden_state):
        (hidden * pull).sum().backward()
    for name, parameter in ours.named_parameters():
        expected = theirs.get_parameter(names[name]).grad
        assert_parity(f"Gemma gradient of {name}", parameter.grad, expected, GRADIENT)
    again = GEMMA.read(theirs.config.to_dict())
    assert (again.layer_types, again.rope_local_base_freq) == (
        ours.config.layer_types,
        ours.config.rope_local_base_freq,
    )


# ---------------------------------------------------------------------- what a token sees, and packed rows


@pytest.mark.parametrize(("layers", "reach"), [("L", 3), ("LL", 6), ("G", 18)])
def test_a_token_sees_both_sides_as_far_as_its_windows_reach(layers, reach):
    model, (ids, _) = random_model(layers), batch()
    changed = ids.clone()
    changed[:, 9] = 5 + (ids[:, 9] - 4) % 126
    differ = (model(ids) != model(changed)).any(dim=-1)
    assert torch.equal(differ, ((torch.arange(19) - 9).abs() <= reach).expand(4, -1))


# ---------------------------------------------------------------------------- folders, here and elsewhere


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "model")


def reference(folder: Path, texts: list[str], **options) -> torch.Tensor:
    from sentence_transformers import SentenceTransformer
    from transformers.models.gemma3 import modeling_gemma3

    with in_double(modeling_gemma3):
        # by default it rounds the dense layers to the dtype of the encoder's file
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"}).double()
        return model.encode(texts, convert_to_tensor=True, **options)


def as_published(folder: Path) -> Path:
    """Both bases under the keys of 2025, one key more, weights in bfloat16."""
    alter(folder, CONFIG, rope_parameters=..., rope_theta=900.0, rope_local_base_freq=50, rope_scaling=None)
    alter(folder, CONFIG, _sliding_window_pattern=6, torch_dtype="bfloat16", dtype=...)
    alter(folder, "tokenizer_config.json", add_bos_token=True, add_eos_token=True, spaces_between_special_tokens=False)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.reference
@pytest.mark.parametrize("make", [lambda folder: folder, as_published], ids=["of today", "of 2025"])
def test_folders_open_here_and_there_also_after_saving(folder, tmp_path, make):
    texts, encoder = [*SENTENCES, *TEXTS], SentenceEncoder.load(make(folder))
    assert [layer.activation for layer in encoder.dense] == ["identity", "identity"]
    encoder.save(tmp_path / "saved")
    ours = encoder.double().encode(texts, convert="tensor")
    assert_parity("Gemma folder", ours, reference(folder, texts), PIECE)
    again = SentenceEncoder.load(tmp_path / "saved").double()
    assert_parity("Gemma saved", again.encode(texts, convert="tensor"), ours, PIECE)
    assert_parity("Gemma saved, there", reference(tmp_path / "saved", texts), ours, PIECE)
    queries = encoder.encode(texts, prompt_name="query", convert="tensor")
    assert_parity("Gemma queries", queries, reference(tmp_path / "saved", texts, prompt_name="query"), PIECE)


@pytest.mark.reference
def test_ids_of_texts_and_pairs(folder):
    from transformers import AutoTokenizer

    alter(folder, "tokenizer_config.json", model_max_length=23)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, *TEXTS, "<bos> and <eos> ", "  two  spaces ", "▁"]
    assert ours.encode(texts).ids == theirs(texts, truncation=True)["input_ids"]
    pairs = theirs(texts, texts[::-1], truncation=True)["input_ids"]
    assert ours.encode_pairs(texts, texts[::-1]).ids == pairs


def test_a_student_keeps_the_kinds_of_its_layers(tmp_path):
    encoder = SentenceEncoder.load(FOLDER)
    encoder.bert = keep_layers(encoder.bert, [1, 2])
    encoder.save(tmp_path / "student")
    again = SentenceEncoder.load(tmp_path / "student")
    assert again.bert.config.layer_types == (GLOBAL, LOCAL)
    assert (again.encode(SENTENCES) == encoder.encode(SENTENCES)).all()


def test_every_sixth_layer_sees_all_where_nothing_is_stated():
    raw = SIZES | {"use_bidirectional_attention": True, "num_hidden_layers": 13}
    kinds = GEMMA.read(raw).layer_types
    assert [i for i, kind in enumerate(kinds) if kind == GLOBAL] == [5, 11]
    kinds = GEMMA.read(raw | {"sliding_window_pattern": 4}).layer_types
    assert [i for i, kind in enumerate(kinds) if kind == GLOBAL] == [3, 7, 11]
    saved = GEMMA.write({"hidden_act": "gelu_pytorch_tanh", "type_vocab_size": 0})
    assert saved == {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": True}


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": False}, "use_bidirectional_attention must be true"),
        ({"use_bidirectional_attention": ...}, "use_bidirectional_attention must be true"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported, only None is"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_type 'linear' is not supported"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, "rope_type 'yarn' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
        ({"hidden_activation": "gelu"}, "hidden_activation must be gelu_pytorch_tanh, not 'gelu'"),
        ({"layer_types": [GLOBAL]}, "layer_types must be full_attention or sliding_attention for each layer"),
        ({"sliding_window": 0}, "sliding_window must be an integer from 1, not 0"),
        ({"num_hidden_layers": "3", "layer_types": None}, "num_hidden_layers must be an integer from 1, not '3'"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be above 0"),
    ],
)
def test_settings_that_are_not_computed(folder, changes, message):
    with pytest.raises(InputError, match=rf"config\.json: .*{message}") as error:
        SentenceEncoder.load(alter(folder, CONFIG, **changes))
    assert "\n" not in str(error.value)


def test_a_folder_without_one_of_its_dense_layers(folder):
    """Its vectors would be of a tenth of the width, or nothing like those of the model."""
    (folder / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"3_Dense/model\.safetensors is missing"):
        SentenceEncoder.load(folder)
