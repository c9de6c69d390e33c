"""Mistakes around the model: text to ids, parameter names, batches, training, search."""

import unicodedata
from collections.abc import Container, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import data, loop, tokenizer, weights
from minisbert.fast import search
from minisbert.mistakes.planting import mistake

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_names, _pad_batch, _grouped, _step = (
    weights.Family.names,
    tokenizer.pad_batch,
    data.length_grouped_batches,
    loop.adamw_step,
)

# --------------------------------------------------------------------------------------- text to ids


def _words(text: str, accents: bool = False, capitals: bool = False, marks_alone: bool = True) -> list[str]:
    """Text to words with each choice as an argument; the defaults are the right ones."""
    text = "".join(f" {c} " if tokenizer.is_ideograph(c) else c for c in map(tokenizer.cleaned, text))
    if not accents:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    text = text if capitals else "".join(c.lower() for c in text)
    return "".join(f" {c} " if marks_alone and tokenizer.is_punctuation(c) else c for c in text).split()


@mistake(tokenizer, "split_words", "accents kept", "letters keep their accents, so the words are unknown")
def _(text: str) -> list[str]:
    return _words(text, accents=True)


@mistake(tokenizer, "split_words", "capitals kept", "the words are not lowercased")
def _(text: str) -> list[str]:
    return _words(text, capitals=True)


@mistake(tokenizer, "split_words", "split at spaces only", "a punctuation mark stays part of the word before it")
def _(text: str) -> list[str]:
    return _words(text, marks_alone=False)


@mistake(tokenizer, "word_pieces", "no ## inside a word", "pieces inside a word are looked up without their ##")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, inside="")


@mistake(tokenizer, "word_pieces", "shortest piece first", "the shortest piece that fits is taken, not the longest")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, longest=False)


@mistake(tokenizer, "word_pieces", "pieces before [UNK]", "the pieces found before the unknown rest are kept")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, whole=False)


def _pieces(
    word: str, vocabulary: Container[str], unknown: str, inside: str = "##", longest: bool = True, whole: bool = True
) -> list[str]:
    """WordPiece with each choice as an argument; the defaults are the right ones."""
    pieces, start = [], 0
    while start < len(word):
        prefix = inside if start else ""
        ends = range(len(word), start, -1) if longest else range(start + 1, len(word) + 1)
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return [unknown] if whole else [*pieces, unknown]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces if len(word) <= tokenizer.LONGEST_WORD else [unknown]


# --------------------------------------------------------------------------------------------- names


@mistake(weights.Family, "names", "biases not in the table", "only weights have a name, biases have none")
def _(self: weights.Family, layers: int, pooler: bool) -> dict[str, str]:
    return {ours: file for ours, file in _names(self, layers, pooler).items() if not ours.endswith(".bias")}


@mistake(weights.Family, "names", "layers counted from 1", "the first layer is called 1; in the files it is 0")
def _(self: weights.Family, layers: int, pooler: bool) -> dict[str, str]:
    names = _names(self, layers + 1, pooler)
    fixed, first = _names(self, 0, pooler), set(_names(self, 1, pooler))
    return {ours: file for ours, file in names.items() if ours in fixed or ours not in first}


# ------------------------------------------------------------------------------------------- batches


@mistake(tokenizer, "pad_batch", "mask by the pad's id", "a real token with the pad's id is masked too")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch(rows, pad_id)
    return ids, None if mask is None else ids != pad_id


@mistake(tokenizer, "pad_batch", "pads in front", "pads come before the tokens, which shifts every position")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch([row[::-1] for row in rows], pad_id)
    return ids.flip(1), None if mask is None else mask.flip(1)


@mistake(tokenizer, "pad_batch", "mask the wrong way round", "True marks the pads, not the tokens")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch(rows, pad_id)
    return ids, None if mask is None else ~mask


@mistake(data, "length_grouped_batches", "not grouped by length", "batches mix all lengths and are mostly pads")
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    return _grouped([0] * len(lengths), batch_size, generator, window)


@mistake(
    data, "length_grouped_batches", "short batches first", "the batches are not shuffled: training sees lengths grow"
)
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    batches = _grouped(lengths, batch_size, generator, window)
    return sorted(batches, key=lambda batch: (lengths[batch[0]], lengths[batch[-1]]))


@mistake(data, "length_grouped_batches", "last batch dropped", "the rows of the last, smaller batch are never seen")
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    return [batch for batch in _grouped(lengths, batch_size, generator, window) if len(batch) == batch_size]


# ------------------------------------------------------------------------------------------ training


@mistake(loop, "linear_schedule", "warm-up off by one", "the first step already has part of the learning rate")
def _(step: int, warmup: int, total: int) -> float:
    return (step + 1) / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


@mistake(loop, "linear_schedule", "decay without warm-up's share", "the decay counts from step 0, not from the peak")
def _(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / total)


@mistake(loop, "adamw", "weight decay coupled", "the decay is added to the gradient (Adam with L2), not to the step")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


@mistake(loop, "adamw", "no bias correction", "Adam's averages, which start at 0, are not corrected")
def _(parameters: list[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    return _UncorrectedAdamW(parameters, lr, weight_decay)


class _UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW with averages that are not divided by 1 - beta^t."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                square = state.setdefault("square", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                square.lerp_(parameter.grad.square(), 0.001)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * mean / (square.sqrt() + 1e-8))


@mistake(loop, "adamw_step", "decay in the gradient", "the decay is added to the gradient: Adam with L2, not AdamW")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient + weight_decay * parameter, mean, square, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "decay without lr", "the parameter shrinks by the decay, not by lr times the decay")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter * (1 - weight_decay), gradient, mean, square, step, lr, 0.0, betas, eps)


@mistake(loop, "adamw_step", "averages not corrected", "the running means are used as if they had not started at 0")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient.pow(2)
    return parameter * (1 - lr * weight_decay) - lr * mean / (square.sqrt() + eps), mean, square


@mistake(loop, "adamw_step", "step counted from 0", "the bias correction lags by one step")
def _(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    return _step(parameter, gradient, mean, square, max(step - 1, 1), lr, weight_decay, betas, eps)


# -------------------------------------------------------------------------------------------- search


def _ranked(scores: Tensor, k: int, last_first: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k highest scores of each row, (Q, k), and their columns; of equal scores the first, or the last."""
    scores = scores.float().flip(1) if last_first else scores.float()
    values, columns = scores.sort(dim=1, descending=True, stable=True)
    columns = scores.shape[1] - 1 - columns if last_first else columns
    return values[:, :k].numpy(), columns[:, :k].numpy()


def _unit(x: np.ndarray | Tensor) -> Tensor:
    x = torch.as_tensor(x).double()
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


@mistake(search, "top_k", "search by dot product", "long vectors of the corpus win, whatever they mean")
def _(queries, corpus, k, progress=False):
    return _ranked(_unit(queries) @ torch.as_tensor(corpus).double().T, k)


@mistake(search, "top_k", "of ties the last first", "equal scores come in the reverse order of the corpus")
def _(queries, corpus, k, progress=False):
    return _ranked(_unit(queries) @ _unit(corpus).T, k, last_first=True)


@mistake(search, "top_k", "worst first", "the k lowest scores are returned")
def _(queries, corpus, k, progress=False):
    scores, indices = _ranked(-(_unit(queries) @ _unit(corpus).T), k)
    return -scores, indices
