"""A failed read says why; a failed write leaves the old file."""

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from minisbert.core import InputError, read_json
from minisbert.system import files
from minisbert.system.files import (
    atomic_file,
    atomic_folder,
    check_owner,
    read_text,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve\r\n猫\n".encode(), "naïve\r\n猫\n"),
        # Only the first one is a byte order mark.
        (b"\xef\xbb\xbfa cat\n\xef\xbb\xbf", "a cat\n\ufeff"),
    ],
)
def test_text_is_read_unchanged(content, text, tmp_path):
    """Line ends are the text's own."""
    (tmp_path / "texts.txt").write_bytes(content)
    assert read_text(tmp_path / "texts.txt") == text
    assert read_text(str(tmp_path / "texts.txt")) == text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "does not exist"),
        ("folder", "is a folder, a file"),
        ("pipe", "is a pipe, a file"),
    ],
)
def test_what_is_no_file_is_named(name, message, tmp_path):
    """Reading a pipe without a writer would wait forever."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / name))} {message}"):
        read_text(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff", 1),
        (b"a\nb\n\x80", 3),
        (b"\xef\xbb\xbfa\n\xed\xa0\x80", 2),  # a surrogate after a byte order mark
        (b"a\n\xe7\x8c", 2),  # a truncated character
        (b"na\xefve", 1),  # Latin-1
    ],
)
def test_bytes_that_are_not_utf_8_name_the_line(content, line, tmp_path):
    """The user finds the text in a file of a million lines."""
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.txt, line {line}: not UTF-8"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "content", [{"a": 1, "ü": [None, True]}, {}, {"out": os.fsdecode(b"caf\xe9"), "ü": "猫"}]
)
def test_json_comes_back_as_it_was_written(content, tmp_path):
    """The last one holds a file name that is not UTF-8."""
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert (tmp_path / "a.json").read_bytes().endswith(b"}\n")


# ``atomic_file`` and ``atomic_folder`` must do the same. ``write`` fills what they yield with OLD
# or NEW, ``content`` reads it back.

OLD = "old " * 1000
NEW = "new"

Open = Callable[[Path], AbstractContextManager[Path]]
both = pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])


def write(opened: Path, text: str) -> None:
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


def store(atomic: Open, target: Path, text: str) -> None:
    with atomic(target) as partial:
        write(partial, text)


@pytest.fixture(params=[True, False], ids=["there before", "new"])
def there_before(request, atomic: Open, tmp_path) -> bool:
    """Whether the test's ``target`` exists."""
    if request.param:
        store(atomic, tmp_path / "target", OLD)
    return request.param


def assert_as_before(folder: Path, there_before: bool) -> None:
    """The folder holds nothing but the old target, if there was one."""
    if there_before:
        assert names(folder) == ["target"]
        assert content(folder / "target") == OLD
    else:
        assert names(folder) == []


@both
def test_success_makes_or_replaces_the_target(atomic: Open, tmp_path):
    target = tmp_path / "new" / "parents" / "target"
    for text in (OLD, NEW):
        with atomic(str(target)) as partial:
            write(partial, text)
            assert target.exists() == (text == NEW)
            # A rename across file systems would not be atomic.
            assert target.parent in partial.parents
        assert content(target) == text
        assert names(target.parent) == ["target"]


@pytest.mark.parametrize("mine", ["notes.txt", "inner/notes.txt", ".git/HEAD", "link"])
def test_a_folder_that_holds_another_file_is_not_replaced(mine, tmp_path):
    target = tmp_path / "target"
    store(atomic_folder, target, OLD)
    (target / mine).parent.mkdir(exist_ok=True)
    if mine == "link":
        (target / mine).symlink_to("nowhere")
    else:
        (target / mine).write_text("mine")
    with pytest.raises(InputError, match=f"{mine} would be lost"):
        store(atomic_folder, target, NEW)
    assert (target / "inner" / "text.txt").read_text() == OLD
    assert (target / mine).is_symlink() or (target / mine).read_text() == "mine"
    assert names(tmp_path) == ["target"]


