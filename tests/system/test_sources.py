"""Each source gives the files of the manifest or one line that says why not, whatever servers, archives and pip do."""

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
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from minisbert.system import assets, sources
from minisbert.system.assets import Asset
from minisbert.system.sources import AssetFile
from tests.servers import Site, cut, cut_chunked, serve

CONTENT = {"model.bin": bytes(range(256)) * 8, "sub/config.json": b'{"a": 1}\n'}
FILES = tuple(AssetFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items())
# what an attacker, or a careless packager, may add to an archive
STRAY = {"../evil.txt": b"evil", "inside/../../evil.txt": b"evil", "/evil.txt": b"evil", "inside/setup.py": b"evil"}


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(entries: dict[str, bytes | None]) -> bytes:
    """None is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type = len(data or b""), tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            archive.addfile(entry, io.BytesIO(data or b""))
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


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, which sources must leave empty. Disables proxies and pip's index and config."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    for name, value in ({"no_proxy": "*", "NO_PROXY": "*"} | settings).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def site():
    with serve({}) as site:
        yield site


@pytest.fixture
def fill(tmp_path, temporary) -> Callable[..., str]:
    """A function that fills ``tmp_path/out`` from a source; it returns what went wrong."""

    def fill(source: dict, files: tuple[AssetFile, ...] = FILES) -> str:
        failure = assets._fetch_from(source, Asset("tiny", "weights", "", "", "", (source,), files), tmp_path / "out")
        assert list(temporary.iterdir()) == []
        assert not list(tmp_path.rglob("evil*"))
        assert failure.isprintable()
        assert failure or got(tmp_path / "out") == {file.name: CONTENT[file.name] for file in files}
        return failure

    return fill


def got(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------- URLs


def test_a_url_gives_its_one_file(site, fill):
    site.pages["/some/where.tsv"] = CONTENT["model.bin"]
    assert fill({"url": f"{site.address}/some/where.tsv"}, FILES[:1]) == ""


def test_a_url_that_ends_in_a_slash_gives_the_files_below_it(site, fill, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 7)
    site.pages |= {f"/data/{name}": data for name, data in CONTENT.items()}
    assert fill({"url": f"{site.address}/data/"}) == ""
    assert site.asked == [f"/data/{name}" for name in CONTENT]


def stall(handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "2048")
    handler.end_headers()
    handler.wfile.write(b"a few bytes")
    handler.wfile.flush()
    time.sleep(0.5)


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


WRONG = b"\x01" + CONTENT["model.bin"][1:]
BAD = [
    (None, "HTTP Error 404: Not Found"),
    (WRONG, f"model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not {FILES[0].sha256}"),
    (b"", f"model.bin has sha256 {hashlib.sha256(b'').hexdigest()} and 0 bytes, not {FILES[0].sha256} and 2,048 bytes"),
    (cut(CONTENT["model.bin"], 1000), "and 1,000 bytes, not "),
    (cut_chunked(CONTENT["model.bin"]), "IncompleteRead"),
    (lambda handler: handler.connection.close(), ""),
    (stall, "timed out"),
    (endless, "model.bin is larger than expected: more than 2,048 bytes"),
    (dripping, "model.bin comes too slowly: "),
]
KINDS = ["missing", "wrong byte", "empty", "cut", "cut, chunked", "closed", "stalled", "endless", "dripping"]


@pytest.mark.parametrize(("answer", "words"), BAD, ids=KINDS)
def test_a_bad_answer_is_one_line(answer, words, site, fill, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    site.pages["/model.bin"] = answer
    failure = fill({"url": f"{site.address}/"}, FILES[:1])
    assert failure
    assert words in failure


def test_a_server_that_is_gone_or_never_answers(fill, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert "timed out" in fill({"url": address})
    assert "refused" in fill({"url": address})


@pytest.mark.parametrize("address", ["nowhere", "", "http://", "http://[", "http://a b/", "gopher://127.0.0.1/"])
def test_an_invalid_url(address, fill):
    assert fill({"url": address})


def test_a_file_may_have_no_published_length_and_only_an_md5(site, fill):
    data, wrong = CONTENT["model.bin"], AssetFile("model.bin", md5=hashlib.md5(b"").hexdigest())
    site.pages["/a"] = data
    assert fill({"url": f"{site.address}/a"}, (AssetFile("model.bin", md5=hashlib.md5(data).hexdigest()),)) == ""
    assert "model.bin has md5 " in fill({"url": f"{site.address}/a"}, (wrong,))
    both = AssetFile("model.bin", md5=hashlib.md5(data).hexdigest(), sha256="0" * 64)
    assert "model.bin has sha256 " in fill({"url": f"{site.address}/a"}, (both,))


class FullDisk(io.BytesIO):
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["url", "archive"])
def test_a_full_disk_is_not_the_fault_of_the_source(kind, site, fill, monkeypatch, temporary):
    """The next source could not help."""
    site.pages["/a.zip"] = zipped(GOOD)
    monkeypatch.setattr(sources, "open", lambda *_: FullDisk(), raising=False)
    with pytest.raises(OSError, match="No space left"):
        fill({kind: f"{site.address}/a.zip", "inside": "inside"})
    assert list(temporary.iterdir()) == []


# ---------------------------------------------------------------------------------------- archives

archives = pytest.mark.parametrize("ending", PACKERS)


@archives
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (STRAY | GOOD, ""),
        ({"inside/model.bin": CONTENT["model.bin"]}, "inside/sub/config.json"),
        (GOOD | {"inside/model.bin": WRONG}, "model.bin has sha256"),
        (GOOD | {"inside/model.bin": bytes(10**6)}, "model.bin is larger than expected"),
    ],
    ids=["stray", "lacking", "wrong byte", "bomb"],
)
def test_an_archive_gives_only_the_files_in_the_manifest(ending, entries, words, site, fill):
    site.pages[f"/files/a{ending}"] = PACKERS[ending](entries)
    failure = fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"})
    assert words in failure
    assert bool(words) == bool(failure)


@pytest.mark.parametrize("ending", [*PACKERS])
@pytest.mark.parametrize(
    "body",
    [b"<html>Log in to this network first</html>", tarred({"inside/model.bin": None}), b""],
    # subtle: an archive contains the time, which must not be part of a test's name: pytest -n collects in each process
    ids=["page", "folder", "nothing"],
)
def test_what_is_no_archive_or_has_a_folder_for_a_file(ending, body, site, fill):
    site.pages[f"/a{ending}"] = body
    assert fill({"archive": f"{site.address}/a{ending}", "inside": "inside"})


@archives
def test_a_damaged_archive_is_refused_or_harmless(ending, tmp_path, monkeypatch):
    """Truncated at many lengths, and with each byte of its head and tail flipped: damage raises many exceptions."""
    body = PACKERS[ending](GOOD | {"naïve.txt": b""})
    places = [*range(60), *range(len(body) - 160, len(body))]
    variants = [body[:length] for length in range(0, len(body), 80)]
    variants += [body[:i] + bytes([body[i] ^ 0xFF]) + body[i + 1 :] for i in places]
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(tmp_path)))  # one folder for all
    wanted = Asset("tiny", "weights", "", "", "", (), FILES)
    refused = 0
    for variant in variants:
        monkeypatch.setattr(sources, "download", lambda address, path, size: path.write_bytes(variant))  # noqa: B023
        failed = assets._fetch_from({"archive": f"/archive{ending}", "inside": "inside"}, wanted, tmp_path / "out")
        refused += bool(failed)
        assert failed or got(tmp_path / "out") == CONTENT
    assert refused > len(variants) / 2


# ------------------------------------------------------------------------------------------- wheels

WHEEL = {"wheel": "tiny-weights==1.0", "inside": "tiny_weights/model"}
SAVE = "import sys; open(sys.argv[sys.argv.index('--dest') + 1] + '/tiny.whl', 'wb').write({!r})"
# subtle: find_spec("pip") switches setuptools' distutils off, which torch 2.6 needs later
with_pip = pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")


@with_pip
def test_a_wheel_is_downloaded_and_read_but_not_installed(fill, tmp_path):
    entries = {f"tiny_weights/model/{name}": data for name, data in CONTENT.items()}
    wheel(tmp_path / "wheels", entries | {"tiny_weights/__init__.py": b"raise SystemExit('executed')"})
    assert fill(WHEEL) == ""
    assert find_spec("tiny_weights") is None


@with_pip
def test_a_wheel_that_is_unavailable_gives_pips_reason(fill, tmp_path):
    wheel(tmp_path / "wheels", {}, version="2.0")
    assert fill(WHEEL).startswith("pip could not download it: ERROR: ")


def stub_pip(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``python -m pip`` run ``code``."""
    folder.mkdir()
    (folder / "pip.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('No module named pip')", "could not download it: No module named pip"),
        ("import sys; print('ERROR: no route', file=sys.stderr); print('a hint', file=sys.stderr); sys.exit(1)",
         "could not download it: ERROR: no route"),
        ("import sys; sys.exit(7)", "could not download it: exit code 7"),
        ("", ""),
        (SAVE.format(b"not a zip"), "not a zip"),
        (SAVE.format(zipped({"tiny_weights/model/model.bin": CONTENT["model.bin"]})), "sub/config.json"),
    ],
    ids=["no pip", "error", "status", "silent", "no zip", "lacking"],
)  # fmt: skip
def test_a_pip_that_fails_is_one_line(code, words, fill, tmp_path, monkeypatch):
    stub_pip(tmp_path / "stub", code, monkeypatch)
    failure = fill(WHEEL)
    assert failure
    assert words in failure


