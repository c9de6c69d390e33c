"""Text to ids: a thin class over the ``tokenizers`` library that defuses what lies in published tokenizer files.

The traps: ``tokenizer.json`` of all-MiniLM-L6-v2 pads every text to 128 tokens and cuts at 128, while the
model's own limit is 256 (``sentence_bert_config.json``) and its position table has 512 rows. Here padding and
cutting of the file are cleared, the limit is the model's, and every text that is cut is counted.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, read_json, read_text

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")


@dataclass
class Encoded:
    """``ids[i]`` are the tokens of text i, [CLS] and [SEP] included, without padding; lengths differ."""

    ids: list[list[int]]
    token_types: list[list[int]]  # 0 for the first sentence, 1 for the second of a pair
    truncated: int  # how many of the texts were longer than the limit and were cut

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """``Tokenizer.load(folder)``, then ``encode(texts)`` or ``encode_pairs(firsts, seconds)``.

    ``limit`` is the most tokens a text may have, special tokens included.
    """

    def __init__(self, backend: Backend, limit: int, pad_id: int = 0, files: dict[str, bytes] | None = None):
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.limit = limit
        self.pad_id = pad_id
        self.files = files or {}  # as they were read, for ``save``
        self.single_template = template(backend.encode("a"))  # [CLS] 0 [SEP]
        self.pair_template = template(backend.encode("a", "a"))  # [CLS] 0 [SEP] 1 [SEP]
        if limit < len(self.pair_template):
            raise InputError(f"a token limit of {limit} is too small: a pair needs {len(self.pair_template)}")

    @classmethod
    def load(cls, folder: str | Path, limit: int | None = None) -> "Tokenizer":
        """Read ``tokenizer.json``, or ``vocab.txt`` where there is none.

        The limit is ``limit``, else ``max_seq_length`` of ``sentence_bert_config.json``, else
        ``model_max_length`` of ``tokenizer_config.json``; never more than the position table of ``config.json``.
        Raises ``InputError`` where neither vocabulary is there or a file cannot be read.
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
            table -= pad_id + 1  # RoBERTa's positions start behind its padding index
        stated = [
            limit,
            stated_number(folder / "sentence_bert_config.json", "max_seq_length"),
            # a huge number in files whose author set no limit; the position table then decides
            stated_number(folder / "tokenizer_config.json", "model_max_length"),
        ]
        limits = [value for value in stated if value is not None][:1] + ([] if table is None else [table])
        if not limits:
            raise InputError(f"{folder} states no length limit (config.json: max_position_embeddings); give one")
        if limit is not None and table is not None and limit > table:
            raise InputError(f"a limit of {limit} tokens is above the position table of {folder}, which has {table}")
        return cls(backend, min(limits), pad_id, files)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """[CLS] text [SEP] for each text, cut to ``limit`` tokens.

        Raises ``InputError`` for anything but a sequence of strings, and for a string that is not valid Unicode
        (a lone surrogate), with its place in the sequence.
        """
        check_texts(texts)
        room = self.limit - len(self.single_template) + 1  # what the special tokens leave
        pieces = self._pieces(texts)
        rows = [assemble(self.single_template, [ids[:room]]) for ids in pieces]
        return Encoded([ids for ids, _ in rows], [types for _, types in rows], sum(len(ids) > room for ids in pieces))

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """[CLS] first [SEP] second [SEP], token types 0 and 1; where they do not fit, the longer one is cut first.

        Raises ``InputError`` as ``encode`` does, and where the two sequences differ in length.
        """
        check_texts(firsts)
        check_texts(seconds)
        if len(firsts) != len(seconds):
            raise InputError(f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs")
        room = self.limit - len(self.pair_template) + 2
        pieces = list(zip(self._pieces(firsts), self._pieces(seconds), strict=True))
        rows = []
        for first, second in pieces:
            keep_first, keep_second = longest_first(len(first), len(second), room)
            rows.append(assemble(self.pair_template, [first[:keep_first], second[:keep_second]]))
        truncated = sum(len(first) + len(second) > room for first, second in pieces)
        return Encoded([ids for ids, _ in rows], [types for _, types in rows], truncated)

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The whole of each text as ids, without special tokens."""
        # subtle: the library's own truncation keeps everything it cuts, in pairs as a product of both sides:
        # two texts of 100,000 tokens would take all memory. Here it is off and the cut is ours.
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The word pieces behind ids, for people to read."""
        return [self.backend.id_to_token(i) for i in ids]

    def save(self, folder: str | Path) -> None:
        """Write the files that were loaded, with padding and cutting cleared in ``tokenizer.json``."""
        folder = Path(folder)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        spec = json.loads(self.files.get("tokenizer.json") or self.backend.to_str())
        spec["padding"] = spec["truncation"] = None
        (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, indent=2), encoding="utf-8")

    def cut_message(self, truncated: int, total: int) -> str:
        """``3 of 2,758 texts were longer than 256 tokens and were cut``."""
        return f"{truncated:,} of {total:,} texts were longer than {self.limit} tokens and were cut"


