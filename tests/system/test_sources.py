"""Each source yields the bytes of its files or raises FetchError, whatever servers, archives and pip do."""

import errno
import hashlib
import io
import json
import os
import socket
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from http.client import IncompleteRead
from importlib.util import find_spec
from pathlib import Path

import pytest

from minisbert.system import sources
from minisbert.system.console import LiveLine
from minisbert.system.sources import AssetFile, FetchError, Files
from tests.servers import cut, cut_chunked, serve

CONTENT = {"model.bin": bytes(range(256)) * 8, "sub/config.json": b'{"a": 1}\n'}
FILES = tuple(AssetFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items())
MODEL = FILES[0]
# what an attacker, or a careless packager, may add to an archive
STRAY = {"../evil.txt": b"evil", "inside/../../evil.txt": b"evil", "/evil.txt": b"evil", "inside/setup.py": b"evil"}


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


PACKERS = {".zip": zipped, ".tar.gz": tarred}
GOOD = {f"inside/{name}": data for name, data in CONTENT.items()}


def wheel(folder: Path, entries: dict[str, bytes], name: str = "tiny_weights", version: str = "1.0") -> Path:
    """The smallest wheel that pip accepts."""
    about = f"{name}-{version}.dist-info"
    entries = entries | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(zipped(entries))
    return path


def save(source: Files, folder: Path) -> None:
    """Copy every file to disk, as ``fetch`` does."""
    for file, stream in source:
        sources.write_verified(stream, folder / file.name, file, LiveLine())


def collect(source: Files) -> dict[str, bytes]:
    """Every file that a source yields, read to its end."""
    return {file.name: stream.read() for file, stream in source}


@pytest.fixture
def line() -> LiveLine:
    return LiveLine()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, which sources must leave empty. Disables proxies and pip's index and config."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in os.environ:
        if name.upper().startswith("PIP_"):
            monkeypatch.delenv(name)
    for name, value in {
        "no_proxy": "*",
        "NO_PROXY": "*",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }.items():
        monkeypatch.setenv(name, value)
    return folder


# ------------------------------------------------------------------------------ copying and hashing


def copy(data: bytes, path: Path, file: AssetFile) -> None:
    sources.write_verified(io.BytesIO(data), path, file, LiveLine())


def test_the_right_bytes_are_written(tmp_path):
    copy(CONTENT["model.bin"], tmp_path / "new" / "model.bin", MODEL)
    assert (tmp_path / "new" / "model.bin").read_bytes() == CONTENT["model.bin"]


def test_a_stream_of_many_chunks_is_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 7)
    copy(CONTENT["model.bin"], tmp_path / "model.bin", MODEL)
    assert (tmp_path / "model.bin").read_bytes() == CONTENT["model.bin"]


def test_one_wrong_byte_is_refused_with_both_hashes(tmp_path):
    wrong = b"\x01" + CONTENT["model.bin"][1:]
    with pytest.raises(FetchError) as error:
        copy(wrong, tmp_path / "model.bin", MODEL)
    assert str(error.value) == (
        f"model.bin has sha256 {hashlib.sha256(wrong).hexdigest()}, not {MODEL.sha256} as in the manifest "
        "(2,048 bytes received)"
    )


@pytest.mark.parametrize(("data", "came"), [(b"", "0"), (CONTENT["model.bin"][:1500], "1,500")])
def test_a_wrong_length_is_reported_as_such(data, came, tmp_path):
    with pytest.raises(FetchError) as error:
        copy(data, tmp_path / "model.bin", MODEL)
    assert str(error.value) == f"model.bin has {came} bytes, not 2,048 as in the manifest"


def test_a_file_may_have_no_published_length(tmp_path):
    file = AssetFile("a.txt", sha256=hashlib.sha256(b"a").hexdigest())
    copy(b"a", tmp_path / "a.txt", file)
    with pytest.raises(FetchError, match=r"^a\.txt has sha256"):
        copy(b"ab", tmp_path / "a.txt", file)


def test_md5_decides_only_without_a_sha256(tmp_path):
    md5 = hashlib.md5(b"a").hexdigest()
    copy(b"a", tmp_path / "a.txt", AssetFile("a.txt", 1, md5=md5))
    with pytest.raises(FetchError, match=rf"^a\.txt has md5 {hashlib.md5(b'b').hexdigest()}, not {md5}"):
        copy(b"b", tmp_path / "a.txt", AssetFile("a.txt", 1, md5=md5))
    with pytest.raises(FetchError, match=r"^a\.txt has sha256"):
        copy(b"a", tmp_path / "a.txt", AssetFile("a.txt", 1, md5=md5, sha256="0" * 64))


