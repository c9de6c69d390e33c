"""What the server computes: vectors of texts or token ids, and scores of documents for a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_text
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import assemble
from minisbert.loading import Encoder, load_dense
from minisbert.models.pair_scorer import SEVERAL, PairScorer
from minisbert.models.prompts import choose_prompt, prompt_tokens, role_prompt_name


class Embedded(NamedTuple):
    """A text's vector (D,) float32, its tokens, special ones included, and whether it was cut at the limit."""

    vector: np.ndarray
    tokens: int
    cut: bool


@dataclass
class Engine:
    """An encoder, and perhaps a reranker, behind names and limits."""

    name: str
    encoder: Encoder
    reranker: PairScorer | None = None
    reranker_name: str = ""

    def __post_init__(self) -> None:
        load_dense(self.encoder)
        if self.reranker is not None and self.reranker.task in SEVERAL:
            raise InputError(f"{self.reranker_name} gives several numbers; a reranker gives one score for each pair")

    @property
    def width(self) -> int:
        """The columns of a vector."""
        return self.encoder.settings.truncate_dim or self.encoder.width

    def shortened(self, vector: np.ndarray, columns: int) -> np.ndarray:
        """The first columns, scaled to length 1 again as OpenAI does (Matryoshka embeddings); or all, as they are."""
        if columns == len(vector):
            return vector
        return normalize(torch.from_numpy(vector[None, :columns]))[0].numpy()

    def prompt(self, role: str | None) -> str:
        """The prompt for ``input_type`` query or document; for None the model's default. A model may have none."""
        settings = self.encoder.settings
        if role is None:
            return choose_prompt(settings)
        return choose_prompt(settings, name=role_prompt_name(settings, role))

    def embed(self, prompt: str, inputs: Sequence[str | list[int]]) -> list[Embedded]:
        """Embed texts, or rows of token ids, in one call. Raises ``InputError``."""
        rows = [self.row(prompt, given) for given in inputs]
        vectors = self.encoder.encode_tokens([ids for ids, _ in rows], self.skipped(prompt))  # (N, D)
        embedded = []
        for (ids, cut), vector in zip(rows, vectors, strict=True):
            embedded.append(Embedded(np.asarray(vector, dtype=np.float32), len(ids), cut))
        return embedded

    def skipped(self, prompt: str) -> int:
        """How many tokens of a prompt the pooling leaves out: those of all of it, or none."""
        if not prompt or self.encoder.settings.include_prompt:
            return 0
        return prompt_tokens(self.encoder.tokenizer, prompt)

    def row(self, prompt: str, given: str | list[int]) -> tuple[list[int], bool]:
        """The token ids of one input, and whether it was cut."""
        tokenizer = self.encoder.tokenizer
        if isinstance(given, str):
            encoded = tokenizer.encode([prompt + given])
            return encoded.ids[0], encoded.truncated > 0
        room = tokenizer.limit - len(tokenizer.single_template) + 1
        ids, _ = assemble(tokenizer.single_template, [given[:room]])
        return ids, len(given) > room

    def check(self, number: int, given: str | list[int]) -> None:
        """Raise ``InputError``, with the input's number, for one that cannot be embedded."""
        if isinstance(given, str):
            check_text(number, given)
            return
        size = self.encoder.tokenizer.backend.get_vocab_size()
        outside = next((token for token in given if token not in range(size)), None)
        if outside is not None:
            raise InputError(
                f"token id {one_line(str(outside))} is not one of this model's {size:,}: send texts, or ids of its own "
                "tokenizer without special tokens (LangChain: check_embedding_ctx_length=False)"
            )

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """The score of each document for a query, by the reranker."""
        if self.reranker is None:
            raise InputError("there is no reranker: start the server with --reranker MODEL")
        scores = self.reranker.scores([query] * len(documents), list(documents))
        return [float(score) for score in scores]
