"""The heads by their names, as ``--head`` takes them: they make a ``PairModel`` of an encoder."""

from collections.abc import Callable, Sequence

from torch import nn

from minisbert.architectures.modernbert import ModernBertConfig
from minisbert.architectures.relatives import CLASSIFIERS
from minisbert.core import InputError
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.models.cross_encoder import ClassifierHead, ModernClassifierHead
from minisbert.models.pair_heads import Head, head_settings
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import warn


def cross_encoder_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Both texts go through the encoder as one, and a small network reads [CLS]."""
    return JointHead(encoder.bert.config.hidden_size, outputs=outputs)


def siamese_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Each text becomes a vector, and a small network reads (|u - v|, u * v, u)."""
    return siamese(encoder.width, outputs=outputs)


def cross_attention_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """The tokens of one text attend to those of the other, after both have been encoded."""
    return CrossHead(encoder.bert.config.hidden_size, outputs=outputs)


def concat_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """Each text becomes a vector, and one linear layer reads (u, v, |u - v|), as SBERT does NLI."""
    return ConcatHead(encoder.width, outputs=outputs)


def classifier_head(encoder: SentenceEncoder, outputs: int) -> Head:
    """BERT's pooler and a linear layer, as sentence-transformers' ``CrossEncoder`` has them.

    The encoder's own pooler, if it has one, moves into the head. ModernBERT's head has a norm.
    """
    bert = encoder.bert
    family = bert.config.model_type
    if family not in CLASSIFIERS:
        raise InputError(f"--head classifier is for {', '.join(CLASSIFIERS)}, not for {family}")
    if isinstance(bert.config, ModernBertConfig):
        return ModernClassifierHead(bert.config, outputs=outputs)
    between = CLASSIFIERS[family].between  # the activation between the head's two layers
    head = ClassifierHead(bert.config.hidden_size, outputs=outputs, between=between)
    if bert.pooler is not None:
        head.mlp[0] = bert.pooler
        bert.pooler = None
    return head


HEADS: dict[str, Callable[[SentenceEncoder, int], Head]] = {
    "cross-encoder": cross_encoder_head,
    "siamese": siamese_head,
    "cross-attention": cross_attention_head,
    "concat": concat_head,
    "classifier": classifier_head,
}


def add_head(
    encoder: SentenceEncoder,
    name: str,
    task: str,
    labels: Sequence[str] = (),
    saved: PairModel | None = None,
    make_head: Callable[[str, SentenceEncoder, int], Head] | None = None,
) -> PairModel:
    """Put a head around an encoder, with an output for each label, or a single one.

    ``saved`` is the model that the encoder comes from: if its head is of the same kind and has the
    same task, it is trained further. ``make_head`` makes another head than that of the name.
    """
    outputs = max(1, len(labels))
    try:
        if make_head is not None:
            head = make_head(name, encoder, outputs)
        else:
            head = HEADS[name](encoder, outputs)
        if saved is not None:
            head = saved_or_new(saved, head, task, labels)
        return PairModel(encoder, head, task, labels)
    except ValueError as error:
        # The head's settings do not fit the encoder.
        raise InputError(f"--head {name}: {error}") from error


def saved_or_new(saved: PairModel, head: Head, task: str, labels: Sequence[str]) -> Head:
    """Return the saved head if it is of the kind and the task of the new one, else the new one."""
    # "binary" and "logit" are one output, read in two ways.
    logits = ("binary", "logit")
    same_outputs = saved.task == task and saved.labels == tuple(labels)
    if saved.task in logits and task in logits:
        same_outputs = True

    # Every joint head reads [CLS], so a saved one goes on whatever the size of its hidden layer.
    same_kind = has_same_sizes(saved.head, head)
    if isinstance(head, JointHead) and isinstance(saved.head, JointHead):
        same_kind = True

    if not same_outputs or not same_kind:
        warn(f"the model has another head, for {saved.task}: a new one is trained")
        return head

    # The saved weights go on, with the new head's dropout.
    dropout = head_settings(head)["dropout"]
    for module in saved.head.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return saved.head.train()


def has_same_sizes(saved: Head, head: Head) -> bool:
    """Return whether two heads are equal but for their weights and their dropout."""
    saved_settings = head_settings(saved)
    settings = head_settings(head)
    del saved_settings["dropout"], settings["dropout"]
    return saved_settings == settings
