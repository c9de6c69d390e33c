"""Variants of pieces that a teacher makes from a secret: the formulas are public, a class's constants are not.

    python -m lessons.check variants sheet --secret key.txt --out variants.py       a file of stubs for the class
    python -m lessons.check variants grade --secret key.txt handed-in/*/            each folder holds a variants.py

The book's functions give other numbers than any variant, so that pasting them scores nothing. The answers are computed
here; the learner's process gets inputs only, and has nothing to find.
"""

import hashlib
import hmac
import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessons.grader.pieces import Piece
from minisbert.core import InputError, one_line, reading
from minisbert.system.files import read_text

Settings = dict[str, Any]
TOLERANCE = 1e-9
SHORTEST_SECRET = 12  # characters
CASES = 3


# ------------------------------------------------------------------------- the variants, as formulas


def banded_attention(query: Tensor, key: Tensor, value: Tensor, *, before: int, after: int) -> Tensor:
    """Scaled dot-product attention in which query i sees key j only if i - {before} <= j <= i + {after}.

    query and key (H, T, K), value (H, T, D) -> (H, T, D). There are no pads.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (H, T, T)
    i, j = torch.meshgrid(torch.arange(query.shape[1]), torch.arange(query.shape[1]), indexing="ij")  # (T, T) each
    seen = (j >= i - before) & (j <= i + after)
    return scores.masked_fill(~seen, float("-inf")).softmax(dim=-1) @ value


def prefix_attention(query: Tensor, key: Tensor, value: Tensor, *, prefix: int) -> Tensor:
    """Scaled dot-product attention of a decoder with a prefix: query i sees key j if j <= i, and the first {prefix}
    tokens all see each other.

    query and key (H, T, K), value (H, T, D) -> (H, T, D). There are no pads.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (H, T, T)
    i, j = torch.meshgrid(torch.arange(query.shape[1]), torch.arange(query.shape[1]), indexing="ij")  # (T, T) each
    seen = (j <= i) | ((i < prefix) & (j < prefix))
    return scores.masked_fill(~seen, float("-inf")).softmax(dim=-1) @ value


def weighted_pool(hidden: Tensor, mask: Tensor, *, decay: float, end: str) -> Tensor:
    """The weighted average of a text's real tokens: the {end} one weighs 1, its neighbour {decay}, the next one {decay}
    squared, and so on; the weights of a text are divided by their sum.

    hidden (B, T, D), mask (B, T) True for real tokens, with pads after or before them -> (B, D).
    """
    number = mask.long().cumsum(dim=1) - 1  # (B, T): of a real token, from 0
    if end == "last":
        number = mask.sum(dim=1, keepdim=True) - 1 - number
    weights = (decay ** number.clamp_min(0).double()) * mask  # (B, T)
    return (hidden * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True)


def margin_ranking_loss(a: Tensor, b: Tensor, *, margin: float, scale: float) -> Tensor:
    """In-batch ranking with a margin: the cross-entropy of finding row i of b for row i of a among all rows of b. A
    logit is {scale} times a cosine, and {margin} is taken from the cosine of each right pair before that.

    a and b (B, D) -> a number, ().
    """
    cosines = torch.nn.functional.normalize(a, dim=1) @ torch.nn.functional.normalize(b, dim=1).T  # (B, B)
    logits = scale * (cosines - margin * torch.eye(len(a), dtype=a.dtype))
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(a)))


def power_norm(x: Tensor, weight: Tensor, bias: Tensor, *, power: int) -> Tensor:
    """Each vector divided by its power mean, that is the {power}. root of the mean of |x| to the power {power}, then
    times weight plus bias. No mean is subtracted, no epsilon added.

    x (B, T, D), weight (D,), bias (D,) -> (B, T, D).
    """
    size = x.abs().pow(power).mean(dim=-1, keepdim=True).pow(1 / power)
    return x / size * weight + bias


