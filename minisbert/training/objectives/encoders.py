"""Train sentence vectors: cosines of pairs, triplets, contrastive learning within a batch, and vectors of tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minisbert.core import InputError, losses
from minisbert.core.data import TextColumns
from minisbert.core.tokenizer import Encoded
from minisbert.data.datasets import duplicate_rows, holds_pairs, scored_rows, sentence_rows, triplet_rows
from minisbert.evaluation.retrieval import Retrieval, retrieval_from_pairs
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.prompts import role_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses
from minisbert.training.objectives import base
from minisbert.training.objectives.base import Network, Objective, RowNetwork, Scores, VectorNetwork
from minisbert.training.settings import RunSettings, reads

Columns = Sequence[Sequence[str]]  # of texts, one of each for a training row

# ---------------------------------------------------------------------------------- pairs with a target


class CosineRegression(Objective):
    """SBERT's regression objective (section 3): squared error of the cosine against the score."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        self.options = options
        self.rows, notes = scored_rows(base.sources_of(options), options.scale)
        pairs = self.rows["train"]
        self.targets = base.score_targets(pairs).to(encoder.device)  # (N,)
        super().__init__(VectorNetwork(encoder, TextColumns(encoder.tokenizer, base.two_columns(pairs))), notes)

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        targets = self.targets[rows]  # before the network: a GPU gets row numbers when it has no other work
        u, v = network(rows).unbind(dim=1)  # (B, D) each
        return losses.cosine_mse_loss(u, v, targets)

    def evaluate(self, split: str) -> Scores:
        loss = losses.mse_loss if self.separable else None
        return base.vector_scores(self.encoder, self.rows[split], loss=loss, prefixes=self.prefixes)


class CoSENT(CosineRegression):
    """Train the cosines to have the order of the scores (Huang et al. 2024)."""

    separable = False

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        targets = self.targets[rows]
        u, v = network(rows).unbind(dim=1)  # (B, D) each
        return more_losses.cosent_loss(u, v, targets, scale=1 / self.options.temperature)


class Contrastive(Objective):
    """Pull duplicates together, push other pairs a margin apart (Hadsell et al. 2006), by the cosine alone."""

    best = "f1"

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        self.rows, notes = duplicate_rows(base.sources_of(options))
        pairs = self.rows["train"]
        self.labels = torch.from_numpy(base.labels_of(pairs)).to(encoder.device)
        self.margin = options.margin or 0.5
        super().__init__(VectorNetwork(encoder, TextColumns(encoder.tokenizer, base.two_columns(pairs))), notes)

    def formula(self, u: Tensor, v: Tensor, labels: Tensor) -> Tensor:
        return losses.contrastive_loss(u, v, labels, self.margin)

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        labels = self.labels[rows]
        u, v = network(rows).unbind(dim=1)  # (B, D) each
        return self.formula(u, v, labels)

    def evaluate(self, split: str) -> Scores:
        return base.cosine_scores(self.encoder, self.rows[split], self.rows["dev"], self.formula)


# ------------------------------------------------------------------------ triplets and plain sentences


class UnscoredRows(Objective):
    """Train on rows without scores. The other rows of a batch are negatives unless ``separable``.

    They are evaluated on scored pairs, by default STS-B's. If ``--dev`` or ``--test`` has pairs without scores, a
    search finds each anchor's positive among all positives of the file.
    """

    separable = False
    geometry = True  # evaluate alignment and uniformity too

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, columns: Columns, note: str):
        self.options, self.scored = options, []
        searches: dict[str, Retrieval | None] = {}
        self.rows, notes = {"train": list(zip(*columns, strict=True))}, {"train": note}
        for split, file in (("dev", options.dev), ("test", options.test)):
            if file and holds_pairs(file):
                self.rows[split], notes[split] = triplet_rows(base.sources_of(options).of_file(file))
                searches[split] = retrieval_from_pairs(self.rows[split])
            elif file or not searches:  # pairs as dev need no STS-B as test
                rows, split_notes = scored_rows(base.sources_of(options), options.scale, [split])
                self.scored.append(split)
                self.rows |= rows
                notes |= split_notes
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
        super().__init__(network, notes)
        self.retrieval = searches
        if "dev" in searches:
            self.best = "ndcg@10"
        if not self.separable:
            # a text in two rows of a batch would be its own negative
            self.keys = self.rows["train"]
        # any generator: is there a batch at all?
        if not self.batches(options.batch_size, torch.Generator()):
            raise InputError(f"{note}: any two rows share a text, so no batch has a negative")

    def evaluate(self, split: str) -> Scores:
        if split not in self.scored:
            return {}
        if isinstance(self.encoder, MultiVectorEncoder):
            return base.late_scores(self.encoder, self.rows[split])
        return base.vector_scores(self.encoder, self.rows[split], contrastive=self.geometry, prefixes=self.prefixes)


class TripletRows(UnscoredRows):
    """Train on anchor, positive, negative; for in-batch negatives also without a negative, or with several."""

    def __init__(self, options: RunSettings, encoder: SentenceEncoder):
        rows, note = triplet_rows(base.sources_of(options), only_triplets=options.objective == "triplet")
        super().__init__(options, encoder, list(zip(*rows, strict=True)), note)

    def ranking_loss(self, vectors: Tensor, symmetric: bool = False) -> Tensor:
        """Let each anchor pick its positive among all positives and negatives: vectors (B, n, D)."""
        anchors, positives, *negatives = vectors.unbind(dim=1)  # (B, D) each
        hard = torch.cat(negatives) if negatives else None  # ((n - 2) B, D)
        return losses.multiple_negatives_ranking_loss(anchors, positives, hard, 1 / self.options.temperature, symmetric)


