"""Encode texts to one vector per token, for late interaction (``search/by_tokens.py``).

    encoder = MultiVectorEncoder.load("path/to/colbert")
    queries = encoder.encode(["a cat?"], query=True)
    documents = encoder.encode(["A cat sits.", "Rain."])
    encoder.top_k(queries, documents, 1)  # scores and document numbers, (1, 1) each

Each token's hidden state goes through a linear layer without bias and is scaled to length 1. A
query may be padded with [MASK] tokens that are compared like its words, which mostly reweights
these (Giacalone and Zanibbi 2024); in documents punctuation is skipped. Folders are those of
sentence-transformers' class of the same name.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.checkpoints.layout import (
    CONFIG,
    SENTENCE,
    TEXT_SETTINGS,
    EncoderSettings,
    JsonSettings,
    ModelFolder,
    unsupported,
    write_modules,
    write_settings,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import (
    BATCH_TOKENS,
    Tokens,
    budgeted_batches,
    check_ids,
    check_tokens,
    with_limit,
)
from minisbert.models.encode_types import Dtype
from minisbert.models.pooling import Dense, dense_width, load_dense_layer
from minisbert.models.properties import (
    check_choice,
    role_prompt,
    vector_rows,
    with_prompt,
)
from minisbert.models.text_encoder import DenseEncoder, tokens_per_batch
from minisbert.models.transformer_encoder import TransformerEncoder
from minisbert.replacements import ENCODE, check_keywords, explained, keywords_of, takes_parts
from minisbert.search.by_tokens import Matrices
from minisbert.system.files import write_json
from minisbert.system.progress import Bar, bar_of

# PyLate's keys in config_sentence_transformers.json begin with these. sentence-transformers
# converts such folders.
PYLATE = ("query_", "document_", "skiplist_", "attend_to_", "do_query_")
# The options that ``encode`` knows: its own, and those of encoders with a vector for each text,
# which may be passed with the values that they have anyway.
KEYWORDS = ["query", *keywords_of(DenseEncoder.encode)]
# What a module on vectors of tokens reads and writes, in sentence-transformers' words.
TOKEN_VECTORS = "token_embeddings"


@dataclass(frozen=True)
class Expansion:
    """``query_expansion``: pad queries to ``length`` tokens.

    The strategy ``fixed`` also cuts longer ones. ``attend`` lets the query's own tokens attend to
    the added ones.
    """

    length: int
    strategy: str = "fixed"
    attend: bool = False
    token: str | None = None  # None for [MASK]

    @classmethod
    def read(cls, settings: JsonSettings) -> "Expansion":
        return cls(
            length=settings.size("length", True),
            strategy=settings.choice("strategy", "fixed", "min"),
            attend=settings.get("attend", bool, False),
            token=settings.get("token", str),
        )

    def filler(self, vocabulary: Mapping[str, int]) -> int:
        """Return the id of the token that fills queries up; ``InputError`` if there is none."""
        names = ["[MASK]", "<mask>"]
        if self.token:
            names = [self.token]
        for name in names:
            if name in vocabulary:
                return vocabulary[name]
        raise InputError(
            f"{TEXT_SETTINGS}: query_expansion: the tokenizer has no token {' or '.join(names)}"
        )


@dataclass(frozen=True)
class MultiVectorSettings(EncoderSettings):
    """The settings of every encoder, the lengths of queries and documents, and what is skipped."""

    similarity_fn_name: str = "maxsim"
    model_type: str = "MultiVectorEncoder"
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skiplist_words: list[str] = field(default_factory=list)
    skiplist_tasks: list[str] = field(default_factory=lambda: ["document"])
    keep_only_token_ids: None = None  # models of images have some; these are not opened

    similarities: ClassVar[tuple[str, ...]] = ("maxsim",)
    model_types: ClassVar[tuple[str, ...]] = ("MultiVectorEncoder",)


def read_multi_vector_settings(folder: ModelFolder) -> MultiVectorSettings:
    """Read a folder's settings; ``InputError`` by file and key for one that is not supported."""
    has_pylate_keys = any(key.startswith(PYLATE) for key in folder.json(SENTENCE))
    masks = folder.places["MultiVectorMask"]
    if has_pylate_keys or not masks:
        raise InputError(
            f"{folder.path} has PyLate's or Stanford's layout: save it with sentence-transformers "
            f"first"
        )
    lengths = folder.encoder.json_settings(TEXT_SETTINGS)
    query_length = lengths.size("query_length")
    expansion = None
    expansion_content = lengths.get("query_expansion", dict)
    if expansion_content:
        expansion = Expansion.read(JsonSettings((lengths.path, expansion_content)))
        if query_length is not None and query_length < expansion.length:
            reason = f"query_expansion adds tokens up to {expansion.length}"
            raise unsupported(lengths.path, "query_length", query_length, reason)
    mask = folder.json_settings(f"{masks[0]}/{CONFIG}")
    mask.choice("keep_only_token_ids", None)
    return MultiVectorSettings.read(
        folder,
        query_length=query_length,
        document_length=lengths.size("document_length"),
        expansion=expansion,
        skiplist_words=mask.get("skiplist_words", list, [], items=str),
        skiplist_tasks=mask.get("skiplist_tasks", list, ["document"], items=str),
    )


