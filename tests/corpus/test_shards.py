"""A folder of shards: the same bytes whatever the number of processes, starts and kills, and the vectors of one call.

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
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert.commands.encode import main
from minisbert.core import InputError
from minisbert.corpus import sharding, shards
from minisbert.corpus.shards import Manifest, read_manifest
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import MINILM_VECTOR

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "rain and snow", "the sun", "a bird"]
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


@pytest.fixture(autouse=True)
def alone(threads, monkeypatch):
    """One process, and one thread: OpenMP's threads do not survive a fork, and their number may change last bits."""
    torch.set_num_threads(1)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def complete(count: int, ranks: int = 1) -> list[str]:
    """The names in a complete folder, sorted."""
    locks = [f".rank-{rank:05}.lock" for rank in range(ranks)]
    return [*locks, "manifest.json", *(f"part-{n:05}.{end}" for n in range(count) for end in ("json", "npy"))]


def merged(folder: Path, name: str = "merged.npy") -> bytes:
    out = folder.with_name(name)
    main(["merge", str(folder), "--out", str(out)])
    return out.read_bytes()


@cache
def undisturbed(tiny: Path, home: Path) -> bytes:
    """The merged file of one start in shards of two that nothing interrupts."""
    (home / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    flags = ["--file", str(home / "texts.txt"), "--out", str(home / "shards"), "--shard-rows", "2"]
    main(["--model", str(tiny), *flags])
    return merged(home / "shards")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def finishes(encode, folder, tiny, home, encoded) -> Callable[..., None]:
    """A start encodes these texts and no others, and the folder is then as if nothing had happened."""
    expected = undisturbed(tiny, home)

    def check(*texts: str, **options: Path) -> None:
        encoded.clear()
        encode(**options)
        assert encoded == ["a", *texts]
        assert merged(folder) == expected

    return check


@pytest.fixture
def whole(tiny, text, tmp_path) -> bytes:
    """The file that one call writes."""
    main(["--model", str(tiny), "--file", str(text), "--out", str(tmp_path / "whole.npy")])
    return (tmp_path / "whole.npy").read_bytes()


# --------------------------------------------------------------------------------------- the same vectors


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_merged_shards_have_the_vectors_of_one_call(encode, folder, tmp_path, whole, rows):
    encode(rows=rows)
    assert names(folder) == complete(-(-7 // rows))
    content = merged(folder)
    vectors, expected = np.load(tmp_path / "merged.npy"), np.load(tmp_path / "whole.npy")
    assert vectors.dtype == expected.dtype
    np.testing.assert_allclose(vectors, expected, atol=MINILM_VECTOR, rtol=0)  # smaller shards are other batches
    if rows >= len(TEXTS):  # a single shard has the batches of one call
        assert content == whole


def test_a_shard_is_a_file_for_numpy(encode, folder, tiny, capsys):
    encode("--truncate-dim", "5", "--normalize", "--prompt", "the sun ")
    assert f"wrote 4 shards with 7 vectors of width 5 to {folder}\n" in capsys.readouterr().err
    expected = SentenceEncoder.load(tiny).encode(TEXTS[2:4], truncate_dim=5, normalize=True, prompt="the sun ")
    # equal to the bit: the same rows in the same batch
    np.testing.assert_array_equal(np.load(folder / "part-00001.npy"), expected)


@pytest.mark.parametrize("variables", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
def test_ranks_share_the_shards_without_talking(encode, folder, tiny, home, monkeypatch, capsys, variables):
    expected = undisturbed(tiny, home)
    monkeypatch.setenv(variables[1], "2")
    monkeypatch.setenv(variables[0], "1")
    encode()
    own = {f"part-0000{n}.{end}" for n in (1, 3) for end in ("json", "npy")}
    assert {*names(folder)} == own | {".rank-00001.lock", "manifest.json"}
    assert "rank 1 of 2: wrote 2 shards with 3 vectors of width 24" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"lacks 2 of 4 shards, 'part-00000\.npy', 'part-00002\.npy': encode them"):
        merged(folder)
    monkeypatch.setenv(variables[0], "0")
    encode()
    assert names(folder) == complete(4, ranks=2)
    assert merged(folder) == expected


def test_compressed_text_has_the_manifest_of_the_plain_one(encode, text, folder, finishes, encoded, tiny, whole):
    """The second shard alone: offsets count bytes after decompression. Only the first byte order mark is not text."""
    packed = text.with_name("packed.txt.gz")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    encode(file=packed)
    assert [part["offset"] for part in read_manifest(folder).parts] == [0, 30, 57, 79]  # 24 + 6, 22 + 5, 14 + 8 bytes
    (folder / "part-00001.npy").unlink()
    finishes(*TEXTS[2:4])  # from the plain file
    (folder / "part-00002.npy").unlink()
    finishes(*TEXTS[4:6], file=packed)
    marked = text.with_name("marked.txt")
    lines = [TEXTS[0], "\ufeffa dog", *TEXTS[2:]]
    marked.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8", newline="")
    encoded.clear()
    encode("--overwrite", file=marked)
    assert encoded == ["a", *lines]
    main(["--model", str(tiny), "--file", str(packed), "--out", str(text.with_name("v.npy"))])
    assert text.with_name("v.npy").read_bytes() == whole


# --------------------------------------------------------------------------------------- the second start


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("ending", ["npy", "json"])
@pytest.mark.parametrize("damage", [cut_short, flipped, Path.unlink])
def test_a_second_start_does_what_is_missing_or_damaged(encode, folder, finishes, capsys, ending, damage):
    encode()
    damage(folder / f"part-00002.{ending}")
    is_damaged = damage is not Path.unlink and ending == "npy"
    message = r"part-00002\.npy is damaged or cut short: run encode again"
    with pytest.raises(InputError, match=message if is_damaged else r"lacks 1 of 4 shards, 'part-00002\.npy'"):
        merged(folder)
    assert not folder.with_name("merged.npy").exists()
    capsys.readouterr()
    finishes(*TEXTS[4:6])
    said = capsys.readouterr().err
    assert "wrote 1 shards with 2 vectors of width 24" in said
    assert "; 3 were complete" in said
    assert ("part-00002.npy is damaged" in said) == is_damaged


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
    """In the third shard: before half of its vectors are on disk, or between its file and its note."""
    write = getattr(sharding, name)

    def fail(*arguments: object) -> None:
        (path,) = (argument for argument in arguments if isinstance(argument, Path))
        if "part-00002" not in str(path):
            write(*arguments)
            return
        path.write_bytes(b"half of it")
        if failure == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        raise failure

    if failure == "kill -9" and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    with monkeypatch.context() as patch:
        patch.setattr(sharding, name, fail)
        if failure == "kill -9":
            killed(encode)
            assert {name for name in names(folder) if name.startswith(".part")}  # what it was writing
        else:
            with pytest.raises(type(failure), match=r"^$|No space left on device: '.*part-00002\.(npy|json)'"):
                encode()
            assert {*names(folder)} - {"part-00002.npy"} == {*complete(2)}
    finishes(*TEXTS[4:])
    assert names(folder) == complete(4)


def test_what_a_killed_start_was_writing_is_removed(encode, folder):
    """Killed after the rename: the shard is complete, and nobody writes it again."""
    encode()
    workspace = folder / ".part-00001.json.partial-0123abcd"
    workspace.mkdir()
    (workspace / "lock").touch()
    encode()
    assert names(folder) == complete(4)


def test_shards_that_are_exchanged_with_their_notes(encode, folder, finishes):
    encode()
    for end in ("npy", "json"):
        first, second = (folder / f"part-0000{n}.{end}" for n in (0, 1))
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    with pytest.raises(InputError, match=r"lacks 2 of 4 shards, 'part-00000\.npy', 'part-00001\.npy'"):
        merged(folder)
    finishes(*TEXTS[:4])


def test_notes_without_a_number_are_accepted(encode, folder, finishes):
    """Earlier versions wrote none."""
    encode()
    for path in folder.glob("part-*.json"):
        note = json.loads(path.read_text())
        del note["part"]
        path.write_text(json.dumps(note))
    finishes()


# --------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--normalize"], r"from 'texts\.txt' with normalize None, not True: give"),
        (["--truncate-dim", "5"], "with truncate_dim None, not 5"),
        (["--prompt", "x "], "with prompt '', not 'x '"),
        (["--pooling", "cls"], "with pooling 'mean', not 'cls': give"),
        (["--max-length", "8"], "with max_length 16, not 8: give"),
        (["--shard-rows", "3", "--normalize"], "with shard_rows 2, not 3; normalize None, not True"),
        (["--model", "other"], "with another model: give"),
    ],
)
def test_another_option_is_refused_by_name(encode, folder, encoded, monkeypatch, tmp_path, tiny, flags, message):
    encoder = SentenceEncoder.load(tiny)
    encoder.bert.embeddings.word.weight.data[7, 3] += 0.5
    monkeypatch.chdir(tmp_path)
    encoder.save("other")
    encode()
    before = contents(folder)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(InputError, match=message) as refused:
        encode(*flags)
    assert contents(folder) == before
    assert str(refused.value) in json.loads((tmp_path / "error.json").read_text())["message"]["message"]  # torchrun's
    encode(*flags, "--overwrite")
    assert encoded == ["a", *TEXTS, "a", "a", *TEXTS]


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"a cat\n\n", [], "line 2: an empty line"),
        (b"a cat\nd\xf6g\n", [], "line 2: not UTF-8"),
        (b"", [], "is empty"),
        (b"a cat\n", ["--truncate-dim", "25"], "truncate_dim 25 is above 24"),
        (b"a cat\n", ["--model", "no-model"], "neither a folder nor one of"),
        (gzip.compress(b"a cat\n")[:-9], ["--file", "cut.gz"], r"cut\.gz is damaged or not what its name says"),
    ],
)
def test_nothing_is_left_of_a_start_that_cannot_begin(encode, folder, text, monkeypatch, content, flags, message):
    monkeypatch.chdir(folder.parent)
    for path in (text, Path("cut.gz")):
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        encode(*flags)
    assert not folder.exists()