def ranks(values: Tensor, *, ties: str) -> Tensor:
    """The rank of each number among all of them, from 1 for the smallest, as float64. Equal numbers all get the {ties}
    of the ranks that they share; "dense" is the rank among the distinct numbers.

    values (N,) -> (N,).
    """
    smaller = (values[None] < values[:, None]).sum(dim=1)  # (N,)
    equal = (values[None] == values[:, None]).sum(dim=1)
    if ties == "dense":
        smaller = (values.unique()[None] < values[:, None]).sum(dim=1)
    return (smaller + (equal if ties == "highest" else 1)).double()


# ------------------------------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Variant:
    """A function to write, its constants, which its docstring has in braces, and those of likely mistakes."""

    function: Callable[..., Tensor]
    choices: dict[str, tuple]
    inputs: Callable[[torch.Generator, int], list[Tensor]]  # of one case; the integer is its number
    mistakes: dict[str, Callable[[Settings], Settings]]  # meaning -> the constants that somebody took instead
    differs: Callable[[Settings], bool] = lambda _: True  # from what the book computes
    refused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def piece(self) -> Piece:
        """For the guard and the search in the learner's file."""
        return Piece(0, f"variants.{self.name}", 2, 30, "", checks=(), hints=(), refused=self.refused)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def three(generator: torch.Generator, case: int) -> list[Tensor]:
    tokens = (7, 9, 12)[case]
    return [normal(generator, 3, tokens, width) for width in (4, 4, 5)]


def pooled(generator: torch.Generator, case: int) -> list[Tensor]:
    tokens = (5, 6, 8)[case]
    mask = torch.arange(tokens) < torch.tensor([[tokens], [2], [tokens - 1]])
    return [normal(generator, 3, tokens, 4), mask.flip(1) if case == 2 else mask]


def tied(generator: torch.Generator, case: int) -> list[Tensor]:
    return [torch.randint(0, 4 + case, (9 + case,), generator=generator).double() / 4]


NO_ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            banded_attention,
            {"before": (0, 1, 2, 3, 4), "after": (0, 1, 2, 3, 4)},
            three,
            {
                "the band is ignored": lambda s: {"before": 99, "after": 99},
                "before and after are exchanged": lambda s: {"before": s["after"], "after": s["before"]},
                "the band is one too narrow": lambda s: {key: max(x - 1, 0) for key, x in s.items()},
                "the band is one too wide": lambda s: {key: x + 1 for key, x in s.items()},
            },
            lambda s: s["before"] != s["after"],
            NO_ATTENTION,
        ),
        Variant(
            prefix_attention,
            {"prefix": (2, 3, 4, 5)},
            three,
            {
                "no mask hides later tokens": lambda s: {"prefix": 99},
                "the prefix is as causal as the rest": lambda s: {"prefix": 0},
                "the prefix is one token too long": lambda s: {"prefix": s["prefix"] + 1},
                "the prefix is one token too short": lambda s: {"prefix": s["prefix"] - 1},
            },
            refused=NO_ATTENTION,
        ),
        Variant(
            weighted_pool,
            {"decay": (0.4, 0.5, 0.6, 0.7, 0.8), "end": ("first", "last")},
            pooled,
            {
                "all tokens weigh the same": lambda s: s | {"decay": 1.0},
                "the weights begin at the other end": lambda s: (
                    s | {"end": {"first": "last", "last": "first"}[s["end"]]}
                ),
                "the decay is applied twice": lambda s: s | {"decay": s["decay"] ** 2},
            },
        ),
        Variant(
            margin_ranking_loss,
            {"margin": (0.1, 0.15, 0.2, 0.25, 0.3), "scale": (8.0, 12.0, 16.0)},
            lambda generator, case: [normal(generator, 4 + case, 5) for _ in "ab"],
            {
                "the margin is forgotten": lambda s: s | {"margin": 0.0},
                "the margin is added instead of taken away": lambda s: s | {"margin": -s["margin"]},
                "the margin is not scaled": lambda s: s | {"margin": s["margin"] / s["scale"]},
                "the scale is the book's": lambda s: s | {"scale": 20.0},
            },
        ),
        Variant(
            power_norm,
            {"power": (1, 3, 4)},
            lambda generator, case: [normal(generator, 2, 3 + case, 5), normal(generator, 5), normal(generator, 5)],
            {"it is the root of the mean square": lambda s: {"power": 2}},
            refused=("layer_norm", "rms_norm"),
        ),
        Variant(
            ranks,
            {"ties": ("lowest", "highest", "dense")},
            tied,
            {
                f"equal numbers get the {ties} rank": lambda s, ties=ties: {"ties": ties}
                for ties in ("lowest", "highest")
            },
        ),
    )
}


