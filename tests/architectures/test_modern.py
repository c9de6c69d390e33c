"""What holds for each of the newer encoders: numbers, batches, folders both ways, bad input."""

import importlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minisbert.backends.graphs import VectorGraph
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError
from minisbert.integrations.transformers import in_double
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


# ---------------------------------------------------------------------------------- the numbers


def test_golden_values_of_mpnet(formulas):
    """Every layer, the vectors, and every gradient but the pooler's."""
    results = list(other_family("architectures/tiny-mpnet"))
    assert len([result for result in results if "gradient" in result.name]) == 37
    assert not [str(result) for result in results if not result.largest <= result.tolerance]


@pytest.mark.parametrize("name", ROTARY)
def test_golden_values(name, formulas):
    """Vectors without a prompt and with the one for queries, which must make a difference."""
    expected = golden(f"architectures/tiny-{name}")
    encoder = SentenceEncoder.load(folder_of(name)).double()
    vectors = encoder.encode(SENTENCES, convert_to_tensor=True)
    assert_parity(f"{name} vectors", vectors, expected["vectors"], PIECE)
    queries = encoder.encode(SENTENCES, prompt_name="query", convert_to_tensor=True)
    assert_parity(f"{name} queries", queries, expected["queries"], PIECE)
    assert (expected["vectors"] - expected["queries"]).abs().max() > 0.1


def test_a_golden_text_is_longer_than_a_window():
    """Or the local layers of ModernBERT would see everything."""
    lengths = golden("architectures/tiny-modernbert")["mask"].sum(dim=1)
    assert lengths.max() > 4 * 2 + 1


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


def sides_of_pads() -> list[tuple[str, str]]:
    """Each variant with its pads on either side and without any."""
    cases = []
    for variant, (name, _) in VARIANTS.items():
        cases += [(variant, "right"), (variant, "none")]
        if name != "mpnet":  # whose positions are absolute
            cases.append((variant, "left"))
    return cases


