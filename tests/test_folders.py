"""Saving a model replaces a model and nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.core import InputError
from minisbert.models import folders

TEXTS = ["the cat", "a small dog is in the park"]
MODEL = ("config.json", "model.safetensors", "tokenizer.json")

RUN = ("config.json", "metrics.jsonl", "state/state.json", "model/config.json")
FOREIGN = {  # what is there, and what the message names
    "a file beside a model": ((*MODEL, "notes.txt"), "('notes.txt')"),
    "a run": (RUN, "('metrics.jsonl', 'model', 'state')"),
    "a run with a model's weights": ((*RUN, *MODEL), "('metrics.jsonl', 'model', 'state')"),
    "a git clone": ((*MODEL, "README.md", ".git/HEAD", ".gitattributes"), "('.git', '.gitattributes')"),
    "an older checkpoint": ((*MODEL, "pytorch_model.bin"), "('pytorch_model.bin')"),
    "a file beside a pooling's": ((*MODEL, "1_Pooling/notes.txt"), "('1_Pooling/notes.txt')"),
    "a folder of another name": ((*MODEL, "1_Poolings/config.json"), "('1_Poolings')"),
    "a module that is not ours": ((*MODEL, "1_CNN/cnn_config.json"), "('1_CNN')"),
    "five": ((*MODEL, "a", "b", "c", "d", "e"), "('a', 'b', 'c' and 2 more)"),
    "no model at all": (("notes.txt",), "('notes.txt')"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the user's {name}")


@pytest.mark.parametrize(("present", "named"), FOREIGN.values(), ids=FOREIGN)
def test_a_folder_with_anything_else_is_refused(present, named, tiny, tmp_path):
    fill(tmp_path / "target", present)
    before = contents(tmp_path / "target")
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(tiny).save(tmp_path / "target")
    advice = "and is not replaced; choose another folder"
    assert str(error.value) == f"{tmp_path / 'target'} holds what is not a model's {named} {advice}"
    assert contents(tmp_path / "target") == before
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(
    ("present", "missing"),
    [(("config.json",), "model.safetensors"), (("README.md",), "config.json"), (MODEL[1:], "config.json")],
)
def test_a_folder_with_only_some_of_a_models_files_is_refused(present, missing, tiny, tmp_path):
    """Other projects have a config.json and a README.md as well."""
    fill(tmp_path / "target", present)
    with pytest.raises(InputError, match=rf"is not a model \(no {missing}\) and is not replaced"):
        SentenceEncoder.load(tiny).save(tmp_path / "target")
    assert set(contents(tmp_path / "target")) == set(present)


@pytest.mark.parametrize(
    "more",
    [
        (),
        (".DS_Store", "1_Pooling/.DS_Store"),
        ("README.md", "vocab.txt", "special_tokens_map.json", "added_tokens.json", "sentence_roberta_config.json"),
        ("2_Dense/config.json", "2_Dense/model.safetensors", "3_Normalize/config.json", "1_Pooling/model.safetensors"),
        ("head.json", "head.safetensors"),
    ],
)
def test_a_saved_model_is_replaced(more, tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "new")
    encoder.save(tmp_path / "target")
    fill(tmp_path / "target", more)
    encoder.save(tmp_path / "target")
    assert contents(tmp_path / "target") == contents(tmp_path / "new")


@pytest.mark.parametrize("make", [lambda folder: None, Path.mkdir], ids=["missing", "empty"])
def test_a_new_or_empty_folder_is_filled(make, tiny, tmp_path):
    make(tmp_path / "target")
    SentenceEncoder.load(tiny).save(tmp_path / "target")
    assert SentenceEncoder.load(tmp_path / "target").width == 24


def test_what_sentence_transformers_saved_is_replaced(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "target")
    SentenceEncoder.load(tiny, pooling="max").save(tmp_path / "target")
    assert SentenceEncoder.load(tmp_path / "target").pooling.mode == "max"


def test_a_file_that_appears_during_a_save_is_not_lost(tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "target")
    before = contents(tmp_path / "target")

    def save() -> None:
        with folders.model_folder(tmp_path / "target") as partial:
            encoder.write(partial)
            (tmp_path / "target" / "notes.txt").write_text("mine")

    with pytest.raises(InputError, match=r"notes\.txt"):
        save()
    assert contents(tmp_path / "target") == before | {"notes.txt": b"mine"}


def test_a_link_to_a_file_is_replaced_and_its_target_stays(tiny, tmp_path):
    """As in the cache of a hub, where every file of a model is a link."""
    shutil.copytree(tiny, tmp_path / "target")
    (tmp_path / "blob").write_bytes((tiny / "model.safetensors").read_bytes())
    (tmp_path / "target" / "model.safetensors").unlink()
    (tmp_path / "target" / "model.safetensors").symlink_to(tmp_path / "blob")
    SentenceEncoder.load(tmp_path / "target").save(tmp_path / "target")
    assert not any(path.is_symlink() for path in (tmp_path / "target").rglob("*"))
    assert (tmp_path / "blob").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_a_loaded_model_keeps_its_weights_when_its_folder_is_replaced(tiny, tmp_path):
    """The file that it maps is never written again: a new one takes its name."""
    shutil.copytree(tiny, tmp_path / "model")
    loaded, other = SentenceEncoder.load(tmp_path / "model"), SentenceEncoder.load(tiny)
    before = loaded.encode(TEXTS)
    for parameter in other.parameters():
        parameter.data.mul_(2)
    other.save(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), before)
    assert not np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(TEXTS), before)
