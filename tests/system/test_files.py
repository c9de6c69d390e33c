"""A failed read says why; a failed write leaves the old file."""

import errno
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from minisbert.core import InputError, read_json
from minisbert.system import files
from minisbert.system.files import atomic_file, atomic_folder, decode, read_text, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve\r\n猫\n".encode(), "naïve\r\n猫\n"),
        (b"\xef\xbb\xbfa cat\n\xef\xbb\xbf", "a cat\n\ufeff"),  # only the first one is a byte order mark
    ],
)
def test_text_is_read_unchanged(content, text, tmp_path):
    (tmp_path / "texts.txt").write_bytes(content)
    assert read_text(tmp_path / "texts.txt") == read_text(str(tmp_path / "texts.txt")) == text


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in [("nowhere", "does not exist"), ("", "is a folder, a file"), ("pipe", "is a pipe, a file")]:
        for read in (read_text, files.open_bytes):
            with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / path))} {words}"):
                read(tmp_path / path)


def test_a_file_that_is_too_large_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    (tmp_path / "a.txt").write_bytes(b"a" * 1000)
    assert len(read_text(tmp_path / "a.txt")) == 1000
    (tmp_path / "a.txt").write_bytes(b"\xff" * 1001)
    with pytest.raises(InputError, match=r"a\.txt is larger than 1,000 bytes"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"\xff", 1), (b"a\nb\n\x80", 3), (b"\xef\xbb\xbfa\n\xed\xa0\x80", 2), (b"a\n\xe7\x8c", 2), (b"na\xefve", 1)],
)
def test_bytes_that_are_not_utf_8_name_the_line(content, line, tmp_path):
    """A lone byte, one after a line break, a surrogate after a byte order mark, a truncated character, latin-1."""
    with pytest.raises(InputError, match=rf"^standard input, line {line}: not UTF-8"):
        decode(content, "standard input")
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.txt, line {line}: not UTF-8"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize("content", [{"a": 1, "ü": [None, True]}, {}, {"out": os.fsdecode(b"caf\xe9"), "ü": "猫"}])
def test_json_comes_back_as_it_was_written(content, tmp_path):
    """The last one holds a file name that is not UTF-8."""
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert (tmp_path / "a.json").read_bytes().endswith(b"}\n")


# ---------------------------------------------------------------------------------------- writing
# The same requirements for both: ``write`` fills a target with OLD or NEW, ``content`` reads it back.

OLD, NEW = "old " * 1000, "new"

Open = Callable[[Path], AbstractContextManager[Path]]


def write(opened: Path, text: str) -> None:
    """Fill what ``atomic_file`` or ``atomic_folder`` yielded."""
    if opened.is_dir():
        (opened / "inner").mkdir()
        (opened / "inner" / "text.txt").write_text(text)
        (opened / "config.json").write_text(json.dumps(text))
    else:
        opened.write_text(text)


def content(target: Path) -> str:
    if not target.is_dir():
        return target.read_text()
    assert names(target) == ["config.json", "inner"]
    assert names(target / "inner") == ["text.txt"]
    text = (target / "inner" / "text.txt").read_text()
    assert json.loads((target / "config.json").read_text()) == text
    return text


def test_an_ending_is_asked_of_a_path_that_is_given():
    files.check_ending("--out", None, ".npy")
    files.check_ending("--out", Path("a.npy"), ".npy", ".jsonl")
    with pytest.raises(InputError, match=r"--out a\.txt: the name must end in \.npy or \.jsonl"):
        files.check_ending("--out", Path("a.txt"), ".npy", ".jsonl")


both = pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])


@both
def test_success_makes_the_target(atomic: Open, tmp_path):
    target = tmp_path / "new" / "parents" / "target"
    with atomic(target) as partial:
        write(partial, NEW)
        assert not target.exists()
        assert partial.parent.parent == target.parent  # a rename across file systems would not be atomic
    assert content(target) == NEW
    assert names(target.parent) == ["target"]


@both
def test_success_replaces_what_was_there(atomic: Open, tmp_path):
    target = tmp_path / "target"
    for text in (OLD, NEW):
        with atomic(str(target)) as partial:
            write(partial, text)
    assert content(target) == NEW
    assert names(tmp_path) == ["target"]


