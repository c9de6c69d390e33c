"""Hand examples and traps of lessons 17 and 27: int8 and bits, rescoring, layers, students."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lessons.grader.cases import cases, d, example, t, trap
from minisbert.core import bert
from minisbert.search import quantized
from minisbert.training import losses as more_losses

RANGES = np.array([[0.0, -1.0], [255.0, 254.0]], dtype=np.float32)  # two columns with steps of 1


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def codes(*values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int8)


def as_bytes(*values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def int64(*values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# -------------------------------------------------------------------------------------- fewer bytes


@cases("quantized.to_int8")
def _():
    name = "ranges 0 to 255 and -1 to 254: 0 and 1.9, 200.5 and 0"
    yield example(
        name,
        codes([-128, -126], [72, -127]),
        quantized.to_int8,
        rows([0.0, 1.9], [200.5, 0.0]),
        RANGES,
    )
    name = "values outside the ranges"
    x = rows([-7.0, 1e6], [256.0, -1e6])
    yield trap(name, codes([-128, 127], [127, -128]), quantized.to_int8, x, RANGES)
    flat = np.array([[2.0], [2.0]], dtype=np.float32)
    x = rows([2.0], [1.0], [4.5])
    yield trap(
        "an empty range: steps of 1", codes([-128], [-128], [-126]), quantized.to_int8, x, flat
    )


@cases("quantized.to_bits")
def _():
    x = rows(
        [1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -3.0, 2.0],
        [-1.0, 0.5, 0.5, -1.0, -1.0, -1.0, -1.0, -1.0],
    )
    yield example("128 + 1, and 64 + 32", as_bytes([129], [96]), quantized.to_bits, x)
    yield trap("nine columns, two bytes", as_bytes([255, 128]), quantized.to_bits, rows([1.0] * 9))


@cases("quantized.hamming")
def _():
    name = "10000001 with 10000000 and 01111111"
    yield example(name, int64([1, 7]), quantized.hamming, as_bytes([129]), as_bytes([128], [127]))
    ones = np.full((1, 48), 255, dtype=np.uint8)
    zeros = np.zeros((2, 48), dtype=np.uint8)
    yield trap("all of 384 bits", int64([384, 384]), quantized.hamming, ones, zeros)


@cases("quantized.rescore")
def _():
    vectors = np.array([[[1.0, 1.0], [0.0, 9.0], [4.0, 0.0]]], dtype=np.float32)
    arguments = (rows([2.0, 0.0]), int64([3, 5, 8]), vectors)
    expected = (rows([1.0, 0.70711]), int64([8, 3]))
    yield example("the best two of rows 3, 5 and 8", expected, quantized.rescore, *arguments, 2)
    same = np.array([[[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]]])
    expected = (rows([1.0, 1.0, 0.0]), int64([2, 9, 4]))
    yield trap(
        "ties by row, and a zero vector",
        expected,
        quantized.rescore,
        rows([3.0, 4.0]),
        int64([9, 2, 4]),
        same,
        3,
    )
    # Cosines 1 and 1 - 5e-11: equal in float32, so ordered by row.
    close = np.array([[[1.0, 0.0], [1.0, 1e-5]]])
    expected = (rows([1.0, 1.0]), int64([2, 9]))
    yield trap(
        "equal once rounded", expected, quantized.rescore, rows([1.0, 0.0]), int64([9, 2]), close, 2
    )


# ----------------------------------------------------------------------------------- smaller models


@cases("losses.spread_layers")
def _():
    for total, keep, layers in ((6, 3, [0, 3, 5]), (6, 2, [0, 5]), (5, 3, [0, 2, 4])):
        yield example(f"{keep} of {total}", layers, more_losses.spread_layers, total, keep)
    yield trap("1 of 4", [3], more_losses.spread_layers, 4, 1)


def numbered(count: int) -> bert.Bert:
    """An encoder of width 2 whose layer i has the number i in every bias."""
    model = bert.Bert(bert.BertConfig(5, 2, count, 1, 3, 4), pooler=False).eval()
    for i, layer in enumerate(model.layers):
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.data.fill_(float(i))
    return model


def numbers(model: bert.Bert) -> list[float]:
    """The number of each layer of such an encoder, or of a part of one."""
    return [layer.feed_forward.up.bias[0].item() for layer in model.layers]


def kept(count: int, layers: list[int]) -> tuple[str, list[float], Callable]:
    """The case of these layers of so many."""
    found = lambda: numbers(more_losses.keep_layers(numbered(count), layers))  # noqa: E731
    return f"layers {layers} of {count}", [float(i) for i in layers], found


@cases("losses.keep_layers")
def _():
    yield example(*kept(6, [0, 3, 5]))
    yield example(*kept(3, [1]))
    yield trap(*kept(4, [3, 0, 2]))

    def teacher_after() -> list[float]:
        teacher = numbered(4)
        student = more_losses.keep_layers(teacher, [0, 3])
        for parameter in student.parameters():
            parameter.data.fill_(9.0)
        return [
            *numbers(teacher),
            float(len(teacher.layers)),
            float(teacher.config.num_hidden_layers),
        ]

    yield trap("the teacher stays as it is", [0.0, 1.0, 2.0, 3.0, 4.0, 4.0], teacher_after)

    def trains() -> bool:
        student = more_losses.keep_layers(numbered(4), [0, 3])
        return all(parameter.requires_grad for parameter in student.parameters())

    yield trap("the student can be trained", True, trains)


@cases("losses.distillation_loss")
def _():
    yield example(
        "[1, 2] for [0, 4]",
        torch.tensor(2.5),
        more_losses.distillation_loss,
        t([1.0, 2.0]),
        t([0.0, 4.0]),
    )

    def slopes() -> tuple[Tensor, Tensor]:
        student = d([1.0, 2.0]).requires_grad_()
        teacher = d([0.0, 4.0]).requires_grad_()
        more_losses.distillation_loss(student, 1 * teacher).backward()
        return student.grad, torch.zeros_like(teacher) if teacher.grad is None else teacher.grad

    yield trap("the teacher gets no gradient", (d([1.0, -2.0]), d([0.0, 0.0])), slopes)


def first(u: Tensor, v: Tensor) -> Tensor:
    """A loss that sees lengths: the product of the first columns, averaged."""
    return (u[:, 0] * v[:, 0]).mean()


@cases("losses.matryoshka_loss")
def _():
    loss = more_losses.matryoshka_loss
    u = t([3.0, 4.0])
    v = t([8.0, 6.0])
    yield example("1 * 1 + 0.6 * 0.8", torch.tensor(1.48), loss, first, u, v, dims=(1, 2))
    expected = torch.tensor(2.24)
    yield example("weights 2 and 0.5", expected, loss, first, u, v, dims=(1, 2), weights=(2.0, 0.5))
    u = d([3.0, 4.0, 12.0])
    v = d([0.0, 2.0, 1.0])
    yield trap("a prefix of zeros", d(0.0)[0], loss, first, u, v, dims=(1,))
    yield trap(
        "one set of vectors", d(1.6)[0], loss, lambda a: a[:, 0].mean(), d([3.0, 4.0]), dims=(2, 1)
    )
    name = "each weight belongs to its width"
    weights = (2.0, 0.5)
    yield trap(
        name, d(1.7)[0], loss, lambda a: a[:, 0].mean(), d([3.0, 4.0]), dims=(2, 1), weights=weights
    )
