"""Train vectors: cosines of pairs, triplets, contrastive learning within a batch, and teachers'.

A teacher's vectors, or its scores of a query with several texts, are what a student learns; the
last third is for it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import find_model, read_folder
from minisbert.core import InputError, losses
from minisbert.core.data import TextColumns
from minisbert.core.encoder import cosine, normalize
from minisbert.core.heads import ConcatHead
from minisbert.data.datasets import (
    TextRows,
    judged_rows,
    scored_rows,
    text_rows,
    translation_rows,
    triplet_rows,
)
from minisbert.evaluation.retrieval import retrieval_from_pairs
from minisbert.models.batching import BATCH_SIZE
from minisbert.models.pair_model import SEVERAL, PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses
from minisbert.training import objectives as base
from minisbert.training.distributed import is_first, say_once
from minisbert.training.objectives import Network, Objective, Scores, VectorNetwork
from minisbert.training.objectives.pairs import candidate_pairs
from minisbert.training.run import content_hash
from minisbert.training.settings import RunSettings, reads

# ---------------------------------------------------------------------------------- pairs with a
# target


class CosineRegression(Objective):
    """SBERT's regression objective (section 3): squared error of the cosine against the score."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes = scored_rows(base.sources_of(options))
        network = VectorNetwork(
            encoder, TextColumns(encoder.tokenizer, base.two_columns(rows["train"]))
        )
        super().__init__(options, network, rows, notes, base.score_targets(rows["train"]))

    def formula(self, u: Tensor, v: Tensor, targets: Tensor) -> Tensor:
        return losses.cosine_mse_loss(u, v, targets)

    def evaluate(self, split: str) -> Scores:
        loss = losses.mse_loss if self.separable else None
        return base.vector_scores(self.encoder, self.rows[split], loss=loss, prefixes=self.prefixes)


class CoSENT(CosineRegression):
    """Train the cosines to have the order of the scores (Huang et al. 2024)."""

    separable = False

    def formula(self, u: Tensor, v: Tensor, targets: Tensor) -> Tensor:
        return more_losses.cosent_loss(u, v, targets, scale=1 / self.options.temperature)


# ------------------------------------------------------------------------ triplets and plain
# sentences


class UnscoredRows(Objective):
    """Train on rows without scores. The other rows of a batch are negatives unless ``separable``.

    They are evaluated on scored pairs, such as STS-B's, or, if dev or test has pairs without
    scores, by a search for each anchor's positive among all its positives.
    """

    separable = False
    paired = (
        True  # the texts of a row are of different meaning or words: a search can be made of them
    )

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, train: TextRows, note: str):
        can_judge, searched = self.paired and len(train[0]) > 1, bool(options.retrieval)
        rows, notes = judged_rows(train, note, base.sources_of(options), can_judge, searched)
        columns = list(zip(*rows["train"], strict=True))
        projection = None
        if reads(options.objective, "projection") and options.projection:
            # SimCSE, section 6.3 and appendix A: a dense layer and tanh over [CLS]. Unsupervised
            # SimCSE has it in training only, as here; the supervised one keeps it (86.2 on STS-B
            # dev with and without it, table 6).
            projection = nn.Sequential(nn.Linear(encoder.width, encoder.width), nn.Tanh()).to(
                encoder.device
            )
        network = VectorNetwork(encoder, TextColumns(encoder.tokenizer, columns), projection)
        super().__init__(options, network, rows, notes)
        for split in ("dev", "test"):
            if rows[split] and isinstance(rows[split][0], tuple):
                self.retrieval[split] = retrieval_from_pairs(rows[split])
        if "dev" in self.retrieval:
            self.best = "ndcg@10"
        if not self.separable:
            # a text in two rows of a batch would be its own negative
            self.keys = rows["train"]
        # any generator: is there a batch at all?
        if not self.batches(options.batch_size, torch.Generator()):
            raise InputError(f"{note}: any two rows share a text, so no batch has a negative")

    def evaluate(self, split: str) -> Scores:
        pairs = self.rows[split]
        if split in self.retrieval and isinstance(pairs[0], tuple):  # only a search is made of them
            return {}
        return base.vector_scores(self.encoder, pairs, prefixes=self.prefixes)