def test_another_text_is_refused_and_replaced_if_asked(encode, text, folder, encoded, tiny):
    encode()
    text.write_text("\n".join(["a dog", *TEXTS[1:3]]))  # the second shard is one row shorter, others go
    with pytest.raises(InputError, match="with another text: give what it was made with"):
        encode()
    encoded.clear()
    encode("--overwrite")
    assert encoded == ["a", "a dog", *TEXTS[1:3]]
    assert names(folder) == complete(2)
    merged(folder)
    expected = SentenceEncoder.load(tiny).encode(["a dog", *TEXTS[1:3]])
    # two shards are other batches than one call
    np.testing.assert_allclose(np.load(folder.with_name("merged.npy")), expected, atol=MINILM_VECTOR, rtol=0)


def test_overwriting_ranks_do_not_undo_each_other(encode, folder, monkeypatch):
    """The second rank, which starts later, finds the first one's new manifest and leaves it alone."""
    encode()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        encode("--overwrite", "--normalize")
    merged(folder)  # every note belongs to the new manifest
    lengths = np.linalg.norm(np.load(folder.with_name("merged.npy")), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("change", "ending"), [("another", ".txt"), ("longer", ".gz"), ("shorter", ".txt")])
def test_text_that_changes_while_it_is_read(encode, folder, tmp_path, monkeypatch, change, ending):
    path, scan = tmp_path / f"changing{ending}", sharding.scan
    pack = gzip.compress if ending == ".gz" else bytes
    new = {"another": ["moon", *TEXTS[1:]], "longer": ["a very " + TEXTS[0], *TEXTS[1:]], "shorter": TEXTS[:1]}

    def scan_and_change(*arguments: object) -> tuple:
        found = scan(*arguments)
        path.write_bytes(pack("\n".join(new[change]).encode()))
        return found

    path.write_bytes(pack("\n".join(TEXTS).encode()))
    monkeypatch.setattr(sharding, "scan", scan_and_change)
    with pytest.raises(InputError, match="changed while it was being read"):
        encode(file=path)
    assert names(folder) == complete(0)


