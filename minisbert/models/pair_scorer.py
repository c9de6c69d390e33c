"""What every model of pairs does with texts, whether ``PairModel`` computes the outputs or a compiled package."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Encoded, pad_batch
from minisbert.folder.settings import MAX_SCORE
from minisbert.models.batching import budgeted_batches
from minisbert.models.guards import PerThread, check_count
from minisbert.models.similarity import as_array
from minisbert.models.text_encoder import BATCH_SIZE, TEXT_TOKENS
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.progress import Progress

SEVERAL = ("classes", "labels")  # tasks with an output for each label


class PairScorer:
    """Pairs of texts to scores, in batches. A subclass is called with a ``batch``: (B,), or (B, C) logits."""

    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype  # of the outputs
    joint: bool  # both texts in one row
    types: bool  # the encoder tells the two texts of a row apart
    task: str
    labels: tuple[str, ...]
    truncated = PerThread()  # texts, or joined pairs, that the last ``scores`` had to cut

    def computing(self) -> AbstractContextManager:
        """The context in which ``scores`` computes."""
        return torch.inference_mode()

    def tokenize(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """N pairs to N joined rows, or to 2N: all first sentences, then all second ones. Raises ``InputError``."""
        if self.joint:
            return self.tokenizer.encode_pairs(firsts, seconds)
        a, b = map(self.tokenizer.encode, check_pairs(firsts, seconds))
        return Encoded(a.ids + b.ids, a.token_types + b.token_types, a.truncated + b.truncated)

    def lengths(self, encoded: Encoded) -> list[int]:
        """``lengths[i]``: padded token count of pair i, in one row or two."""
        if self.joint:
            return [len(ids) for ids in encoded.ids]
        half = len(encoded) // 2
        return [2 * max(len(a), len(b)) for a, b in zip(encoded.ids[:half], encoded.ids[half:], strict=True)]

    def batch(self, encoded: Encoded, rows: Sequence[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Ids, mask and token types (R, T) of the pairs ``rows``, on the model's device; None as in ``Bert``."""
        chosen = list(rows)
        if not self.joint:
            chosen += [len(encoded) // 2 + row for row in rows]
        ids, mask = pad_batch([encoded.ids[row] for row in chosen], self.tokenizer.pad_id)
        types = None
        if self.joint and self.types:
            types, _ = pad_batch([encoded.token_types[row] for row in chosen], 0)
        return tuple(x if x is None else x.to(self.device) for x in (ids, mask, types))

    def scores(
        self,
        firsts: Sequence[str],
        seconds: Sequence[str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Pair i's score in row i: (N,) on the scale of 0 to 5, or of probabilities; (N, C) for several labels.

        A regression may go slightly beyond 0 and 5: it is not clamped, because equal scores have no rank.
        ``batch_size`` as in ``TextEncoder.encode``. Raises ``InputError`` for anything but pairs of valid strings.
        """
        return as_array(self.readable(self.checked_outputs(firsts, seconds, batch_size, show_progress_bar)))

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | tuple[str, str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
        apply_softmax: bool = False,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Pairs of texts to scores (N,), or logits (N, C) of classes; one pair to its score. As sentence-transformers.

        A regression's scores are 0 to 1, those of "yes" or "no", or of labels that may all be true, probabilities.
        ``apply_softmax`` makes probabilities of classes. ``convert_to_tensor`` gives a tensor on the CPU.
        """
        single = isinstance(pairs, Sequence) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        rows = [pairs] if single else list(pairs)
        for row in rows:
            if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 2:
                raise InputError(f"predict takes pairs of texts, not {one_line(row)}")
        firsts, seconds = [row[0] for row in rows], [row[1] for row in rows]
        outputs = self.checked_outputs(firsts, seconds, batch_size, bool(show_progress_bar))
        if self.task in ("binary", "labels"):
            outputs = outputs.sigmoid()
        if self.task == "classes" and apply_softmax:
            outputs = outputs.softmax(dim=-1)
        found = outputs if convert_to_tensor else as_array(outputs)
        return found[0] if single else found

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
    ) -> list[dict[str, Any]]:
        """The documents by their score with the query, best first: ``[{"corpus_id": 2, "score": 0.97}, ...]``.

        ``return_documents`` adds the "text" of each. Ties by number. ``top_k`` None ranks all.
        """
        if self.task in SEVERAL:
            raise InputError(f"a model of {len(self.labels)} {self.task} gives no score to rank by")
        documents = check_texts(documents)
        if top_k is not None:
            check_count("top_k", top_k)
        scores = self.predict(
            [(query, text) for text in documents], batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        found = []
        for row in np.argsort(-scores, kind="stable")[:top_k].tolist():
            result: dict[str, Any] = {"corpus_id": row, "score": scores[row]}
            if return_documents:
                result["text"] = documents[row]
            found.append(result)
        return found

    def checked_outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """``outputs`` in eval mode; ``InputError`` if one is not finite."""
        check_count("batch_size", batch_size)
        with self.computing():
            outputs = self.outputs(firsts, seconds, batch_size, progress)
        if not outputs.isfinite().all():
            raise InputError("a score is NaN or infinite: the model's weights are too large")
        return outputs

    def outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """What the losses take, on the CPU: (N,), or logits (N, C) for several labels."""
        encoded = self.tokenize(firsts, seconds)
        self.truncated = encoded.truncated
        lengths = self.lengths(encoded)
        shape = [len(lengths)]
        if self.task in SEVERAL:
            shape.append(len(self.labels))
        outputs = torch.empty(shape, dtype=self.dtype)
        with Progress(len(lengths), progress) as line:
            line.expect(len(lengths), sum(lengths))
            for rows in budgeted_batches(lengths, TEXT_TOKENS * batch_size):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                line.update(sum(lengths[row] for row in rows))
        return outputs

    def readable(self, outputs: Tensor) -> Tensor:
        """The outputs of ``forward`` on the scale that people read: 0 to 5, or probabilities."""
        if self.task == "classes":
            return outputs.softmax(dim=-1)
        if self.task in ("binary", "labels"):
            return outputs.sigmoid()
        if self.task == "regression":
            return MAX_SCORE * outputs
        return outputs


def check_pairs(firsts: Sequence[str], seconds: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both as lists. Raises ``InputError`` unless they have the same number of valid texts."""
    firsts, seconds = check_texts(firsts), check_texts(seconds)
    if len(firsts) != len(seconds):
        raise InputError(f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs")
    return firsts, seconds
