"""The book's tokenizer for every kind of folder: settings from several files, a bare ``vocab.txt``, and saving."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, reading, tokenizer
from minisbert.core.checks import check_text, check_texts
from minisbert.core.tokenizer import Encoded
from minisbert.core.weights import BERT
from minisbert.models.families import FAMILIES
from minisbert.models.folders import VOCABULARY, ModelFolder
from minisbert.models.settings import (
    HARMLESS,
    HUB,
    KEPT,
    ONLY,
    ONLY_CLASSIFIER,
    OPTIONS,
    SPECIAL,
    TEXT_FILES,
    CallSettings,
    TextSettings,
    TokenizerSettings,
    parse,
    unsupported,
)
from minisbert.models.tokenizer_classes import TYPED_CLASSES, check_vocabulary, prepend_lowercase, read_backend, set_up

STAGES = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor")  # what settings change in tokenizer.json


@dataclass(frozen=True)
class Texts:
    """What the encoder's module states about its texts, in ``sentence_bert_config.json``."""

    path: Path
    limit: int | None  # tokens
    lowercase: bool  # before the tokenizer's own normalizer
    tokenizer: dict[str, Any]  # arguments over those of tokenizer_config.json
    kept: dict[str, Any]  # for ``save``


def read_texts(folder: ModelFolder, only: dict[str, Any] | None = None) -> Texts:
    """The first of ``TEXT_FILES`` that states something. ``InputError`` for what may change vectors unsupported."""
    name = next((name for name in TEXT_FILES if folder.json(name)), TEXT_FILES[0])
    path, content, settings = folder.path / name, folder.json(name), folder.parse(name, TextSettings)
    for key, value in (only or (ONLY_CLASSIFIER if folder.model.classifier else ONLY)).items():
        if content.get(key, value) != value:
            raise unsupported(path, key, content[key], f"only {one_line(value)} is")
    tokenizer, model, config = (
        new if old is None else old
        for new, old in (
            (settings.processor_kwargs, settings.tokenizer_args),
            (settings.model_kwargs, settings.model_args),
            (settings.config_kwargs, settings.config_args),
        )
    )
    calls = [settings.processing_kwargs.get(group, {}) for group in ("text", "common")]
    groups = [("model", model), ("config", config), *(("processing", call) for call in calls)]
    for group, key, value in ((group, key, call[key]) for group, call in groups for key in call):
        usual = key == "max_length" or (key == "return_attention_mask" and value is True)
        usual |= key == "truncation" and value in (True, "longest_first", "only_first")
        if key not in HARMLESS[group] | (HUB if group != "processing" else set()) and not usual:
            raise unsupported(path, f"{key} in {group}_kwargs", value, "it may change the vectors")
    limits = [parse(CallSettings, (path, call)).max_length for call in calls]
    limits += [parse(TokenizerSettings, (path, tokenizer)).model_max_length, settings.max_seq_length]
    limit = next((limit for limit in limits if limit is not None), None)
    kept = {"do_lower_case": True} if settings.do_lower_case else {}
    kept |= {key: content[key] for key in KEPT if content.get(key) is not None}
    return Texts(path, limit, settings.do_lower_case, tokenizer, kept)