@pytest.mark.parametrize("moment", ["scan", "open_texts"])
def test_a_manifest_that_another_run_writes_meanwhile_ends_this_one(encode, folder, monkeypatch, moment):
    """During the scan of the text, or after it, when the text is opened for the shards."""
    scan, open_texts = sharding.scan, sharding.open_texts

    def scan_first(path: str, rows: int) -> tuple:
        other = Manifest(folder, *(found := scan(path, rows))[:1], "m", {"part_rows": 2}, 24, "float32", found[1])
        if moment == "scan":
            other.write()
            monkeypatch.setattr(sharding, "open_texts", lambda path: pytest.fail("it goes on"))
        else:
            monkeypatch.setattr(sharding, "open_texts", lambda path: other.write() or open_texts(path))
        return found

    monkeypatch.setattr(sharding, "scan", scan_first)
    with pytest.raises(InputError, match=r"manifest\.json was replaced by another run"):
        encode()
    assert names(folder) == complete(0)


def test_two_starts_of_one_rank(encode, folder, monkeypatch):
    with shards.locked(folder, 0), pytest.raises(InputError, match="another process is encoding as rank 0 there"):
        encode()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with shards.locked(folder, 1):
        encode()
    assert names(folder) == sorted({*complete(3, ranks=2)} - {"part-00001.npy", "part-00001.json"})


def test_a_rank_beyond_the_number_of_processes(encode, folder, monkeypatch):
    for rank, size, starter in (("SLURM_PROCID", "SLURM_NTASKS", "srun"), ("RANK", "WORLD_SIZE", "torchrun")):
        monkeypatch.setenv(rank, "2")
        with pytest.raises(InputError, match=f"{size} is not set"):
            encode()
        monkeypatch.setenv(size, "2")
        with pytest.raises(InputError, match=rf"{rank} is '2', .* 0 to 1 \({size} is 2\): started with {starter}\?"):
            encode()
    assert not folder.exists()


