"""Make objectives by name. ``OBJECTIVES`` in ``training/settings.py`` says which rows and which model each takes."""

from collections.abc import Callable

import torch

from minisbert.core import InputError
from minisbert.evaluation.retrieval import load_retrieval_folder
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.objectives import encoders, masked, pairs, teachers
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings, reads

MAKERS: dict[str, Callable[[RunSettings, SentenceEncoder], Objective]] = {
    "cosine": encoders.CosineRegression,
    "cosent": encoders.CoSENT,
    "cross-encoder": pairs.ScoreRegression,
    "siamese": pairs.ScoreRegression,
    "cross-attention": pairs.ScoreRegression,
    "softmax": pairs.Softmax,
    "binary": pairs.Duplicates,
    "cross-encoder-binary": pairs.BinaryReranker,
    "cross-encoder-ranking": pairs.RankingReranker,
    "cross-encoder-multilabel": pairs.MultiLabel,
    "contrastive": encoders.Contrastive,
    "triplet": encoders.TripletMargin,
    "mnr": encoders.Ranking,
    "simcse": encoders.SimCSE,
    "simcse-supervised": encoders.SupervisedSimCSE,
    "splade": encoders.Splade,
    "late-interaction": encoders.LateInteraction,
    "distillation": teachers.distillation,
    "mlm": masked.MaskedWords,
}


def make_objective(options: RunSettings, encoder: SentenceEncoder, dtype: torch.dtype = torch.float32) -> Objective:
    """Make the objective of ``options.objective``; ``dtype`` is that of the encoder's matrix products."""
    objective = MAKERS[options.objective](options, encoder)
    objective.network.dtype = dtype
    if reads(options.objective, "matryoshka") and options.matryoshka:
        widths = list(map(int, options.matryoshka.split(",")))
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
