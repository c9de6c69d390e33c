"""What every encoder does with texts: ``SentenceEncoder``, a compiled package, a table of static vectors."""

import copy
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.encoder_settings import EncoderSettings
from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.models.batching import ID_BYTES, Batch, chunks, packed_batches, tokenize
from minisbert.models.guards import PerThread, check_choice, check_count
from minisbert.models.prompts import PROMPT_NAMES, role_prompt, role_prompt_name, with_prompt
from minisbert.models.similarity import as_array, similarity, similarity_pairwise
from minisbert.models.tokenizer import Tokenizer, valid_texts
from minisbert.search.dense import top_k
from minisbert.search.quantized import PRECISIONS, quantize
from minisbert.system.console import say
from minisbert.system.devices import choose_device
from minisbert.system.progress import Progress

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
PROPERTIES = ("max_seq_length", "truncate_dim", "prompts", "default_prompt_name", "similarity_fn_name")


class EncoderProperties:
    """Length limit, columns, prompts and similarity of an encoder; each may be set at any time."""

    tokenizer: Tokenizer
    settings: EncoderSettings
    width: int  # columns of a vector, before ``truncate_dim``
    most_tokens: int  # that the encoder can read

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in PROPERTIES and not name.startswith("_") and not hasattr(self, name):
            similar = get_close_matches(name, PROPERTIES, 1, cutoff=0.75)
            if similar:  # such an attribute would change nothing, silently
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: did you mean {similar[0]!r}?")
        super().__setattr__(name, value)

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of a text, special tokens included; longer texts are cut."""
        return self.tokenizer.limit

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        check_count("max_seq_length", tokens)
        if tokens > self.most_tokens:
            raise InputError(f"max_seq_length {tokens} is above {self.most_tokens}, the encoder's positions")
        tokenizer = copy.copy(self.tokenizer)  # another encoder may have the same one
        tokenizer.limit = int(tokens)
        self.tokenizer = tokenizer

    @property
    def truncate_dim(self) -> int | None:
        """The number of columns that ``encode`` keeps; None for all."""
        return self.settings.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, columns: int | None) -> None:
        if columns is not None:
            self.check_columns(columns)
        self.settings = replace(self.settings, truncate_dim=columns)

    def check_columns(self, columns: int) -> None:
        """Raise ``InputError`` unless vectors can be cut to so many columns."""
        check_count("truncate_dim", columns)
        if columns > self.width:
            raise InputError(f"truncate_dim {columns} is above {self.width}, the number of columns")

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return self.settings.prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        strings = isinstance(prompts, Mapping) and all(
            isinstance(text, str) for pair in prompts.items() for text in pair
        )
        if not strings:
            raise InputError(f"prompts must be a dictionary of names and texts, not {one_line(prompts)}")
        default = self.settings.default_prompt_name
        if default not in prompts:
            default = None
        self.settings = replace(self.settings, prompts=dict(prompts), default_prompt_name=default)

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt of ``encode`` if none is given; None for no prompt."""
        return self.settings.default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        if name is not None and name not in self.settings.prompts:
            names = ", ".join(map(one_line, self.settings.prompts)) or "none"
            raise InputError(f"default_prompt_name {one_line(name)} is not one of the prompts; there are {names}")
        self.settings = replace(self.settings, default_prompt_name=name)

    @property
    def similarity_fn_name(self) -> str:
        """How ``similarity`` compares: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.settings.similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        check_choice("similarity_fn_name", name, SIMILARITIES)
        self.settings = replace(self.settings, similarity_fn_name=name)

    def get_embedding_dimension(self) -> int:
        """The columns of a vector as ``encode`` returns it."""
        return min(self.truncate_dim or self.width, self.width)

    get_sentence_embedding_dimension = get_embedding_dimension

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

        By ``similarity_fn_name`` the cosine, the dot product, or minus a distance. A tensor if one of the two is a
        tensor, else an array.
        """
        return similarity(a, b, self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` compares them."""
        return similarity_pairwise(a, b, self.similarity_fn_name)

    def configured(
        self,
        truncate_dim: int | None,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
    ) -> Self:
        """This encoder with the settings that are not None in the place of the folder's."""
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim
        if prompts is not None:
            self.prompts = self.prompts | dict(prompts)
        if default_prompt_name is not None:
            self.default_prompt_name = default_prompt_name
        if similarity_fn_name is not None:
            self.similarity_fn_name = similarity_fn_name
        return self


class BatchedEncoder(EncoderProperties):
    """Tokens to vectors or states; a subclass computes those of one batch (``vectors``, ``states``)."""

    normalize: bool  # scale each vector to length 1
    scales_itself = False  # whether ``vectors`` does so already
    dtype: torch.dtype

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """The context in which ``encode`` computes. Raises ``InputError`` for a dtype that is not supported."""
        raise NotImplementedError

    def vectors(self, batch: Batch, skip: int) -> Tensor:
        """The vectors (N, ``width``) of a batch without its first ``skip`` tokens, scaled if it ``scales_itself``."""
        raise NotImplementedError

    def states(self, batch: Batch) -> list[Tensor]:
        """The hidden states (T, D) of each text of a batch."""
        raise InputError("a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled")

    def _gather(
        self,
        batches: Iterator[tuple[Batch, Tensor]],
        keys: list[bytes],
        columns: int,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
    ) -> Tensor:
        """The vectors (N, ``columns``) of N texts, given by their tokens, from batches of the distinct ones."""
        rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        # created here, not in inference mode: a caller may compute gradients with it
        vectors = torch.empty(len(rows), columns, dtype=self.dtype)
        with self.computing(dtype):
            for batch, result in batches:
                vectors[batch.texts] = self._scaled(result, normalize_embeddings, columns).cpu()
        if len(rows) < len(keys):
            vectors = vectors[[rows[key] for key in keys]]
        return vectors

    def _gather_states(
        self, batches: Iterator[tuple[Batch, list[Tensor]]], keys: list[bytes], dtype: str | None
    ) -> list[Tensor]:
        """The hidden states (T, D) of each of N texts."""
        distinct = list(dict.fromkeys(keys))
        states: dict[bytes, Tensor] = {}
        with self.computing(dtype):
            for batch, result in batches:
                for text, matrix in zip(batch.texts, result, strict=True):
                    states[distinct[text]] = matrix.cpu()
        return [states[key].clone() for key in keys]  # copies, outside of inference mode

    def _finite(
        self, distinct: dict[bytes, str], batch_tokens: int, skip: int, by_token: bool, line: Progress
    ) -> Iterator[tuple[Batch, Any]]:
        """``_computed`` of the distinct tokens; ``InputError`` names a text whose numbers are not finite."""
        keys = list(distinct)
        for batch, result in self._computed(keys, batch_tokens, skip, by_token):
            if not all_finite(result):
                name = one_line(distinct[self._culprit([keys[text] for text in batch.texts], by_token)])
                raise InputError(f"the vector of {name} holds NaN or infinity: the model's weights are too large")
            yield batch, result
            line.update(batch.tokens)

    def _culprit(self, keys: list[bytes], by_token: bool) -> bytes:
        """The first of some texts whose numbers are not finite. NaN reaches all texts that share a row with it."""
        for key in keys:
            for _, result in self._computed([key], 1, 0, by_token):
                if not all_finite(result):
                    return key
        return keys[0]

    def _computed(self, keys: list[bytes], batch_tokens: int, skip: int, by_token: bool) -> Iterator[tuple[Batch, Any]]:
        """Each batch of texts, given by their tokens, with its vectors (N, ``width``) or the states of its texts."""
        for batch in packed_batches(keys, batch_tokens):
            if skip and not (batch.places[:, skip:] >= 0).any(dim=1).all():
                raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
            if by_token:
                yield batch, self.states(batch)
            else:
                yield batch, self.vectors(batch, skip)

    def _columns(self, truncate_dim: int | None) -> int:
        """How many columns ``encode`` returns."""
        if truncate_dim is None:
            return self.get_embedding_dimension()
        self.check_columns(truncate_dim)
        return int(truncate_dim)

    def _scaled(self, vectors: Tensor, normalize_embeddings: bool, columns: int) -> Tensor:
        """Vectors (N, ``width``) cut and scaled as ``encode`` returns them, (N, ``columns``)."""
        if self.normalize and not self.scales_itself and not normalize_embeddings:  # twice could change a last bit
            vectors = unit(vectors)
        vectors = vectors[:, :columns]
        if normalize_embeddings:
            vectors = unit(vectors)
        return vectors


def all_finite(result: Tensor | list[Tensor]) -> bool:
    tensor = torch.cat(result) if isinstance(result, list) else result
    # first the sum, one operation instead of several: NaN and infinity reach it, but finite numbers may overflow in it
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


BATCH_SIZE, TEXT_TOKENS = 32, 64  # texts of a batch, and the tokens that one of them stands for
BATCH_TOKENS = BATCH_SIZE * TEXT_TOKENS  # on two cores no other size is faster, and larger ones need more memory


class EncodeOptions(TypedDict, total=False):
    """The options of ``encode`` that do not change the type of what it returns."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int
    show_progress_bar: bool | None
    precision: str
    normalize_embeddings: bool
    truncate_dim: int | None
    dtype: str | None


def as_progress(progress: bool | Progress | None, total: int) -> AbstractContextManager[Progress]:
    """The progress line of an ``encode``: a new one, or the caller's, which stays open."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    return Progress(total, bool(progress))


def check_options(
    batch_size: int, output_value: str, precision: str, normalize_embeddings: bool | None, dtype: str | None
) -> None:
    """Raise ``InputError`` for an option of ``encode`` that is none of its choices."""
    check_count("batch_size", batch_size)
    check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
    check_choice("precision", precision, PRECISIONS)
    check_choice("normalize_embeddings", normalize_embeddings, (None, True, False))
    check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))


class TextEncoder(BatchedEncoder):
    """``load``, ``encode`` and its relatives, the same for every encoder."""

    folder_class: ClassVar[str] = ""  # whose folders ``load`` opens, if they are another class's
    pooling_mode: str
    hidden_size: int  # columns of a token's hidden state
    _reminded = False
    truncated = PerThread()  # texts that the last ``encode`` had to cut
    # Hooks for encoders whose output is not a dense array: what it is, options of ``encode`` for vectors to search, the
    # search (queries, corpus, k, progress) -> scores and rows, (Q, k) each, and the tensors in a file
    vectors_are: ClassVar[Literal["dense", "sparse", "per token"]] = "dense"
    search_options: ClassVar[dict[str, Any]] = {}
    top_k = staticmethod(top_k)
    to_tensors = staticmethod(lambda vectors: {"vectors": torch.from_numpy(vectors)})
    from_tensors = staticmethod(lambda tensors: tensors["vectors"].numpy())

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
        """A model in eval mode: a name (downloaded if it is missing) or a folder in sentence-transformers' layout.

        What is not None overrides the folder's settings: ``pooling``; ``max_seq_length`` in tokens; ``truncate_dim``
        columns; ``prompts``, added to the folder's; ``default_prompt_name``; ``similarity_fn_name``. A plain BERT
        states no pooling and gets the mean. ``device`` is "auto" (CUDA if there is one, else the CPU), "cpu", "cuda"
        or "mps". ``minisbert.load`` opens models of any class, and compiled ones. Raises ``InputError`` for anything
        missing, damaged or not supported.
        """
        place = choose_device(device)
        folder = ModelFolder(find_model(model)).opened_by(cls.folder_class or cls.__name__)
        encoder = cls.from_folder(folder, pooling, max_seq_length)
        return encoder.configured(truncate_dim, prompts, default_prompt_name, similarity_fn_name).on(place)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        """The encoder in a folder, on the CPU."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Self:
        """This encoder on a device."""
        return self.to(device)

    @overload
    def encode(
        self, texts: str | Sequence[str], *, convert_to_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Tensor: ...
    @overload
    def encode(
        self, texts: Sequence[str], *, output_value: Literal["token_embeddings"], **options: Unpack[EncodeOptions]
    ) -> list[Tensor]: ...
    @overload
    def encode(
        self, texts: Sequence[str], *, convert_to_numpy: Literal[False], **options: Unpack[EncodeOptions]
    ) -> list[Tensor]: ...
    @overload
    def encode(self, texts: str | Sequence[str], **options: Unpack[EncodeOptions]) -> np.ndarray: ...
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | Progress | None = False,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        dtype: str | None = None,
    ) -> np.ndarray | Tensor | list[Tensor]:
        """Texts -> (N, D) array, row i for text i; one text -> (D,). float32 (float64 after ``double()``).

        Longer texts than ``max_seq_length`` are cut and counted in ``self.truncated``. An empty text has a vector, that
        of [CLS] [SEP]. Raises ``InputError`` for anything but valid strings, for options out of range, and for NaN.

        prompt                before each text; ``prompt_name`` for one of ``prompts``; otherwise the model's default
        batch_size            a batch has as many tokens as this many texts of 64 tokens; short texts share rows
        show_progress_bar     True for a live line with rate and time left
        output_value          "sentence_embedding", or "token_embeddings": each text's hidden states (T, D), tensors
        precision             of what is returned: "float32", or codes in "int8", "uint8", "binary" or "ubinary"
        convert_to_tensor     True for a tensor on the CPU; ``convert_to_numpy=False`` for a list of them
        normalize_embeddings  True scales to length 1 at the end, after ``truncate_dim``; a model's own scaling is
                              before it, as in sentence-transformers
        truncate_dim          keep the first n columns; None for the model's default, usually all
        dtype                 of the arithmetic: "float32", "bfloat16" or "auto"; None for the model's, usually float32
        """
        if prompt is None and prompt_name is None:
            self._remind_of_prompts()
        single = isinstance(texts, str)
        texts = check_texts([texts] if single else texts)
        texts, skip = with_prompt(texts, self.settings, self.tokenizer, prompt, prompt_name)
        check_options(batch_size, output_value, precision, normalize_embeddings, dtype)
        by_token = output_value == "token_embeddings"
        if by_token and (normalize_embeddings or truncate_dim is not None or precision != "float32"):
            raise InputError("normalize_embeddings, truncate_dim, precision: of the vectors of texts, not of tokens")
        columns = self._columns(truncate_dim)
        keys, self.truncated = tokenize(self.tokenizer, texts)
        distinct = dict(zip(keys, texts, strict=True))  # a text for each sequence of tokens
        with as_progress(show_progress_bar, len(texts)) as line:
            line.expect(len(texts), sum(map(len, distinct)) // ID_BYTES)
            batches = self._finite(distinct, TEXT_TOKENS * batch_size, skip, by_token, line)
            if by_token:
                result = self._gather_states(batches, keys, dtype)
                return result[0] if single else result
            vectors = self._gather(batches, keys, columns, normalize_embeddings, dtype)
        if precision != "float32":
            vectors = torch.from_numpy(quantize(as_array(vectors), precision))
        if single:
            vectors = vectors[0]
        if convert_to_tensor:
            return vectors
        return as_array(vectors) if convert_to_numpy or single else list(vectors)

    def _remind_of_prompts(self) -> None:
        """Say once that the model has prompts for queries and for documents, if it takes neither by default."""
        both = all(role_prompt(self.settings, role) for role in PROMPT_NAMES)
        if both and self.default_prompt_name is None and not self._reminded:
            self._reminded = True
            say("encoding without a prompt, though the model has some: encode_query and encode_document use them")

    def encode_tokens(self, rows: Sequence[Sequence[int]], skip: int = 0) -> np.ndarray:
        """Texts that are token ids already, special tokens included -> (N, D), scaled as ``encode`` does.

        ``skip`` tokens at the start of each row are left out of the pooling.
        """
        keys = [array("i", ids).tobytes() for ids in rows]
        names = {key: f"with the tokens {list(ids)[:8]} ..." for key, ids in zip(keys, rows, strict=True)}
        with Progress(None, shown=False) as line:
            batches = self._finite(names, BATCH_TOKENS, skip, False, line)
            return as_array(self._gather(batches, keys, self._columns(None)))

    def encode_stream(
        self, texts: Iterable[str], *, show_progress_bar: bool = False, total: int | None = None, **options: Any
    ) -> Iterator[np.ndarray | Tensor | list]:
        """``encode`` for more texts than fit in memory: yields the results of a few thousand texts at a time, in order.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left; ``options`` are those of
        ``encode``. ``self.truncated`` keeps counting. Raises ``InputError`` as ``encode`` does, at the first bad text.
        """
        truncated = self.truncated = 0
        with Progress(total, show_progress_bar) as line:
            for chunk in chunks(valid_texts(texts)):
                result = self.encode(chunk, show_progress_bar=line, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries; with its default prompt if it has none."""
        return self._encode_role("query", texts, options)

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents; with its default prompt if it has none."""
        return self._encode_role("document", texts, options)

    def _encode_role(self, role: str, texts: str | Sequence[str], options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = role_prompt_name(self.settings, role)
        return self.encode(texts, **options)
