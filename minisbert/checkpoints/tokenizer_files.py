"""Read the tokenizer of a folder as transformers 5 and sentence-transformers do, into the book's
class; and write it.

Who writes which file, and what it says:

    tokenizer.json             tokenizers: the vocabulary, and how a text is cleaned, split and framed. If transformers
                               knows the tokenizer's class, it takes only the vocabulary, and builds
                               the rest from the options in other files and the class's defaults
                               (``TOKENIZER_CLASSES``). For ``PreTrainedTokenizerFast`` it takes the
                               whole file.
    vocab.txt, merges.txt      older versions: the vocabulary alone, which tokenizer.json holds too. They are not read.
    tokenizer_config.json      transformers: the class and its options, the special tokens, ``model_max_length``
    special_tokens_map.json    transformers, older versions: the special tokens. It is read only if the former has no
                               ``added_tokens_decoder``.
    config.json                transformers: the class, in some older folders
    sentence_bert_config.json  sentence-transformers: the limit, ``do_lower_case``, and arguments for the tokenizer,
                               which override tokenizer_config.json

docs/models.md lists the classes. Imports ``core``, ``system``, and the folder's layout.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.layout import (
    CONFIG,
    OLD_TEXT_SETTINGS,
    SPECIAL_TOKENS,
    TEXT_SETTINGS,
    TOKENIZER_CONFIG,
    JsonSettings,
    ModelFolder,
    has_file,
    unsupported,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer, TokenizerSource
from minisbert.core import InputError, one_line
from minisbert.system.files import listed, write_json
from minisbert.system.reading import reading

TOKENIZER = "tokenizer.json"
PROBE = "A cat, ÉŠſ 1"  # shows tables of characters that are damaged before a user's text does

LATE_INTERACTION = (
    "query_length",
    "document_length",
    "query_expansion",
)  # a MultiVectorEncoder's; only saved again
# what a Transformer module computes by its ``transformer_task``: the result that it takes, and the
# name it gives it
TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),  # a CrossEncoder
    "fill-mask": ("logits", "token_embeddings"),  # SPLADE
}
# arguments of transformers' functions that change no vector: where files come from, and how it
# computes
DOWNLOAD_ARGUMENTS = {
    "cache_dir",
    "local_files_only",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
    "use_auth_token",
}
COMPUTE_ARGUMENTS = {
    "add_pooling_layer",
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "torch_dtype",
}
CALL_ARGUMENTS = {"max_length", "pad_to_multiple_of", "padding", "return_tensors", "verbose"}
HARMLESS_ARGUMENTS = DOWNLOAD_ARGUMENTS | COMPUTE_ARGUMENTS | CALL_ARGUMENTS
# and arguments that change none with these values
ARGUMENT_VALUES = {
    "truncation": (True, "longest_first", "only_first"),
    "return_attention_mask": (True,),
}

GENERIC_CLASS = "TokenizersBackend"  # takes tokenizer.json as it is
GENERIC_NAMES = (GENERIC_CLASS, "PreTrainedTokenizer")
# by model_type; the hub's files for ModernBERT state wrong classes, and transformers does not read
# them
DEFAULT_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "modernbert": GENERIC_CLASS,
    "gemma3_text": "GemmaTokenizer",
}
TYPED_CLASSES = (
    "BertTokenizer",
    "ElectraTokenizer",
)  # give the second text of a pair the token type 1
LEFT_CLASSES = ("GemmaTokenizer",)  # pad before a text unless the files say otherwise

Files = list[
    tuple[Path, dict[str, Any]]
]  # a file and its contents; a later one overrides those before it


def read_tokenizer(folder: str | Path | ModelFolder, limit: int | None = None) -> ModelTokenizer:
    """Read the tokenizer in an encoder's folder.

    The maximum number of tokens is ``limit``, else the first that a file states; never more than
    the encoder has positions. Raises ``InputError`` for files that are missing or damaged, for
    settings that are not supported, and for a ``limit`` out of range.
    """
    folder = folder if isinstance(folder, ModelFolder) else ModelFolder(folder)
    family, config = folder.config
    texts, arguments, call = read_text_settings(folder)
    files = [
        (folder.path / TOKENIZER_CONFIG, folder.json(TOKENIZER_CONFIG)),
        (texts.path, arguments),
    ]
    options, calls = JsonSettings(*files), JsonSettings((texts.path, arguments), (texts.path, call))

    # the limit
    stated = [
        calls.get(
            "max_length", int
        ),  # a user of sentence-transformers, for each call or for the tokenizer
        calls.get("model_max_length", int),
        texts.get("max_seq_length", int),  # sentence-transformers, in nearly every folder
        options.get("model_max_length", int),  # transformers; 1e30 if the author set none
        options.get("max_len", int),  # transformers in 2019
    ]
    if limit is None:
        limit = min(
            next((tokens for tokens in stated if tokens is not None), config.positions),
            config.positions,
        )
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise InputError(f"a maximum length must be an integer from 1, not {one_line(limit)}")
    if limit > config.positions:
        table = f"the position table of {folder.path}, which has {config.positions}"
        raise InputError(f"a maximum length of {limit} is above {table}")

    # the library's tokenizer, and the ends at which a text is padded and cut: from the options,
    # else from tokenizer.json, else the usual ones
    name = find_class(folder, options)
    if not has_file(folder.path / TOKENIZER):
        advice = (
            "transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
        raise InputError(f"{folder.path} has no {TOKENIZER}; {advice}")
    with reading(folder.path / TOKENIZER):
        content = (folder.path / TOKENIZER).read_bytes()
    with reading(folder.path / TOKENIZER_CONFIG):
        backend = build_backend(folder, content, name, options, files, config.vocab_size)
        lower_case = texts.get("do_lower_case", bool, False)
        if lower_case:
            # before the tokenizer's own normalizer sees the text, unless that does it already
            stages = normalizer_stages(backend)
            if not any(isinstance(stage, normalizers.Lowercase) for stage in stages):
                backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *stages])
        padding_side = "left" if name in LEFT_CLASSES else "right"
        if backend.padding is not None:
            padding_side = backend.padding["direction"].lower()
        truncation_side = (
            backend.truncation["direction"].lower() if backend.truncation is not None else "right"
        )
    padding_side = options.choice("padding_side", None, "left", "right") or padding_side
    truncation_side = options.choice("truncation_side", None, "left", "right") or truncation_side

    # what the encoder cannot be given
    pad_id = config.pad_token_id or 0
    check_vocabulary(backend, config.vocab_size, folder, pad_id)
    if padding_side == "left" and not getattr(family, "relative", False):  # it counts distances
        reason = "pads before a text move its positions"
        if name in LEFT_CLASSES:
            reason += f" ({name} puts them there unless padding_side is right)"
        raise unsupported(options.place("padding_side"), "padding_side", "left", reason)
    inputs = options.get("model_input_names", list, items=str)  # the tensors that it gets of a text
    if inputs is not None and "attention_mask" not in inputs:
        reason = "attention_mask must be one"
        raise unsupported(options.place("model_input_names"), "model_input_names", inputs, reason)

    # not every encoder gets token types
    typed = name in TYPED_CLASSES if inputs is None else "token_type_ids" in inputs
    # RoBERTa and MPNet have no position for padding
    forbidden = pad_id if getattr(config, "position_offset", 0) else None
    with reading(folder.path):
        tokenizer = ModelTokenizer(
            backend,
            int(limit),
            pad_id,
            cut_start=truncation_side == "left",
            forbidden=forbidden,
            token_types=typed,
        )
    # Ignore ordinary exceptions, since the probe may be untypical; a Rust panic means that the file
    # is damaged. The padding is off by now: a file may ask for any length.
    with reading(folder.path / TOKENIZER), suppress(Exception):
        backend.encode(PROBE)
    if any(slot.token_type != 0 for slot in tokenizer.single_template):
        raise InputError(
            f"{folder.path / TOKENIZER}: token types of one text must be 0 in post_processor"
        )

    # what ``write_tokenizer`` writes again; ``arguments`` without where the source came from, which
    # says nothing of the copy, and without the limit, which is written as max_seq_length
    more = {key: value for key, (_, value) in texts.values.items() if key in LATE_INTERACTION}
    if lower_case:
        more["do_lower_case"] = True
    unsaved = DOWNLOAD_ARGUMENTS | {"model_max_length"}
    settings = dict(folder.json(TOKENIZER_CONFIG))
    settings |= {
        key: value for key, value in arguments.items() if value is not None and key not in unsaved
    }
    if tokenizer.cut_start:
        settings["truncation_side"] = "left"
    if folder.json(CONFIG).get("tokenizer_class"):  # config.json is written anew without it
        settings["tokenizer_class"] = "PreTrainedTokenizerFast" if name == GENERIC_CLASS else name
    others = {TOKENIZER_CONFIG: settings, SPECIAL_TOKENS: folder.json(SPECIAL_TOKENS)}
    tokenizer.source = TokenizerSource(content, others, more)
    return tokenizer


def read_text_settings(folder: ModelFolder) -> tuple[JsonSettings, dict, dict]:
    """Read ``sentence_bert_config.json``: its settings, arguments for the tokenizer, arguments for
    each call of it.

    Raises ``InputError`` for an encoder's module that does another task than the folder's class
    computes, and for arguments that may change vectors.
    """
    path = folder.path / TEXT_SETTINGS
    if not folder.described:
        return JsonSettings((path, {})), {}, {}
    content = folder.json(TEXT_SETTINGS)
    # an old name beside today's is a leftover; alone, ignoring it would change the limit
    old = sorted(folder.path.glob(OLD_TEXT_SETTINGS))
    if not content and old and old != [path]:
        raise InputError(
            f"{old[0]} has the name of an old version and is not read: rename it to {TEXT_SETTINGS}"
        )
    # the only value supported of each key that the module may state about itself
    result, output = TASKS[folder.task]
    modality = {"text": {"method": "forward", "method_output_name": result}}
    module = {
        "transformer_task": folder.task,
        "modality_config": modality,
        "module_output_name": output,
    }
    for key, only in (module | {"tokenizer_name_or_path": None}).items():
        if content.get(key, only) != only:
            raise unsupported(path, key, content[key], "it may change the vectors")
    texts = JsonSettings((path, content))
    calls = texts.get("processing_kwargs", dict, {}, items=dict)
    call = calls.get("common", {}) | calls.get("text", {})
    # arguments for transformers' model, its config, and each call of its tokenizer: any of them may
    # change vectors
    groups = {
        "model_kwargs": texts.get("model_args", dict, texts.get("model_kwargs", dict, {})),
        "config_kwargs": texts.get("config_args", dict, texts.get("config_kwargs", dict, {})),
        "processing_kwargs": call,
    }
    for group, given in groups.items():
        for key, value in given.items():
            if key not in HARMLESS_ARGUMENTS and value not in ARGUMENT_VALUES.get(key, ()):
                raise unsupported(path, f"{key} in {group}", value, "it may change the vectors")
    # sentence-transformers reads the tokenizer's arguments under their former name too, and that
    # one first
    return texts, texts.get("tokenizer_args", dict, texts.get("processor_kwargs", dict, {})), call


def find_class(folder: ModelFolder, options: JsonSettings) -> str:
    """Return the class with which transformers would read the folder, without ``Fast``."""
    name = DEFAULT_CLASSES[folder.model_type]
    written, path = options.get("tokenizer_class", str), folder.path / TOKENIZER_CONFIG
    if not written:
        written, path = (
            folder.json_settings(CONFIG).get("tokenizer_class", str),
            folder.path / CONFIG,
        )
    if written is not None and name != GENERIC_CLASS:
        name = written.removesuffix("Fast")
    if name in GENERIC_NAMES:
        return GENERIC_CLASS
    if name not in TOKENIZER_CLASSES:
        names = ", ".join([*TOKENIZER_CLASSES, *GENERIC_NAMES])
        reason = f"supported: {names}; if {TOKENIZER} is complete, write PreTrainedTokenizerFast"
        raise unsupported(path, "tokenizer_class", written, reason)
    return name


def build_backend(
    folder: ModelFolder, content: bytes, name: str, options: JsonSettings, files: Files, rows: int
) -> Backend:
    """Build the library's tokenizer with what the class of this name in transformers gives it.

    ``content`` is tokenizer.json. The embedding table has ``rows``.
    """
    with reading(folder.path / TOKENIZER):
        backend = Backend.from_buffer(content)
    decoder = options.get("added_tokens_decoder", dict, items=dict)
    # folders that transformers wrote before it had this key: it reads special_tokens_map.json of no
    # others
    if decoder is None:
        files = [*files, (folder.path / SPECIAL_TOKENS, folder.json(SPECIAL_TOKENS))]
    if name == GENERIC_CLASS:
        special = SpecialTokens(backend, files, {})
    else:
        tokenizer = TOKENIZER_CLASSES[name]
        if not isinstance(backend.model, tokenizer.model):
            # transformers would make such a model of the vocabulary, which was made for another one
            models_named = f"a {type(backend.model).__name__} model, and {name} needs {tokenizer.model.__name__}"
            advice = "write another tokenizer_class; PreTrainedTokenizerFast takes any model"
            raise InputError(f"{folder.path} holds {models_named}: {advice}")
        special = SpecialTokens(backend, files, tokenizer.tokens)
        if tokenizer.model is models.Unigram:
            check_unknown(folder, name, special)
        tokenizer.rebuild(backend, options, special)
    if decoder is not None:
        special.check_decoder(decoder, rebuilt=name != GENERIC_CLASS)
    # Register the named tokens as special so that they are never split: after the class has rebuilt
    # the rest, which may replace tokens. One that is not in the vocabulary gets the next id if the
    # embedding table has a row for it.
    in_backend = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token in special.named:
        if backend.token_to_id(token.content) is not None or backend.get_vocab_size() < rows:
            token = in_backend.get(token.content, token)  # with its flags, such as lstrip
            token.special = True
            backend.add_special_tokens([token])
    backend.encode_special_tokens = options.get("split_special_tokens", bool, False)
    return backend


def check_unknown(folder: ModelFolder, name: str, special: "SpecialTokens") -> None:
    """Raise ``InputError`` if a Unigram model has another unknown token than transformers gives its
    class.

    That is number 3 for XLM-RoBERTa and the place of ``unk_token`` for CamemBERT, whatever
    ``tokenizer.json`` says.
    """
    wanted = 3
    if name != "XLMRobertaTokenizer":
        token = added_token(special.values["unk_token"])
        wanted = special.backend.token_to_id("" if token is None else token.content) or 0
    try:
        ids = [
            token.id for token in special.backend.model.tokenize("\U0010fffd")
        ]  # no vocabulary has this character
    except Exception:  # the library's own, without an unknown token
        ids = []
    if ids != [wanted]:
        raise unsupported(
            folder.path / TOKENIZER, "unk_id", ids, f"{name} needs {wanted}, without byte_fallback"
        )


def check_vocabulary(backend: Backend, rows: int, folder: ModelFolder, pad_id: int = 0) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    ids = backend.get_vocab() | {"pad_token_id": pad_id}
    beyond = sorted((i, token) for token, i in ids.items() if i >= rows)
    if beyond:
        tokens = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        sizes = f"the embedding table has {rows:,} rows, and the tokenizer has {tokens}"
        raise InputError(f"{folder.path}: {sizes}: {reason}")


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: Backend, files: Files, defaults: dict[str, str]):
        self.backend = backend
        self.values: dict[str, Any] = {f"{name}_token": text for name, text in defaults.items()}
        self.paths = dict.fromkeys(self.values, files[0][0])
        for path, content in files:
            has_list = isinstance(self.values.get("additional_special_tokens"), list)
            for key, value in content.items():
                if path.name == SPECIAL_TOKENS and key == "additional_special_tokens" and has_list:
                    continue  # tokenizer_config.json has the last word
                self.values[key], self.paths[key] = value, path
        # every token that the files name, by a key or in a list
        values = [value for key, value in self.values.items() if key.endswith("_token")]
        more = self.values.get("extra_special_tokens")
        if isinstance(more, dict):  # each has a name, such as image_token
            values.extend(more.values())
            more = None
        more = more or self.values.get("additional_special_tokens")
        if isinstance(more, list):
            values.extend(more)
        self.named = [token for token in map(added_token, values) if token is not None]

    def __getitem__(self, key: str) -> tuple[str, int]:
        """Return a token and its id."""
        token = added_token(self.values[key])
        number = None if token is None else self.backend.token_to_id(token.content)
        if token is None or number is None:
            raise InputError(
                f"{self.paths[key]}: {key} {one_line(self.values[key])} is not a token of the "
                f"vocabulary"
            )
        return token.content, number

    def check_decoder(self, decoder: dict[str, dict], rebuilt: bool) -> None:
        """Raise ``InputError`` if ``added_tokens_decoder`` lists tokens that ``tokenizer.json``
        lacks.

        For a rebuilt tokenizer it is the last word, and must not lack one either.
        """
        in_backend = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        decoded = {
            token.content for token in map(added_token, decoder.values()) if token is not None
        }
        other = decoded - in_backend
        if rebuilt:
            other |= in_backend - decoded - {token.content for token in self.named}
        if other:
            reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
            raise unsupported(
                self.paths["added_tokens_decoder"], "added_tokens_decoder", decoder, reason
            )


def added_token(value: Any) -> AddedToken | None:
    """Read a token from a file's value: a string, or an object with the string as ``content``; None
    for others.
    """
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {
        name: value[name]
        for name in ("lstrip", "rstrip", "single_word")
        if isinstance(value.get(name), bool)
    }
    return AddedToken(value["content"], special=True, **flags)


def rebuild_bert(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those
    of uncased BERT.
    """
    backend.model.unk_token = special["unk_token"][0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=options.get("do_lower_case", bool, True),
        strip_accents=options.get("strip_accents", bool),
        handle_chinese_chars=options.get("tokenize_chinese_chars", bool, True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = special["cls_token"], special["sep_token"]
    pair = f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1"
    backend.post_processor = processors.TemplateProcessing(
        f"{cls[0]} $A {sep[0]}", pair, [cls, sep]
    )


def rebuild_mpnet(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """BERT's pieces between <s> and </s>."""
    rebuild_bert(backend, options, special)
    backend.post_processor = processors.RobertaProcessing(
        special["sep_token"], special["cls_token"]
    )


def rebuild_bpe(backend: Backend, unknown: str | None = None) -> None:
    """Set up the BPE model: by default bytes, none of which is unknown; with ``unknown``
    SentencePiece's.
    """
    model = backend.model
    model.dropout, model.unk_token = None, unknown
    model.continuing_subword_prefix = model.end_of_word_suffix = ""
    model.fuse_unk = model.byte_fallback = unknown is not None
    model.ignore_merges = False
    backend.normalizer = None


def rebuild_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE without a normalizer between <s> and </s>; a space before the text only if the
    options ask.
    """
    rebuild_bpe(backend)
    space = options.get("add_prefix_space", bool, False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    sep, cls = special["sep_token"], special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


# (?i:...): English endings; then words, single digits, marks, line ends, other spaces
QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def rebuild_qwen2(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE of composed characters (NFC), split by ``QWEN_WORDS``."""
    rebuild_bpe(backend)
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    space = options.get("add_prefix_space", bool, False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    # they lose their flags, such as lstrip
    named = {token.content for token in special.named}
    backend.add_special_tokens(
        [AddedToken(token) for token in sorted(named & backend.get_vocab().keys())]
    )


def rebuild_gemma(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's BPE: a space is a character like others, what is unknown becomes bytes."""
    rebuild_bpe(backend, special["unk_token"][0])
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")


def rebuild_xlm_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of
    characters stays.
    """
    tables = [
        stage for stage in normalizer_stages(backend) if isinstance(stage, normalizers.Precompiled)
    ]
    backend.normalizer = tables[0] if tables else None
    scheme = "always" if options.get("add_prefix_space", bool, True) else "never"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    # subtle: not cls and sep, which have the same texts unless somebody has changed one of them
    bos, eos = special["bos_token"], special["eos_token"]
    pair = [bos[0], "$A", eos[0], eos[0], "$B", eos[0]]
    backend.post_processor = processors.TemplateProcessing([bos[0], "$A", eos[0]], pair, [bos, eos])


def normalizer_stages(backend: Backend) -> list[normalizers.Normalizer]:
    """List the normalizers that a text goes through, in order."""
    if backend.normalizer is None:
        return []
    if isinstance(backend.normalizer, normalizers.Sequence):
        return list(backend.normalizer)  # type: ignore[call-overload]  # the library's stub lacks __iter__
    return [backend.normalizer]


class TokenizerClass(NamedTuple):
    """The library's model, the special tokens unless the files name others, and what rebuilds the
    rest.
    """

    model: type
    tokens: dict[str, str]
    rebuild: Callable[[Backend, JsonSettings, SpecialTokens], None]


BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ROBERTA_TOKENS = {
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
    "bos": "<s>",
    "cls": "<s>",
    "eos": "</s>",
}
ROBERTA_TOKENS["sep"] = "</s>"
QWEN_TOKENS = dict.fromkeys(("unk", "eos", "pad"), "<|endoftext|>")
GEMMA_TOKENS = {"unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "bos": "<bos>", "eos": "<eos>"}
BERT_CLASS = TokenizerClass(models.WordPiece, BERT_TOKENS, rebuild_bert)
XLM_ROBERTA_CLASS = TokenizerClass(models.Unigram, ROBERTA_TOKENS, rebuild_xlm_roberta)
TOKENIZER_CLASSES = {
    "BertTokenizer": BERT_CLASS,
    "DistilBertTokenizer": BERT_CLASS,
    "ElectraTokenizer": BERT_CLASS,
    "MPNetTokenizer": TokenizerClass(
        models.WordPiece, ROBERTA_TOKENS | {"unk": "[UNK]"}, rebuild_mpnet
    ),
    "RobertaTokenizer": TokenizerClass(models.BPE, ROBERTA_TOKENS, rebuild_roberta),
    "XLMRobertaTokenizer": XLM_ROBERTA_CLASS,
    "CamembertTokenizer": XLM_ROBERTA_CLASS,
    "Qwen2Tokenizer": TokenizerClass(models.BPE, QWEN_TOKENS, rebuild_qwen2),
    "GemmaTokenizer": TokenizerClass(models.BPE, GEMMA_TOKENS, rebuild_gemma),
}


def write_tokenizer(tokenizer: ModelTokenizer, folder: Path) -> None:
    """Write the settings that were read, and ``tokenizer.json`` with what they changed, and without
    lengths.
    """
    source = tokenizer.source or TokenizerSource(None, {}, {})
    for name, settings in source.settings.items():
        if settings:
            write_json(folder / name, settings)
    current = json.loads(tokenizer.backend.to_str())
    content = current if source.content is None else json.loads(source.content)
    for stage in (
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
    ):  # what settings change
        content[stage] = current[stage]
    content["padding"] = content["truncation"] = None
    (folder / TOKENIZER).write_text(
        json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8"
    )


def text_settings(tokenizer: ModelTokenizer) -> dict[str, Any]:
    """Return the contents of ``sentence_bert_config.json``."""
    more = tokenizer.source.text_settings if tokenizer.source else {}
    return {"max_seq_length": tokenizer.limit, "do_lower_case": False} | more
