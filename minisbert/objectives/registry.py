"""An objective: which rows a run reads, what reads their vectors, and which loss they give.

    scored pairs     cosine, cosent (vectors), joint, siamese, cross (heads)
    labelled pairs   softmax (NLI: three classes), binary, contrastive (duplicate or not)
    triplets         triplet, mnr, simcse-supervised
    sentences        simcse

Each function here turns the options of ``python -m minisbert.train`` and an encoder into a ``Task``.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minisbert.core import InputError, losses
from minisbert.core.data import MAX_SCORE, load_scored_pairs
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, set_dropout, siamese
from minisbert.models.layout import read_sentence_config
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder, find_model
from minisbert.objectives.corpora import NLI_LABELS
from minisbert.objectives.datasets import duplicate_rows, nli_rows, scored_rows, sentence_rows, triplet_rows
from minisbert.objectives.objective import Task, cosine_scores, encoder_task, pair_scores, pair_task, vector_scores


def load_encoder(options: argparse.Namespace, device: torch.device) -> SentenceEncoder:
    """The encoder with the pooling and the dropout of the options. ``InputError`` as ``SentenceEncoder.load``."""
    pooling = options.pooling
    if options.objective in ("joint", "cross") and read_sentence_config(find_model(options.model))[1].pooling is None:
        pooling = "cls"  # these read tokens and pool nothing, so a plain BERT need not be told how
    encoder = SentenceEncoder.load(options.model, pooling, device)
    if options.dropout is not None:
        set_dropout(encoder.bert, options.dropout)
    return encoder


def make_task(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """The task of ``options.objective``. ``InputError`` for data that cannot serve it and settings out of range."""
    try:
        return OBJECTIVES[options.objective](options, encoder)
    except InputError:
        raise
    except ValueError as error:  # of a head: bad settings, found by those who know
        raise InputError(f"objective {options.objective}: {error}") from error


# ------------------------------------------------------------------------------------- scored pairs


def cosine(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """SBERT's regression (section 3): the cosine is pulled to the score by squared error; or by order, CoSENT."""
    if options.objective == "cosent" and options.batch_size < 2:
        raise InputError("objective cosent puts the rows of a batch in order: one row has none")
    rows, notes = scored_rows(options)
    targets = torch.tensor([pair.score / MAX_SCORE for pair in rows["train"]], device=encoder.device)  # (N,)

    def loss(vectors: Sequence[Tensor], chosen: list[int]) -> Tensor:
        if options.objective == "cosent":
            return losses.cosent_loss(*vectors, targets[chosen], scale=1 / options.temperature)
        return losses.cosine_mse_loss(*vectors, targets[chosen])

    columns = [pair.sentence1 for pair in rows["train"]], [pair.sentence2 for pair in rows["train"]]
    task = encoder_task(encoder, columns, loss, lambda split: vector_scores(encoder, rows[split]))
    task.separable = options.objective == "cosine"  # cosent compares the rows of a batch with each other
    return with_notes(task, notes)


