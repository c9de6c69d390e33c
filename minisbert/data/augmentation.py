"""Training rows made from other rows: texts changed at random (SimCSE, table 1), and pairs shuffled into negatives.

The functions on texts split at white space, draw random numbers from ``generator``, and leave at least one word. The
same seed gives the same rows.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import partial

from minisbert.core import InputError, one_line, reading
from minisbert.data.formats import Row
from minisbert.data.rows import Rows

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
