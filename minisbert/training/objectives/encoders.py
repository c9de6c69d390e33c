"""Train vectors: cosines of pairs, triplets, contrastive learning within a batch, vectors of tokens, and teachers'.

A teacher's vectors, or its scores of a query with several texts, are what a student learns; the last third is for it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.core import InputError, losses
from minisbert.core.data import TextColumns
from minisbert.core.encoder import cosine, normalize
from minisbert.core.heads import ConcatHead
from minisbert.core.tokenizer import Encoded
from minisbert.data.datasets import (
    duplicate_rows,
    judged_rows,
    scored_rows,
    sentence_rows,
    translation_rows,
    triplet_rows,
)
from minisbert.evaluation import metrics
from minisbert.evaluation.evaluators import correlate, encode_pairs, row_scores
from minisbert.evaluation.retrieval import retrieval_from_pairs
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import SEVERAL, PairModel
from minisbert.models.properties import role_prompt
from minisbert.models.sentence_encoder import BATCH_SIZE, SentenceEncoder
from minisbert.search.by_tokens import max_sim_matrix
from minisbert.training import losses as more_losses
from minisbert.training import objectives as base
from minisbert.training.distributed import is_first, say_once
from minisbert.training.objectives import Network, Objective, RowNetwork, Scores, VectorNetwork
from minisbert.training.objectives.pairs import candidate_pairs
from minisbert.training.run import content_hash
from minisbert.training.settings import RunSettings, reads

Columns = Sequence[Sequence[str]]  # of texts, one of each for a training row

# ---------------------------------------------------------------------------------- pairs with a target


class CosineRegression(Objective):
    """SBERT's regression objective (section 3): squared error of the cosine against the score."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes = scored_rows(base.sources_of(options), options.scale, ["train"])
        judged_rows(rows, notes, base.sources_of(options), options.scale)
        network = VectorNetwork(encoder, TextColumns(encoder.tokenizer, base.two_columns(rows["train"])))
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


class Contrastive(Objective):
    """Pull duplicates together, push other pairs a margin apart (Hadsell et al. 2006), by the cosine alone."""

    best = "f1"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, notes = duplicate_rows(base.sources_of(options))
        network = VectorNetwork(encoder, TextColumns(encoder.tokenizer, base.two_columns(rows["train"])))
        super().__init__(options, network, rows, notes, torch.from_numpy(base.labels_of(rows["train"])))

    def formula(self, u: Tensor, v: Tensor, labels: Tensor) -> Tensor:
        return losses.contrastive_loss(u, v, labels, self.options.margin or 0.5)

    def evaluate(self, split: str) -> Scores:
        """Tell duplicates by the cosine alone, at the threshold with the best F1 on dev, or without dev on ``split``.

        And compute the loss on ``split``.
        """
        u, v = encode_pairs(self.encoder, *base.two_columns(self.rows[split]))  # (N, D) each
        labels, dev = base.labels_of(self.rows[split]), self.rows["dev"]
        cosines = dev_cosines = row_scores(self.encoder, u, v, "cosine")
        if split != "dev" and dev:  # dev itself needs no second encoding
            dev_cosines = row_scores(self.encoder, *encode_pairs(self.encoder, *base.two_columns(dev)), "cosine")
        threshold, _ = metrics.best_threshold(dev_cosines, base.labels_of(dev or self.rows[split]))
        loss = self.formula(torch.from_numpy(u), torch.from_numpy(v), torch.from_numpy(labels))
        return base.binary_scores(cosines, labels, threshold) | {"threshold": threshold, "loss": float(loss)}


# ------------------------------------------------------------------------ triplets and plain sentences


