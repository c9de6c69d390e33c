"""Saving a model replaces a model and nothing else."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.core import InputError
from minisbert.system import files
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


@pytest.mark.parametrize("place", ["", "1_Pooling/", "notes/"])
def test_a_file_that_macos_wrote_is_nobodys(place, tiny, tmp_path):
    """Finder writes .DS_Store into each folder that somebody looks at."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "target")
    before = contents(tmp_path / "target")
    path = tmp_path / "target" / place / ".DS_Store"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    encoder.save(tmp_path / "target")
    assert contents(tmp_path / "target") == before


@pytest.mark.skipif(sys.platform != "linux", reason="no other system exchanges two folders")
def test_a_model_is_at_its_name_at_every_moment(tiny, tmp_path, monkeypatch):
    """A kill between two renames would leave none, and a server that starts then finds nothing."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "target")
    if not files.exchange(tmp_path / "target", shutil.copytree(tiny, tmp_path / "other")):
        pytest.skip("this disk cannot exchange two folders")

    def replace_and_look(source, target):
        os.rename(source, target)
        assert (tmp_path / "target" / "config.json").is_file()

    monkeypatch.setattr(files.os, "replace", replace_and_look)
    encoder.save(tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_is_replaced_where_two_cannot_be_exchanged(tiny, tmp_path, monkeypatch):
    """macOS, Windows and some network disks: two renames."""
    monkeypatch.setattr(files, "exchange", lambda first, second: False)
    SentenceEncoder.load(tiny, pooling="max").save(tmp_path / "target")
    SentenceEncoder.load(tiny).save(tmp_path / "target")
    assert SentenceEncoder.load(tmp_path / "target").pooling_mode == "mean"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


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
