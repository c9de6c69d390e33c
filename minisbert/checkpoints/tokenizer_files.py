"""Read the tokenizer of a folder as transformers 5 and sentence-transformers do; and write it.

Who writes which file, and what it says:

    tokenizer.json             tokenizers: the vocabulary, and how a text is cleaned, split and
                               framed. If transformers knows the tokenizer's class, it takes only
                               the vocabulary, and builds the rest from the options in other files
                               and the class's defaults (``TOKENIZER_CLASSES``). For
                               ``PreTrainedTokenizerFast`` it takes the whole file.
    vocab.txt, merges.txt      older versions: the vocabulary alone, which tokenizer.json holds too.
                               They are not read.
    tokenizer_config.json      transformers: the class and its options, the special tokens,
                               ``model_max_length``
    special_tokens_map.json    transformers, older versions: the special tokens. It is read only if
                               tokenizer_config.json has no ``added_tokens_decoder``.
    added_tokens.json          transformers, older versions: tokens beyond the vocabulary, which
                               tokenizer.json holds too. They are only compared, in the same case.
    config.json                transformers: the class, in some older folders
    sentence_bert_config.json  sentence-transformers: the limit, ``do_lower_case``, and arguments
                               for the tokenizer, which override tokenizer_config.json

docs/models.md lists the classes. Imports ``core``, ``system``, and the folder's layout.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
    read_folder,
    unsupported,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer, TokenizerSource
from minisbert.checkpoints.tokenizer_limits import check_added_tokens, check_stages
from minisbert.core import InputError, one_line
from minisbert.system.files import listed, write_json
from minisbert.system.reading import printable, reading

TOKENIZER = "tokenizer.json"
ADDED_TOKENS = "added_tokens.json"
PROBE = "A cat, ÉŠſ 1"  # shows tables of characters that are damaged before a user's text does

# Settings of a MultiVectorEncoder, which are only saved again.
LATE_INTERACTION = ("query_length", "document_length", "query_expansion")
# For each ``transformer_task`` of a Transformer module: which of transformers' results the module
# reads, and the name under which it hands the result to the next module.
TASK_RESULTS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),  # a CrossEncoder
    "fill-mask": ("logits", "token_embeddings"),  # SPLADE
}
# Arguments of transformers' functions that change no vector: where files come from, and how it
# computes.
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
# Arguments that change no vector if they have one of these values.
HARMLESS_VALUES = {
    "truncation": (True, "longest_first", "only_first"),
    "return_attention_mask": (True,),
}

GENERIC_CLASS = "TokenizersBackend"  # takes tokenizer.json as it is
GENERIC_NAMES = (GENERIC_CLASS, "PreTrainedTokenizer")
# The class of a folder that states none, by model_type. ModernBERT is always read by the generic
# class, as in transformers: its files on the Hub state wrong ones.
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
# The classes that give the second text of a pair the token type 1.
TOKEN_TYPE_CLASSES = ("BertTokenizer", "ElectraTokenizer")
# The classes that pad before a text unless the files say otherwise.
LEFT_PADDING_CLASSES = ("GemmaTokenizer",)

# Each file with its contents, whose keys override those of the files before it.
FileContents = list[tuple[Path, dict[str, Any]]]


@dataclass(frozen=True)
class TextSettings:
    """``sentence_bert_config.json``, which overrides transformers' own files."""

    settings: JsonSettings
    tokenizer_arguments: dict[str, Any]  # for transformers' tokenizer
    call_arguments: dict[str, Any]  # for each call of it

    @property
    def path(self) -> Path:
        return self.settings.path


