"""Mistakes in losses, and in the cosines that they share."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lessons.by_hand import losses as by_hand
from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from minisbert.core import encoder, losses
from minisbert.training import losses as more_losses
from minisbert.training import masked

Maybe = Tensor | None

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_cosine = encoder.cosine
_matrix = encoder.cosine_matrix
_entropy = losses.softmax_cross_entropy_loss
_ranking = losses.multiple_negatives_ranking_loss
_simcse, _cosent = losses.simcse_loss, more_losses.cosent_loss
_mask_tokens, _mlm_loss = masked.mask_tokens, by_hand.mlm_loss

# ------------------------------------------------------------------------------------ shared pieces


@mistake(
    encoder,
    "cosine",
    "dot for cosine",
    "the vectors are not scaled to length 1 before they are multiplied",
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1)


@mistake(
    encoder, "cosine_matrix", "dot products for cosines", "the rows are not scaled to length 1"
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return u @ v.T


@mistake(
    encoder,
    "cosine_matrix",
    "NaN hidden in the cosines",
    "nan_to_num makes 0 of 0/0, but not of its gradient",
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return (u @ v.T / (u.norm(dim=1)[:, None] * v.norm(dim=1))).nan_to_num()


@mistake(
    encoder,
    "cosine_matrix",
    "cosines without eps",
    "nothing keeps the length of a zero vector away from 0",
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return u @ v.T / (u.norm(dim=1)[:, None] * v.norm(dim=1))


@mistake(
    encoder, "cosine_matrix", "cosine of one side", "only the first vectors are scaled to length 1"
)
def _(u: Tensor, v: Tensor) -> Tensor:
    return encoder.normalize(u) @ v.T


# ---------------------------------------------------------------------- scores: squares and entropy


@mistake(losses, "cosine_mse_loss", "absolute error", "the difference is not squared")
def _(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    return (encoder.cosine(u, v) - target).abs().mean()


@mistake(losses, "mse_loss", "summed, not averaged", "the loss grows with the batch")
def _(scores: Tensor, target: Tensor) -> Tensor:
    return (scores - target).pow(2).sum()


def weighted_with(
    scores: Tensor,
    target: Tensor,
    threshold: float = 0.2,
    weight: float = 2.0,
    *,
    heavy: str = "below",
    total: str = "",
) -> Tensor:
    """``heavy`` says which targets weigh more; the sum is divided by B, or by the weights'
    ``total``.
    """
    chosen = {"below": target < threshold, "from": target >= threshold, "to": target <= threshold}[
        heavy
    ]
    weights = torch.ones_like(scores).masked_fill(chosen, weight)
    return (weights * (scores - target).pow(2)).sum() / (weights.sum() if total else len(scores))


weighted = calls(by_hand, "weighted_mse_loss", weighted_with)
weighted("weights on the wrong side", "targets above the threshold weigh more", heavy="from")
weighted("threshold included", "a target at the threshold weighs more too", heavy="to")
weighted(
    "weights averaged out", "the sum is divided by the weights' sum, not by B", total="weights"
)

binary = calls(more_losses, "binary_cross_entropy_loss")
binary("sigmoid twice", "the logits are put through a sigmoid first", logits=torch.sigmoid)


@mistake(
    more_losses,
    "binary_cross_entropy_loss",
    "pos_weight on negatives",
    "the weight applies to the other class",
)
def _(logits: Tensor, target: Tensor, pos_weight: float = 1.0) -> Tensor:
    return -(target * logsigmoid(logits) + pos_weight * (1 - target) * logsigmoid(-logits)).mean()


entropy = calls(losses, "softmax_cross_entropy_loss")
entropy(
    "softmax twice", "the loss gets probabilities instead of logits", logits=lambda x: x.softmax(1)
)


@mistake(
    losses,
    "softmax_cross_entropy_loss",
    "softmax over the batch",
    "the softmax is over the rows, not the classes",
)
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(0).gather(1, labels.unsqueeze(1)).mean()


@mistake(
    losses,
    "softmax_cross_entropy_loss",
    "cross-entropy summed",
    "the batch is summed, not averaged",
)
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return _entropy(logits, labels) * len(logits)


@mistake(
    losses,
    "softmax_cross_entropy_loss",
    "exp overflows",
    "exp is infinite for a logit of 1000: use logsumexp",
)
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.exp().sum(1).log() - logits.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


# ---------------------------------------------------------------------------------- pairs, triplets


@mistake(
    losses,
    "contrastive_loss",
    "contrastive margin's sign",
    "unlike pairs are pulled in to the margin",
)
def _(u: Tensor, v: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    d = 1 - _cosine(u, v)
    return (labels * d.pow(2) + (1 - labels) * (d - margin).clamp_min(0).pow(2)).mean() / 2


contrastive = calls(losses, "contrastive_loss")
contrastive(
    "contrastive labels swapped",
    "1 means apart, as in the paper, not together",
    labels=lambda y: 1 - y,
)


def triplet_with(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    *,
    power: int = 1,
    least: float = 0.0,
) -> Tensor:
    """The Euclidean distances to the ``power``; no triplet costs less than ``least``."""
    near = (anchor - positive).norm(dim=1)
    far = (anchor - negative).norm(dim=1)
    return (near**power - far**power + margin).clamp_min(least).mean()


triplet = calls(losses, "triplet_loss", triplet_with)
triplet(
    "triplet margin's sign",
    "the margin is subtracted, so near misses cost nothing",
    margin=lambda margin: -margin,
)
triplet("squared distance", "Euclidean distances are squared", power=2)
triplet("no hinge", "triplets that satisfy the margin are still pulled apart", least=-math.inf)

ordered = calls(more_losses, "cosent_loss")
ordered(
    "order the wrong way round",
    "the correctly ordered pairs are the ones that cost",
    target=lambda x: -x,
)


@mistake(
    more_losses,
    "cosent_loss",
    "ties count as order",
    "pairs with equal targets are pushed apart as well",
)
def _(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    cosines = _cosine(u, v)
    gaps = scale * (cosines[None, :] - cosines[:, None])
    return torch.cat([gaps.new_zeros(1), gaps[target[:, None] >= target[None, :]]]).logsumexp(0)


@mistake(
    more_losses,
    "cosent_loss",
    "no 1 inside the log",
    "the loss falls below 0 if the order is right",
)
def _(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    return _cosent(u, v, target, scale).expm1().log()


# ------------------------------------------------------------------------------- in-batch negatives


def one_on(x: Tensor) -> Tensor:
    """Row i + 1 in the place of row i."""
    return x.roll(-1, dims=0)


def one_direction(
    anchors: Tensor, positives: Tensor, hard_negatives: Maybe = None, scale: float = 20.0
) -> Tensor:
    """Only the anchors pick."""
    return _ranking(anchors, positives, hard_negatives, scale)


ranking = calls(losses, "multiple_negatives_ranking_loss")
ranking("scale divided", "the cosines are divided by the scale", scale=lambda scale: 1 / scale)
ranking("ranking labels off by one", "row i's answer is column i + 1", positives=one_on)
ranking("no hard negatives", "the third column of the data is not used", hard_negatives=None)

symmetric = calls(more_losses, "symmetric_ranking_loss", one_direction)
symmetric("one direction", "the loss from positives to anchors is left out")
among_duplicates = calls(by_hand, "ranking_among_duplicates_loss")
among_duplicates(
    "duplicates as negatives", "equal texts are pushed apart", duplicates=torch.zeros_like
)

simcse = calls(losses, "simcse_loss")
simcse(
    "temperature multiplied",
    "the cosines are multiplied by the temperature",
    temperature=lambda tau: 1 / tau,
)
simcse("SimCSE labels off by one", "the diagonal of the batch is shifted by one", v=one_on)
ENTAILED = "supervised SimCSE trains on entailment pairs alone"
simcse("contradictions left out", ENTAILED, hard_negatives=None)


@mistake(
    by_hand,
    "weighted_simcse_loss",
    "weight on every contradiction",
    "the hard negatives of other rows get it too",
)
def _(
    u: Tensor,
    v: Tensor,
    hard_negatives: Tensor,
    temperature: float = 0.05,
    hard_negative_weight: float = 0.0,
) -> Tensor:
    more = _matrix(u, hard_negatives) / temperature + hard_negative_weight
    logits = torch.cat([_matrix(u, v) / temperature, more], 1)
    return _entropy(logits, torch.arange(len(u), device=u.device))


@mistake(
    by_hand,
    "nt_xent_loss",
    "itself among the candidates",
    "each row is its own best match: cosine 1",
)
def _(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    z = torch.cat([u, v])
    return _entropy(_matrix(z, z) / temperature, torch.arange(len(z), device=z.device).roll(len(u)))


@mistake(
    by_hand,
    "nt_xent_loss",
    "other view only",
    "rows of the same view are not wrong answers, as in SimCSE",
)
def _(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    return (_simcse(u, v, temperature=temperature) + _simcse(v, u, temperature=temperature)) / 2


nt_xent = calls(by_hand, "nt_xent_loss")
flat = "a temperature below 1 flattens the softmax"
nt_xent("NT-Xent temperature multiplied", flat, temperature=lambda tau: 1 / tau)

# ------------------------------------------------------------------------------------- masked words


def masked_with(
    ids: Tensor,
    words: Tensor,
    mask_id: int,
    chance: Tensor,
    other: Tensor,
    *,
    hidden: str = "",
    asked: str = "",
) -> tuple[Tensor, Tensor]:
    """``hidden`` words are none or all of the chosen ones, ``asked`` are those that are [MASK] or
    that are changed.
    """
    inputs, chosen = _mask_tokens(ids, words, mask_id, chance, other)
    if hidden:
        inputs = ids if hidden == "none" else torch.where(chosen, mask_id, ids)
    if asked:
        chosen = chosen & (inputs == mask_id if asked == "[MASK]" else inputs != ids)
    return inputs, chosen


hidden = calls(masked, "mask_tokens", masked_with)
hidden(
    "nothing is hidden",
    "the inputs are the texts themselves, with every answer in them",
    hidden="none",
)
hidden(
    "special tokens are hidden too",
    "[CLS], [SEP] and pads are chosen like words",
    words=torch.ones_like,
)
hidden(
    "every chosen word is [MASK]",
    "none is replaced and none stays, as with 0.8 and 0.9 in place of 0.12 and 0.135",
    hidden="all",
)
hidden(
    "only [MASK] is to be guessed",
    "replaced words and those that stay are not asked for",
    asked="[MASK]",
)
hidden(
    "only changed words are to be guessed", "the words that stay are not asked for", asked="changed"
)
hidden(
    "80 % of all words are hidden",
    "0.8 and 0.9 are not multiplied by 0.15",
    chance=lambda x: x * 0.15,
)


@mistake(by_hand, "mlm_loss", "mean over the vocabulary", "each word's loss is divided by V")
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return _mlm_loss(logits, targets) / logits.shape[1]


@mistake(
    by_hand,
    "mlm_loss",
    "softmax over the words of the batch",
    "each column sums to 1, not each row",
)
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits.log_softmax(dim=0).gather(1, targets.unsqueeze(1)).mean()


@mistake(by_hand, "mlm_loss", "sum over the hidden words", "a batch with more words weighs more")
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return _mlm_loss(logits, targets) * len(targets)
