"""Train a head that reads a pair: regression on STS scores, NLI classes, duplicate or not,
reranking.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.relatives import CLASSIFIERS
from minisbert.checkpoints.layout import find_model, read_folder
from minisbert.core import InputError, losses
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.data.datasets import (
    Notes,
    class_rows,
    divided,
    duplicate_rows,
    load_scored_pairs,
    scored_rows,
    triplet_rows,
)
from minisbert.evaluation import metrics
from minisbert.evaluation.evaluators import correlate
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_heads import Head, head_settings
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say
from minisbert.training import losses as more_losses
from minisbert.training import objectives as base
from minisbert.training.objectives import Network, Objective, PairNetwork, Scores
from minisbert.training.settings import RunSettings


class PairObjective(Objective):
    """Train an encoder with the head of ``make_head`` by ``formula``, the loss of its outputs and
    ``targets`` (N,).
    """

    task = "regression"
    labels: Sequence[str] = ()
    # What a head over two vectors reads: SBERT's best (table 6).
    features: Sequence[str] = ("u", "v", "|u-v|")
    hidden = 0  # width of its hidden layer; 0: none
    reads_pairs = False  # both texts in one input, not two vectors

    def __init__(
        self,
        options: RunSettings,
        encoder: SentenceEncoder,
        rows: dict[str, list],
        notes: Notes,
        targets: Tensor,
    ):
        try:
            head = continued(options, self.make_head(options, encoder), self.task, self.labels)
            model = PairModel(encoder, head, self.task, self.labels)
        except ValueError as error:  # settings that the head refuses
            raise InputError(f"objective {options.objective}: {error}") from error
        encoded = model.tokenize(*base.two_columns(rows["train"]))
        super().__init__(
            options, PairNetwork(model, [encoded], model.lengths(encoded)), rows, notes, targets
        )

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> Head:
        """Make a head with an output for each label, or one: joint, or over the concatenation of
        two vectors.
        """
        outputs = len(self.labels) or 1
        if self.reads_pairs:
            return joint_head(options, encoder, outputs)
        return ConcatHead(encoder.width, self.features, self.hidden, outputs)

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        targets = self.targets[rows]
        return self.formula(network(rows), targets)

    def evaluate(self, split: str) -> Scores:
        """Correlate scores, decide at a probability of .5, or name the class; and compute the loss
        on ``split``.
        """
        rows, task = self.rows[split], self.task
        outputs = self.model.outputs(*base.two_columns(rows), progress=True)
        found = outputs.numpy()
        if task == "regression":
            human = [row.score for row in rows]
            scores = correlate(
                "the head's scores against the human ones (a lower --head-lr may help)",
                found,
                human,
            )
            return scores | {"loss": float(self.formula(outputs, base.score_targets(rows)))}
        labels = base.labels_of(rows)
        if task == "classes":
            scores = {"accuracy": float((found.argmax(axis=1) == labels).mean())}
        else:  # a logit of 0 is .5
            predicted = (found >= 0).astype(int)
            precision, recall, f1 = metrics.precision_recall_f1(predicted, labels)
            scores = {"accuracy": float((predicted == labels).mean()), "f1": f1}
            scores |= {"precision": precision, "recall": recall}
        return scores | {"loss": float(self.formula(outputs, torch.from_numpy(labels)))}


class ScoreRegression(PairObjective):
    """Predict the score, 0..1, by squared error."""

    best = "pearson"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes = scored_rows(base.sources_of(options))
        if min(pair.score for pair in rows["train"]) < 0:
            raise InputError(
                f"{notes['train']}: scores below 0, but the head of {options.objective} gives 0 or "
                f"more"
            )
        super().__init__(options, encoder, rows, notes, base.score_targets(rows["train"]))

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return losses.mse_loss(outputs, targets)

    def make_head(self, options: RunSettings, encoder: SentenceEncoder) -> Head:
        if options.objective == "cross-encoder":
            return joint_head(options, encoder)
        if options.objective == "siamese":  # the head reads (|u - v|, u * v, u) of two vectors
            return siamese(encoder.width)
        # the tokens of one sentence attend to those of the other
        return CrossHead(encoder.bert.config.hidden_size)


def joint_head(options: RunSettings, encoder: SentenceEncoder, outputs: int = 1) -> JointHead:
    """Make the head of a cross-encoder, which gets both sentences in one input and reads [CLS].

    With ``--pooler-head`` the encoder's pooler, if it has one, moves into it.
    """
    bert, width = encoder.bert, encoder.bert.config.hidden_size
    if not options.pooler_head:
        return JointHead(width, outputs=outputs)
    family = bert.config.model_type
    if family not in CLASSIFIERS:
        raise InputError(f"--pooler-head is for {', '.join(CLASSIFIERS)}, not for {family}")
    head = ClassifierHead(width, outputs=outputs, between=CLASSIFIERS[family].between)
    if bert.pooler is not None:
        head.mlp[0], bert.pooler = bert.pooler, None
    return head


def continued(options: RunSettings, head: Head, task: str, labels: Sequence[str] = ()) -> Head:
    """Return the head that the model was saved with, if its kind and task are the same; else the
    new one.
    """
    folder = read_folder(find_model(options.model))
    if not folder.holds_pair_model:
        return head
    saved = PairModel.load(folder.path, device="cpu")
    # binary and logit are one output, read in two ways
    both_logits = {saved.task, task} <= {"binary", "logit"}
    same_outputs = both_logits or (saved.task == task and saved.labels == tuple(labels))
    settings = head_settings(head)
    both_joint = isinstance(head, JointHead) and isinstance(saved.head, JointHead)
    same_settings = head_settings(saved.head) | {"dropout": 0} == settings | {"dropout": 0}
    same_kind = both_joint or same_settings
    if not same_outputs or not same_kind:
        say(f"{options.model} has another head, for {saved.task}: a new one is trained")
        return head
    # the head goes on, but with the new one's dropout
    for module in saved.head.modules():
        if isinstance(module, nn.Dropout):
            module.p = settings["dropout"]
    return saved.head.train()


class Duplicates(PairObjective):
    """Predict whether a pair is a duplicate, by a head over (u, v, |u - v|)."""

    best, task = "f1", "binary"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes = duplicate_rows(base.sources_of(options))
        super().__init__(
            options, encoder, rows, notes, torch.from_numpy(base.labels_of(rows["train"])).float()
        )

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return more_losses.binary_cross_entropy_loss(outputs, targets)


class Softmax(PairObjective):
    """Predict entailment, contradiction or neutral, or other classes, from (u, v, |u - v|) (SBERT,
    section 3).

    Since the encoder is the purpose of the training, its cosine on STS-B is evaluated too.
    """

    best, task = "accuracy", "classes"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes, self.labels = class_rows(base.sources_of(options))
        self.stsb = {split: load_scored_pairs("stsb", split) for split in ("dev", "test")}
        super().__init__(
            options, encoder, rows, notes, torch.from_numpy(base.labels_of(rows["train"]))
        )

    def formula(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return losses.softmax_cross_entropy_loss(outputs, targets)

    def evaluate(self, split: str) -> Scores:
        stsb = base.vector_scores(self.encoder, self.stsb[split])["spearman"]
        return super().evaluate(split) | {"stsb_spearman": stsb}


# -----------------------------------------------------------------------------------------
# rerankers


class BinaryReranker(Duplicates):
    """Predict labels 0 and 1 by binary cross-entropy, both texts in one input."""

    reads_pairs = True


class RankingReranker(Objective):
    """Pick a query's positive among its candidates by cross-entropy: the positive and the row's
    negatives.

    Dev and test are rows of candidates too: ``accuracy`` is the share of queries whose positive has
    the highest score, ``mrr`` the mean of 1 / its rank.
    """

    best = "mrr"
    by_rows = False

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        sources = base.sources_of(options)
        rows, notes = divided(
            *triplet_rows(sources), sources, partial(triplet_rows, sources), "rows"
        )
        self.candidates = len(rows["train"][0]) - 1
        if self.candidates < 2:
            raise InputError(
                f"{notes['train']}: rows with a negative are needed; minisbert mine finds them"
            )
        head = continued(options, joint_head(options, encoder), "logit")
        model = PairModel(encoder, head, "logit")
        # N C pairs, those of a row side by side
        encoded = model.tokenize(*candidate_pairs(rows["train"]))
        tokens = np.array(model.lengths(encoded)).reshape(-1, self.candidates)  # (N, C)
        # as in a batch of rows like it: all candidates padded to the longest
        lengths = (self.candidates * tokens.max(axis=1)).tolist()
        super().__init__(options, PairNetwork(model, [encoded], lengths), rows, notes)

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        pairs: list[int] = []
        for row in rows:
            pairs += range(row * self.candidates, (row + 1) * self.candidates)
        logits = network(pairs).view(len(rows), self.candidates)  # (B, C), the positive in column 0
        return losses.softmax_cross_entropy_loss(
            logits, torch.zeros(len(rows), dtype=torch.long, device=logits.device)
        )

    def evaluate(self, split: str) -> Scores:
        rows = self.rows[split]
        scores = (
            self.model.outputs(*candidate_pairs(rows), progress=True).view(len(rows), -1).numpy()
        )  # (N, C)
        ranks = (scores >= scores[:, :1]).sum(axis=1)  # (N,); a tie counts against the positive
        return {"accuracy": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


def candidate_pairs(rows: list[tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Repeat each query beside its candidates: N rows with C of them give two lists of N C
    texts.
    """
    queries, candidates = [], []
    for query, *texts in rows:
        queries += [query] * len(texts)
        candidates += texts
    return queries, candidates
