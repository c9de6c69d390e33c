"""Settings in a folder that change vectors: honoured as sentence-transformers does, or refused by name."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
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
from minisbert.models.tokenizer import read_tokenizer
from tests.conftest import ROOT
from tests.models.test_pair_model import classifier
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
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
OPTIONS, TEXT, SENTENCE = "tokenizer_config.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
LEFT = {"truncation_side": "left"}
STORED = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
CASED = {OPTIONS: {"do_lower_case": False}}
PROMPT = {"prompts": {"q": "a dog: ", "other": "the sun: "}, "default_prompt_name": "q"}
UNPOOLED = {"include_prompt": False}
# token type 1 for one text
TYPED = processors.TemplateProcessing("[CLS]:1 $A:1 [SEP]:1", "$A:0 $B:0", [("[CLS]", 2), ("[SEP]", 3)])
TYPED = json.loads(TYPED.__getstate__())
DENSE, NORMALIZE, MODULES = "2_Dense/config.json", "2_Normalize/config.json", "modules.json"
UNSCALED = json.loads((SOURCES["tiny"] / MODULES).read_text())[:2]  # without the module that scales vectors
DROPOUT = {"idx": 2, "name": "2", "path": "9_Dropout", "type": "sentence_transformers.models.Dropout"}
DROPPING = [*UNSCALED, DROPOUT, json.loads((SOURCES["tiny"] / MODULES).read_text())[2]]
FLAGS = {"pooling_mode_lasttoken": True, "pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": True}
FLAGS |= {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_cls_token": True}
INPUTS = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
OPTIONAL, MASKED, CALL = (
    ("do_lower_case", "tokenizer_class"),
    {"cls_token": "[MASK]"},
    {"max_length": 6, "truncation": True},
)
UNREAD, EAGER = {"hidden_act": "silu", "intermediate_size": 99, "position_offset": 1}, {"attn_implementation": "eager"}
SEVERAL = ["lasttoken", "mean", "weightedmean", "mean_sqrt_len_tokens"]
ACTIVATIONS = [f"torch.nn.modules.activation.{name}" for name in ("ReLU", "GELU", "Sigmoid", "SiLU")]
ENDED = json.loads((SOURCES["roberta"] / TOKENIZER).read_text())["model"] | {"end_of_word_suffix": "</w>"}

# name: the source, and what changes in its files (... removes a key, None a file)
HONOURED = {
    "cased": ("tiny", CASED),
    "accents": ("tiny", {OPTIONS: {"strip_accents": False}}),
    "chinese": ("tiny", {OPTIONS: {"tokenize_chinese_chars": False}}),
    "uncased by default": ("tiny", {OPTIONS: dict.fromkeys(OPTIONAL, ...), TOKENIZER: {"normalizer": None}}),
    "no particular class": ("tiny", {OPTIONS: GENERIC | CASED[OPTIONS] | MASKED, TOKENIZER: {"pre_tokenizer": None}}),
    "class in config.json": ("tiny", {CONFIG: GENERIC, OPTIONS: {"tokenizer_class": ..., "do_lower_case": False}}),
    "own special tokens": ("tiny", {OPTIONS: MASKED}),
    "special tokens of old": ("tiny", {"special_tokens_map.json": {"cls_token": {"content": "[MASK]"}}}),
    "more special tokens": ("tiny", {OPTIONS: {"additional_special_tokens": ["a", "not one"]}}),
    "special tokens split": ("tiny", {OPTIONS: {"split_special_tokens": True}}),
    "no special tokens stored": ("tiny", {TOKENIZER: {"post_processor": None}}),
    "fewer columns": ("tiny", {SENTENCE: {"truncate_dim": 8}}),
    "more columns than there are": ("tiny", {SENTENCE: {"truncate_dim": 100}}),
    "fewer columns after a dense layer": ("distiluse", {SENTENCE: {"truncate_dim": 5}}),
    "limit": ("tiny", {TEXT: {"max_seq_length": 5}}),
    "lower case for RoBERTa": ("roberta", {TEXT: {"do_lower_case": True}}),
    "lower case, no particular class": ("roberta", {TEXT: {"do_lower_case": True}, OPTIONS: GENERIC}),
    "limit of the tokenizer": ("tiny", {TEXT: {"max_seq_length": 7, "processor_kwargs": {"model_max_length": 5}}}),
    "options of the tokenizer": ("tiny", {TEXT: {"tokenizer_args": {"model_max_length": 6, "do_lower_case": False}}}),
    "limit of each call": ("tiny", {TEXT: {"max_seq_length": 5, "processing_kwargs": {"text": CALL}}}),
    "limit of common calls": ("tiny", {TEXT: {"processing_kwargs": {"common": {"max_length": 5}}}}),
    "limit by its old name": ("tiny", {OPTIONS: {"model_max_length": ..., "max_len": 6}}),
    "cut at the start": ("tiny", {OPTIONS: LEFT, TEXT: {"max_seq_length": 5}}),
    "cut at the start, in tokenizer.json": ("tiny", {TOKENIZER: {"truncation": STORED}, TEXT: {"max_seq_length": 5}}),
    "RoBERTa, cut at the start": ("roberta", {OPTIONS: LEFT}),
    "RoBERTa, a space first": ("roberta", {OPTIONS: {"add_prefix_space": True}}),
    "RoBERTa's defaults": ("roberta", {TOKENIZER: {"post_processor": None, "normalizer": {"type": "Lowercase"}}}),
    "RoBERTa's padding not stated": ("roberta", {CONFIG: {"pad_token_id": ...}}),
    "another padding for RoBERTa": ("roberta", {CONFIG: {"pad_token_id": 4, "max_position_embeddings": 27}}),
    "a default prompt": ("tiny", {SENTENCE: PROMPT}),
    "leftovers without modules": (
        "tiny",
        {
            MODULES: None,
            SENTENCE: PROMPT | {"similarity_fn_name": "dot", "truncate_dim": 7},
            TEXT: {"max_seq_length": 8},
        },
    ),
    "a null prompt": ("tiny", {SENTENCE: {"prompts": {"q": None, "other": "a dog: "}, "default_prompt_name": "q"}}),
    "a prompt longer than the limit": ("tiny", {SENTENCE: PROMPT | {"prompts": {"q": "the sun " * 9}}}),
    "a prompt that is not pooled": ("tiny", {SENTENCE: PROMPT, POOLING: {"include_prompt": False}}),
    "a prompt that is not pooled, cls": ("tiny", {SENTENCE: PROMPT, POOLING: UNPOOLED | {"pooling_mode": "cls"}}),
    "a prompt that is not pooled, max": ("tiny", {SENTENCE: PROMPT, POOLING: UNPOOLED | {"pooling_mode": "max"}}),
    "a prompt that is not pooled, cut at the start": ("tiny", {SENTENCE: PROMPT, POOLING: UNPOOLED, OPTIONS: LEFT}),
    "a prompt for RoBERTa": ("roberta", {SENTENCE: PROMPT, POOLING: UNPOOLED}),
    "an empty default prompt": ("tiny", {SENTENCE: {"default_prompt_name": "query"}}),
    "no token types in a generic tokenizer": ("tiny", {OPTIONS: GENERIC, TOKENIZER: {"post_processor": TYPED}}),
    "a field of ours in config.json": ("tiny", {CONFIG: {"position_offset": 2}}),
    "BERT's names that DistilBERT does not read": ("distiluse", {CONFIG: UNREAD}),
    "BERT's name for DistilBERT's heads": ("distiluse", {CONFIG: {"num_attention_heads": 2}}),
    "RoBERTa's words have no end": ("roberta", {TOKENIZER: {"model": ENDED}}),
    "weights that grow": ("tiny", {POOLING: {"pooling_mode": "weightedmean"}}),
    "the last token": ("tiny", {POOLING: {"pooling_mode": "lasttoken"}}),
    "the last token, cut at the start": ("tiny", {POOLING: {"pooling_mode": "lasttoken"}, OPTIONS: LEFT}),
    "by the root of the length": ("tiny", {POOLING: {"pooling_mode": "mean_sqrt_len_tokens"}, MODULES: UNSCALED}),
    "several at once, in another order": ("tiny", {POOLING: {"pooling_mode": SEVERAL}, MODULES: UNSCALED}),
    "flags, in any order": ("tiny", {POOLING: {"pooling_mode": ...} | FLAGS}),
    "no flag": ("tiny", {POOLING: {"pooling_mode": ..., "pooling_mode_cls_token": False}}),
    "the last token, unpooled prompt": ("tiny", {SENTENCE: PROMPT, POOLING: UNPOOLED | {"pooling_mode": SEVERAL[::3]}}),
    **{name: ("distiluse", {DENSE: {"activation_function": name}}) for name in ACTIVATIONS},
    "the exact GELU by another name": ("tiny", {CONFIG: {"hidden_act": "gelu_python"}}),
    "a dropout between the modules": ("tiny", {MODULES: DROPPING, "9_Dropout/config.json": {"dropout": 0.5}}),
    "harmless arguments": ("tiny", {TEXT: {"model_args": EAGER, "processing_kwargs": {"text": {"padding": True}}}}),
}
# the ids of TEXTS[0] then
IDS = {
    "cased": [2, 1, 1, 70, 81, 57, 90, 3],
    "uncased by default": [2, 57, 58, 70, 81, 57, 90, 3],
    "own special tokens": [4, 57, 58, 70, 81, 57, 90, 3],
    "no special tokens stored": [2, 57, 58, 70, 81, 57, 90, 3],
    "limit": [2, 57, 58, 70, 3],
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
    content = (json.loads(path.read_text()) if path.is_file() else {}) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


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
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").double()


# ------------------------------------------------------------------------------------------- honoured


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
    assert_parity(f"{name}, saved, theirs", again.encode(TEXTS, convert_to_tensor=True), ours, PIECE)
    for setting in ("prompts", "default_prompt_name", "similarity_fn_name"):
        assert getattr(again, setting) == getattr(expected, setting)


# what restores the vectors of the source
ALIKE = {"uncased by default", "no special tokens stored", "more columns than there are", "RoBERTa's defaults"}
ALIKE |= {"no token types in a generic tokenizer", "a field of ours in config.json", "RoBERTa's words have no end"}
ALIKE |= {"BERT's names that DistilBERT does not read", "RoBERTa's padding not stated"}
ALIKE |= {"a dropout between the modules", "no flag", "the exact GELU by another name"}
ALIKE |= {"an empty default prompt", "a null prompt", "harmless arguments", "class in config.json"}


@pytest.mark.parametrize("name", HONOURED)
def test_a_setting_changes_vectors_and_a_saved_folder_has_the_same(make, tmp_path, name):
    source, changes = HONOURED[name]
    plain, changed = vectors(SOURCES[source]), vectors(make(source, changes))
    assert (plain.shape == changed.shape and torch.equal(plain, changed)) == (name in ALIKE)
    encoder = SentenceEncoder.load(tmp_path / "folder")
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert (again.settings, again.tokenizer.limit) == (encoder.settings, encoder.tokenizer.limit)
    assert name not in IDS or encoder.tokenizer.encode(TEXTS[:1]).ids == [IDS[name]]
    assert_parity(name, again.double().encode(TEXTS, convert_to_tensor=True), changed, PIECE)


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_folder_of_transformers_of_every_family(family, tmp_path):
    """Without modules: sentence-transformers takes the mean. Also after saving, here and there."""
    model = classifier(tmp_path / "plain", family).base_model
    model.float().save_pretrained(tmp_path / "plain")
    expected = reference(tmp_path / "plain").encode(TEXTS, convert_to_tensor=True)
    assert_parity(f"plain {family}", vectors(tmp_path / "plain"), expected, PIECE)
    SentenceEncoder.load(tmp_path / "plain").save(tmp_path / "saved")
    assert_parity(f"plain {family}, saved", vectors(tmp_path / "saved"), expected, PIECE)
    again = reference(tmp_path / "saved").encode(TEXTS, convert_to_tensor=True)
    assert_parity(f"plain {family}, saved, theirs", again, expected, PIECE)


@pytest.mark.reference
def test_a_roberta_with_its_two_old_files(make, tmp_path):
    folder = make("roberta", {OPTIONS: {"add_prefix_space": True}})
    Backend.from_file(str(folder / TOKENIZER)).model.save(str(folder))
    (folder / TOKENIZER).unlink()
    expected = reference(folder).encode(TEXTS, convert_to_tensor=True)
    assert_parity("vocab.json and merges.txt", vectors(folder), expected, PIECE)
    SentenceEncoder.load(folder).save(tmp_path / "saved")
    assert_parity("vocab.json and merges.txt, saved", vectors(tmp_path / "saved"), expected, PIECE)
    (folder / "merges.txt").write_text("a b c\n")
    with pytest.raises(InputError, match=r"merges\.txt: "):
        SentenceEncoder.load(folder)


@pytest.mark.reference
@pytest.mark.parametrize(
    "options", [{"add_prefix_space": True}, {"add_prefix_space": False}, {"tokenizer_class": ...}], ids=str
)
def test_a_multilingual_model_of_sentence_transformers(tmp_path, options):
    """XLM-RoBERTa and its tokenizer, as multilingual E5 has them: their folder here, and ours there."""
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    words = ["▁the", "▁cat", "▁dog", "▁a", "▁中", *"▁abcdefghijklmnopqrstuvwxyzé"]
    pieces = [*dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>"), 0.0).items()]
    pieces += [*{word: -float(len(word)) for word in words}.items(), ("<mask>", 0.0)]
    tokenizer = transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=13)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.XLMRobertaConfig(**sizes, intermediate_size=17, max_position_embeddings=20, type_vocab_size=1)
    torch.manual_seed(0)
    model = transformers.XLMRobertaModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for part in (tokenizer, model):
        part.save_pretrained(tmp_path / "plain")
    from sentence_transformers import models as modules

    encoder = modules.Transformer(str(tmp_path / "plain"))
    whole = [encoder, modules.Pooling(12, "mean"), modules.Normalize()]
    folder = tmp_path / "theirs"
    sentence_transformers.SentenceTransformer(modules=whole, device="cpu").save(str(folder), create_model_card=False)
    edit(folder / OPTIONS, options)
    expected = reference(folder).encode(TEXTS, convert_to_tensor=True)
    assert_parity("XLM-RoBERTa", vectors(folder), expected, PIECE)
    SentenceEncoder.load(folder).save(tmp_path / "ours")
    assert_parity("XLM-RoBERTa, saved", vectors(tmp_path / "ours"), expected, PIECE)
    again = reference(tmp_path / "ours").encode(TEXTS, convert_to_tensor=True)
    assert_parity("XLM-RoBERTa, saved, theirs", again, expected, PIECE)
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(b"")
    with pytest.raises(InputError, match=r"has neither tokenizer\.json nor .*: write one of them with transformers"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize("limit", [5, 6, 9])
def test_texts_and_pairs_cut_at_the_start_equal_the_library(make, limit):
    tokenizer = read_tokenizer(make("tiny", {OPTIONS: LEFT}), limit)
    library = Backend.from_str(tokenizer.backend.to_str())
    library.enable_truncation(limit, strategy="longest_first", direction="left")
    sides = ["", "a", "a b", "a b c d", "a b c d e f g h i"]
    assert tokenizer.encode(sides).ids == [library.encode(side).ids for side in sides]
    pairs = [(first, second) for first in sides for second in sides]
    expected = library.encode_batch(pairs)
    found = tokenizer.encode_pairs(*zip(*pairs, strict=True))
    assert found.ids == [encoding.ids for encoding in expected]
    assert found.token_types == [encoding.type_ids for encoding in expected]


def test_roberta_without_stated_padding_has_as_many_positions_as_before(make, tmp_path):
    """Its default is 1: positions start at 2, and of 27 rows 25 are left for tokens."""
    encoder = SentenceEncoder.load(make("roberta", {CONFIG: {"pad_token_id": ...}, OPTIONS: {"model_max_length": 99}}))
    encoder.save(tmp_path / "saved")
    for model in (encoder, SentenceEncoder.load(tmp_path / "saved")):
        assert (model.bert.config.pad_token_id, model.bert.config.position_offset) == (1, 2)
        assert (model.tokenizer.pad_id, model.tokenizer.limit) == (1, 25)
        assert model.encode(["the cat " * 30]).shape == (1, 18)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_equals_sentence_transformers(make, tmp_path, name):
    folder = make("roberta", {SENTENCE: {"similarity_fn_name": name}})
    encoder = SentenceEncoder.load(folder).double()
    u, v = encoder.encode(TEXTS), encoder.encode(TEXTS[:2])
    ours = torch.from_numpy(encoder.similarity(u, v))
    assert_parity(name, ours, reference(folder).similarity(u, v), PIECE)
    encoder.save(tmp_path / "saved")
    assert reference(tmp_path / "saved").similarity_fn_name == name


@pytest.mark.reference
@pytest.mark.parametrize("include", [True, False])
def test_prompts_equal_sentence_transformers(make, include):
    folder = make("tiny", {SENTENCE: PROMPT, POOLING: {"include_prompt": include}})
    encoder, theirs = SentenceEncoder.load(folder).double(), reference(folder)
    names = {"prompt_name": "other"}, {"prompt_name": "document"}  # every model has the latter: an empty one
    for given in ({}, *names, {"prompt": "the moon "}, {"prompt": ""}):
        expected = theirs.encode(TEXTS, convert_to_tensor=True, **given)
        assert_parity(f"prompt {given}", encoder.encode(TEXTS, convert_to_tensor=True, **given), expected, PIECE)
        stream = torch.cat([*encoder.encode_stream(iter(TEXTS), convert_to_tensor=True, **given)])
        assert_parity(f"prompt {given}, streamed", stream, expected, PIECE)
        states = theirs.encode(TEXTS, output_value="token_embeddings", **given)
        for ours, other in zip(encoder.encode(TEXTS, output_value="token_embeddings", **given), states, strict=True):
            assert_parity(f"prompt {given}, tokens", ours, other, PIECE)


def test_a_prompt_is_put_before_each_text(make):
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT}))
    prompted = encoder.encode(["a dog: moon", "a dog: the cat"], prompt="")
    np.testing.assert_array_equal(encoder.encode(["moon", "the cat"]), prompted)
    np.testing.assert_array_equal(encoder.encode(["moon", "the cat"], prompt_name="q"), prompted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_name": "passage"}, "the model has no prompt 'passage'; it has 'q', 'other', 'query', 'document'"),
        ({"prompt_name": "q", "prompt": ""}, "prompt '' and prompt_name 'q': give one of them"),
    ],
)
def test_prompts_that_cannot_be_used(make, given, message):
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT}))
    with pytest.raises(InputError, match=message):
        encoder.encode(TEXTS, **given)


def test_a_text_of_nothing_but_a_prompt_that_is_not_pooled(make):
    bare = {OPTIONS: GENERIC, TOKENIZER: {"post_processor": None}, SENTENCE: PROMPT, POOLING: UNPOOLED}
    encoder = SentenceEncoder.load(make("tiny", bare))
    assert encoder.encode(["moon"], prompt="the sun ").shape == (1, 24)
    with pytest.raises(InputError, match="no token of its own after its prompt"):
        encoder.encode(["moon", ""], prompt="the sun ")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", [[0, 0.6], [0, 0]]),
        ("dot", [[0, 9], [0, 0]]),
        ("euclidean", [[-5, -4], [0, -3]]),
        ("manhattan", [[-7, -4], [0, -3]]),
    ],
)
def test_similarities_by_hand(make, name, expected):
    encoder = SentenceEncoder.load(make("tiny", {SENTENCE: {"similarity_fn_name": name}}))
    u, v = np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(encoder.similarity(u, v), expected, atol=1e-12, rtol=0)
    with pytest.raises(InputError, match="width 2 and 1 cannot be compared"):
        encoder.similarity(u, v[:, :1])


def test_what_is_not_used_here_is_kept(make, tmp_path):
    prompts = {"query": "query: ", "document": "", "other": "a "}
    changes = {
        SENTENCE: {"prompts": prompts, "similarity_fn_name": "dot", "truncate_dim": 7, "requirements": ["torch"]},
        "1_Pooling/config.json": {"include_prompt": False},
        TEXT: {"query_length": 5, "max_seq_length": 9},
    }
    SentenceEncoder.load(make("tiny", changes)).save(tmp_path / "saved")
    stated = {name: json.loads((tmp_path / "saved" / name).read_text()) for name in changes}
    assert stated[SENTENCE] == changes[SENTENCE] | {"default_prompt_name": None, "model_type": "SentenceTransformer"}
    assert stated["1_Pooling/config.json"]["include_prompt"] is False
    assert stated[TEXT] == {"max_seq_length": 9, "do_lower_case": False, "query_length": 5}


def test_heads_read_whole_vectors_of_texts_without_a_prompt(make):
    """From which they have learned; fewer columns and prompts are only for those who ask ``encode``."""
    encoder, plain = SentenceEncoder.load(make("tiny", {SENTENCE: PROMPT | {"truncate_dim": 8}})), SOURCES["tiny"]
    head, pairs = siamese(encoder.width), [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    whole = PairModel(SentenceEncoder.load(plain), head).eval().predict(pairs)
    np.testing.assert_array_equal(PairModel(encoder, head).eval().predict(pairs), whole)
    assert encoder.encode(TEXTS, truncate_dim=24).shape[1] == 24
    assert encoder.encode(TEXTS[:1], output_value="token_embeddings")[0].shape[1] == 24


# -------------------------------------------------------------------------------------------- refused

OTHERS = {"hidden_act": "silu", "position_embedding_type": "relative_key", "is_decoder": True, "model_type": "t5"}
OTHERS |= {"add_cross_attention": True}
NAMES = {"similarity_fn_name": "maxsim", "truncate_dim": 0, "model_type": "CrossEncoder", "default_prompt_name": "q"}
TASK = {"transformer_task": "fill-mask", "modality_config": {"message": {}}, "module_output_name": "sentence_embedding"}
SIDES = {"padding_side": "left", "truncation_side": "middle", "model_input_names": ["input_ids", "token_type_ids"]}
SPECIAL = {"cls_token": "[BOS]", "added_tokens_decoder": {"9": {"content": "cat"}}}
LAYER = {"module_input_name": "token_embeddings", "module_output_name": "other", "use_residual": True}
LAYER |= {"activation_function": "torch.nn.modules.activation.Mish"}
STATED = [  # by source and file: settings that are refused, one at a time
    ("tiny", OPTIONS, SIDES | SPECIAL | {"tokenizer_class": "BertJapaneseTokenizer"}),
    ("tiny", "special_tokens_map.json", {"sep_token": "[EOS]"}),
    ("tiny", TEXT, TASK | {"model_args": {"quantization_config": 1}, "config_kwargs": {"num_hidden_layers": 1}}),
    ("tiny", TEXT, {"processor_kwargs": {"padding_side": "left"}}),
    ("tiny", TEXT, {"processing_kwargs": {"text": {"add_special_tokens": False}}}),
    ("tiny", TEXT, {"processing_kwargs": {"text": {"truncation": False}}}),
    ("tiny", TEXT, {"processing_kwargs": {"common": {"return_attention_mask": False}}}),
    ("tiny", SENTENCE, NAMES),
    ("tiny", NORMALIZE, {"module_input_name": "token_embeddings"}),
    ("distiluse", DENSE, LAYER),
    ("tiny", POOLING, {"pooling_mode": ["mean", "median"]}),
    ("tiny", POOLING, {"pooling_mode": []}),
    ("tiny", CONFIG, OTHERS),
    ("tiny", CONFIG, {"hidden_act": "gelu_new", "num_attention_heads": 5}),
    ("roberta", CONFIG, {"pad_token_id": -1}),
    ("distiluse", CONFIG, {"dim": 0, "dropout": 1.5, "activation": "silu"}),
]
REFUSED = [(source, name, {key: value}) for source, name, changes in STATED for key, value in changes.items()]


@pytest.mark.parametrize(("source", "name", "changes"), REFUSED, ids=[str(case[1:]) for case in REFUSED])
def test_refused_by_file_key_and_value(make, source, name, changes):
    """In one line."""
    folder = make(source, {name: changes})
    while isinstance(changes, dict) and len(changes) == 1:
        (key, changes), *_ = changes.items()
        if key in ("added_tokens_decoder", "modality_config"):
            break
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(folder)
    message = str(error.value)
    assert str(folder / name) in message
    assert key in message
    assert isinstance(changes, dict) or key == "num_attention_heads" or repr(changes).strip("[']") in message
    assert "\n" not in message


def listing(i: int = 1, **changes: object) -> list[dict]:
    """``modules.json`` of the tiny model with one entry changed."""
    modules = json.loads((SOURCES["tiny"] / MODULES).read_text())
    modules[i] |= changes
    return modules


GROWING = UNPOOLED | {"pooling_mode": "weightedmean"}
EMPTY = dict.fromkeys(("transformer_task", "modality_config", "module_output_name"), ...)
WHOLE = [  # refused as a whole: the source, what changes in its files, and the message
    ("tiny", {OPTIONS: GENERIC | INPUTS, TOKENIZER: {"post_processor": TYPED}}, "token types of one text must be 0"),
    ("tiny", {MODULES: listing(type=5)}, "modules.json: "),
    ("tiny", {MODULES: listing(2, path=None)}, "modules.json: "),
    ("tiny", {MODULES: [{"path": ""}]}, "modules.json: no key 'type'"),
    ("tiny", {MODULES: [5]}, "modules.json: "),
    ("tiny", {MODULES: listing(path="../elsewhere")}, "path '../elsewhere' leads out of the folder"),
    ("tiny", {MODULES: listing(path="/elsewhere")}, "path '/elsewhere' leads out of the folder"),
    ("tiny", {MODULES: listing(path=300 * "a")}, r"a{300}/config\.json: File name too long"),
    ("tiny", {"adapter_config.json": {"peft_type": "LORA"}}, r"adapter_config\.json: adapters are not .*: merge it"),
    ("tiny", {CONFIG: {"pad_token_id": 131}}, r"table has 131 rows, and the tokenizer has 'pad_token_id \(131\)'"),
    ("tiny", {POOLING: GROWING}, "include_prompt False is not supported: with weightedmean"),
    # a file under its name of 2019, alone or beside an empty one of today
    ("tiny", {TEXT: None, "sentence_xlm-roberta_config.json": {"max_seq_length": 6}}, f"rename it to {TEXT}"),
    ("tiny", {TEXT: EMPTY, "sentence_roberta_config.json": {"do_lower_case": True}}, f"rename it to {TEXT}"),
]


@pytest.mark.parametrize(("source", "changes", "message"), WHOLE)
def test_refused_by_folder_and_reason(make, source, changes, message):
    with pytest.raises(InputError, match=message) as error:
        SentenceEncoder.load(make(source, changes))
    assert "/folder" in str(error.value)


@pytest.mark.parametrize("kind", ["custom_st.Pooling", "sentence_transformers_2.models.Pooling"])
def test_a_class_of_another_package_is_not_taken_for_ours(make, kind):
    folder = make("tiny", {MODULES: listing(type=kind)})
    for load in (SentenceEncoder.load, encoder.SentenceEncoder.load):
        with pytest.raises(InputError, match=rf"{folder}.* {kind}"):
            load(folder)


def test_bert_with_the_two_files_of_roberta(make):
    folder = make("tiny", {})
    Backend.from_file(str(SOURCES["roberta"] / TOKENIZER)).model.save(str(folder))
    (folder / TOKENIZER).unlink()
    with pytest.raises(InputError, match="BPE model, and BertTokenizer needs WordPiece"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize("unknown", [0, 3, 4, None])
def test_the_unknown_token_of_xlm_roberta(make, unknown):
    """transformers gives this class number 3 whatever the file says: here the two must agree."""
    folder = make("tiny", {OPTIONS: {"tokenizer_class": "XLMRobertaTokenizer"}})
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>", "▁", "a")]
    Backend(models.Unigram(pieces, unknown)).save(str(folder / TOKENIZER))
    if unknown == 3:
        assert read_tokenizer(folder).encode(["aq"]).ids == [[0, 4, 5, 3, 2]]  # <s> ▁ a <unk> </s>
        return
    with pytest.raises(InputError, match=r"tokenizer\.json: unk_id"):
        read_tokenizer(folder)


SIZES = "hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings vocab_size"
KEYS = [
    ("tiny", CONFIG, SIZES, ["16", 10**30]),
    ("tiny", CONFIG, "type_vocab_size pad_token_id", [1.5, 10**30]),
    ("tiny", CONFIG, "layer_norm_eps hidden_dropout_prob initializer_range", ["0.1", float("nan")]),
    ("tiny", CONFIG, "model_type hidden_act", [5]),
    ("distiluse", CONFIG, "dim n_layers dropout attention_dropout activation", [[], None]),
    ("tiny", OPTIONS, "do_lower_case strip_accents tokenize_chinese_chars split_special_tokens", ["yes", 1]),
    ("roberta", OPTIONS, "add_prefix_space", ["yes"]),
    ("tiny", OPTIONS, "tokenizer_class truncation_side padding_side", [True]),
    ("tiny", OPTIONS, "cls_token sep_token unk_token", [5, {}, None]),
    ("tiny", OPTIONS, "model_max_length", ["16", 1.5, True, float("inf")]),
    ("tiny", TEXT, "max_seq_length do_lower_case processor_kwargs processing_kwargs model_args", ["x", 1.5]),
    ("tiny", TEXT, "tokenizer_name_or_path transformer_task modality_config", [5]),
    ("tiny", SENTENCE, "prompts default_prompt_name similarity_fn_name truncate_dim model_type", [1.5]),
    ("tiny", POOLING, "pooling_mode include_prompt", [5, {}, [5]]),
    ("distiluse", DENSE, "in_features out_features", ["20", True, 0, None]),
    ("distiluse", DENSE, "bias activation_function", [5]),
]
WRONG = [(source, name, key, value) for source, name, keys, values in KEYS for key in keys.split() for value in values]


@pytest.mark.parametrize(("source", "name", "key", "value"), WRONG)
def test_values_of_a_wrong_type_name_file_and_key(make, source, name, key, value):
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(make(source, {name: {key: value}}))
    assert name in str(error.value)
    assert key in str(error.value)


def test_the_padding_of_roberta_in_a_text():
    encoder = SentenceEncoder.load(SOURCES["roberta"])
    with pytest.raises(InputError, match="the text 'a <pad> dog' contains <pad>"):
        encoder.encode(["a cat", "a <pad> dog"])
    with pytest.raises(InputError, match="contains <pad>"):
        encoder.tokenizer.encode_pairs(["a cat"], ["<pad>"])
    assert SentenceEncoder.load(SOURCES["tiny"]).encode(["a [PAD] dog"]).shape == (1, 24)


def test_a_text_without_a_token(make):
    tokenizer = read_tokenizer(make("tiny", {OPTIONS: GENERIC, TOKENIZER: {"post_processor": None}}))
    assert tokenizer.encode(["a cat"]).ids == [[5, 58]]
    assert tokenizer.encode_pairs([""], ["a cat"]).ids == [[5, 58]]
    with pytest.raises(InputError, match="the text '' has no token"):
        tokenizer.encode(["a cat", ""])
    with pytest.raises(InputError, match="has no token"):
        tokenizer.encode_pairs([""], [" "])


NARROW = {"model_type": "electra", "embedding_size": 12}  # as the small model has it


@pytest.mark.parametrize(
    ("source", "changes", "name", "message"),
    [
        (
            "tiny",
            {},
            "classifier.bias",
            r"has a task head, classifier\.bias \(.*ModelForATask.*PairModel opens a Cross",
        ),
        ("distiluse", {}, "pre_classifier.weight", r"has a task head, pre_classifier\.weight \("),
        ("roberta", {}, "qa_outputs.bias", r"has a task head, qa_outputs\.bias \("),
        ("tiny", NARROW, "embeddings_project.weight", r"unexpected embeddings_project\.weight"),
    ],
)
def test_a_tensor_of_another_model_is_named(make, source, changes, name, message):
    folder = make(source, {CONFIG: {"architectures": ["ModelForATask"]} | changes})
    found = load_file(folder / "model.safetensors") | {name: torch.ones(2, 3)}
    save_file(found, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(folder)


# ---------------------------------------------------------------------------------- any value in any place

VALUES = [None, True, 0, -1, 7, 0.5, 1e300, float("nan"), float("inf"), 10**30, 2**31, "", "x", "\0", "../..", [], [5]]
VALUES += [[None], {}, {"a": {"b": []}}, "a" * 500, 100_000]


def places(content: object, *before: object) -> Iterator[tuple]:
    """The keys that lead to each value in a JSON file."""
    yield before
    items = content.items() if isinstance(content, dict) else enumerate(content if isinstance(content, list) else [])
    for key, value in items:
        yield from places(value, *before, key)


def replaced(content: object, keys: tuple, value: object) -> object:
    if not keys:
        return value
    content[keys[0]] = replaced(content[keys[0]], keys[1:], value)
    return content


@pytest.mark.parametrize("source", ["tiny", "roberta", "distiluse"])
def test_any_value_in_any_place_is_an_input_error_or_gives_vectors(source, tmp_path):
    """A seeded sample. The error has one line and names a file of the folder."""
    torch.manual_seed(0)
    encoder, chance = SentenceEncoder.load(SOURCES[source]), random.Random(0)
    folder = tmp_path / "folder"
    PairModel(encoder, siamese(encoder.width)).save(folder)
    (folder / "special_tokens_map.json").write_text('{"unk_token": "[UNK]", "additional_special_tokens": ["a"]}')
    files = [*folder.rglob("*.json")]
    for _ in range(25):
        path = chance.choice(files)
        before = path.read_text()
        content = json.loads(before)
        keys, value = chance.choice([*places(content)]), chance.choice(VALUES)
        path.write_text(json.dumps(replaced(content, keys, value)))
        message = ""
        try:
            assert PairModel.load(folder).encoder.encode(["a cat"]).shape[0] == 1
        except InputError as error:
            message = str(error)
        shown = f"{path.name} {keys}: {value!r:.80} gave {message}"
        assert not message or str(folder) in message, shown
        assert "\n" not in message or path.name == "head.json", shown
        path.write_text(before)
