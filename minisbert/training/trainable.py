"""The encoder that a run trains: loaded, of fewer layers, with another dropout, partly frozen."""

from dataclasses import replace

import torch
from torch import nn

from minisbert.core import InputError
from minisbert.core.bert import Attention, Bert
from minisbert.data.datasets import plain_texts
from minisbert.folder.find import find_model
from minisbert.folder.model_folder import ModelFolder
from minisbert.loading import open_kind
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.training.from_nothing import new_model, train_vocabulary
from minisbert.training.settings import HEADS, LATE, MASKED, SPARSE, TAUGHT, TOKEN_HEADS, RunSettings, reads, sources_of
from minisbert.training.students import keep_layers, spread_layers


def load_encoder(options: RunSettings, device: torch.device) -> SentenceEncoder:
    """The encoder with the options' pooling, layers and dropout.

    Raises ``InputError`` as ``SentenceEncoder.load`` does, and for a kind of model that the objective does not train.
    """
    pooling, objective = options.pooling, options.objective
    if options.from_nothing:
        return model_from_nothing(options, device)
    folder = ModelFolder(find_model(options.model))
    if objective in HEADS and folder.model.classifier:  # a CrossEncoder's head is not in the way of another one
        encoder = PairModel.load(folder.path, device=device, max_length=options.max_length).encoder
        return with_dropout(encoder, options)
    if objective in TOKEN_HEADS and folder.pooling is None:
        pooling = "cls"  # nothing is pooled, so a plain BERT needs no --pooling
    kind = SparseEncoder  # also of a plain masked-language model
    if objective in MASKED:
        kind = MaskedLanguageModel
    elif objective not in SPARSE:
        kind = open_kind(folder.path)
    trains = {
        SparseEncoder: objective in SPARSE,
        MultiVectorEncoder: objective in LATE + TAUGHT,
    }
    if not trains.get(kind, issubclass(kind, SentenceEncoder)):
        raise InputError(f"--model {options.model}: a {kind.__name__} is not trained by objective {objective}")
    encoder = kind.load(folder.path, pooling=pooling, device=device, max_seq_length=options.max_length)
    if objective in LATE and kind is not MultiVectorEncoder:
        encoder = MultiVectorEncoder.around(encoder)
    if options.attention_start == "random" and reads(objective, "attention_start"):
        encoder.pooling.score.reset_parameters()
    if objective in TAUGHT and options.student_layers is not None:
        layers = len(encoder.bert.layers)
        if options.student_layers > layers:
            raise InputError(f"--student-layers {options.student_layers}: {options.model} has {layers} layers")
        encoder.bert = keep_layers(encoder.bert, spread_layers(layers, options.student_layers))
    return with_dropout(encoder, options)


def model_from_nothing(options: RunSettings, device: torch.device) -> MaskedLanguageModel:
    """A model of random weights whose vocabulary is that of the training texts."""
    layers, width, words = map(int, options.from_nothing.split("x"))
    texts, _ = plain_texts(sources_of(options))
    dropout = 0.1 if options.dropout is None else options.dropout
    tokenizer = train_vocabulary(texts, words, options.max_length or 128)
    return new_model(tokenizer, layers, width, dropout).to(device)


def freeze(bert: Bert, layers: int, embeddings: bool = False) -> None:
    """Freeze the lowest ``layers``, and optionally the embeddings; their dropout stays on.

    Raises ``ValueError`` for more layers than the encoder has.
    """
    if not 0 <= layers <= len(bert.layers):
        raise ValueError(f"{layers} layers cannot be frozen: this encoder has {len(bert.layers)}")
    for layer in bert.layers[:layers]:
        layer.requires_grad_(False)
    if embeddings:
        bert.embeddings.requires_grad_(False)


def with_dropout(encoder: SentenceEncoder, options: RunSettings) -> SentenceEncoder:
    """The encoder with the options' dropout, if there is one."""
    if options.dropout is not None:
        set_dropout(encoder.bert, options.dropout)
    return encoder


def set_dropout(bert: Bert, rate: float) -> None:
    """Set the rate of all dropout in the encoder, for hidden states and attention, and in its ``config``.

    Raises ``ValueError`` for a rate outside [0, 1).
    """
    bert.config = replace(bert.config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    for module in bert.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, Attention):
            module.dropout = rate


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """The number of parameters of a module, and of those that are trained."""
    everything = list(module.parameters())
    trained = [parameter for parameter in everything if parameter.requires_grad]
    return sum(parameter.numel() for parameter in everything), sum(parameter.numel() for parameter in trained)
