"""Importing the answer, or calling a ready-made one, is refused: by reading and by running."""

import contextlib
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lessons.grader.guard import Refused, look, refusing
from lessons.grader.pieces import PIECES, pieces_of
from minisbert.diagnosis.tracing import unfused

GELU = "def gelu(x):\n    {}\n"


@pytest.mark.parametrize(
    ("head", "body", "says"),
    [
        (
            "from minisbert.core.bert import gelu",
            "return gelu(x)",
            "line 1: minisbert.core.bert.gelu of the package",
        ),
        (
            "from minisbert.core import bert",
            "return bert.gelu(x)",
            "line 1: minisbert.core.bert of the package",
        ),
        ("", "from minisbert.core.bert import gelu as g; return g(x)", "minisbert.core.bert.gelu"),
        (
            "from transformers.activations import gelu",
            "return gelu(x)",
            "transformers.activations may not be",
        ),
        ("import sentence_transformers", "return x", "sentence_transformers may not be"),
        ("from . import other", "return x", "may not be imported"),
        ("import importlib", "return x", "importlib may not be"),
        ("import torch", "return torch.nn.functional.gelu(x)", "gelu is ready-made"),
        ("from torch.nn.functional import gelu as g", "return g(x)", "line 1: gelu is ready-made"),
        ("from torch import nn", "return nn.GELU()(x)", "GELU is ready-made"),
        ("import torch", "return torch.ops.aten.gelu(x)", "gelu is ready-made"),
        ("", "return __import__('minisbert.core.bert')", "__import__ leads out"),
        ("", "return open('/etc/passwd')", "open leads out"),
        ("from math import *", "return gelu_of(GELU(x))", "GELU is ready-made"),
    ],
)
def test_refused_by_reading(head, body, says):
    found = look(f"{head}\n" + GELU.format(body), pieces_of(6))
    assert says in found["bert.gelu"]
    assert all(reason.startswith("line ") for reason in found.values())


def test_what_is_inside_one_piece_concerns_that_piece_alone():
    text = GELU.format("return torch.nn.functional.gelu(x)")
    text += "class FeedForward:\n    def forward(self, x):\n"
    text += "        return self.down(gelu(self.up(x)))\n"
    assert look(text, pieces_of(6)).keys() == {"bert.gelu"}
    assert look("from torch.nn import GELU\n" + text, pieces_of(6)).keys() == {
        p.master for p in pieces_of(6)
    }
    found = look(
        "from minisbert.losses import cosine\n", pieces_of(11)
    )  # as in files of an older version
    assert "this lesson may import minisbert.core.encoder.cosine" in found["losses.mse_loss"]
    found = look(
        "from minisbert.training.losses import mlm_losses\n", pieces_of(24)
    )  # its mean is the piece
    assert "would be the answer" in found["losses.mlm_loss"]


@pytest.mark.parametrize(
    ("lesson", "text"),
    [
        (
            6,
            "import math, torch\ndef gelu(x):\n    return x * (1 + torch.erf(x / math.sqrt(2))) / "
            "2\n",
        ),
        (
            4,
            "class Embeddings:\n    def forward(self, ids, token_types):\n        return "
            "self.norm(self.layer_norm)\n",
        ),
        (10, "from minisbert.core.encoder import cosine_matrix\n"),
        (11, "from minisbert.core.encoder import cosine\n"),
        (
            5,
            "import numpy as np\nfrom torch.nn import functional as F\nx = F.softmax, np.array, "
            "np.trace\n",
        ),
        (6, "def gelu(input, vars=1):\n    open = input\n    return open\n"),
        (
            28,
            "def replay(network, parts):\n    for p in network.parameters():\n        p.grad = "
            "None\n",
        ),
        (
            24,
            "import operator, fractions\nx = sorted([1], key=[1].__getitem__), operator.mul, "
            "fractions.Fraction\n",
        ),
        (
            6,
            "from __future__ import annotations\nfrom collections.abc import Callable\nfrom math "
            "import *\n",
        ),
    ],
)
def test_what_is_fair_passes(lesson, text):
    assert look(text, pieces_of(lesson)) == {}


X = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    ("master", "call"),
    [
        ("bert.gelu", lambda: functional.gelu(X)),
        ("bert.gelu", lambda: torch.ops.aten.gelu(X)),
        ("bert.gelu", lambda: torch.ops.aten.gelu.default(X)),
        ("bert.layer_norm", lambda: nn.LayerNorm(4)(X)),
        ("bert.layer_norm", lambda: torch.native_layer_norm(X, (4,), None, None, 1e-5)),
        ("bert.attention", lambda: functional.scaled_dot_product_attention(X, X, X)),
        ("bert.attention", lambda: nn.MultiheadAttention(4, 2)(X, X, X)),
        ("encoder.cosine_matrix", lambda: nn.CosineSimilarity()(X, X)),
        ("losses.mse_loss", lambda: nn.MSELoss()(X, X)),
        (
            "losses.softmax_cross_entropy_loss",
            lambda: functional.cross_entropy(X[0], torch.tensor([0, 1, 2])),
        ),
        ("losses.triplet_loss", lambda: nn.TripletMarginLoss()(X[0], X[1], X[0])),
        ("metrics.pearson", lambda: torch.corrcoef(X[0])),
        ("metrics.pearson", lambda: np.corrcoef([1, 2], [3, 4])),
        ("bert.layer_norm", lambda: nn.InstanceNorm1d(3)(X)),
    ],
)
def test_a_ready_made_function_raises_however_it_is_reached(master, call):
    with pytest.raises(Refused, match="is ready-made"), refusing(PIECES[master].refused):
        call()
    call()  # and works again


def test_the_packages_own_function_is_refused_whoever_calls_it_and_an_except_does_not_hide_it():
    def hides():
        with contextlib.suppress(BaseException):
            functional.gelu(X)

    master = PIECES["bert.gelu"].original
    with (
        unfused(),
        pytest.raises(Refused, match="the package's own function is called"),
        refusing([], master),
    ):
        list(map(master, [X]))
    with pytest.raises(Refused), refusing(["gelu"]):
        hides()
    before = sys.getprofile()
    with contextlib.suppress(ValueError), refusing([], master):
        raise ValueError
    assert sys.getprofile() is before
    master(X)  # and works again