class UnscoredRows(Objective):
    """Train on rows without scores. The other rows of a batch are negatives unless ``separable``.

    They are evaluated on scored pairs, such as STS-B's, or, if dev or test has pairs without scores, by a search for
    each anchor's positive among all its positives.
    """

    separable = False
    paired = True  # the texts of a row are of different meaning or words: a search can be made of them
    geometry = True  # evaluate alignment and uniformity too

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, columns: Columns, note: str):
        rows: dict[str, list] = {"train": list(zip(*columns, strict=True))}
        notes = {"train": note}
        can_judge, searched = self.paired and len(columns) > 1, bool(options.retrieval)
        judged_rows(rows, notes, base.sources_of(options), options.scale, can_judge, searched)
        columns = list(zip(*rows["train"], strict=True))
        projection = None
        if reads(options.objective, "projection") and options.projection:
            # SimCSE, section 6.3 and appendix A: a dense layer and tanh over [CLS]. Unsupervised SimCSE has it in
            # training only, as here; the supervised one keeps it (86.2 on STS-B dev with and without it, table 6).
            projection = nn.Sequential(nn.Linear(encoder.width, encoder.width), nn.Tanh()).to(encoder.device)
        network: RowNetwork
        if isinstance(encoder, MultiVectorEncoder):
            network = TokenNetwork(encoder, columns)
        else:
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
        if not isinstance(self.encoder, MultiVectorEncoder):
            return base.vector_scores(self.encoder, pairs, contrastive=self.geometry, prefixes=self.prefixes)
        # The mean best match of the first sentence's tokens in the second. Their sum, ``max_sim``, grows with the
        # number of tokens: it ranks texts for one query, but does not compare pairs.
        first, second = base.two_columns(pairs)
        queries = self.encoder.encode(first, show_progress_bar=True, query=True)
        documents = self.encoder.encode(second, show_progress_bar=True, query=False)
        values = [(queries[i] @ documents[i].T).max(axis=1).mean() for i in range(len(pairs))]  # (T, K) each
        human = [pair.score for pair in pairs]
        return correlate("mean best match against the scores", np.array(values, dtype=np.float64), human)


