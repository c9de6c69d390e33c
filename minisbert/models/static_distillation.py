"""A static table from any encoder, in seconds and without data, as Model2Vec does it (the code of MinishLab/model2vec).

Each token goes through the encoder alone; principal components shorten the vectors and take out what all have in
common; frequent tokens then count less.
"""

from array import array
from math import inf
from numbers import Real

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.tokenizer import assemble
from minisbert.models.batching import packed_batches
from minisbert.models.guards import check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import BareTokenizer, StaticEncoder
from minisbert.models.text_encoder import BATCH_TOKENS
from minisbert.system.progress import Progress


def sif_weights(tokens: int, coefficient: float = 1e-4) -> Tensor:
    """Weights that count frequent tokens less, a / (a + p): (V,) for a vocabulary that is sorted by frequency.

    Smooth inverse frequency (Arora et al. 2017, unverified), with Zipf's law in place of counts: p of the token of rank
    r, from 0, is 1 / (r + 2) over the sum of all. ``sif_weights(2, 0.4) = [0.4, 0.5]``.
    """
    inverse = 1 / torch.arange(2, tokens + 2, dtype=torch.float64)  # (V,)
    return coefficient / (coefficient + inverse / inverse.sum())


def principal_components(x: Tensor, count: int) -> Tensor:
    """x (V, D), centred, on the ``count`` directions in which it varies most -> (V, ``count``), the first one most.

    Signs are arbitrary, and change no distance. [[1, 0], [3, 0]] and one direction give [[-1], [1]] or [[1], [-1]].
    """
    centred = x - x.mean(dim=0)  # (V, D)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)  # (D, D), by falling variance
    return centred @ directions[:, :count]


def token_vectors(encoder: SentenceEncoder, progress: bool = False) -> Tensor:
    """The encoder's vector of every token of its vocabulary alone between the special tokens, unscaled: (V, D)."""
    slots, total = encoder.tokenizer.single_template, encoder.tokenizer.backend.get_vocab_size()
    keys = [array("i", assemble(slots, [[token]])[0]).tobytes() for token in range(total)]
    found = torch.empty(total, encoder.width)
    with encoder.computing(None), Progress(total, progress) as line:
        line.expect(total, total * len(slots))
        for batch in packed_batches(keys, BATCH_TOKENS):
            found[batch.texts] = encoder.vectors(batch).float().cpu()
            line.update(batch.tokens)
    return found


def distill(
    encoder: SentenceEncoder, dim: int = 256, coefficient: float = 1e-4, progress: bool = False
) -> StaticEncoder:
    """A table of ``dim`` columns, or as many as the encoder has if those are fewer, with the encoder's tokenizer.

    ``coefficient`` is that of ``sif_weights``; a large one weights all tokens alike.
    """
    check_count("dim", dim)
    if not isinstance(coefficient, Real) or not 0 < coefficient < inf:
        raise InputError(f"coefficient must be above 0 and finite, not {one_line(coefficient)}")
    table = principal_components(token_vectors(encoder, progress).double(), dim)  # (V, dim)
    table = (table * sif_weights(len(table), coefficient)[:, None]).float().contiguous()
    words = BareTokenizer(Backend.from_str(encoder.tokenizer.backend.to_str()))
    return StaticEncoder(table, words, normalize=True).eval()
