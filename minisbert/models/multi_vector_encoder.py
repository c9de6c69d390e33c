"""``MultiVectorEncoder``: texts to one vector per token, for late interaction (``search/late_interaction.py``).

    encoder = MultiVectorEncoder.load("path/to/colbert")
    queries, documents = encoder.encode(["a cat?"], query=True), encoder.encode(["A cat sits.", "Rain."])
    encoder.top_k(queries, documents, 1)  # scores and document numbers, (1, 1) each

Each token's hidden state goes through a linear layer without bias and is scaled to length 1. A query may be padded with
[MASK] tokens that count as its own, which mostly reweights its words (Giacalone and Zanibbi 2024); punctuation in
documents is skipped. Folders are those of sentence-transformers' class of the same name.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    SENTENCE,
    TEXT_SETTINGS,
    WRITTEN,
    DenseSettings,
    EncoderSettings,
    JsonSettings,
    unsupported,
    write_settings,
)
from minisbert.checkpoints.layout import ModelFolder, write_modules
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core import InputError, one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import budgeted_batches
from minisbert.models.encoder import BATCH_SIZE, TEXT_TOKENS, as_progress
from minisbert.models.guards import check_choice, check_count, check_ids
from minisbert.models.pooling import Dense, Pooling, load_dense, sentence_width
from minisbert.models.prompts import PROMPT_NAMES, role_prompt, with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.search.late_interaction import Matrices, late_top_k
from minisbert.system.files import write_json
from minisbert.system.progress import Progress

# keys of config_sentence_transformers.json by which sentence-transformers knows, and converts, PyLate's folders
PYLATE_KEYS = {"query_prefix", "document_prefix", "query_length", "document_length", "query_expansion"}
PYLATE_KEYS |= {"do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words"}
TOKENS = "token_embeddings"


@dataclass(frozen=True)
class Expansion:
    """``query_expansion``: pad queries to ``length`` tokens; the strategy ``fixed`` also cuts longer ones.

    ``attend`` lets the query's own tokens attend to the added ones.
    """

    length: int
    strategy: str = "fixed"
    attend: bool = False
    token: str | None = None  # None for [MASK]

    @classmethod
    def read(cls, settings: JsonSettings) -> "Expansion":
        length, strategy = settings.size("length", needed=True), settings.choice("strategy", "fixed", "min")
        return cls(length, strategy, settings.get("attend", bool, False), settings.get("token", str))


@dataclass(frozen=True)
class MultiVectorSettings(EncoderSettings):
    """``config_sentence_transformers.json``, the lengths in ``sentence_bert_config.json``, and MultiVectorMask's."""

    similarity_fn_name: str = "maxsim"
    model_type: str = "MultiVectorEncoder"
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skiplist_words: list[str] = field(default_factory=list)
    skiplist_tasks: list[str] = field(default_factory=lambda: ["document"])
    keep_only_token_ids: None = None  # for images

    similarities: ClassVar[tuple[str, ...]] = ("maxsim",)
    model_types: ClassVar[tuple[str, ...]] = ("MultiVectorEncoder",)


@dataclass(frozen=True, kw_only=True)
class TokenDense(DenseSettings):
    """A dense layer over the tokens' states."""

    reads: ClassVar[str] = "token_embeddings"


def read_settings(folder: ModelFolder) -> MultiVectorSettings:
    """A folder's settings. Raises ``InputError`` by file and key for those that are not supported."""
    for key in folder.json(SENTENCE):
        if key in PYLATE_KEYS:
            raise other_layout(folder, f"{SENTENCE} has PyLate's {key}")
    masks = folder.places("MultiVectorMask")
    if not masks:
        raise other_layout(folder, "there is no MultiVectorMask")
    lengths, mask = folder.encoder.json_settings(TEXT_SETTINGS), folder.json_settings(f"{masks[0]}/{CONFIG}")
    query_length, expanded = lengths.size("query_length"), lengths.get("query_expansion", dict)
    expansion = None
    if expanded:
        expansion = Expansion.read(JsonSettings((lengths.path, expanded)))
        if query_length is not None and query_length < expansion.length:
            reason = f"query_expansion adds tokens up to {expansion.length}"
            raise unsupported(lengths.path, "query_length", query_length, reason)
    mask.choice("keep_only_token_ids", None)
    return MultiVectorSettings.read(
        folder.json_settings(SENTENCE),
        query_length=query_length,
        document_length=lengths.size("document_length"),
        expansion=expansion,
        skiplist_words=mask.get("skiplist_words", list, [], items=str),
        skiplist_tasks=mask.get("skiplist_tasks", list, ["document"], items=str),
        others={key: value for key, value in folder.json(SENTENCE).items() if key not in WRITTEN},
    )


