"""Saving a model replaces a model and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.core import InputError

TEXTS = ["the cat", "a small dog is in the park"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("present", ["notes.txt", ".git/HEAD", "head.json", "onnx/model.onnx"])
def test_a_model_is_replaced_and_nothing_else(present, tiny, tmp_path):
    """What the new model lacks is the user's, or would be read with it: an old head, an old
    graph.
    """
    SentenceEncoder.load(tiny, pooling="max").save(tmp_path / "target")
    (tmp_path / "target" / "vocab.txt").touch()  # as older versions and transformers wrote it
    encoder = SentenceEncoder.load(tiny)
    for target in ("new", "target"):
        encoder.save(tmp_path / target)
    assert contents(tmp_path / "target") == contents(tmp_path / "new")
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
    loaded, other = (
        SentenceEncoder.load(tmp_path / "model"),
        SentenceEncoder.load(tiny, pooling="max"),
    )
    before = loaded.encode(TEXTS)
    for parameter in other.parameters():
        parameter.data.mul_(2)
    other.save(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), before)
    assert not np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(TEXTS), before)


def test_a_loaded_model_keeps_its_weights_when_their_file_is_changed_in_place(tiny, tmp_path):
    """As ``dd`` and ``rsync --inplace`` do; in a process of its own, which a cut mapping would end
    (SIGBUS).
    """
    shutil.copytree(tiny, tmp_path / "model")
    program = f"""
from minisbert import SentenceEncoder
encoder = SentenceEncoder.load({str(tmp_path / "model")!r})
before = encoder.encode({TEXTS})
for change in (lambda file: file.write(bytes(10**6)), lambda file: file.truncate(0)):
    with open({str(tmp_path / "model" / "model.safetensors")!r}, "r+b") as file:
        change(file)
    print((encoder.encode({TEXTS}) == before).all())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr
