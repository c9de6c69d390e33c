"""The objectives by name: which rows a run reads, what reads their vectors, and which loss they give.

scored pairs     cosine, cosent (vectors), cross-encoder, siamese, cross-attention (heads)
labelled pairs   softmax (NLI: three classes), binary, contrastive (duplicate or not)
triplets         triplet, mnr, simcse-supervised; splade (a SparseEncoder's), late-interaction (a MultiVectorEncoder's)
sentences        simcse; distillation, also of translations and of triplets
"""

from collections.abc import Callable

import torch

from minisbert.core import InputError, reading
from minisbert.evaluation.retrieval import load_retrieval_folder
from minisbert.folder.model_folder import ModelFolder, find_model
from minisbert.loading import open_kind
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.training.objectives import encoders as vectors
from minisbert.training.objectives.base import Objective
from minisbert.training.objectives.late_interaction import LateInteraction
from minisbert.training.objectives.pairs import Duplicates, ScoreRegression, Softmax
from minisbert.training.objectives.teachers import distillation
from minisbert.training.settings import LATE, NESTED, SPARSE, TAUGHT, RunSettings, reads
from minisbert.training.students import keep_layers, spread_layers
from minisbert.training.trainable import set_dropout

MAKERS: dict[str, Callable[[RunSettings, SentenceEncoder], Objective]] = {
    "cosine": vectors.CosineRegression,
    "cosent": vectors.CoSENT,
    "cross-encoder": ScoreRegression,
    "siamese": ScoreRegression,
    "cross-attention": ScoreRegression,
    "softmax": Softmax,
    "binary": Duplicates,
    "contrastive": vectors.Contrastive,
    "triplet": vectors.TripletMargin,
    "mnr": vectors.Ranking,
    "simcse": vectors.SimCSE,
    "simcse-supervised": vectors.SupervisedSimCSE,
    "splade": vectors.Splade,
    "late-interaction": LateInteraction,
    "distillation": distillation,
}


def load_encoder(options: RunSettings, device: torch.device) -> SentenceEncoder:
    """The encoder with the options' pooling and dropout. Raises ``InputError`` as ``SentenceEncoder.load`` does."""
    pooling, reads_tokens = options.pooling, options.objective in ("cross-encoder", "cross-attention")
    if reads_tokens and ModelFolder(find_model(options.model)).pooling is None:
        pooling = "cls"  # nothing is pooled, so a plain BERT needs no --pooling
    sparse, late = options.objective in SPARSE, options.objective in LATE
    kind = SparseEncoder if sparse else open_kind(options.model)  # also of a plain masked-language model
    trained = {SparseEncoder: sparse, MultiVectorEncoder: late or options.objective in TAUGHT}
    if not trained.get(kind, issubclass(kind, SentenceEncoder)):
        raise InputError(f"--model {options.model}: a {kind.__name__} is not trained by objective {options.objective}")
    encoder = kind.load(options.model, pooling, device, options.max_length)
    if late and kind is not MultiVectorEncoder:
        encoder = MultiVectorEncoder.around(encoder)
    if options.attention_start == "random" and reads(options.objective, "attention_start"):
        encoder.pooling.score.reset_parameters()
    if options.objective in TAUGHT and options.student_layers is not None:
        with reading("--student-layers"):
            kept = spread_layers(len(encoder.bert.layers), options.student_layers)
        encoder.bert = keep_layers(encoder.bert, kept)
    if options.dropout is not None:
        set_dropout(encoder.bert, options.dropout)
    return encoder


def make_objective(options: RunSettings, encoder: SentenceEncoder, precision: torch.dtype = torch.float32) -> Objective:
    """The objective of ``options.objective``; ``precision`` is that of the encoder's matrix products."""
    objective = MAKERS[options.objective](options, encoder)
    objective.network.precision = precision
    if options.objective in NESTED and options.matryoshka:
        widths = [int(width) for width in options.matryoshka.split(",")]
        if widths[0] > encoder.width:
            raise InputError(f"--matryoshka {widths[0]}: the vectors of {options.model} have {encoder.width} columns")
        objective.prefixes = [encoder.width, *(width for width in widths if width < encoder.width)]
    if objective.keys is None:
        objective.order = options.batches
    if options.retrieval:
        objective.retrieval, objective.best = load_retrieval_folder(options.retrieval), "ndcg@10"
        queries = len(objective.retrieval["dev"].queries)
        objective.notes["retrieval"] = f"{options.retrieval} ({queries:,} dev queries)"
    return objective