def regression(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """The three STS heads: joint, siamese, cross-attention; the score, 0..1, by mean squared error."""
    rows, notes = scored_rows(options)
    targets = torch.tensor([pair.score / MAX_SCORE for pair in rows["train"]])  # (N,)
    width = encoder.bert.config.hidden_size
    if options.objective == "joint":
        head = JointHead(width, dropout=options.head_dropout)
    elif options.objective == "siamese":
        head = siamese(encoder.width, dropout=options.head_dropout)
    else:
        head = CrossHead(width, variant=options.variant, dropout=options.head_dropout)
    loss = losses.weighted_mse_loss if options.loss == "weighted-mse" else losses.mse_loss
    model = PairModel(encoder, head.to(encoder.device))
    scores = lambda split: pair_scores(model, rows[split])  # noqa: E731
    return with_notes(pair_task(model, rows["train"], targets, loss, scores, "pearson"), notes)


# ----------------------------------------------------------------------------------- labelled pairs


def contrastive(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """Duplicates together, others a margin apart (Hadsell et al. 2006), by the cosine alone."""
    rows, notes = duplicate_rows(options)
    labels = torch.tensor([row.label for row in rows["train"]], device=encoder.device)
    margin = 0.5 if options.margin is None else options.margin
    if margin > 2:
        raise InputError(f"--margin {margin:g} can never be kept: the distance, 1 - cosine, lies in 0..2")
    columns = [row.sentence1 for row in rows["train"]], [row.sentence2 for row in rows["train"]]
    return with_notes(
        encoder_task(
            encoder,
            columns,
            lambda vectors, chosen: losses.contrastive_loss(*vectors, labels[chosen], margin),
            lambda split: cosine_scores(encoder, rows[split], rows["dev"]),
            best="f1",
        ),
        notes,
    )


def binary(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """A head over (u, v, |u - v|) says duplicate or not."""
    rows, notes = duplicate_rows(options)
    targets = torch.tensor([float(row.label) for row in rows["train"]])
    head = ConcatHead(encoder.width, options.concat, options.head_hidden, 1, options.head_dropout)
    model = PairModel(encoder, head.to(encoder.device), "binary")

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return losses.binary_cross_entropy_loss(logits, labels, options.pos_weight)

    scores = lambda split: pair_scores(model, rows[split])  # noqa: E731
    return with_notes(pair_task(model, rows["train"], targets, loss, scores, "f1"), notes)


def softmax(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """SBERT's classifier (section 3): entailment, contradiction or neutral from (u, v, |u - v|).

    The encoder is what one is after, so its cosine on STS-B is reported too.
    """
    rows, notes = nli_rows(options)
    stsb = {split: load_scored_pairs("stsb", split) for split in ("dev", "test")}
    targets = torch.tensor([row.label for row in rows["train"]])
    head = ConcatHead(encoder.width, options.concat, options.head_hidden, len(NLI_LABELS), options.head_dropout)
    model = PairModel(encoder, head.to(encoder.device), "classes", NLI_LABELS)

    def scores(split: str) -> dict[str, float]:
        return pair_scores(model, rows[split]) | {"stsb_spearman": vector_scores(encoder, stsb[split])["spearman"]}

    return with_notes(
        pair_task(model, rows["train"], targets, losses.softmax_cross_entropy_loss, scores, "accuracy"), notes
    )


# ------------------------------------------------------------------------------ triplets, sentences


def triplets(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """A margin between distances (SBERT, section 3), ranking among the batch (MNR), or supervised SimCSE (eq. 5)."""
    rows, note = triplet_rows(options)

    def loss(vectors: Sequence[Tensor], _: list[int]) -> Tensor:
        if options.objective == "triplet":
            return losses.triplet_loss(*vectors, margin=1.0 if options.margin is None else options.margin)
        if options.objective == "mnr":
            return losses.multiple_negatives_ranking_loss(*vectors, 1 / options.temperature, options.symmetric)
        return losses.simcse_loss(*vectors, options.temperature, options.hard_negative_weight)

    columns = [r.anchor for r in rows], [r.positive for r in rows], [r.negative for r in rows]
    return sts_evaluated(options, encoder, columns, loss, note, in_batch_negatives=options.objective != "triplet")


def simcse(options: argparse.Namespace, encoder: SentenceEncoder) -> Task:
    """Unsupervised SimCSE (Gao et al. 2021, eq. 4): a sentence under two dropout masks, all others are wrong.

    Or with both views as anchors, as in SimCLR (``nt_xent``). ``same_mask`` takes away what makes the views differ.
    """
    rows, note = sentence_rows(options)
    config = encoder.bert.config
    if config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0 and not options.allow_no_dropout:
        raise InputError(
            "objective simcse: this model has no dropout, so both views of a sentence would be the same; "
            "--allow-no-dropout trains all the same"
        )

    formula = losses.nt_xent_loss if options.nt_xent else losses.simcse_loss

    def loss(vectors: Sequence[Tensor], _: list[int]) -> Tensor:
        return formula(vectors[0], vectors[-1], temperature=options.temperature)

    # The same column twice: each of the 2B rows of the forward gets its own dropout mask. Under the same mask both
    # views are one vector: one column is enough.
    columns = (rows,) if options.same_mask else (rows, rows)
    return sts_evaluated(options, encoder, columns, loss, note, in_batch_negatives=True)


def sts_evaluated(
    options: argparse.Namespace,
    encoder: SentenceEncoder,
    columns: Sequence[Sequence[str]],
    loss: Callable[[Sequence[Tensor], list[int]], Tensor],
    note: str,
    in_batch_negatives: bool,
) -> Task:
    """A task whose rows carry no scores: evaluated on scored pairs, with SimCSE's projection if asked."""
    if in_batch_negatives and options.batch_size < 2:
        raise InputError(f"objective {options.objective} takes its wrong answers from the batch: one row has none")
    pairs, notes = scored_rows(options, ("dev", "test"))
    # section 6.3: a dense layer and tanh in training only, which never reaches the saved model
    projection = nn.Sequential(nn.Linear(encoder.width, encoder.width), nn.Tanh()) if options.projection else None
    task = encoder_task(
        encoder,
        columns,
        loss,
        lambda split: vector_scores(encoder, pairs[split], contrastive=True),
        in_batch_negatives=in_batch_negatives,
        projection=projection and projection.to(encoder.device),
    )
    if not task.batches(options.batch_size, torch.Generator()):
        raise InputError(f"{note}: no two rows are without a text in common, so no batch has a wrong answer")
    return with_notes(task, {"train": note} | notes)


def with_notes(task: Task, notes: dict[str, str]) -> Task:
    task.notes = notes
    return task


OBJECTIVES: dict[str, Callable[[argparse.Namespace, SentenceEncoder], Task]] = {
    "cosine": cosine,
    "cosent": cosine,
    "joint": regression,
    "siamese": regression,
    "cross": regression,
    "softmax": softmax,
    "binary": binary,
    "contrastive": contrastive,
    "triplet": triplets,
    "mnr": triplets,
    "simcse": simcse,
    "simcse-supervised": triplets,
}
