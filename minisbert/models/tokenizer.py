"""Read the tokenizer of any kind of folder into the book's class, and write it again.

Imports ``core``, ``system`` and ``checkpoints``; ``checkpoints/tokenizer_files.py`` reads the files.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    SPECIAL_TOKENS,
    TEXT_SETTINGS,
    TOKENIZER_CONFIG,
    VOCABULARY_FILES,
    unsupported,
)
from minisbert.checkpoints.layout import ModelFolder
from minisbert.checkpoints.tokenizer_files import (
    DOWNLOAD_ARGUMENTS,
    GENERIC_CLASS,
    LEFT_CLASSES,
    TOKENIZER,
    TYPED_CLASSES,
    TokenizerFiles,
    check_vocabulary,
    read_tokenizer_files,
)
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Encoded, Tokenizer
from minisbert.models.guards import check_count
from minisbert.system.files import write_json

STAGES = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor")  # what settings change in tokenizer.json
LATE_INTERACTION = ("query_length", "document_length", "query_expansion")  # a MultiVectorEncoder's; only saved again


@dataclass
class Source:
    """The files that a tokenizer was read from, for ``write_tokenizer``."""

    content: bytes | None  # of tokenizer.json
    settings: dict[str, dict]  # of other files
    text_settings: dict[str, Any]  # more of sentence_bert_config.json than the limit
    vocabulary: bool  # there are files of ``VOCABULARY_FILES``


def read_tokenizer(
    folder: str | Path | ModelFolder, limit: int | None = None, module: dict[str, Any] | None = None
) -> Tokenizer:
    """Read ``tokenizer.json``, or ``vocab.txt`` if there is none, and the settings in the files beside it.

    The maximum number of tokens is ``limit``, else that of ``sentence_bert_config.json``, else ``model_max_length``
    of ``tokenizer_config.json``; never more than the position table of ``config.json``. ``module`` is what the
    encoder's module may state, as in ``read_tokenizer_files``. Raises ``InputError`` for files that are missing or
    cannot be read, and for settings that are not supported.
    """
    folder = ModelFolder.of(folder)
    family, config = folder.config
    files = read_tokenizer_files(folder, config.vocab_size, module)
    pad_id = config.pad_token_id or 0
    check_vocabulary(files.backend, config.vocab_size, folder, pad_id)
    check_inputs_supported(files, relative=getattr(family, "relative", False))
    positions = config.positions
    if limit is None:  # what the folder states may be huge, if the model's author set no limit
        limit = positions if files.limit is None else min(files.limit, positions)
    else:
        check_count("a maximum length", limit)
        if limit > positions:
            table = f"the position table of {folder.path}, which has {positions}"
            raise InputError(f"a maximum length of {limit} is above {table}")
    with reading(folder.path):
        tokenizer = Tokenizer(files.backend, int(limit), pad_id)
        tokenizer.cut_start = files.truncation_side == "left"
        # not every encoder gets token types
        typed = files.tokenizer_class in TYPED_CLASSES
        if files.model_inputs is not None:
            typed = "token_type_ids" in files.model_inputs
        if not typed:
            for slots in (tokenizer.single_template, tokenizer.pair_template):
                slots[:] = [(sequence, token, 0) for sequence, token, _ in slots]
        if any(kind != 0 for _, _, kind in tokenizer.single_template):
            raise ValueError("post_processor of tokenizer.json: token types of one text must be 0")
    if getattr(config, "position_offset", 0):  # RoBERTa and MPNet have no position for padding
        tokenizer.forbidden = pad_id
    tokenizer.source = read_source(folder, files)
    return tokenizer


def read_source(folder: ModelFolder, files: TokenizerFiles) -> Source:
    """Read what ``write_tokenizer`` will write again."""
    text_settings: dict[str, Any] = {}
    if files.lower_case:
        text_settings["do_lower_case"] = True
    for key in LATE_INTERACTION:
        value = folder.json(TEXT_SETTINGS).get(key)
        if value is not None and folder.described:
            text_settings[key] = value
    settings = dict(folder.json(TOKENIZER_CONFIG))
    for key, value in files.arguments.items():
        # where the source came from says nothing of the copy, and the limit is written as max_seq_length
        if value is not None and key not in DOWNLOAD_ARGUMENTS and key != "model_max_length":
            settings[key] = value
    if files.truncation_side == "left":
        settings["truncation_side"] = "left"
    if folder.json(CONFIG).get("tokenizer_class"):
        # config.json is written anew without it
        generic = files.tokenizer_class == GENERIC_CLASS
        settings["tokenizer_class"] = "PreTrainedTokenizerFast" if generic else files.tokenizer_class
    content = folder.read(TOKENIZER) if folder.has(TOKENIZER) else None
    vocabulary = any((folder.path / name).is_file() for name in VOCABULARY_FILES)
    others = {TOKENIZER_CONFIG: settings, SPECIAL_TOKENS: folder.json(SPECIAL_TOKENS)}
    return Source(content, others, text_settings, vocabulary)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the settings that were read, and ``tokenizer.json`` with what they changed, and without lengths."""
    source = tokenizer.source or Source(None, {}, {}, False)
    for name, settings in source.settings.items():
        if settings:
            write_json(folder / name, settings)
    if source.vocabulary:
        # not a copy: beside tokenizer.json the source's files are not read, and may be links to anything
        tokenizer.backend.model.save(str(folder))
    current = json.loads(tokenizer.backend.to_str())
    content = current if source.content is None else json.loads(source.content)
    for stage in STAGES:
        content[stage] = current[stage]
    content["padding"] = content["truncation"] = None
    (folder / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def text_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of ``sentence_bert_config.json``."""
    more = tokenizer.source.text_settings if tokenizer.source else {}
    return {"max_seq_length": tokenizer.limit, "do_lower_case": False} | more


def check_tokens(encoded: Encoded, texts: Sequence[str]) -> Encoded:
    """Return what was given. Raises ``InputError`` for a text without a token, which an encoder cannot read."""
    for text, ids in zip(texts, encoded.ids, strict=True):
        if not len(ids):
            raise InputError(f"the text {one_line(text)} has no token, and this tokenizer adds none: remove the text")
    return encoded


def check_inputs_supported(files: TokenizerFiles, relative: bool) -> None:
    """Raise ``InputError`` for tensors that an encoder cannot be given: ``relative`` says that it counts distances."""
    if files.padding_side == "left" and not relative:
        reason = "pads before a text move its positions"
        if files.tokenizer_class in LEFT_CLASSES:
            reason += f" ({files.tokenizer_class} puts them there unless padding_side is right)"
        raise unsupported(files.options.place("padding_side"), "padding_side", "left", reason)
    if files.model_inputs is not None and "attention_mask" not in files.model_inputs:
        place = files.options.place("model_input_names")
        raise unsupported(place, "model_input_names", files.model_inputs, "attention_mask must be one")


def with_limit(tokenizer: Tokenizer, limit: int) -> Tokenizer:
    """Return a copy that cuts texts at another length; other encoders may share the tokenizer."""
    if limit < len(tokenizer.pair_template):
        raise InputError(f"a token limit of {limit} is too small: a pair needs {len(tokenizer.pair_template)}")
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        check_texts(texts)
    for i, text in enumerate(texts):
        check_texts([text], i)
        yield text
