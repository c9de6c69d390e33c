"""Poolings, cosines and whole encoders, beside torch's functions on one text at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from minisbert.core import encoder, pooling
from tests.parity import GRADIENT, PIECE, Comparison, compare
from tests.parity.comparison import double, fact, normal, with_gradients
from tests.parity.encoder import MASK, tiny, torch_layer
from tests.reference.texts import SENTENCES


def text_by_text(pool: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Pool the real tokens (N, D) of each text alone -> (B, D)."""
    return torch.stack([pool(row[real]) for row, real in zip(hidden, MASK, strict=True)])


def pools() -> Iterator[Comparison]:
    """Mean, max and attention pooling against one text at a time, without pads."""
    hidden = normal(2, 6, 7)
    weight = normal(1, 7, seed=1)
    bias = normal(1, seed=2)

    def mean(hidden: Tensor) -> Tensor:
        return text_by_text(lambda tokens: tokens.mean(0), hidden)

    def largest(hidden: Tensor) -> Tensor:
        return text_by_text(lambda tokens: tokens.max(0).values, hidden)

    def weighted(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        def pool(tokens: Tensor) -> Tensor:
            shares = functional.linear(tokens, weight, bias).softmax(0)  # (N, 1)
            return shares.T.mm(tokens)[0]

        return text_by_text(pool, hidden)

    def attention_pool(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return pooling.attention_pool(hidden, MASK, weight, bias)

    yield from with_gradients("mean_pool", lambda x: pooling.mean_pool(x, MASK), mean, hidden)
    yield from with_gradients("max_pool", lambda x: pooling.max_pool(x, MASK), largest, hidden)
    yield from with_gradients("attention_pool", attention_pool, weighted, hidden, weight, bias)


def pools_of_low_numbers() -> Iterator[Comparison]:
    """Real tokens of -1e20, or with a score of -1e15: any finite fill at a pad would win."""
    hidden = double([[[-1.0, -2.0], [0.0, 0.0], [-3.0, -1.5]]])
    mask = torch.tensor([[True, False, True]])

    found = pooling.max_pool(1e20 * hidden, mask) / 1e20  # in units of the number
    yield compare("max_pool of -1e20 beside a pad", found, double([[-1.0, -1.5]]), PIECE)

    found = pooling.attention_pool(hidden, mask, double([[0.0, 0.0]]), double([-1e15]))
    name = "attention_pool, scores of -1e15 beside a pad"
    yield compare(name, found, double([[-2.0, -1.75]]), PIECE)


def pools_of_nan() -> Iterator[Comparison]:
    """A real token that is NaN says that something is broken; a pad that is NaN says nothing."""
    hidden = double([[1.0, 2.0, torch.nan], [1.0, torch.nan, 2.0]])[..., None]  # (2, 3, 1)
    mask = torch.tensor([[True, True, False], [True, True, False]])
    weight = double([[0.0]])
    bias = double([0.0])
    for name, found in (
        ("mean_pool", pooling.mean_pool(hidden, mask)),
        ("max_pool", pooling.max_pool(hidden, mask)),
        ("attention_pool", pooling.attention_pool(hidden, mask, weight, bias)),
    ):
        yield fact(f"{name}: NaN at a real token is not hidden", found[1].isnan().all())


def cosine_matrix() -> Iterator[Comparison]:
    def reference(u: Tensor, v: Tensor) -> Tensor:
        return functional.cosine_similarity(u[:, None], v[None], dim=-1)

    inputs = normal(4, 7), normal(3, 7, seed=1)
    yield from with_gradients("cosine_matrix", encoder.cosine_matrix, reference, *inputs)


def cosine_matrix_of_no_cosine() -> Iterator[Comparison]:
    """A zero vector has cosine 0 with all and no share in their gradient; an infinite has none."""
    u = normal(4, 7)
    v = normal(3, 7, seed=1)
    pull = normal(4, 3, seed=2).detach()

    with_zero = u.detach().clone()
    with_zero[0] = 0.0
    with_zero.requires_grad_()
    of_u, of_v = torch.autograd.grad(encoder.cosine_matrix(with_zero, v), (with_zero, v), pull)
    cosines = functional.cosine_similarity(u[1:, None], v[None], dim=-1)
    expected_u, expected_v = torch.autograd.grad(cosines, (u, v), pull[1:])
    name = "cosine_matrix beside a zero vector"
    yield compare(f"{name}, gradient of v", of_v, expected_v, GRADIENT)
    yield compare(f"{name}, gradient of the other rows", of_u[1:], expected_u[1:], GRADIENT)

    infinite = u.detach().clone()
    infinite[0, 0] = torch.inf
    found = encoder.cosine_matrix(infinite, v)[0]
    yield fact("cosine_matrix: an infinite vector's NaN is not hidden", found.isnan().all())


def encoded() -> Iterator[Comparison]:
    """``encode`` in batches of several sizes against one text at a time, without pads."""
    model = tiny()
    expected = []
    texts = (*SENTENCES[2:], *SENTENCES[:2])  # in an order that is not undone by itself
    for ids in model.tokenizer.encode(texts).ids:
        x = model.bert.embeddings(torch.tensor([ids]), None)  # (1, T, D)
        for layer in model.bert.layers:
            x = torch_layer(layer, x, None)
        vector = x.mean(1)
        if model.normalize:
            vector = functional.normalize(vector, dim=-1)
        expected.append(vector[0].detach())
    reference = torch.stack(expected)
    for size in (1, 2, 32):
        vectors = torch.from_numpy(model.encode(texts, batch_size=size))
        yield compare(f"encode, {size} in a batch", vectors, reference, PIECE)
