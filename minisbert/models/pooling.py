"""Pool in more ways than the book, in several ways at once, and with the dense layer that follows
in some models.

mean_sqrt_len_tokens, weightedmean, lasttoken  as in sentence-transformers
pooler                                         [CLS]; BERT's own dense layer and tanh follow as a ``Dense``

sentence-transformers lacks ``attention``. It is saved under ``pooling_mode``, where
sentence-transformers refuses unknown names, so that it cannot open such a model and compute other
vectors.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import CONFIG, WEIGHTS, ModelFolder, unsupported
from minisbert.checkpoints.module_names import POOLING_FLAGS
from minisbert.checkpoints.weights import fill, read_weights, unfilled, write_safetensors
from minisbert.core.pooling import POOLINGS, Pooling, cls_pool, mean_pool
from minisbert.system.files import write_json
from minisbert.system.reading import reading


def mean_sqrt_len_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Divide the sum over real tokens by the root of their number: (B, T, D) -> (B, D). [1], [3], a
    pad: [2.83].
    """
    return mean_pool(hidden, mask) * real_tokens(hidden, mask).sum(dim=1, keepdim=True).sqrt()


def weighted_mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average real tokens with the weights 1, 2, 3, ... (SGPT): (B, T, D) -> (B, D). [1], [4], a
    pad: [3].
    """
    weights = (
        torch.arange(1, hidden.shape[1] + 1, device=hidden.device).to(hidden.dtype).unsqueeze(-1)
    )  # (T, 1)
    real = real_tokens(hidden, mask)  # (B, T)
    return mean_pool(hidden * weights, mask) * real.sum(dim=1, keepdim=True) / (real @ weights)


def real_tokens(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return 1 for each real token and 0 for each pad, in the dtype of the states: (B, T, D) -> (B,
    T).
    """
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
    """Average the first and the last layer's output, then take the mean over real tokens (SimCSE's
    avg_first_last).

    hidden and first (B, T, D), mask (B, T) -> (B, D). Last states [1], [3] and first states [5],
    [7] give [4]. "First" is the output of layer 1, ``hidden_states[1]``, as in SimCSE's code:
    all-MiniLM-L6-v2 then has a Spearman of 86.67 / 81.55 on STS-B dev / test, measured here; with
    the embeddings' output it would have 87.02 / 82.38.
    """
    return mean_pool((first + hidden) / 2, mask)


POOLINGS["mean_sqrt_len_tokens"] = mean_sqrt_len_pool
POOLINGS["weightedmean"] = weighted_mean_pool
POOLINGS["lasttoken"] = last_token_pool
POOLINGS["pooler"] = cls_pool


def write_pooling(pooling: Pooling, folder: Path, hidden_size: int, include_prompt: bool) -> None:
    """Write the settings, and the parameters if there are some, as float32."""
    content: dict = {"word_embedding_dimension": hidden_size}
    # Every version of sentence-transformers reads the flags; they state neither another order nor
    # other poolings.
    names = [
        "cls" if name == "pooler" else name for name in pooling.names
    ]  # its dense layer is a module
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
# their classes, as sentence-transformers writes them: "torch.nn.modules.activation.Tanh"
ACTIVATION_PATHS = {
    key: f"{type(layer).__module__}.{type(layer).__name__}"
    for key, layer in DENSE_ACTIVATIONS.items()
}


class Dense(nn.Module):
    """A dense layer on the pooled vector, with a tanh in most models: (B, W) -> (B,
    ``linear.out_features``).
    """

    def __init__(self, linear: nn.Linear, activation: str = "tanh"):
        super().__init__()
        self.linear, self.activation = linear, activation

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


def load_dense_layer(folder: ModelFolder, place: str, reads: str = "sentence_embedding") -> Dense:
    """Open the dense layer in the subfolder ``place``. ``reads`` is what it reads and writes: a
    text's vector.
    """
    path = folder.path / place / CONFIG
    settings = folder.json_settings(f"{place}/{CONFIG}", needed=True)
    settings.choice("module_input_name", reads)
    settings.choice("module_output_name", reads)
    settings.choice("use_residual", False)
    stated = settings.get("activation_function", str, ACTIVATION_PATHS["tanh"])
    names = {stored: name for name, stored in ACTIVATION_PATHS.items()}
    if stated not in names:
        raise unsupported(
            path, "activation_function", stated, f"{', '.join(DENSE_ACTIVATIONS)} are"
        )
    widths = settings.size("in_features", True), settings.size("out_features", True)
    with reading(path), unfilled():  # the weights are replaced at once
        dense = Dense(nn.Linear(*widths, bias=settings.get("bias", bool, True)), names[stated])
    weights = folder.path / place / WEIGHTS
    fill(dense, read_weights(weights), weights)
    return dense
