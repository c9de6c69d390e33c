"""What holds for each of the newer encoders: the reference's numbers, batches, folders both ways,
bad input.
"""

import importlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minisbert.backends.graphs import VectorGraph
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError
from minisbert.diagnosis.reference_states import in_double
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.architectures.tiny import (
    GLOBAL,
    LENGTHS,
    LOCAL,
    alter,
    batch,
    change_tensors,
    family_of,
    folder_of,
    random_model,
    randomise,
    raw_config,
)
from tests.parity import GRADIENT, PIECE, assert_parity, golden
from tests.parity.encoder import other_family
from tests.reference.texts import SENTENCES, TEXTS

ALL = [*SENTENCES, *TEXTS]
ROTARY = ["modernbert", "qwen3", "gemma"]
NAMES = ["mpnet", *ROTARY]
MODELING = {"gemma": "gemma3"}  # its module, if it has another name


def modeling(name: str):
    kind = MODELING.get(name, name)
    return importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")


# ------------------------------------------------------------------------------------------ the
# numbers


@pytest.mark.parametrize("name", NAMES)
def test_golden_values(name, formulas):
    if name == "mpnet":
        results = list(other_family("architectures/tiny-mpnet"))
        assert len([result for result in results if "gradient" in result.name]) == 37, (
            "all but the pooler"
        )
        assert not [str(result) for result in results if not result.largest <= result.tolerance]
        return
    expected, encoder = (
        golden(f"architectures/tiny-{name}"),
        SentenceEncoder.load(folder_of(name)).double(),
    )
    for kind, prompt in (("vectors", None), ("queries", "query")):
        ours = encoder.encode(SENTENCES, prompt_name=prompt, convert_to_tensor=True)
        assert_parity(f"{name} {kind}", ours, expected[kind], PIECE)
    assert (expected["vectors"] - expected["queries"]).abs().max() > 0.1
    assert name != "modernbert" or expected["mask"].sum(dim=1).max() > 4 * 2 + 1, (
        "a text must be longer than a window"
    )


BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
VARIANTS = {
    "MPNet": ("mpnet", {}),
    "MPNet of one head": (
        "mpnet",
        {"num_attention_heads": 1, "hidden_size": 7, "num_hidden_layers": 1},
    ),
    "ModernBERT": ("modernbert", {}),
    "ModernBERT with biases and silu": ("modernbert", BIASES | {"hidden_activation": "silu"}),
    "ModernBERT with an odd window": (
        "modernbert",
        {"local_attention": 5, "layer_types": [LOCAL, GLOBAL] * 2},
    ),
    "ModernBERT of transformers 4": (
        "modernbert",
        {
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 300.0,
            "local_rope_theta": 9.0,
            "norm_eps": 0.1,
        }
        | {"layer_types": ..., "rope_parameters": ...},
    ),
    "Qwen3": ("qwen3", {}),
    "Qwen3 with biases": (
        "qwen3",
        {"attention_bias": True, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    "Qwen3 with one head of keys": (
        "qwen3",
        {"num_key_value_heads": 1, "head_dim": 4, "layer_types": ...},
    ),
    "Gemma": ("gemma", {}),
    "Gemma with every sixth layer global": (
        "gemma",
        {"num_hidden_layers": 7, "attention_bias": True, "sliding_window": 6, "layer_types": ...},
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize(
    ("variant", "side"),
    [
        (key, side)
        for key in VARIANTS
        for side in ("left", "right", "none")
        if "MPNet" not in key or side != "left"
    ],
)
def test_random_models_equal_transformers(variant, side):
    """Every layer, the pooler and every gradient; MPNet at distances up to 139, the others longer
    than their window.
    """
    import transformers

    name, changes = VARIANTS[variant]
    ids, mask = batch(torch.tensor([140, 2, 95]) if name == "mpnet" else LENGTHS)
    mask = {"left": mask.flip(1), "right": mask, "none": torch.ones_like(mask)}[side]
    ids = (
        ids.masked_fill(~mask, 1) if name == "mpnet" else ids
    )  # from which transformers makes the positions
    kind = type(transformers.AutoConfig.from_pretrained(folder_of(name)))
    raw = raw_config(name, **changes)
    config = kind(**raw, attn_implementation="eager")
    with in_double(modeling(name)):
        theirs = randomise(transformers.AutoModel.from_config(config), name == "gemma")
        out = theirs(ids, mask.long(), output_hidden_states=True)
    family = family_of(name)
    ours = family.encoder(family.read(config.to_dict()), name == "mpnet").double().eval()
    if name in (
        "mpnet",
        "modernbert",
    ):  # older Qwen3s do not state layer_types, and Gemma's windows are even numbers
        assert ours.config == family.read(raw), "newer and older files say the same"
    names, known = family.names(len(ours.layers), name == "mpnet"), theirs.state_dict()
    ours.load_state_dict({each: known[names[each]] for each, _ in ours.named_parameters()})
    assert len([*ours.parameters()]) == len([*theirs.parameters()])
    states = ours.hidden_states(ids, None if side == "none" else mask)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"{variant} state {i}", state[mask], expected[mask], PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    losses = [(hidden * pull).sum() for hidden in (states[-1], out.last_hidden_state)]
    if name == "mpnet":
        pooled = ours.pool(states[-1])
        assert_parity(f"{variant} pooler", pooled, out.pooler_output, PIECE)
        losses = [losses[0] + pooled.sum(), losses[1] + out.pooler_output.sum()]
    for loss in losses:
        loss.backward()
    for each, parameter in ours.named_parameters():
        expected = theirs.get_parameter(names[each]).grad
        if (
            each in ("embeddings.word.weight", "embeddings.position.weight")
            and config.pad_token_id is not None
        ):
            # transformers gives no gradient to the padding's own row
            row = torch.tensor([config.pad_token_id])
            expected = expected.index_copy(0, row, parameter.grad[row])
        expected = torch.zeros_like(parameter) if expected is None else expected
        assert_parity(f"{variant} gradient of {each}", parameter.grad, expected, GRADIENT)


# ------------------------------------------------------------------------------ batches and packed
# rows


@pytest.mark.parametrize(
    ("name", "side"), [(name, "right") for name in NAMES] + [(name, "left") for name in ROTARY]
)
def test_a_text_alone_and_in_a_batch(name, side):
    """Pads beyond the window of every real token too: their own states must be numbers, or they
    spoil the others.
    """
    model, (ids, mask) = random_model(name), batch()
    mask = mask.flip(1) if side == "left" else mask
    together = model(ids, mask)
    for row, real, states in zip(ids, mask, together, strict=True):
        assert_parity("alone", states[real], model(row[real][None])[0], PIECE)
    assert together.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_share_a_row_do_not_see_each_other(name):
    model, (ids, mask) = random_model(name), batch()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    owner = torch.repeat_interleave(torch.arange(4), LENGTHS)[None]
    same = owner[:, None, :, None] == owner[:, None, None, :]
    packed = model(ids[mask][None], same, positions=positions)
    assert_parity("packed", packed[0], model(ids, mask)[mask], PIECE)
    assert torch.equal(packed, model(ids[mask][None], same.long(), positions=positions))


@pytest.mark.parametrize("name", ROTARY)
def test_only_distances_count(name):
    model, (ids, _) = random_model(name), batch()
    moved = model(ids, positions=torch.arange(100, 117)[None].expand(4, -1))
    assert_parity("moved", moved, model(ids), PIECE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_exported_graph_has_the_same_vectors(name):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [0, 1, 0, 1, 2, 3, 4]])
    owner = torch.tensor([[0, 0, 0, 0, 1, 1, -1], [2, 2, 3, 3, 3, 3, 3]])
    places = torch.tensor(
        [[0, 1, 2, 3, -1], [4, 5, -1, -1, -1], [7, 8, -1, -1, -1], [9, 10, 11, 12, 13]]
    )
    inputs = torch.randint(5, 131, owner.shape), positions, owner, places
    vectors, auto = VectorGraph(SentenceEncoder.load(folder_of(name))), torch.export.Dim.AUTO
    with torch.no_grad():
        exported = torch.export.export(
            vectors, inputs, dynamic_shapes=[{0: auto, 1: auto}] * 4
        ).module()
        assert_parity(f"exported {name}", exported(*inputs), vectors(*inputs), 1e-6)  # float32
        longer = [torch.cat([each, each], dim=0) for each in inputs[:3]]
        assert_parity("more rows", exported(*longer, places), vectors(*longer, places), 1e-6)


# ----------------------------------------------------------------------------------------------
# training


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_model_starts_as_the_book_does(name):
    family = family_of(name)
    raw = raw_config(name, initializer_range=0.3, attention_bias=True)
    torch.manual_seed(0)
    modules = [*family.encoder(family.read(raw), name == "mpnet").modules()]
    matrices = [each for each in modules if isinstance(each, torch.nn.Linear | torch.nn.Embedding)]
    large = [each.weight for each in matrices if each.weight.numel() > 90]
    assert len(large) > 6
    assert all(weight.std().item() == pytest.approx(0.3, rel=0.2) for weight in large)
    biases = [each.bias for each in matrices if getattr(each, "bias", None) is not None]
    assert biases
    assert not any(bias.any() for bias in biases)
    norms = [each.weight for each in modules if type(each).__name__.endswith("Norm")]
    assert all((weight == float(name != "gemma")).all() for weight in norms)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("mpnet", "attention_probs_dropout_prob"),
        *(
            ("modernbert", each)
            for each in ("embedding_dropout", "attention_dropout", "mlp_dropout")
        ),
        ("qwen3", "attention_dropout"),
        ("gemma", "attention_dropout"),
    ],
)
def test_dropout_is_only_in_training(name, setting):
    none = (
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if name == "mpnet" else {}
    )
    ids, mask = batch()
    plain, model = random_model(name, **none), random_model(name, **none | {setting: 0.5})
    assert torch.equal(plain.train()(ids, mask), plain.eval()(ids, mask))
    assert torch.equal(model(ids, mask), plain(ids, mask))
    assert not torch.equal(model.train()(ids, mask), plain(ids, mask))


# ---------------------------------------------------------------------------- folders, here and
# elsewhere


def qwen3_of_2025(folder: Path) -> None:
    """The settings under the names that files of 2025 have for them, names of tensors included."""
    alter(
        folder,
        architectures=["Qwen3ForCausalLM"],
        rope_parameters=...,
        layer_types=...,
        rope_theta=1000,
    )
    alter(
        folder,
        rope_scaling=None,
        torch_dtype="bfloat16",
        dtype=...,
        eos_token_id=302,
        bos_token_id=302,
    )
    alter(folder, "tokenizer_config.json", add_bos_token=False, split_special_tokens=False)
    head = {"lm_head.weight": load_file(folder / "model.safetensors")["embed_tokens.weight"]}
    change_tensors(
        folder, lambda tensors: {f"model.{name}": x for name, x in tensors.items()} | head
    )


def gemma_of_2025(folder: Path) -> None:
    """Both bases under the keys of 2025, one key more, weights in bfloat16."""
    alter(folder, rope_parameters=..., rope_theta=900.0, rope_local_base_freq=50, rope_scaling=None)
    alter(folder, _sliding_window_pattern=6, torch_dtype="bfloat16", dtype=...)
    alter(
        folder,
        "tokenizer_config.json",
        add_bos_token=True,
        add_eos_token=True,
        spaces_between_special_tokens=False,
    )
    change_tensors(
        folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()}
    )


# what config.json of published ModernBERTs states beyond sizes; granite's as quoted by people who
# port it
OLD = {
    "rope_parameters": ...,
    "layer_types": ...,
    "global_attn_every_n_layers": 3,
    "classifier_pooling": "mean",
}
OLD |= {"local_rope_theta": 10000.0, "layer_norm_eps": 1e-5, "position_embedding_type": "absolute"}
OLD |= {"sparse_prediction": False, "reference_compile": False, "deterministic_flash_attn": False}


def modernbert(pooling: str, **changes):
    def change(folder: Path) -> None:
        alter(folder, **OLD | changes)
        alter(folder, "1_Pooling/config.json", pooling_mode=pooling)

    return change


PUBLISHED = {
    "MPNet": ("mpnet", lambda folder: None),
    "nomic-ai/modernbert-embed-base": (
        "modernbert",
        modernbert("mean", global_rope_theta=160000.0),
    ),
    "Alibaba-NLP/gte-modernbert-base": (
        "modernbert",
        modernbert("cls", global_rope_theta=160000.0, gradient_checkpointing=False),
    ),
    "ibm-granite/granite-embedding-english-r2": (
        "modernbert",
        modernbert("cls", global_rope_theta=80000.0),
    ),
    "a multilingual granite": (
        "modernbert",
        modernbert("cls", global_rope_theta=150000.0, hidden_activation="silu"),
    ),
    "Qwen3 of today": ("qwen3", lambda folder: None),
    "Qwen3 of 2025": ("qwen3", qwen3_of_2025),
    "EmbeddingGemma of today": ("gemma", lambda folder: None),
    "EmbeddingGemma of 2025": ("gemma", gemma_of_2025),
}


