"""Settings that change vectors are honoured as in sentence-transformers, or refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from minisbert.architectures.relatives import CLASSIFIERS
from minisbert.core import InputError, encoder
from minisbert.core.heads import siamese
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.models.classifiers import classifier, exactly
from tests.parity import PIECE, REFERENCE, assert_parity

SOURCES = {
    "tiny": ROOT / "weights" / "tiny",
    "roberta": REFERENCE / "tiny-roberta",
    "distiluse": REFERENCE / "tiny-distiluse",
}
TEXTS = [
    "The Cat sits on the mat",
    "a café中国dog",
    "the dog [SEP] sits </s> on the moon",
    "",
    "the cat " * 20 + "moon",
    "A " + "guitar" * 20,
]
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
MODULES = "modules.json"
OPTIONS = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"
TEXT = "sentence_bert_config.json"
SENTENCE = "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"
DENSE = "2_Dense/config.json"
NORMALIZE = "2_Normalize/config.json"
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
LEFT = {"truncation_side": "left"}
PROMPT = {"prompts": {"q": "a dog: ", "other": "the sun: "}, "default_prompt_name": "q"}
UNPOOLED = {"include_prompt": False}
# a post_processor with token type 1 for one text
TYPED_PROCESSOR = processors.TemplateProcessing(
    "[CLS]:1 $A:1 [SEP]:1", "$A:0 $B:0", [("[CLS]", 2), ("[SEP]", 3)]
)
TYPED = json.loads(TYPED_PROCESSOR.__getstate__())
THREE = json.loads((SOURCES["tiny"] / MODULES).read_text())  # Transformer, Pooling, Normalize
DROPOUT = {
    "idx": 2,
    "name": "2",
    "path": "9_Dropout",
    "type": "sentence_transformers.models.Dropout",
}
SEVERAL = ["lasttoken", "mean", "weightedmean", "mean_sqrt_len_tokens"]
FLAGS = {
    "pooling_mode_lasttoken": True,
    "pooling_mode_weightedmean_tokens": True,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_mean_sqrt_len_tokens": True,
    "pooling_mode_cls_token": True,
}
BPE = json.loads((SOURCES["roberta"] / TOKENIZER).read_text())["model"]

ACTIVATIONS = "torch.nn.modules.activation"

# name: the source, and what changes in its files (... removes a key, None a file). These change the
# vectors.
CHANGED = {
    "cased": ("tiny", {OPTIONS: {"do_lower_case": False}}),
    "accents": ("tiny", {OPTIONS: {"strip_accents": False}}),
    "chinese": ("tiny", {OPTIONS: {"tokenize_chinese_chars": False}}),
    "no particular class": (
        "tiny",
        {
            OPTIONS: GENERIC | {"do_lower_case": False, "cls_token": "[MASK]"},
            TOKENIZER: {"pre_tokenizer": None},
        },
    ),
    "own special tokens": ("tiny", {OPTIONS: {"cls_token": "[MASK]"}}),
    "special tokens of old": ("tiny", {SPECIAL: {"cls_token": {"content": "[MASK]"}}}),
    "more special tokens": ("tiny", {OPTIONS: {"additional_special_tokens": ["a", "not one"]}}),
    "special tokens split": ("tiny", {OPTIONS: {"split_special_tokens": True}}),
    "fewer columns": ("tiny", {SENTENCE: {"truncate_dim": 8}}),
    "fewer columns after a dense layer": ("distiluse", {SENTENCE: {"truncate_dim": 5}}),
    "lower case for RoBERTa": ("roberta", {TEXT: {"do_lower_case": True}}),
    "lower case, no particular class": (
        "roberta",
        {TEXT: {"do_lower_case": True}, OPTIONS: GENERIC},
    ),
    "limit": ("tiny", {TEXT: {"max_seq_length": 5}}),
    "limit of the tokenizer": (
        "tiny",
        {TEXT: {"max_seq_length": 7, "processor_kwargs": {"model_max_length": 5}}},
    ),
    "options of the tokenizer": (
        "tiny",
        {TEXT: {"tokenizer_args": {"model_max_length": 6, "do_lower_case": False}}},
    ),
    "limit of each call": (
        "tiny",
        {
            TEXT: {
                "max_seq_length": 5,
                "processing_kwargs": {"common": {"truncation": True}, "text": {"max_length": 6}},
            }
        },
    ),
    "limit by its old name": ("tiny", {OPTIONS: {"model_max_length": ..., "max_len": 6}}),
    "cut at the start": ("tiny", {OPTIONS: LEFT, TEXT: {"max_seq_length": 5}}),
    "cut at the start, in tokenizer.json": (
        "tiny",
        {
            TOKENIZER: {
                "truncation": {
                    "direction": "Left",
                    "max_length": 9,
                    "strategy": "LongestFirst",
                    "stride": 0,
                }
            },
            TEXT: {"max_seq_length": 5},
        },
    ),
    "RoBERTa, a space first": ("roberta", {OPTIONS: {"add_prefix_space": True}}),
    "another padding for RoBERTa": (
        "roberta",
        {CONFIG: {"pad_token_id": 4, "max_position_embeddings": 27}},
    ),
    "a default prompt": ("tiny", {SENTENCE: PROMPT}),
    "a prompt longer than the limit": (
        "tiny",
        {SENTENCE: PROMPT | {"prompts": {"q": "the sun " * 9}}},
    ),
    "a prompt that is not pooled": ("tiny", {SENTENCE: PROMPT, POOLING: UNPOOLED}),
    "a prompt that is not pooled, cls": (
        "tiny",
        {SENTENCE: PROMPT, POOLING: UNPOOLED | {"pooling_mode": "cls"}},
    ),
    "a prompt that is not pooled, cut at the start": (
        "tiny",
        {SENTENCE: PROMPT, POOLING: UNPOOLED, OPTIONS: LEFT},
    ),
    "leftovers without modules": (
        "tiny",
        {
            MODULES: None,
            SENTENCE: PROMPT | {"similarity_fn_name": "dot"},
            TEXT: {"max_seq_length": 8},
        },
    ),
    "BERT's name for DistilBERT's heads": ("distiluse", {CONFIG: {"num_attention_heads": 2}}),
    "weights that grow": ("tiny", {POOLING: {"pooling_mode": "weightedmean"}}),
    "the last token": ("tiny", {POOLING: {"pooling_mode": "lasttoken"}}),
    "by the root of the length": (
        "tiny",
        {POOLING: {"pooling_mode": "mean_sqrt_len_tokens"}, MODULES: THREE[:2]},
    ),
    "several at once, in another order": (
        "tiny",
        {POOLING: {"pooling_mode": SEVERAL}, MODULES: THREE[:2]},
    ),
    "flags, in any order": ("tiny", {POOLING: {"pooling_mode": ...} | FLAGS}),
    "ReLU": ("distiluse", {DENSE: {"activation_function": f"{ACTIVATIONS}.ReLU"}}),
    "GELU": ("distiluse", {DENSE: {"activation_function": f"{ACTIVATIONS}.GELU"}}),
    "Sigmoid": ("distiluse", {DENSE: {"activation_function": f"{ACTIVATIONS}.Sigmoid"}}),
    "SiLU": ("distiluse", {DENSE: {"activation_function": f"{ACTIVATIONS}.SiLU"}}),
}
# These do not change the vectors, because the source means the same, or because nobody reads them
UNCHANGED = {
    "uncased by default": (
        "tiny",
        {OPTIONS: {"do_lower_case": ..., "tokenizer_class": ...}, TOKENIZER: {"normalizer": None}},
    ),
    "class in config.json": (
        "tiny",
        {CONFIG: GENERIC, OPTIONS: {"tokenizer_class": ..., "do_lower_case": False}},
    ),
    "no special tokens stored": ("tiny", {TOKENIZER: {"post_processor": None}}),
    "no token types in a generic tokenizer": (
        "tiny",
        {OPTIONS: GENERIC, TOKENIZER: {"post_processor": TYPED}},
    ),
    "more columns than there are": ("tiny", {SENTENCE: {"truncate_dim": 100}}),
    "a null prompt": (
        "tiny",
        {SENTENCE: {"prompts": {"q": None, "other": "a dog: "}, "default_prompt_name": "q"}},
    ),
    "an empty default prompt": ("tiny", {SENTENCE: {"default_prompt_name": "query"}}),
    "a field of ours in config.json": ("tiny", {CONFIG: {"position_offset": 2}}),
    "the exact GELU by another name": ("tiny", {CONFIG: {"hidden_act": "gelu_python"}}),
    "no flag": ("tiny", {POOLING: {"pooling_mode": ..., "pooling_mode_cls_token": False}}),
    "added tokens that tokenizer.json has too": (
        "tiny",
        {OPTIONS: {"added_tokens_decoder": ...}, "added_tokens.json": {"[CLS]": 2, "[MASK]": 4}},
    ),
    "added tokens that a newer file replaces": (
        "tiny",
        {
            OPTIONS: {"added_tokens_decoder": {"4": {"content": "[MASK]"}}},
            "added_tokens.json": {"[NEW]": 131},
        },
    ),
    "a dropout between the modules": (
        "tiny",
        {MODULES: [*THREE[:2], DROPOUT, THREE[2]], "9_Dropout/config.json": {"dropout": 0.5}},
    ),
    "harmless arguments": (
        "tiny",
        {
            TEXT: {
                "model_args": {"attn_implementation": "eager"},
                "processing_kwargs": {"text": {"padding": True}},
            }
        },
    ),
    "BERT's names that DistilBERT does not read": (
        "distiluse",
        {CONFIG: {"hidden_act": "silu", "intermediate_size": 99, "position_offset": 1}},
    ),
    "RoBERTa's defaults": (
        "roberta",
        {TOKENIZER: {"post_processor": None, "normalizer": {"type": "Lowercase"}}},
    ),
    "RoBERTa's padding not stated": ("roberta", {CONFIG: {"pad_token_id": ...}}),
    "RoBERTa's words have no end": (
        "roberta",
        {TOKENIZER: {"model": BPE | {"end_of_word_suffix": "</w>"}}},
    ),
}
HONOURED = CHANGED | UNCHANGED
# the ids of TEXTS[0] under some of these settings
IDS = {
    "cased": [2, 1, 1, 70, 81, 57, 90, 3],
    "uncased by default": [2, 57, 58, 70, 81, 57, 90, 3],
    "own special tokens": [4, 57, 58, 70, 81, 57, 90, 3],
    "limit of the tokenizer": [2, 57, 58, 70, 3],
    "options of the tokenizer": [2, 1, 1, 70, 81, 3],
    "limit of each call": [2, 57, 58, 70, 81, 3],
    "limit by its old name": [2, 57, 58, 70, 81, 3],
    "cut at the start": [2, 81, 57, 90, 3],
}


def edit(path: Path, changes: dict | None) -> None:
    """Change keys of a JSON file; ``...`` removes a key, None the file."""
    if changes is None:
        path.unlink()
        return
    if isinstance(changes, list):
        path.write_text(json.dumps(changes))
        return
    path.parent.mkdir(exist_ok=True)
    content = {}
    if path.is_file():
        content = json.loads(path.read_text())
    content |= changes
    kept = {key: value for key, value in content.items() if value is not ...}
    path.write_text(json.dumps(kept))


@pytest.fixture
def make(tmp_path: Path) -> Callable:
    """A copy of a source with changes in its files."""

    def copy(source: str, changes: dict[str, dict | None]) -> Path:
        folder = shutil.copytree(SOURCES[source], tmp_path / "folder")
        for name, change in changes.items():
            edit(folder / name, change)
        return folder

    return copy


def vectors(folder: Path) -> torch.Tensor:
    """The vectors of TEXTS in float64."""
    return SentenceEncoder.load(folder).double().encode(TEXTS, convert_to_tensor=True)


def reference(folder: Path) -> torch.nn.Module:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the reference extra"
    )
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").double()


# ---------------------------------------------------------------------------------------- honoured


@pytest.mark.reference
@pytest.mark.parametrize("name", HONOURED)
def test_vectors_equal_sentence_transformers_also_after_saving(make, tmp_path, name):
    source, changes = HONOURED[name]
    folder = make(source, changes)
    ours = vectors(folder)
    expected = reference(folder)
    assert_parity(name, ours, expected.encode(TEXTS, convert_to_tensor=True), PIECE)
    SentenceEncoder.load(folder).save(tmp_path / "saved")
    assert_parity(f"{name}, saved", vectors(tmp_path / "saved"), ours, PIECE)
    again = reference(tmp_path / "saved")
    assert_parity(
        f"{name}, saved, theirs", again.encode(TEXTS, convert_to_tensor=True), ours, PIECE
    )
    for setting in ("prompts", "default_prompt_name", "similarity_fn_name"):
        assert getattr(again, setting) == getattr(expected, setting)


@pytest.mark.parametrize("name", HONOURED)
def test_a_setting_changes_vectors_or_not(make, name):
    """A setting that is read and not honoured would go unnoticed: the vectors would be good."""
    source, changes = HONOURED[name]
    plain = vectors(SOURCES[source])
    changed = vectors(make(source, changes))
    same = plain.shape == changed.shape and torch.equal(plain, changed)
    assert same == (name in UNCHANGED)


@pytest.mark.parametrize("name", HONOURED)
def test_a_saved_folder_has_the_same_settings(make, tmp_path, name):
    """Saving writes what the tokenizer, the pooling and the prompts were read from."""
    source, changes = HONOURED[name]
    folder = make(source, changes)
    encoder = SentenceEncoder.load(folder)
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert (again.settings, again.tokenizer.limit) == (encoder.settings, encoder.tokenizer.limit)
    ours = again.double().encode(TEXTS, convert_to_tensor=True)
    assert_parity(name, ours, vectors(folder), PIECE)


@pytest.mark.parametrize("name", IDS)
def test_a_setting_of_the_tokenizer_gives_these_ids(make, name):
    """Ids that one can check by hand in the vocabulary."""
    source, changes = HONOURED[name]
    tokenizer = SentenceEncoder.load(make(source, changes)).tokenizer
    assert tokenizer.encode(TEXTS[:1]).ids == [IDS[name]]


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_folder_of_transformers_of_every_family(family, tmp_path):
    """Without modules: sentence-transformers takes the mean. Also after saving, here and there."""
    model = classifier(tmp_path / "plain", family).base_model
    model.float().save_pretrained(tmp_path / "plain")
    with exactly():
        expected = reference(tmp_path / "plain").encode(TEXTS, convert_to_tensor=True)
    assert_parity(f"plain {family}", vectors(tmp_path / "plain"), expected, PIECE)
    SentenceEncoder.load(tmp_path / "plain").save(tmp_path / "saved")
    assert_parity(f"plain {family}, saved", vectors(tmp_path / "saved"), expected, PIECE)
    with exactly():
        again = reference(tmp_path / "saved").encode(TEXTS, convert_to_tensor=True)
    assert_parity(f"plain {family}, saved, theirs", again, expected, PIECE)


@pytest.mark.parametrize("limit", [5, 6, 9])
def test_texts_and_pairs_cut_at_the_start_equal_the_library(make, limit):
    tokenizer = SentenceEncoder.load(make("tiny", {OPTIONS: LEFT}), max_seq_length=limit).tokenizer
    library = Backend.from_str(tokenizer.backend.to_str())
    library.enable_truncation(limit, strategy="longest_first", direction="left")
    sides = ["", "a", "a b", "a b c d", "a b c d e f g h i"]
    assert tokenizer.encode(sides).ids == [library.encode(side).ids for side in sides]
    pairs = [(first, second) for first in sides for second in sides]
    expected = library.encode_batch(pairs)
    encoded = tokenizer.encode_pairs([first for first, _ in pairs], [second for _, second in pairs])
    assert encoded.ids == [encoding.ids for encoding in expected]
    assert encoded.token_types == [encoding.type_ids for encoding in expected]


@pytest.mark.reference
@pytest.mark.parametrize("include", [True, False])
def test_prompts_equal_sentence_transformers(make, include):
    folder = make("tiny", {SENTENCE: PROMPT, POOLING: {"include_prompt": include}})
    encoder, theirs = SentenceEncoder.load(folder).double(), reference(folder)
    options = [
        {},
        {"prompt_name": "other"},
        {"prompt_name": "document"},  # every model has it: an empty one
        {"prompt": "the moon "},
        {"prompt": ""},
    ]
    for option in options:
        expected = theirs.encode(TEXTS, convert_to_tensor=True, **option)
        ours = encoder.encode(TEXTS, convert_to_tensor=True, **option)
        assert_parity(f"prompt {option}", ours, expected, PIECE)

        blocks = encoder.encode_stream(iter(TEXTS), convert_to_tensor=True, **option)
        assert_parity(f"prompt {option}, streamed", torch.cat(list(blocks)), expected, PIECE)

        states = theirs.encode(TEXTS, output_value="token_embeddings", **option)
        tokens = encoder.encode(TEXTS, output_value="token_embeddings", **option)
        for our_states, their_states in zip(tokens, states, strict=True):
            assert_parity(f"prompt {option}, tokens", our_states, their_states, PIECE)


def test_a_prompt_is_put_before_each_text(make):
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT}))
    prompted = encoder.encode(["a dog: moon", "a dog: the cat"], prompt="")
    np.testing.assert_array_equal(encoder.encode(["moon", "the cat"]), prompted)
    np.testing.assert_array_equal(encoder.encode(["moon", "the cat"], prompt_name="q"), prompted)


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"prompt_name": "passage"}, "'passage'"),
        ({"prompt_name": "q", "prompt": ""}, "prompt_name"),
    ],
)
def test_prompts_that_cannot_be_used(make, options, noun):
    """A wrong name must not fall back to no prompt."""
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT}))
    with pytest.raises(InputError, match=noun):
        encoder.encode(TEXTS, **options)


def test_a_text_of_nothing_but_a_prompt_that_is_not_pooled(make):
    bare = {
        OPTIONS: GENERIC,
        TOKENIZER: {"post_processor": None},
        SENTENCE: PROMPT,
        POOLING: UNPOOLED,
    }
    encoder = SentenceEncoder.load(make("tiny", bare))
    assert encoder.encode(["moon"], prompt="the sun ").shape == (1, 24)
    with pytest.raises(InputError, match="no token of its own after its prompt"):
        encoder.encode(["moon", ""], prompt="the sun ")


def test_what_is_not_used_here_is_kept(make, tmp_path):
    prompts = {"query": "query: ", "document": "", "other": "a "}
    changes = {
        SENTENCE: {
            "prompts": prompts,
            "similarity_fn_name": "dot",
            "truncate_dim": 7,
            "requirements": ["torch"],
        },
        POOLING: {"include_prompt": False},
        TEXT: {"query_length": 5, "max_seq_length": 9},
    }
    SentenceEncoder.load(make("tiny", changes)).save(tmp_path / "saved")
    saved = {name: json.loads((tmp_path / "saved" / name).read_text()) for name in changes}
    assert saved[SENTENCE] == changes[SENTENCE] | {
        "default_prompt_name": None,
        "model_type": "SentenceTransformer",
    }
    assert saved[POOLING]["include_prompt"] is False
    assert saved[TEXT] == {"max_seq_length": 9, "do_lower_case": False, "query_length": 5}


def test_heads_read_whole_vectors_of_texts_without_a_prompt(make):
    """They have learned from these; prompts and fewer columns are only for ``encode``."""
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT | {"truncate_dim": 8}}))
    head = siamese(encoder.width)
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    whole = PairModel(SentenceEncoder.load(SOURCES["tiny"]), head).eval().predict(pairs)
    np.testing.assert_array_equal(PairModel(encoder, head).eval().predict(pairs), whole)
    assert encoder.encode(TEXTS, truncate_dim=24).shape[1] == 24
    assert encoder.encode(TEXTS[:1], output_value="token_embeddings")[0].shape[1] == 24


# ----------------------------------------------------------------------------------------- refused

# a source, a file, keys, and values that are refused for each of them
REFUSED = [
    (
        "tiny",
        CONFIG,
        [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "vocab_size",
        ],
        ["16", 10**30],
    ),
    ("tiny", CONFIG, ["num_attention_heads"], [5]),
    ("tiny", CONFIG, ["type_vocab_size", "pad_token_id"], [1.5, 10**30]),
    (
        "tiny",
        CONFIG,
        ["layer_norm_eps", "hidden_dropout_prob", "initializer_range"],
        ["0.1", float("nan")],
    ),
    ("tiny", CONFIG, ["model_type", "hidden_act", "position_embedding_type"], ["silu", 5]),
    ("tiny", CONFIG, ["is_decoder", "add_cross_attention"], [True]),
    ("tiny", CONFIG, ["pruned_heads"], [{"0": [1]}]),
    ("roberta", CONFIG, ["pad_token_id"], [-1]),
    (
        "distiluse",
        CONFIG,
        ["dim", "n_layers", "dropout", "attention_dropout", "activation"],
        [1.5, [], None],
    ),
    (
        "tiny",
        OPTIONS,
        ["tokenizer_class", "padding_side", "truncation_side"],
        ["BertJapaneseTokenizer", True],
    ),
    ("tiny", OPTIONS, ["padding_side"], ["left"]),
    (
        "tiny",
        OPTIONS,
        ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "split_special_tokens"],
        ["yes"],
    ),
    ("tiny", OPTIONS, ["model_max_length"], ["16", 1.5, True, float("inf")]),
    ("tiny", OPTIONS, ["cls_token", "sep_token", "unk_token"], ["[BOS]", 5, {}, None]),
    ("tiny", OPTIONS, ["model_input_names"], [["input_ids", "token_type_ids"]]),
    ("tiny", OPTIONS, ["added_tokens_decoder"], [{"9": {"content": "cat"}}]),
    ("roberta", OPTIONS, ["add_prefix_space"], ["yes"]),
    ("tiny", SPECIAL, ["sep_token"], ["[EOS]"]),
    (
        "tiny",
        TEXT,
        [
            "max_seq_length",
            "do_lower_case",
            "processor_kwargs",
            "processing_kwargs",
            "model_args",
        ],
        ["x", 1.5],
    ),
    (
        "tiny",
        TEXT,
        ["transformer_task", "modality_config", "module_output_name", "tokenizer_name_or_path"],
        ["fill-mask", 5],
    ),
    ("tiny", TEXT, ["model_kwargs", "config_kwargs"], [{"num_hidden_layers": 1}]),
    ("tiny", TEXT, ["processor_kwargs"], [{"padding_side": "left"}]),
    (
        "tiny",
        TEXT,
        ["processing_kwargs"],
        [
            {"text": {"add_special_tokens": False}},
            {"text": {"truncation": False}},
            {"common": {"return_attention_mask": False}},
        ],
    ),
    (
        "tiny",
        SENTENCE,
        ["prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_type"],
        [1.5],
    ),
    (
        "tiny",
        SENTENCE,
        ["default_prompt_name", "similarity_fn_name", "truncate_dim", "model_type"],
        ["CrossEncoder", 0],
    ),
    ("tiny", POOLING, ["pooling_mode", "include_prompt"], [5, {}, [5], []]),
    ("tiny", POOLING, ["pooling_mode"], [["mean", "median"]]),
    ("tiny", NORMALIZE, ["module_input_name"], ["token_embeddings"]),
    ("distiluse", DENSE, ["in_features", "out_features"], ["20", True, 0, None]),
    (
        "distiluse",
        DENSE,
        ["bias", "activation_function"],
        [5, "torch.nn.modules.activation.Mish"],
    ),
    (
        "distiluse",
        DENSE,
        ["module_input_name", "module_output_name", "use_residual"],
        ["token_embeddings", True],
    ),
]


def refused_settings() -> list[tuple]:
    """Each key of ``REFUSED`` with each value."""
    cases = []
    for source, name, keys, values in REFUSED:
        for key in keys:
            for value in values:
                cases.append((source, name, key, value))
    return cases


@pytest.mark.parametrize(("source", "name", "key", "value"), refused_settings())
def test_refused_in_one_line_by_file_and_key(make, source, name, key, value):
    """The user learns which file to mend, and where in it."""
    folder = make(source, {name: {key: value}})
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(folder)
    message = str(error.value)
    assert str(folder) in message
    assert name in message
    assert (key if not isinstance(value, dict) else name) in message
    assert "\n" not in message


def listing(i: int = 1, **changes: object) -> list[dict]:
    """``modules.json`` of the tiny model with one entry changed."""
    return [*THREE[:i], THREE[i] | changes, *THREE[i + 1 :]]


WITHOUT = dict.fromkeys(("transformer_task", "modality_config", "module_output_name"), ...)
WHOLE = [  # refused as a whole: what changes in the tiny model's files, and a noun of the message
    (
        {
            OPTIONS: GENERIC | {"model_input_names": ["token_type_ids", "attention_mask"]},
            TOKENIZER: {"post_processor": TYPED},
        },
        "token types",
    ),
    ({MODULES: listing(type=5)}, MODULES),
    ({MODULES: listing(2, path=None)}, MODULES),
    ({MODULES: [{"path": ""}]}, "'type'"),
    ({MODULES: [5]}, MODULES),
    ({MODULES: listing(path="../elsewhere")}, "leads out"),
    ({MODULES: listing(path="/elsewhere")}, "leads out"),
    ({MODULES: listing(path=300 * "a")}, "too long"),
    ({"adapter_config.json": {"peft_type": "LORA"}}, "adapters"),
    ({"adapter_config.json": {"peft_type": "LORA"}, CONFIG: None}, "merge_and_unload"),
    ({CONFIG: {"model_type": "electra", "embedding_size": 12}}, "embedding_size 12 .* ELECTRA"),
    # transformers would add the token to the vocabulary
    ({OPTIONS: None, "added_tokens.json": {"[NEW]": 131}}, r"added_tokens\.json: '\[NEW\]'"),
    # names that somebody else wrote, for a terminal to obey
    ({TEXT: {"model_kwargs": {"a\x1b[2J\r": 1}}}, r"a\\x1b\[2J\\r in model_kwargs"),
    ({MODULES: [*THREE, {"type": "a\x1b]0;b\x07", "path": ""}]}, r"a\\x1b\]0;b\\x07"),
    ({OPTIONS: {"added_tokens_decoder": {"9": {"content": "\x1b[2J"}}}}, r"\\x1b\[2J"),
    ({CONFIG: {"pad_token_id": 131}}, "131 rows"),
    ({POOLING: UNPOOLED | {"pooling_mode": "weightedmean"}}, "include_prompt"),
    # a file under its name of 2019, alone or beside an empty one of today
    (
        {TEXT: None, "sentence_xlm-roberta_config.json": {"max_seq_length": 6}},
        f"rename it to {TEXT}",
    ),
    (
        {TEXT: WITHOUT, "sentence_roberta_config.json": {"do_lower_case": True}},
        f"rename it to {TEXT}",
    ),
]


@pytest.mark.parametrize(("changes", "noun"), WHOLE)
def test_refused_by_folder_and_reason(make, changes, noun):
    with pytest.raises(InputError, match=noun) as error:
        SentenceEncoder.load(make("tiny", changes))
    assert "/folder" in str(error.value)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert"])
@pytest.mark.parametrize("token", ["<s>", "</s>"])
def test_a_special_token_with_the_paddings_id_is_refused(make, model_type, token):
    """transformers gives it the padding's position, and the tokens after it other ones."""
    folder = make("roberta", {})
    number = Backend.from_file(str(folder / TOKENIZER)).token_to_id(token)
    edit(folder / CONFIG, {"model_type": model_type, "pad_token_id": number})
    edit(folder / OPTIONS, {"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(InputError, match=f"pad_token_id {number} is the id of {token}"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            '{"pooling_mode_cls_token": true}',
            r"no modules\.json, so .*1_Pooling/config\.json \(cls\)",
        ),
        ('{"pooling_mode": "max"}', r"no modules\.json, so .*1_Pooling/config\.json \(max\)"),
        ("{", "states no pooling"),
        (None, "states no pooling"),
    ],
)
def test_a_pooling_without_modules_is_named(make, capsys, content, reason):
    """A folder that was copied by hand: the mean is taken, as in sentence-transformers."""
    folder = make("tiny", {MODULES: None, POOLING: None})
    if content is not None:
        (folder / POOLING).write_text(content)
    assert SentenceEncoder.load(folder).pooling_mode == "mean"
    assert re.search(reason, capsys.readouterr().err)


