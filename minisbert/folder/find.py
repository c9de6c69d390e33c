"""The folder that a model's name stands for."""

import os
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.system.assets import assets, ensure
from minisbert.system.hub import download_model, is_hub_name


def find_model(model: str | Path) -> Path:
    """The folder of a model: a folder, a name of the manifest, or ``owner/name[@revision]`` on the Hugging Face Hub.

    A repository of the manifest is that asset, at its fixed revision, unless another revision is named.

    A named model is downloaded if it is missing. Raises ``InputError`` for anything else.
    """
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a name or the path of a folder, not {one_line(model)}")
    weights = [name for name, asset in assets().items() if asset.kind == "weights"]
    if str(model) in weights:
        return ensure(str(model))
    if os.path.isdir(model):  # not Path.is_dir, which raises OSError for a name that is too long
        return Path(model)
    if os.path.lexists(model):
        raise InputError(f"no model {one_line(str(model))}: a file or a broken link")
    for name in weights:
        if model in [source.get("hub") for source in assets()[name].sources]:
            return ensure(name)
    if isinstance(model, str) and is_hub_name(model):
        return download_model(model)
    known = f"neither a folder nor one of {', '.join(weights)}; models on the Hugging Face Hub have an owner in "
    known += "their name, such as sentence-transformers/all-mpnet-base-v2"
    raise InputError(f"no model {one_line(str(model))}: {known}")
