"""Load, run and save a sentence encoder: any kind of model, at full speed.

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
    encoder.similarity(vectors, vectors)  # (2, 2) cosines

    texts ── with_prompt ── tokenize ──> Tokens ── encode_tokens ──> vectors (N, D) ──
    quantize ──> result

``TextEncoder`` is that path for every encoder; a subclass overrides steps of ``encode_tokens``:
``batches``, ``states``, ``vectors``. Imports ``search`` for the hooks by which a command searches
vectors of any kind.
"""

import math
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.packing import packed_states
from minisbert.checkpoints.card import base_model_of, write_card
from minisbert.checkpoints.layout import (
    LARGEST_SIZE,
    WEIGHTS,
    EncoderSettings,
    ModelFolder,
    find_model,
    write_modules,
    write_settings,
)
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import load_transformer, read_weights, save_bert
from minisbert.core import InputError, one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import Tokenizer, pad_batch
from minisbert.core.weights import fill
from minisbert.models.batching import (
    PackedBatch,
    Tokens,
    check_ids,
    check_inputs,
    check_tokens,
    chunks,
    packed_batches,
    reporting,
    same_text,
    tokenize,
    unpack,
    valid_texts,
)
from minisbert.models.pooling import Dense, Pooling, load_dense_layer, write_pooling
from minisbert.models.properties import (
    PROMPT_NAMES,
    EncoderProperties,
    as_array,
    check_choice,
    check_count,
    role_prompt,
    typed_encode,
    with_prompt,
)
from minisbert.search.dense import top_k
from minisbert.search.quantized import CALIBRATED, PRECISIONS, quantize
from minisbert.system.console import say
from minisbert.system.devices import choose_device, choose_dtype, move_to, too_little_memory
from minisbert.system.files import atomic_folder
from minisbert.system.progress import Bar, bar_of
from minisbert.system.torch_internals import fastest_linear

# texts of a batch, and the tokens that one of them stands for; on two cores no other size is faster
BATCH_SIZE, TEXT_TOKENS = 32, 64


class NotFinite(InputError):
    """A model's output holds NaN or infinity."""