class Tokenizer(tokenizer.Tokenizer):
    """``Tokenizer.load(folder)``, then ``encode(texts)`` or ``encode_pairs(firsts, seconds)``, and ``save``."""

    def __init__(
        self,
        backend: Backend,
        limit: int,
        pad_id: int = 0,
        files: dict[str, bytes] | None = None,
        *,
        cut_start: bool = False,
        reserved: int | None = None,
        kept: dict[str, Any] | None = None,
        vocabulary: bool = False,
        types: bool = True,
    ):
        super().__init__(backend, limit, pad_id)
        if not types:  # the encoder is told of none
            for slots in (self.single_template, self.pair_template):
                slots[:] = [(sequence, token, 0) for sequence, token, _ in slots]
        if any(kind for *_, kind in self.single_template):
            raise ValueError("post_processor of tokenizer.json: token types of one text must be 0; of pairs, 0 and 1")
        self.files = files or {}  # as read, for ``save``
        self.vocabulary = vocabulary  # whether ``save`` writes the files of ``VOCABULARY``
        self.kept = kept or {}  # of sentence_bert_config.json, for ``save``
        self.reserved = reserved  # an id that no text may contain
        self.cut_start = cut_start  # long texts lose their start, not their end
        if cut_start:  # subtle: a text cut at its start is the reversed text cut at its end, reversed again
            self.single_template.reverse()
            self.pair_template.reverse()

    @classmethod
    def load(
        cls, folder: str | Path | ModelFolder, limit: int | None = None, only: dict[str, Any] | None = None
    ) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` if there is none, and the settings in the files beside it.

        The maximum number of tokens is ``limit``, else that of ``sentence_bert_config.json``, else ``model_max_length``
        of ``tokenizer_config.json``; never more than the position table of ``config.json``. ``only`` is what the
        encoder's module may state, ``ONLY`` or, with a classifier, ``ONLY_CLASSIFIER`` if it is None.
        Raises ``InputError`` if both files are missing or one cannot be read, and for settings that are not supported.
        """
        folder = ModelFolder.of(folder)
        model, texts = folder.model, read_texts(folder, only)
        files = [(folder.path / OPTIONS, folder.json(OPTIONS)), (texts.path, texts.tokenizer)]
        settings = parse(TokenizerSettings, *files)
        backend = read_backend(folder)
        stored = [(part or {}).get("direction", "right").lower() for part in (backend.truncation, backend.padding)]
        with reading(folder.path / OPTIONS):
            kind = set_up(backend, folder, settings, files)
        check_vocabulary(backend, model.vocab_size, folder)
        cut_start = (settings.truncation_side or stored[0]) == "left"
        family = FAMILIES.get(model.model_type)
        if (settings.padding_side or stored[1]) == "left" and not getattr(family, "relative", False):
            path = next((path for path, content in reversed(files) if content.get("padding_side")), folder.path)
            raise unsupported(path, "padding_side", "left", "pads before a text move its positions")
        inputs = settings.model_input_names or ["attention_mask", *["token_type_ids"] * (kind in TYPED_CLASSES)]
        if "attention_mask" not in inputs:
            raise unsupported(folder.path / OPTIONS, "model_input_names", inputs, "attention_mask must be one")
        if texts.lowercase:
            prepend_lowercase(backend)

        pad = {} if model.pad_token_id is None else {"pad_token_id": model.pad_token_id}
        # RoBERTa's and MPNet's positions start after the padding index
        offset = FAMILIES.get(model.model_type, BERT).fields(pad)["position_offset"]
        pad_id = model.pad_token_id if pad else max(offset - 1, 0)
        table = model.max_position_embeddings
        table = table if table is None else table - offset
        # a huge number if the model's author set no limit; the position table then applies
        limits = limit, texts.limit, settings.model_max_length, settings.max_len, table
        chosen = next((value for value in limits if value is not None), None)
        if chosen is None:
            raise InputError(f"{folder.path} states no maximum length (config.json: max_position_embeddings); give one")
        if table is not None and chosen > table and limit is not None:
            raise InputError(
                f"a maximum length of {limit} is above the position table of {folder.path}, which has {table}"
            )
        chosen = chosen if table is None else min(chosen, table)

        # what ``save`` has to state in tokenizer_config.json because the file that states it now is written anew
        moved = {key: value for key, value in texts.tokenizer.items() if key not in HUB | {"model_max_length"}}
        moved |= {"truncation_side": "left"} if cut_start else {}
        moved |= {"tokenizer_class": kind} if model.tokenizer_class else {}
        names = ["tokenizer.json", OPTIONS, SPECIAL] + ["vocab.txt"] * (not folder.has("tokenizer.json"))
        found = {name: folder.read(name) for name in names if folder.has(name)}
        if not moved.items() <= folder.json(OPTIONS).items():
            found[OPTIONS] = json.dumps(folder.json(OPTIONS) | moved, ensure_ascii=False, indent=2).encode()
        more = {"cut_start": cut_start, "reserved": pad_id if offset else None, "kept": texts.kept}
        more["types"] = "token_type_ids" in inputs
        more["vocabulary"] = "vocab.txt" not in found and any((folder.path / name).is_file() for name in VOCABULARY)
        with reading(folder.path):
            return cls(backend, chosen, pad_id, found, **more)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` for a text without a token, and for RoBERTa's padding in a text."""
        return self._checked(super().encode(texts), texts)

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` as ``encode`` does."""
        return self._checked(super().encode_pairs(firsts, seconds), firsts)

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        # the library raises a bare Exception for an unknown token that is missing, and panics at damaged tables
        with reading(f"the tokenizer cannot encode {one_line(texts[0]) if texts else ''} or a text after it"):
            pieces = super()._pieces(texts)
        if self.reserved is not None:
            for text, ids in zip(texts, pieces, strict=True):
                if self.reserved in ids:
                    token = self.backend.id_to_token(self.reserved)
                    reason = "the padding, which has no position of its own; take it out"
                    raise InputError(f"the text {one_line(text)} contains {token}, {reason}")
        return [ids[::-1] for ids in pieces] if self.cut_start else pieces

    def _checked(self, encoded: Encoded, texts: Sequence[str]) -> Encoded:
        for text, ids in zip(texts, encoded.ids, strict=True):
            if not ids:
                raise InputError(f"the text {one_line(text)} has no token, and this tokenizer adds none: leave it out")
        if not self.cut_start:
            return encoded
        ids, types = ([row[::-1] for row in rows] for rows in (encoded.ids, encoded.token_types))
        return Encoded(ids, types, encoded.truncated)

    def save(self, folder: str | Path) -> None:
        """Write the files that were read; ``tokenizer.json`` with what other settings changed, and without lengths."""
        folder = Path(folder)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        if self.vocabulary:
            # not a copy: beside tokenizer.json the source's files are not read, and may be links to anything
            self.backend.model.save(str(folder))
        current = json.loads(self.backend.to_str())
        spec = json.loads(self.files["tokenizer.json"]) if "tokenizer.json" in self.files else current
        spec |= {stage: current[stage] for stage in STAGES} | {"padding": None, "truncation": None}
        (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, indent=2), encoding="utf-8")

    def cut_message(self, truncated: int, total: int) -> str:
        """``3 of 2,758 texts were longer than 256 tokens and were cut``."""
        return f"{truncated:,} of {total:,} texts were longer than {self.limit} tokens and were cut"


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    if isinstance(texts, str | dict | set) or hasattr(texts, "columns"):
        check_texts(texts)
    for i, text in enumerate(texts):
        check_text(i, text)
        yield text
