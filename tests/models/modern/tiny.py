"""The tiny models in git, copies of them with changes, and random ones of the same architectures."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minisbert.models.families import FAMILIES
from minisbert.models.modern.architecture import Architecture, ModernEncoder
from tests.parity import REFERENCE

LENGTHS = torch.tensor([17, 2, 5, 9])  # ModernBERT's and Gemma's windows reach 3 tokens to each side
LOCAL, GLOBAL = "sliding_attention", "full_attention"
# of random models, as config.json has them: all different, heads 6 and 2 or 3, vocabulary 131
SIZES = {
    "mpnet": {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 19,
        "max_position_embeddings": 151,
        "layer_norm_eps": 1e-5,
    },
    "modernbert": {
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 29,
        "max_position_embeddings": 60,
        "local_attention": 6,
        "pad_token_id": 0,
    },
    "qwen3": {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": 29,
        "max_position_embeddings": 40,
        "rope_theta": 1000.0,
        "rms_norm_eps": 1e-2,
    },
    "gemma": {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 23,
        "max_position_embeddings": 40,
        "query_pre_attn_scalar": 9,
        "sliding_window": 7,
        "rms_norm_eps": 1e-2,
        "rope_theta": 900.0,
        "rope_local_base_freq": 50.0,
        "use_bidirectional_attention": True,
    },
}


def folder_of(name: str) -> Path:
    return REFERENCE / "modern" / f"tiny-{name}"


def family_of(name: str) -> Architecture:
    return FAMILIES[json.loads((folder_of(name) / "config.json").read_text())["model_type"]]


def randomise(model: torch.nn.Module, gemma: bool = False) -> torch.nn.Module:
    """Every parameter random, the norms' weights around 1, or around 0 if 1 is added to them."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        norm = "norm" in name.lower() and "bias" not in name and not gemma
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.3)
    return model.double().eval()


def random_model(name: str, **changes) -> ModernEncoder:
    family = family_of(name)
    raw = {"vocab_size": 131} | SIZES[name] | changes
    return randomise(family.encoder(family.read(raw), name == "mpnet"), name == "gemma")


def batch(lengths: torch.Tensor = LENGTHS) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, 131, (len(lengths), int(lengths.max())), generator=torch.Generator().manual_seed(1))
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def alter(folder: Path, name: str = "config.json", **changes) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """``model.safetensors`` with what ``change`` makes of its tensors."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder
