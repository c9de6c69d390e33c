"""All poolings that models need, alone or side by side, and the dense layers after them.

    mean, cls, max, attention                      the book's formulas (``core/pooling.py``)
    mean_sqrt_len_tokens, weightedmean, lasttoken  as in sentence-transformers
    pooler                                         [CLS]; BERT's dense layer and tanh follow

sentence-transformers has no ``attention``. We save its name under ``pooling_mode``, because
sentence-transformers refuses a name that it does not know there. Elsewhere it would ignore the name
and compute other vectors.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import CONFIG, WEIGHTS, ModelFolder, unsupported
from minisbert.checkpoints.module_names import POOLING_FLAGS
from minisbert.checkpoints.weights import fill, read_weights, unfilled, write_safetensors
from minisbert.core import InputError
from minisbert.core.pooling import attention_pool, cls_pool, max_pool, mean_pool
from minisbert.system.files import write_json
from minisbert.system.reading import reading


def mean_sqrt_len_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Divide the sum over real tokens by the root of their number: (B, T, D) -> (B, D).

    Tokens [1], [3] and a pad give [2.83].
    """
    count = real_tokens(hidden, mask).sum(dim=1, keepdim=True)  # (B, 1)
    return mean_pool(hidden, mask) * count.sqrt()


def weighted_mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average real tokens with the weights 1, 2, 3, ... (SGPT): (B, T, D) -> (B, D).

    Tokens [1], [4] and a pad give [3].
    """
    numbers = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    weights = numbers.to(hidden.dtype).unsqueeze(-1)  # (T, 1)
    real = real_tokens(hidden, mask)  # (B, T)
    count = real.sum(dim=1, keepdim=True)  # (B, 1)
    weighted_sum = mean_pool(hidden * weights, mask) * count  # (B, D)
    return weighted_sum / (real @ weights)  # (B, D) / (B, 1)


def real_tokens(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return 1 for each real token and 0 for each pad, in the dtype of ``hidden``: (B, T)."""
    if mask is None:
        return hidden.new_ones(hidden.shape[:2])
    return mask.to(hidden)


def last_token_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Take a text's last real token: hidden (B, T, D), mask (B, T) -> (B, D)."""
    if mask is None:
        return hidden[:, -1]
    last = (mask * torch.arange(hidden.shape[1], device=hidden.device)).amax(dim=1)  # (B,)
    # subtle: not hidden[rows, last], which PyTorch 2.13 compiles into reads beyond the end
    return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)


def first_last_pool(hidden: Tensor, mask: Tensor | None, first: Tensor) -> Tensor:
    """Take the mean of the average of the first and the last layer (SimCSE's avg_first_last).

    No model is saved with it; the lesson on similarity and the diagnosis compare it with others.

    hidden and first (B, T, D), mask (B, T) -> (B, D). Last states [1], [3] and first states [5],
    [7] give [4]. "First" is the output of layer 1, ``hidden_states[1]``, as in SimCSE's code:
    all-MiniLM-L6-v2 then has a Spearman of 86.67 / 81.55 on STS-B dev / test, measured here; with
    the embeddings' output it would have 87.02 / 82.38.
    """
    return mean_pool((first + hidden) / 2, mask)


# The poolings without parameters, by name.
POOLINGS: dict[str, Callable] = {
    "mean": mean_pool,
    "cls": cls_pool,
    "max": max_pool,
    "mean_sqrt_len_tokens": mean_sqrt_len_pool,
    "weightedmean": weighted_mean_pool,
    "lasttoken": last_token_pool,
    "pooler": cls_pool,
}


