"""Importing the answer, or calling a ready-made one, is refused: by reading and by running."""

import contextlib
import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lessons.grader.guard import Refused, guarded, guarded_builtins, look, refusing, untouched
from lessons.grader.ladder import climb
from lessons.grader.pieces import PIECES, pieces_of
from minisbert.core import bert
from minisbert.diagnosis.planting import unfused

GELU = "def gelu(x):\n    {}\n"


@pytest.mark.parametrize(
    ("head", "body", "says"),
    [
        ("from minisbert.core.bert import gelu", "return gelu(x)", "line 1: minisbert.core.bert.gelu of the package"),
        ("from minisbert.core import bert", "return bert.gelu(x)", "line 1: minisbert.core.bert of the package"),
        ("", "from minisbert.core.bert import gelu as g; return g(x)", "minisbert.core.bert.gelu"),
        ("from transformers.activations import gelu", "return gelu(x)", "transformers.activations may not be"),
        ("import sentence_transformers", "return x", "sentence_transformers may not be"),
        ("from . import other", "return x", "may not be imported"),
        ("import importlib", "return x", "importlib may not be"),
        ("import torch", "return torch.nn.functional.gelu(x)", "gelu is ready-made"),
        ("from torch.nn.functional import gelu as g", "return g(x)", "line 1: gelu is ready-made"),
        ("from torch import nn", "return nn.GELU()(x)", "GELU is ready-made"),
        ("import torch.nn.functional as F", "return getattr(F, 'gelu')(x)", "gelu is ready-made"),
        ("import torch", "return torch.ops.aten.gelu(x)", "gelu is ready-made"),
        ("", "return __import__('minisbert.core.bert')", "__import__ leads out"),
        ("", "return open('/etc/passwd')", "open leads out"),
        ("import torch", "return torch.sys.modules", "sys leads out"),
        ("from torch import sys", "return x", "sys leads out"),
        ("import torch", "return torch.erf.__globals__", "__globals__ leads out"),
        ("import torch", "return torch.serialization.pickle.loads(x)", "pickle leads out"),
        ("import torch", "torch.Tensor.abs = torch.zeros_like", "torch.Tensor.abs is set: change nothing"),
        ("import typing", "return typing.get_type_hints(x)", "get_type_hints leads out"),
        ("from dataclasses import FunctionType", "return x", "FunctionType leads out"),
        ("import operator", "return operator.attrgetter('__globals__')(x)", "attrgetter leads out"),
        ("import torch", "torch.save(x, 'x')", "save leads out"),
        ("", "return __loader__", "__loader__ leads out"),
        ("import torch\ndef f(self):\n    return self.sys", "return f(torch)", "sys leads out"),
        ("import copy, torch", "y = copy.deepcopy(x); y = torch; y.erf = 0; return y", "y.erf is set: change nothing"),
        ("import torch", "setattr(torch, 'erf', None)", "setattr leads out"),
        ("import torch.utils.data", "return x", "torch.utils.data may not be imported"),
        ("from torch import utils", "return x", "the module torch.utils is more than a lesson needs"),
        ("import numpy as np", "return np.lib", "the module numpy.lib is more than a lesson needs"),
        ("import torch", "return torch._decomp", "_decomp leads out"),
        ("import torch", "return getattr(torch, '_decomp')", "_decomp leads out"),
        ("import torch", "match x:\n        case torch.sys.path: return x", "sys leads out"),
        ("from torch.nn.functional import *", "return gelu_of(x) + GELU(x)", "GELU is ready-made"),
        ("import dataclasses", "return dataclasses.sys", "sys leads out"),
        ("from operator import *\ndef f(attrgetter): pass", "return attrgetter('a')(x)", "attrgetter leads out"),
        ("from dataclasses import dataclass", "return x", "dataclass leads out"),
        ("import torch", "return torch.from_file('x', shared=True, size=4)", "from_file leads out"),
        ("import numpy as np", "return np.ones(3).ctypes.shape", "ctypes leads out"),
        ("import torch", "torch.PyTorchFileWriter('x')", "PyTorchFileWriter leads out"),
        ("class A: __match_args__ = ('gi_' + 'frame',)", "match x:\n        case A(y): return y", "class pattern"),
    ],
)
def test_refused_by_reading(head, body, says):
    found = look(f"{head}\n" + GELU.format(body), pieces_of(6))
    assert says in found["bert.gelu"]
    assert all(reason.startswith("line ") for reason in found.values())


def test_what_is_inside_one_piece_concerns_that_piece_alone():
    text = GELU.format("return torch.nn.functional.gelu(x)")
    text += "class FeedForward:\n    def forward(self, x):\n        return self.down(gelu(self.up(x)))\n"
    assert look(text, pieces_of(6)).keys() == {"bert.gelu"}
    assert look("from torch.nn import GELU\n" + text, pieces_of(6)).keys() == {p.master for p in pieces_of(6)}
    found = look("from minisbert.losses import cosine\n", pieces_of(11))  # as in files of an older version
    assert "this lesson may import minisbert.core.encoder.cosine" in found["losses.mse_loss"]
    found = look("from minisbert.training.losses import mlm_losses\n", pieces_of(24))  # its mean is the piece
    assert "would be the answer" in found["losses.mlm_loss"]


