"""The book's tokenizer for every kind of folder: settings from several files, a bare ``vocab.txt``, and saving."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.encoder_settings import (
    SPECIAL_TOKENS,
    TEXT_FILES,
    TOKENIZER_CONFIG,
    VOCABULARY_FILES,
    TextSettings,
    TokenizerSettings,
    parse_settings,
    unsupported,
)
from minisbert.checkpoints.layout import (
    CLASSIFIER_MODULE,
    ENCODER_MODULE,
    HUB,
    ModelFolder,
    first_given,
    read_text_settings,
)
from minisbert.checkpoints.tokenizer_files import (
    BACKEND,
    LEFT_CLASSES,
    TOKENIZER,
    TYPED_CLASSES,
    build_backend,
    check_vocabulary,
    prepend_lowercase,
)
from minisbert.core import InputError, one_line, reading, tokenizer
from minisbert.core.checks import check_text, check_texts
from minisbert.core.tokenizer import Encoded, assemble
from minisbert.models.guards import check_count
from minisbert.system.console import without_panics
from minisbert.system.files import write_json

STAGES = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor")  # what settings change in tokenizer.json
PROBE = "A cat, ÉŠſ 1"  # shows tables of characters that are damaged before a user's text does
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

    @classmethod
    def load(
        cls, folder: str | Path | ModelFolder, limit: int | None = None, module: dict[str, Any] | None = None
    ) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` if there is none, and the settings in the files beside it.

        The maximum number of tokens is ``limit``, else that of ``sentence_bert_config.json``, else ``model_max_length``
        of ``tokenizer_config.json``; never more than the position table of ``config.json``. ``module`` is what the
        encoder's module may state, by default ``ENCODER_MODULE`` or, with a classifier, ``CLASSIFIER_MODULE``.
        Raises ``InputError`` if both files are missing or one cannot be read, and for settings that are not supported.
        """
        folder = ModelFolder.of(folder)
        family, config = folder.config
        if module is None:
            module = CLASSIFIER_MODULE if folder.model.classifier else ENCODER_MODULE
        path, texts = read_text_settings(folder, module)
        files = [(folder.path / TOKENIZER_CONFIG, folder.json(TOKENIZER_CONFIG)), (path, texts.processor_kwargs)]
        settings = parse_settings(TokenizerSettings, *files)
        limits = texts.max_seq_length, settings.model_max_length, settings.max_len
        limit = choose_limit(folder, limit, first_given(*limits), config.positions)
        pad_id = config.pad_token_id or 0
        with reading(folder.path / TOKENIZER_CONFIG), without_panics():
            backend, kind = build_backend(folder, settings, files, config.vocab_size)
            with reading(folder.path / TOKENIZER), suppress(Exception):  # a panic is none
                backend.encode(PROBE)
            padding_side = "left" if kind in LEFT_CLASSES else "right"
            padding_side = settings.padding_side or side_of(backend.padding, padding_side)
            truncation_side = settings.truncation_side or side_of(backend.truncation, "right")
            check_vocabulary(backend, config.vocab_size, folder, pad_id)
            if texts.do_lower_case:
                prepend_lowercase(backend)
        if padding_side == "left" and not getattr(family, "relative", False):
            place = next((place for place, content in reversed(files) if content.get("padding_side")), folder.path)
            reason = "pads before a text move its positions"
            if kind in LEFT_CLASSES:
                reason += f" ({kind} puts them there unless padding_side is right)"
            raise unsupported(place, "padding_side", "left", reason)
        inputs = settings.model_input_names
        if inputs is not None and "attention_mask" not in inputs:
            raise unsupported(files[0][0], "model_input_names", inputs, "attention_mask must be one")
        typed = kind in TYPED_CLASSES if inputs is None else "token_type_ids" in inputs
        with reading(folder.path):
            loaded = cls(backend, limit, pad_id)
            loaded.arrange(typed, truncation_side == "left")
        if getattr(config, "position_offset", 0):  # RoBERTa and MPNet have no position for padding
            loaded.reserved = pad_id
        loaded.remember(folder, texts, kind)
        return loaded

    def arrange(self, typed: bool, cut_start: bool) -> None:
        """Set whether the encoder gets token types, and whether long texts lose their start."""
        for slots in (self.single_template, self.pair_template):
            if not typed:
                slots[:] = [(sequence, token, 0) for sequence, token, _ in slots]
            if cut_start:  # subtle: a text cut at its start is the reversed text cut at its end, reversed again
                slots.reverse()
        self.cut_start = cut_start
        if any(kind != 0 for _, _, kind in self.single_template):
            raise ValueError("post_processor of tokenizer.json: token types of one text must be 0")

    def remember(self, folder: ModelFolder, texts: TextSettings, kind: str) -> None:
        """Keep for ``save`` the tokenizer's files, and what other files state that are written anew."""
        if texts.do_lower_case:
            self.more_text_settings["do_lower_case"] = True
        for key in LATE_INTERACTION:
            value = folder.json(TEXT_FILES[0]).get(key)
            if value is not None and folder.described:
                self.more_text_settings[key] = value
        self.vocabulary = any((folder.path / name).is_file() for name in VOCABULARY_FILES)
        if folder.has("tokenizer.json"):
            self.source = folder.read("tokenizer.json")
        settings = dict(folder.json(TOKENIZER_CONFIG))
        for key, value in texts.processor_kwargs.items():
            if value is not None and key not in HUB and key != "model_max_length":
                settings[key] = value
        if self.cut_start:
            settings["truncation_side"] = "left"
        if folder.model.tokenizer_class:
            settings["tokenizer_class"] = "PreTrainedTokenizerFast" if kind == BACKEND else kind
        self.settings = {TOKENIZER_CONFIG: settings, SPECIAL_TOKENS: folder.json(SPECIAL_TOKENS)}

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` for a text without a token, and for RoBERTa's padding in a text."""
        return self._checked(super().encode(texts), texts)

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` as ``encode`` does."""
        return self._checked(super().encode_pairs(firsts, seconds), firsts)

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
        ids, types = ([row[::-1] for row in rows] for rows in (encoded.ids, encoded.token_types))
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
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")

    @property
    def text_settings(self) -> dict[str, Any]:
        """The contents of ``sentence_bert_config.json``."""
        return {"max_seq_length": self.limit, "do_lower_case": False} | self.more_text_settings

    def cut_message(self, truncated: int, total: int) -> str:
        """``3 of 2,758 texts were longer than 256 tokens and were cut``."""
        return f"{truncated:,} of {total:,} texts were longer than {self.limit} tokens and were cut"


def choose_limit(folder: ModelFolder, limit: int | None, default: int | None, positions: int) -> int:
    """The largest number of tokens of a text: the caller's ``limit``, else what the folder states or can do."""
    if limit is None:
        return positions if default is None else min(default, positions)  # huge if the model's author set none
    check_count("a maximum length", limit)
    if limit > positions:
        table = f"the position table of {folder.path}, which has {positions}"
        raise InputError(f"a maximum length of {limit} is above {table}")
    return int(limit)


def side_of(part: dict[str, Any] | None, default: str) -> str:
    """The side of ``truncation`` or ``padding`` in tokenizer.json."""
    return (part or {}).get("direction", default).lower()


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        check_texts(texts)
    for i, text in enumerate(texts):
        check_text(i, text)
        yield text
