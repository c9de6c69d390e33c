"""Heads beyond the book's: the classifier of a CrossEncoder."""

from torch import nn

from minisbert.architectures.relatives import CLASSIFIERS
from minisbert.core.bert import Bert
from minisbert.core.heads import ConcatHead, CrossHead, JointHead

VARIANTS = ("published", "compare")  # of cross-attention


class ClassifierHead(JointHead):
    """The head of transformers' ``BertForSequenceClassification``: BERT's pooler, dropout, a Linear.

    ``between`` is the activation; other families have another one. transformers' RoBERTa and ELECTRA have a second
    dropout, before the pooler.
    """

    def __init__(self, width: int, dropout: float = 0.0, outputs: int = 1, between: type[nn.Module] = nn.Tanh):
        super().__init__(width, width, outputs, dropout)
        self.mlp[1] = between()  # for the ReLU


# the heads by their names in ``head.json``; the siamese head is a ``ConcatHead`` with other features
PAIR_HEADS = {"cross-encoder": JointHead, "concat": ConcatHead, "cross-attention": CrossHead}
HEAD_ALIASES = {"joint": "cross-encoder", "cross": "cross-attention"}  # former names, still read


def make_joint_head(bert: Bert, pooler_head: bool, dropout: float) -> JointHead:
    """The joint head, or that of ``--pooler-head``, into which the encoder's pooler moves, if it has one."""
    if not pooler_head:
        return JointHead(bert.config.hidden_size, dropout=dropout)
    if bert.config.model_type not in CLASSIFIERS:
        raise ValueError(f"--pooler-head is for {', '.join(CLASSIFIERS)}, not for {bert.config.model_type}")
    head = ClassifierHead(bert.config.hidden_size, dropout, between=CLASSIFIERS[bert.config.model_type][-1])
    if bert.pooler is not None:
        head.mlp[0], bert.pooler = bert.pooler, None
    return head