@pytest.mark.parametrize("values", [{"width": 12}, {"options": None}, {"input": 3}, {"version": 2}, {"minisbert": 1}])
def test_a_manifest_that_was_edited_or_is_none_and_the_remedy(encode, folder, finishes, values):
    encode()
    path = folder / "manifest.json"
    for content in (json.dumps(json.loads(path.read_text()) | values), "{", "[]"):
        path.write_text(content)
        with pytest.raises(
            InputError, match=r"manifest\.json is damaged, or not the manifest .* remove it and run enc"
        ):
            encode("--overwrite")
    path.unlink()
    finishes()  # all shards verify


FOREIGN = ["part-00001.npy", "part-00001.json", "part-99999.txt", "part-2024/", "part-00077/", "notes.txt"]
FOREIGN += ["part-00000.json|"] if hasattr(os, "mkfifo") else []  # a pipe


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_tools_are_neither_replaced_nor_removed(encode, folder, no_model, name):
    no_model()
    make = {"/": Path.mkdir, "|": getattr(os, "mkfifo", None)}.get(name[-1], lambda path: path.write_text("{}"))
    folder.mkdir()
    make(folder / name.rstrip("/|"))
    with pytest.raises(InputError, match=rf"holds '{name.rstrip('/|')}', which encode did not write; choose another"):
        encode("--overwrite")
    assert names(folder) == [name.rstrip("/|")]


def test_a_folder_with_a_manifest_keeps_what_the_manifest_does_not_list(encode, folder, text):
    encode()
    others = {"part-00004.npy": b"vectors", "part-00077.npy": b"vectors", "part-2024.json": b"{}", "notes.txt": b""}
    for name, content in others.items():
        (folder / name).write_bytes(content)
    (folder / "part-00078").mkdir()
    encode()
    text.write_text("a cat\nmoon\n")
    encode("--overwrite")  # one shard is left
    assert names(folder) == sorted([*complete(1), *others, "part-00078"])
    text.write_text("\n".join(["moon", *TEXTS, *TEXTS]))
    with pytest.raises(InputError, match=r"holds 'part-00004\.npy', which encode did not write"):
        encode("--overwrite")
    assert {name: (folder / name).read_bytes() for name in others} == others


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("width", "24"), ("width", -5), ("width", True), ("dtype", "str"), ("dtype", "nonsense"), ("dtype", "V8"),
        ("input", {"rows": -5}), ("input", {"rows": 10**15}), ("options", {"part_rows": 0}), ("parts", {}),
        ("parts", [3, 4, 5, 6]), ("parts", [{"offset": -1, "bytes": 3, "sha256": ""}] * 4),
        ("width", 10**15), ("dtype", "float64"), ("input", {"rows": 8}),
    ],
)  # fmt: skip
def test_a_forged_manifest_is_damaged_or_does_not_fit_the_shards(encode, folder, name, values):
    """Every hash is right, so only the numbers, and the files' own shape and type, tell."""
    encode()
    found = read_manifest(folder)
    value = getattr(found, name)
    forged = replace(found, **{name: value | values if isinstance(value, dict) else values})
    forged.write()
    for path in folder.glob("part-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"manifest": forged.identity}))
    with pytest.raises(InputError, match=r"manifest\.json is damaged|part-0000\d\.npy is damaged or cut short"):
        merged(folder)
    assert not folder.with_name("merged.npy").exists()


def test_merging_what_cannot_be_merged(encode, folder, text, tmp_path):
    for place in (text, tmp_path / "no"):
        with pytest.raises(InputError, match=r"is not a folder of shards.*: it has no manifest\.json"):
            main(["merge", str(place), "--out", str(tmp_path / "v.npy")])
    encode()
    with pytest.raises(InputError, match=r"lies in .*, which this command reads"):
        main(["merge", str(folder), "--out", str(folder / "part-00000.npy")])
    with pytest.raises(InputError, match=r"v\.csv: the name must end in \.npy"):
        main(["merge", str(folder), "--out", "v.csv"])


def test_processes_of_one_machine_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(sharding, "choose_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert sharding.own_device("cuda") == torch.device("cuda")
    for variable, rank, expected in (("SLURM_LOCALID", "3", 1), ("LOCAL_RANK", "0", 0)):
        monkeypatch.setenv(variable, rank)
        assert sharding.own_device("cuda") == torch.device("cuda", expected)
    assert [sharding.own_device(name) for name in ("cuda:1", "cpu")] == [torch.device("cuda", 1), torch.device("cpu")]


def test_cut_texts_are_counted_over_all_shards(encode, text, capsys):
    text.write_text("\n".join(["cat " * 20, "a dog", "moon", "rain " * 30]))
    encode()
    assert "2 of 4 texts were longer than 16 tokens and were cut\n" in capsys.readouterr().err