def read_tokenizer(folder: str | Path | ModelFolder, limit: int | None = None) -> ModelTokenizer:
    """Read the tokenizer in an encoder's folder.

    The maximum number of tokens is ``limit``, else the first that a file states; never more than
    the encoder has positions. Raises ``InputError`` for files that are missing or damaged, for
    settings that are not supported, and for a ``limit`` out of range.
    """
    if not isinstance(folder, ModelFolder):
        folder = read_folder(folder)
    _, config = folder.config
    text_config = read_text_settings(folder)
    files = [
        (folder.path / TOKENIZER_CONFIG, folder.json(TOKENIZER_CONFIG)),
        (text_config.path, text_config.tokenizer_arguments),
    ]
    options = JsonSettings(*files)

    # What the files state is checked, whether an argument overrides it or not.
    stated_limit = read_limit(text_config, options, config.positions)
    if limit is None:
        limit = stated_limit
    check_limit(limit, config.positions, folder)

    class_name = find_class(folder, options)
    content = read_content(folder)
    with reading(folder.path / TOKENIZER_CONFIG):
        backend = build_backend(folder, content, class_name, options, files, config.vocab_size)
        if text_config.settings.get("do_lower_case", bool, False):
            lower_case(backend)

    # The ends at which a text is padded and cut. They are read before ``ModelTokenizer`` switches
    # the library's padding and truncation off.
    default_side = "left" if class_name in LEFT_PADDING_CLASSES else "right"
    padding_side = read_side("padding_side", options, backend.padding, default_side)
    truncation_side = read_side("truncation_side", options, backend.truncation, "right")

    # Refuse what the encoder cannot take: ids beyond its table, pads that move its positions.
    pad_id = config.pad_token_id or 0
    check_vocabulary(backend, config.vocab_size, folder.path, pad_id)
    check_padding(folder, options, class_name, padding_side)

    # Not every encoder gets token types.
    inputs = read_inputs(options)
    token_types = class_name in TOKEN_TYPE_CLASSES
    if inputs is not None:
        token_types = "token_type_ids" in inputs

    tokenizer = make_tokenizer(folder, backend, int(limit), pad_id, truncation_side, token_types)
    tokenizer.source = keep_for_saving(folder, content, class_name, text_config, truncation_side)
    return tokenizer


def read_text_settings(folder: ModelFolder) -> TextSettings:
    """Read ``sentence_bert_config.json``.

    Raises ``InputError`` for an encoder's module that does another task than the folder's class
    computes, and for arguments that may change vectors.
    """
    path = folder.path / TEXT_SETTINGS
    if not folder.described:
        return TextSettings(JsonSettings((path, {})), {}, {})
    content = folder.json(TEXT_SETTINGS)
    # An old name beside today's is a leftover; alone, ignoring it would change the limit.
    old = [file for file in sorted(folder.path.glob(OLD_TEXT_SETTINGS)) if file != path]
    if old and not content:
        raise InputError(
            f"{old[0]} has the name of an old version and is not read: rename it to {TEXT_SETTINGS}"
        )

    # The module may describe what it computes; of each of these keys one value is supported.
    result, output = TASK_RESULTS[folder.task]
    expected = {
        "transformer_task": folder.task,
        "modality_config": {"text": {"method": "forward", "method_output_name": result}},
        "module_output_name": output,
        "tokenizer_name_or_path": None,
    }
    for key, value in expected.items():
        if content.get(key, value) != value:
            raise unsupported(path, key, content[key], "it may change the vectors")

    # Arguments for transformers' model, its config, and each call of its tokenizer: any of them may
    # change vectors.
    settings = JsonSettings((path, content))
    by_modality = settings.get("processing_kwargs", dict, {}, items=dict)
    call_arguments = by_modality.get("common", {}) | by_modality.get("text", {})
    groups = {
        "model_kwargs": read_arguments(settings, "model_args", "model_kwargs"),
        "config_kwargs": read_arguments(settings, "config_args", "config_kwargs"),
        "processing_kwargs": call_arguments,
    }
    for group, arguments in groups.items():
        for key, value in arguments.items():
            if not is_harmless(key, value):
                name = f"{printable(key)} in {group}"
                raise unsupported(path, name, value, "it may change the vectors")
    tokenizer_arguments = read_arguments(settings, "tokenizer_args", "processor_kwargs")
    return TextSettings(settings, tokenizer_arguments, call_arguments)


def is_harmless(key: str, value: Any) -> bool:
    """Whether an argument of transformers' functions changes no vector."""
    return key in HARMLESS_ARGUMENTS or value in HARMLESS_VALUES.get(key, ())


def read_arguments(settings: JsonSettings, old: str, new: str) -> dict[str, Any]:
    """Read arguments under their former name, or today's, as sentence-transformers does."""
    return settings.get(old, dict, settings.get(new, dict, {}))


