"""The tiny models in git, copies of them with changes, and random ones of the same kinds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minisbert.architectures.families import Family
from minisbert.architectures.modern import ModernEncoder
from minisbert.architectures.relatives import ENCODER_FAMILIES
from tests.parity import REFERENCE

LENGTHS = torch.tensor(
    [17, 2, 5, 9]
)  # ModernBERT's and Gemma's windows reach 3 tokens to each side
LOCAL, GLOBAL = "sliding_attention", "full_attention"
# of random models, over the sizes of the tiny one in git, which are all different
SIZES = {
    "mpnet": {"max_position_embeddings": 151},
    "modernbert": {"local_attention": 6},
    "gemma": {"sliding_window": 7},
}


def folder_of(name: str) -> Path:
    return REFERENCE / "architectures" / f"tiny-{name}"


def raw_config(name: str, **changes: Any) -> dict[str, Any]:
    """The contents of ``config.json`` of a random model, without the dtype of the tiny one in
    git.
    """
    stated = (
        json.loads((folder_of(name) / "config.json").read_text()) | SIZES.get(name, {}) | changes
    )
    return {key: value for key, value in stated.items() if value is not ... and key != "dtype"}


def family_of(name: str) -> Family:
    return ENCODER_FAMILIES[raw_config(name)["model_type"]]


def randomise(model: torch.nn.Module, gemma: bool = False) -> torch.nn.Module:
    """Every parameter random, the norms' weights around 1, or around 0 if 1 is added to them."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        norm = "norm" in name.lower() and "bias" not in name and not gemma
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.3)
    return model.double().eval()


def random_model(name: str, **changes) -> ModernEncoder:
    family = family_of(name)
    return randomise(
        family.encoder(family.read(raw_config(name, **changes)), name == "mpnet"), name == "gemma"
    )


def batch(lengths: torch.Tensor = LENGTHS) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(
        5, 131, (len(lengths), int(lengths.max())), generator=torch.Generator().manual_seed(1)
    )
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def alter(folder: Path, name: str = "config.json", **changes) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(
        json.dumps({key: value for key, value in content.items() if value is not ...})
    )
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """``model.safetensors`` with what ``change`` makes of its tensors."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder
