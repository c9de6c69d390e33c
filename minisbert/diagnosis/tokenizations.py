"""Tokenize texts as other engines do: cut elsewhere, cased, with another prompt, without [CLS]."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from minisbert.models.batching import chunks
from minisbert.models.prompts import with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer

# what servers, libraries and examples cut at; two more if they do not count [CLS] and [SEP]
TOKEN_LIMITS = (8, 16, 24, 32, 64, 66, 100, 128, 130, 200, 256, 258, 300, 384, 400, 500, 510, 512, 514)
USUAL_PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ", "classification: ")
BATCH_SIZES = (8, 16, 32, 64)

Clue = tuple[str, str]  # a difference from the model's own way: its key among the causes, and a clause that says it


@dataclass(frozen=True)
class Tokenization:
    """The ids of each text. ``steps`` is empty for the model's own."""

    steps: list[Clue]
    ids: list[list[int]]
    skip: int = 0  # tokens of the prompt that are not pooled
    token_type: int = 0
    limit: int | None = None  # only texts with more tokens are affected


def tokenizations(encoder: SentenceEncoder, texts: Sequence[str], prompt: str) -> Iterator[Tokenization]:
    """Yield the ids under each hypothesis, the model's own first."""
    tokenizer, settings, positions = encoder.tokenizer, encoder.settings, encoder.bert.config.positions
    usual = tokenizer.limit
    prompted, skip = with_prompt(texts, settings, tokenizer, prompt, None)
    right = tokenizer.encode(prompted).ids
    yield Tokenization([], right, skip)

    # cut at another length, or at the model's without [SEP]
    for limit in sorted({*TOKEN_LIMITS, positions} - {usual}):
        if len(tokenizer.pair_template) <= limit <= positions:
            clue = ("cut", f"texts were cut at {limit} tokens, not at {usual}")
            yield Tokenization([clue], limited(tokenizer, limit).encode(prompted).ids, skip, limit=min(limit, usual))
    if usual < positions:
        clue = ("cut without [SEP]", f"texts were cut at {usual} tokens without a [SEP] at their end")
        ids = [row[:usual] for row in limited(tokenizer, usual + 1).encode(prompted).ids]
        yield Tokenization([clue], ids, skip, limit=usual)

    for clue, ids in cased(tokenizer, prompted):
        yield Tokenization([clue], ids, skip)

    for other in dict.fromkeys(["", *settings.prompts.values(), *USUAL_PROMPTS]):
        if other != prompt:
            others, unpooled = with_prompt(texts, settings, tokenizer, other, None)
            yield Tokenization([prompt_clue(prompt, other)], tokenizer.encode(others).ids, unpooled)

    # [CLS] and [SEP] missing or twice, for tokenizers that add one token on each side
    special = [token for sequence, token, _ in tokenizer.single_template if sequence is None]
    if len(special) == 2 and all(len(row) > 2 for row in right):
        clue = ("no special tokens", "[CLS] and [SEP] are missing")
        longer = limited(tokenizer, min(positions, usual + 2)).encode(prompted).ids
        for rows in (longer, right):  # cut to as many tokens as otherwise, or to two fewer
            yield Tokenization([clue], [row[1:-1] for row in rows])
        clue = ("special tokens twice", "[CLS] and [SEP] were added twice")
        yield Tokenization([clue], [[row[0], *row, row[-1]][:positions] for row in right])

    if encoder.bert.config.type_vocab_size > 1:
        yield Tokenization([("token types", "the token types are 1, not 0")], right, skip, token_type=1)


def prompt_clue(right: str, other: str) -> Clue:
    if not right:
        return "prompt added", f"the prompt {other!r} was added"
    if not other:
        return "prompt missing", f"the prompt {right!r} is missing"
    return "another prompt", f"the prompt was {other!r}, not {right!r}"


def cased(tokenizer: Tokenizer, texts: list[str]) -> Iterator[tuple[Clue, list[list[int]]]]:
    """Yield the ids with capitals left in, or lower-cased if the model has capitals."""
    spec = json.loads(tokenizer.backend.to_str())
    normalizer = spec["normalizer"] or {}
    parts = normalizer.get("normalizers", [normalizer])
    if not any(part.get("type") == "Lowercase" or part.get("lowercase") for part in parts):
        clue = ("lower-cased", "the texts were lower-cased, and this model has capitals")
        yield clue, tokenizer.encode([text.lower() for text in texts]).ids
        return
    # by default accents are stripped only together with lower-casing
    for strip_accents in (None, True):
        changed = []
        for part in parts:
            if part.get("lowercase"):
                part = part | {"lowercase": False, "strip_accents": strip_accents}
            if part.get("type") != "Lowercase":
                changed.append(part)
        spec["normalizer"] = {"type": "Sequence", "normalizers": changed}
        other = copy.copy(tokenizer)
        other.backend = Backend.from_str(json.dumps(spec))
        yield ("lower-casing missing", "the texts were not lower-cased"), other.encode(texts).ids


def limited(tokenizer: Tokenizer, limit: int) -> Tokenizer:
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def full_lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Count the tokens of each text before it is cut."""
    whole = limited(tokenizer, 2**31)
    lengths: list[int] = []
    for chunk in chunks(texts):  # all ids of a large corpus would not fit in memory
        lengths += [len(ids) for ids in whole.encode(chunk).ids]
    return lengths


def padded_lengths(row: int, lengths: Sequence[int]) -> set[int]:
    """Return the lengths to which a text may have been padded: the longest of its batch, for batches of usual sizes.

    Batches in the order of the file, and of texts sorted by length. ``lengths`` are those of all texts.
    """
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    likely = {max(lengths)}
    for order in (list(range(len(lengths))), longest_first):
        place = order.index(row)
        for size in BATCH_SIZES:
            start = place // size * size
            likely.add(max(lengths[i] for i in order[start : start + size]))
    return likely
