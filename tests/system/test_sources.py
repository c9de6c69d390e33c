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

from minisbert.system import assets
from minisbert.system import assets as sources
from minisbert.system.assets import Asset, AssetFile
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
        failure = assets._fetch_from(source, Asset("tiny", "weights", "", "", "", [source], files), tmp_path / "out")
        assert list(temporary.iterdir()) == []
        assert not list(tmp_path.rglob("evil*"))
        assert failure.isprintable()
        assert failure or got(tmp_path / "out") == {file.name: CONTENT[file.name] for file in files}
        return failure

    return fill


def got(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_url_gives_its_one_file_or_those_below_it(site, fill):
    site.pages |= {f"/data/{name}": data for name, data in CONTENT.items()} | {"/some/where.tsv": CONTENT["model.bin"]}
    assert fill({"url": f"{site.address}/some/where.tsv"}, FILES[:1]) == ""
    assert fill({"url": f"{site.address}/data/"}) == ""
    assert site.asked == ["/some/where.tsv", *(f"/data/{name}" for name in CONTENT)]


def stall(handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "2048")
    handler.end_headers()
    handler.wfile.write(b"a few bytes")
    handler.wfile.flush()
    time.sleep(0.5)


def endless(handler, block: bytes = bytes(10_000), pause: float = 0) -> None:
    """Far more than the manifest states, without a length."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # the client has closed the connection
        for _ in range(1000):
            handler.wfile.write(block)
            handler.wfile.flush()
            time.sleep(pause)


def dripping(handler) -> None:
    """Never silent for long."""
    endless(handler, b"x", 0.01)


WRONG = b"\x01" + CONTENT["model.bin"][1:]
BAD = {
    "missing": (None, "HTTP Error 404: Not Found"),
    "wrong byte": (WRONG, f"model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not {FILES[0].sha256}"),
    "empty": (b"", "model.bin has 0 bytes, not 2,048"),
    "cut": (cut(CONTENT["model.bin"], 1000), "model.bin has 1,000 bytes, not 2,048"),
    "cut, chunked": (cut_chunked(CONTENT["model.bin"]), "IncompleteRead"),
    "closed": (lambda handler: handler.connection.close(), ""),
    "stalled": (stall, "timed out"),
    "endless": (endless, "model.bin is too large or too slow: "),
    "dripping": (dripping, "model.bin is too large or too slow: "),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_one_line(kind, site, fill, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    site.pages["/model.bin"], words = BAD[kind]
    failure = fill({"url": f"{site.address}/"}, FILES[:1])
    assert failure
    assert words in failure


def test_a_server_that_is_gone_or_never_answers_and_invalid_urls(fill, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert "timed out" in fill({"url": address})
    assert "refused" in fill({"url": address})
    for address in ("nowhere", "", "http://", "http://[", "http://a b/", "gopher://127.0.0.1/"):
        assert fill({"url": address})


def test_a_file_may_have_no_published_length_and_only_an_md5(site, fill):
    site.pages["/a"] = data = CONTENT["model.bin"]
    right = hashlib.md5(data).hexdigest()
    assert fill({"url": f"{site.address}/a"}, (AssetFile("model.bin", md5=right),)) == ""
    for wrong in (AssetFile("model.bin", md5="0" * 32), AssetFile("model.bin", md5=right, sha256="0" * 64)):
        assert f"model.bin has {'sha256' if wrong.sha256 else 'md5'} " in fill({"url": f"{site.address}/a"}, (wrong,))


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


@pytest.mark.parametrize("ending", PACKERS)
def test_an_archive_gives_only_the_files_in_the_manifest(ending, site, fill):
    packed = {
        "stray": (PACKERS[ending](STRAY | GOOD), ""),
        "lacking": (PACKERS[ending]({"inside/model.bin": CONTENT["model.bin"]}), "inside/sub/config.json"),
        "wrong byte": (PACKERS[ending](GOOD | {"inside/model.bin": WRONG}), "model.bin has sha256"),
        "bomb": (PACKERS[ending](GOOD | {"inside/model.bin": bytes(10**6)}), "model.bin is too large"),
        "page": (b"<html>Log in to this network first</html>", "not a "),
        "a folder for a file": (tarred({"inside/model.bin": None}), "NoneType" if ending == ".tar.gz" else "not a zip"),
        "nothing": (b"", "empty" if ending == ".tar.gz" else "not a zip"),
    }
    for name, (body, words) in packed.items():
        site.pages[f"/files/a{ending}"] = body
        failure = fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"})
        assert words in failure, name
        assert bool(words) == bool(failure), name


@pytest.mark.parametrize("ending", PACKERS)
def test_a_damaged_archive_is_refused_or_harmless(ending, tmp_path, monkeypatch):
    """Truncated at many lengths, and with bytes of its head and tail flipped: damage raises many exceptions."""
    body = PACKERS[ending](GOOD | {"naïve.txt": b""})
    places = [*range(0, 60, 2), *range(len(body) - 160, len(body), 2)]
    variants = [body[:length] for length in range(0, len(body), 80)]
    variants += [body[:i] + bytes([body[i] ^ 0xFF]) + body[i + 1 :] for i in places]
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(tmp_path)))  # one folder for all
    wanted = Asset("tiny", "weights", "", "", "", [], FILES)
    refused = 0
    for variant in variants:
        monkeypatch.setattr(sources, "download", lambda address, path, size: path.write_bytes(variant))  # noqa: B023
        failed = assets._fetch_from({"archive": f"/archive{ending}", "inside": "inside"}, wanted, tmp_path / "out")
        refused += bool(failed)
        assert failed or got(tmp_path / "out") == CONTENT
    assert refused > len(variants) / 2


WHEEL = {"wheel": "tiny-weights==1.0", "inside": "tiny_weights/model"}
SAVE = "import sys; open(sys.argv[sys.argv.index('--dest') + 1] + '/tiny.whl', 'wb').write({!r})"


# subtle: find_spec("pip") switches setuptools' distutils off, which torch 2.6 needs later
@pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")
def test_a_wheel_is_downloaded_and_read_but_not_installed(fill, tmp_path):
    about = "tiny_weights-1.0.dist-info"
    entries = {f"tiny_weights/model/{name}": data for name, data in CONTENT.items()} | {
        "tiny_weights/__init__.py": b"raise SystemExit('executed')",
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tiny_weights\nVersion: 1.0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tiny_weights-1.0-py3-none-any.whl").write_bytes(zipped(entries))
    assert fill(WHEEL) == ""
    assert find_spec("tiny_weights") is None
    assert fill(WHEEL | {"wheel": "tiny-weights==2.0"}).startswith("pip could not download it: ERROR: ")


def stub_pip(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``python -m pip`` run ``code``."""
    folder.mkdir()
    (folder / "pip.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


PIPS = {
    "no pip": ("import sys; sys.exit('No module named pip')", "could not download it: No module named pip"),
    "error": (
        "import sys; print('ERROR: no route', file=sys.stderr); print('a hint', file=sys.stderr); sys.exit(1)",
        "could not download it: ERROR: no route",
    ),
    "status": ("import sys; sys.exit(7)", "could not download it: exit code 7"),
    "silent": ("", ""),
    "no zip": (SAVE.format(b"not a zip"), "not a zip"),
}


@pytest.mark.parametrize("kind", PIPS)
def test_a_pip_that_fails_is_one_line(kind, fill, tmp_path, monkeypatch):
    code, words = PIPS[kind]
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
    assert (prefix, arguments[0]) == (sys.prefix, "download")
    assert {"--no-deps", "--only-binary=:all:", "tiny-weights==1.0"} <= {*arguments}


@pytest.mark.parametrize("source", [WHEEL, {"archive": "/a.zip", "inside": "inside"}])
def test_an_interrupt_leaves_nothing_behind(source, fill, temporary, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        assert list(temporary.iterdir()) != []
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "download", interrupted)
    monkeypatch.setattr(sources.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(source)
    assert list(temporary.iterdir()) == []


def test_a_terminal_sees_a_bar_and_a_log_file_does_not(site: Site, fill, monkeypatch, capsys):
    """Of a download of half a second."""

    def slow(handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for i in range(4):
            handler.wfile.write(CONTENT["model.bin"][i * 512 : (i + 1) * 512])
            handler.wfile.flush()
            time.sleep(0.12)

    site.pages["/a"] = slow
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert fill({"url": f"{site.address}/a"}, FILES[:1]) == ""
        assert ("model.bin: " in capsys.readouterr().err) == terminal
