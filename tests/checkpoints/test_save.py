"""Saving a model replaces a model and nothing else."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.core import InputError
from tests.checkpoints.conftest import TEXTS, contents


def test_a_saved_model_is_as_if_the_folder_had_been_empty(tiny, tmp_path):
    """What the new model lacks would be read with it: another pooling, an old vocabulary."""
    SentenceEncoder.load(tiny, pooling="max").save(tmp_path / "target")
    (tmp_path / "target" / "vocab.txt").touch()  # as older versions and transformers wrote it
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "new")
    encoder.save(tmp_path / "target")
    assert contents(tmp_path / "target") == contents(tmp_path / "new")


@pytest.mark.parametrize("present", ["notes.txt", ".git/HEAD", "head.json", "onnx/model.onnx"])
def test_a_file_that_is_no_part_of_the_model_is_not_lost(present, tiny, tmp_path):
    """It is the user's, or would be read with the new model: an old head, an old graph."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "target")
    path = tmp_path / "target" / present
    path.parent.mkdir(exist_ok=True)
    path.write_text("the user's")
    before = contents(tmp_path / "target")
    with pytest.raises(InputError, match=f"{present} would be lost"):
        encoder.save(tmp_path / "target")
    assert contents(tmp_path / "target") == before


def test_a_loaded_model_keeps_its_weights_when_its_folder_is_replaced(tiny, tmp_path):
    """The file that it maps is never written again: a new one takes its name."""
    SentenceEncoder.load(tiny).save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    before = loaded.encode(TEXTS)

    other = SentenceEncoder.load(tiny, pooling="max")
    for parameter in other.parameters():
        parameter.data.mul_(2)
    other.save(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), before)
    assert not np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(TEXTS), before)


IN_PLACE = """
import sys
from minisbert import SentenceEncoder

texts = ["the cat", "a small dog is in the park"]
encoder = SentenceEncoder.load(sys.argv[1])
before = encoder.encode(texts)
with open(sys.argv[1] + "/model.safetensors", "r+b") as file:
    if sys.argv[2] == "overwritten":
        file.write(bytes(10**6))
    else:
        file.truncate(0)
print((encoder.encode(texts) == before).all())
"""


@pytest.mark.parametrize("change", ["overwritten", "cut"])
def test_a_loaded_model_keeps_its_weights_when_their_file_is_changed_in_place(
    change, tiny, tmp_path
):
    """As ``dd`` and ``rsync --inplace`` do. A cut mapping would end the process (SIGBUS)."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    command = [sys.executable, "-c", IN_PLACE, str(folder), change]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
