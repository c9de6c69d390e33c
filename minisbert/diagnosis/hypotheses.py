"""What other engines are known to do differently, each recomputed for a few texts: inputs, pads, pooling, the end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from minisbert.core.encoder import normalize
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.diagnosis.other_inputs import Inputs, all_inputs, padded_lengths
from minisbert.models.poolings import first_last_pool
from minisbert.models.sentence_encoder import SentenceEncoder

PADDED = (32, 64, 128, 256, 512)  # fixed lengths to which texts are padded
Ending = tuple[tuple[str, ...], str, np.ndarray]  # causes, their meaning, vectors


@dataclass(frozen=True)
class Guess:
    """One hypothesis. ``causes`` are keys, ``meaning`` says the same in words.

    ``vectors`` (S, W) are what it gives for the sample; or ``choices``, some (C, W) for each text, one of which fits.
    """

    causes: tuple[str, ...]
    meaning: str
    vectors: np.ndarray | None
    choices: list[np.ndarray] = field(default_factory=list)
    limit: int | None = None  # only texts with more tokens are affected


def last_pool(hidden: Tensor) -> Tensor:
    return hidden[:, -1]


def inner_pool(hidden: Tensor) -> Tensor:
    """The mean without the first and the last token, [CLS] and [SEP]."""
    return mean_pool(hidden[:, 1:-1] if hidden.shape[1] > 2 else hidden)


POOLED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens"),
    "cls": (cls_pool, "[CLS], the first token,"),
    "max": (max_pool, "the largest value of each column"),
    "last": (last_pool, "the last token"),
    "inner": (inner_pool, "the mean without [CLS] and [SEP]"),
}


def joined(*clauses: str) -> str:
    return ", and ".join(filter(None, clauses))


class Trial:
    """A sample of the texts, with everything that is recomputed for it.

    ``rows`` says which texts these are, ``width`` how many columns the vectors in question have.
    """

    def __init__(self, encoder: SentenceEncoder, texts: Sequence[str], rows: list[int], prompt: str, width: int):
        self.encoder, self.rows, self.prompt, self.width = encoder, rows, prompt, width
        self.texts = [texts[row] for row in rows]
        self.known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def own(self) -> np.ndarray:
        """The vectors (S, W) as the model asks for them."""
        inputs = next(all_inputs(self.encoder, self.texts, self.prompt))
        _, _, pooled = next(self.pooled(inputs))
        return next(self.finished(pooled))[2]

    @torch.no_grad()
    def guesses(self, lengths: Sequence[int]) -> Iterator[Guess]:
        """Every hypothesis, the cheap ones first. ``lengths`` are those of all texts, in tokens."""
        every = all_inputs(self.encoder, self.texts, self.prompt)
        right = next(every)
        yield from self.without_pads(right)
        yield from self.with_pads("pads pooled", "pads were pooled with the tokens", self.pads_pooled(right))
        for inputs in every:
            yield from self.without_pads(inputs)
        if self.encoder.pooling_mode in POOLED:
            both = self.pads_attended(right, lengths)
            said = "tokens attended to pads: the attention mask was left out"
            yield from self.with_pads("pads attended", said, [real for real, _ in both])
            said += ", and the pads were pooled too"
            yield from self.with_pads("pads attended and pooled", said, [every for _, every in both])

    def without_pads(self, inputs: Inputs) -> Iterator[Guess]:
        """Every pooling and every end, except what the model asks for."""
        for pooling, pooling_said, pooled in self.pooled(inputs):
            for causes, said, vectors in self.finished(pooled):
                every = tuple(filter(None, [inputs.cause, pooling, *causes]))
                if every:
                    meaning = joined(inputs.meaning, pooling_said, said)
                    yield Guess(every, meaning, vectors, limit=inputs.limit)

    # ----------------------------------------------------------------------------------- tokens to vectors

    def states(self, ids: Sequence[int], token_type: int = 0) -> tuple[Tensor, Tensor]:
        """The last layer's and the first layer's output for one text, (1, T, D) each."""
        key = (token_type, *ids)
        if key not in self.known:
            trace: dict[str, Tensor] = {}
            row = torch.tensor([list(ids)], device=self.encoder.device)  # (1, T)
            types = torch.full_like(row, token_type) if token_type else None
            self.known[key] = self.encoder.bert(row, None, types, trace), trace["layers.0"]
        return self.known[key]

    def pooled(self, inputs: Inputs) -> Iterator[tuple[str, str, Tensor]]:
        """Pooled vectors (S, D) under each hypothesis about the pooling; the model's own first."""
        states = [self.states(row, inputs.token_type) for row in inputs.rows]
        mode, bert = self.encoder.pooling_mode, self.encoder.bert
        if all(hidden.shape[1] > inputs.skip for hidden, _ in states):
            yield "", "", torch.cat([self.encoder.pool(hidden, None, first, inputs.skip) for hidden, first in states])
        for name, (pool, meaning) in POOLED.items():
            if name != mode:
                said = f"{meaning} was taken, the model has {mode} pooling"
                yield f"{name} pooling", said, torch.cat([pool(hidden) for hidden, _ in states])
        if mode != "first-last":
            said = f"the first and the last layer were averaged, the model has {mode} pooling"
            found = [first_last_pool(hidden, None, first) for hidden, first in states]
            yield "first-last pooling", said, torch.cat(found)
        if mode != "pooler" and bert.pooler is not None:
            said = f"BERT's pooler output was taken, the model has {mode} pooling"
            yield "pooler", said, torch.cat([bert.pool(hidden) for hidden, _ in states])
        if inputs.skip:
            found = [self.encoder.pool(hidden, None, first) for hidden, first in states]
            yield "prompt pooled", "the prompt's tokens were pooled too", torch.cat(found)

    def finished(self, pooled: Tensor) -> Iterator[Ending]:
        """Vectors (S, W) under each hypothesis about what follows the pooling; the model's own way first."""
        dense = self.encoder.dense
        if not len(dense):
            yield from self.scaled(pooled)
            return
        if dense[0].linear.in_features == pooled.shape[1]:
            yield from self.scaled(dense(pooled))
        for causes, said, vectors in self.scaled(pooled):
            yield ("no dense", *causes), joined("the dense layer was left out", said), vectors

    def scaled(self, vectors: Tensor) -> Iterator[Ending]:
        """Vectors (S, D) cut to the width in question, and scaled to length 1 or not."""
        width, whole = self.width, vectors.shape[1]
        if width > whole:
            return
        usual = min(self.encoder.settings.truncate_dim or whole, whole)
        cause = ("truncated",) if width != usual else ()
        said = f"the first {width} columns were kept, the model has {usual}" if cause else ""
        raw, unit = vectors[:, :width], normalize(vectors)[:, :width]
        if self.encoder.normalize:
            yield cause, said, as_array(unit)
            yield (*cause, "not normalised"), joined(said, "the vectors were not scaled to length 1"), as_array(raw)
        else:
            yield cause, said, as_array(raw)
            yield (*cause, "normalised"), joined(said, "the vectors were scaled to length 1"), as_array(unit)
        if width < whole:
            again = joined(said, "what is left was scaled to length 1")
            yield (*cause, "normalised after truncation"), again, as_array(normalize(raw))

    # ------------------------------------------------------------------------------------------- pads

    def with_pads(self, cause: str, meaning: str, pooled: list[Tensor]) -> Iterator[Guess]:
        """Hypotheses that leave the number of pads open: pooled (C, D) for each text."""
        ends = [list(self.finished(vectors)) for vectors in pooled]
        for number, (causes, said, _) in enumerate(ends[0] if ends else []):
            yield Guess((cause, *causes), joined(meaning, said), None, [end[number][2] for end in ends])

    def pads_pooled(self, inputs: Inputs) -> list[Tensor]:
        """For each text the pooled vectors with 0, 1, 2, ... pads, (C, D).

        No token attends to a pad here, so that a pad's state does not depend on how many others there are.
        """
        mode, found = self.encoder.pooling_mode, []
        if mode not in ("mean", "max"):
            return []
        size = min(self.encoder.bert.config.positions, max(*PADDED, self.encoder.tokenizer.limit))
        for row in inputs.rows:
            ids = torch.tensor([padded(row, size, self.encoder.tokenizer.pad_id)], device=self.encoder.device)
            count = torch.arange(1, size + 1, device=ids.device)  # (P,)
            hidden = self.encoder.bert(ids, count[None] <= len(row))[0]  # (P, D)
            running = hidden.cummax(dim=0).values if mode == "max" else hidden.double().cumsum(dim=0) / count[:, None]
            found.append(running[len(row) - 1 :].to(hidden.dtype))
        return found

    def pads_attended(self, inputs: Inputs, lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """For each text and each likely number of pads: tokens pooled, and everything pooled, (C, D) each."""
        pool, tokenizer, found = POOLED[self.encoder.pooling_mode][0], self.encoder.tokenizer, []
        most = min(self.encoder.bert.config.positions, max(*PADDED, tokenizer.limit))
        capped = [min(length, tokenizer.limit) for length in lengths]
        for number, row in zip(self.rows, inputs.rows, strict=True):
            sizes = {len(row), tokenizer.limit, *PADDED, *padded_lengths(number, capped)}
            ids = [padded(row, n, tokenizer.pad_id) for n in sorted(sizes) if len(row) <= n <= most]
            hidden = [
                self.encoder.bert(torch.tensor([every], device=self.encoder.device)) for every in ids
            ]  # (1, P, D)
            real = torch.cat([pool(x[:, : len(row)]) for x in hidden])
            found.append((real, torch.cat([pool(x) for x in hidden])))
        return found


def padded(row: list[int], size: int, pad_id: int) -> list[int]:
    return row + [pad_id] * (size - len(row))


def as_array(vectors: Tensor) -> np.ndarray:
    return vectors.double().cpu().numpy()
