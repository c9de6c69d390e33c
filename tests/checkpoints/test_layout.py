"""Files of a model's folder that are links, devices or anything else but files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.checkpoints.layout import find_model
from minisbert.core import InputError
from tests.checkpoints.test_save import TEXTS, contents


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 * 2**30)


FAULT = "is a folder, device or broken link, not a file"
ODD = {  # how the file is made, and what is said about it
    "a folder": (Path.mkdir, FAULT),
    "a pipe": (os.mkfifo, FAULT),
    "a device": (lambda path: path.symlink_to("/dev/zero"), FAULT),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), FAULT),
    "a loop": (lambda path: path.symlink_to(path.name), FAULT),
    "3 GB": (large, "is larger than 268,435,456 bytes"),
}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "1_Pooling/config.json"])
@pytest.mark.parametrize(("make", "message"), ODD.values(), ids=ODD)
def test_what_is_not_a_usable_file_is_named(
    name: str, make: Callable, message: str, tiny, tmp_path
):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(folder)
    assert str(error.value) == f"{folder / name} {message}"


def test_a_folder_is_found_before_a_name_and_a_path_is_no_name(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "all-MiniLM-L6-v2"
    with pytest.raises(InputError, match="no such folder"):
        find_model(Path(name))
    shutil.copytree(tiny, name)
    assert find_model(name) == find_model(Path(name)) == Path(name)


def test_a_model_that_is_a_broken_link(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="model': a file or a broken link"):
        SentenceEncoder.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "a\udcff", ""])
def test_names_that_no_folder_can_have(name):
    with pytest.raises(InputError, match="neither a folder nor one of all-MiniLM-L6-v2"):
        SentenceEncoder.load(name)


def test_a_cache_of_links_is_loaded_and_saved_as_files(tiny, tmp_path):
    """As a hub's client keeps a model: every file is a link to one that is named by its hash."""
    blobs, model = tmp_path / "blobs", shutil.copytree(tiny, tmp_path / "snapshots" / "main")
    blobs.mkdir()
    for path in [path for path in model.rglob("*") if path.is_file()]:
        blob = path.rename(blobs / str(abs(hash(path))))
        path.symlink_to(os.path.relpath(blob, path.parent))
    before, encoder = contents(blobs), SentenceEncoder.load(model)
    encoder.save(tmp_path / "saved")
    assert not any(path.is_symlink() for path in (tmp_path / "saved").rglob("*"))
    assert contents(blobs) == before
    np.testing.assert_array_equal(encoder.encode(TEXTS), SentenceEncoder.load(tiny).encode(TEXTS))
