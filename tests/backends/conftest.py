"""What the tests of several backends start from."""

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder_with_encoder_inside(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with its transformer in a subfolder, as old sentence-transformers wrote it."""
    folder = shutil.copytree(tiny, tmp_path / "outer")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(inner / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder
