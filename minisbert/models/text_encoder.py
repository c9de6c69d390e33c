"""What every encoder does with texts: ``SentenceEncoder``, a compiled package, a table of static vectors."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.checks import check_texts
from minisbert.folder.find import find_model
from minisbert.folder.model_folder import ModelFolder
from minisbert.models.batched_encoder import BatchedEncoder
from minisbert.models.batching import ID_BYTES, chunks, tokenize
from minisbert.models.guards import PerThread, check_choice, check_count
from minisbert.models.prompts import PROMPT_NAMES, role_prompt, role_prompt_name, with_prompt
from minisbert.models.similarity import as_array
from minisbert.models.tokenizer import valid_texts
from minisbert.search.dense import top_k
from minisbert.search.quantized import PRECISIONS, quantize
from minisbert.system.console import say
from minisbert.system.devices import choose_device
from minisbert.system.progress import Progress

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