class FullDisk(io.BytesIO):
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_not_the_fault_of_the_source(tmp_path, monkeypatch):
    """A ``FetchError`` would try the next source, which cannot help."""
    monkeypatch.setattr(sources, "open", lambda *_: FullDisk(), raising=False)
    with pytest.raises(OSError, match="No space left"):
        copy(CONTENT["model.bin"], tmp_path / "model.bin", MODEL)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), TimeoutError("timed out"), EOFError("cut"),
        IncompleteRead(b"", 10), zipfile.BadZipFile("Bad CRC-32"), zlib.error("invalid block type"),
        tarfile.ReadError("unexpected end of data"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_stream_that_breaks_is_the_fault_of_the_source(error, tmp_path):
    class Broken(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            raise error

    with pytest.raises(FetchError, match=r"^model\.bin could not be read to its end: "):
        sources.write_verified(Broken(), tmp_path / "model.bin", MODEL, LiveLine())


def test_progress_names_the_file_and_both_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 1_500_000)
    data = bytes(2_000_000)
    shown = []
    line = LiveLine()
    monkeypatch.setattr(line, "show", shown.append)
    sources.write_verified(
        io.BytesIO(data), tmp_path / "a", AssetFile("a", len(data), hashlib.sha256(data).hexdigest()), line
    )
    assert shown == ["  a: 1.5 MB of 2.0 MB", "  a: 2.0 MB of 2.0 MB"]


# --------------------------------------------------------------------------------------- addresses


def hub(site_address: str, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setenv("HF_ENDPOINT", site_address)
    return {"hub": "someone/tiny", "revision": "abc123"}


def test_the_hub_is_asked_for_each_file_at_its_revision(line, monkeypatch):
    pages = {f"/mirror/someone/tiny/resolve/abc123/{name}": data for name, data in CONTENT.items()}
    with serve(pages) as site:
        source = hub(f"{site.address}/mirror/", monkeypatch)  # with or without a slash at the end
        assert collect(sources.from_hub(FILES, source, line)) == CONTENT
    assert site.asked == list(pages)


@pytest.mark.parametrize("endpoint", [None, ""])
def test_without_a_mirror_the_hub_itself_is_asked_over_https(endpoint, line, monkeypatch):
    asked = []

    @contextmanager
    def no_network(address: str):
        asked.append(address)
        yield io.BytesIO()

    if endpoint is None:
        monkeypatch.delenv("HF_ENDPOINT", raising=False)
    else:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(sources, "connect", no_network)
    collect(sources.from_hub((MODEL,), {"hub": "someone/tiny", "revision": "abc123"}, line))
    assert asked == ["https://huggingface.co/someone/tiny/resolve/abc123/model.bin"]


def test_a_url_yields_its_one_file(line):
    with serve({"/some/where.tsv": b"content"}) as site:
        source = {"url": f"{site.address}/some/where.tsv"}
        assert collect(sources.from_url((MODEL,), source, line)) == {"model.bin": b"content"}


def test_a_url_that_ends_in_a_slash_yields_the_files_below_it(line):
    with serve({f"/data/{name}": data for name, data in CONTENT.items()}) as site:
        assert collect(sources.from_url(FILES, {"url": f"{site.address}/data/"}, line)) == CONTENT
        assert site.asked == [f"/data/{name}" for name in CONTENT]


def test_a_missing_page_is_named_with_the_servers_answer(line):
    with serve({}) as site, pytest.raises(FetchError) as error:
        collect(sources.from_url((MODEL,), {"url": f"{site.address}/gone"}, line))
    assert str(error.value) == f"{site.address}/gone: HTTP Error 404: Not Found"


def test_a_server_that_is_gone(line):
    with serve({}) as site:
        address = site.address
    with pytest.raises(FetchError, match=f"^{address}/a: .*refused"):
        collect(sources.from_url((MODEL,), {"url": f"{address}/a"}, line))


def test_a_server_that_never_answers(line, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(FetchError, match=f"^{address}: .*timed out"):
            collect(sources.from_url((MODEL,), {"url": address}, line))


@pytest.mark.parametrize("address", ["nowhere", "", "http://", "http://[", "http://a b/", "gopher://127.0.0.1/"])
def test_an_invalid_url(address, line):
    with pytest.raises(FetchError):
        collect(sources.from_url((MODEL,), {"url": address}, line))


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        (lambda data: cut(data, 1000), r"^model\.bin has 1,000 bytes, not 2,048"),
        (cut_chunked, r"^model\.bin could not be read to its end: IncompleteRead"),
    ],
    ids=["length promised", "chunked"],
)
def test_an_interrupted_connection_is_noticed(breaking, message, line, tmp_path):
    with serve({"/a": breaking(CONTENT["model.bin"])}) as site, pytest.raises(FetchError, match=message):
        save(sources.from_url((MODEL,), {"url": f"{site.address}/a"}, line), tmp_path)


def test_a_server_that_stops_in_the_middle(line, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)

    def stall(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "2048")
        handler.end_headers()
        handler.wfile.write(b"a few bytes")
        handler.wfile.flush()
        time.sleep(0.5)

    with (
        serve({"/a": stall}) as site,
        pytest.raises(FetchError, match=r"^model\.bin could not be read to its end: timed out"),
    ):
        save(sources.from_url((MODEL,), {"url": f"{site.address}/a"}, line), tmp_path)


def endless(handler) -> None:
    """Far more than the manifest states, without a length."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # the other side has had enough
        for _ in range(1000):
            handler.wfile.write(bytes(10_000))


def dripping(handler) -> None:
    """A byte every hundredth of a second: never silent for long."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        for _ in range(1000):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.01)


@pytest.mark.parametrize("kind", ["url", "archive"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless, "(model.bin|a.zip) is larger than expected: more than 2,048 bytes"),
        (dripping, r"(model.bin|a.zip) comes too slowly: \d+ bytes in 0.1 seconds"),
    ],
)
def test_a_server_that_sends_too_much_or_too_slowly_is_given_up(kind, answer, message, line, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    monkeypatch.setattr(sources, "LARGEST", 2048)
    with serve({"/a.zip": answer}) as site:
        source = {kind: f"{site.address}/a.zip", "inside": "inside"}
        with pytest.raises(FetchError, match=f"^{message}$"):
            save(sources.SOURCES[kind]((MODEL,), source, line), tmp_path)


# ---------------------------------------------------------------------------------------- archives


def from_archive(body: bytes, ending: str, inside: str = "inside") -> dict[str, bytes]:
    with serve({f"/files/archive{ending}": body}) as site:
        source = {"archive": f"{site.address}/files/archive{ending}", "inside": inside}
        return collect(sources.from_archive(FILES, source, LiveLine()))


archives = pytest.mark.parametrize("ending", PACKERS)


@archives
def test_an_archive_yields_only_the_files_in_the_manifest(ending, tmp_path, temporary):
    assert from_archive(PACKERS[ending](STRAY | GOOD), ending) == CONTENT
    assert list(temporary.iterdir()) == []
    assert not list(tmp_path.rglob("evil*"))


@archives
def test_a_file_that_the_archive_lacks_is_named(ending, temporary):
    with pytest.raises(FetchError, match=rf"archive{ending}: .*inside/sub/config\.json"):
        from_archive(PACKERS[ending]({"inside/model.bin": CONTENT["model.bin"]}), ending)
    assert list(temporary.iterdir()) == []


def test_a_folder_in_place_of_a_file(temporary):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        folder = tarfile.TarInfo("inside/model.bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with pytest.raises(FetchError, match=r"archive\.tar\.gz: inside/model\.bin is not a file"):
        from_archive(buffer.getvalue(), ".tar.gz")
    assert list(temporary.iterdir()) == []


@archives
def test_a_page_in_place_of_an_archive(ending):
    with pytest.raises(FetchError, match=f"^archive{ending}: "):
        from_archive(b"<html>Log in to this network first</html>", ending)


def damaged(body: bytes) -> list[bytes]:
    """The archive truncated at many lengths, and with each byte of its head and tail flipped."""
    places = [*range(60), *range(len(body) - 160, len(body))]
    cuts = [body[:length] for length in range(0, len(body), 80)]
    return cuts + [body[:i] + bytes([body[i] ^ 0xFF]) + body[i + 1 :] for i in places]


@archives
def test_a_damaged_archive_is_a_fetch_error_or_harmless(ending, tmp_path, monkeypatch):
    """Damage raises many kinds of exception; after any of them the next source must be tried."""
    body = b""

    @contextmanager
    def local(_: str):
        yield io.BytesIO(body)

    monkeypatch.setattr(sources, "connect", local)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(tmp_path)))  # one folder for all
    source = {"archive": f"http://127.0.0.1/archive{ending}", "inside": "inside"}
    variants, refused = damaged(PACKERS[ending](GOOD | {"naïve.txt": b""})), 0
    for body in variants:  # noqa: B007 (``local`` serves it)
        try:
            save(sources.from_archive(FILES, source, LiveLine()), tmp_path / "out")
        except FetchError:
            refused += 1
        else:
            assert {name: (tmp_path / "out" / name).read_bytes() for name in CONTENT} == CONTENT
    assert refused > len(variants) / 2


