"""Saving a model replaces a model and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.checkpoints import save as overwrite
from minisbert.core import InputError

TEXTS = ["the cat", "a small dog is in the park"]
MODEL = ("config.json", "model.safetensors", "tokenizer.json")

RUN = ("metrics.jsonl", "state/state.json", "model/config.json")
REFUSED = [  # what is there, and what is said about it
    ((*MODEL, *RUN), "holds what is not a model's ('metrics.jsonl', 'model', 'state')"),
    ((*MODEL, "README.md", ".git/HEAD", ".gitattributes"), "holds what is not a model's ('.git', '.gitattributes')"),
    ((*MODEL, "1_Pooling/notes.txt"), "holds what is not a model's ('1_Pooling/notes.txt')"),
    ((*MODEL, "1_CNN/config.json", "1_Poolings/a"), "holds what is not a model's ('1_CNN', '1_Poolings')"),
    ((*MODEL, "a", "b", "c", "d", "pytorch_model.bin"), "holds what is not a model's ('a', 'b', 'c' and 2 more)"),
    (("notes.txt",), "holds what is not a model's ('notes.txt')"),
    (("config.json",), "is not a model (no model.safetensors)"),  # other projects have such files as well
    (("README.md",), "is not a model (no config.json)"),
    (MODEL[1:], "is not a model (no config.json)"),
]
REPLACED = [
    None,  # no folder
    (),
    MODEL,
    ("modules.json", "model.safetensors", "tokenizer.json"),  # a table of static vectors has no config.json
    (*MODEL, ".DS_Store", "1_Pooling/.DS_Store", "README.md", "vocab.txt", "special_tokens_map.json"),
    (*MODEL, "added_tokens.json", "sentence_roberta_config.json", "head.json", "head.safetensors"),
    (*MODEL, "1_Pooling/model.safetensors", "2_Dense/config.json", "2_Dense/model.safetensors"),
    (*MODEL, "1_SpladePooling/config.json", "3_MultiVectorMask/config.json", "3_Normalize/config.json"),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the user's {name}")


@pytest.mark.parametrize(("present", "fault"), REFUSED)
def test_a_folder_with_anything_but_a_model_is_refused(present, fault, tiny, tmp_path):
    fill(tmp_path / "target", present)
    before = contents(tmp_path / "target")
    with pytest.raises(InputError) as error:
        SentenceEncoder.load(tiny).save(tmp_path / "target")
    assert str(error.value) == f"{tmp_path / 'target'} {fault} and is not replaced; choose another folder"
    assert contents(tmp_path / "target") == before
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("present", REPLACED)
def test_a_model_or_an_empty_folder_is_replaced(present, tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny)
    if present is not None:
        (tmp_path / "target").mkdir()
        fill(tmp_path / "target", present)
    for target in ("new", "target"):
        encoder.save(tmp_path / target)
    assert contents(tmp_path / "target") == contents(tmp_path / "new")


def test_a_file_that_appears_during_a_save_is_not_lost(tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "target")
    before = contents(tmp_path / "target")

    def save() -> None:
        with overwrite.model_folder(tmp_path / "target") as partial:
            encoder.write(partial)
            (tmp_path / "target" / "notes.txt").write_text("mine")

    with pytest.raises(InputError, match=r"notes\.txt"):
        save()
    assert contents(tmp_path / "target") == before | {"notes.txt": b"mine"}


def test_a_loaded_model_keeps_its_weights_when_its_folder_is_replaced(tiny, tmp_path):
    """The file that it maps is never written again: a new one takes its name."""
    shutil.copytree(tiny, tmp_path / "model")
    loaded, other = SentenceEncoder.load(tmp_path / "model"), SentenceEncoder.load(tiny, pooling="max")
    before = loaded.encode(TEXTS)
    for parameter in other.parameters():
        parameter.data.mul_(2)
    other.save(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), before)
    assert not np.array_equal(SentenceEncoder.load(tmp_path / "model").encode(TEXTS), before)


def test_a_loaded_model_keeps_its_weights_when_their_file_is_changed_in_place(tiny, tmp_path):
    """As ``dd`` and ``rsync --inplace`` do; in a process of its own, which a cut mapping would end (SIGBUS)."""
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
