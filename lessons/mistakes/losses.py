"""Mistakes in losses, and in the cosines that they share."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from minisbert.core import encoder, losses
from minisbert.diagnosis.mistakes import mistake
from minisbert.training import losses as more_losses
from minisbert.training.objectives import masked

Maybe = Tensor | None

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_cosine, _matrix, _entropy = encoder.cosine, encoder.cosine_matrix, losses.softmax_cross_entropy_loss
_ranking, _simcse, _nt_xent = losses.multiple_negatives_ranking_loss, losses.simcse_loss, more_losses.nt_xent_loss
_binary, _contrastive, _cosent = more_losses.binary_cross_entropy_loss, losses.contrastive_loss, more_losses.cosent_loss

# ------------------------------------------------------------------------------------- shared pieces


@mistake(encoder, "cosine", "dot for cosine", "the vectors are not scaled to length 1 before they are multiplied")
def _(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1)


@mistake(encoder, "cosine_matrix", "dot products for cosines", "the rows are not scaled to length 1")
def _(u: Tensor, v: Tensor) -> Tensor:
    return u @ v.T


@mistake(encoder, "cosine_matrix", "NaN hidden in the cosines", "nan_to_num makes 0 of 0/0, but not of its gradient")
def _(u: Tensor, v: Tensor) -> Tensor:
    return (u @ v.T / (u.norm(dim=1)[:, None] * v.norm(dim=1))).nan_to_num()


@mistake(encoder, "cosine_matrix", "cosines without eps", "nothing keeps the length of a zero vector away from 0")
def _(u: Tensor, v: Tensor) -> Tensor:
    return u @ v.T / (u.norm(dim=1)[:, None] * v.norm(dim=1))


@mistake(encoder, "cosine_matrix", "cosine of one side", "only the first vectors are scaled to length 1")
def _(u: Tensor, v: Tensor) -> Tensor:
    return encoder.normalize(u) @ v.T


# ----------------------------------------------------------------------- scores: squares and entropy


@mistake(losses, "cosine_mse_loss", "absolute error", "the difference is not squared")
def _(u: Tensor, v: Tensor, target: Tensor) -> Tensor:
    return (encoder.cosine(u, v) - target).abs().mean()


@mistake(losses, "mse_loss", "summed, not averaged", "the loss grows with the batch")
def _(scores: Tensor, target: Tensor) -> Tensor:
    return (scores - target).pow(2).sum()


@mistake(more_losses, "weighted_mse_loss", "weights on the wrong side", "targets above the threshold weigh more")
def _(scores: Tensor, target: Tensor, threshold: float = 0.2, weight: float = 2.0) -> Tensor:
    return (torch.ones_like(scores).masked_fill(target >= threshold, weight) * (scores - target).pow(2)).mean()


@mistake(more_losses, "weighted_mse_loss", "threshold included", "a target at the threshold weighs more too")
def _(scores: Tensor, target: Tensor, threshold: float = 0.2, weight: float = 2.0) -> Tensor:
    return (torch.ones_like(scores).masked_fill(target <= threshold, weight) * (scores - target).pow(2)).mean()


@mistake(more_losses, "weighted_mse_loss", "weights averaged out", "the sum is divided by the weights' sum, not by B")
def _(scores: Tensor, target: Tensor, threshold: float = 0.2, weight: float = 2.0) -> Tensor:
    weights = torch.ones_like(scores).masked_fill(target < threshold, weight)
    return (weights * (scores - target).pow(2)).sum() / weights.sum()


@mistake(more_losses, "binary_cross_entropy_loss", "pos_weight on negatives", "the weight applies to the other class")
def _(logits: Tensor, target: Tensor, pos_weight: float = 1.0) -> Tensor:
    return -(target * logsigmoid(logits) + pos_weight * (1 - target) * logsigmoid(-logits)).mean()


@mistake(more_losses, "binary_cross_entropy_loss", "sigmoid twice", "the logits are put through a sigmoid first")
def _(logits: Tensor, target: Tensor, pos_weight: float = 1.0) -> Tensor:
    return _binary(logits.sigmoid(), target, pos_weight)


@mistake(losses, "softmax_cross_entropy_loss", "softmax twice", "the loss gets probabilities instead of logits")
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return _entropy(logits.softmax(1), labels)


@mistake(
    losses,
    "softmax_cross_entropy_loss",
    "softmax over the batch",
    "the softmax is over the rows, not the classes",
)
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(0).gather(1, labels.unsqueeze(1)).mean()


@mistake(losses, "softmax_cross_entropy_loss", "cross-entropy summed", "the batch is summed, not averaged")
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return _entropy(logits, labels) * len(logits)


@mistake(losses, "softmax_cross_entropy_loss", "exp overflows", "exp is infinite for a logit of 1000: use logsumexp")
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.exp().sum(1).log() - logits.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


# ----------------------------------------------------------------------------------- pairs, triplets


@mistake(losses, "contrastive_loss", "contrastive margin's sign", "unlike pairs are pulled in to the margin")
def _(u: Tensor, v: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    d = 1 - _cosine(u, v)
    return (labels * d.pow(2) + (1 - labels) * (d - margin).clamp_min(0).pow(2)).mean() / 2


@mistake(losses, "contrastive_loss", "contrastive labels swapped", "1 means apart, as in the paper, not together")
def _(u: Tensor, v: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    return _contrastive(u, v, 1 - labels, margin)


@mistake(losses, "triplet_loss", "triplet margin's sign", "the margin is subtracted, so near misses cost nothing")
def _(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, distance: str = "euclidean") -> Tensor:
    to_positive, to_negative = _distances(anchor, positive, negative, distance)
    return (to_positive - to_negative - margin).clamp_min(0).mean()


@mistake(losses, "triplet_loss", "squared distance", "Euclidean distances are squared")
def _(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, distance: str = "euclidean") -> Tensor:
    to_positive, to_negative = (d.pow(2) for d in _distances(anchor, positive, negative, distance))
    return (to_positive - to_negative + margin).clamp_min(0).mean()


@mistake(losses, "triplet_loss", "no hinge", "triplets that satisfy the margin are still pulled apart")
def _(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, distance: str = "euclidean") -> Tensor:
    to_positive, to_negative = _distances(anchor, positive, negative, distance)
    return (to_positive - to_negative + margin).mean()


def _distances(anchor: Tensor, positive: Tensor, negative: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    if distance == "cosine":
        return 1 - _cosine(anchor, positive), 1 - _cosine(anchor, negative)
    return (anchor - positive).norm(dim=1), (anchor - negative).norm(dim=1)


@mistake(more_losses, "cosent_loss", "order the wrong way round", "the correctly ordered pairs are the ones that cost")
def _(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    return _cosent(u, v, -target, scale)


@mistake(more_losses, "cosent_loss", "ties count as order", "pairs with equal targets are pushed apart as well")
def _(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    cosines = _cosine(u, v)
    gaps = scale * (cosines[None, :] - cosines[:, None])
    return torch.cat([gaps.new_zeros(1), gaps[target[:, None] >= target[None, :]]]).logsumexp(0)


@mistake(more_losses, "cosent_loss", "no 1 inside the log", "the loss falls below 0 if the order is right")
def _(u: Tensor, v: Tensor, target: Tensor, scale: float = 20.0) -> Tensor:
    return _cosent(u, v, target, scale).expm1().log()


# -------------------------------------------------------------------------------- in-batch negatives


@mistake(losses, "multiple_negatives_ranking_loss", "scale divided", "the cosines are divided by the scale")
def _(
    anchors: Tensor, positives: Tensor, hard_negatives: Maybe = None, scale: float = 20.0, *rest: Any, **options: Any
) -> Tensor:
    return _ranking(anchors, positives, hard_negatives, 1 / scale, *rest, **options)


@mistake(losses, "multiple_negatives_ranking_loss", "ranking labels off by one", "row i's answer is column i + 1")
def _(anchors: Tensor, positives: Tensor, *rest: Any, **options: Any) -> Tensor:
    return _ranking(anchors, positives.roll(-1, dims=0), *rest, **options)


@mistake(losses, "multiple_negatives_ranking_loss", "no hard negatives", "the third column of the data is not used")
def _(anchors: Tensor, positives: Tensor, hard_negatives: Maybe = None, *rest: Any, **options: Any) -> Tensor:
    return _ranking(anchors, positives, None, *rest, **options)


@mistake(losses, "multiple_negatives_ranking_loss", "one direction", "the loss from positives to anchors is left out")
def _(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Maybe = None,
    scale: float = 20.0,
    symmetric: bool = False,
    duplicates: Maybe = None,
) -> Tensor:
    return _ranking(anchors, positives, hard_negatives, scale, False, duplicates)


@mistake(losses, "multiple_negatives_ranking_loss", "duplicates as negatives", "equal texts are pushed apart")
def _(
    anchors: Tensor,
    positives: Tensor,
    hard_negatives: Maybe = None,
    scale: float = 20.0,
    symmetric: bool = False,
    duplicates: Maybe = None,
) -> Tensor:
    return _ranking(anchors, positives, hard_negatives, scale, symmetric)


@mistake(losses, "simcse_loss", "temperature multiplied", "the cosines are multiplied by the temperature")
def _(
    u: Tensor, v: Tensor, hard_negatives: Maybe = None, temperature: float = 0.05, *rest: Any, **options: Any
) -> Tensor:
    return _simcse(u, v, hard_negatives, 1 / temperature, *rest, **options)


@mistake(losses, "simcse_loss", "SimCSE labels off by one", "the diagonal of the batch is shifted by one")
def _(u: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
    return _simcse(u, v.roll(-1, dims=0), *rest, **options)


@mistake(losses, "simcse_loss", "contradictions left out", "supervised SimCSE trains on entailment pairs alone")
def _(
    u: Tensor, v: Tensor, hard_negatives: Maybe = None, temperature: float = 0.05, *rest: Any, **options: Any
) -> Tensor:
    return _simcse(u, v, None, temperature)


@mistake(losses, "simcse_loss", "weight on every contradiction", "the hard negatives of other rows get it too")
def _(
    u: Tensor, v: Tensor, hard_negatives: Maybe = None, temperature: float = 0.05, hard_negative_weight: float = 0.0
) -> Tensor:
    logits = _matrix(u, v) / temperature
    if hard_negatives is not None:
        logits = torch.cat([logits, _matrix(u, hard_negatives) / temperature + hard_negative_weight], 1)
    return _entropy(logits, torch.arange(len(u), device=u.device))


@mistake(more_losses, "nt_xent_loss", "itself among the candidates", "each row is its own best match: cosine 1")
def _(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    z = torch.cat([u, v])
    return _entropy(_matrix(z, z) / temperature, torch.arange(len(z), device=z.device).roll(len(u)))


@mistake(more_losses, "nt_xent_loss", "other view only", "rows of the same view are not wrong answers, as in SimCSE")
def _(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    return (_simcse(u, v, temperature=temperature) + _simcse(v, u, temperature=temperature)) / 2


@mistake(more_losses, "nt_xent_loss", "NT-Xent temperature multiplied", "a temperature below 1 flattens the softmax")
def _(u: Tensor, v: Tensor, temperature: float = 0.05) -> Tensor:
    return _nt_xent(u, v, 1 / temperature)


# ------------------------------------------------------------------------------------- masked words

_mask_tokens, _mlm_loss = masked.mask_tokens, more_losses.mlm_loss


@mistake(masked, "mask_tokens", "nothing is hidden", "the inputs are the texts themselves, with every answer in them")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return ids, _mask_tokens(ids, words, mask_id, chance, other)[1]


@mistake(masked, "mask_tokens", "special tokens are hidden too", "[CLS], [SEP] and pads are chosen like words")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return _mask_tokens(ids, torch.ones_like(words), mask_id, chance, other)


@mistake(masked, "mask_tokens", "every chosen word is [MASK]", "none is replaced and none stays: 100, not 80 %")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    chosen = _mask_tokens(ids, words, mask_id, chance, other)[1]
    return torch.where(chosen, mask_id, ids), chosen


@mistake(masked, "mask_tokens", "only [MASK] is to be guessed", "replaced words and those that stay are not asked for")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    inputs, chosen = _mask_tokens(ids, words, mask_id, chance, other)
    return inputs, chosen & (inputs == mask_id)


@mistake(masked, "mask_tokens", "only changed words are to be guessed", "the words that stay are not asked for")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    inputs, chosen = _mask_tokens(ids, words, mask_id, chance, other)
    return inputs, chosen & (inputs != ids)


@mistake(masked, "mask_tokens", "80 % of all words are hidden", "0.8 and 0.9 are not multiplied by 0.15")
def _(ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return _mask_tokens(ids, words, mask_id, chance * 0.15, other)


@mistake(more_losses, "mlm_loss", "mean over the vocabulary", "each word's loss is divided by V")
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return _mlm_loss(logits, targets) / logits.shape[1]


@mistake(more_losses, "mlm_loss", "softmax over the words of the batch", "each column sums to 1, not each row")
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return -logits.log_softmax(dim=0).gather(1, targets.unsqueeze(1)).mean()


@mistake(more_losses, "mlm_loss", "sum over the hidden words", "a batch with more words weighs more")
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return _mlm_loss(logits, targets) * len(targets)