class TripletRows(UnscoredRows):
    """Train on anchor, positive, negative; for in-batch negatives also without a negative, or with several."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, note = triplet_rows(base.sources_of(options), only_triplets=options.objective == "triplet")
        super().__init__(options, encoder, list(zip(*rows, strict=True)), note)


class TripletMargin(TripletRows):
    """Keep a margin between Euclidean distances (SBERT, section 3: margin 1)."""

    separable = True

    def formula(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return losses.triplet_loss(anchor, positive, negative, self.options.margin or 1.0)


class Ranking(TripletRows):
    """Rank the positive above all other positives and negatives of the batch (multiple negatives ranking)."""

    def formula(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        hard = torch.cat(negatives) if negatives else None  # ((n - 2) B, D)
        symmetric = reads(self.options.objective, "symmetric") and self.options.symmetric
        scale = 1 / self.options.temperature
        return losses.multiple_negatives_ranking_loss(anchors, positives, hard, scale, symmetric)


class SupervisedSimCSE(Ranking):
    """Entailment against contradiction and the other rows of the batch (SimCSE, eq. 5)."""

    def formula(self, anchors: Tensor, positives: Tensor, *negatives: Tensor) -> Tensor:
        # eq. 5 without negatives, or with all of them in the sum: the ranking loss
        if len(negatives) != 1:
            return super().formula(anchors, positives, *negatives)
        return losses.simcse_loss(anchors, positives, negatives[0], self.options.temperature)


class Splade(TripletRows):
    """Rank the positive above all other texts of the batch by dot products, at a price for words (``splade_loss``).

    The price rises with the square of the step over the first third of the run, as in sentence-transformers: words are
    learned before they are taken away.
    """

    def formula(self, queries: Tensor, *documents: Tensor) -> Tensor:
        risen = min(1.0, 3 * self.done) ** 2
        query_price, document_price = self.options.query_flops * risen, self.options.document_flops * risen
        return more_losses.splade_loss(queries, torch.cat(documents), query_price, document_price)


class SimCSE(UnscoredRows):
    """Unsupervised SimCSE (Gao et al. 2021, eq. 4): a sentence under two dropout masks against all other sentences."""

    paired = False

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, note = sentence_rows(base.sources_of(options))
        config = encoder.bert.config
        dropout = config.hidden_dropout_prob or config.attention_probs_dropout_prob
        columns = self.views(rows)
        if not dropout and options.dropout is None and columns[0] == columns[-1]:
            remedy = "give --dropout 0.1, or --dropout 0 to train anyway"
            raise InputError(f"objective simcse: this model has no dropout, so a sentence has one view; {remedy}")
        super().__init__(options, encoder, columns, note)

    def views(self, texts: list[str]) -> list[list[str]]:
        """Return the columns of texts: the same one twice, since each row of the forward gets another dropout mask."""
        return [texts, texts]

    def formula(self, *views: Tensor) -> Tensor:
        return losses.simcse_loss(views[0], views[-1], temperature=self.options.temperature)


# -------------------------------------------------------------------------------- a vector per token


class TokenNetwork(RowNetwork):
    """Encode columns of texts by a ``MultiVectorEncoder``: queries, filled up as the model does, then documents."""

    def __init__(self, model: MultiVectorEncoder, columns: Columns):
        encoded: list[Encoded] = []
        counts = []
        for place, column in enumerate(columns):
            role = "query" if place == 0 else "document"
            prompt = role_prompt(model.settings, role)
            tokens = model.rows([prompt + text for text in column], query=place == 0)
            encoded.append(Encoded(tokens.ids, [[0] * len(row) for row in tokens.ids], tokens.truncated))
            counts.append(tokens.own)
        rows = zip(*(column.ids for column in encoded), strict=True)
        # in a batch of rows like it: all texts of a row are padded to its longest
        lengths = [len(texts) * max(map(len, texts)) for texts in rows]
        super().__init__(model, encoded, lengths)
        self.counts, self.longest = counts, max(lengths) // len(columns)  # of one text

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows with n texts each into vectors of their tokens, (B, n, T, K).

        T is that of the longest text of all rows, so that parts of a batch fit together. A token that is not compared
        has the vector 0, which adds nothing to a query; for documents see ``by_role``.
        """
        vectors_of_columns = []
        for place, (column, counts) in enumerate(zip(self.encoded, self.counts, strict=True)):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                texts = [column.ids[row] for row in rows], [counts[row] for row in rows]
                vectors, counted = self.model(*texts, query=place == 0)  # (B, T of this column, K)
            vectors = vectors * counted.unsqueeze(-1)
            vectors_of_columns.append(nn.functional.pad(vectors, (0, 0, 0, self.longest - vectors.shape[1])))
        return torch.stack(vectors_of_columns, dim=1)

    def by_role(self, network: Network, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, K), documents (B, C, T, K), and which of their tokens are compared, (B, C, T).

        ``network`` is this one or a wrapper of it; T is that of the longest text of these rows.
        """
        documents = self.encoded[1:]
        texts = [column.ids[row] for row in rows for column in documents]
        longest = max(len(column.ids[row]) for row in rows for column in self.encoded)
        # the ids alone decide, so no forward is needed: -1 marks a pad
        padded = torch.tensor([[*ids] + [-1] * (longest - len(ids)) for ids in texts], device=self.model.device)
        real = self.model.compared(padded, padded >= 0, query=False).view(len(rows), len(documents), longest)
        # the network pads to the longest text of the run
        vectors = network(rows)[:, :, :longest]
        return vectors[:, 0], vectors[:, 1:], real


class LateInteraction(TripletRows):
    """Rank the positive above all other texts of the batch by ``max_sim`` (ColBERT, Khattab and Zaharia 2020)."""

    network: TokenNetwork

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        queries, documents, real = self.network.by_role(network, rows)
        # (B, C, ...) to (C B, ...): all positives first
        documents, real = documents.transpose(0, 1).flatten(0, 1), real.transpose(0, 1).flatten(0, 1)
        return more_losses.late_ranking_loss(queries, documents, real)


# ------------------------------------------------------------------------------------------- teachers

SCALE = 20.0  # from a student's cosine to the range of a cross-encoder's logits; that of the ranking losses


def distillation(options: RunSettings, encoder: SentenceEncoder) -> "Distillation":
    """Make the objective for the kind of teacher: a cross-encoder teaches scores, any other model vectors."""
    if options.teacher is None:
        raise InputError("objective distillation needs --teacher MODEL")
    folder = ModelFolder(find_model(options.teacher))
    teacher: SentenceEncoder | PairModel
    if folder.holds_pair_model:
        teacher = PairModel.load(folder.path, device=encoder.device)
        if isinstance(teacher.head, ConcatHead):  # over two vectors: they are what it has to teach
            teacher = teacher.encoder
    else:
        teacher = SentenceEncoder.load(folder.path, device=encoder.device)
    needed = "a cross-encoder with one score a pair is needed"
    late = isinstance(encoder, MultiVectorEncoder)
    if not isinstance(teacher, PairModel):
        if late:
            raise InputError(f"--teacher {options.teacher} gives vectors; {needed}")
        return VectorDistillation(options, encoder, teacher)
    if teacher.task in SEVERAL:
        raise InputError(f"--teacher {options.teacher} gives classes; {needed}")
    return (LateDistillation if late else ScoreDistillation)(options, encoder, teacher)


class Distillation(UnscoredRows):
    """Learn targets that the teacher computes once for each row, before the training."""

    separable, geometry = True, False

    def __init__(
        self, options: RunSettings, encoder: SentenceEncoder, rows: list[tuple], note: str, teacher: nn.Module
    ):
        columns = list(zip(*rows, strict=True))
        super().__init__(options, encoder, columns, note)
        weights = {name: tensor.cpu().contiguous() for name, tensor in teacher.state_dict().items()}
        # for the fingerprint, instead of the targets: a teacher's last bits may change with the number of threads
        self.taught = content_hash(weights, {"texts": columns})


class VectorDistillation(Distillation):
    """Learn the teacher's vector of a sentence, for the sentence and for its translation if there is one.

    By squared error (Reimers and Gurevych 2020, section 1). If the student scales its vectors to length 1, the targets
    are scaled too; if it is narrower than its teacher, they are the teacher's principal columns.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: SentenceEncoder):
        rows, note = translation_rows(base.sources_of(options))
        super().__init__(options, encoder, rows, note, teacher)
        texts = [row[0] for row in self.rows["train"]]
        say_once(f"teacher {options.teacher}: vectors of {len(texts):,} sentences")
        vectors = teacher.encode(texts, show_progress_bar=is_first(), convert_to_tensor=True)  # (N, the teacher's D)
        targets = more_losses.principal_columns(vectors, encoder.width)  # (N, D)
        self.targets = (normalize(targets) if encoder.normalize else targets).cpu()
        self.notes["train"] += f", taught the vectors of {options.teacher}"
        if vectors.shape[1] != encoder.width:
            self.notes["train"] += f", its {vectors.shape[1]} columns turned into {encoder.width}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        vectors = network(rows)  # (B, n, D)
        targets = self.targets[rows].to(vectors)  # (B, D)
        return more_losses.distillation_loss(vectors.flatten(0, 1), targets.repeat_interleave(vectors.shape[1], dim=0))


