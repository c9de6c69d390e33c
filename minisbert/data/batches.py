"""Batches in which no text occurs twice, for losses whose negatives are the other rows of the batch."""

import random
import re
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch

from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_negatives
from minisbert.data.formats import Row
from minisbert.data.lines import Rows

MOST_HOSTS = 100  # batches that are tried for a row left alone


def unique_batches(
    keys: Sequence[Sequence[Hashable]],
    lengths: Sequence[int],
    batch_size: int,
    generator: torch.Generator,
    window: int = 50,
) -> list[list[int]]:
    """``length_grouped_batches`` with no key twice in a batch, for losses with in-batch negatives.

    Such a loss treats every other row of the batch as a negative, so a text in two rows would be its own negative.
    ``keys`` holds the texts of each row; a repetition within one row does no harm. A row whose text is already in a
    batch goes to a later batch of its window, or to the next window if none has room, so a few batches are smaller.
    A batch of one row has no negatives: its row joins the first batch without its texts, which may then have
    ``batch_size + 1`` rows. If none of the first hundred batches qualifies, as when all rows share a text, the row is
    dropped; every other row is in exactly one batch.
    """
    check_negatives(range(batch_size))
    order = torch.randperm(len(keys), generator=generator).tolist()
    batches: list[list[int]] = []
    waiting: list[int] = []
    while order:
        fresh = batch_size * window - len(waiting)  # at least 1: each window places at least one row
        rows = sorted(waiting + order[:fresh], key=lambda row: lengths[row])
        order = order[fresh:]
        # if most rows are waiting, a text is so frequent that waiting longer would only cost time
        may_wait = order and 2 * len(waiting) < len(rows)
        filled, waiting = _fill(rows, keys, batch_size, most=window if may_wait else len(rows))
        batches += filled
    _join_alone(batches, keys, batch_size)
    batches = [batch for batch in batches if batch]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _fill(
    rows: list[int], keys: Sequence[Sequence[Hashable]], batch_size: int, most: int
) -> tuple[list[list[int]], list[int]]:
    """Put each row into the first batch with room after those that have its texts; return batches and rows left over.

    With a batch size of 2, rows a, b, a, c, a of one text each give [a, b], [a, c], [a].
    """
    batches: list[list[int]] = [[] for _ in range(most)]
    left = []
    after: dict[Hashable, int] = {}  # key -> the batch after the last one that contains it
    full = 0  # no batch before it has room
    for row in rows:
        while full < most and len(batches[full]) == batch_size:
            full += 1
        at = full
        for key in keys[row]:
            at = max(at, after.get(key, 0))
        # the rows of a window fill at most 50 batches, so few are passed
        while at < most and len(batches[at]) == batch_size:
            at += 1
        if at == most:
            left.append(row)
            continue
        batches[at].append(row)
        for key in keys[row]:
            after[key] = at + 1
    return [batch for batch in batches if batch], left


def _join_alone(batches: list[list[int]], keys: Sequence[Sequence[Hashable]], batch_size: int) -> None:
    """Move the row of each batch of one to another batch, or drop it, which leaves its batch empty."""
    texts = [{key for row in batch for key in keys[row]} for batch in batches]
    hosts = list(range(len(batches)))
    for alone in range(len(batches)):
        if len(batches[alone]) != 1:  # also if another row has joined it since
            continue
        row = batches[alone].pop()
        fitting = [host for host in hosts[:MOST_HOSTS] if batches[host] and texts[host].isdisjoint(keys[row])]
        if not fitting:  # the row is dropped
            continue
        host = fitting[0]
        batches[host].append(row)
        texts[host].update(keys[row])
        if len(batches[host]) > batch_size:  # one more is enough
            hosts.remove(host)


FORMS = "crop:SHARE, delete:SHARE, delete-one or synonym:FILE, with a share between 0 and 1 such as crop:0.1"

# ------------------------------------------------------------------------------------- texts changed


def crop(text: str, share: float, generator: random.Random) -> str:
    """Consecutive words, without a ``share`` of them at the ends: 10 % of ten words leaves 1 to 9 or 2 to 10."""
    words = text.split()
    kept = max(1, round((1 - share) * len(words)))
    start = generator.randint(0, len(words) - kept)
    return " ".join(words[start : start + kept])