@archives
def test_an_archive_on_a_full_disk_is_not_the_fault_of_the_source(ending, temporary, monkeypatch):
    monkeypatch.setattr(sources, "open", lambda *_: FullDisk(), raising=False)
    with pytest.raises(OSError, match="No space left"):
        from_archive(PACKERS[ending](GOOD), ending)
    assert list(temporary.iterdir()) == []


@archives
@pytest.mark.parametrize("error", [KeyboardInterrupt(), FetchError("wrong hash")])
def test_a_source_left_early_cleans_up(ending, error, temporary):
    def leave() -> None:
        with serve({f"/archive{ending}": PACKERS[ending](GOOD)}) as site:
            source = {"archive": f"{site.address}/archive{ending}", "inside": "inside"}
            for _ in sources.from_archive(FILES, source, LiveLine()):
                assert list(temporary.iterdir()) != []
                raise error

    with pytest.raises(type(error)):
        leave()
    assert list(temporary.iterdir()) == []


# ------------------------------------------------------------------------------------------- wheels

WHEEL = {"wheel": "tiny-weights==1.0", "inside": "tiny_weights/model", "size": 3_000_000}
with_pip = pytest.mark.skipif(find_spec("pip") is None, reason="this environment has no pip")


def stub_pip(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``python -m pip`` run ``code``."""
    folder.mkdir()
    (folder / "pip.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@with_pip
def test_a_wheel_is_downloaded_and_read_but_not_installed(line, tmp_path, temporary):
    entries = {f"tiny_weights/model/{name}": data for name, data in CONTENT.items()}
    wheel(tmp_path / "wheels", entries | {"tiny_weights/__init__.py": b"raise SystemExit('executed')"})
    assert collect(sources.from_wheel(FILES, WHEEL, line)) == CONTENT
    assert find_spec("tiny_weights") is None
    assert list(temporary.iterdir()) == []


@with_pip
def test_a_wheel_that_is_unavailable_gives_pips_reason(line, tmp_path, temporary):
    wheel(tmp_path / "wheels", {}, version="2.0")
    with pytest.raises(FetchError, match=r"^pip could not download it: ERROR: .*tiny-weights==1\.0"):
        collect(sources.from_wheel(FILES, WHEEL, line))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('No module named pip')", "No module named pip"),
        ("import sys; print('ERROR: no route', file=sys.stderr); print('a hint', file=sys.stderr); sys.exit(1)",
         "ERROR: no route"),
        ("import sys; sys.exit(7)", "exit code 7"),
    ],
)  # fmt: skip
def test_a_pip_that_fails_is_a_fetch_error(code, reason, line, tmp_path, temporary, monkeypatch):
    stub_pip(tmp_path / "stub", code, monkeypatch)
    with pytest.raises(FetchError) as error:
        collect(sources.from_wheel(FILES, WHEEL, line))
    assert str(error.value) == f"pip could not download it: {reason}"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "message"),
    [(0, r"comes too slowly: 0 bytes in 0\.3 seconds"), (9_000_000, r"is larger than expected: more than 7,048,576")],
)
def test_a_pip_that_gets_too_much_or_too_little_is_ended(written, message, line, tmp_path, temporary, monkeypatch):
    code = f"import os, time; open(os.environ['TMPDIR'] + '/part', 'wb').write(bytes({written})); time.sleep(60)"
    stub_pip(tmp_path / "stub", code, monkeypatch)
    monkeypatch.setattr(sources, "TIMEOUT", 0.3 if not written else 30)
    with pytest.raises(FetchError, match=rf"^tiny-weights==1\.0 {message}"):
        collect(sources.from_wheel(FILES, WHEEL, line))
    assert list(temporary.iterdir()) == []


SAVE = "import sys; open(sys.argv[sys.argv.index('--dest') + 1] + '/tiny.whl', 'wb').write({!r})"


@pytest.mark.parametrize("body", [b"not a zip", zipped({"tiny_weights/model/model.bin": b""})], ids=["page", "lacking"])
def test_a_wheel_without_the_files_is_a_fetch_error(body, line, tmp_path, temporary, monkeypatch):
    stub_pip(tmp_path / "stub", SAVE.format(body), monkeypatch)
    with pytest.raises(FetchError, match=r"^tiny\.whl: "):
        collect(sources.from_wheel(FILES, WHEEL, line))
    assert list(temporary.iterdir()) == []


def test_an_interrupt_kills_pip_and_until_then_progress_is_shown(line, tmp_path, temporary, monkeypatch):
    """pip downloads to its TMPDIR; the size of that folder is our progress."""
    shown, pips = [], []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        code = f"""
import os, pathlib, socket, time
pathlib.Path(os.environ["TMPDIR"], "part").write_bytes(bytes(1_000_000))
alive = socket.create_connection({server.getsockname()!r})
time.sleep(60)
"""
        stub_pip(tmp_path / "stub", code, monkeypatch)

        def show(text: str) -> None:
            shown.append(text)
            with suppress(BlockingIOError):
                pips.append(server.accept()[0])
                raise KeyboardInterrupt

        monkeypatch.setattr(line, "show", show)
        with pytest.raises(KeyboardInterrupt):
            collect(sources.from_wheel(FILES, WHEEL, line))
    with pips[0] as pip:
        pip.settimeout(30)
        assert pip.recv(1) == b""  # the process at the other end has exited
    assert all(text.startswith("  tiny-weights==1.0: ") for text in shown)
    assert shown[-1].endswith(" of 3.0 MB")
    assert list(temporary.iterdir()) == []


def test_this_interpreters_own_pip_is_used(line, tmp_path, monkeypatch):
    """Not another Python's pip; and no setup.py of a downloaded package may run."""
    seen = tmp_path / "seen.json"
    tell = f"import json; json.dump([sys.prefix, *sys.argv[1:]], open({str(seen)!r}, 'w'))"
    stub_pip(tmp_path / "stub", SAVE.format(zipped({})) + "\n" + tell, monkeypatch)
    assert collect(sources.from_wheel((), WHEEL, line)) == {}
    prefix, *arguments = json.loads(seen.read_text())
    assert prefix == sys.prefix
    assert arguments[0] == "download"
    assert "--no-deps" in arguments
    assert "--only-binary=:all:" in arguments
    assert arguments[-1] == "tiny-weights==1.0"


# --------------------------------------------------------------------------------------- small parts


def test_the_size_of_a_folder(tmp_path):
    (tmp_path / "top" / "sub" / "empty").mkdir(parents=True)
    for name, size in {"a": 100, "sub/b": 20, "sub/c": 3}.items():
        (tmp_path / "top" / name).write_bytes(bytes(size))
    assert sources.folder_size(str(tmp_path / "top")) == 123


def test_files_and_folders_may_vanish_while_they_are_measured(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name in ("a", "b", "sub/c"):
        (tmp_path / name).write_bytes(bytes(100))
    getsize: Callable = os.path.getsize

    def vanish(path: str) -> int:
        """On the first call, delete everything else."""
        for name in {"a", "b"} - {Path(path).name}:
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "sub" / "c").unlink(missing_ok=True)
        if (tmp_path / "sub").exists():
            (tmp_path / "sub").rmdir()
        return getsize(path)

    monkeypatch.setattr(os.path, "getsize", vanish)
    assert sources.folder_size(str(tmp_path)) == 100
    assert sources.folder_size(str(tmp_path / "nowhere")) == 0


@pytest.mark.parametrize(("count", "text"), [(0, "0.0 MB"), (90_868_376, "90.9 MB"), (49_999, "0.0 MB")])
def test_megabytes(count, text):
    assert sources.megabytes(count) == text