def normalizes_tokens(folder: ModelFolder) -> bool:
    """Return whether a Normalize module scales the vectors of tokens.

    By default it scales the vector of a sentence, and leaves tokens as they are, as in
    sentence-transformers.
    """
    for place in folder.places["Normalize"]:
        settings = folder.json(f"{place}/{CONFIG}")
        reads = settings.get("module_input_name")
        writes = settings.get("module_output_name")
        if reads == TOKEN_VECTORS and writes in (None, TOKEN_VECTORS):
            return True
    return False


def role_of(query: bool) -> str:
    """Return what texts are, in the words of prompts and of ``skiplist_tasks``."""
    if query:
        return "query"
    return "document"


# The vectors of texts' tokens: of several texts, or (T, K) of one.
TokenVectors = Matrices | Tensor | np.ndarray | Sequence[Tensor | np.ndarray]


def as_matrices(vectors: TokenVectors) -> Matrices:
    """Convert vectors of tokens to ``Matrices``; ``InputError`` for what is none."""
    if isinstance(vectors, Matrices):
        return vectors
    texts = vectors
    if not isinstance(vectors, list | tuple):
        texts = [vectors]
    matrices = []
    for matrix in texts:
        if not isinstance(matrix, Tensor | np.ndarray) or matrix.ndim != 2:
            raise InputError(
                f"vectors of tokens are what encode gives, or (T, K) for each text, not "
                f"{one_line(matrix)}"
            )
        matrices.append(vector_rows(matrix))
    widths = {matrix.shape[1] for matrix in matrices}
    if len(widths) > 1:
        raise InputError(f"vectors of tokens of several widths: {sorted(widths)}")
    return Matrices.of(matrices, max(widths, default=0))


def comparable_matrices(a: TokenVectors, b: TokenVectors) -> tuple[Matrices, Matrices]:
    """Convert both to ``Matrices``; ``InputError`` for different widths."""
    queries = as_matrices(a)
    documents = as_matrices(b)
    widths = (queries.shape[1], documents.shape[1])
    if len(queries) and len(documents) and widths[0] != widths[1]:
        raise InputError(f"vectors of width {widths[0]} and {widths[1]} cannot be compared")
    return queries, documents


@dataclass
class TokenRows(Tokens):
    """The tokens of a call, fillers included; ``own`` counts each text's tokens without them."""

    own: list[int] = field(default_factory=list)
    query: bool = False


@dataclass
class TokenBatch:
    """A padded batch of B texts."""

    texts: list[int]  # their numbers in the call
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T): the tokens to attend to
    compared: Tensor  # (B, T): the tokens that have a vector
    dtype: torch.dtype  # that of the matrix products