@both
@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize(
    "error", [InputError("bad"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), SystemExit(2)]
)
def test_any_failure_leaves_the_target_as_it_was(atomic: Open, there_before: bool, error: BaseException, tmp_path):
    target = tmp_path / "target"
    if there_before:
        with atomic(target) as partial:
            write(partial, OLD)

    def fail() -> None:
        with atomic(target) as partial:
            write(partial, NEW)
            raise error

    with pytest.raises(type(error)) as raised:
        fail()
    assert raised.value is error
    assert names(tmp_path) == (["target"] if there_before else [])
    if there_before:
        assert content(target) == OLD


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@both
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_only_at_the_end(atomic: Open, call: str, tmp_path, monkeypatch):
    """Buffered bytes seem written until they are flushed, and the rename needs space, too."""
    target = tmp_path / "target"
    with atomic(target) as partial:
        write(partial, OLD)

    def write_on_full_disk() -> None:
        with atomic(target) as partial:
            write(partial, NEW)
            monkeypatch.setattr(os, call, full_disk)

    with pytest.raises(OSError, match="No space left"):
        write_on_full_disk()
    monkeypatch.undo()
    assert names(tmp_path) == ["target"]
    assert content(target) == OLD


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk is gone"), KeyboardInterrupt()])
def test_the_old_folder_is_restored_if_the_new_one_cannot_be_renamed(error, tmp_path, monkeypatch):
    target = tmp_path / "target"
    with atomic_folder(target) as partial:
        write(partial, OLD)
    rename, failed = os.replace, []

    def second_rename_fails(source: Path, destination: Path) -> None:
        """The first moves the old folder away, the second would move the new one in."""
        if destination == target and not failed:
            failed.append(source)
            raise error
        rename(source, destination)

    def replace() -> None:
        with atomic_folder(target) as partial:
            write(partial, NEW)

    monkeypatch.setattr(os, "replace", second_rename_fails)
    with pytest.raises(type(error)):
        replace()
    assert failed
    assert content(target) == OLD
    assert names(tmp_path) == ["target"]


@both
def test_a_path_below_a_file_cannot_be_written(atomic: Open, tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(OSError, match="file"), atomic(tmp_path / "file" / "target"):
        pytest.fail("the work must not even begin")
    assert (tmp_path / "file").read_text() == "text"


def test_nothing_takes_the_place_of_something_else(tmp_path, monkeypatch):
    """For root a rename onto a device would succeed, and /dev/null would be gone."""
    (tmp_path / "file").write_text(OLD)
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("renamed"))
    for atomic, target in [(atomic_folder, "file"), (atomic_file, "folder"), (atomic_file, os.devnull)]:
        with pytest.raises(InputError, match=r"is a .*is needed"), atomic(tmp_path / target):
            pytest.fail("the work must not even begin")
    assert names(tmp_path) == ["file", "folder"]
    assert content(tmp_path / "file") == OLD


@pytest.mark.parametrize("target", [".", "..", ""])
def test_the_current_folder_is_not_replaced(target, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "precious.txt").write_text(OLD)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="because it is the current folder"), atomic_folder(target):
        pytest.fail("the work must not even begin")
    assert content(tmp_path / "here" / "precious.txt") == OLD


@both
def test_a_link_stays_a_link(atomic: Open, tmp_path):
    """Weights are large, so people keep them on another disk and link to them."""
    (tmp_path / "disk").mkdir()
    with atomic(tmp_path / "disk" / "target") as partial:
        write(partial, OLD)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "target")
    with atomic(tmp_path / "link") as partial:
        write(partial, NEW)
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "disk" / "target") == NEW
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["target"]


# -------------------------------------------------------------------------- what would be lost


@pytest.mark.parametrize(
    ("present", "foreign"),
    [
        ([], []),
        (["a.txt", "1_Sub/b.txt"], []),
        ([".DS_Store", "1_Sub/Thumbs.db"], []),
        (["c.txt", "a.txt.bak", "b.txt"], ["a.txt.bak", "b.txt", "c.txt"]),
        (["1_Sub/a.txt", "12_Sub/b.txt", "Sub/b.txt"], ["12_Sub", "1_Sub/a.txt", "Sub"]),
        (["own/deep/x", "own/y", "1_Sub/deep/b.txt", "a.txt/x"], ["1_Sub/deep", "a.txt/x", "own"]),
    ],
)
def test_foreign_entries_are_named_once(present, foreign, tmp_path):
    for name in present:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files.foreign_entries(tmp_path, ["a.txt", "[0-9]_Sub/b.txt"]) == foreign


def test_a_link_is_an_entry_and_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.txt").touch()
    (tmp_path / "folder").mkdir()
    for name in ("1_Sub", "own"):
        (tmp_path / "folder" / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "dangling").symlink_to(tmp_path / "nowhere")
    assert files.foreign_entries(tmp_path / "folder", ["1_Sub/b.txt"]) == ["dangling", "own"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [(["a"], "'a'"), (["a", "b", "c"], "'a', 'b', 'c'"), (["a", "b", "c", "d\n", "e"], "'a', 'b', 'c' and 2 more")],
)
def test_the_first_three_names_are_listed(names, shown):
    assert files.listed(names) == shown


# ------------------------------------------------------------------------------- several at once


@pytest.mark.parametrize("there_before", [True, False])
def test_a_folder_that_appears_at_the_last_moment_is_replaced(there_before, tmp_path, monkeypatch):
    """Another process creates the folder after we moved the old one away and before our rename."""
    target, other = tmp_path / "target", tmp_path / "other"
    for folder in (target, other) if there_before else (other,):
        folder.mkdir()
        write(folder, OLD)
    rename, seen = os.replace, []

    def rename_late(source: Path, destination: Path) -> None:
        if destination == target and not seen:
            seen.append(source)
            rename(other, target)
        rename(source, destination)

    monkeypatch.setattr(os, "replace", rename_late)
    with atomic_folder(target) as partial:
        write(partial, NEW)
    assert seen
    assert content(target) == NEW
    assert names(tmp_path) == ["target"]


@both
def test_many_writers_of_one_target_leave_one_complete_result(atomic: Open, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "flush", lambda path: None)  # this test is about names and renames
    target, writers, rounds = tmp_path / "target", 6, 15
    barrier, errors = threading.Barrier(writers), []

    def write_round(text: str) -> None:
        barrier.wait(timeout=30)
        with atomic(target) as partial:
            write(partial, text)

    def work(number: int) -> None:
        try:
            for turn in range(rounds):
                write_round(f"writer {number}, round {turn}")
        except BaseException as error:
            barrier.abort()
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert content(target) in {f"writer {number}, round {rounds - 1}" for number in range(writers)}
    assert names(tmp_path) == ["target"]


# ----------------------------------------------------------------------------------- after a kill

posix = pytest.mark.skipif(sys.platform == "win32", reason="no locks there")


@pytest.fixture
def killed(tmp_path):
    """``killed(atomic, text)``: a process writes ``text`` to ``tmp_path/target`` and is killed before the rename."""

    def write_and_die(atomic: Open, text: str) -> None:
        child = os.fork()
        if not child:
            with atomic(tmp_path / "target") as partial:
                write(partial, text)
                os._exit(9)
        os.waitpid(child, 0)

    return write_and_die


def hidden(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.startswith(".")]


@both
def test_a_living_writer_is_left_alone(atomic: Open, tmp_path):
    """Not told by its process id, which may be the same for every run in a container: here it even is this process."""
    slow = atomic(tmp_path / "target")
    write(slow.__enter__(), OLD)
    files.recover(tmp_path / "target")
    with atomic(tmp_path / "target") as partial:
        write(partial, NEW)
    assert content(tmp_path / "target") == NEW
    assert len(hidden(tmp_path)) == 1
    slow.__exit__(None, None, None)
    assert content(tmp_path / "target") == OLD
    assert names(tmp_path) == ["target"]