def read_limit(text_config: TextSettings, options: JsonSettings, positions: int) -> int:
    """Return the first maximum number of tokens that a file states, at most ``positions``."""
    arguments = JsonSettings(
        (text_config.path, text_config.tokenizer_arguments),
        (text_config.path, text_config.call_arguments),
    )
    limits = [
        # Some authors gave sentence-transformers arguments for the tokenizer or each call of it.
        arguments.get("max_length", int),
        arguments.get("model_max_length", int),
        # Nearly every folder of sentence-transformers has this one.
        text_config.settings.get("max_seq_length", int),
        # transformers writes this one, as 1e30 if the author set none.
        options.get("model_max_length", int),
        # transformers of 2019 wrote this one.
        options.get("max_len", int),
    ]
    for limit in limits:
        if limit is not None:
            return min(limit, positions)
    return positions


def check_limit(limit: Any, positions: int, folder: ModelFolder) -> None:
    """Raise ``InputError`` unless the limit is an integer from 1 to the encoder's ``positions``."""
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise InputError(f"a maximum length must be an integer from 1, not {one_line(limit)}")
    if limit > positions:
        raise InputError(
            f"a maximum length of {limit} is above the position table of {folder.path}, which has "
            f"{positions}"
        )


def read_content(folder: ModelFolder) -> bytes:
    """Read tokenizer.json."""
    path = folder.path / TOKENIZER
    if not has_file(path):
        raise InputError(
            f"{folder.path} has no {TOKENIZER}; transformers writes it: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    with reading(path):
        return path.read_bytes()


def lower_case(backend: Backend) -> None:
    """Put every letter in lower case before the tokenizer's own normalizer sees the text."""
    stages = normalizer_stages(backend)
    if not any(isinstance(stage, normalizers.Lowercase) for stage in stages):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *stages])


def read_side(key: str, options: JsonSettings, stage: dict[str, Any] | None, default: str) -> str:
    """Return the end at which a text is padded or cut, "left" or "right".

    It is the one in the options; else that of ``stage``, the padding or truncation in
    tokenizer.json; else the ``default`` one.
    """
    side = options.choice(key, None, "left", "right")
    if side is not None:
        return side
    if stage is not None:
        return stage["direction"].lower()
    return default


def check_padding(folder: ModelFolder, options: JsonSettings, class_name: str, side: str) -> None:
    """Raise ``InputError`` for pads before a text, unless the encoder counts distances."""
    family, _ = folder.config
    if side == "left" and not family.relative:
        reason = "pads before a text move its positions"
        if class_name in LEFT_PADDING_CLASSES:
            reason += f" ({class_name} puts them there unless padding_side is right)"
        raise unsupported(options.file_of("padding_side"), "padding_side", "left", reason)


def read_inputs(options: JsonSettings) -> list[str] | None:
    """Read the names of the tensors that the encoder gets of a text; None if no file states them.

    Raises ``InputError`` if the mask is none of them.
    """
    inputs = options.get("model_input_names", list, items=str)
    if inputs is not None and "attention_mask" not in inputs:
        path = options.file_of("model_input_names")
        raise unsupported(path, "model_input_names", inputs, "attention_mask must be one")
    return inputs


def make_tokenizer(
    folder: ModelFolder,
    backend: Backend,
    limit: int,
    pad_id: int,
    truncation_side: str,
    token_types: bool,
) -> ModelTokenizer:
    """Make a model's tokenizer from the library's.

    A long text is cut at ``truncation_side``; without ``token_types`` they are all 0.
    """
    # RoBERTa and MPNet have no position for padding.
    _, config = folder.config
    forbidden = None
    if getattr(config, "position_offset", 0):
        forbidden = pad_id

    with reading(folder.path):
        tokenizer = ModelTokenizer(
            backend,
            limit,
            pad_id,
            cut_start=truncation_side == "left",
            forbidden=forbidden,
            token_types=token_types,
        )

    # Ignore ordinary exceptions, since the probe may be untypical; a Rust panic means that the file
    # is damaged. The padding is off by now: a file may ask for any length.
    with reading(folder.path / TOKENIZER), suppress(Exception):
        backend.encode(PROBE)

    check_templates(folder, tokenizer)
    return tokenizer


def check_templates(folder: ModelFolder, tokenizer: ModelTokenizer) -> None:
    """Raise ``InputError`` for special tokens around a text that the encoder cannot take."""
    if any(slot.token_type != 0 for slot in tokenizer.single_template):
        raise InputError(
            f"{folder.path / TOKENIZER}: token types of one text must be 0 in post_processor"
        )

    _, config = folder.config
    for slot in tokenizer.single_template + tokenizer.pair_template:
        if slot.sentence is not None:
            continue
        if slot.token >= config.vocab_size:
            raise InputError(
                f"{folder.path / TOKENIZER}: post_processor puts the token {slot.token} around a "
                f"text, and the embedding table has {config.vocab_size:,} rows"
            )
        # subtle: in transformers such a token has the padding's position, and those after it do
        # not count it
        if slot.token == tokenizer.forbidden:
            name = printable(str(tokenizer.tokens([slot.token])[0]))
            raise InputError(
                f"{folder.path / CONFIG}: pad_token_id {slot.token} is the id of {name}, which is "
                f"put around each text and then has no position: this is not supported, train "
                f"with the id of the tokenizer's padding"
            )