@pytest.mark.reference
@pytest.mark.parametrize("published", PUBLISHED)
def test_folders_open_here_and_there_also_after_saving(copy, tmp_path, published):
    from sentence_transformers import SentenceTransformer

    name, change = PUBLISHED[published]
    change(folder := copy(name))
    encoder = SentenceEncoder.load(folder)
    encoder.save(tmp_path / "saved")
    # by default it rounds the dense layers of Gemma to the dtype of the encoder's file
    options = {"device": "cpu", "model_kwargs": {"dtype": "float32"}}
    for path in (folder, tmp_path / "saved"):
        ours = SentenceEncoder.load(path).double()
        with in_double(modeling(name)):
            theirs = SentenceTransformer(str(path), **options).double()
            for prompt in [None, "query"] if encoder.settings.prompts.get("query") else [None]:
                expected = theirs.encode(ALL, prompt_name=prompt, convert_to_tensor=True)
                found = ours.encode(ALL, prompt_name=prompt, convert_to_tensor=True)
                assert_parity(f"{published}, {path.name}, prompt {prompt}", found, expected, PIECE)
    vectors = [SentenceEncoder.load(path).encode(ALL) for path in (folder, tmp_path / "saved")]
    assert (vectors[0] == vectors[1]).all()


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("modernbert", {}),
        ("qwen3", {"add_bos_token": False, "add_eos_token": False}),
        ("gemma", {}),
    ],
)
def test_ids_of_texts_and_pairs(copy, name, options):
    from transformers import AutoTokenizer

    folder = alter(copy(name), "tokenizer_config.json", model_max_length=23, **options)
    ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    texts = [
        *ALL,
        "<|im_end|> and <|endoftext|>",
        "e\u0301 is é",
        "it'S\r\n\r\n  12 ",
        "\ud7ff\U0001f468\u200d",
    ]
    texts += ["<bos> and <eos> ", "  two  spaces \n\n and [MASK] ", "▁", "x" * 200]
    assert ours.encode(texts).ids == theirs(texts, truncation=True)["input_ids"]
    pairs = theirs(texts, texts[::-1], truncation=True)["input_ids"]
    assert ours.encode_pairs(texts, texts[::-1]).ids == pairs


LM_HEAD = (
    "dense.weight",
    "dense.bias",
    "layer_norm.weight",
    "layer_norm.bias",
    "decoder.weight",
    "bias",
)


@pytest.mark.parametrize(
    ("name", "prefix", "head"),
    [
        (
            "mpnet",
            "mpnet.",
            ["mpnet.embeddings.position_ids", *(f"lm_head.{part}" for part in LM_HEAD)],
        ),
        ("modernbert", "model.", ["head.dense.weight", "head.norm.weight", "decoder.bias"]),
    ],
)
def test_a_masked_language_model_is_an_encoder_and_a_head_to_skip(copy, name, prefix, head):
    expected = SentenceEncoder.load(folder := copy(name)).encode(SENTENCES)
    more = {key: torch.ones(2) for key in head}
    change_tensors(
        folder, lambda tensors: {f"{prefix}{key}": x for key, x in tensors.items()} | more
    )
    assert (SentenceEncoder.load(folder).encode(SENTENCES) == expected).all()


