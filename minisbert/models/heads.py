"""Heads beyond the book's: cross-attention with a published notebook's bug, and the classifier of a CrossEncoder."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minisbert.core.bert import Bert
from minisbert.core.heads import ConcatHead, CrossHead, JointHead
from minisbert.core.pooling import cls_pool

VARIANTS = ("published", "compare", "published-bug")  # of cross-attention


class BatchCrossHead(CrossHead):
    """``published`` as the STS-B notebook computes it: ``MultiheadAttention`` without ``batch_first`` on (B, T, D).

    The library then takes the pairs of a batch for the tokens of a sentence: [CLS] of a attends to [CLS] of every
    second sentence in the batch, and to no other token. A pair's score depends on its neighbours.
    """

    batch_size = 8  # of the notebook, in training and in evaluation

    def forward(self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None) -> Tensor:
        """a (B, T, D) and b (B, S, D) -> (B, outputs). The masks are not used: [CLS] is never a pad."""
        found = self.attention(cls_pool(a)[None], cls_pool(b)[None])[0]  # (1, B, D) -> (B, D)
        return self.mlp(torch.cat([cls_pool(a), found], dim=-1))

    def batches(self, count: int) -> Iterator[range]:
        """The numbers of ``count`` pairs in batches, in order: which pairs meet is part of the result."""
        return (range(start, min(start + self.batch_size, count)) for start in range(0, count, self.batch_size))


class ClassifierHead(JointHead):
    """The head of transformers' ``BertForSequenceClassification`` with one label: BERT's pooler, dropout, a Linear.

    transformers' RoBERTa has one more dropout, before the pooler.
    """

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__(width, width, 1, dropout)
        self.mlp[1] = nn.Tanh()  # for the ReLU


# the heads by their names in ``head.json``; the siamese head is a ``ConcatHead`` with other features
PAIR_HEADS = {
    "cross-encoder": JointHead,
    "concat": ConcatHead,
    "cross-attention": CrossHead,
    "cross-batch": BatchCrossHead,
}
HEAD_ALIASES = {"joint": "cross-encoder", "cross": "cross-attention"}  # former names, still read


def make_joint_head(bert: Bert, cross_encoder: bool, dropout: float) -> JointHead:
    """The joint head, or that of ``--cross-encoder``, into which the encoder's pooler moves, if it has one."""
    if not cross_encoder:
        return JointHead(bert.config.hidden_size, dropout=dropout)
    head = ClassifierHead(bert.config.hidden_size, dropout)
    if bert.pooler is not None:
        head.mlp[0], bert.pooler = bert.pooler, None
    return head


def make_cross_head(width: int, variant: str, dropout: float) -> CrossHead:
    """The cross-attention head of ``--variant``."""
    if variant == "published-bug":
        return BatchCrossHead(width, "published", dropout=dropout)
    return CrossHead(width, variant, dropout=dropout)