def keep_for_saving(
    folder: ModelFolder,
    content: bytes,
    class_name: str,
    text_config: TextSettings,
    truncation_side: str,
) -> TokenizerSource:
    """Collect what ``write_tokenizer`` writes again: tokenizer.json's ``content`` and settings."""
    kept_text_settings: dict[str, Any] = {}
    for key, (_, value) in text_config.settings.values.items():
        if key in LATE_INTERACTION:
            kept_text_settings[key] = value
    if text_config.settings.get("do_lower_case", bool, False):
        kept_text_settings["do_lower_case"] = True

    # Where the source was downloaded from says nothing about the copy, and the limit is written as
    # max_seq_length.
    unsaved = DOWNLOAD_ARGUMENTS | {"model_max_length"}
    settings = dict(folder.json(TOKENIZER_CONFIG))
    for key, value in text_config.tokenizer_arguments.items():
        if value is not None and key not in unsaved:
            settings[key] = value
    if truncation_side == "left":
        settings["truncation_side"] = "left"
    # A class that config.json states moves here: config.json is written anew, without it.
    if folder.json(CONFIG).get("tokenizer_class"):
        settings["tokenizer_class"] = class_name
        if class_name == GENERIC_CLASS:
            # This is the name of the generic class that older versions of transformers know, too.
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"

    kept_settings = {TOKENIZER_CONFIG: settings, SPECIAL_TOKENS: folder.json(SPECIAL_TOKENS)}
    return TokenizerSource(content, kept_settings, kept_text_settings)


# ------------------------------------------------------------------------ the library's tokenizer


def find_class(folder: ModelFolder, options: JsonSettings) -> str:
    """Return the class with which transformers would read the folder, without ``Fast``."""
    path = folder.path / TOKENIZER_CONFIG
    from_file = options.get("tokenizer_class", str)
    if not from_file:
        path = folder.path / CONFIG
        from_file = folder.json_settings(CONFIG).get("tokenizer_class", str)

    # What the files state counts, unless the family always has the generic class.
    name = DEFAULT_CLASSES[folder.model_type]
    if from_file is not None and name != GENERIC_CLASS:
        name = from_file.removesuffix("Fast")
    if name in GENERIC_NAMES:
        return GENERIC_CLASS
    if name not in TOKENIZER_CLASSES:
        names = ", ".join([*TOKENIZER_CLASSES, *GENERIC_NAMES])
        reason = f"supported: {names}; if {TOKENIZER} is complete, write PreTrainedTokenizerFast"
        raise unsupported(path, "tokenizer_class", from_file, reason)
    return name


def build_backend(
    folder: ModelFolder,
    content: bytes,
    class_name: str,
    options: JsonSettings,
    files: FileContents,
    rows: int,
) -> Backend:
    """Build the library's tokenizer as the class of this name in transformers does.

    ``content`` is tokenizer.json. The embedding table has ``rows``.
    """
    check_added_tokens(content, folder.path / TOKENIZER)
    with reading(folder.path / TOKENIZER):
        backend = Backend.from_buffer(content)
    # Older folders have no ``added_tokens_decoder``, and their special tokens in another file.
    added_tokens = options.get("added_tokens_decoder", dict, items=dict)
    if added_tokens is None:
        files = [*files, (folder.path / SPECIAL_TOKENS, folder.json(SPECIAL_TOKENS))]

    if class_name == GENERIC_CLASS:
        special = SpecialTokens(backend, files, {})
    else:
        tokenizer_class = TOKENIZER_CLASSES[class_name]
        check_model(folder, class_name, backend)
        special = SpecialTokens(backend, files, tokenizer_class.tokens)
        if tokenizer_class.model is models.Unigram:
            check_unknown(folder, class_name, special)
        tokenizer_class.rebuild(backend, options, special)

    if added_tokens is not None:
        is_rebuilt = class_name != GENERIC_CLASS
        special.check_added_tokens(added_tokens, is_rebuilt)
    # This comes last, because rebuilding may replace tokens.
    special.register(rows)
    if added_tokens is None:
        check_older_added_tokens(folder, backend)
    check_stages(backend, folder.path / TOKENIZER)
    backend.encode_special_tokens = options.get("split_special_tokens", bool, False)
    return backend


