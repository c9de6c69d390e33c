"""The task of lesson 23: who chased whom, which a model that only knows the words must guess.

Facts of three words, "cat chases dog", stand among other words. A query has the fact after the word
*find*, a document has it among other fillers, and for each fact there is a document in which dog
chases cat. Facts of the test are not in the training.
"""

import random
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from lessons.mistakes import planted
from lessons.mistakes.planting import Mistake
from minisbert.architectures.mpnet import MPNet, MPNetConfig
from minisbert.core import bert
from minisbert.core.encoder import normalize
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.core.losses import multiple_negatives_ranking_loss
from minisbert.core.pooling import mean_pool

PAD, BOS, EOS, FIND = range(4)
NOUNS = range(4, 16)
VERBS = range(16, 22)
FILLERS = range(22, 30)
NEAR = (0, 3)  # how many fillers stand before a fact
FAR = (12, 18)

chance = random.Random(0)
pairs = []
for first, verb, second in product(NOUNS, VERBS, NOUNS):
    if first < second:
        pairs.append((first, verb, second))
chance.shuffle(pairs)


def both_ways(facts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Each fact, and the one in which the other animal chases."""
    turned = []
    for subject, verb, object_ in facts:
        turned += [(subject, verb, object_), (object_, verb, subject)]
    return turned


known = both_ways(pairs[100:])
unknown = both_ways(pairs[:100])


def words(fact: tuple[int, int, int], front: tuple[int, int], first: list[int]) -> list[int]:
    """Ids of a text with this fact."""
    before = [chance.choice(FILLERS) for _ in range(chance.randint(*front))]
    after = [chance.choice(FILLERS) for _ in range(chance.randint(*NEAR))]
    return [BOS, *first, *before, *fact, *after, EOS]


def queries_of(facts: Sequence[tuple], front: tuple[int, int] = NEAR) -> list[list[int]]:
    return [words(fact, front, [FIND]) for fact in facts]


def documents_of(facts: Sequence[tuple], front: tuple[int, int] = NEAR) -> list[list[int]]:
    return [words(fact, front, []) for fact in facts]


def batch_of(rows: list[list[int]], left: bool = False) -> tuple[Tensor, Tensor]:
    """Lists of ids -> ids and mask (B, T), pads on the right, or on the left as decoders do."""
    longest = max(map(len, rows))

    def row(ids: list, pad: int | bool) -> list:
        pads = [pad] * (longest - len(ids))
        return pads + ids if left else ids + pads

    mask = torch.tensor([row([True] * len(ids), False) for ids in rows])
    return torch.tensor([row(ids, PAD) for ids in rows]), mask


class Embedder(nn.Module):
    """An encoder and a pooling: ids and mask (B, T) -> vectors (B, D)."""

    def __init__(
        self,
        encoder: nn.Module,
        pool: Callable = mean_pool,
        left: bool = False,
        after: nn.Module | None = None,
    ):
        super().__init__()
        self.encoder = encoder
        self.pool = pool
        self.left = left
        self.after = after or nn.Identity()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.after(self.pool(self.encoder(ids, mask), mask))

    def encode(self, rows: list[list[int]]) -> Tensor:
        with torch.no_grad():
            return normalize(self(*batch_of(rows, self.left)))


SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def book(layers: int = 2, attention: type = bert.Attention, size: float = 0.15) -> bert.Bert:
    """A new encoder of the book, maybe with another attention; a thin one has larger weights."""
    torch.manual_seed(0)
    config = bert.BertConfig(**SIZES, num_hidden_layers=layers, initializer_range=size)
    model = bert.Bert(config, pooler=False)
    for layer in model.layers:
        layer.attention.__class__ = attention  # the same parameters
    return model


def mpnet() -> MPNet:
    """The same sizes with MPNet's bias for each distance."""
    torch.manual_seed(0)
    return MPNet(MPNetConfig(**SIZES, num_hidden_layers=2, initializer_range=0.15), pooler=False)


def trained(model: nn.Module, loss: Callable, batches: list, rate: float) -> float:
    """Train with ``fit``; the mean loss of the last 20 steps."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = adamw(parameters, lr=rate)

    def schedule(step: int) -> float:
        return linear_schedule(step, 20, len(batches))

    losses = [step.loss for step in fit(model, loss, batches, optimizer, schedule)]
    return sum(losses[-20:]) / 20


def learn(model: Embedder, steps: int = 200) -> float:
    """Train on the known facts, each fact's other document a hard negative. The last loss."""

    def loss(model: Embedder, facts: list) -> Tensor:
        turned_round = [fact[::-1] for fact in facts]
        # All texts are made before the first is embedded: they draw from the same chance.
        texts = [queries_of(facts), documents_of(facts), documents_of(turned_round)]
        queries, documents, negatives = [model(*batch_of(rows, model.left)) for rows in texts]
        return multiple_negatives_ranking_loss(queries, documents, negatives)

    chance.seed(1)
    batches = [chance.sample(known, 32) for _ in range(steps)]
    return trained(model, loss, batches, rate=5e-3)


def found(model: Embedder, front: tuple[int, int] = NEAR) -> float:
    """The share of unknown facts whose document is nearest to their query, among 200."""
    chance.seed(2)
    queries = queries_of(unknown, front)
    documents = documents_of(unknown, front)
    return hits(model.encode(queries), model.encode(documents))


def hits(queries: Tensor, documents: Tensor) -> float:
    """The share of queries (N, D) whose own document (N, D) is the nearest."""
    nearest = (queries @ documents.T).argmax(dim=1)
    return (nearest == torch.arange(len(queries))).float().mean().item()


def as_change(owner: object, attribute: str, stand_in: Callable) -> Mistake:
    return Mistake(attribute, "", owner, attribute, stand_in)


NOTHING = as_change(bert, "gelu", bert.gelu)


def wrong(
    name: str,
    model: Embedder,
    change: Mistake = NOTHING,
    pool: Callable | None = None,
    left: bool | None = None,
    low: torch.dtype | None = None,
    first: tuple[int, ...] = (FIND,),
    end: bool = True,
    after: bool = True,
) -> tuple[float, float, float]:
    """Vectors of the unknown facts with one thing wrong: a row of numbers, printed.

    The mean cosine of right and wrong vector of the same query; the share found if queries and
    documents are both computed wrongly; and the share that wrong queries find in an index that was
    built rightly.
    """
    chance.seed(2)
    queries = queries_of(unknown)
    documents = documents_of(unknown)
    right = model.encode(queries)
    index = model.encode(documents)

    other = Embedder(model.encoder, pool or model.pool, model.left if left is None else left)
    if after:
        other.after = model.after
    if not end:
        queries = [row[:-1] for row in queries]
        documents = [row[:-1] for row in documents]
    queries = [[BOS, *first, *row[2:]] for row in queries]
    with planted(change), torch.autocast("cpu", low, enabled=low is not None):
        u = other.encode(queries).float()
        v = other.encode(documents).float()

    cosine = (right * u).sum(dim=1).mean().item()
    both = hits(u, v)
    one = hits(u, index)
    print(f"{name:50}cosine {cosine:6.3f}   found {both:6.1%}, in the right index {one:6.1%}")
    return cosine, both, one