@pytest.mark.parametrize("kind", ["custom_st.Pooling", "sentence_transformers_2.models.Pooling"])
def test_a_class_of_another_package_is_not_taken_for_ours(make, kind):
    folder = make("tiny", {MODULES: listing(type=kind)})
    for load in (SentenceEncoder.load, encoder.SentenceEncoder.load):
        with pytest.raises(InputError, match=rf"{folder}.* {kind}"):
            load(folder)


@pytest.fixture
def make_unigram(make) -> Callable:
    """A folder of XLM-RoBERTa's class whose file says which number the unknown token has."""

    def write(unknown: int | None) -> Path:
        folder = make("tiny", {OPTIONS: {"tokenizer_class": "XLMRobertaTokenizer"}})
        pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>", "▁", "a")]
        Backend(models.Unigram(pieces, unknown)).save(str(folder / TOKENIZER))
        return folder

    return write


def test_the_unknown_token_of_xlm_roberta(make_unigram):
    """transformers gives this class number 3 whatever the file says."""
    tokenizer = SentenceEncoder.load(make_unigram(3)).tokenizer
    assert tokenizer.encode(["aq"]).ids == [[0, 4, 5, 3, 2]]  # <s> ▁ a <unk> </s>


@pytest.mark.parametrize("unknown", [0, 4, None])
def test_another_unknown_token_of_xlm_roberta_is_refused(make_unigram, unknown):
    """The two libraries would give other ids for the same text."""
    folder = make_unigram(unknown)
    with pytest.raises(InputError, match=r"tokenizer\.json: unk_id"):
        SentenceEncoder.load(folder)