@both
@pytest.mark.parametrize(
    "error", [InputError("bad"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), SystemExit(2)]
)
def test_any_failure_leaves_the_target_as_it_was(
    atomic: Open, there_before: bool, error: BaseException, tmp_path
):
    with pytest.raises(type(error)) as raised, atomic(tmp_path / "target") as partial:  # noqa: PT012
        write(partial, NEW)
        raise error
    assert raised.value is error
    assert_as_before(tmp_path, there_before)


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("atomic", "call"), [(atomic_file, "fsync"), (atomic_file, "replace"), (atomic_folder, "fsync")]
)
def test_a_disk_that_is_full_only_at_the_end(
    atomic: Open, there_before: bool, call: str, tmp_path, monkeypatch
):
    """Buffered bytes seem written until they are flushed, and the rename needs space, too."""
    message = r"No space left on device: '.*/target'"
    with pytest.raises(OSError, match=message), atomic(tmp_path / "target") as partial:  # noqa: PT012
        write(partial, NEW)
        monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    monkeypatch.undo()
    assert_as_before(tmp_path, there_before)


def fail_to_rename(*_: object) -> None:
    pytest.fail("something was renamed")


@pytest.mark.parametrize(
    ("atomic", "target", "message"),
    [
        (atomic_folder, "../file", "a folder is needed"),
        (atomic_folder, os.devnull, "a folder is needed"),
        (atomic_file, "../here", "here is a folder or a device, a file is needed"),
        (atomic_file, os.devnull, "null is a folder or a device, a file is needed"),
        (atomic_file, "../file/target", "file"),  # below a file
        (atomic_folder, "../file/target", "file"),
        (atomic_folder, ".", "folder"),
        (atomic_folder, "..", "folder"),
        (atomic_folder, "", "folder"),
    ],
)
def test_nothing_takes_the_place_of_something_else(atomic, target, message, tmp_path, monkeypatch):
    """For root a rename onto a device would succeed, and /dev/null would be gone."""
    (tmp_path / "file").write_text(OLD)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(os, "replace", fail_to_rename)
    with pytest.raises((InputError, OSError), match=message), atomic(target):
        pytest.fail("the work must not even begin")
    assert names(tmp_path) == ["file", "here"]
    assert content(tmp_path / "file") == OLD


@both
def test_a_link_stays_a_link(atomic: Open, tmp_path):
    """Weights are large, so people keep them on another disk and link to them."""
    store(atomic, tmp_path / "disk" / "target", OLD)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "target")
    store(atomic, tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "disk" / "target") == NEW
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["target"]


posix = pytest.mark.skipif(sys.platform == "win32", reason="no locks there")


@posix
def test_a_lock_is_held_until_the_file_is_closed(tmp_path):
    """A process that is killed leaves no lock behind."""
    with open(tmp_path / "a", "w") as first, open(tmp_path / "a") as second:
        files.lock(first)
        with pytest.raises(BlockingIOError):
            files.lock(second)
        first.close()
        files.lock(second)


def leave_behind(folder: Path, name: str) -> Path:
    """Make the hidden folder of a process that was killed a while ago."""
    leftover = folder / name
    leftover.mkdir()
    (leftover / "target").write_text("half of")
    hour_ago = time.time() - 3600
    os.utime(leftover, (hour_ago, hour_ago))
    return leftover


@both
@posix
def test_what_a_killed_process_has_left_is_removed_by_the_next_one(atomic: Open, tmp_path):
    """Vectors of gigabytes would fill the disk, hidden, with each process that is killed."""
    leave_behind(tmp_path, ".target.partial-0123abcd")
    leave_behind(tmp_path, ".another.partial-0123abcd")
    store(atomic, tmp_path / "target", NEW)
    assert names(tmp_path) == [".another.partial-0123abcd", "target"]


