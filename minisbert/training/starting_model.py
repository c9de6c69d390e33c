"""The model that a run starts from, and which of its parameters are trained with which rate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from minisbert.architectures.modern import AttentionHeads, Encoder
from minisbert.checkpoints.card import base_model_of
from minisbert.checkpoints.layout import SENTENCE_ENCODER, ModelFolder, find_model, read_folder
from minisbert.core import InputError
from minisbert.core.bert import Attention
from minisbert.core.heads import ConcatHead
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.models.pair_model import PairModel
from minisbert.models.pooling import Pooling
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
    saved = None
    if settings.head and folder.holds_pair_model:
        saved = PairModel.load(folder.path, device="cpu")
    encoder = load_encoder(settings, folder, device)
    if settings.student_layers is not None:
        layers = len(encoder.bert.layers)
        if settings.student_layers > layers:
            raise InputError(
                f"--student-layers {settings.student_layers}: {settings.model} has {layers} layers"
            )
        encoder.bert = keep_layers(encoder.bert, spread_layers(layers, settings.student_layers))
    if settings.dropout is not None:
        set_dropout(encoder.bert, settings.dropout)
    if settings.freeze_embeddings:
        encoder.bert.embeddings.requires_grad_(False)
    encoder.base_model = base_model_of(folder.path)
    if settings.head is None:
        return encoder
    labels = data.classes if loss.task == "classes" else ()
    return add_head(encoder, settings.head, loss.task, labels, saved, loss.make_head)


def load_encoder(settings: Settings, folder: ModelFolder, device: Any) -> SentenceEncoder:
    """Load the encoder in a folder, which may be that of a model with a head."""
    if settings.head and folder.classifier:
        # a CrossEncoder of sentence-transformers: its encoder has no pooling of its own
        model = PairModel.load(folder.path, device=device, max_length=settings.max_length)
        encoder = model.encoder
        if settings.head in ("siamese", "concat") and settings.pooling:
            pooling = Pooling(settings.pooling, encoder.hidden_size).to(device)
            encoder = SentenceEncoder(encoder.tokenizer, encoder.bert, pooling).eval()
        return encoder
    if folder.model_class != SENTENCE_ENCODER:
        advice = "sentence-transformers trains it, and the result opens here"
        kind = folder.model_class
        raise InputError(f"--model {settings.model}: a {kind} is not trained here; {advice}")
    pooling = settings.pooling
    reads_tokens = settings.head in ("cross-encoder", "cross-attention", "classifier")
    if reads_tokens and folder.pooling is None:
        pooling = "cls"  # where nothing is pooled a plain BERT needs no --pooling
    kind = MaskedLanguageModel if settings.loss == "mlm" else SentenceEncoder
    return kind.load(
        folder.path, pooling=pooling, device=device, max_seq_length=settings.max_length
    )


def new_from_texts(settings: Settings, rows: Sequence[tuple]) -> MaskedLanguageModel:
    """Make a model of random weights with a vocabulary of the training texts."""
    layers, width, words = map(int, str(settings.from_nothing).split("x"))
    texts = [row[0] for row in rows]
    dropout = 0.1 if settings.dropout is None else settings.dropout
    tokenizer = train_vocabulary(texts, words, settings.max_length or 128)
    return new_model(tokenizer, layers, width, dropout)


def set_dropout(bert: Encoder, rate: float) -> None:
    """Set the rate of all dropout in the encoder, for hidden states and attention, and in its
    ``config``.

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


def encoder_of(model: SentenceEncoder | PairModel) -> SentenceEncoder:
    """The encoder in a model with a head, or the model itself."""
    return model.encoder if isinstance(model, PairModel) else model


def parameter_groups(
    network: nn.Module, encoder: SentenceEncoder, lr: float, head_lr: float | None
) -> list[dict[str, Any]]:
    """Return the parameters to train with their peak learning rates: the transformer's, then those
    of all that follows it.
    """
    if head_lr is None:
        head_lr = lr
    inside = {id(parameter) for parameter in encoder.bert.parameters()}
    transformer: dict[str, Any] = {"params": [], "lr": lr}
    rest: dict[str, Any] = {"params": [], "lr": head_lr}
    for parameter in network.parameters():
        if parameter.requires_grad:
            group = transformer if id(parameter) in inside else rest
            group["params"].append(parameter)
    return [group for group in (transformer, rest) if group["params"]]


@contextmanager
def frozen_if_unused(model: nn.Module) -> Iterator[None]:
    """Freeze what no loss reaches: BERT's pooler, and a pooling that the head does not read.

    Several processes would wait for its gradients. Afterwards it can be trained again.
    """
    parts: list[nn.Module] = []
    encoder: Any = getattr(model, "encoder", model)
    # a joint or a cross head reads the states of tokens, all others read the pooled vectors
    if isinstance(model, PairModel) and not isinstance(model.head, ConcatHead):
        parts += [encoder.pooling, encoder.dense]
    pooler = getattr(getattr(encoder, "bert", None), "pooler", None)
    if pooler is not None:
        parts.append(pooler)
    frozen = []
    for part in parts:
        frozen += [parameter for parameter in part.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
