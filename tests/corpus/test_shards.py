"""A folder of shards: the same bytes whatever the number of starts and kills, and the vectors of one call.

Shards that are computed again have the same rows in the same batches, so they are compared by their bytes: that must
hold on any CPU. One call batches the rows otherwise, and a CPU may round a product by the number of its rows, so merged
shards are compared with it within ``MINILM_VECTOR``.
"""

import errno
import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert.commands.encode import main
from minisbert.core import InputError
from minisbert.corpus import shards
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "rain and snow", "the sun", "a bird"]
ARCHITECTURES = ROOT / "tests" / "reference" / "architectures"


@pytest.fixture(autouse=True)
def alone():
    """One thread: OpenMP's threads do not survive a fork, and their number may change last bits."""
    torch.set_num_threads(1)


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "shards"


@pytest.fixture
def encode(tiny, text, folder) -> Callable[..., None]:
    """The command, in shards of two: four shards, the last with one row."""

    def run(*flags: str, file: Path = text, rows: int = 2) -> None:
        main(["--model", str(tiny), "--file", str(file), "--out", str(folder), "--shard-rows", str(rows), *flags])

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def complete(count: int) -> list[str]:
    """The names in a complete folder, sorted."""
    return [".lock", "manifest.json", *(f"shard-{n:05}.npy" for n in range(count))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def merged(folder: Path) -> np.ndarray:
    out = folder.with_name("merged.npy")
    main(["merge", str(folder), "--out", str(out)])
    return np.load(out)


@pytest.fixture
def finishes(encode, folder, encoded) -> Callable[..., None]:
    """A function that starts again: these texts are encoded and no others, and the folder is as ``before``."""

    def check(before: dict[str, bytes], *texts: str) -> None:
        encoded.clear()
        encode()
        assert encoded == ["a", *texts]
        assert contents(folder) == before

    return check


# --------------------------------------------------------------------------------------- the same vectors


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_merged_shards_have_the_vectors_of_one_call(encode, folder, tiny, text, tmp_path, rows):
    main(["--model", str(tiny), "--file", str(text), "--out", str(tmp_path / "whole.npy")])
    encode(rows=rows)
    assert names(folder) == complete(-(-7 // rows))
    vectors, expected = merged(folder), np.load(tmp_path / "whole.npy")
    assert vectors.dtype == expected.dtype
    np.testing.assert_allclose(vectors, expected, atol=MINILM_VECTOR, rtol=0)  # smaller shards are other batches
    if rows >= len(TEXTS):  # a single shard has the batches of one call
        assert (tmp_path / "merged.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_shard_is_a_file_for_numpy(encode, folder, tiny, capsys):
    encode("--truncate-dim", "5", "--normalize", "--prompt", "the sun ")
    assert f"wrote 4 shards with 7 vectors of width 5 to {folder}\n" in capsys.readouterr().err
    expected = SentenceEncoder.load(tiny).encode(
        TEXTS[2:4], truncate_dim=5, normalize_embeddings=True, prompt="the sun "
    )
    # equal to the bit: the same rows in the same batch
    np.testing.assert_array_equal(np.load(folder / "shard-00001.npy"), expected)


def test_the_manifest_says_what_a_package_computes_in(folder, tiny, text):
    encoder = SentenceEncoder.load(tiny)
    encoder.compiled_dtype = "int8"  # as a CompiledEncoder has it
    assert shards.plan(encoder, str(text), folder, 2, {}).made["computed"] == "int8"


def test_the_same_texts_in_other_files_are_the_same_shards(encode, folder, text, finishes):
    """White space at the ends of lines is no text anywhere, however the file is stored."""
    encode()
    before = contents(folder)
    rows = [json.dumps({"text": line}) for line in TEXTS]
    for name, content in (
        ("texts.txt.gz", gzip.compress(text.read_bytes())),
        ("spaces.txt", "\ufeff  ".encode() + " \r\n\t".join(TEXTS).encode()),
        ("texts.jsonl", "\n".join(rows).encode()),
    ):
        text.with_name(name).write_bytes(content)
        (folder / "shard-00001.npy").unlink()
        encode(file=text.with_name(name))
        assert contents(folder) == before


# --------------------------------------------------------------------------------------- the second start


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("damage", [cut_short, Path.unlink])
def test_a_second_start_does_what_is_missing_or_damaged(encode, folder, finishes, capsys, damage):
    encode()
    before = contents(folder)
    damage(folder / "shard-00002.npy")
    message = r"lacks 1 of 4 shards, 'shard-00002\.npy'" if damage is Path.unlink else r"shard-00002\.npy is damaged"
    with pytest.raises(InputError, match=message):
        merged(folder)
    assert not folder.with_name("merged.npy").exists()
    capsys.readouterr()
    finishes(before, *TEXTS[4:6])
    said = capsys.readouterr().err
    assert "wrote 1 shards with 2 vectors of width 24" in said
    assert "; 3 were complete" in said
    assert ("shard-00002.npy is damaged" in said) == (damage is not Path.unlink)


def killed(run: Callable[[], None]) -> None:
    """Run in a process that is killed, as it must be: not one that fails, ends or hangs."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            run()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), "kill -9"])
@pytest.mark.parametrize("name", ["write_npy", "write_json"])
def test_a_start_that_ends_early_loses_nothing(encode, folder, finishes, monkeypatch, failure, name):
    """In the third shard, before half of its vectors are on disk, or in the manifest, before there is any shard."""
    encode()
    before = contents(folder)
    for path in folder.iterdir():
        path.unlink()
    write, calls = getattr(shards, name), []

    def fail(*arguments: object) -> object:
        calls.append(arguments)
        if name == "write_npy" and len(calls) < 3:
            return write(*arguments)
        (path,) = (argument for argument in arguments if isinstance(argument, Path))
        path.write_bytes(b"half of it")
        if failure == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        raise failure

    if failure == "kill -9" and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    with monkeypatch.context() as patch:
        patch.setattr(shards, name, fail)
        if failure == "kill -9":
            killed(encode)
            assert any(".partial" in left for left in names(folder))  # what it was writing
        else:
            with pytest.raises(type(failure), match=r"^$|No space left on device: '.*(manifest\.json|00002\.npy)'"):
                encode()
    finishes(before, *TEXTS[4 if name == "write_npy" else 0 :])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("moment", ["before the first old shard is removed", "before the new manifest is written"])
def test_a_kill_while_shards_are_replaced_leaves_none_of_the_old_ones(encode, folder, monkeypatch, moment):
    """The old shards have the same shape. In the other order, the new manifest would count them as its own."""
    encode()
    module, name = (Path, "unlink") if "old" in moment else (shards, "write_json")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        killed(lambda: encode("--overwrite", "--normalize"))
    encode("--overwrite", "--normalize")
    np.testing.assert_allclose(np.linalg.norm(merged(folder), axis=1), 1, atol=1e-6, rtol=0)


# --------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--truncate-dim", "5"], "width '24', not '5'"),
        (["--prompt", "x "], "prompt"),
        (["--shard-rows", "3", "--normalize"], "normalize_embeddings 'False', not 'True'; shard_rows"),
        (["--model", "other"], "another model"),
    ],
)
def test_another_option_is_refused_by_name(encode, folder, encoded, monkeypatch, tmp_path, tiny, flags, message):
    encoder = SentenceEncoder.load(tiny)
    encoder.bert.embeddings.word.weight.data[7, 3] += 0.5
    monkeypatch.chdir(tmp_path)
    encoder.save("other")
    encode()
    before = contents(folder)
    with pytest.raises(InputError, match=message):
        encode(*flags)
    assert contents(folder) == before
    encode(*flags, "--overwrite")
    assert encoded == ["a", *TEXTS, "a", "a", *TEXTS]


def test_another_text_is_refused_and_replaced_if_asked(encode, text, folder, encoded):
    encode()
    text.write_text("\n".join(["a dog", *TEXTS[1:3]]))
    with pytest.raises(InputError, match="other texts"):
        encode()
    encoded.clear()
    encode("--overwrite")
    assert encoded == ["a", "a dog", *TEXTS[1:3]]
    assert names(folder) == complete(2)  # shards of the longer text are gone


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"a cat\nd\xf6g\n", [], "line 2"),
        (b"a cat\n", ["--truncate-dim", "25"], "truncate_dim"),
        (b"a cat\n", ["--model", str(ARCHITECTURES / "tiny-colbert")], "MultiVectorEncoder"),
        (gzip.compress(b"a cat\n")[:-9], ["--file", "cut.gz"], r"cut\.gz"),
    ],
)
def test_nothing_is_left_of_a_start_that_cannot_begin(encode, folder, text, monkeypatch, content, flags, message):
    monkeypatch.chdir(folder.parent)
    for path in (text, Path("cut.gz")):
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        encode(*flags)
    assert not folder.exists()


@pytest.mark.parametrize("new", [["moon", *TEXTS[1:]], TEXTS[:1]])
def test_text_that_changes_while_it_is_read(encode, text, folder, monkeypatch, new):
    plan = shards.plan

    def plan_and_change(*arguments: object) -> shards.Shards:
        planned = plan(*arguments)
        text.write_text("\n".join(new))
        return planned

    monkeypatch.setattr(shards, "plan", plan_and_change)
    with pytest.raises(InputError, match=r"changed while it was being read|has the file changed"):
        encode()
    assert names(folder) == complete(0)


def test_two_starts_at_once(encode, folder):
    with shards.locked(folder), pytest.raises(InputError, match="another process"):
        encode()


@pytest.mark.parametrize("values", [{"made": None}, {"made": {}}, {"rows": "7"}, {"rows": 0}, {"minisbert": "index"}])
def test_a_manifest_that_was_edited_or_is_none(encode, folder, values):
    encode()
    path = folder / "manifest.json"
    for content in (json.dumps(json.loads(path.read_text()) | values), "{", "[]"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"manifest\.json is damaged"):
            encode("--overwrite")


@pytest.mark.parametrize("values", [{"width": "12"}, {"dtype": "float64"}, {"shard_rows": "7"}])
def test_a_forged_manifest_does_not_fit_the_shards(encode, folder, values):
    encode()
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content["made"] |= values
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"shard-0000\d\.npy is damaged or cut short|manifest\.json is damaged"):
        merged(folder)


@pytest.mark.parametrize("name", ["shard-00001.npy", "notes.txt", "folder/"])
def test_a_folder_of_other_files_is_left_alone(encode, folder, name):
    folder.mkdir()
    if name.endswith("/"):
        (folder / name).mkdir()
    else:
        (folder / name).write_text("{}")
    with pytest.raises(InputError, match=rf"holds '{name.rstrip('/')}'"):
        encode("--overwrite")
    assert names(folder) == [name.rstrip("/")]


def test_merging_what_cannot_be_merged(encode, folder, text, tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json"):
        main(["merge", str(text), "--out", str(tmp_path / "v.npy")])
    encode()
    with pytest.raises(InputError, match="lies in"):
        main(["merge", str(folder), "--out", str(folder / "shard-00000.npy")])


def test_cut_texts_are_counted_over_all_shards(encode, text, capsys):
    text.write_text("\n".join(["cat " * 20, "a dog", "moon", "rain " * 30]))
    encode()
    assert "2 of 4 texts were longer than 16 tokens and were cut\n" in capsys.readouterr().err
