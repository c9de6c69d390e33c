"""The book's tokenizer for every kind of folder: settings from several files, a bare ``vocab.txt``, and saving."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, read_json, tokenizer
from minisbert.core.checks import check_text
from minisbert.core.tokenizer import Encoded
from minisbert.models.backends import (
    SPECIAL_FILE,
    Options,
    check_vocabulary,
    cuts_start,
    load_backend,
    prepend_lowercase,
    tokenizer_class,
)
from minisbert.models.families import FAMILIES, RobertaFamily
from minisbert.models.settings import LARGEST, stated
from minisbert.models.text_settings import read_text_settings

FILES = ("tokenizer.json", "tokenizer_config.json", SPECIAL_FILE)
VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt")  # what tokenizer.json holds as well
STAGES = ("normalizer", "pre_tokenizer", "post_processor")  # what settings change in tokenizer.json


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
    ):
        super().__init__(backend, limit, pad_id)
        self.files = files or {}  # as read, for ``save``
        self.vocabulary = vocabulary  # whether ``save`` writes the files of ``VOCABULARY``
        self.kept = kept or {}  # of sentence_bert_config.json, for ``save``
        self.reserved = reserved  # an id that no text may contain
        self.cut_start = cut_start  # long texts lose their start, not their end
        if cut_start:  # subtle: a text cut at its start is the reversed text cut at its end, reversed again
            self.single_template.reverse()
            self.pair_template.reverse()

    @classmethod
    def load(cls, folder: str | Path, limit: int | None = None) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` if there is none, and the settings in the files beside it.

        The limit is ``limit``, else that of ``sentence_bert_config.json``, else ``model_max_length`` of
        ``tokenizer_config.json``; never more than the position table of ``config.json``.
        Raises ``InputError`` if both files are missing or one cannot be read, and for settings that are not supported.
        """
        folder = Path(folder)
        names = FILES if (folder / "tokenizer.json").is_file() else (*FILES, "vocab.txt")
        files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
        path, config = folder / "tokenizer_config.json", folder / "config.json"
        raw = read_json(config) if config.is_file() else {}
        text = read_text_settings(folder)
        options = Options(path, read_json(path) if path.is_file() else {}, text.path, text.tokenizer)
        kind = tokenizer_class(folder, options)
        backend = load_backend(folder, files, options, kind)
        check_vocabulary(backend, stated(raw, "vocab_size", int, config, LARGEST), folder)
        cut_start = cuts_start(backend, options)
        if text.lowercase:
            prepend_lowercase(backend)

        roberta = isinstance(FAMILIES.get(str(raw.get("model_type"))), RobertaFamily)
        pad_id = max(stated(raw, "pad_token_id", int, config, int(roberta)), 0)
        table = stated(raw, "max_position_embeddings", int, config)
        if table is not None and roberta:
            table -= pad_id + 1  # RoBERTa's positions start after its padding index
        # a huge number if the model's author set no limit; the position table then applies
        stored = options.get("model_max_length", int, options.get("max_len", int))
        limits = [value for value in (limit, text.limit, stored) if value is not None][:1]
        limits += [] if table is None else [table]
        if not limits:
            raise InputError(f"{folder} states no length limit (config.json: max_position_embeddings); give one")
        if limit is not None and table is not None and limit > table:
            raise InputError(f"a limit of {limit} tokens is above the position table of {folder}, which has {table}")

        # what ``save`` has to state in tokenizer_config.json because the file that states it now is written anew
        moved = text.tokenizer | ({"truncation_side": "left"} if cut_start else {})
        moved |= {"tokenizer_class": kind} if raw.get("tokenizer_class") else {}
        if not moved.items() <= options.stated.items():
            files[path.name] = json.dumps(options.stated | moved, ensure_ascii=False, indent=2).encode()
        more = {"cut_start": cut_start, "reserved": pad_id if roberta else None, "kept": text.kept}
        more["vocabulary"] = "vocab.txt" not in files and any((folder / name).is_file() for name in VOCABULARY)
        try:
            return cls(backend, min(limits), pad_id, files, **more)
        except InputError as error:  # the limit is too small
            raise InputError(f"{folder}: {error}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` for a text without a token, and for RoBERTa's padding in a text."""
        return self._checked(super().encode(texts), texts)

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """As in the book. Raises ``InputError`` as ``encode`` does."""
        return self._checked(super().encode_pairs(firsts, seconds), firsts)

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            pieces = super()._pieces(texts)
        except Exception as error:  # the library raises a bare Exception, such as for an unknown token that is missing
            raise InputError(
                f"the tokenizer cannot encode {one_line(texts[0])}, or a text after it: {error}"
            ) from error
        if self.reserved is not None:
            for text, ids in zip(texts, pieces, strict=True):
                if self.reserved in ids:
                    token = self.backend.id_to_token(self.reserved)
                    reason = "RoBERTa's padding, which has no position of its own; take it out"
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
    for i, text in enumerate(texts):
        check_text(i, text)
        yield text
