"""Dropout in training: which numbers are dropped, how many, and what the others are divided by."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from minisbert.core import bert
from minisbert.core.bert import BertConfig
from tests.parity import PIECE, Comparison, compare
from tests.parity.comparison import d, fact, normal, randomised
from tests.parity.encoder import CONFIG, torch_attention, torch_feed_forward, torch_layer_norm

DROPOUT = 0.3  # in training


def dropped(name: str, value: Tensor, plain: Tensor, kept: Tensor) -> Iterator[Comparison]:
    """Is each number of ``value`` (N, W) dropped 3 times of 10, and divided by 0.7 otherwise?

    ``plain`` (N, W) is the value without dropout; ``kept`` (2^W, N, W) are those with dropout, for
    each of the 2^W choices of the columns that are kept, in binary order.
    """
    yield fact(f"{name}: something is dropped", (value - plain).abs().amax() > PIECE)
    distance = (value - kept).detach().abs().amax(-1)  # (2^W, N)
    is_one = distance.amin(0) < PIECE  # (N,)
    yield fact(f"{name}: each number is either dropped or divided by 1 - dropout", is_one.all())
    lost = value.shape[1] - distance.argmin(0).double().remainder(len(kept)).to(torch.int64).apply_(
        int.bit_count
    )
    share = (lost * is_one).double().mean() / value.shape[1]
    yield compare(
        f"{name}: share of the numbers that is dropped", share.round(decimals=1), d(DROPOUT), PIECE
    )


def dropped_weights(
    name: str, context: Tensor, probabilities: Tensor, returned: Tensor
) -> Iterator[Comparison]:
    """``context`` (..., T, 2, S) is of two values that are the identity: twice the weights (..., T,
    S).
    """
    yield fact(
        f"{name}: one weight for all columns of a value",
        torch.equal(context[..., 0, :], context[..., 1, :]),
    )
    weights = probabilities.reshape(-1, 1)
    kept = torch.stack([0 * weights, weights / (1 - DROPOUT)])
    yield from dropped(name, context[..., 0, :].reshape(-1, 1), weights, kept)
    same = (returned - probabilities).abs().amax() < PIECE
    yield fact(f"{name}: the probabilities that are returned are those before dropout", same)


def attention_dropout() -> Iterator[Comparison]:
    """Values are twice the identity, so that the context shows the weights."""
    query, key = normal(4, 2, 32, 64).detach(), normal(4, 2, 32, 64, seed=1).detach()
    value = torch.eye(32).double().repeat(4, 2, 1, 2)  # (4, 2, 32, 64)
    torch.manual_seed(0)
    context, returned = bert.attention(query, key, value, None, DROPOUT)
    probabilities = (query @ key.transpose(2, 3) / 8).softmax(-1)
    yield from dropped_weights(
        "attention in training", context.unflatten(-1, (2, 32)), probabilities, returned
    )


def attention_module_dropout() -> Iterator[Comparison]:
    """The same for the module: both halves of each head's values are the first 16 columns of x, the
    identity.
    """
    module = randomised(bert.Attention(64, 2, dropout=DROPOUT)).train()
    x = normal(16, 16, 64, scale=0.3).detach()
    x[:, :, :16] = torch.eye(16)
    module.value.weight.data = torch.eye(64).double()[:16].repeat(4, 1)
    module.output.weight.data = torch.eye(64).double()
    module.value.bias.data, module.output.bias.data = torch.zeros(2, 64).double()
    torch.manual_seed(0)
    output, returned = module(x, None)
    probabilities = torch_attention(module, x, x, None)[1]
    context = output.unflatten(-1, (2, 2, 16)).transpose(1, 2)  # (B, H, T, 2, S)
    yield from dropped_weights("attention module in training", context, probabilities, returned)


def layer_dropout() -> Iterator[Comparison]:
    """What attention adds, and what feed-forward adds, while the other adds nothing."""
    config = BertConfig(3, 4, 1, 2, 6, 9, layer_norm_eps=1e-3, hidden_dropout_prob=DROPOUT)
    block, x = randomised(bert.Layer(config)).train(), normal(64, 8, 4).detach()
    block.attention.eval()
    norm = torch_layer_norm
    choices = torch.cartesian_prod(*[d(0.0).new_tensor([0.0, 1.0])] * 4)[:, None, None] / (
        1 - DROPOUT
    )
    silent = bert.FeedForward(config).double()
    for parameter in silent.parameters():
        nn.init.zeros_(parameter)
    loud, block.feed_forward = block.feed_forward, silent
    attended = torch_attention(block.attention, x, x, None)[0]  # (64, 8, 4)
    torch.manual_seed(0)
    output = block(x, None)[0]
    kept = norm(
        block.feed_forward_norm, norm(block.attention_norm, x + attended * choices)
    )  # (16, 64, 8, 4)
    plain = norm(block.feed_forward_norm, norm(block.attention_norm, x + attended))
    name = "layer in training, attention's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))
    block.attention_dropout = nn.Identity()
    same = (block(x, None)[0] - plain).abs().amax() < PIECE
    yield fact("layer of a DistilBERT in training: attention's output is not dropped", same)
    block.feed_forward = loud
    nn.init.zeros_(block.attention.output.weight)
    nn.init.zeros_(block.attention.output.bias)
    first = norm(block.attention_norm, x)
    plain = norm(block.feed_forward_norm, first + torch_feed_forward(loud, first))
    kept = norm(block.feed_forward_norm, first + torch_feed_forward(loud, first) * choices)
    torch.manual_seed(0)
    output = block(x, None)[0]
    name = "layer in training, feed-forward's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))


def embeddings_dropout() -> Iterator[Comparison]:
    module = randomised(bert.Embeddings(replace(CONFIG, hidden_dropout_prob=DROPOUT))).train()
    ids = torch.randint(17, (80, 9), generator=torch.Generator().manual_seed(0))
    rows = module.word.weight[ids] + module.position.weight + module.token_type.weight[0]
    whole = torch_layer_norm(module.norm, rows).reshape(-1, 1)
    torch.manual_seed(0)
    output = module(ids, None).reshape(-1, 1)
    yield from dropped(
        "embeddings in training", output, whole, torch.stack([0 * whole, whole / (1 - DROPOUT)])
    )
