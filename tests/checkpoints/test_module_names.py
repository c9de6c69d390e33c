"""What sentence-transformers calls poolings, in new files and in old ones."""

import pytest

from minisbert.checkpoints.module_names import pooling_modes


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"pooling_mode": "max"}, ["max"]),
        ({"pooling_mode": ["mean", "cls"]}, ["mean", "cls"]),
        ({"pooling_mode": 3}, ["3"]),  # no pooling has such a name
        ({"pooling_mode": [["mean"]]}, ["['mean']"]),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, ["max"]),
        # flags have one order, whatever the order in the file
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt_len_tokens"]),
        ({"pooling_mode_new": True}, ["pooling_mode_new"]),
        ({"word_embedding_dimension": 24}, []),
    ],
)
def test_poolings_of_new_and_old_files(stated, expected):
    """New files have a name or a list, old ones a flag for each."""
    assert pooling_modes(stated) == expected
