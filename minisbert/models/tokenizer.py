"""The book's tokenizer for every kind of folder: settings from several files, a bare ``vocab.txt``, and saving.

Imports ``core``, ``system`` and ``checkpoints``; ``checkpoints/tokenizer_files.py`` reads the files.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from tokenizers import Tokenizer as Backend

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
from minisbert.core import InputError, one_line, reading, tokenizer
from minisbert.core.checks import check_text, check_texts
from minisbert.core.tokenizer import Encoded, assemble
from minisbert.models.guards import check_count
from minisbert.system.files import write_json

STAGES = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor")  # what settings change in tokenizer.json
LATE_INTERACTION = ("query_length", "document_length", "query_expansion")  # a MultiVectorEncoder's; only saved again


class Tokenizer(tokenizer.Tokenizer):
    """``Tokenizer.load(folder)``, then ``encode(texts)`` or ``encode_pairs(firsts, seconds)``, and ``save``."""

    def __init__(self, backend: Backend, limit: int, pad_id: int = 0):
        super().__init__(backend, limit, pad_id)
        self.reserved: int | None = None  # an id that no text may contain
        self.cut_start = False  # long texts lose their start, not their end
        # for ``save``: tokenizer.json as read, other files' contents, and what sentence_bert_config.json states
        self.source: bytes | None = None
        self.settings: dict[str, dict] = {}
        self.more_text_settings: dict[str, Any] = {}
        self.vocabulary = False  # whether ``save`` writes the files of ``VOCABULARY_FILES``

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a tokenizer is not called: encoder.tokenize(texts) gives tensors, encode(texts) lists")

    @classmethod
    def load(
        cls, folder: str | Path | ModelFolder, limit: int | None = None, module: dict[str, Any] | None = None
    ) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` if there is none, and the settings in the files beside it.

        The maximum number of tokens is ``limit``, else that of ``sentence_bert_config.json``, else ``model_max_length``
        of ``tokenizer_config.json``; never more than the position table of ``config.json``. ``module`` is what the
        encoder's module may state, as in ``read_tokenizer_files``. Raises ``InputError`` for files that are missing or
        cannot be read, and for settings that are not supported.
        """
        # read
        folder = ModelFolder.of(folder)
        family, config = folder.config
        files = read_tokenizer_files(folder, config.vocab_size, module)
        pad_id = config.pad_token_id or 0
        # refuse
        check_vocabulary(files.backend, config.vocab_size, folder, pad_id)
        check_inputs_supported(files, relative=getattr(family, "relative", False))
        limit = choose_limit(folder, limit, files.limit, config.positions)
        # build
        with reading(folder.path):
            loaded = cls(files.backend, limit, pad_id)
            loaded.arrange(files)
        if getattr(config, "position_offset", 0):  # RoBERTa and MPNet have no position for padding
            loaded.reserved = pad_id
        loaded.remember(folder, files)
        return loaded

    def arrange(self, files: TokenizerFiles) -> None:
        """Set the token types that the encoder gets, and which end of long texts is cut."""
        typed = files.tokenizer_class in TYPED_CLASSES
        if files.model_inputs is not None:
            typed = "token_type_ids" in files.model_inputs
        self.cut_start = files.truncation_side == "left"
        for slots in (self.single_template, self.pair_template):
            if not typed:
                slots[:] = [(sequence, token, 0) for sequence, token, _ in slots]
            if self.cut_start:
                # subtle: a text cut at its start is the reversed text cut at its end, reversed again
                slots.reverse()
        if any(kind != 0 for _, _, kind in self.single_template):
            raise ValueError("post_processor of tokenizer.json: token types of one text must be 0")

    def remember(self, folder: ModelFolder, files: TokenizerFiles) -> None:
        """Keep for ``save`` the tokenizer's files, and what other files state that are written anew."""
        if files.lower_case:
            self.more_text_settings["do_lower_case"] = True
        for key in LATE_INTERACTION:
            value = folder.json(TEXT_SETTINGS).get(key)
            if value is not None and folder.described:
                self.more_text_settings[key] = value
        self.vocabulary = any((folder.path / name).is_file() for name in VOCABULARY_FILES)
        if folder.has(TOKENIZER):
            self.source = folder.read(TOKENIZER)
        settings = dict(folder.json(TOKENIZER_CONFIG))
        for key, value in files.arguments.items():
            # where the source came from says nothing of the copy, and the limit is written as max_seq_length
            if value is not None and key not in DOWNLOAD_ARGUMENTS and key != "model_max_length":
                settings[key] = value
        if self.cut_start:
            settings["truncation_side"] = "left"
        if folder.json(CONFIG).get("tokenizer_class"):
            # config.json is written anew without it
            generic = files.tokenizer_class == GENERIC_CLASS
            settings["tokenizer_class"] = "PreTrainedTokenizerFast" if generic else files.tokenizer_class
        self.settings = {TOKENIZER_CONFIG: settings, SPECIAL_TOKENS: folder.json(SPECIAL_TOKENS)}

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` for a text without a token, and for RoBERTa's padding in a text."""
        return self._checked(super().encode(texts), texts)

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` as ``encode`` does."""
        return self._checked(super().encode_pairs(firsts, seconds), firsts)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, int]:
        """``encode`` without a step per text: all ids in a row, each text's number of them (N,), how many were cut."""
        if self.cut_start:  # as few models want it
            return flattened(self.encode(texts))
        slots = self.single_template
        room = self.limit - len(slots) + 1
        texts = check_texts(texts)
        pieces = self._pieces(texts)
        whole = np.fromiter(map(len, pieces), np.int64, len(pieces))
        if len(slots) == 1 and not whole.all():
            self.encode(texts)  # names the text without a token
        lengths = np.minimum(whole, room)
        truncated = int((whole > room).sum())
        if truncated:
            pieces = [ids[:room] for ids in pieces]
        ids = np.fromiter(chain.from_iterable(pieces), np.intc, lengths.sum())
        # the special tokens go to their places, and what is left is the texts'
        lengths += len(slots) - 1
        ends = lengths.cumsum()
        framed = np.zeros(lengths.sum(), np.intc)
        of_texts = np.ones(len(framed), bool)
        after = False
        for number, (sequence, token, _) in enumerate(slots):
            if sequence is None:
                places = ends - (len(slots) - number) if after else ends - lengths + number
                framed[places], of_texts[places] = token, False
            else:
                after = True
        framed[of_texts] = ids
        return framed, lengths, truncated

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            if len(texts) == 1:  # without the library's threads, which would have to wake up
                pieces = [self.backend.encode(texts[0], add_special_tokens=False).ids]
            else:
                pieces = super()._pieces(texts)
        except BaseException:
            # the library raises a bare Exception for an unknown token that is missing, and panics at damaged tables
            with reading(f"the tokenizer cannot encode {one_line(texts[0])} or a text after it"):
                raise
        if self.reserved is not None:
            for text, ids in zip(texts, pieces, strict=True):
                if self.reserved in ids:
                    token = self.backend.id_to_token(self.reserved)
                    reason = "the padding token, which has no position: remove it"
                    raise InputError(f"the text {one_line(text)} contains {token}, {reason}")
        if self.cut_start:
            pieces = [ids[::-1] for ids in pieces]
        return pieces

    def _checked(self, encoded: Encoded, texts: Sequence[str]) -> Encoded:
        for text, ids in zip(texts, encoded.ids, strict=True):
            if not ids:
                reason = "has no token, and this tokenizer adds none: remove the text"
                raise InputError(f"the text {one_line(text)} {reason}")
        if not self.cut_start:
            return encoded
        ids = [row[::-1] for row in encoded.ids]
        types = [row[::-1] for row in encoded.token_types]
        return Encoded(ids, types, encoded.truncated)

    def frame(self, ids: Sequence[int]) -> tuple[list[int], bool]:
        """Put the special tokens around a text's ids, cut as ``encode`` cuts; also return whether it was cut."""
        ids = list(ids)
        room = self.limit - len(self.single_template) + 1
        if self.cut_start:  # the template is stored in reverse, because the start of a text is cut as its reverse's end
            ids.reverse()
        row, _ = assemble(self.single_template, [ids[:room]])
        if self.cut_start:
            row.reverse()
        return row, len(ids) > room

    def save(self, folder: str | Path) -> None:
        """Write the settings that were read, and ``tokenizer.json`` with what they changed, and without lengths."""
        folder = Path(folder)
        for name, content in self.settings.items():
            if content:
                write_json(folder / name, content)
        if self.vocabulary:
            # not a copy: beside tokenizer.json the source's files are not read, and may be links to anything
            self.backend.model.save(str(folder))
        current = json.loads(self.backend.to_str())
        content = current if self.source is None else json.loads(self.source)
        for stage in STAGES:
            content[stage] = current[stage]
        content["padding"] = content["truncation"] = None
        (folder / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")

    @property
    def text_settings(self) -> dict[str, Any]:
        """The contents of ``sentence_bert_config.json``."""
        return {"max_seq_length": self.limit, "do_lower_case": False} | self.more_text_settings

    def cut_message(self, truncated: int, total: int) -> str:
        """``3 of 2,758 texts were longer than 256 tokens and were cut``."""
        return f"{truncated:,} of {total:,} texts were longer than {self.limit} tokens and were cut"


def flattened(encoded: Encoded) -> tuple[np.ndarray, np.ndarray, int]:
    """What ``Tokenizer.encode_flat`` returns, from lists."""
    lengths = np.array([len(ids) for ids in encoded.ids], dtype=np.int64)
    return np.array([token for ids in encoded.ids for token in ids], dtype=np.intc), lengths, encoded.truncated


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


def choose_limit(folder: ModelFolder, limit: int | None, stated: int | None, positions: int) -> int:
    """The largest number of tokens of a text: the caller's ``limit``, else what the folder states or can do."""
    if limit is None:
        return positions if stated is None else min(stated, positions)  # huge if the model's author set none
    check_count("a maximum length", limit)
    if limit > positions:
        table = f"the position table of {folder.path}, which has {positions}"
        raise InputError(f"a maximum length of {limit} is above {table}")
    return int(limit)


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        check_texts(texts)
    for i, text in enumerate(texts):
        check_text(i, text)
        yield text