class TripletMargin(TripletRows):
    """Keep a margin between Euclidean distances (SBERT, section 3: margin 1)."""

    separable = True

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        anchor, positive, negative = network(rows).unbind(dim=1)  # (B, D) each
        return losses.triplet_loss(anchor, positive, negative, self.options.margin or 1.0)


class Ranking(TripletRows):
    """Rank the positive above all other positives and negatives of the batch (multiple negatives ranking)."""

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        return self.ranking_loss(network(rows), self.options.symmetric)


class Splade(TripletRows):
    """Rank the positive above all other texts of the batch by dot products, at a price for words (``splade_loss``).

    The price rises with the square of the step over the first third of the run, as in sentence-transformers: words are
    learned before they are taken away.
    """

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        queries, *documents = network(rows).unbind(dim=1)  # (B, V) each
        risen = min(1.0, 3 * self.done) ** 2
        query_price, document_price = self.options.query_flops * risen, self.options.document_flops * risen
        return more_losses.splade_loss(queries, torch.cat(documents), query_price, document_price)


class SupervisedSimCSE(TripletRows):
    """Entailment against contradiction and the other rows of the batch (SimCSE, eq. 5)."""

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        vectors = network(rows)  # (B, n, D)
        # eq. 5 without negatives, or with all of them in the sum: the ranking loss
        if vectors.shape[1] != 3:
            return self.ranking_loss(vectors)
        anchor, positive, negative = vectors.unbind(dim=1)  # (B, D) each
        return losses.simcse_loss(anchor, positive, negative, self.options.temperature)


class SimCSE(UnscoredRows):
    """Unsupervised SimCSE (Gao et al. 2021, eq. 4): a sentence under two dropout masks against all other sentences."""

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

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        views = network(rows).unbind(dim=1)
        return losses.simcse_loss(views[0], views[-1], temperature=self.options.temperature)


# -------------------------------------------------------------------------------- a vector per token


class TokenNetwork(RowNetwork):
    """Encode columns of texts by a ``MultiVectorEncoder``: queries, filled up as the model does, then documents."""

    model: MultiVectorEncoder

    def __init__(self, model: MultiVectorEncoder, columns: Columns):
        encoded: list[Encoded] = []
        counts = []
        for place, column in enumerate(columns):
            role = "query" if place == 0 else "document"
            prompt = role_prompt(model.settings, role)
            tokens = model.rows([prompt + text for text in column], query=place == 0)
            encoded.append(Encoded(tokens.ids, [[0] * len(row) for row in tokens.ids], tokens.truncated))
            counts.append(tokens.own)
        lengths = []
        for texts in zip(*(column.ids for column in encoded), strict=True):
            # in a batch of rows like it: all its texts are padded to its longest
            lengths.append(len(texts) * max(map(len, texts)))
        super().__init__(model, encoded, lengths)
        self.counts, self.longest = counts, max(lengths) // len(columns)  # of one text

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows with n texts each into vectors of their tokens, (B, n, T, K).

        T is that of the longest text of all rows, so that parts of a batch fit together. A token that is not compared
        has the vector 0, which adds nothing to a query; for documents see ``counted``.
        """
        vectors_of_columns = []
        for place, (column, counts) in enumerate(zip(self.encoded, self.counts, strict=True)):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                texts = [column.ids[row] for row in rows], [counts[row] for row in rows]
                vectors, counted = self.model(*texts, query=place == 0)  # (B, T of this column, K)
            vectors = vectors * counted.unsqueeze(-1)
            vectors_of_columns.append(nn.functional.pad(vectors, (0, 0, 0, self.longest - vectors.shape[1])))
        return torch.stack(vectors_of_columns, dim=1)

    def counted(self, rows: Sequence[int]) -> Tensor:
        """Mark the documents' tokens that are compared, (B, n - 1, T); T is that of the longest text of these rows."""
        documents = self.encoded[1:]
        texts = [column.ids[row] for row in rows for column in documents]
        longest = max(len(column.ids[row]) for row in rows for column in self.encoded)
        # the ids alone decide, so no forward is needed: -1 marks a pad
        padded = torch.tensor([[*ids] + [-1] * (longest - len(ids)) for ids in texts], device=self.model.device)
        return self.model.compared(padded, padded >= 0, query=False).view(len(rows), len(documents), longest)


def query_and_documents(tokens: TokenNetwork, network: Network, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B, T, K), documents (B, C, T, K), and which of their tokens are compared, (B, C, T).

    ``network`` is ``tokens`` or a wrapper of it.
    """
    real = tokens.counted(rows)
    # the network pads to the longest text of the run
    vectors = network(rows)[:, :, : real.shape[2]]
    return vectors[:, 0], vectors[:, 1:], real


class LateInteraction(TripletRows):
    """Rank the positive above all other texts of the batch by ``max_sim`` (ColBERT, Khattab and Zaharia 2020)."""

    network: TokenNetwork

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        queries, documents, real = query_and_documents(self.network, network, rows)
        # (B, C, ...) to (C B, ...): all positives first
        documents, real = documents.transpose(0, 1).flatten(0, 1), real.transpose(0, 1).flatten(0, 1)
        return more_losses.late_ranking_loss(queries, documents, real)