@posix
@both
@pytest.mark.parametrize("there_before", [True, False])
def test_the_next_writer_removes_what_killed_ones_left(atomic: Open, there_before, killed, tmp_path):
    for name in ["target", "other"] if there_before else ["other"]:
        with atomic(tmp_path / name) as partial:
            write(partial, OLD)
    for _ in range(2):
        killed(atomic, NEW)
    (tmp_path / ".target.partial-mine").mkdir()  # not one of ours
    (tmp_path / ".other.partial-0123abcd").mkdir()  # another target's
    assert len(hidden(tmp_path)) >= 3
    with atomic(tmp_path / "target") as partial:
        write(partial, "newer")
    assert content(tmp_path / "target") == "newer"
    assert names(tmp_path) == [".other.partial-0123abcd", ".target.partial-mine", "other", "target"]


@posix
@pytest.mark.parametrize("target", ["target", "a [1] *", "link"])
def test_a_kill_between_the_two_renames_restores_the_old_folder(target, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "target")
    path = tmp_path / target
    with atomic_folder(path) as partial:
        write(partial, OLD)
    child = os.fork()
    if not child:
        rename, renamed = os.replace, []

        def second_kills(source: Path, destination: Path) -> None:
            if renamed:
                os._exit(9)
            renamed.append(rename(source, destination))

        os.replace = second_kills
        with atomic_folder(path) as partial:
            write(partial, NEW)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not path.exists()
    files.recover(path)
    assert content(path) == OLD
    assert hidden(tmp_path) == []


@posix
def test_on_a_disk_without_locks_nothing_is_removed(killed, tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    killed(atomic_folder, NEW)
    before = hidden(tmp_path)
    monkeypatch.setattr("fcntl.flock", none)
    with atomic_folder(tmp_path / "target") as partial:
        write(partial, OLD)
    assert content(tmp_path / "target") == OLD
    assert hidden(tmp_path) == before != []


@posix
def test_a_new_folder_that_is_taken_for_a_leftover_is_made_again(tmp_path, monkeypatch):
    """Another process starts in the moment between its creation and its lock."""
    make, made = Path.mkdir, []

    def swept(path: Path, *arguments, **options) -> None:
        make(path, *arguments, **options)
        if ".target.partial-" in path.name and len(made) < 2:
            made.append(path)
            files.recover(tmp_path / "target")
            assert not path.exists()

    monkeypatch.setattr(Path, "mkdir", swept)
    with atomic_folder(tmp_path / "target") as partial:
        write(partial, NEW)
    assert len(made) == 2
    assert content(tmp_path / "target") == NEW
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("appears", [True, False])
def test_moving_the_old_folder_back_replaces_and_loses_nothing(appears, tmp_path, monkeypatch):
    """Meanwhile another process has written a new folder; or it cannot be moved, and the only copy stays."""
    workspace, target = tmp_path / ".target.partial-0123abcd", tmp_path / "target"
    (workspace / "old").mkdir(parents=True)
    write(workspace / "old", OLD)
    rename = os.replace

    def late(source: Path, destination: Path) -> None:
        if not appears:
            raise PermissionError(errno.EACCES, "not now")
        destination.mkdir()
        write(destination, NEW)
        rename(source, destination)

    monkeypatch.setattr(os, "replace", late)
    files._settle(workspace, target)
    assert names(tmp_path) == ["target" if appears else workspace.name]
    assert content(target if appears else workspace / "old") == (NEW if appears else OLD)


def test_the_replaced_folder_is_gone_before_the_lock_is_released(tmp_path, monkeypatch):
    """Later it could be taken for the only one there is, when another process is between its two renames."""
    settle, seen = files._settle, []
    monkeypatch.setattr(files, "_settle", lambda *paths: seen.append((paths[0] / "old").exists()) or settle(*paths))
    for text in (OLD, NEW):
        with atomic_folder(tmp_path / "target") as partial:
            write(partial, text)
    assert seen == [False, False]


# ------------------------------------------------------------------------------------- a full disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_the_error_of_a_full_disk_names_the_file_and_other_errors_stay(number, tmp_path):
    for given, shown in [((number, "full"), "full: 'file'"), ((number, "full", "other"), "full: 'other'"),
                         ((errno.ECONNRESET, "reset"), "reset$")]:  # fmt: skip
        with pytest.raises(OSError, match=shown), files.naming("file"):
            raise OSError(*given)


@both
def test_an_atomic_write_on_a_full_disk_names_the_target(atomic: Open, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*/target'"), atomic(tmp_path / "target") as partial:
        write(partial, NEW)
