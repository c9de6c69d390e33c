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
class Tokenization:
    """The ids of each text. ``cause`` is a key, ``meaning`` a clause; both are empty for the model's own."""

    cause: str
    meaning: str
    ids: list[list[int]]
    skip: int = 0  # tokens of the prompt that are not pooled
    token_type: int = 0
    limit: int | None = None  # only texts with more tokens are affected


def tokenizations(encoder: SentenceEncoder, texts: Sequence[str], prompt: str) -> Iterator[Tokenization]:
    """The ids under each hypothesis, the model's own first."""
    tokenizer, prompted, skip = encoder.tokenizer, [prompt + text for text in texts], unpooled(encoder, prompt)
    positions = encoder.bert.config.positions
    right = tokenizer.encode(prompted).ids
    yield Tokenization("", "", right, skip)
    for limit in sorted({*LIMITS, positions} - {tokenizer.limit}):
        if len(tokenizer.pair_template) <= limit <= positions:
            said = f"texts were cut at {limit} tokens, not at {tokenizer.limit}"
            ids = limited(tokenizer, limit).encode(prompted).ids
            yield Tokenization("cut", said, ids, skip, limit=min(limit, tokenizer.limit))
    longer = limited(tokenizer, min(positions, tokenizer.limit + 2))
    if tokenizer.limit < positions:
        said = f"texts were cut at {tokenizer.limit} tokens without a [SEP] at their end"
        ids = [row[: tokenizer.limit] for row in limited(tokenizer, tokenizer.limit + 1).encode(prompted).ids]
        yield Tokenization("cut without [SEP]", said, ids, skip, limit=tokenizer.limit)
    yield from cased(tokenizer, prompted, skip)
    for other in dict.fromkeys(["", *encoder.settings.prompts.values(), *PROMPTS]):
        if other != prompt:
            ids = tokenizer.encode([other + text for text in texts]).ids
            yield Tokenization(*prompt_error(prompt, other), ids, unpooled(encoder, other))
    special = [token for sequence, token, _ in tokenizer.single_template if sequence is None]
    if len(special) == 2 and all(len(row) > 2 for row in right):
        for ids in (longer.encode(prompted).ids, right):  # cut to as many tokens as otherwise, or two fewer
            yield Tokenization("no special tokens", "[CLS] and [SEP] are missing", [row[1:-1] for row in ids])
        ids = [[row[0], *row, row[-1]][:positions] for row in right]
        yield Tokenization("special tokens twice", "[CLS] and [SEP] were added twice", ids)
    if encoder.bert.config.type_vocab_size > 1:
        yield Tokenization("token types", "the token types are 1, not 0", right, skip, token_type=1)


def prompt_error(right: str, other: str) -> tuple[str, str]:
    if not right:
        return "prompt added", f"the prompt {other!r} was added"
    if not other:
        return "prompt missing", f"the prompt {right!r} is missing"
    return "another prompt", f"the prompt was {other!r}, not {right!r}"


def cased(tokenizer: Tokenizer, texts: list[str], skip: int) -> Iterator[Tokenization]:
    """Capitals kept, or lower-cased if the model has capitals."""
    for strip_accents in (None, True):  # by default accents are stripped only together with lower-casing
        other = with_capitals(tokenizer, strip_accents)
        if other is None:
            ids = tokenizer.encode([text.lower() for text in texts]).ids
            yield Tokenization("lower-cased", "the texts were lower-cased, and this model has capitals", ids, skip)
            return
        yield Tokenization("lower-casing missing", "the texts were not lower-cased", other.encode(texts).ids, skip)


def with_capitals(tokenizer: Tokenizer, strip_accents: bool | None) -> Tokenizer | None:
    """The same tokenizer without lower-casing; None if it does not lower-case."""
    spec = json.loads(tokenizer.backend.to_str())
    normalizer = spec["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    if not any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
        return None
    change = {"lowercase": False, "strip_accents": strip_accents}
    steps = [step | change if step.get("lowercase") else step for step in steps if step.get("type") != "Lowercase"]
    spec["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
    other = copy.copy(tokenizer)
    other.backend = Backend.from_str(json.dumps(spec))
    return other


def limited(tokenizer: Tokenizer, limit: int) -> Tokenizer:
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def unpooled(encoder: SentenceEncoder, prompt: str) -> int:
    """The number of tokens of a prompt that the model does not pool."""
    return 0 if encoder.settings.include_prompt or not prompt else prompt_tokens(encoder.tokenizer, prompt)


def full_lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The number of tokens of each text before it is cut."""
    whole = limited(tokenizer, 2**31)
    return [len(ids) for chunk in chunks(texts) for ids in whole.encode(chunk).ids]


def padded_lengths(row: int, lengths: Sequence[int]) -> set[int]:
    """The lengths to which a text may have been padded: the longest of its batch, for the usual batches.

    Batches in the order of the file, and of texts sorted by length. ``lengths`` are those of all texts.
    """
    found = {max(lengths)}
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for place, sequence in ((row, range(len(lengths))), (order.index(row), order)):
        for size in BATCHES:
            start = place // size * size
            found.add(max(lengths[i] for i in sequence[start : start + size]))
    return found