@both
@posix
def test_what_another_process_is_writing_stays(atomic: Open, tmp_path):
    """However long it takes: it is locked."""
    with atomic(tmp_path / "target") as slow:
        write(slow, OLD)
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        store(atomic, tmp_path / "target", NEW)
    assert content(tmp_path / "target") == OLD


@posix
def test_a_model_that_a_killed_process_has_moved_away_is_put_back(tmp_path):
    """A kill between two renames leaves no model at its name."""
    store(atomic_folder, tmp_path / "target", OLD)
    (tmp_path / "target").rename(tmp_path / ".target.partial-0123abcd.old")
    leave_behind(tmp_path, ".target.partial-0123abcd")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "target"):
        raise ZeroDivisionError
    assert names(tmp_path) == ["target"]
    assert content(tmp_path / "target") == OLD


@posix
def test_a_disk_without_locks_is_accepted(tmp_path, monkeypatch):
    """Some network disks have none."""
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    with open(tmp_path / "a", "w") as file:
        files.lock(file)
    store(atomic_file, tmp_path / "target", NEW)
    assert content(tmp_path / "target") == NEW


def test_a_link_under_a_name_that_the_program_chose_is_refused(tmp_path):
    """Even one to a file that does not exist yet: it would be made there."""
    files.check_no_link(tmp_path / "curves.png")
    (tmp_path / "curves.png").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link"):
        files.check_no_link(tmp_path / "curves.png")


@both
def test_a_folder_that_cannot_be_written_names_the_file_that_was_asked_for(
    atomic: Open, tmp_path, monkeypatch
):
    """Not the hidden one beside it."""

    def refuse(path: Path, *_: object, **options: object) -> None:
        if "parents" not in options:  # the folder of the target is there
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)  # Linux looks at the disk first
    with pytest.raises(OSError, match="Read-only") as caught, atomic(tmp_path / "target"):
        pass
    assert caught.value.filename == str(tmp_path / "target")


# ---------------------------------------------------------------------- who can change a program


@posix
def test_a_program_that_only_its_user_can_change(tmp_path):
    """A package is native code: loading it runs it."""
    (tmp_path / "package").touch(mode=0o600)
    check_owner(tmp_path / "package")


@posix
@pytest.mark.parametrize("place", ["package", "."])
@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_program_that_others_can_change_or_exchange_is_refused(place, mode, tmp_path):
    (tmp_path / "package").touch(mode=0o600)
    (tmp_path / place).chmod(mode)
    with pytest.raises(InputError, match="other users can change"):
        check_owner(tmp_path / "package")


@posix
def test_a_folder_in_which_only_the_owner_may_rename_is_accepted(tmp_path):
    """As /tmp is: its sticky bit keeps others from exchanging our file."""
    (tmp_path / "package").touch(mode=0o600)
    tmp_path.chmod(0o1777)
    check_owner(tmp_path / "package")


@posix
@pytest.mark.parametrize(
    ("group_name", "members", "refused"),
    [("me", [], False), ("me", ["me", "you"], True), ("staff", [], True)],
)
def test_a_users_own_group_may_write_and_another_group_may_not(
    group_name, members, refused, tmp_path, monkeypatch
):
    """Ubuntu's folders have mode 775, in a group with the user's name and nobody else."""
    (tmp_path / "package").touch(mode=0o644)
    tmp_path.chmod(0o775)
    number = tmp_path.stat().st_gid
    user = SimpleNamespace(pw_name="me", pw_gid=number)
    group = SimpleNamespace(gr_name=group_name, gr_mem=members, gr_gid=number)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: user)
    monkeypatch.setattr("grp.getgrgid", lambda gid: group)
    if refused:
        with pytest.raises(InputError, match="other users can change"):
            check_owner(tmp_path / "package")
    else:
        check_owner(tmp_path / "package")