def test_layers_of_any_order_are_saved():
    for name in ("modernbert", "gemma"):
        family = family_of(name)
        for kinds in ([LOCAL, GLOBAL] * 2, [GLOBAL] * 4, [LOCAL] * 4):
            config = family.read(raw_config(name, num_hidden_layers=4, layer_types=kinds))
            assert config.layer_types == tuple(kinds)
            assert family.read(family.write(vars(config))) == config


# ------------------------------------------------------------------------------------------- bad
# input


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id 0 is not supported, only 1 is"),
        ("mpnet", {"hidden_act": "relu"}, "hidden_act must be gelu, not 'relu'"),
        (
            "modernbert",
            {"rope_scaling": {"type": "yarn"}},
            "rope_type 'yarn' is not supported, only 'default' is",
        ),
        ("modernbert", {"rope_parameters": 5}, "rope_parameters must be a JSON dict"),
        (
            "modernbert",
            {"layer_types": ["chunked_attention"] * 4},
            "layer_types must be full_attention or sliding_",
        ),
        (
            "modernbert",
            {"layer_types": [GLOBAL]},
            "layer_types must be full_attention or sliding_attention for each",
        ),
        (
            "modernbert",
            {"layer_types": ..., "global_attn_every_n_layers": 0},
            "global_attn_every_n_layers",
        ),
        ("modernbert", {"local_attention": 0}, "local_attention must be an integer from 1, not 0"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation must be gelu or silu"),
        (
            "modernbert",
            {"num_attention_heads": 5},
            "hidden_size 24 does not give every head an even number of columns",
        ),
        (
            "qwen3",
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_type 'yarn' is not supported",
        ),
        (
            "qwen3",
            {"use_sliding_window": True},
            "use_sliding_window True is not supported, only False is",
        ),
        (
            "qwen3",
            {"layer_types": [GLOBAL, LOCAL, GLOBAL]},
            "layer_types must be full_attention for each layer",
        ),
        (
            "qwen3",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention True is not supported",
        ),
        ("qwen3", {"is_causal": False}, "is_causal False is not supported, only True is"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act must be silu, not 'gelu'"),
        ("qwen3", {"head_dim": 9}, "head_dim must be even"),
        (
            "qwen3",
            {"num_key_value_heads": 4},
            "num_key_value_heads must divide num_attention_heads",
        ),
        ("qwen3", {"num_key_value_heads": ...}, "no key 'num_key_value_heads'"),
        ("qwen3", {"rms_norm_eps": 0}, "rms_norm_eps must be above 0 and below 1"),
        ("qwen3", {"rope_theta": -1, "rope_parameters": None}, "rope_theta must be above 0"),
        (
            "qwen3",
            {"model_type": "NewModel", "auto_map": {"AutoModel": "modeling.NewModel"}},
            "auto_map",
        ),
        (
            "gemma",
            {"use_bidirectional_attention": False},
            "use_bidirectional_attention must be true",
        ),
        (
            "gemma",
            {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping 50.0 is not supported, only None is",
        ),
        (
            "gemma",
            {"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}},
            "rope_type 'yarn' is not supported",
        ),
        (
            "gemma",
            {"hidden_activation": "gelu"},
            "hidden_activation must be gelu_pytorch_tanh, not 'gelu'",
        ),
        ("gemma", {"num_hidden_layers": 2**31 - 1, "layer_types": None}, "for each layer, not"),
    ],
)
def test_settings_that_are_not_computed(copy, name, changes, message):
    with pytest.raises(InputError, match=rf"config\.json: .*{message}") as error:
        SentenceEncoder.load(alter(copy(name), **changes))
    assert "\n" not in str(error.value)