@pytest.mark.parametrize(
    ("lesson", "text"),
    [
        (6, "import math, torch\ndef gelu(x):\n    return x * (1 + torch.erf(x / math.sqrt(2))) / 2\n"),
        (4, "class Embeddings:\n    def forward(self, ids, token_types):\n        return self.norm(self.layer_norm)\n"),
        (10, "from minisbert.core.encoder import cosine, cosine_matrix\n"),
        (5, "import numpy as np\nfrom torch.nn import functional as F\nx = F.softmax, np.array, np.trace\n"),
        (
            5,
            "import torch\nx = torch.ones(4).chunk(2), torch.chunk, torch.select, torch.linalg.norm, torch.nn.Module\n",
        ),
        (6, "def gelu(input, vars=1):\n    open = input\n    return open\n"),
        (6, "def gelu(x):\n    y = z = x.clone()\n    y.scale: int = 2\n    return y\n"),
        (6, "import torch\ndef gelu(x):\n    return x * torch.distributions.Normal(0, 1).cdf(x)\n"),
        (28, "def replay(network, parts):\n    for p in network.parameters():\n        p.grad = None\n"),
        (6, "def gelu(x):\n    gelu.calls = 1\n    return x\nclass A:\n    token = 1\nx = A().token\n"),
        (24, "import operator, fractions\nx = sorted([1], key=[1].__getitem__), operator.mul, fractions.Fraction\n"),
        (6, "from __future__ import annotations\nfrom collections.abc import Callable\nfrom math import *\n"),
        (6, "class Layer:\n    def forward(self, x):\n        return Layer._twice(self._norm(x))\n"),
        (9, "import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"),
        (9, "import numpy as np\nrng = np.random.default_rng(0)\nx = np.linalg.norm, rng.random(3)\n"),
    ],
)
def test_what_is_fair_passes(lesson, text):
    assert look(text, pieces_of(lesson)) == {}


@pytest.mark.parametrize("cls", [torch.Tensor, nn.Linear, bert.LayerNorm])
def test_a_class_that_a_detour_has_changed_is_restored_and_the_piece_refused(cls):
    def detour(x):
        for each in [copy.deepcopy(cls)]:  # a class is its own copy
            each.forward = lambda self, x: x
        return x

    before = dict(vars(cls))
    result = climb(PIECES["bert.gelu"], detour)
    assert result.status == "refused"
    assert f"{cls.__name__}.forward is set: change nothing outside this file" in result.rungs[-1][2]
    assert dict(vars(cls)) == before


def test_a_tensor_with_a_detach_of_its_own_fails():
    """With one it could answer the grader's comparison itself."""

    def gelu(x):
        y = x.clone()
        y.detach = lambda: None
        return y

    result = climb(PIECES["bert.gelu"], gelu)
    assert result.status == "failed"
    assert "returns a tensor with attributes of its own: detach" in result.rungs[-1][2]


def run(text: str, lesson: int) -> dict:
    space = {"__builtins__": guarded_builtins(pieces_of(lesson)), "__name__": "mine"}
    exec(guarded(text, "mine.py"), space)
    return space


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ngetattr(torch.nn.functional, 'ge' + 'lu')",
        "b = [x for x in ['__imp' + 'ort__']]\nexec('import os')",
        "import os",
        "from minisbert.core.bert import gelu",
        "try:\n    import minisbert\nexcept Exception:\n    pass",
        "import numpy\n[numpy][0].lib.format.open_memmap",
        "import torch\nfor t in [torch]: t.utils.collect_env.run('true')",
        "from torch import nn\n(lambda: nn)().modules.module.register_module_forward_hook",
        "import torch\nclass A:\n    def f(self): return self.save\nA.f(torch)",
        "import numpy\nclass A:\n    def f(self): return self.tofile\nA.f(numpy.ones(3))",
        "'{0.__traceback__}'.format(ValueError())",
        "f = '{:{0[a].b}}'.format\nf(1)",
        "'{x.real}'.format_map({'x': 1})",
        "str.format('{0.real}', 1)",
        "class A(str):\n    def f(self): return super().format(1)\nA('{0.real}').f()",
    ],
)
def test_refused_while_it_runs(text):
    with pytest.raises(Refused):
        run(text, 6)


def test_attributes_are_what_they_are_without_the_guard():
    """Also those of slots, of ``super``, with private names, in patterns, decorators, formats and comprehensions."""
    text = """
from __future__ import annotations
import functools, math, torch
class A:
    token: torch.Tensor = 1
    def __init__(self):
        self.__own, self._other = 2, 3
    @functools.cached_property
    def tau(self) -> float:
        return math.tau
class B(A):
    def __init__(self):
        super().__init__()
        self.load = [x.real for x in (self.token, self._other, self._A__own)]
    def own(self):
        match self.token:
            case torch.pi:
                return None
            case A.token:
                self.load[0] += 1
        return self.load
found = B().own(), "{:.1f}".format(B().tau), torch.nn.functional.relu(torch.ones(2).neg_()).sum().item()
"""
    assert run(text, 6)["found"] == ([2, 3, 2], "6.3", 0.0)


def test_an_error_names_the_line_of_the_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'dimensions'") as caught:
        run("import torch\nx = (\n    torch.ones(2)\n    .dimensions\n)", 6)
    assert [frame.lineno for frame in caught.traceback if str(frame.path).endswith("mine.py")] == [3]  # from 0


def test_modes_that_are_left_switched_are_switched_back():
    before = torch.is_grad_enabled(), torch.get_default_dtype()
    with contextlib.suppress(Refused), untouched():
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == before


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
        ("losses.softmax_cross_entropy_loss", lambda: functional.cross_entropy(X[0], torch.tensor([0, 1, 2]))),
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
    with unfused(), pytest.raises(Refused, match="the package's own function is called"), refusing([], master):
        list(map(master, [X]))
    with pytest.raises(Refused), refusing(["gelu"]):
        hides()
    before = sys.getprofile()
    with contextlib.suppress(ValueError), refusing([], master):
        raise ValueError
    assert sys.getprofile() is before
    master(X)  # and works again