class TextEncoder(EncoderProperties, nn.Module):
    """``load``, ``encode`` and its relatives. A subclass defines ``from_folder``, ``computing`` and
    ``vectors``.
    """

    folder_class: ClassVar[str]  # class whose folders ``load`` accepts, a user's subclass too
    normalize: bool  # scale each vector to length 1
    reads_empty_texts = False  # texts without a single token
    stays_on_cpu = False  # whatever device is asked for
    bert: Any
    dtype: torch.dtype
    device: torch.device
    pooling_mode: str
    hidden_size: int  # columns of a token's hidden state
    long_tokens = math.inf  # of a batch of long rows, if a backend wants fewer than of others
    truncated = 0  # texts that the last ``encode`` had to cut
    base_model: str | None = None  # the Hub's name of what was loaded, for the model card
    _reminded = False  # that it has prompts
    # How a command searches and stores what ``encode`` returns: the options of ``encode`` for
    # searching, ``top_k``, and the tensors of a file. Sparse vectors and vectors per token override
    # all five.
    vectors_are: ClassVar[Literal["dense", "sparse", "per token"]] = "dense"
    search_options: ClassVar[dict[str, Any]] = {}

    def top_k(
        self, queries: Any, corpus: Any, k: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search by the model's own similarity: vectors of queries (Q, D), corpus (N, D) -> scores
        and rows, (Q, k).
        """
        return top_k(queries, corpus, k, progress, self.similarity_fn_name)

    def write_card(self, folder: Path, training: str = "", former: Path | None = None) -> None:
        """Write the model card into a saved folder, unless the user wrote one there, or in the
        ``former`` folder.
        """
        vector = {
            "dense": "a vector",
            "sparse": "a sparse vector",
            "per token": "a vector per token",
        }[self.vectors_are]
        limit = f" of at most {self.max_seq_length:,} tokens" * (self.max_seq_length < LARGEST_SIZE)
        scaled = ", scaled to length 1" * self.normalize
        about = f"It turns a text{limit} into {vector} of {self.width:,} numbers ({self.pooling_mode} pooling{scaled})."
        prompts = [f"`{text}` ({name})" for name, text in self.settings.prompts.items() if text]
        if prompts:
            about += f" It was made with prompts before the texts: {', '.join(prompts)}."
        kind = self.folder_class
        if kind in ("SentenceEncoder", "StaticEncoder"):
            kind = "SentenceTransformer"
        in_both = "attention" not in self.pooling_mode  # which sentence-transformers lacks
        write_card(folder, kind, about, self.base_model, training, former, in_both)

    @staticmethod
    def to_tensors(vectors: Any) -> dict[str, Tensor]:
        return {"vectors": torch.from_numpy(vectors)}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> Any:
        return tensors["vectors"].numpy()

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        pooling: str | None = None,
        device: str | torch.device = "auto",
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
    ) -> Self:
        """Open a model in eval mode: a name (downloaded if it is missing) or a folder in
        sentence-transformers' layout.

        Arguments that are not None override the folder's settings: ``pooling``; ``max_seq_length``
        in tokens; ``truncate_dim`` columns; ``prompts``, added to the folder's;
        ``default_prompt_name``; ``similarity_fn_name``. A plain BERT states no pooling and gets the
        mean. ``device`` is "auto" (CUDA, else Apple's GPU, else the CPU), "cpu", "cuda" or "mps".
        ``minisbert.load`` opens models of any class, and compiled ones. Raises ``InputError`` for
        anything missing, damaged or not supported.
        """
        choose_device(device)  # an error before the model is read
        folder = ModelFolder(find_model(model), cls.folder_class)
        encoder = cls.from_folder(folder, pooling, max_seq_length)
        encoder.base_model = base_model_of(folder.path)
        encoder = encoder.configured(truncate_dim, prompts, default_prompt_name, similarity_fn_name)
        return encoder if cls.stays_on_cpu else move_to(encoder, encoder.bert, device)

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        """Open the encoder in a folder, on the CPU."""
        raise NotImplementedError

    def configured(
        self,
        truncate_dim: int | None,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
    ) -> Self:
        """Override the folder's settings with the arguments that are not None."""
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim
        if prompts is not None:
            self.prompts = self.prompts | dict(prompts)
        if default_prompt_name is not None:
            self.default_prompt_name = default_prompt_name
        if similarity_fn_name is not None:
            self.similarity_fn_name = similarity_fn_name
        return self

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """Return the context in which batches are computed. Raises ``InputError`` for an
        unsupported dtype.
        """
        raise NotImplementedError

    @torch.no_grad()
    def encode_tokens(self, tokens: Tokens, batch_size: int | None = None) -> np.ndarray:
        """The tokens of N texts -> vectors (N, D)."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        vectors = torch.empty(len(tokens.ids), self.width, dtype=dtype).numpy()
        for batch in self.batches(tokens, batch_size):
            states = self.states(batch)  # hidden (B, T, D), mask (B, T)
            # (B, D), in the caller's order
            vectors[batch.texts] = self.vectors(*states).to("cpu", dtype).numpy()
        return vectors

    def states(self, batch: Any) -> tuple:
        """What ``vectors`` takes: the hidden states (B, T, D) of a batch, and its mask (B, T)."""
        raise NotImplementedError

    def vectors(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> the vectors of the texts (B, D), scaled to length 1 if the
        model says so.
        """
        pooled = self.pool(hidden, mask)
        return normalize(pooled) if self.normalize else pooled

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> one vector per text (B, W), not scaled yet."""
        raise NotImplementedError

    def batches(self, tokens: Tokens, batch_size: int | None = None) -> Iterator[Any]:
        """Split a call's texts into batches of as many tokens as ``batch_size`` texts of 64 tokens
        have.
        """
        batches = packed_batches(tokens, TEXT_TOKENS * (batch_size or BATCH_SIZE), self.long_tokens)
        return batches if tokens.progress is None else reporting(batches, tokens.progress)

    def token_states(self, batch: Any) -> list[Tensor]:
        """Compute the hidden states (T, D) of each text of a batch."""
        raise InputError(
            "a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled"
        )

    @typed_encode
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | Bar | None = False,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Texts -> (N, D) array, row i for text i; one text -> (D,). float32 (float64 after
        ``double()``).

        Texts longer than ``max_seq_length`` are cut and counted in ``self.truncated``. An empty
        text has a vector, that of [CLS] [SEP]. Raises ``InputError`` for anything but valid
        strings, for options out of range, and for NaN.

        prompt                before each text; ``prompt_name`` for one of ``prompts``; otherwise the model's default
        batch_size            a batch has as many tokens as this many texts of 64 tokens (None: 32; on a GPU, what fits)
        show_progress_bar     True for a live line with rate and time left
        output_value          "sentence_embedding", or "token_embeddings": each text's hidden states (T, D), tensors
        precision             of what is returned: "float32", or codes in "int8", "uint8", "binary" or "ubinary"
        convert_to_tensor     True for a tensor on the CPU; ``convert_to_numpy=False`` for a list of them
        normalize_embeddings  True scales to length 1 at the end, after ``truncate_dim``; a model's own scaling is
                              before it, as in sentence-transformers
        truncate_dim          keep the first n columns; None for the model's default, usually all
        dtype                 of the arithmetic: "float32", "bfloat16" or "auto"; None for the model's, usually float32
        """
        prompts = self.settings.prompts
        if (
            prompt is None
            and prompt_name is None
            and self.settings.default_prompt_name is None
            and not self._reminded
        ):
            named = [name for names in PROMPT_NAMES.values() for name in names if prompts.get(name)]
            if (
                named[:1] == ["query"] and len(named) > 1
            ):  # it has one for queries and one for documents
                self._reminded = True
                say(
                    f"encoding without a prompt: call encode_query, or give prompt_name, one of "
                    f"{', '.join(named)}"
                )
        single = isinstance(texts, str)
        texts = check_texts(cast(Sequence[str], [texts] if single else texts))
        skip = 0
        if (
            prompt is not None
            or prompt_name is not None
            or self.settings.default_prompt_name is not None
        ):
            texts, skip = with_prompt(texts, self.settings, self.tokenizer, prompt, prompt_name)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
        check_choice("precision", precision, (None, *PRECISIONS))
        check_choice("normalize_embeddings", normalize_embeddings, (None, True, False))
        check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))
        is_float = precision in (None, "float32")
        tokens = tokenize(self.tokenizer, texts)
        tokens.prompt = skip
        if not self.reads_empty_texts and not all(map(len, tokens.ids)):
            check_tokens(tokens, texts)
        self.truncated = sum(tokens.truncated)
        with bar_of(show_progress_bar, len(texts)) as tokens.progress:
            if output_value == "token_embeddings":
                if normalize_embeddings or truncate_dim is not None or not is_float:
                    raise InputError(
                        "normalize_embeddings, truncate_dim, precision: for vectors of texts only"
                    )
                states = self._states_of(tokens, batch_size, dtype)
                return states[0] if single else states
            vectors = self.vectors_of(
                tokens, batch_size, truncate_dim, bool(normalize_embeddings), dtype
            )
        if not is_float:
            vectors = codes_of(vectors, cast(str, precision))
        if single:
            vectors = vectors[0]
        if convert_to_tensor or (single and not convert_to_numpy):
            return vectors
        if not convert_to_numpy:
            return list(vectors)
        return as_array(vectors) if vectors.dtype == torch.bfloat16 else vectors.numpy()

    def vectors_of(
        self,
        tokens: Tokens,
        batch_size: int | None = None,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
    ) -> Tensor:
        """Encode texts that are tokenized -> (N, D) on the CPU. The server, which counts tokens,
        calls it.
        """
        columns = self.settings.truncate_dim or self.width
        if truncate_dim is not None:
            self.check_columns(truncate_dim)
            columns = int(truncate_dim)
        columns = min(columns, self.width)
        # texts of the same tokens are computed once: repeated rows are common, and so are texts cut
        # to the same start
        keys = [ids.tobytes() for ids in cast(list[array], tokens.ids)]
        distinct = dict(zip(keys, tokens.ids, strict=True))
        row_of = {key: row for row, key in enumerate(distinct)}
        if tokens.prompt and min(map(len, tokens.ids), default=math.inf) <= tokens.prompt:
            raise InputError(
                "a text has no token of its own after its prompt, and include_prompt is false"
            )
        computed = replace(tokens, ids=list(distinct.values()))
        if tokens.progress is not None:
            tokens.progress.update(len(keys) - len(distinct))
        try:
            with self.computing(dtype) as computed.dtype:
                # None, for which the book has no case, is the default of ``batches`` below
                found = self.encode_tokens(computed, batch_size)  # (n, width)
        except torch.OutOfMemoryError as error:
            batch_tokens = TEXT_TOKENS * (batch_size or BATCH_SIZE)
            raise too_little_memory(
                self.device, batch_tokens, self.hidden_size, TEXT_TOKENS
            ) from error
        vectors = torch.from_numpy(
            found
        )  # outside of inference mode: gradients may be computed with it
        if not np.isfinite(found).all():
            raise not_finite(self.tokenizer, computed, vectors)
        if columns < self.width:
            vectors = vectors[:, :columns]
        # a model that scales its vectors has done so already, unless columns were cut
        if normalize_embeddings and not (self.normalize and columns == self.width):
            vectors = normalize(vectors)
        if len(distinct) < len(keys):
            vectors = vectors[[row_of[key] for key in keys]]
        return vectors.to(self.dtype)

    def _states_of(self, tokens: Tokens, batch_size: int | None, dtype: str | None) -> list[Tensor]:
        """Return the hidden states (T, D) of each text, as ``vectors_of`` returns vectors."""
        states: list[Tensor] = [torch.empty(0)] * len(tokens.ids)
        with self.computing(dtype) as tokens.dtype:
            for batch in self.batches(tokens, batch_size):
                for text, matrix in zip(batch.texts, self.token_states(batch), strict=True):
                    states[text] = matrix.cpu()
        if not all(matrix.isfinite().all() for matrix in states):
            raise not_finite(self.tokenizer, tokens, states)
        return [
            matrix.clone() for matrix in states
        ]  # outside of inference mode: gradients may be computed

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        show_progress_bar: bool = False,
        total: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Encode more texts than fit in memory: yield the results of a few thousand texts at a
        time, in order.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left;
        ``options`` are those of ``encode``. ``self.truncated`` keeps counting. Raises
        ``InputError`` as ``encode`` does, at the first bad text.
        """
        truncated = self.truncated = 0
        with bar_of(show_progress_bar, total) as bar:
            for chunk in chunks(valid_texts(texts)):
                result = self.encode(chunk, show_progress_bar=bar, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    @typed_encode
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries, called "query", and without its default
        prompt.
        """
        return self._encode_role("query", texts, options)

    @typed_encode
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents, called "document", and without its
        default prompt.
        """
        return self._encode_role("document", texts, options)

    def _encode_role(self, role: str, texts: str | Sequence[str], options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt"] = role_prompt(self.settings, role)
        return self.encode(texts, **options)


def not_finite(tokenizer: Tokenizer, tokens: Tokens, results: Tensor | list[Tensor]) -> NotFinite:
    """Make the error with the first text whose numbers, a row or a matrix of ``results``, are not
    finite.
    """
    damaged = [number for number, result in enumerate(results) if not result.isfinite().all()]
    # The first one may only have shared a row with the text at fault: the cause is the weights, not
    # the text.
    name, others = one_line(tokenizer.backend.decode(list(tokens.ids[damaged[0]]))), ""
    if len(damaged) > 1:
        others = f", like those of {len(damaged) - 1:,} more texts"
    return NotFinite(
        f"the vector of {name} holds NaN or infinity{others}: the model's weights are too large"
    )


def codes_of(vectors: Tensor, precision: str) -> Tensor:
    """Quantise vectors (N, D) to (N, D) or (N, D / 8) codes of a ``precision``; none if there are
    none.
    """
    if precision in ("int8", "uint8") and len(vectors) == 1:
        raise InputError(
            f"precision {precision} divides the range of each column, and one text has none"
        )
    rows = as_array(vectors)
    if not len(rows):  # an empty input gives an empty array of the right dtype and width
        rows = np.zeros((CALIBRATED, vectors.shape[1]), np.float32)
    return torch.from_numpy(quantize(rows, precision)[: len(vectors)])


class SentenceEncoder(TextEncoder):
    """``load`` a model, ``encode`` texts, compare them by ``similarity``, ``save`` what was
    trained.

    ``forward`` is what training calls: ids (B, T) and mask (B, T) -> vectors (B, D).
    """

    folder_class = "SentenceEncoder"

    def __init__(
        self,
        tokenizer: Tokenizer,
        bert: Bert | None = None,
        pooling: Pooling | None = None,
        normalize: bool = False,
        dense: Sequence[Dense] = (),
        settings: EncoderSettings | None = None,
    ):
        if (
            bert is None or pooling is None
        ):  # as sentence-transformers' class is called, with a name alone
            raise TypeError(f"use {type(self).__name__}.load({str(tokenizer)!r})")
        super().__init__()
        self.tokenizer = tokenizer
        self.bert = bert
        self.pooling = pooling
        self.normalize = normalize  # scale each vector to length 1
        self.width = bert.config.hidden_size * len(pooling.names)  # columns of a vector
        self.dense, self.hidden_size = (
            nn.Sequential(*dense),
            bert.config.hidden_size,
        )  # no dense layer in most models
        for layer in dense:
            if layer.linear.in_features != self.width:
                received = f"gets {self.width} (other pooling?)"
                raise InputError(f"a dense layer for {layer.linear.in_features} columns {received}")
            self.width = layer.linear.out_features
        self.settings = settings or EncoderSettings()
        if "pooler" in pooling.names and (
            len(pooling.names) > 1 or not dense or not self.settings.include_prompt
        ):
            raise InputError(
                f"pooling {pooling.mode}: 'pooler' needs its dense layer, no other beside it, and "
                f"[CLS]"
            )

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        bert = load_transformer(folder.encoder)
        module = Pooling(folder.choose_pooling(pooling), bert.config.hidden_size)
        # not if the caller chose attention for a folder that has another pooling: it starts
        # untrained, as the mean
        if module.score is not None and "attention" in (folder.pooling or "").split("+"):
            path = folder.path / folder.places["Pooling"][0] / WEIGHTS
            fill(module, read_weights(path), path)
        dense = [load_dense_layer(folder, place) for place in folder.places["Dense"]]
        if module.mode == "pooler":
            if bert.pooler is None:
                raise InputError(
                    "this checkpoint has no pooler weights: choose another pooling than 'pooler'"
                )
            dense.insert(0, Dense(bert.pooler))
            bert.pooler = None  # it is trained and saved where it is read
        tokenizer = read_tokenizer(folder.encoder, limit)
        return cls(
            tokenizer, bert, module, folder.normalize, dense, EncoderSettings.read(folder)
        ).eval()

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Texts -> ``input_ids``, ``attention_mask`` and, if the encoder has any,
        ``token_type_ids``, (N, T) each.

        As sentence-transformers names them; ``encoder(features["input_ids"],
        features["attention_mask"])``. No texts have no features.
        """
        if not len(check_texts(texts)):
            return {}
        encoded = self.tokenizer.encode(texts)
        ids, mask = pad_batch(encoded.ids, self.tokenizer.pad_id)
        if mask is None:
            mask = torch.ones_like(ids)
        features = {"input_ids": ids, "attention_mask": mask.long()}
        if self.bert.config.type_vocab_size > 1:
            features["token_type_ids"], _ = pad_batch(encoded.token_types, 0)
        return features

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D). ``dtype`` as in
        ``hidden``.
        """
        vectors = self.unscaled(ids, mask, dtype)
        return normalize(vectors) if self.normalize else vectors

    def unscaled(
        self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the vectors (B, D) before they are scaled to length 1, as the heads read them."""
        return self.pool(self.hidden(ids, mask, None, dtype), mask)

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the hidden states (B, T, D) of ``Bert.forward``, its matrix products computed in
        ``dtype``.

        In bfloat16 only the encoder computes in it: pooling, heads and losses keep their precision,
        since sums over many numbers belong in float32 (Micikevicius et al. 2018, section 3).
        """
        check_inputs(self.bert.config, ids, mask, token_types)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.bert(ids, mask, token_types).to(self.dtype)

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> one vector per text (B, W), not scaled yet, after the dense
        layers if any.
        """
        return self.dense(self.pooling(hidden, mask))

    # what a compiled encoder stores is read from the parts here, which may be moved or exchanged
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.bert.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.bert.embeddings.word.weight.dtype

    @property
    def most_tokens(self) -> int:  # type: ignore[override]
        return self.bert.config.positions

    @property
    def pooling_mode(self) -> str:  # type: ignore[override]
        return self.pooling.mode

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        """Enter eval mode without gradients; return the dtype of matrix products."""
        products = torch.float32
        if dtype is not None:
            products, _ = choose_dtype(dtype, self.device)
        # pooling, like the losses, is never in bfloat16, not even if the caller has switched
        # autocast on
        with evaluating(self), fastest_linear(), torch.autocast(self.device.type, enabled=False):
            yield products

    def states(  # type: ignore[override]  # each kind of encoder makes its own batches
        self, batch: PackedBatch
    ) -> tuple[Tensor, Tensor]:
        """Run the encoder with the smallest mask that the batch allows, and leave the prompts'
        tokens out.
        """
        check_ids(self.bert.config, batch.ids, batch.places.shape[1])
        ids, positions, text_index, places = (
            x.to(self.device) for x in (batch.ids, batch.positions, batch.text_index, batch.places)
        )
        mask = None
        if len(places) > len(ids):
            mask = same_text(
                text_index
            )  # texts share rows: each token attends to those of its own text, (R, 1, T, T)
        elif batch.tokens < ids.numel():
            mask = text_index >= 0  # a row for each text, and pads: (R, T)
        else:
            positions = None  # without a mask and positions, attention takes its fastest kernel
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=batch.dtype == torch.bfloat16
        ):
            states = packed_states(self.bert, ids, mask, positions)  # (R, T, D)
            hidden, real = unpack(states.to(self.dtype), places)
        return hidden[:, batch.prompt :], real[:, batch.prompt :]

    def token_states(self, batch: PackedBatch) -> list[Tensor]:
        hidden, mask = self.states(replace(batch, prompt=0))
        return [states[real] for states, real in zip(hidden, mask, strict=True)]

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too, complete or not at all.

        A model there is replaced; ``InputError`` if that would lose another file. A ``README.md``
        there that you wrote or edited is kept; otherwise the model's card is written.
        """
        with atomic_folder(folder) as partial:
            self.write(partial)
            self.write_card(partial, former=Path(folder))

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_bert(self.bert, folder)
        write_tokenizer(self.tokenizer, folder)
        modules = ["Transformer", "Pooling"] + ["Dense"] * len(self.dense)
        if self.normalize:
            modules.append("Normalize")
        places = write_modules(folder, modules)
        write_pooling(
            self.pooling, folder / places[1], self.hidden_size, self.settings.include_prompt
        )
        for dense, place in zip(self.dense, places[2:], strict=False):
            cast(Dense, dense).write(folder / place)
        write_settings(folder, self.settings, text_settings(self.tokenizer))


_lock = threading.Lock()
_modes: WeakKeyDictionary[nn.Module, list[bool]] = (
    WeakKeyDictionary()
)  # a stack for each module, one entry per call


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Switch to eval mode without gradients; then restore the mode of each module (a caller may
    have frozen some).

    Several threads may evaluate one model: the last of them restores the modes.
    """
    modules: list[nn.Module] = []
    for model in models:
        modules += model.modules()
    # A module remembers its modes in a stack. The thread that entered first has pushed the caller's
    # mode, any other one pushes False; whoever leaves last pops the caller's.
    with _lock:
        for module in modules:
            _modes.setdefault(module, []).append(module.training)
            vars(module)["training"] = False  # nn.Module's own assignment takes ten times as long
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                vars(module)["training"] = _modes[module].pop()