def template(probe: Encoding) -> list[tuple[int | None, int, int]]:
    """Where a tokenizer puts its special tokens, read off one encoded text or pair.

    A list of (sequence, id, token type): sequence None for a special token, 0 or 1 for where that sentence goes.
    """
    slots: list[tuple[int | None, int, int]] = []
    for sequence, token, kind in zip(probe.sequence_ids, probe.ids, probe.type_ids, strict=True):
        if sequence is None or not slots or slots[-1][0] != sequence:
            slots.append((sequence, token, kind))
    return slots


def assemble(slots: list[tuple[int | None, int, int]], sequences: list[list[int]]) -> tuple[list[int], list[int]]:
    """The ids and token types of one input: special tokens from the template, sentences in their places."""
    ids: list[int] = []
    types: list[int] = []
    for sequence, token, kind in slots:
        piece = [token] if sequence is None else sequences[sequence]
        ids += piece
        types += [kind] * len(piece)
    return ids, types


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each sentence to keep: the longer one is cut until both are equal, then both.

    ``longest_first(10, 3, 8) = (5, 3)``, ``longest_first(10, 9, 8) = (4, 4)``. At an odd ``room`` the longer
    one keeps one more; of two equal ones, the second does (as in the ``tokenizers`` library).
    """
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


def stated_number(path: Path, key: str) -> int | None:
    """The number that a JSON file states for ``key``; None where there is no such file or key, or it is null."""
    value = read_json(path).get(key) if path.is_file() else None
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: {key} must be a whole number, not {one_line(value)}") from error


def wordpiece(vocab: Path, options: dict) -> Backend:
    """BERT's tokenizer (clean, lowercase, split at punctuation, WordPiece) from a bare list of word pieces.

    ``options`` are those of ``tokenizer_config.json``; what it does not say is as in BERT uncased.
    """
    # subtle: not splitlines(), which also breaks at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    missing = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if piece not in ids]
    if missing:
        raise InputError(f"{vocab} has no {', '.join(missing)}: is it a BERT vocabulary, one word piece a line?")
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


def check_texts(texts: Sequence[str]) -> None:
    """Raise ``InputError`` unless ``texts`` is a sequence of valid Unicode strings."""
    if isinstance(texts, str):
        raise InputError("a list of texts is needed, not one string: put it in brackets")
    if not hasattr(texts, "__len__"):  # a generator would be used up by this check
        raise InputError(f"a list of texts is needed, not {type(texts).__name__}")
    for _ in checked(texts):
        pass


def checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` says where one is not a valid Unicode string."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {i} is not a string but {type(text).__name__}: {one_line(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {i} is not valid Unicode: a lone surrogate at character {error.start} of {one_line(text)}"
            ) from error
        yield text
