"""Read the tokenizer of a folder as transformers 5 and sentence-transformers do: vocabulary, class, options, limits.

transformers takes only the vocabulary from ``tokenizer.json`` if it knows the tokenizer's class: it builds the rest
anew, from the options in other files or from the class's defaults. So does this file; docs/models.md lists the classes.
Imports ``core``, ``system``, and the folder's layout and settings.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    OLD_TEXT_SETTINGS,
    SPECIAL_TOKENS,
    TEXT_SETTINGS,
    TOKENIZER_CONFIG,
    JsonSettings,
    unsupported,
)
from minisbert.checkpoints.layout import CLASSIFIER_MODULE, ENCODER_MODULE, ModelFolder
from minisbert.checkpoints.tokenizer_classes import (
    DEFAULT_CLASSES,
    GENERIC_CLASS,
    GENERIC_NAMES,
    LEFT_CLASSES,
    TOKENIZER_CLASSES,
    Files,
    SpecialTokens,
    normalizer_stages,
)
from minisbert.core import InputError, one_line, reading
from minisbert.system.files import listed, read_text

TOKENIZER = "tokenizer.json"
PROBE = "A cat, ÉŠſ 1"  # shows tables of characters that are damaged before a user's text does
# arguments of transformers' functions that change no vector: where files come from, and how it computes
DOWNLOAD_ARGUMENTS = set("cache_dir local_files_only revision subfolder token trust_remote_code use_auth_token".split())
COMPUTE_ARGUMENTS = set("add_pooling_layer attn_implementation device_map dtype low_cpu_mem_usage torch_dtype".split())
CALL_ARGUMENTS = set("max_length pad_to_multiple_of padding return_tensors verbose".split())
HARMLESS_ARGUMENTS = DOWNLOAD_ARGUMENTS | COMPUTE_ARGUMENTS | CALL_ARGUMENTS
# and arguments that change none with these values
ARGUMENT_VALUES = {"truncation": (True, "longest_first", "only_first"), "return_attention_mask": (True,)}


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as the files of its folder describe it."""

    backend: Backend
    tokenizer_class: str  # without ``Fast``
    options: JsonSettings  # ``tokenizer_config.json``, and over it ``arguments``
    arguments: dict[str, Any]  # what ``sentence_bert_config.json`` passes to the tokenizer
    lower_case: bool  # by ``sentence_bert_config.json``, whatever the class does
    limit: int | None  # tokens of a text; None if no file states it
    padding_side: str
    truncation_side: str
    model_inputs: list[str] | None  # the tensors that the encoder gets of a text; None for the class's own


def read_tokenizer_files(folder: ModelFolder, rows: int, module: dict[str, Any] | None = None) -> TokenizerFiles:
    """Read the tokenizer of a folder whose embedding table has ``rows`` rows.

    ``module`` is what the encoder's module may state, by default ``ENCODER_MODULE`` or, with a classifier,
    ``CLASSIFIER_MODULE``. Raises ``InputError`` for files that are missing or damaged, and for settings that are not
    supported.
    """
    texts = read_text_settings(folder, module)
    # sentence-transformers reads these arguments under their former name too, and that one first
    arguments = texts.get("tokenizer_args", dict, texts.get("processor_kwargs", dict, {}))
    files = [(folder.path / TOKENIZER_CONFIG, folder.json(TOKENIZER_CONFIG)), (texts.path, arguments)]
    options = JsonSettings(*files)
    # the first limit that a file gives counts
    calls = JsonSettings((texts.path, arguments), (texts.path, call_arguments(texts)))
    limits = [calls.get("max_length", int), calls.get("model_max_length", int), texts.get("max_seq_length", int)]
    limits += [options.get("model_max_length", int), options.get("max_len", int)]  # the latter in files of 2019
    given_limits = [limit for limit in limits if limit is not None]
    with reading(folder.path / TOKENIZER_CONFIG):
        name = find_class(folder, options)
        backend = build_backend(folder, name, options, files, rows)
        lower_case = texts.get("do_lower_case", bool, False)
        if lower_case:
            # before the tokenizer's own normalizer sees the text, unless that does it already
            stages = normalizer_stages(backend)
            if not any(isinstance(stage, normalizers.Lowercase) for stage in stages):
                backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *stages])
        usual_side = "left" if name in LEFT_CLASSES else "right"
        padding_side = read_side(options, "padding_side", backend.padding, usual_side)
        truncation_side = read_side(options, "truncation_side", backend.truncation, "right")
    return TokenizerFiles(
        backend,
        tokenizer_class=name,
        options=options,
        arguments=arguments,
        lower_case=lower_case,
        limit=given_limits[0] if given_limits else None,
        padding_side=padding_side,
        truncation_side=truncation_side,
        model_inputs=options.get("model_input_names", list, items=str),
    )


def read_text_settings(folder: ModelFolder, module: dict[str, Any] | None) -> JsonSettings:
    """Read the settings in ``sentence_bert_config.json``.

    Raises ``InputError`` for an encoder's module other than ``module``, and for arguments that may change vectors.
    """
    path = folder.path / TEXT_SETTINGS
    if not folder.described:
        return JsonSettings((path, {}))
    content = folder.json(TEXT_SETTINGS)
    # an old name beside today's is a leftover; alone, ignoring it would change the limit
    old = sorted(folder.path.glob(OLD_TEXT_SETTINGS))
    if not content and old and old != [path]:
        raise InputError(f"{old[0]} has the name of an old version and is not read: rename it to {TEXT_SETTINGS}")
    if module is None:
        module = CLASSIFIER_MODULE if folder.classifier else ENCODER_MODULE
    for key, only in module.items():
        if content.get(key, only) != only:
            raise unsupported(path, key, content[key], "it may change the vectors")
    texts = JsonSettings((path, content))
    # arguments for transformers' model, its config, and each call of its tokenizer: any of them may change vectors
    groups = {
        "model_kwargs": texts.get("model_args", dict, texts.get("model_kwargs", dict, {})),
        "config_kwargs": texts.get("config_args", dict, texts.get("config_kwargs", dict, {})),
        "processing_kwargs": call_arguments(texts),
    }
    for group, arguments in groups.items():
        for key, value in arguments.items():
            if key not in HARMLESS_ARGUMENTS and value not in ARGUMENT_VALUES.get(key, ()):
                raise unsupported(path, f"{key} in {group}", value, "it may change the vectors")
    return texts


