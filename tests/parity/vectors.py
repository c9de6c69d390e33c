"""Poolings and cosines, beside torch's functions on one text at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from minisbert.core import encoder, pooling
from tests.parity import GRADIENT, PIECE, Comparison, compare
from tests.parity.comparison import d, fact, normal, with_gradients
from tests.parity.encoder import MASK


def pools() -> Iterator[Comparison]:
    """Mean, max and attention pooling against one text at a time, without pads."""
    hidden, weight, bias = normal(2, 6, 7), normal(1, 7, seed=1), normal(1, seed=2)

    def by_text(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda hidden: torch.stack(
            [pool(row[real]) for row, real in zip(hidden, MASK, strict=True)]
        )

    def weighted(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return by_text(lambda row: functional.linear(row, weight, bias).softmax(0).T.mm(row)[0])(
            hidden
        )

    mean, largest = by_text(lambda row: row.mean(0)), by_text(lambda row: row.max(0).values)
    yield from with_gradients("mean_pool", lambda x: pooling.mean_pool(x, MASK), mean, hidden)
    yield from with_gradients("max_pool", lambda x: pooling.max_pool(x, MASK), largest, hidden)
    learned = lambda x, w, b: pooling.attention_pool(x, MASK, w, b)  # noqa: E731
    yield from with_gradients("attention_pool", learned, weighted, hidden, weight, bias)


def pools_of_low_numbers() -> Iterator[Comparison]:
    """Real tokens of -1e20, or with a score of -1e15: any finite fill at a pad would win. In units
    of the number.
    """
    hidden = torch.tensor([[[-1.0, -2.0], [0.0, 0.0], [-3.0, -1.5]]]).double()
    mask = torch.tensor([[True, False, True]])
    expected = torch.tensor([[-1.0, -1.5]]).double()
    yield compare(
        "max_pool of -1e20 beside a pad",
        pooling.max_pool(1e20 * hidden, mask) / 1e20,
        expected,
        PIECE,
    )
    found = pooling.attention_pool(
        hidden, mask, torch.zeros(1, 2).double(), torch.tensor([-1e15]).double()
    )
    expected = torch.tensor([[-2.0, -1.75]]).double()
    yield compare("attention_pool, scores of -1e15 beside a pad", found, expected, PIECE)


def pools_of_nan() -> Iterator[Comparison]:
    """A real token that is NaN says that something is broken; a pad that is NaN says nothing."""
    hidden = torch.tensor([[1.0, 2.0, torch.nan], [1.0, torch.nan, 2.0]]).double()[..., None]
    mask, weight, bias = torch.tensor([[True, True, False]] * 2), d(0.0)[None, None], d(0.0)[None]
    for name, found in (
        ("mean_pool", pooling.mean_pool(hidden, mask)),
        ("max_pool", pooling.max_pool(hidden, mask)),
        ("attention_pool", pooling.attention_pool(hidden, mask, weight, bias)),
    ):
        yield fact(f"{name}: NaN at a real token is not hidden", found[1].isnan().all())


def cosine_matrix() -> Iterator[Comparison]:
    reference = lambda u, v: functional.cosine_similarity(u[:, None], v[None], dim=-1)  # noqa: E731
    yield from with_gradients(
        "cosine_matrix", encoder.cosine_matrix, reference, normal(4, 7), normal(3, 7, seed=1)
    )


def cosine_matrix_of_no_cosine() -> Iterator[Comparison]:
    """A zero vector has cosine 0 with everything and no share in the others' gradient; an infinite
    one has none.
    """
    u, v = normal(4, 7), normal(3, 7, seed=1)
    pull = normal(4, 3, seed=2).detach()
    with_zero = (
        u.detach()
        .clone()
        .masked_fill_(torch.tensor([1, 0, 0, 0]).bool()[:, None], 0.0)
        .requires_grad_()
    )
    of_u, of_v = torch.autograd.grad(encoder.cosine_matrix(with_zero, v), (with_zero, v), pull)
    cosines = functional.cosine_similarity(u[1:, None], v[None], dim=-1)
    expected_u, expected_v = torch.autograd.grad(cosines, (u, v), pull[1:])
    yield compare("cosine_matrix beside a zero vector, gradient of v", of_v, expected_v, GRADIENT)
    yield compare(
        "cosine_matrix beside a zero vector, gradient of the other rows",
        of_u[1:],
        expected_u[1:],
        GRADIENT,
    )
    infinite = u.detach().clone()
    infinite[0, 0] = torch.inf
    found = encoder.cosine_matrix(infinite, v)[0]
    yield fact("cosine_matrix: an infinite vector's NaN is not hidden", found.isnan().all())