def check_older_added_tokens(folder: ModelFolder, backend: Backend) -> None:
    """Raise ``InputError`` for tokens of added_tokens.json that tokenizer.json lacks.

    transformers would add them.
    """
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = sorted(folder.json(ADDED_TOKENS).keys() - added)
    if missing:
        raise InputError(
            f"{folder.path / ADDED_TOKENS}: {listed(missing)} are not among the added_tokens of "
            f"{TOKENIZER}; transformers writes them there: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def check_model(folder: ModelFolder, class_name: str, backend: Backend) -> None:
    """Raise ``InputError`` if tokenizer.json holds another kind of model than the class needs.

    transformers would use the vocabulary with the class's kind, for which it was not made.
    """
    needed = TOKENIZER_CLASSES[class_name].model
    if not isinstance(backend.model, needed):
        raise InputError(
            f"{folder.path} holds a {type(backend.model).__name__} model, and {class_name} needs "
            f"{needed.__name__}: write another tokenizer_class; PreTrainedTokenizerFast takes any "
            f"model"
        )


def check_unknown(folder: ModelFolder, class_name: str, special: "SpecialTokens") -> None:
    """Raise ``InputError`` if a Unigram model has another unknown token than its class.

    In transformers the id of the unknown token is 3 for XLM-RoBERTa and that of ``unk_token`` for
    CamemBERT, whatever ``tokenizer.json`` says.
    """
    if class_name == "XLMRobertaTokenizer":
        needed = 3
    else:
        content = ""
        token = added_token(special.values["unk_token"])
        if token is not None:
            content = token.content
        needed = special.backend.token_to_id(content) or 0

    # No vocabulary has this character, so the model makes its unknown token of it.
    try:
        ids = [token.id for token in special.backend.model.tokenize("\U0010fffd")]
    except Exception:  # the library raises Exception itself if there is no unknown token
        ids = []
    if ids != [needed]:
        reason = f"{class_name} needs {needed}, without byte_fallback"
        raise unsupported(folder.path / TOKENIZER, "unk_id", ids, reason)


def check_vocabulary(backend: Backend, rows: int, folder: Path, pad_id: int = 0) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    # The padding's id is looked up too; the message calls it by its key in config.json.
    ids = backend.get_vocab() | {"pad_token_id": pad_id}
    beyond = sorted((i, token) for token, i in ids.items() if i >= rows)
    if beyond:
        tokens = listed([f"{token} ({i})" for i, token in beyond])
        raise InputError(
            f"{folder}: the embedding table has {rows:,} rows, and the tokenizer has {tokens}: "
            f"tokenizer and weights do not belong together"
        )


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: Backend, files: FileContents, defaults: dict[str, str]):
        self.backend = backend
        self.values: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}  # for each key the file to name in an error
        first_file, _ = files[0]
        for name, text in defaults.items():
            self.values[f"{name}_token"] = text
            self.paths[f"{name}_token"] = first_file
        for path, content in files:
            for key, value in content.items():
                # A list in tokenizer_config.json is not overridden by the one in the older file.
                is_older_list = path.name == SPECIAL_TOKENS and key == "additional_special_tokens"
                if is_older_list and isinstance(self.values.get(key), list):
                    continue
                self.values[key] = value
                self.paths[key] = path
        self.named = self.named_tokens()

    def named_tokens(self) -> list[AddedToken]:
        """List every token that the files name, by a key or in a list."""
        values = [value for key, value in self.values.items() if key.endswith("_token")]
        # Newer files have tokens with names of their own, such as image_token, as an object here.
        # A list here is the newer name of additional_special_tokens, and counts in its place.
        extra = self.values.get("extra_special_tokens")
        additional = self.values.get("additional_special_tokens")
        if isinstance(extra, dict):
            values.extend(extra.values())
        elif extra:
            additional = extra
        if isinstance(additional, list):
            values.extend(additional)

        tokens = []
        for value in values:
            token = added_token(value)
            if token is not None:
                tokens.append(token)
        return tokens

    def __getitem__(self, key: str) -> tuple[str, int]:
        """Return a token and its id."""
        token = added_token(self.values[key])
        if token is not None:
            number = self.backend.token_to_id(token.content)
            if number is not None:
                return token.content, number
        value = one_line(self.values[key])
        raise InputError(f"{self.paths[key]}: {key} {value} is not a token of the vocabulary")

    def register(self, rows: int) -> None:
        """Register the named tokens with the library as special, so that they are never split.

        One that is not in the vocabulary gets the next id if the embedding table has a row for it.
        """
        already_added = {}
        for token in self.backend.get_added_tokens_decoder().values():
            already_added[token.content] = token
        for token in self.named:
            in_vocabulary = self.backend.token_to_id(token.content) is not None
            if in_vocabulary or self.backend.get_vocab_size() < rows:
                # tokenizer.json's own entry has the token's flags, such as lstrip.
                token = already_added.get(token.content, token)
                token.special = True
                self.backend.add_special_tokens([token])

    def check_added_tokens(self, added_tokens: dict[str, dict], is_rebuilt: bool) -> None:
        """Raise ``InputError`` for tokens in ``added_tokens_decoder`` that tokenizer.json lacks.

        A rebuilt tokenizer has only the tokens that these files name, so tokenizer.json must have
        no others either.
        """
        backend_tokens = self.backend.get_added_tokens_decoder().values()
        in_backend = {token.content for token in backend_tokens}
        in_config = set()
        for value in added_tokens.values():
            token = added_token(value)
            if token is not None:
                in_config.add(token.content)

        differing = in_config - in_backend
        if is_rebuilt:
            named = {token.content for token in self.named}
            differing |= in_backend - in_config - named
        if differing:
            path = self.paths["added_tokens_decoder"]
            reason = f"added_tokens of tokenizer.json differ in {listed(sorted(differing))}"
            raise unsupported(path, "added_tokens_decoder", added_tokens, reason)


