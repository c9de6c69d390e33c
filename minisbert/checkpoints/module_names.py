"""What sentence-transformers calls its modules and poolings in a folder. Imports nothing."""

import re
from typing import Any

# The packages before the name of a class: "sentence_transformers.models." in modules.json.
MODULE_PREFIX = re.compile(r"^sentence_transformers\.(.*\.)?")

# The flags for the poolings, in the order in which sentence-transformers concatenates the results.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def pooling_modes(raw: dict[str, Any]) -> list[str]:
    """Return the poolings in ``1_Pooling/config.json``, in the order of their columns.

    New files have ``pooling_mode``, old ones a flag for each mode. A flag that is not among
    ``POOLING_FLAGS`` is returned itself, so that the caller refuses it by its name.
    """
    if "pooling_mode" in raw:
        modes = raw["pooling_mode"]
        if not isinstance(modes, list):
            modes = [modes]
        return [str(mode) for mode in modes]

    modes = [mode for flag, mode in POOLING_FLAGS.items() if raw.get(flag)]
    for flag, value in raw.items():
        if flag.startswith("pooling_mode_") and flag not in POOLING_FLAGS and value:
            modes.append(flag)
    return modes
