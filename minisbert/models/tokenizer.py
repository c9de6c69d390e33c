"""The book's tokenizer for every kind of folder: limits from several files, a bare ``vocab.txt``, and saving."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from minisbert.core import InputError, one_line, read_json, tokenizer
from minisbert.core.tokenizer import check_text
from minisbert.system.files import read_text

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")


class Tokenizer(tokenizer.Tokenizer):
    """``Tokenizer.load(folder)``, then ``encode(texts)`` or ``encode_pairs(firsts, seconds)``, and ``save``."""

    def __init__(self, backend: Backend, limit: int, pad_id: int = 0, files: dict[str, bytes] | None = None):
        super().__init__(backend, limit, pad_id)
        self.files = files or {}  # as read, for ``save``

    @classmethod
    def load(cls, folder: str | Path, limit: int | None = None) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` if there is none.

        The limit is ``limit``, else ``max_seq_length`` of ``sentence_bert_config.json``, else
        ``model_max_length`` of ``tokenizer_config.json``; never more than the position table of ``config.json``.
        Raises ``InputError`` if both files are missing or one cannot be read.
        """
        folder = Path(folder)
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        options = read_json(folder / "tokenizer_config.json") if "tokenizer_config.json" in files else {}
        if "tokenizer.json" in files:
            try:
                backend = Backend.from_str(files["tokenizer.json"].decode())
            except Exception as error:  # the library raises a bare Exception
                raise InputError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from error
        elif "vocab.txt" in files:
            backend = wordpiece(folder / "vocab.txt", options)
        else:
            raise InputError(f"{folder} has neither tokenizer.json nor vocab.txt: a model needs one of them")

        pad_id = stated_number(folder / "config.json", "pad_token_id") or 0
        table = stated_number(folder / "config.json", "max_position_embeddings")
        if table is not None and read_json(folder / "config.json").get("model_type") == "roberta":
            table -= pad_id + 1  # RoBERTa's positions start after its padding index
        stated = [
            limit,
            stated_number(folder / "sentence_bert_config.json", "max_seq_length"),
            # a huge number if the model's author set no limit; the position table then applies
            stated_number(folder / "tokenizer_config.json", "model_max_length"),
        ]
        limits = [value for value in stated if value is not None][:1] + ([] if table is None else [table])
        if not limits:
            raise InputError(f"{folder} states no length limit (config.json: max_position_embeddings); give one")
        if limit is not None and table is not None and limit > table:
            raise InputError(f"a limit of {limit} tokens is above the position table of {folder}, which has {table}")
        return cls(backend, min(limits), pad_id, files)

    def save(self, folder: str | Path) -> None:
        """Write the files that were read, with padding and truncation cleared in ``tokenizer.json``."""
        folder = Path(folder)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        spec = json.loads(self.files.get("tokenizer.json") or self.backend.to_str())
        spec["padding"] = spec["truncation"] = None
        (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, indent=2), encoding="utf-8")

    def cut_message(self, truncated: int, total: int) -> str:
        """``3 of 2,758 texts were longer than 256 tokens and were cut``."""
        return f"{truncated:,} of {total:,} texts were longer than {self.limit} tokens and were cut"


def stated_number(path: Path, key: str) -> int | None:
    """The number under ``key`` in a JSON file; None if there is no such file or key, or the value is null."""
    value = read_json(path).get(key) if path.is_file() else None
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: {key} must be a whole number, not {one_line(value)}") from error


def wordpiece(vocab: Path, options: dict) -> Backend:
    """BERT's tokenizer (clean, lowercase, split at punctuation, WordPiece) from a bare list of word pieces.

    ``options`` is the content of ``tokenizer_config.json``; the defaults are those of uncased BERT.
    """
    # subtle: not splitlines(), which also splits at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    missing = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if piece not in ids]
    if missing:
        raise InputError(f"{vocab} has no {', '.join(missing)}: is it a BERT vocabulary, one word piece per line?")
    backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=options.get("do_lower_case", True),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    backend.add_special_tokens([piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in ids])
    return backend


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode string."""
    for i, text in enumerate(texts):
        check_text(i, text)
        yield text
