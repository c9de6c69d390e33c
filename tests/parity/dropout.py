"""Dropout in training: which numbers are dropped, how many, and what the others are divided by."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.core.bert import BertConfig
from tests.parity import PIECE, Comparison, compare
from tests.parity.comparison import double, fact, normal, randomised
from tests.parity.encoder import CONFIG, torch_attention, torch_feed_forward, torch_layer_norm

DROPOUT = 0.3


def dropped(name: str, value: Tensor, plain: Tensor, kept: Tensor) -> Iterator[Comparison]:
    """Is each number of ``value`` (N, W) dropped 3 times of 10, and divided by 0.7 otherwise?

    ``plain`` (N, W) is the value without dropout; ``kept`` (2^W, N, W) are those with dropout, for
    each of the 2^W choices of the columns that are kept, in binary order.
    """
    yield fact(f"{name}: something is dropped", (value - plain).abs().amax() > PIECE)

    distance = (value - kept).detach().abs().amax(-1)  # (2^W, N)
    is_one = distance.amin(0) < PIECE  # (N,)
    yield fact(f"{name}: each number is either dropped or divided by 1 - dropout", is_one.all())

    # the bits of the nearest choice are the columns that were kept
    width = value.shape[1]
    lost = [width - int(choice).bit_count() for choice in distance.argmin(0)]
    share = (double(lost) * is_one).mean() / width
    name = f"{name}: share of the numbers that is dropped"
    yield compare(name, share.round(decimals=1), double(DROPOUT), PIECE)


def dropped_columns(name: str, value: Tensor, plain: Tensor) -> Iterator[Comparison]:
    """``dropped`` of numbers that are dropped one by one: ``value`` and ``plain`` of any shape."""
    plain = plain.reshape(-1, 1)
    kept = torch.stack([0 * plain, plain / (1 - DROPOUT)])  # (2, N, 1)
    yield from dropped(name, value.reshape(-1, 1), plain, kept)


def dropped_weights(
    name: str, context: Tensor, probabilities: Tensor, returned: Tensor
) -> Iterator[Comparison]:
    """Are attention's probabilities (..., T, S) dropped, and returned as they were before?

    ``context`` (..., T, 2, S) is of two values that are the identity: twice the weights.
    """
    equal = torch.equal(context[..., 0, :], context[..., 1, :])
    yield fact(f"{name}: one weight for all columns of a value", equal)
    yield from dropped_columns(name, context[..., 0, :], probabilities)
    same = (returned - probabilities).abs().amax() < PIECE
    yield fact(f"{name}: the probabilities that are returned are those before dropout", same)


def attention_dropout() -> Iterator[Comparison]:
    """Values are twice the identity, so that the context shows the weights."""
    query = normal(4, 2, 32, 64).detach()
    key = normal(4, 2, 32, 64, seed=1).detach()
    value = torch.eye(32).double().repeat(4, 2, 1, 2)  # (4, 2, 32, 64)
    torch.manual_seed(0)
    context, returned = bert.attention(query, key, value, None, DROPOUT)
    context = context.unflatten(-1, (2, 32))  # (4, 2, 32, 2, 32)
    probabilities = (query @ key.transpose(2, 3) / 8).softmax(-1)
    yield from dropped_weights("attention in training", context, probabilities, returned)


def attention_module_dropout() -> Iterator[Comparison]:
    """The same for the module, whose output shows both halves of each head's values.

    Each half is the first 16 columns of x, which are the identity.
    """
    module = randomised(bert.Attention(64, 2, dropout=DROPOUT)).train()
    x = normal(16, 16, 64, scale=0.3).detach()
    x[:, :, :16] = torch.eye(16)
    module.value.weight.data = torch.eye(64).double()[:16].repeat(4, 1)
    module.value.bias.data = torch.zeros(64).double()
    module.output.weight.data = torch.eye(64).double()
    module.output.bias.data = torch.zeros(64).double()
    torch.manual_seed(0)
    output, returned = module(x, None)
    _, probabilities = torch_attention(module, x, x, None)
    context = output.unflatten(-1, (2, 2, 16)).transpose(1, 2)  # (B, H, T, 2, S)
    yield from dropped_weights("attention module in training", context, probabilities, returned)


def layer_dropout() -> Iterator[Comparison]:
    """What attention adds, and what feed-forward adds, while the other adds nothing."""
    config = BertConfig(3, 4, 1, 2, 6, 9, layer_norm_eps=1e-3, hidden_dropout_prob=DROPOUT)
    block = randomised(bert.Layer(config)).train()
    block.attention.eval()
    x = normal(64, 8, 4).detach()

    # (16, 1, 1, 4): every choice of the four columns that are kept
    bits = [double([0.0, 1.0])] * 4
    choices = torch.cartesian_prod(*bits)[:, None, None] / (1 - DROPOUT)

    def first_norm(x: Tensor) -> Tensor:
        return torch_layer_norm(block.attention_norm, x)

    def second_norm(x: Tensor) -> Tensor:
        return torch_layer_norm(block.feed_forward_norm, x)

    # attention's output, beside a feed-forward that adds 0
    loud = block.feed_forward
    block.feed_forward = bert.FeedForward(config).double()
    for parameter in block.feed_forward.parameters():
        nn.init.zeros_(parameter)
    attended, _ = torch_attention(block.attention, x, x, None)  # (64, 8, 4)
    torch.manual_seed(0)
    output, _ = block(x, None)
    kept = second_norm(first_norm(x + attended * choices))  # (16, 64, 8, 4)
    plain = second_norm(first_norm(x + attended))
    name = "layer in training, attention's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))

    # feed-forward's output, beside an attention that adds 0
    block.feed_forward = loud
    nn.init.zeros_(block.attention.output.weight)
    nn.init.zeros_(block.attention.output.bias)
    first = first_norm(x)
    fed = torch_feed_forward(loud, first)
    plain = second_norm(first + fed)
    kept = second_norm(first + fed * choices)
    torch.manual_seed(0)
    output, _ = block(x, None)
    name = "layer in training, feed-forward's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))


def embeddings_dropout() -> Iterator[Comparison]:
    module = randomised(bert.Embeddings(replace(CONFIG, hidden_dropout_prob=DROPOUT))).train()
    ids = torch.randint(17, (80, 9), generator=torch.Generator().manual_seed(0))
    rows = module.word.weight[ids] + module.position.weight + module.token_type.weight[0]
    torch.manual_seed(0)
    output = module(ids, None)
    yield from dropped_columns(
        "embeddings in training", output, torch_layer_norm(module.norm, rows)
    )