def call_arguments(texts: JsonSettings) -> dict[str, Any]:
    """Return the arguments of each call of the tokenizer with texts."""
    calls = texts.get("processing_kwargs", dict, {}, items=dict)
    return calls.get("common", {}) | calls.get("text", {})


def read_side(options: JsonSettings, key: str, stored: dict[str, Any] | None, usual: str) -> str:
    """Return the side of a text to pad or cut: from the options, from ``tokenizer.json``, or the usual one."""
    side = options.choice(key, None, "left", "right")
    if side is None and stored is not None:
        side = stored["direction"].lower()
    return side or usual


def find_class(folder: ModelFolder, options: JsonSettings) -> str:
    """Return the class with which transformers would read the folder, without ``Fast``."""
    name = DEFAULT_CLASSES[folder.model_type]
    written, path = options.get("tokenizer_class", str), folder.path / TOKENIZER_CONFIG
    if not written:
        written, path = folder.json_settings(CONFIG).get("tokenizer_class", str), folder.path / CONFIG
    if written is not None and name != GENERIC_CLASS:
        name = written.removesuffix("Fast")
    if name in GENERIC_NAMES:
        # without tokenizer.json there is nothing to take as it is
        return GENERIC_CLASS if folder.has(TOKENIZER) else "BertTokenizer"
    if name not in TOKENIZER_CLASSES:
        names = ", ".join([*TOKENIZER_CLASSES, *GENERIC_NAMES])
        reason = f"supported: {names}; if {TOKENIZER} is complete, write PreTrainedTokenizerFast"
        raise unsupported(path, "tokenizer_class", written, reason)
    return name


def build_backend(folder: ModelFolder, name: str, options: JsonSettings, files: Files, rows: int) -> Backend:
    """Build the library's tokenizer with what the class of this name in transformers gives it."""
    backend = read_backend(folder)
    decoder = options.get("added_tokens_decoder", dict, items=dict)
    # folders that transformers wrote before it had this key: it reads special_tokens_map.json of no others
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
            check_unknown(folder, backend, name, special.text("unk_token"))
        tokenizer.rebuild(backend, options, special)
    if decoder is not None:
        special.check_decoder(decoder, rebuilt=name != GENERIC_CLASS)
    # after the class has rebuilt the rest, which may replace tokens
    special.add(rows)
    backend.encode_special_tokens = options.get("split_special_tokens", bool, False)
    # an Exception may come from what only this text needs; damaged tables panic, and a panic is none
    with reading(folder.path / TOKENIZER), suppress(Exception):
        backend.encode(PROBE)
    return backend


def read_backend(folder: ModelFolder) -> Backend:
    """Read the library's tokenizer from ``tokenizer.json``, or make it of BERT's or RoBERTa's vocabulary."""
    if folder.has(TOKENIZER):
        with reading(folder.path / TOKENIZER):
            return Backend.from_buffer(folder.read(TOKENIZER))
    # the formats from before tokenizer.json
    if folder.has("vocab.txt"):
        return read_word_pieces(folder.path / "vocab.txt")
    if folder.has("vocab.json") and folder.has("merges.txt"):
        with reading(folder.path / "merges.txt"):
            return Backend(models.BPE.from_file(str(folder.path / "vocab.json"), str(folder.path / "merges.txt")))
    names = "neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt"
    advice = "write one of them with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    raise InputError(f"{folder.path} has {names}: {advice}")


def read_word_pieces(vocab: Path) -> Backend:
    """Make BERT's WordPiece from a bare list of word pieces; ``rebuild_bert`` adds the rest."""
    # subtle: not splitlines(), which also splits at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    for piece in special:
        if piece not in ids:
            raise InputError(f"{vocab}: no key {one_line(piece)}, so this is not a BERT vocabulary")
    if "[MASK]" in ids:
        special.append("[MASK]")
    backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.add_special_tokens(special)
    return backend


def check_unknown(folder: ModelFolder, backend: Backend, name: str, unknown_token: str) -> None:
    """Raise ``InputError`` if a Unigram model has another unknown token than transformers gives its class.

    That is number 3 for XLM-RoBERTa and the place of ``unk_token`` for CamemBERT, whatever ``tokenizer.json`` says.
    """
    wanted = 3 if name == "XLMRobertaTokenizer" else backend.token_to_id(unknown_token) or 0
    try:
        ids = [token.id for token in backend.model.tokenize("\U0010fffd")]  # no vocabulary has this character
    except Exception:  # the library's own, without an unknown token
        ids = []
    if ids != [wanted]:
        raise unsupported(folder.path / TOKENIZER, "unk_id", ids, f"{name} needs {wanted}, without byte_fallback")


def check_vocabulary(backend: Backend, rows: int, folder: ModelFolder, pad_id: int = 0) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    ids = backend.get_vocab() | {"pad_token_id": pad_id}
    beyond = sorted((i, token) for token, i in ids.items() if i >= rows)
    if beyond:
        tokens = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        sizes = f"the embedding table has {rows:,} rows, and the tokenizer has {tokens}"
        raise InputError(f"{folder.path}: {sizes}: {reason}")