def added_token(value: Any) -> AddedToken | None:
    """Read a token from a file's value: a string, or an object with the string as ``content``.

    Other values are no token: None.
    """
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {}
    for name in ("lstrip", "rstrip", "single_word"):
        if isinstance(value.get(name), bool):
            flags[name] = value[name]
    return AddedToken(value["content"], special=True, **flags)


# ------------------------------------------------- what each class of transformers builds by itself


def rebuild_bert(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP].

    The defaults are those of uncased BERT.
    """
    backend.model.unk_token, _ = special["unk_token"]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=options.get("do_lower_case", bool, True),
        strip_accents=options.get("strip_accents", bool),
        handle_chinese_chars=options.get("tokenize_chinese_chars", bool, True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, cls_id = special["cls_token"]
    sep, sep_id = special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", [(cls, cls_id), (sep, sep_id)]
    )


def rebuild_mpnet(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """BERT's pieces between <s> and </s>."""
    rebuild_bert(backend, options, special)
    sep = special["sep_token"]
    cls = special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(sep, cls)


def rebuild_bpe(backend: Backend, unknown: str | None = None) -> None:
    """Set up a BPE model: SentencePiece's if there is an ``unknown`` token, else one of bytes.

    Every byte is in the vocabulary, so the latter needs no unknown token.
    """
    is_sentence_piece = unknown is not None
    model = backend.model
    model.dropout = None
    model.unk_token = unknown
    model.continuing_subword_prefix = ""
    model.end_of_word_suffix = ""
    model.fuse_unk = is_sentence_piece
    model.byte_fallback = is_sentence_piece
    model.ignore_merges = False
    backend.normalizer = None


