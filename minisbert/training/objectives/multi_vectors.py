"""Train a vector per token, those of a ``MultiVectorEncoder``: the first text of a row is a query."""

import torch
from torch import Tensor, nn

from minisbert.core.tokenizer import Encoded
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.prompts import choose_prompt, role_prompt_name
from minisbert.training.losses import late_ranking_loss
from minisbert.training.objectives.base import Scores, late_scores
from minisbert.training.objectives.encoders import Columns, TripletRows, VectorObjective


class TokenColumns:
    """Columns of texts, each with its prompt: queries, filled up as the model does, and documents. Tokenized once."""

    def __init__(self, encoder: MultiVectorEncoder, columns: Columns):
        self.counts, self.encoded = [], []
        for place, column in enumerate(columns):
            role, tokenized = "document", encoder.document_rows
            if place == 0:
                role, tokenized = "query", encoder.query_rows
            prompt = choose_prompt(encoder.settings, name=role_prompt_name(encoder.settings, role))
            ids, counts, truncated = tokenized([prompt + text for text in column])
            self.encoded.append(Encoded(ids, [[0] * len(row) for row in ids], truncated))
            self.counts.append(counts)
        # what a row costs in a batch of rows like it: all its texts are padded to its longest
        self.lengths, self.longest = [], 0
        for texts in zip(*(column.ids for column in self.encoded), strict=True):
            longest = max(map(len, texts))
            self.lengths.append(len(texts) * longest)
            self.longest = max(self.longest, longest)


class TokenNetwork(nn.Module):
    """Encode columns of texts by a ``MultiVectorEncoder``."""

    dtype = torch.float32

    def __init__(self, model: MultiVectorEncoder, columns: TokenColumns):
        super().__init__()
        self.model, self.columns = model, columns

    def forward(self, rows: list[int]) -> Tensor:
        """Turn the numbers of B rows with n texts each into vectors of their tokens, (B, n, T, K).

        T is that of the longest text of all rows, so that parts of a batch fit together. A token that is not compared
        has the vector 0, which adds nothing to a query; for documents see ``counted``.
        """
        vectors_of_columns = []
        for place, (column, counts) in enumerate(zip(self.columns.encoded, self.columns.counts, strict=True)):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                texts = [column.ids[row] for row in rows], [counts[row] for row in rows]
                vectors, counted = self.model(*texts, query=place == 0)  # (B, T of this column, K)
            vectors = vectors * counted.unsqueeze(-1)
            vectors_of_columns.append(nn.functional.pad(vectors, (0, 0, 0, self.columns.longest - vectors.shape[1])))
        return torch.stack(vectors_of_columns, dim=1)

    def counted(self, rows: list[int]) -> Tensor:
        """Mark the documents' tokens that are compared, (B, n - 1, T); T is that of the longest text of these rows."""
        documents = self.columns.encoded[1:]
        texts = [column.ids[row] for row in rows for column in documents]
        longest = max(len(column.ids[row]) for row in rows for column in self.columns.encoded)
        # the ids alone decide, so no forward is needed: -1 marks a pad
        padded = torch.tensor([ids + [-1] * (longest - len(ids)) for ids in texts], device=self.model.device)
        return self.model.compared(padded, padded >= 0, query=False).view(len(rows), len(documents), longest)


class TokenObjective(VectorObjective):
    """Train a vector per token; a base of the objectives below and of one with a teacher."""

    def make_network(self, encoder: MultiVectorEncoder, columns: Columns, projection: nn.Module | None) -> TokenNetwork:
        return TokenNetwork(encoder, TokenColumns(encoder, columns))

    def vectors(self, network: nn.Module, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, K), documents (B, C, T, K), and which of their tokens are compared, (B, C, T)."""
        real = self.network.counted(rows)
        # the network pads to the longest text of the run
        vectors = network(rows)[:, :, : real.shape[2]]
        return vectors[:, 0], vectors[:, 1:], real

    def evaluate(self, split: str) -> Scores:
        if split not in self.scored:
            return {}
        return late_scores(self.encoder, self.rows[split])


class LateInteraction(TokenObjective, TripletRows):
    """Rank the positive above all other texts of the batch by ``max_sim`` (ColBERT, Khattab and Zaharia 2020)."""

    def loss(self, network: nn.Module, rows: list[int]) -> Tensor:
        queries, documents, real = self.vectors(network, rows)
        # (B, C, ...) to (C B, ...): all positives first
        return late_ranking_loss(queries, documents.transpose(0, 1).flatten(0, 1), real.transpose(0, 1).flatten(0, 1))