class MultiVectorEncoder(TransformerEncoder):
    """``encode`` gives ``Matrices``: for each text one vector per token, of length 1.

    One text has a tensor (T, K).
    """

    folder_class = "MultiVectorEncoder"
    vectors_are = "per token"
    pooling_mode = "no"
    settings: MultiVectorSettings

    @takes_parts
    def __init__(
        self,
        tokenizer: ModelTokenizer,
        bert: Encoder,
        dense: Dense,
        settings: MultiVectorSettings,
        normalize: bool = True,
    ):
        super().__init__(tokenizer, bert, settings)
        self.dense = nn.Sequential(dense)
        self.width = dense_width([dense], self.hidden_size)
        self.normalize = normalize
        vocabulary = tokenizer.backend.get_vocab()
        # Words that are not single tokens cannot be skipped.
        skipped = [vocabulary[word] for word in settings.skiplist_words if word in vocabulary]
        self.skipped_ids = torch.tensor(skipped, dtype=torch.long)
        self.expansion = settings.expansion
        if self.expansion:
            self.filler = self.expansion.filler(vocabulary)

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        if pooling is not None:
            raise InputError(
                f"pooling {pooling}: {folder.path} is a MultiVectorEncoder, which pools nothing"
            )
        settings = read_multi_vector_settings(folder)
        normalize = normalizes_tokens(folder)
        bert = load_transformer(folder.encoder)
        dense = load_dense_layer(folder, folder.places["Dense"][0], TOKEN_VECTORS)
        tokenizer = read_tokenizer(folder.encoder, limit)
        return cls(tokenizer, bert, dense, settings, normalize).eval()

    def rows(self, texts: Sequence[str], query: bool) -> TokenRows:
        """Tokenize queries, with fillers, or documents, each cut at their own length."""
        expansion = None
        limit = self.settings.document_length
        if query:
            expansion = self.expansion
            limit = self.settings.query_length
            if expansion and expansion.strategy == "fixed":
                limit = expansion.length
        # The tokenizer's own limit is not that of queries or documents.
        limit = min(limit or self.tokenizer.limit, self.bert.config.positions)
        encoded = check_tokens(with_limit(self.tokenizer, limit).encode(texts), texts)

        tokens = TokenRows(query=query)
        tokens.add(encoded)
        tokens.own = [len(ids) for ids in encoded.ids]
        if expansion:
            for ids in tokens.ids:
                ids.extend([self.filler] * (expansion.length - len(ids)))
        return tokens

    def forward(self, rows: list[array], own: list[int], query: bool) -> tuple[Tensor, Tensor]:
        """Run B texts -> vectors (B, T, K), and which of them are compared (B, T).

        ``rows`` are the ids of each text, fillers included, ``own`` counts its tokens without them.
        """
        tokens = TokenRows(rows, own=own, query=query)
        batch = self.padded(tokens, range(len(rows)))
        return self.vectors(self.batch_states(batch)), batch.compared

    def batches(self, tokens: TokenRows, batch_tokens: int | None = None) -> Iterator[TokenBatch]:
        """Pad texts of like length, the longest first.

        Texts that share a row could not have fillers.
        """
        lengths = [len(ids) for ids in tokens.ids]
        for texts in budgeted_batches(lengths, batch_tokens or BATCH_TOKENS):
            yield self.padded(tokens, texts)

    def padded(self, tokens: TokenRows, texts: Sequence[int]) -> TokenBatch:
        """Make a batch of some of the texts."""
        rows = [tokens.ids[text] for text in texts]
        # Not the mask of ``pad_batch``: a filler is a real token that may have to stay hidden from
        # the others.
        ids, _ = pad_batch(rows, self.tokenizer.pad_id)  # (B, T)
        ids = ids.to(self.device)
        positions = torch.arange(ids.shape[1], device=self.device)  # (T,)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)  # (B,)
        real = positions < lengths[:, None]  # (B, T), fillers too

        attended = real
        if tokens.query and self.expansion and not self.expansion.attend:
            # subtle: a filler that no token attends to still has a vector: it attends to the
            # query's own tokens
            own = torch.tensor([tokens.own[text] for text in texts], device=self.device)  # (B,)
            attended = positions < own[:, None]

        compared = real  # in documents usually all tokens but punctuation
        if role_of(tokens.query) in self.settings.skiplist_tasks:
            compared = real & ~torch.isin(ids, self.skipped_ids.to(ids.device))
        return TokenBatch(list(texts), ids, attended, compared, tokens.dtype)

    def batch_states(self, batch: TokenBatch) -> Tensor:
        """Compute the hidden states (B, T, D) of a batch."""
        check_ids(self.bert.config, batch.ids, batch.ids.shape[1])
        return self.bert(batch.ids, batch.mask)

    def vectors(self, hidden: Tensor) -> Tensor:
        """Hidden states (B, T, D) -> vectors of the tokens (B, T, K)."""
        # The dense layer, as pooling, is never in bfloat16.
        with torch.autocast(self.device.type, enabled=False):
            vectors = self.dense(hidden.to(self.dtype))  # (B, T, K)
        if self.normalize:
            return normalize(vectors)
        return vectors

    def token_states(self, batch: TokenBatch) -> list[Tensor]:
        """Compute the vectors (T, K) of each text's tokens, of those that are compared."""
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=batch.dtype == torch.bfloat16
        ):
            hidden = self.batch_states(batch)
        vectors = self.vectors(hidden)
        return [rows[real] for rows, real in zip(vectors, batch.compared, strict=True)]

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        query: bool | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | Bar | None = False,
        dtype: Dtype | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        convert_to_numpy: bool = False,
        **options: Any,
    ) -> Any:
        """Encode texts to ``Matrices``; one text to a tensor (T, K).

        ``convert_to_numpy`` makes an array of the tensor; ``Matrices`` hold arrays anyway.
        ``query`` says if they are queries or documents; by default the prompt does. With ``query``
        and without a prompt they get the model's prompt for queries, or for documents, if it has
        one. Raises ``InputError`` as ``SentenceEncoder.encode`` does, and for its options that need
        a vector per text.
        """
        # Code for any encoder may pass the options of ``SentenceEncoder.encode`` with the values
        # that they have anyway.
        check_keywords("encode", options, KEYWORDS, ENCODE)
        defaults = (None, False, "sentence_embedding", "token_embeddings", "float32")
        for name, value in options.items():
            if value not in defaults:
                raise InputError(f"{name}: a MultiVectorEncoder has a vector per token, not one")
        check_choice("query", query, (None, True, False))
        batch_tokens = tokens_per_batch(batch_size)
        if query is None:
            queries_prompt = bool(prompt) and prompt == role_prompt(self.settings, "query")
            query = queries_prompt or prompt_name == "query"
        elif prompt is None and prompt_name is None:
            prompt = role_prompt(self.settings, role_of(query))

        single = isinstance(texts, str)
        if isinstance(texts, str):
            texts = [texts]
        texts, _ = with_prompt(
            check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name
        )
        tokens = self.rows(texts, query)
        self.truncated = sum(tokens.truncated)
        with bar_of(show_progress_bar, len(texts)) as bar:
            matrices = self.states_of(tokens, batch_tokens, dtype, bar)
        if single and convert_to_numpy:
            return matrices[0].numpy()
        if single:
            return matrices[0]
        return Matrices.of([matrix.numpy() for matrix in matrices], self.width)

    @explained(ENCODE, DenseEncoder.encode)
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with ``query=True``."""
        return self.encode(texts, query=True, **options)

    @explained(ENCODE, DenseEncoder.encode)
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with ``query=False``."""
        return self.encode(texts, query=False, **options)

    def similarity(self, a: TokenVectors, b: TokenVectors) -> Tensor:
        """Compute ``max_sim`` of every text of a, as a query, with every one of b: (N, M).

        Each is what ``encode`` gives, or a list of matrices (T, K).
        """
        queries, documents = comparable_matrices(a, b)
        scores = np.empty((len(queries), len(documents)), documents.rows.dtype)
        for i in range(len(queries)):
            scores[i] = documents.scores(queries[i])
        return torch.from_numpy(scores)

    def similarity_pairwise(self, a: TokenVectors, b: TokenVectors) -> Tensor:
        """Compute ``max_sim`` of text i of a, as a query, with text i of b: (N,)."""
        queries, documents = comparable_matrices(a, b)
        if len(queries) != len(documents):
            raise InputError(f"{len(queries)} and {len(documents)} texts do not make pairs")
        scores = np.empty(len(queries), documents.rows.dtype)
        for i in range(len(queries)):
            scores[i] = documents[i : i + 1].scores(queries[i])[0]
        return torch.from_numpy(scores)

    def top_k(
        self, queries: TokenVectors, corpus: TokenVectors, k: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        return super().top_k(as_matrices(queries), as_matrices(corpus), k, progress)

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_bert(self.bert, folder)
        write_tokenizer(self.tokenizer, folder)
        modules = ["Transformer", "Dense", "MultiVectorMask"]
        if self.normalize:
            modules.append("Normalize")
        places = write_modules(folder, modules)
        of_tokens = {"module_input_name": TOKEN_VECTORS, "module_output_name": TOKEN_VECTORS}
        cast(Dense, self.dense[0]).write(folder / places[1], **of_tokens)
        mask = {
            "skiplist_words": self.settings.skiplist_words,
            "skiplist_tasks": self.settings.skiplist_tasks,
            "keep_only_token_ids": None,
        }
        write_json(folder / places[2] / CONFIG, mask)
        if self.normalize:
            write_json(folder / places[3] / CONFIG, of_tokens)
        limit = text_settings(self.tokenizer)
        write_settings(folder, self.settings, limit, model_type="MultiVectorEncoder")
