"""What every model of pairs does with texts, whether ``PairModel`` computes the outputs or a compiled package."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Encoded, pad_batch
from minisbert.folder.settings import MAX_SCORE
from minisbert.models.batching import budgeted_batches
from minisbert.models.guards import PerThread, check_count
from minisbert.models.similarity import as_array
from minisbert.models.text_encoder import BATCH_TOKENS
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.console import Progress


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
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
    ) -> np.ndarray:
        """Pair i's score in row i: (N,) on the scale of 0 to 5, or of probabilities; (N, C) for classes.

        A regression may go slightly beyond 0 and 5: it is not clamped, because equal scores have no rank.
        Raises ``InputError`` for anything but pairs of valid strings.
        """
        check_count("batch_tokens", batch_tokens)
        with self.computing():
            outputs = self.outputs(firsts, seconds, batch_tokens, progress)
        if not outputs.isfinite().all():
            raise InputError("a score is NaN or infinite: the model's weights are too large")
        return as_array(self.readable(outputs))

    def outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_tokens: int, progress: bool) -> Tensor:
        """What the losses take, on the CPU: (N,), or logits (N, C) for classes."""
        encoded = self.tokenize(firsts, seconds)
        self.truncated = encoded.truncated
        lengths = self.lengths(encoded)
        shape = [len(lengths)]
        if self.task == "classes":
            shape.append(len(self.labels))
        outputs = torch.empty(shape, dtype=self.dtype)
        with Progress(len(lengths), progress) as line:
            line.expect(len(lengths), sum(lengths))
            for rows in budgeted_batches(lengths, batch_tokens):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                line.update(sum(lengths[row] for row in rows))
        return outputs

    def readable(self, outputs: Tensor) -> Tensor:
        """The outputs of ``forward`` on the scale that people read: 0 to 5, or probabilities."""
        if self.task == "classes":
            return outputs.softmax(dim=-1)
        if self.task == "binary":
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