class ModelPooling(nn.Module):
    """A pooling by name, or several, concatenated: ``cls+max``.

    ``attention`` has parameters, and needs the width D of the hidden states.
    """

    def __init__(self, mode: str, hidden_size: int | None = None):
        super().__init__()
        self.mode = mode
        self.names = str(mode).split("+")  # what is no string is refused below, like any name
        known = [*POOLINGS, "attention"]
        for name in self.names:
            if name not in known:
                raise InputError(
                    f"unknown pooling {name!r}: choose from {', '.join(known)}, or join several "
                    f"with a +"
                )
        self.score = None
        if "attention" in self.names:
            assert hidden_size is not None, "attention needs the width of the hidden states"
            self.score = nn.Linear(hidden_size, 1)
            nn.init.zeros_(self.score.weight)  # equal shares: training starts from the mean
            nn.init.zeros_(self.score.bias)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D), mask (B, T) with a True in every row -> (B, n D) for n poolings."""
        pooled = []
        for name in self.names:
            if self.score is not None and name == "attention":
                pooled.append(attention_pool(hidden, mask, self.score.weight, self.score.bias))
            else:
                pooled.append(POOLINGS[name](hidden, mask))  # (B, D)
        return torch.cat(pooled, dim=-1)


def write_pooling(
    pooling: ModelPooling, folder: Path, hidden_size: int, include_prompt: bool
) -> None:
    """Write the settings, and the parameters if there are some, as float32."""
    content: dict = {"word_embedding_dimension": hidden_size}
    names = pooling.names
    if names == ["pooler"]:  # [CLS] and a dense layer, which is saved as a module of its own
        names = ["cls"]
    # Every version of sentence-transformers reads the flags, but they state neither another order
    # than their own nor a pooling that has none.
    flagged = [mode for mode in POOLING_FLAGS.values() if mode in names]
    if names == flagged:
        for flag, mode in POOLING_FLAGS.items():
            content[flag] = mode in names
    else:
        content["pooling_mode"] = names
    if not include_prompt:
        content["include_prompt"] = False
    write_json(folder / CONFIG, content)

    parameters = {name: tensor.float() for name, tensor in pooling.state_dict().items()}
    if parameters:
        write_safetensors(parameters, folder / WEIGHTS)


DENSE_ACTIVATIONS = {
    "identity": nn.Identity(),
    "tanh": nn.Tanh(),
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
}
# The class of each, as sentence-transformers writes it: "torch.nn.modules.activation.Tanh".
ACTIVATION_PATHS = {
    key: f"{type(layer).__module__}.{type(layer).__name__}"
    for key, layer in DENSE_ACTIVATIONS.items()
}


class Dense(nn.Module):
    """A dense layer on the pooled vector, with a tanh in most models: (B, W) -> (B, C)."""

    def __init__(self, linear: nn.Linear, activation: str = "tanh"):
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return DENSE_ACTIVATIONS[self.activation](self.linear(x))

    def write(self, folder: Path, **more: str) -> None:
        """Write the settings, ``more`` among them, and the weights."""
        content = {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": ACTIVATION_PATHS[self.activation],
        }
        write_json(folder / CONFIG, content | more)
        write_safetensors(self.state_dict(), folder / WEIGHTS)


def dense_width(layers: Sequence[Dense], width: int) -> int:
    """Return the columns after dense layers; ``InputError`` for one that does not fit."""
    for layer in layers:
        if layer.linear.in_features != width:
            raise InputError(
                f"a dense layer for {layer.linear.in_features} columns gets {width} (other "
                f"pooling?)"
            )
        width = layer.linear.out_features
    return width


def load_dense_layer(folder: ModelFolder, place: str, reads: str = "sentence_embedding") -> Dense:
    """Open the dense layer in the subfolder ``place``.

    ``reads`` is what the layer reads and writes, in sentence-transformers' words. By default that
    is the vector of a text.
    """
    path = folder.path / place / CONFIG
    settings = folder.json_settings(f"{place}/{CONFIG}", needed=True)
    settings.choice("module_input_name", reads)
    settings.choice("module_output_name", reads)
    settings.choice("use_residual", False)
    activation_path = settings.get("activation_function", str, ACTIVATION_PATHS["tanh"])
    names = {stored: name for name, stored in ACTIVATION_PATHS.items()}
    if activation_path not in names:
        supported = f"{', '.join(DENSE_ACTIVATIONS)} are"
        raise unsupported(path, "activation_function", activation_path, supported)

    in_features = settings.size("in_features", True)
    out_features = settings.size("out_features", True)
    bias = settings.get("bias", bool, True)
    with reading(path), unfilled():  # the weights are replaced at once
        linear = nn.Linear(in_features, out_features, bias=bias)
    dense = Dense(linear, names[activation_path])
    weights = folder.path / place / WEIGHTS
    fill(dense, read_weights(weights), weights)
    return dense