def rebuild_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE between <s> and </s>, without a normalizer.

    A text begins with a space only if the options ask for it.
    """
    rebuild_bpe(backend)
    space = options.get("add_prefix_space", bool, False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    sep = special["sep_token"]
    cls = special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English endings
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"  # words, with the space or mark before them
    r"|\p{N}"  # single digits
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # marks
    r"|\s*[\r\n]+"  # line ends
    r"|\s+(?!\S)|\s+"  # other spaces
)


def rebuild_qwen2(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE of composed characters (NFC), split by ``QWEN_WORDS``."""
    rebuild_bpe(backend)
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    space = options.get("add_prefix_space", bool, False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    # The special tokens of the vocabulary lose their flags, such as lstrip.
    named = {token.content for token in special.named}
    in_vocabulary = sorted(named & backend.get_vocab().keys())
    backend.add_special_tokens([AddedToken(token) for token in in_vocabulary])


def rebuild_gemma(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's BPE: a space is a character like others, what is unknown becomes bytes."""
    unknown, _ = special["unk_token"]
    rebuild_bpe(backend, unknown)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")


def rebuild_xlm_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's Unigram after a split at spaces.

    Of the file's normalizer only the table of characters stays.
    """
    table = None
    for stage in normalizer_stages(backend):
        if isinstance(stage, normalizers.Precompiled):
            table = stage
            break
    backend.normalizer = table

    scheme = "never"
    if options.get("add_prefix_space", bool, True):
        scheme = "always"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])

    # subtle: not cls and sep, which have the same texts unless somebody has changed one of them
    bos, bos_id = special["bos_token"]
    eos, eos_id = special["eos_token"]
    single = [bos, "$A", eos]
    pair = [bos, "$A", eos, eos, "$B", eos]
    backend.post_processor = processors.TemplateProcessing(
        single, pair, [(bos, bos_id), (eos, eos_id)]
    )


def normalizer_stages(backend: Backend) -> list[normalizers.Normalizer]:
    """List the normalizers that a text goes through, in order."""
    if backend.normalizer is None:
        return []
    if isinstance(backend.normalizer, normalizers.Sequence):
        return list(backend.normalizer)  # type: ignore[call-overload]  # the library's stub lacks __iter__
    return [backend.normalizer]


class TokenizerClass(NamedTuple):
    """What a class of transformers gives a tokenizer."""

    model: type  # the library's
    tokens: dict[str, str]  # the special tokens unless the files name others
    rebuild: Callable[[Backend, JsonSettings, SpecialTokens], None]  # everything else


BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ROBERTA_TOKENS = {
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
    "bos": "<s>",
    "cls": "<s>",
    "eos": "</s>",
    "sep": "</s>",
}
MPNET_TOKENS = ROBERTA_TOKENS | {"unk": "[UNK]"}
QWEN_TOKENS = {"unk": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|endoftext|>"}
GEMMA_TOKENS = {"unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "bos": "<bos>", "eos": "<eos>"}
BERT_CLASS = TokenizerClass(models.WordPiece, BERT_TOKENS, rebuild_bert)
XLM_ROBERTA_CLASS = TokenizerClass(models.Unigram, ROBERTA_TOKENS, rebuild_xlm_roberta)
TOKENIZER_CLASSES = {
    "BertTokenizer": BERT_CLASS,
    "DistilBertTokenizer": BERT_CLASS,
    "ElectraTokenizer": BERT_CLASS,
    "MPNetTokenizer": TokenizerClass(models.WordPiece, MPNET_TOKENS, rebuild_mpnet),
    "RobertaTokenizer": TokenizerClass(models.BPE, ROBERTA_TOKENS, rebuild_roberta),
    "XLMRobertaTokenizer": XLM_ROBERTA_CLASS,
    "CamembertTokenizer": XLM_ROBERTA_CLASS,
    "Qwen2Tokenizer": TokenizerClass(models.BPE, QWEN_TOKENS, rebuild_qwen2),
    "GemmaTokenizer": TokenizerClass(models.BPE, GEMMA_TOKENS, rebuild_gemma),
}


# ------------------------------------------------------------------------------------- writing it


def write_tokenizer(tokenizer: ModelTokenizer, folder: Path) -> None:
    """Write the settings that were read, and ``tokenizer.json`` with what they changed.

    Lengths are left out of it: other files state the limit.
    """
    current = json.loads(tokenizer.backend.to_str())
    content = current
    source = tokenizer.source
    if source is not None:
        for name, settings in source.settings.items():
            if settings:
                write_json(folder / name, settings)
        if source.content is not None:
            content = json.loads(source.content)

    # The vocabulary stays as it was read; the settings may have changed these four.
    for stage in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor"):
        content[stage] = current[stage]
    content["padding"] = None
    content["truncation"] = None
    text = json.dumps(content, ensure_ascii=False, indent=2)
    (folder / TOKENIZER).write_text(text, encoding="utf-8")


def text_settings(tokenizer: ModelTokenizer) -> dict[str, Any]:
    """Return the contents of ``sentence_bert_config.json``."""
    content: dict[str, Any] = {"max_seq_length": tokenizer.limit, "do_lower_case": False}
    if tokenizer.source:
        content |= tokenizer.source.text_settings
    return content
