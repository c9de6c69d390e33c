"""Files of a model's folder that are links, devices or anything else but files."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.checkpoints.layout import find_model
from minisbert.core import InputError
from tests.checkpoints.conftest import TEXTS, contents


def make_odd(path: Path, kind: str) -> None:
    """Make a path that is no ordinary file."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a dangling link":
        path.symlink_to("nowhere")
    elif kind == "a loop":
        path.symlink_to(path.name)


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """A copy of the tiny model."""
    return shutil.copytree(tiny, tmp_path / "model")


NAMES = ["config.json", "tokenizer.json", "1_Pooling/config.json"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device", "a dangling link", "a loop"])
def test_what_is_not_a_file_is_named(name, kind, folder):
    """Reading a pipe or a device would wait or run forever."""
    (folder / name).unlink()
    make_odd(folder / name, kind)
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(folder)
    assert str(error.value) == f"{folder / name} is a folder, device or broken link, not a file"


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("config.json", "16,777,216"),
        ("1_Pooling/config.json", "16,777,216"),
        ("tokenizer.json", "268,435,456"),  # vocabularies are long
    ],
)
def test_a_file_that_is_far_too_large_is_named(name, most, folder):
    """It is refused before it fills the memory: a list of lists takes 20 times its bytes."""
    os.truncate(folder / name, 3 * 2**30)
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(folder)
    assert str(error.value) == f"{folder / name} is larger than {most} bytes"


def test_a_folder_is_found_before_a_name(tiny, tmp_path, monkeypatch):
    """As in sentence-transformers: a model that was just saved is not downloaded."""
    monkeypatch.chdir(tmp_path)
    name = "all-MiniLM-L6-v2"
    shutil.copytree(tiny, name)
    assert find_model(name) == Path(name)
    assert find_model(Path(name)) == Path(name)


def test_a_path_is_no_name(tmp_path, monkeypatch):
    """A program that passes a Path means a folder: a wrong one must not become a download."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        find_model(Path("all-MiniLM-L6-v2"))


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
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    model = shutil.copytree(tiny, tmp_path / "snapshots" / "main")
    for path in list(model.rglob("*")):
        if path.is_file():
            blob = path.rename(blobs / str(abs(hash(path))))
            path.symlink_to(os.path.relpath(blob, path.parent))
    before = contents(blobs)
    encoder = SentenceEncoder.load(model)
    encoder.save(tmp_path / "saved")
    assert not any(path.is_symlink() for path in (tmp_path / "saved").rglob("*"))
    assert contents(blobs) == before
    np.testing.assert_array_equal(encoder.encode(TEXTS), SentenceEncoder.load(tiny).encode(TEXTS))
