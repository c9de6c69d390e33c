"""Make objectives by name. ``OBJECTIVES`` in ``training/settings.py`` says which rows and which model each takes."""

from collections.abc import Callable

import torch

from minisbert.core import InputError
from minisbert.evaluation.retrieval import load_retrieval_folder
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.objectives import encoders
from minisbert.training.objectives.base import Objective
from minisbert.training.objectives.masked import MaskedWords
from minisbert.training.objectives.pairs import (
    BinaryReranker,
    Duplicates,
    MultiLabel,
    RankingReranker,
    ScoreRegression,
    Softmax,
)
from minisbert.training.objectives.teachers import distillation
from minisbert.training.settings import RunSettings, reads

MAKERS: dict[str, Callable[[RunSettings, SentenceEncoder], Objective]] = {
    "cosine": encoders.CosineRegression,
    "cosent": encoders.CoSENT,
    "cross-encoder": ScoreRegression,
    "siamese": ScoreRegression,
    "cross-attention": ScoreRegression,
    "softmax": Softmax,
    "binary": Duplicates,
    "cross-encoder-binary": BinaryReranker,
    "cross-encoder-ranking": RankingReranker,
    "cross-encoder-multilabel": MultiLabel,
    "contrastive": encoders.Contrastive,
    "triplet": encoders.TripletMargin,
    "mnr": encoders.Ranking,
    "simcse": encoders.SimCSE,
    "simcse-supervised": encoders.SupervisedSimCSE,
    "splade": encoders.Splade,
    "late-interaction": encoders.LateInteraction,
    "distillation": distillation,
    "mlm": MaskedWords,
}


def make_objective(options: RunSettings, encoder: SentenceEncoder, dtype: torch.dtype = torch.float32) -> Objective:
    """Make the objective of ``options.objective``; ``dtype`` is that of the encoder's matrix products."""
    objective = MAKERS[options.objective](options, encoder)
    objective.network.dtype = dtype
    if reads(options.objective, "matryoshka") and options.matryoshka:
        widths = [int(width) for width in options.matryoshka.split(",")]
        if widths[0] > encoder.width:
            raise InputError(f"--matryoshka {widths[0]}: the vectors of {options.model} have {encoder.width} columns")
        # the whole width always takes part, so that the untruncated vectors stay good
        objective.prefixes = [encoder.width] + [width for width in widths if width < encoder.width]
    if objective.keys is None:
        objective.order = options.batches
    if reads(options.objective, "retrieval") and options.retrieval:
        objective.retrieval, objective.best = load_retrieval_folder(options.retrieval), "ndcg@10"
        queries = len(objective.retrieval["dev"].queries)
        objective.notes["retrieval"] = f"{options.retrieval} ({queries:,} dev queries)"
    return objective