def other_layout(folder: ModelFolder, reason: str) -> InputError:
    advice = "only sentence-transformers' layout is read: open the folder there and save it"
    return InputError(f"{folder.path} is not a MultiVectorEncoder's folder, {reason}; {advice}")


def normalizes_tokens(folder: ModelFolder) -> bool:
    """Whether a Normalize module scales the vectors of tokens.

    By default it scales the vector of a sentence, and leaves tokens as they are, as sentence-transformers does.
    """
    for place in folder.places("Normalize"):
        stated = folder.json(f"{place}/{CONFIG}")
        given = stated.get("module_input_name")
        if given == TOKENS and stated.get("module_output_name") in (None, TOKENS):
            return True
    return False


TOKEN_MODULE = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
# values of options of other encoders that ask for what is given here anyway
ANY_ENCODER = {
    "output_value": (None, "sentence_embedding"),
    "precision": ("float32",),
    "convert_to_numpy": (True, False),
}
MASK_KEYS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")


class MultiVectorEncoder(SentenceEncoder):
    """``encode`` gives ``Matrices``: for each text one vector per token, of length 1."""

    vectors_are = "per token"
    top_k = staticmethod(late_top_k)
    to_tensors, from_tensors = staticmethod(Matrices.tensors), staticmethod(Matrices.from_tensors)

    def __init__(
        self, tokenizer: Tokenizer, bert: Bert, dense: Dense, settings: MultiVectorSettings, normalize: bool = True
    ):
        super().__init__(tokenizer, bert, Pooling("mean"), normalize, [], settings)
        self.projection = dense
        self.width = sentence_width(self.pooling, [dense], bert)
        self.skipped_ids = torch.tensor(known_ids(tokenizer, settings.skiplist_words), dtype=torch.long)
        self.expansion = settings.expansion
        if self.expansion:
            self.filler = filler_id(tokenizer, self.expansion.token)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        if pooling is not None:
            raise InputError(f"pooling {pooling}: {folder.path} is a MultiVectorEncoder, which pools nothing")
        settings, normalize = read_settings(folder), normalizes_tokens(folder)
        bert = load_transformer(folder.encoder)
        dense = load_dense(folder, folder.places("Dense")[0], TokenDense)
        tokenizer = Tokenizer.load(folder.encoder, limit)
        return cls(tokenizer, bert, dense, settings, normalize).eval()

    @classmethod
    def around(cls, encoder: SentenceEncoder, width: int = 128) -> "MultiVectorEncoder":
        """An encoder with a new projection to train; as in sentence-transformers nothing is added or skipped."""
        dense = Dense(encoder.hidden_size, width, bias=False, activation="identity").to(encoder.device)
        return cls(encoder.tokenizer, encoder.bert, dense, MultiVectorSettings(prompts=encoder.settings.prompts))

    @property
    def pooling_mode(self) -> str:
        return "no"

    def query_rows(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int], int]:
        """Token ids of each query with the added ones, its own number of tokens, and how many queries were cut."""
        expansion = self.expansion
        if expansion is None:
            return self._cut(texts, self.settings.query_length)
        limit = self.settings.query_length
        if expansion.strategy == "fixed":
            limit = expansion.length
        rows, own, truncated = self._cut(texts, limit)
        padded = [ids + [self.filler] * (expansion.length - len(ids)) for ids in rows]
        return padded, own, truncated

    def document_rows(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int], int]:
        """As ``query_rows``; nothing is added to documents."""
        return self._cut(texts, self.settings.document_length)

    def _cut(self, texts: Sequence[str], limit: int | None) -> tuple[list[list[int]], list[int], int]:
        tokenizer = copy.copy(self.tokenizer)
        tokenizer.limit = min(limit or tokenizer.limit, self.bert.config.positions)
        encoded = tokenizer.encode(texts)
        return encoded.ids, [len(ids) for ids in encoded.ids], encoded.truncated

    def forward(self, rows: list[list[int]], own: list[int], query: bool) -> tuple[Tensor, Tensor]:
        """Rows of ``query_rows`` or ``document_rows`` -> vectors (B, T, K), and which of them are compared, (B, T)."""
        ids, _ = pad_batch(rows, self.tokenizer.pad_id)  # (B, T)
        ids = ids.to(self.device)
        positions = torch.arange(ids.shape[1], device=self.device)  # (T,)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)  # (B,)
        real = positions < lengths[:, None]  # (B, T), with added tokens
        attended = real
        if query and self.expansion and not self.expansion.attend:
            # subtle: an added token that nobody attends to still has a vector: it attends to the query's own tokens
            attended = positions < torch.tensor(own, device=self.device)[:, None]
        check_ids(self.bert.config, ids, ids.shape[1])
        hidden = self.bert(ids, attended)  # (B, T, D)
        with torch.autocast(self.device.type, enabled=False):  # the projection, as pooling, is never in bfloat16
            vectors = self.projection(hidden.to(self.dtype))  # (B, T, K)
        if self.normalize:
            vectors = unit(vectors)
        return vectors, self.compared(ids, real, query)

    def compared(self, ids: Tensor, real: Tensor, query: bool) -> Tensor:
        """Which of the real tokens of ids (B, T) are compared: in documents usually all but punctuation."""
        task = "query" if query else "document"
        if task not in self.settings.skiplist_tasks:
            return real
        return real & ~torch.isin(ids, self.skipped_ids.to(ids.device))

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        query: bool | None = None,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | Progress | None = False,
        dtype: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> Matrices:
        """Texts -> ``Matrices``. ``query`` says whether they are queries or documents; by default the prompt does.

        With ``query`` and without a prompt they get the model's prompt for queries, or for documents, if it has one.
        Raises ``InputError`` as ``SentenceEncoder.encode`` does, and for its options that need a vector per text.
        """
        refused = [name for name, value in options.items() if value not in ANY_ENCODER.get(name, (None, False))]
        if refused:
            raise InputError(f"{', '.join(refused)}: a MultiVectorEncoder has a vector per token, not one")
        check_choice("query", query, (None, True, False))
        check_count("batch_size", batch_size)
        if query is None:
            asked = bool(prompt) and prompt == role_prompt(self.settings, "query")
            query = asked or prompt_name in PROMPT_NAMES["query"]
        elif prompt is None and prompt_name is None:
            prompt = role_prompt(self.settings, "query" if query else "document")
        if isinstance(texts, str):
            texts = [texts]
        texts, _ = with_prompt(check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name)
        if query:
            rows, own, self.truncated = self.query_rows(texts)
        else:
            rows, own, self.truncated = self.document_rows(texts)
        with self.computing(dtype), as_progress(show_progress_bar, len(texts)) as line:
            matrices = self._matrices(rows, own, query, TEXT_TOKENS * batch_size, line)
        if not np.isfinite(matrices.rows).all():
            raise InputError("a token's vector holds NaN or infinity: the model's weights are too large")
        return matrices

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Matrices:
        """``encode`` with ``query=True``."""
        return self.encode(texts, query=True, **options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Matrices:
        """``encode`` with ``query=False``."""
        return self.encode(texts, query=False, **options)

    def _matrices(
        self, rows: list[list[int]], own: list[int], query: bool, batch_tokens: int, line: Progress
    ) -> Matrices:
        lengths = [len(row) for row in rows]
        line.expect(len(rows), sum(lengths))
        matrices = [np.empty((0, self.width), np.float32)] * len(rows)
        for batch in budgeted_batches(lengths, batch_tokens):
            vectors, compared = self([rows[i] for i in batch], [own[i] for i in batch], query)
            for i, matrix, real in zip(batch, vectors, compared, strict=True):
                matrices[i] = matrix[real].cpu().numpy()
            line.update(sum(lengths[i] for i in batch))
        return Matrices.of(matrices, self.width)

    def similarity(self, a: Matrices, b: Matrices) -> np.ndarray:
        """``max_sim`` of every text of a, as a query, with every one of b: (N, M)."""
        for matrices in (a, b):
            if not isinstance(matrices, Matrices):
                raise InputError(f"similarity compares the Matrices of encode, not {one_line(matrices)}")
        if len(a) == 0:
            return np.empty((0, len(b)), np.float32)
        return np.stack([b.scores(a[i]) for i in range(len(a))])

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        save_bert(self.bert, folder)
        self.tokenizer.save(folder)
        kinds = ["Transformer", "Dense", "MultiVectorMask"]
        if self.normalize:
            kinds.append("Normalize")
        places = dict(zip(kinds, write_modules(folder, kinds), strict=True))
        dense, mask = folder / places["Dense"], folder / places["MultiVectorMask"]
        self.projection.write(dense, **TOKEN_MODULE)
        write_json(mask / CONFIG, {key: getattr(self.settings, key) for key in MASK_KEYS})
        if self.normalize:
            write_json(folder / places["Normalize"] / CONFIG, TOKEN_MODULE)
        write_settings(folder, self.settings, self.tokenizer.text_settings, model_type="MultiVectorEncoder")


def known_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[int]:
    """The ids of the words that are single tokens; the others cannot be skipped."""
    vocabulary = tokenizer.backend.get_vocab()
    return [vocabulary[word] for word in words if word in vocabulary]


def filler_id(tokenizer: Tokenizer, name: str | None) -> int:
    """The token that pads queries: the one called ``name``, or [MASK]."""
    names = ["[MASK]", "<mask>"] if name is None else [name]
    ids = known_ids(tokenizer, names)
    if not ids:
        raise InputError(f"{TEXT_SETTINGS}: query_expansion: the tokenizer has no token {' or '.join(names)}")
    return ids[0]