def test_this_interpreters_own_pip_is_used(fill, tmp_path, monkeypatch):
    """Not another Python's pip; and no setup.py of a downloaded package may run."""
    seen = tmp_path / "seen.json"
    tell = f"import json; json.dump([sys.prefix, *sys.argv[1:]], open({str(seen)!r}, 'w'))"
    stub_pip(tmp_path / "stub", SAVE.format(zipped({})) + "\n" + tell, monkeypatch)
    (tmp_path / "out").mkdir()
    assert fill(WHEEL, ()) == ""
    prefix, *arguments = json.loads(seen.read_text())
    assert prefix == sys.prefix
    assert arguments[0] == "download"
    assert {"--no-deps", "--only-binary=:all:"} <= {*arguments}
    assert arguments[-1] == "tiny-weights==1.0"


@pytest.mark.parametrize("kind", ["wheel", "archive"])
def test_an_interrupt_leaves_nothing_behind(kind, fill, site, tmp_path, temporary, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        assert list(temporary.iterdir()) != []
        raise KeyboardInterrupt

    site.pages["/a.zip"] = zipped(GOOD)
    monkeypatch.setattr(sources, "unpack", interrupted)
    monkeypatch.setattr(sources.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(WHEEL if kind == "wheel" else {"archive": f"{site.address}/a.zip", "inside": "inside"})
    assert list(temporary.iterdir()) == []


def test_a_terminal_sees_a_bar_and_a_log_file_does_not(site: Site, fill, monkeypatch, capsys):
    site.pages["/a"] = CONTENT["model.bin"]
    fill({"url": f"{site.address}/a"}, FILES[:1])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fill({"url": f"{site.address}/a"}, FILES[:1])
    assert "model.bin" in capsys.readouterr().err