class TripletRows(UnscoredRows):
    """Train on anchor, positive, negative; for in-batch negatives also without a negative, or with
    several.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, note = triplet_rows(
            base.sources_of(options), only_triplets=options.objective == "triplet"
        )
        super().__init__(options, encoder, rows, note)


class TripletMargin(TripletRows):
    """Keep a margin between Euclidean distances (SBERT, section 3: margin 1)."""

    separable = True

    def formula(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return losses.triplet_loss(anchor, positive, negative, self.options.margin)


class Ranking(TripletRows):
    """Rank the positive above all other positives and negatives of the batch (multiple negatives
    ranking).
    """

    def formula(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        hard = torch.cat(negatives) if negatives else None  # ((n - 2) B, D)
        scale = 1 / self.options.temperature
        if reads(self.options.objective, "symmetric") and self.options.symmetric:
            return more_losses.symmetric_ranking_loss(anchors, positives, hard, scale)
        return losses.multiple_negatives_ranking_loss(anchors, positives, hard, scale)


class SupervisedSimCSE(Ranking):
    """Entailment against contradiction and the other rows of the batch (SimCSE, eq. 5)."""

    def formula(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        # eq. 5 without negatives, or with all of them in the sum: the ranking loss
        if len(negatives) != 1:
            return super().formula(anchors, positives, *negatives)
        return losses.simcse_loss(anchors, positives, negatives[0], self.options.temperature)


class SimCSE(UnscoredRows):
    """Unsupervised SimCSE (Gao et al. 2021, eq. 4): a sentence under two dropout masks against all
    other sentences.
    """

    paired = False

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, note = text_rows(base.sources_of(options), alone=True)
        config = encoder.bert.config
        dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
        columns = self.views([text for (text,) in rows])
        if not dropout and options.dropout is None and columns[0] == columns[-1]:
            remedy = "give --dropout 0.1, or --dropout 0 to train anyway"
            raise InputError(
                f"objective simcse: this model has no dropout, so a sentence has one view; {remedy}"
            )
        super().__init__(options, encoder, list(zip(*columns, strict=True)), note)

    def views(self, texts: list[str]) -> list[list[str]]:
        """Return the columns of texts: the same one twice, since each row of the forward gets
        another dropout mask.
        """
        return [texts, texts]

    def formula(self, *views: Tensor) -> Tensor:
        return losses.simcse_loss(views[0], views[-1], temperature=self.options.temperature)


# -------------------------------------------------------------------------------------------
# teachers

# from a student's cosine to the range of a cross-encoder's logits; that of the ranking losses
SCALE = 20.0


def distillation(options: RunSettings, encoder: SentenceEncoder) -> "Distillation":
    """Make the objective for the kind of teacher: a cross-encoder teaches scores, any other model
    vectors.
    """
    if options.teacher is None:
        raise InputError("objective distillation needs --teacher MODEL")
    folder = read_folder(find_model(options.teacher))
    teacher: SentenceEncoder | PairModel
    if folder.holds_pair_model:
        teacher = PairModel.load(folder.path, device=encoder.device)
        if isinstance(teacher.head, ConcatHead):  # over two vectors: they are what it has to teach
            teacher = teacher.encoder
    else:
        teacher = SentenceEncoder.load(folder.path, device=encoder.device)
    if not isinstance(teacher, PairModel):
        return VectorDistillation(options, encoder, teacher)
    if teacher.task in SEVERAL:
        raise InputError(
            f"--teacher {options.teacher} gives classes; a cross-encoder with one score a pair is "
            f"needed"
        )
    return ScoreDistillation(options, encoder, teacher)


class Distillation(UnscoredRows):
    """Learn targets that the teacher computes once for each row, before the training."""

    separable = True

    def __init__(
        self,
        options: RunSettings,
        encoder: SentenceEncoder,
        rows: list[tuple],
        note: str,
        teacher: nn.Module,
    ):
        super().__init__(options, encoder, rows, note)
        # for the fingerprint, instead of the targets: a teacher's last bits may change with the
        # number of threads
        self.taught = content_hash(teacher.state_dict(), {"texts": rows})


class VectorDistillation(Distillation):
    """Learn the teacher's vector of a sentence, for the sentence and for its translation if there
    is one.

    By squared error (Reimers and Gurevych 2020, section 1). If the student scales its vectors to
    length 1, the targets are scaled too; if it is narrower than its teacher, they are the teacher's
    principal columns.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: SentenceEncoder):
        rows, note = translation_rows(base.sources_of(options))
        super().__init__(options, encoder, rows, note, teacher)
        texts = [row[0] for row in self.rows["train"]]
        say_once(f"teacher {options.teacher}: vectors of {len(texts):,} sentences")
        vectors = teacher.encode(
            texts, show_progress_bar=is_first(), convert_to_tensor=True
        )  # (N, the teacher's D)
        targets = more_losses.principal_columns(vectors, encoder.width)  # (N, D)
        self.targets = (normalize(targets) if encoder.normalize else targets).cpu()
        self.notes["train"] += f", taught the vectors of {options.teacher}"
        if vectors.shape[1] != encoder.width:
            self.notes["train"] += f", its {vectors.shape[1]} columns turned into {encoder.width}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        vectors = network(rows)  # (B, n, D)
        targets = self.targets[rows].to(vectors)  # (B, D)
        return more_losses.distillation_loss(
            vectors.flatten(0, 1), targets.repeat_interleave(vectors.shape[1], dim=0)
        )


class ScoreDistillation(Distillation):
    """Learn a cross-encoder's scores of a query with a positive and negatives by the student's
    scaled cosines.

    With one negative the margin by squared error (Hofstätter et al. 2020), with several the softmax
    over them by KL divergence. The teacher's scores are its logits; of a regression, whose outputs
    are 0 to 1, scaled as the cosines.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: PairModel):
        rows, note = triplet_rows(base.sources_of(options))
        candidates = len(rows[0]) - 1
        if candidates < 2:
            raise InputError(
                f"{note}: a cross-encoder teaches rows with a negative; minisbert mine finds them"
            )
        super().__init__(options, encoder, rows, note, teacher)
        rows = self.rows["train"]
        say_once(f"teacher {options.teacher}: scores of {len(rows) * candidates:,} pairs")
        with teacher.computing():
            outputs = teacher.outputs(
                *candidate_pairs(rows), BATCH_SIZE, progress=is_first()
            )  # (N C,)
        if teacher.task == "regression":
            outputs = SCALE * outputs
        self.targets = outputs.view(-1, candidates)  # (N, C)
        self.formula, by = more_losses.kl_divergence_loss, "KL divergence"
        if candidates == 2:
            self.formula, by = more_losses.margin_mse_loss, "margin MSE"
        self.notes["train"] += f", taught the scores of {options.teacher} by {by}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        query, *others = network(rows).unbind(dim=1)  # (B, D) each
        scores = SCALE * torch.stack([cosine(query, other) for other in others], dim=1)  # (B, C)
        return self.formula(scores, self.targets[rows].to(scores))
