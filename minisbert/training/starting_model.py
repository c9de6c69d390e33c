"""The model that a run starts from, and which of its parameters are trained with which rate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from minisbert.architectures.modern import AttentionHeads, Encoder
from minisbert.checkpoints.card import base_model_of
from minisbert.checkpoints.layout import SENTENCE_ENCODER, ModelFolder, find_model, read_folder
from minisbert.core import InputError, one_line
from minisbert.core.bert import Attention
from minisbert.core.heads import ConcatHead
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.models.pair_model import PairModel
from minisbert.models.pooling import ModelPooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.base_loss import Loss
from minisbert.training.losses import keep_layers, spread_layers
from minisbert.training.masked import new_model, train_vocabulary
from minisbert.training.named_heads import add_head
from minisbert.training.options import Settings
from minisbert.training.run_data import RunData

# -----------------------------------------------------------------------------
# the model


def load(settings: Settings, device: Any, loss: Loss, data: RunData) -> SentenceEncoder | PairModel:
    """Load the model of the settings, with their pooling, layers, dropout and head.

    Raises ``InputError`` as ``SentenceEncoder.load`` does, and for a kind of model that the loss
    does not train.
    """
    if settings.from_nothing:
        return new_from_texts(settings, data.train).to(device)

    folder = read_folder(find_model(settings.model))
    encoder = load_encoder(settings, folder, device)
    if settings.student_layers is not None:
        keep_student_layers(encoder, settings.student_layers, settings.model)
    if settings.dropout is not None:
        set_dropout(encoder.bert, settings.dropout)
    if settings.freeze_embeddings:
        encoder.bert.embeddings.requires_grad_(False)
    encoder.base_model = base_model_of(folder.path)
    if settings.head is None:
        return encoder

    # The head of the folder's model, if it has one, is trained further where it fits. Its encoder
    # has been loaded above, with the settings' pooling and layers.
    saved = None
    if folder.holds_pair_model:
        saved = PairModel.load(folder.path, device="cpu")
    labels: Sequence[str] = ()
    if loss.task == "classes":
        labels = data.classes
    return add_head(encoder, settings.head, loss.task, labels, saved, loss.make_head)


def keep_student_layers(encoder: SentenceEncoder, count: int, name: str) -> None:
    """Keep ``count`` of the layers of the model ``name``, spread over all of them."""
    layers = len(encoder.bert.layers)
    if count > layers:
        raise InputError(f"--student-layers {count}: {name} has {layers} layers")
    encoder.bert = keep_layers(encoder.bert, spread_layers(layers, count))


def load_encoder(settings: Settings, folder: ModelFolder, device: Any) -> SentenceEncoder:
    """Load the encoder in a folder, which may be that of a model with a head."""
    # A CrossEncoder of sentence-transformers has a classifier and no pooling of its own, so a new
    # head that compares two pooled vectors gets the pooling of the settings.
    if settings.head and folder.classifier:
        model = PairModel.load(folder.path, device=device, max_length=settings.max_length)
        encoder = model.encoder
        if settings.head in ("siamese", "concat") and settings.pooling:
            pooling = ModelPooling(settings.pooling, encoder.hidden_size).to(device)
            encoder = SentenceEncoder(encoder.tokenizer, encoder.bert, pooling).eval()
        return encoder

    if folder.model_class != SENTENCE_ENCODER:
        advice = "sentence-transformers trains it, and the result opens here"
        raise InputError(
            f"--model {settings.model}: a {folder.model_class} is not trained here; {advice}"
        )
    pooling = settings.pooling
    # These heads read tokens and no pooled vector, so a plain BERT needs no --pooling for them.
    reads_tokens = settings.head in ("cross-encoder", "cross-attention", "classifier")
    if reads_tokens and folder.pooling is None:
        pooling = "cls"
    model_class = SentenceEncoder
    if settings.loss == "mlm":
        model_class = MaskedLanguageModel
    # Not by ``load``, which warns of a cross-encoder's folder that its head is not opened: ``load``
    # above opens it.
    return model_class.from_folder(folder, pooling, settings.max_length).on_device(device)


def new_from_texts(settings: Settings, rows: Sequence[tuple]) -> MaskedLanguageModel:
    """Make a model of random weights with a vocabulary of the training texts."""
    sizes = str(settings.from_nothing).split("x")  # 3x256x6000
    layers, width, words = [int(size) for size in sizes]
    texts = [row[0] for row in rows]
    dropout = settings.dropout
    if dropout is None:
        dropout = 0.1
    tokenizer = train_vocabulary(texts, words, settings.max_length or 128)
    return new_model(tokenizer, layers, width, dropout)


def set_dropout(bert: Encoder, rate: float) -> None:
    """Set the rate of all dropout in an encoder and its ``config``: hidden states and attention.

    Raises ``ValueError`` for a rate outside [0, 1).
    """
    bert.config = replace(bert.config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    for module in bert.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, Attention | AttentionHeads):
            module.dropout = rate


# -----------------------------------------------------------------------------
# its parameters


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a module, and of those that are trained."""
    total = 0
    trained = 0
    for parameter in module.parameters():
        total += parameter.numel()
        if parameter.requires_grad:
            trained += parameter.numel()
    return total, trained


def check_is_model(model: Any) -> None:
    """Raise ``InputError`` for what is no model, such as a model's name."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"train needs a model, as minisbert.load returns it, not {one_line(model)}"
        )


def encoder_of(model: SentenceEncoder | PairModel) -> SentenceEncoder:
    """Return the encoder in a model with a head, or the model itself."""
    if isinstance(model, PairModel):
        return model.encoder
    return model


def parameter_groups(
    network: nn.Module, encoder: SentenceEncoder, lr: float, head_lr: float | None
) -> list[dict[str, Any]]:
    """Return the parameters to train, in groups with their peak learning rates.

    The transformer's have ``lr``; those of all that follows it ``head_lr``, or without it ``lr``.
    Raises ``InputError`` if all are frozen.
    """
    if head_lr is None:
        head_lr = lr
    transformer_ids = {id(parameter) for parameter in encoder.bert.parameters()}
    transformer: dict[str, Any] = {"params": [], "lr": lr}
    rest: dict[str, Any] = {"params": [], "lr": head_lr}
    for parameter in network.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in transformer_ids:
            transformer["params"].append(parameter)
        else:
            rest["params"].append(parameter)
    groups = [group for group in (transformer, rest) if group["params"]]
    if not groups:
        raise InputError(
            "all parameters of the model are frozen, so there is nothing to train: call "
            "requires_grad_(True) on the modules that shall learn"
        )
    return groups


@contextmanager
def frozen_if_unused(model: SentenceEncoder | PairModel) -> Iterator[None]:
    """Freeze what no loss reaches: BERT's pooler, and a pooling that the head does not read.

    Several processes would wait for the gradients of such a module. Afterwards it can be trained
    again.
    """
    unused: list[nn.Module] = []
    encoder: Any = encoder_of(model)
    # The siamese head and "concat" are a ``ConcatHead``, which reads pooled vectors. All others
    # read the states of tokens.
    if isinstance(model, PairModel) and not isinstance(model.head, ConcatHead):
        unused += [encoder.pooling, encoder.dense]
    # A model of another kind may have no ``bert``; the loss refuses it.
    bert = getattr(encoder, "bert", None)
    if bert is not None and bert.pooler is not None:
        unused.append(bert.pooler)

    frozen = []
    for module in unused:
        frozen += [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
