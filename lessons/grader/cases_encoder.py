"""Hand examples and traps of lessons 4 to 7: the encoder."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from lessons.grader.cases import cases, d, example, t, trap, with_weights
from minisbert.core import bert
from minisbert.core.weights import BertConfig
from tests.parity.comparison import normal, randomised
from tests.parity.encoder import (
    CONFIG,
    torch_attention,
    torch_feed_forward,
    torch_layer,
)

TWO = BertConfig(3, 2, 1, 1, 2, 4)  # width 2, one head
EYE = [[1.0, 0.0], [0.0, 1.0]]
REAL = torch.tensor([[True, True, False]])  # two tokens and a pad

# ---------------------------------------------------------------------------- embeddings, LayerNorm


@cases("bert.layer_norm")
def _():
    x = t([1.0, 3.0], [10.0, 10.5])
    ones = torch.ones(2)
    zeros = torch.zeros(2)
    yield example(
        "[1, 3] and [10, 10.5]", t([-1.0, 1.0], [-1.0, 1.0]), bert.layer_norm, x, ones, zeros, 1e-12
    )
    name = "[1, 3] with eps 1, weight [2, 3], bias 5"
    expected = t([5 - 2 * 0.70711, 5 + 3 * 0.70711])
    yield example(name, expected, bert.layer_norm, x[:1], t(2.0, 3.0), zeros + 5, 1.0)
    ones = torch.ones(3).double()
    bias = d(7.0, 8.0, 9.0)
    # The mean of squares minus the square of the mean has no digits left here.
    x = normal(2, 3).detach() + 1e5
    expected = functional.layer_norm(x, (3,), ones, bias, 1e-12)
    yield trap("numbers around 1e5", expected, bert.layer_norm, x, ones, bias, 1e-12)


def shapes(module: torch.nn.Module) -> dict[str, str]:
    """Every parameter of a module by name, with its shape in words, or what is wrong with it."""
    found = not_registered(module)
    for name, parameter in module.named_parameters():
        found[name] = " x ".join(str(size) for size in parameter.shape)
    return found


def not_registered(module: torch.nn.Module) -> dict[str, str]:
    """What torch does not count as a parameter of its own, by name, and why.

    Without that a learner reads only that a name is missing.
    """
    names: dict[int, str] = {}
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            found[name] = f"registered twice, it is also {names[id(parameter)]}: make one for each"
        else:
            names[id(parameter)] = name
    for name, value in vars(module).items():
        if isinstance(value, list | tuple):
            for i in range(len(value)):
                found[f"{name}.{i}"] = "in a plain list, where torch does not see it: nn.ModuleList"
    return found


def drops(module: torch.nn.Module) -> str:
    """Do two calls in train mode differ?"""
    x = normal(1, 4, 6).detach()
    module.train()
    equal = torch.equal(module(x, None)[0], module(x, None)[0])
    return "drops nothing" if equal else "drops numbers"


def dropped_share(module: torch.nn.Module, *inputs: Any) -> float:
    """The share of zeros in what a module gives in train mode, to one digit."""
    torch.manual_seed(0)
    result = module.train()(*inputs)
    if isinstance(result, tuple):
        result = result[0]
    return round((result == 0).double().mean().item(), 1)


@cases("bert.Embeddings.__init__")
def _():
    expected = {
        "word.weight": "3 x 2",
        "position.weight": "4 x 2",
        "token_type.weight": "5 x 2",
        "norm.weight": "2",
        "norm.bias": "2",
    }
    make = lambda: shapes(bert.Embeddings(replace(TWO, type_vocab_size=5)))  # noqa: E731
    yield example("3 words, 4 positions, 5 token types, width 2", expected, make)

    def with_eps() -> torch.Tensor:
        module = with_weights(
            bert.Embeddings(replace(TWO, layer_norm_eps=0.75)), word__weight=[[1.0, 0.0]] * 3
        )
        return module(torch.tensor([[1]]), None)

    # deviations of 1/2, variance 1/4
    yield trap("[1, 0] with layer_norm_eps = 3/4", t([[0.5, -0.5]]), with_eps)

    def share() -> float:
        module = randomised(bert.Embeddings(replace(CONFIG, hidden_dropout_prob=0.7)))
        return dropped_share(module, torch.arange(9).repeat(50, 1), None)

    yield trap("hidden_dropout_prob = 0.7: the share of zeros in training", 0.7, share)


@cases("bert.Embeddings.forward")
def _():
    tables = {
        "word__weight": [[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]],
        "position__weight": [[0.0, 0.0], [0.0, 2.0]] * 2,
    }
    module = with_weights(
        bert.Embeddings(TWO), **tables, token_type__weight=[[0.0, 0.0], [0.0, 3.0]]
    )
    ids = torch.tensor([[1, 2]])
    types = torch.tensor([[0, 1]])
    yield example(
        "[1, 0] and [4, 2 + 3], normalised", t([[1.0, -1.0], [-1.0, 1.0]]), module, ids, types
    )
    module = randomised(bert.Embeddings(CONFIG))
    row = module.word.weight[4] + module.position.weight[0] + module.token_type.weight[0]
    expected = functional.layer_norm(
        row, (12,), module.norm.weight, module.norm.bias, CONFIG.layer_norm_eps
    )
    yield trap("one token", expected[None, None], module, torch.tensor([[4]]), None)


# ---------------------------------------------------------------------------------------- attention


@cases("bert.attention")
def _():
    query = t([[[1.0, 0.0]]])
    key = t([[[0.0, 1.0], [math.sqrt(2.0) * math.log(3.0), 0.0], [9.0, 9.0]]])
    value = t([[[0.0, 4.0], [4.0, 0.0], [99.0, 99.0]]])
    mask = REAL[:, None, None]
    expected = t([[[3.0, 1.0]]]), t([[[0.25, 0.75, 0.0]]])
    yield example(
        "scores 0 and log 3, and a pad", expected, bert.attention, query, key, value, mask
    )
    query, key, value = (normal(1, 2, n, 4, seed=n).detach() for n in (3, 5, 5))
    theirs = functional.scaled_dot_product_attention
    only = torch.tensor([True, False, False, False, False])[None, None, None]
    context = lambda *x: bert.attention(*x)[0]  # noqa: E731
    yield trap(
        "large scores", theirs(1e4 * query, key, value), context, 1e4 * query, key, value, None
    )
    yield trap(
        "all but one key are pads",
        theirs(query, key, value, only),
        context,
        query,
        key,
        value,
        only,
    )
    wild = value.masked_fill(~only[0, 0, 0][:, None], 1e30)
    yield trap(
        "huge values at the pads",
        wild[:, :, :1].expand(1, 2, 3, 4),
        context,
        query,
        key,
        wild,
        only,
    )


TOKENS = [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]]]
APART = [[[[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]], [[3.0, 4.0], [7.0, 8.0], [11.0, 12.0]]]]
HEADS = bert.Attention(4, 2)  # width 4, two heads of width 2


@cases("bert.Attention.__init__")
def _():
    expected = {}
    for part in ("query", "key", "value", "output"):
        expected |= {f"{part}.weight": "6 x 6", f"{part}.bias": "6"}
    yield example("width 6, three heads", expected, lambda: shapes(bert.Attention(6, 3)))
    # an nn.Dropout would fail only where it is compared with a number
    name = "self.dropout, a plain number, for a rate of .5"
    yield example(name, 0.5, lambda: bert.Attention(6, 3, 0.5).dropout)

    def heads() -> tuple[int, ...]:
        module = randomised(bert.Attention(6, 3))
        return tuple(module(normal(1, 4, 6).detach(), None)[1].shape)

    yield trap("the shape of the probabilities of one text, four tokens", (1, 3, 4, 4), heads)

    def in_training(dropout: float) -> str:
        return drops(randomised(bert.Attention(6, 3, dropout)))

    yield trap("a dropout of .5 in training", "drops numbers", in_training, 0.5)
    yield trap("a dropout of 0 in training", "drops nothing", in_training, 0.0)


@cases("bert.Attention.split")
def _():
    yield example("three tokens, two heads", torch.tensor(APART), HEADS.split, torch.tensor(TOKENS))
    x = normal(2, 4, 3).detach().transpose(1, 2)  # (2, 3, 4), not contiguous
    yield trap("a transposed input", torch.stack(x.chunk(2, -1), 1), HEADS.split, x)


@cases("bert.Attention.merge")
def _():
    yield example("two heads, three tokens", torch.tensor(TOKENS), HEADS.merge, torch.tensor(APART))
    x = normal(2, 3, 2, 2).detach().transpose(1, 2)
    yield trap("a transposed input", torch.cat(x.unbind(1), -1), HEADS.merge, x)


@cases("bert.Attention.forward")
def _():
    weights = {
        "value__weight": EYE,
        "value__bias": [1.0, 1.0],
        "output__weight": [[2.0, 0.0], [0.0, 2.0]],
    }
    module = with_weights(bert.Attention(2, 1), **weights)
    expected = t([[6.0, 10.0], [6.0, 10.0]]), torch.full((1, 1, 2, 2), 0.5)
    yield example(
        "queries 0, so equal shares of x + 1, doubled",
        expected,
        module,
        t([[0.0, 2.0], [4.0, 6.0]]),
        None,
    )
    module = randomised(bert.Attention(12, 3, dropout=0.1))
    x = normal(3, 4, 12).detach()
    mask = torch.tensor([[True] * 4, [True, False, False, False], [True, True, False, False]])
    expected = torch_attention(module, x, x, mask)
    yield trap("texts that are nearly all pads", expected, module, x, mask[:, None, None])


# ----------------------------------------------------------------------- feed-forward, layer, model


@cases("bert.gelu")
def _():
    yield example(
        "1, -1, 0 and 2", t(0.84134, -0.15866, 0.0, 1.95450), bert.gelu, t(1.0, -1.0, 0.0, 2.0)
    )
    yield trap("far out", d(60.0, 0.0, 1e9, 0.0), bert.gelu, d(60.0, -60.0, 1e9, -1e9))
    yield trap(
        "-5.25, which is not far enough out",
        d(-5.25 * math.erfc(5.25 / math.sqrt(2)) / 2),
        bert.gelu,
        d(-5.25),
    )


@cases("bert.FeedForward.__init__")
def _():
    expected = {
        "up.weight": "5 x 2",
        "up.bias": "5",
        "down.weight": "2 x 5",
        "down.bias": "2",
    }
    make = lambda: shapes(bert.FeedForward(replace(TWO, intermediate_size=5)))  # noqa: E731
    yield example("2 columns, 5 in the middle", expected, make)

    def used() -> torch.Tensor:
        module = with_weights(bert.FeedForward(TWO), up__weight=EYE, down__weight=EYE)
        return module.double()(d([1.0, 0.0]))

    yield trap("gelu stands between them", d([math.erf(0.5**0.5) / 2 + 0.5, 0.0]), used)


@cases("bert.FeedForward.forward")
def _():
    weights = {
        "up__weight": EYE,
        "up__bias": [1.0, -1.0],
        "down__weight": [[1.0, 1.0], [0.0, 10.0]],
    }
    module = with_weights(bert.FeedForward(TWO), **weights, down__bias=[0.0, 1.0])
    yield example(
        "up gives [1, -1], gelu [0.8413, -0.1587]",
        t([[0.68269, -0.58655]]),
        module,
        t([[0.0, 0.0]]),
    )
    module = randomised(bert.FeedForward(CONFIG))
    x = normal(1, 1, 12).detach()
    yield trap("one text of one token", torch_feed_forward(module, x), module, x)


@cases("bert.Layer.__init__")
def _():
    expected = {}
    for part in ("query", "key", "value", "output"):
        expected |= {f"attention.{part}.weight": "6 x 6", f"attention.{part}.bias": "6"}
    expected |= {
        "attention_norm.weight": "6",
        "attention_norm.bias": "6",
        "feed_forward.up.weight": "5 x 6",
        "feed_forward.up.bias": "5",
        "feed_forward.down.weight": "6 x 5",
        "feed_forward.down.bias": "6",
        "feed_forward_norm.weight": "6",
        "feed_forward_norm.bias": "6",
    }
    config = BertConfig(9, 6, 1, 3, 5, 4)
    yield example("width 6, 5 in the middle", expected, lambda: shapes(bert.Layer(config)))

    def with_rates(attention: float, hidden: float) -> bert.Layer:
        rates = {"attention_probs_dropout_prob": attention, "hidden_dropout_prob": hidden}
        return randomised(bert.Layer(replace(config, **rates)))

    def attention_alone(attention: float, hidden: float) -> str:
        return drops(with_rates(attention, hidden).attention)

    name = "attention_probs_dropout_prob = {}, hidden_dropout_prob = {}: self.attention in training"
    yield trap(name.format(0, 0.5), "drops nothing", attention_alone, 0.0, 0.5)
    yield trap(name.format(0.5, 0), "drops numbers", attention_alone, 0.5, 0.0)
    name = "attention_probs_dropout_prob = 0, hidden_dropout_prob = .5: the layer in training"
    yield trap(name, "drops numbers", lambda: drops(with_rates(0.0, 0.5)))

    def with_eps() -> torch.Tensor:
        module = with_weights(bert.Layer(replace(TWO, layer_norm_eps=0.75)))
        return module(t([[0.5, -0.5]]), None)[0]

    # variance 1/4: [.5, -.5] again, and again
    yield trap("[.5, -.5] twice with layer_norm_eps = 3/4", t([[0.5, -0.5]]), with_eps)


@cases("bert.Layer.forward")
def _():
    module = with_weights(
        bert.Layer(TWO), attention__output__bias=[2.0, 0.0], feed_forward__down__bias=[0.0, 4.0]
    )
    expected = t([[-1.0, 1.0]]), torch.ones(1, 1, 1, 1)
    yield example(
        "[0, 1] + [2, 0] -> [1, -1]; + [0, 4] -> [-1, 1]", expected, module, t([[0.0, 1.0]]), None
    )
    module = randomised(bert.Layer(CONFIG))
    x = normal(2, 5, 12).detach()
    mask = torch.tensor([[True] * 5, [True] + [False] * 4])
    state = lambda *x: module(*x)[0]  # noqa: E731
    yield trap(
        "a text that is nearly all pads",
        torch_layer(module, x, mask),
        state,
        x,
        mask[:, None, None],
    )


@cases("bert.Bert.__init__")
def _():
    config = replace(TWO, num_hidden_layers=2)

    def part_of(name: str) -> str:
        return ".".join(name.split(".")[: 2 if name.startswith("layers") else 1])

    def counts(pooler: bool) -> dict[str, Any]:
        model = bert.Bert(config, pooler)
        found: dict[str, Any] = {}
        for name, parameter in model.named_parameters():
            part = part_of(name)
            found[part] = found.get(part, 0) + parameter.numel()
        for name, problem in reversed(not_registered(model).items()):  # the first of a part stays
            found[part_of(name)] = problem
        return found

    # tables (3 + 4 + 2) * 2 and a norm; four and two matrices of 2 x 2 with biases, two norms
    expected = {"embeddings": 22, "layers.0": 24 + 12 + 8, "layers.1": 24 + 12 + 8}
    name = "numbers in each part, two layers of width 2"
    yield example(f"{name}, no pooler", expected, counts, False)
    yield example(f"{name}, and the pooler", expected | {"pooler": 6}, counts, True)

    def no_pooler() -> bool:
        return bert.Bert(config, pooler=False).pooler is None

    yield trap("without a pooler self.pooler is None", True, no_pooler)
    yield trap("its config is kept", config, lambda: bert.Bert(config).config)

    def spread() -> list[float]:
        torch.manual_seed(0)
        model = bert.Bert(BertConfig(500, 80, 1, 2, 90, 60, initializer_range=0.05))
        tensors = (
            model.embeddings.word.weight,
            model.layers[0].attention.query.weight,
            model.layers[0].feed_forward.down.weight,
            model.pooler.weight,
        )
        return [round(tensor.std().item(), 2) for tensor in tensors]

    name = "initializer_range = .05: the spread of a table, of two matrices and of the pooler"
    yield trap(name, [0.05] * 4, spread)

    def largest_bias() -> float:
        model = bert.Bert(config)
        biases = [x for name, x in model.named_parameters() if name.endswith("bias")]
        return max(bias.abs().max().item() for bias in biases)

    yield trap("the largest new bias", 0.0, largest_bias)


@cases("bert.Bert.forward")
def _():
    words = [[0.0, 0.0], [0.0, 1.0], [5.0, 2.0]]
    model = with_weights(bert.Bert(TWO, pooler=False), embeddings__word__weight=words)
    ids = torch.tensor([[1, 2, 0]])
    mask = torch.tensor([[1, 1, 0]])
    yield example(
        "a layer that adds nothing", t([[-1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]), model, ids, mask
    )
    model = randomised(bert.Bert(replace(CONFIG, num_hidden_layers=2), pooler=False))
    row = torch.tensor([[3, 5, 2, 7, 4]])
    expected = model.embeddings(row, None)
    for layer in model.layers:
        expected = torch_layer(layer, expected, None)
    yield trap("every token is real, and no mask says so", expected, model, row)

    def in_training() -> tuple[bool, bool]:
        dropping = randomised(
            bert.Bert(replace(CONFIG, hidden_dropout_prob=0.5), pooler=False)
        ).train()
        first = dropping(row)
        second = dropping(row)
        return torch.equal(first, second), dropping.training and dropping.layers[0].training

    yield trap("in training two calls differ, and it stays in training", (False, True), in_training)
