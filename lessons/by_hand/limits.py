"""Four columns, and a query for any two documents: what lesson 31 builds by hand."""

import torch
from torch import Tensor


def on_the_curve(angles: Tensor) -> Tensor:
    """One document for each angle t (N,): (cos t, sin t, cos 2t, sin 2t) / sqrt(2), (N, 4).

    Its length is 1, whatever the angle. ``on_the_curve([0])`` is ``[[0.7071, 0, 0.7071, 0]]``.
    """
    columns = [angles.cos(), angles.sin(), (2 * angles).cos(), (2 * angles).sin()]
    return torch.stack(columns, dim=1) / 2**0.5


def query_for_two(a: Tensor, b: Tensor) -> Tensor:
    """The query to which the documents at the angles a and b are nearer than all others: (P, 4).

    a, b (P,). The product with the document at t is -(1 - cos(t - a)) (1 - cos(t - b)), but for a
    constant and a factor: 0 at a and at b, below 0 everywhere else. Multiplied out:

        (cos a + cos b,  sin a + sin b,  -cos(a + b) / 2,  -sin(a + b) / 2)

    scaled to length 1. ``query_for_two([0], [pi])`` is ``[[0, 0, 1, 0]]``: the two documents where
    cos 2t is largest.
    """
    columns = [a.cos() + b.cos(), a.sin() + b.sin(), -(a + b).cos() / 2, -(a + b).sin() / 2]
    query = torch.stack(columns, dim=1)
    return query / query.norm(dim=1, keepdim=True)
