"""Heads beyond the book's: the classifier of a CrossEncoder."""

from torch import nn

from minisbert.core.bert import Bert
from minisbert.core.heads import ConcatHead, CrossHead, JointHead

VARIANTS = ("published", "compare")  # of cross-attention


class ClassifierHead(JointHead):
    """The head of transformers' ``BertForSequenceClassification`` with one label: BERT's pooler, dropout, a Linear.

    transformers' RoBERTa has one more dropout, before the pooler.
    """

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__(width, width, 1, dropout)
        self.mlp[1] = nn.Tanh()  # for the ReLU


# the heads by their names in ``head.json``; the siamese head is a ``ConcatHead`` with other features
PAIR_HEADS = {"cross-encoder": JointHead, "concat": ConcatHead, "cross-attention": CrossHead}
HEAD_ALIASES = {"joint": "cross-encoder", "cross": "cross-attention"}  # former names, still read


def make_joint_head(bert: Bert, cross_encoder: bool, dropout: float) -> JointHead:
    """The joint head, or that of ``--cross-encoder``, into which the encoder's pooler moves, if it has one."""
    if not cross_encoder:
        return JointHead(bert.config.hidden_size, dropout=dropout)
    head = ClassifierHead(bert.config.hidden_size, dropout)
    if bert.pooler is not None:
        head.mlp[0], bert.pooler = bert.pooler, None
    return head
