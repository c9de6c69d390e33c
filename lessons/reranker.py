"""A judge of pairs, trained in a minute on a CPU: lesson 15, and exercises of 18.

What a judge should see and a cosine does not: one word that changes the meaning. STS-B's sentences
are changed by rule, so that nobody has to label anything: a negation, another number, or two roles
that change places make another sentence, an article or a *now* does not.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minisbert.core.data import length_grouped_batches
from minisbert.core.loop import fit, linear_schedule
from minisbert.core.tokenizer import Encoded
from minisbert.data.rows import ScoredPair, load_scored_pairs
from minisbert.models.pair_model import PairModel

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ROLES = re.compile(
    r"(An?|The|Two|Some) (\w+|\w+ \w+) (is|are) (\w+ing|\w+ing \w+) "
    r"(an?|the|some|two) (\w+|\w+ \w+)\.?"
)
LONGEST = 60  # characters: captions, not paragraphs


class Triple(NamedTuple):
    """A sentence, one that says the same, one that does not, and how the latter was made."""

    sentence: str
    same: str
    other: str
    kind: str  # negation, number, roles


def negated(text: str) -> str | None:
    """``negated("A man is running.") = "A man is not running."``, None without such a verb."""
    verb = re.search(r"\b(is|are|was|were|can|will)\b(?! not)", text)
    return f"{text[: verb.end()]} not{text[verb.end() :]}" if verb else None


def recounted(text: str, rng: random.Random) -> str | None:
    """``Two dogs`` to ``Seven dogs``: another number in place of the first, None without one."""
    found = re.search(rf"\b({'|'.join(NUMBERS)}|\d+)\b", text, re.IGNORECASE)
    if not found:
        return None
    number = found[0].lower()
    if number.isdigit():
        other = str(int(number) + rng.randint(1, 9))
    else:
        other = rng.choice([n for n in NUMBERS if n != number])
    if found[0][0].isupper():
        other = other.capitalize()
    return text[: found.start()] + other + text[found.end() :]


def swapped(text: str) -> str | None:
    """``swapped("A dog is biting a man.") = "A man is biting a dog."``, None for other forms."""
    found = ROLES.fullmatch(text)
    if not found:
        return None
    article, who, verb, does, other_article, whom = found.groups()
    return f"{other_article.capitalize()} {whom} {verb} {does} {article.lower()} {who}."


def unchanged(text: str, rng: random.Random) -> str | None:
    """The same meaning in other words: ``The`` for ``A``, or ``is now`` for ``is``."""
    article = re.match(r"(A|An|The) ", text)
    verb = re.search(r"\b(is|are) (?=\w+ing\b)", text)
    choices = []
    if article:
        other = "One " if article[1] == "The" else "The "
        choices.append(other + text[article.end() :])
    if verb:
        choices.append(text[: verb.end()] + rng.choice(["now ", "currently "]) + text[verb.end() :])
    return rng.choice(choices) if choices else None


def minimal_pairs(split: str, seed: int = 0) -> tuple[list[tuple[str, str, float]], list[Triple]]:
    """Rows (sentence, sentence, 1 if they say the same) and triples, of a split of STS-B.

    Pairs that people scored 4 or more say the same, those of 2 or less do not. A negation of both
    sides says the same again: so "not" by itself decides nothing.
    """
    rng = random.Random(seed)
    rows: list[tuple[str, str, float]] = []
    triples = []
    for pair in load_scored_pairs("stsb", split):
        a = pair.sentence1
        b = pair.sentence2
        if a == b or max(len(a), len(b)) > LONGEST:
            continue
        if pair.score <= 2 and rng.random() < 0.3:
            rows.append((a, b, 0.0))
        if pair.score >= 3:
            add_changes(rows, triples, pair, rng)
    rng.shuffle(rows)

    # A judge must not learn which of the two comes first.
    ordered = []
    for a, b, score in rows:
        if rng.random() < 0.5:
            a, b = b, a
        ordered.append((a, b, score))
    return ordered, triples


def add_changes(
    rows: list[tuple[str, str, float]],
    triples: list[Triple],
    pair: ScoredPair,
    rng: random.Random,
) -> None:
    """Add the rows and triples that the changes of a pair's first sentence make."""
    sentence = pair.sentence1
    same = pair.sentence2 if pair.score >= 4 else None
    harmless = unchanged(sentence, rng)
    if same:
        rows.append((sentence, same, 1.0))
    changes = {
        "negation": negated(sentence),
        "number": recounted(sentence, rng),
        "roles": swapped(sentence),
    }
    for kind, other in changes.items():
        if other is None:
            continue
        rows.append((sentence, other, 0.0))
        if harmless:
            rows.append((sentence, harmless, 1.0))
            triples.append(Triple(sentence, harmless, other, kind))
        if same:
            rows.append((same, other, 0.0))
            triples.append(Triple(sentence, same, other, kind))
        if same and kind == "negation":
            both = negated(same)
            if both:
                rows.append((other, both, 1.0))
                triples.append(Triple(other, both, sentence, kind))


def train(
    model: PairModel,
    encoded: Encoded,
    loss: Callable[[Tensor, Sequence[int]], Tensor],
    steps: int,
    frozen: int = 2,
    group: int = 1,
    seed: int = 0,
) -> list[float]:
    """Train the head and all but the ``frozen`` lowest layers, 32 pairs a step; each step's loss.

    ``group`` neighbours of ``encoded`` belong together, as a query's candidates do. ``loss(outputs,
    groups)`` gets the outputs of a batch, and which groups it is of. New heads learn ten times as
    fast as old layers.
    """
    lengths = model.lengths(encoded)
    longest = [max(lengths[i : i + group]) for i in range(0, len(lengths), group)]
    batches: list[list[int]] = []
    generator = torch.Generator().manual_seed(seed)
    while len(batches) < steps:
        batches += length_grouped_batches(longest, 32 // group, generator)
    model.requires_grad_(False)
    head = model.head.requires_grad_(True)
    layers = model.encoder.bert.layers[frozen:].requires_grad_(True)
    rates = [
        {"params": [*head.parameters()], "lr": 1e-3},
        {"params": [*layers.parameters()], "lr": 2e-4},
    ]
    optimizer = torch.optim.AdamW(rates, weight_decay=0.01, fused=True)

    def loss_of(module: torch.nn.Module, batch: Sequence[int]) -> Tensor:
        rows: list[int] = []
        for g in batch:
            rows += range(group * g, group * (g + 1))
        return loss(module(*model.batch(encoded, rows)), batch)

    def schedule(step: int) -> float:
        return linear_schedule(step, steps // 10, steps)

    steps_of_training = fit(model, loss_of, batches[:steps], optimizer, schedule, clip=1.0)
    losses = [step.loss for step in steps_of_training]
    model.requires_grad_(True)
    return losses