class ScoreDistillation(Distillation):
    """Learn a cross-encoder's scores of a query with a positive and negatives by the student's scaled cosines.

    With one negative the margin by squared error (Hofstätter et al. 2020), with several the softmax over them by KL
    divergence. The teacher's scores are its logits; of a regression, whose outputs are 0 to 1, scaled as the cosines.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: PairModel):
        rows, note = triplet_rows(base.sources_of(options))
        candidates = len(rows[0]) - 1
        if candidates < 2:
            raise InputError(f"{note}: a cross-encoder teaches rows with a negative; minisbert mine finds them")
        super().__init__(options, encoder, rows, note, teacher)
        rows = self.rows["train"]
        say_once(f"teacher {options.teacher}: scores of {len(rows) * candidates:,} pairs")
        with teacher.computing():
            outputs = teacher.outputs(*candidate_pairs(rows), BATCH_SIZE, progress=is_first())  # (N C,)
        if teacher.task == "regression":
            outputs = SCALE * outputs
        self.targets = outputs.view(-1, candidates)  # (N, C)
        self.formula, by = more_losses.kl_divergence_loss, "KL divergence"
        if candidates == 2:
            self.formula, by = more_losses.margin_mse_loss, "margin MSE"
        self.notes["train"] += f", taught the scores of {options.teacher} by {by}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        scores = self.student_scores(network, rows)
        return self.formula(scores, self.targets[rows].to(scores))

    def student_scores(self, network: Network, rows: Sequence[int]) -> Tensor:
        """Score each row's query with its C texts by the student, (B, C)."""
        query, *others = network(rows).unbind(dim=1)  # (B, D) each
        return SCALE * torch.stack([cosine(query, other) for other in others], dim=1)


class LateDistillation(ScoreDistillation):
    """Learn the same scores by ``max_sim`` instead of the scaled cosine."""

    network: TokenNetwork

    def student_scores(self, network: Network, rows: Sequence[int]) -> Tensor:
        queries, documents, real = self.network.by_role(network, rows)  # (B, T, K), (B, C, T, K), (B, C, T)
        return torch.vmap(max_sim_matrix)(queries.unsqueeze(1), documents, real).squeeze(1)