def test_a_text_without_a_token(make):
    """There is nothing to pool, and NaN would spread silently."""
    bare = {OPTIONS: GENERIC, TOKENIZER: {"post_processor": None}}
    encoder = SentenceEncoder.load(make("tiny", bare))
    assert encoder.tokenizer.encode(["a cat"]).ids == [[5, 58]]
    assert encoder.tokenizer.encode_pairs([""], ["a cat"]).ids == [[5, 58]]
    with pytest.raises(InputError, match="the text '' has no token"):
        encoder.encode(["a cat", ""])


@pytest.mark.parametrize(
    ("source", "model_type", "name", "message"),
    [
        ("tiny", "bert", "classifier.bias", r"task head, classifier\.bias \(.*ModelForATask"),
        (
            "distiluse",
            "distilbert",
            "pre_classifier.weight",
            r"task head, pre_classifier\.weight \(",
        ),
        ("roberta", "roberta", "qa_outputs.bias", r"task head, qa_outputs\.bias \("),
        (
            "tiny",
            "electra",
            "embeddings_project.weight",
            r"unexpected embeddings_project\.weight",
        ),
    ],
)
def test_a_tensor_of_another_model_is_named(make, source, model_type, name, message):
    """A task head, or the projection of a small ELECTRA: without it the vectors would be others."""
    folder = make(source, {CONFIG: {"architectures": ["ModelForATask"], "model_type": model_type}})
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.ones(2, 3)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(folder)