def random_batch(name: str, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask: MPNet at distances up to 139, the others longer than their window."""
    ids, mask = batch(torch.tensor([140, 2, 95]) if name == "mpnet" else LENGTHS)
    if side == "left":
        mask = mask.flip(1)
    if side == "none":
        mask = torch.ones_like(mask)
    if name == "mpnet":
        ids = ids.masked_fill(~mask, 1)  # from which transformers makes the positions
    return ids, mask


def gradient_of(
    theirs: torch.nn.Module, name: str, parameter: torch.Tensor, pad: int | None
) -> torch.Tensor:
    """Their gradient by its name, where both sides have one.

    transformers gives none to the padding's own row of a table, and none at all is zero.
    """
    expected = theirs.get_parameter(name).grad
    if expected is None:
        return torch.zeros_like(parameter)
    tables = ("word_embeddings", "position_embeddings", "tok_embeddings", "embed_tokens")
    if pad is not None and any(table in name for table in tables):
        row = torch.tensor([pad])
        expected = expected.index_copy(0, row, parameter.grad[row])
    return expected


@pytest.mark.reference
@pytest.mark.parametrize(("variant", "side"), sides_of_pads())
def test_random_models_equal_transformers(variant, side):
    """Every layer, the pooler and every gradient."""
    import transformers

    name, changes = VARIANTS[variant]
    ids, mask = random_batch(name, side)
    raw = raw_config(name, **changes)
    kind = type(transformers.AutoConfig.from_pretrained(folder_of(name)))
    config = kind(**raw, attn_implementation="eager")
    with in_double(modeling(name)):
        theirs = randomise(transformers.AutoModel.from_config(config), name == "gemma")
        out = theirs(ids, mask.long(), output_hidden_states=True)

    # the same config by way of today's transformers, and the same weights
    family = family_of(name)
    ours = family.encoder(family.read(config.to_dict()), name == "mpnet").double().eval()
    # older Qwen3s do not state layer_types, and Gemma's windows are even numbers
    if name in ("mpnet", "modernbert"):
        assert ours.config == family.read(raw), "newer and older files say the same"
    names = family.names(len(ours.layers), name == "mpnet")
    weights = theirs.state_dict()
    ours.load_state_dict({each: weights[names[each]] for each, _ in ours.named_parameters()})
    assert len([*ours.parameters()]) == len([*theirs.parameters()])

    states = ours.hidden_states(ids, None if side == "none" else mask)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"{variant} state {i}", state[mask], expected[mask], PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    loss = (states[-1] * pull).sum()
    expected_loss = (out.last_hidden_state * pull).sum()
    if name == "mpnet":
        pooled = ours.pool(states[-1])
        assert_parity(f"{variant} pooler", pooled, out.pooler_output, PIECE)
        loss = loss + pooled.sum()
        expected_loss = expected_loss + out.pooler_output.sum()

    loss.backward()
    expected_loss.backward()
    for each, parameter in ours.named_parameters():
        expected = gradient_of(theirs, names[each], parameter, config.pad_token_id)
        assert_parity(f"{variant} gradient of {each}", parameter.grad, expected, GRADIENT)


# ------------------------------------------------------------------------ batches and packed rows


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("mpnet", "right"),
        ("modernbert", "right"),
        ("modernbert", "left"),
        ("qwen3", "right"),
        ("qwen3", "left"),
        ("gemma", "right"),
        ("gemma", "left"),
    ],
)
def test_a_text_alone_and_in_a_batch(name, side):
    """Pads beyond the window of every real token too: their own states must be numbers, or they
    spoil the others.
    """
    model = random_model(name)
    ids, mask = batch()
    if side == "left":
        mask = mask.flip(1)
    together = model(ids, mask)
    for row, real, states in zip(ids, mask, together, strict=True):
        assert_parity("alone", states[real], model(row[real][None])[0], PIECE)
    assert together.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_share_a_row_do_not_see_each_other(name):
    """Each has the states that it has in a padded batch, whatever dtype the mask has."""
    model = random_model(name)
    ids, mask = batch()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    owner = torch.repeat_interleave(torch.arange(4), LENGTHS)[None]
    same = owner[:, None, :, None] == owner[:, None, None, :]
    packed = model(ids[mask][None], same, positions=positions)
    assert_parity("packed", packed[0], model(ids, mask)[mask], PIECE)
    assert torch.equal(packed, model(ids[mask][None], same.long(), positions=positions))


@pytest.mark.parametrize("name", ROTARY)
def test_only_distances_count(name):
    """All positions may be shifted: pads before a text move nothing."""
    model = random_model(name)
    ids, _ = batch()
    moved = model(ids, positions=torch.arange(100, 117)[None].expand(4, -1))
    assert_parity("moved", moved, model(ids), PIECE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_exported_graph_has_the_same_vectors(name):
    """Of the example's sizes, and of others."""
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [0, 1, 0, 1, 2, 3, 4]])
    owner = torch.tensor([[0, 0, 0, 0, 1, 1, -1], [2, 2, 3, 3, 3, 3, 3]])
    places = torch.tensor(
        [[0, 1, 2, 3, -1], [4, 5, -1, -1, -1], [7, 8, -1, -1, -1], [9, 10, 11, 12, 13]]
    )
    inputs = torch.randint(5, 131, owner.shape), positions, owner, places
    vectors = VectorGraph(SentenceEncoder.load(folder_of(name)))
    auto = torch.export.Dim.AUTO
    with torch.no_grad():
        exported = torch.export.export(
            vectors, inputs, dynamic_shapes=[{0: auto, 1: auto}] * 4
        ).module()
        assert_parity(f"exported {name}", exported(*inputs), vectors(*inputs), 1e-6)  # float32
        longer = [torch.cat([each, each], dim=0) for each in inputs[:3]]
        assert_parity("more rows", exported(*longer, places), vectors(*longer, places), 1e-6)


# ------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_model_starts_as_the_book_does(name):
    """With normal weights of the config's deviation, biases of 0 and norms that change nothing."""
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
        ("modernbert", "embedding_dropout"),
        ("modernbert", "attention_dropout"),
        ("modernbert", "mlp_dropout"),
        ("qwen3", "attention_dropout"),
        ("gemma", "attention_dropout"),
    ],
)
def test_dropout_is_only_in_training(name, setting):
    """And each setting is read: without it nothing is dropped."""
    without = {}
    if name == "mpnet":  # whose default is not 0
        without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    ids, mask = batch()
    plain = random_model(name, **without)
    model = random_model(name, **without | {setting: 0.5})
    assert torch.equal(plain.train()(ids, mask), plain.eval()(ids, mask))
    assert torch.equal(model(ids, mask), plain(ids, mask))
    assert not torch.equal(model.train()(ids, mask), plain(ids, mask))


# ------------------------------------------------------------------- folders, here and elsewhere


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


@pytest.mark.parametrize("name", ["modernbert", "gemma"])
@pytest.mark.parametrize("kinds", [[LOCAL, GLOBAL] * 2, [GLOBAL] * 4, [LOCAL] * 4])
def test_layers_of_any_order_are_saved(name, kinds):
    """Also an order that the older form of the settings cannot say."""
    family = family_of(name)
    config = family.read(raw_config(name, num_hidden_layers=4, layer_types=kinds))
    assert config.layer_types == tuple(kinds)
    assert family.read(family.write(vars(config))) == config


# ------------------------------------------------------------------------------------ bad input


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