def delete(text: str, share: float, generator: random.Random) -> str:
    """The text without a ``share`` of its words: 20 % of five words is one, 10 % of four is none."""
    return delete_words(text, round(share * len(text.split())), generator)


def delete_words(text: str, count: int, generator: random.Random) -> str:
    """The text without ``count`` words: ``"a b c"`` without one is ``"b c"``, ``"a c"`` or ``"a b"``."""
    words = text.split()
    gone = set(generator.sample(range(len(words)), min(count, len(words) - 1)))
    return " ".join(word for i, word in enumerate(words) if i not in gone)


def replace_word(text: str, synonyms: dict[str, list[str]], generator: random.Random) -> str:
    """The text with one word replaced by a synonym; unchanged if no word has synonyms.

    With ``{"big": ["large"]}`` ``"A big dog."`` becomes ``"A large dog."``.
    """
    parts = re.findall(r"\w+|\W+", text)
    known = [i for i, part in enumerate(parts) if part.lower() in synonyms]
    if known:
        place = generator.choice(known)
        parts[place] = generator.choice(synonyms[parts[place].lower()])
    return "".join(parts)


def read_synonyms(path: str) -> dict[str, list[str]]:
    """Each word, in lower case, and its synonyms. A line of the file holds words of one meaning: ``big, large, huge``.

    Commas or tabs separate the words. Raises ``InputError`` for a line with one word and for a file without any.
    """
    found: dict[str, list[str]] = {}
    with reading(path) as at:
        for at.line, line in enumerate(Rows(path).lines(), start=1):
            words = [word.strip() for word in re.split("[,\t]", line) if word.strip()]
            if len(words) == 1:
                raise ValueError("one word; expected several of one meaning, as in: big, large, huge")
            for word in words:
                found.setdefault(word.lower(), []).extend(other for other in words if other.lower() != word.lower())
    if not any(found.values()):
        raise InputError(f"{path} holds no synonyms")
    return {word: others for word, others in found.items() if others}


def augment(texts: Sequence[str], form: str, seed: int) -> list[str]:
    """Each text changed as ``form`` says, once. Raises ``InputError`` for an unknown form.

    ``crop:0.1`` and ``delete:0.1`` remove a share of the words, ``delete-one`` one word, and ``synonym:FILE`` replaces
    one word by a synonym from the file.
    """
    generator = random.Random(seed)
    change = make_change(form)
    return [change(text, generator=generator) for text in texts]


def make_change(form: str) -> Callable[..., str]:
    name, _, setting = form.partition(":")
    if form == "delete-one":
        return partial(delete_words, count=1)
    if name == "synonym" and setting:
        return partial(replace_word, synonyms=read_synonyms(setting))
    if name in ("crop", "delete"):
        try:
            share = float(setting)
        except ValueError:
            share = 0.0
        if 0 < share < 1:
            return partial(crop if name == "crop" else delete, share=share)
    raise InputError(f"--augment {one_line(form)}: expected {FORMS}")


# ------------------------------------------------------------------------------------- shuffled pairs


def shuffled_negatives(pairs: Sequence[Row], count: int, seed: int) -> list[Row]:
    """``count`` pairs of score 0 for each pair: its first sentence with the second ones of other pairs.

    For translations: in a large file two random sentences do not have the same meaning. Combinations that are among
    ``pairs`` or that repeat one sentence are left out. Raises ``InputError`` for a ``count`` above N - 1 for N pairs.
    (a, A), (b, B) with a count of 1 give (a, B) and (b, A).
    """
    if count >= len(pairs):
        raise InputError(f"--shuffled-negatives {count}: {len(pairs)} pairs give at most {len(pairs) - 1} for each")
    order = random.Random(seed).sample(range(len(pairs)), len(pairs))
    known = {(pair.sentence1, pair.sentence2) for pair in pairs}
    found = []
    for turn in range(1, count + 1):  # subtle: each turn of a shuffled circle moves every sentence off its partner
        for here, there in zip(order, order[turn:] + order[:turn], strict=True):
            first, second = pairs[here].sentence1, pairs[there].sentence2
            if first != second and (first, second) not in known:
                found.append(Row((first, second), 0.0))
    return found
