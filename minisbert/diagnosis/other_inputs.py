"""The token ids that other engines make of the same texts: cut elsewhere, cased, with another prompt, without [CLS]."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from minisbert.fast.batching import chunks
from minisbert.models.prompts import prompt_tokens
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer

# what servers, libraries and examples cut at; two more if they do not count [CLS] and [SEP]
LIMITS = (8, 16, 24, 32, 64, 66, 100, 128, 130, 200, 256, 258, 300, 384, 400, 500, 510, 512, 514)
PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ", "classification: ")
BATCHES = (8, 16, 32, 64)  # texts in a batch


@dataclass(frozen=True)
class Inputs:
    """Ids of each text. ``cause`` is a key and ``meaning`` a clause; both are empty for what the model asks for."""

    cause: str
    meaning: str
    rows: list[list[int]]
    skip: int = 0  # tokens of the prompt that are not pooled
    token_type: int = 0
    limit: int | None = None  # only longer texts are affected


def all_inputs(encoder: SentenceEncoder, texts: Sequence[str], prompt: str) -> Iterator[Inputs]:
    """The ids under each hypothesis, those that the model asks for first."""
    tokenizer, prompted, skip = encoder.tokenizer, [prompt + text for text in texts], not_pooled(encoder, prompt)
    rows = tokenizer.encode(prompted).ids
    yield Inputs("", "", rows, skip)
    yield from cut(tokenizer, prompted, skip, encoder.bert.config.positions)
    yield from cased(tokenizer, prompted, skip)
    for other in dict.fromkeys(["", *encoder.settings.prompts.values(), *PROMPTS]):
        if other != prompt:
            cause, said = other_prompt(prompt, other)
            yield Inputs(cause, said, tokenizer.encode([other + t for t in texts]).ids, not_pooled(encoder, other))
    ends = [token for sequence, token, _ in tokenizer.single_template if sequence is None]
    if len(ends) == 2 and all(len(row) > 2 for row in rows):
        more = limited(tokenizer, min(encoder.bert.config.positions, tokenizer.limit + 2)).encode(prompted).ids
        for found in (more, rows):  # cut to as many tokens as otherwise, or two fewer
            yield Inputs("no special tokens", "[CLS] and [SEP] are missing", [row[1:-1] for row in found])
        doubled = [[row[0], *row, row[-1]][: encoder.bert.config.positions] for row in rows]
        yield Inputs("special tokens twice", "[CLS] and [SEP] were added twice", doubled)
    if encoder.bert.config.type_vocab_size > 1:
        yield Inputs("token types", "the token types are 1, not 0", rows, skip, token_type=1)


def other_prompt(right: str, other: str) -> tuple[str, str]:
    if not right:
        return "prompt added", f"the prompt {other!r} was added"
    if not other:
        return "prompt missing", f"the prompt {right!r} is missing"
    return "another prompt", f"the prompt was {other!r}, not {right!r}"


def cut(tokenizer: Tokenizer, texts: list[str], skip: int, table: int) -> Iterator[Inputs]:
    """Other limits, as far as the position ``table`` has room for them."""
    for limit in sorted({*LIMITS, table} - {tokenizer.limit}):
        if len(tokenizer.pair_template) <= limit <= table:
            said = f"texts were cut at {limit} tokens, not at {tokenizer.limit}"
            least = min(limit, tokenizer.limit)
            yield Inputs("cut", said, limited(tokenizer, limit).encode(texts).ids, skip, limit=least)
    if tokenizer.limit < table:
        said = f"texts were cut at {tokenizer.limit} tokens without a [SEP] at their end"
        rows = limited(tokenizer, tokenizer.limit + 1).encode(texts).ids
        yield Inputs("cut without [SEP]", said, [row[: tokenizer.limit] for row in rows], skip, limit=tokenizer.limit)


def cased(tokenizer: Tokenizer, texts: list[str], skip: int) -> Iterator[Inputs]:
    """Capitals kept, or lower-cased where the model has capitals."""
    for strip_accents in (None, True):  # by default accents are stripped only together with lower-casing
        other = with_capitals(tokenizer, strip_accents)
        if other is None:
            rows = tokenizer.encode([text.lower() for text in texts]).ids
            yield Inputs("lower-cased", "the texts were lower-cased, and this model has capitals", rows, skip)
            return
        yield Inputs("lower-casing missing", "the texts were not lower-cased", other.encode(texts).ids, skip)


def with_capitals(tokenizer: Tokenizer, strip_accents: bool | None) -> Tokenizer | None:
    """The same tokenizer without lower-casing; None if it has none."""
    spec = json.loads(tokenizer.backend.to_str())
    normalizer = spec["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    kept = [step for step in steps if step.get("type") != "Lowercase"]
    if len(kept) == len(steps) and not any(step.get("lowercase") for step in steps):
        return None
    kept = [
        step | {"lowercase": False, "strip_accents": strip_accents} if step.get("lowercase") else step for step in kept
    ]
    spec["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    other = copy.copy(tokenizer)
    other.backend = Backend.from_str(json.dumps(spec))
    return other


def limited(tokenizer: Tokenizer, limit: int) -> Tokenizer:
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def not_pooled(encoder: SentenceEncoder, prompt: str) -> int:
    """How many tokens of a prompt the model leaves out of its pooling."""
    return 0 if encoder.settings.include_prompt or not prompt else prompt_tokens(encoder.tokenizer, prompt)


def whole_lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The tokens of each text before anything is cut."""
    whole = limited(tokenizer, 2**31)
    return [len(ids) for chunk in chunks(texts) for ids in whole.encode(chunk).ids]


def padded_lengths(row: int, lengths: Sequence[int]) -> set[int]:
    """To how many tokens a text may have been padded: the longest of its batch, for the usual batches.

    Batches in the order of the file, and of texts sorted by length. ``lengths`` are those of all texts.
    """
    found = {max(lengths)}
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for place, sequence in ((row, range(len(lengths))), (order.index(row), order)):
        for size in BATCHES:
            start = place // size * size
            found.add(max(lengths[i] for i in sequence[start : start + size]))
    return found
