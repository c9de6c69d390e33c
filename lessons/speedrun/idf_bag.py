"""The untrained baseline: a column for each piece of the vocabulary, times how rare it is."""

import numpy as np

from minisbert.training.masked import train_vocabulary

PIECES = 3000


def bags(tokenizer, texts):
    """The share of each piece in each text: (N, V)."""
    rows = np.zeros((len(texts), tokenizer.backend.get_vocab_size()), dtype=np.float32)
    for row, ids in zip(rows, tokenizer.encode(texts).ids, strict=True):
        words = ids[1:-1]
        np.add.at(row, words, 1 / max(1, len(words)))
    return rows


def rarity(counts):
    """ln(1 + 1 / share of the texts that have a piece): (V,)."""
    share = (counts > 0).mean(axis=0)
    return np.log(1 + 1 / (share + 1 / len(counts)))


def train(data, seed):
    tokenizer = train_vocabulary(data.names + data.sentences, PIECES, max_length=64)
    weights = rarity(bags(tokenizer, data.sentences))
    return lambda texts: bags(tokenizer, texts) * weights