# ----------------------------------------------------------------------------------- what a secret chooses


def read_secret(path: Path) -> bytes:
    """A teacher's key. Raises ``InputError`` for one that is missing, or so short that somebody may guess it."""
    with reading(path):
        secret = read_text(path).strip()
    if len(secret) < SHORTEST_SECRET:
        advice = f"write one: python -c 'import secrets; print(secrets.token_hex())' > {path}"
        raise InputError(f"{path} holds {len(secret)} characters, at least {SHORTEST_SECRET} are needed; {advice}")
    return secret.encode()


def drawn(secret: bytes, *names: str) -> random.Random:
    """Random numbers that depend on the secret and on these names alone."""
    return random.Random(hmac.new(secret, "\0".join(names).encode(), hashlib.sha256).digest())


def settings_of(variant: Variant, secret: bytes, student: str = "") -> Settings:
    """The constants of a class, or of one student in it; never those with which the book's function would be right."""
    chance = drawn(secret, variant.name, student)
    while True:
        found = {name: chance.choice(values) for name, values in variant.choices.items()}
        if variant.differs(found):
            return found


def cases_of(variant: Variant, secret: bytes, student: str = "") -> list[list[Tensor]]:
    """The hidden inputs."""
    seed = drawn(secret, variant.name, student, "inputs").randrange(2**62)
    generator = torch.Generator().manual_seed(seed)
    return [variant.inputs(generator, case) for case in range(CASES)]


def answers(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """What a function gives for one case: its result, and the gradient of each input for a pull on the result."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x.clone() for x in inputs]
    result = function(*leaves)
    if not result.requires_grad:
        return [result]
    pull = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).view(result.shape)
    wanted = [x for x in leaves if x.requires_grad]
    gradients = torch.autograd.grad((result * pull).sum(), wanted, allow_unused=True)
    return [result.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, gradients, strict=True))]


# ------------------------------------------------------------------------------------------ the sheet

SHEET = '''"""Variants to write, {who}. Hand in this file as variants.py.

Each function is the book's with something changed. Inputs are float64 tensors, and gradients count. You may import
what the other lessons may: torch, numpy, parts of the standard library. Each example must come out as printed.
"""

import torch
'''


def sheet(secret: bytes, student: str = "") -> str:
    """The file of stubs, with an example each, whose inputs are not among the hidden ones."""
    text = SHEET.format(who=f"for {one_line(student)}" if student else "for this class")
    for variant in VARIANTS.values():
        found = settings_of(variant, secret, student)
        generator = torch.Generator().manual_seed(drawn(secret, variant.name, student, "example").randrange(2**62))
        inputs = [x.round(decimals=1) if x.is_floating_point() else x for x in variant.inputs(generator, 0)]
        result = variant.function(*inputs, **found).flatten()[:4]
        lines = inspect.getdoc(variant.function).format(**found).splitlines()
        kinds = inspect.signature(variant.function).parameters.values()
        names = [each.name for each in kinds if each.kind is not each.KEYWORD_ONLY]
        lines += ["", "For"]
        lines += [f"    {name} = torch.tensor({x.tolist()})" for name, x in zip(names, inputs, strict=True)]
        lines += [f"the result begins with {[round(x, 6) for x in result.tolist()]}."]
        body = "\n".join(f"    {line}".rstrip() for line in lines).strip()
        text += f'\n\ndef {variant.name}({", ".join(names)}):\n    """{body}\n    """\n    raise NotImplementedError\n'
    return text
