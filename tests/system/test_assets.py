"""An asset is either complete and verified or absent, whatever servers, archives and pip do; and
the command.
"""

import errno
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from minisbert.commands import assets as command
from minisbert.core import InputError
from minisbert.system import assets
from minisbert.system.assets import AssetFile, ensure, fetch, home
from tests.servers import cut, cut_chunked, repository, serve, use_hub

CONTENT = {"model.bin": bytes(range(256)) * 8, "sub/config.json": b'{"a": 1}\n'}
FILES = tuple(
    AssetFile(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in CONTENT.items()
)
WRONG = b"\x01" + CONTENT["model.bin"][1:]
# what an attacker, or a careless packager, may add to an archive
STRAY = {
    "../evil.txt": b"evil",
    "inside/../../evil.txt": b"evil",
    "/evil.txt": b"evil",
    "inside/setup.py": b"evil",
}


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


ENTRIES = tomllib.loads(assets.ASSETS_TOML.read_text(encoding="utf-8"))
PAGES = {f"/tiny/{name}": data for name, data in CONTENT.items()}
MODEL = "/tiny/model.bin"


PINNED = {  # the keys of a source by its kind, and what its value must be: one version, one commit
    "wheel": ({"wheel", "inside"}, "[a-z0-9-]+==[0-9.]+"),
    "hub": ({"hub", "revision"}, "[a-zA-Z0-9-]+/[a-zA-Z0-9.-]+"),
    "url": ({"url"}, "https?://.+"),
    "archive": ({"archive", "inside"}, r"https?://.+\.(zip|tar\.gz)"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_pins_its_sources_and_files(name):
    entry = ENTRIES[name]
    assert set(entry) == {"kind", "about", "licence", "upstream", "sources", "files"}
    for source in entry["sources"]:
        kind = next(iter(source))
        keys, pattern = PINNED[kind]
        assert set(source) == keys
        assert re.fullmatch(pattern, source[kind])
        assert re.fullmatch("[0-9a-f]{40}", source.get("revision", "0" * 40))
        assert kind != "url" or len(entry["files"]) == 1 or source["url"].endswith("/")
    for file in entry["files"]:
        assert set(file) - {"size"} == {"name", "sha256"}
        assert re.fullmatch("[0-9a-f]{64}", file["sha256"])
        path = PurePosixPath(file["name"])
        assert not path.is_absolute()
        assert ".." not in path.parts
    if name in (
        "all-MiniLM-L6-v2",
        "stsb",
    ):  # what the first steps need has two independent sources
        assert {next(iter(source)) for source in entry["sources"]} > {"wheel"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch) -> None:
    for name in ("MINISBERT_HOME", "MINISBERT_OFFLINE", "MINISBERT_TRACEBACK", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """The parent folder of a package installed by pip, outside any checkout."""
    folder = tmp_path / "site-packages"
    (folder / "minisbert" / "system").mkdir(parents=True)
    monkeypatch.setattr(assets, "__file__", str(folder / "minisbert" / "system" / "assets.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    return folder


def test_the_home_is_the_variables_else_the_checkout_else_the_cache(
    tmp_path, installed, monkeypatch
):
    assert home() == tmp_path / "me" / ".cache" / "minisbert"
    (installed / "pyproject.toml").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "cache" / "minisbert"  # no weights/: some other project's folder
    (installed / "weights").mkdir()
    for empty in ("MINISBERT_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(empty, "")  # counts as unset
    assert home() == installed
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"
    assert assets.asset("stsb").folder == tmp_path / "mine" / "data" / "stsb"
    assert (
        assets.asset("all-MiniLM-L6-v2").folder
        == tmp_path / "mine" / "weights" / "all-MiniLM-L6-v2"
    )
    monkeypatch.setenv("MINISBERT_HOME", "~/models")
    assert home() == tmp_path / "me" / "models"


def test_a_home_that_is_no_folder(installed, monkeypatch):
    for name in ("~nosuch", "~nosuch/models", os.devnull):
        monkeypatch.setenv("MINISBERT_HOME", name)
        with pytest.raises(
            InputError, match=f"'{name}' is not a folder: set MINISBERT_HOME to one"
        ):
            home()
    monkeypatch.delenv("MINISBERT_HOME")
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path
    )  # a container with a user id that no one has
    with pytest.raises(InputError, match="set MINISBERT_HOME"):
        home()


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty home for assets."""
    folder = tmp_path / "home"
    monkeypatch.setenv("MINISBERT_HOME", str(folder))
    return folder


@pytest.fixture
def declare(store, monkeypatch):
    """A function that makes a manifest with one asset, ``tiny``, from the given sources."""

    def declare(*sources: dict) -> None:
        tiny = assets.Asset("tiny", "weights", "made by a test", "CC0", "nobody", [*sources], FILES)
        for module in (assets, command):
            monkeypatch.setattr(module, "assets", lambda: {"tiny": tiny})

    return declare


@pytest.fixture
def site(declare):
    """A server with the asset ``tiny``; a test may change ``site.pages``."""
    with serve(dict(PAGES)) as site:
        declare({"url": f"{site.address}/tiny/"})
        yield site


@pytest.fixture(params=[True, False], ids=["there before", "new"])
def there_before(request, site, store) -> bool:
    if request.param:
        ensure("tiny")
    return request.param


def whole(store: Path, there: bool = True) -> bool:
    """The asset is complete (or absent) and there is nothing else, not even an empty partial
    folder.
    """
    stored = {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }
    assert [path.name for path in (store / "weights").iterdir()] == (["tiny"] if there else [])
    return stored == (
        {f"weights/tiny/{name}": data for name, data in CONTENT.items()} if there else {}
    )


def test_from_a_url(site, store, capsys):
    assert ensure("tiny") == store / "weights" / "tiny"
    assert whole(store)
    assert site.asked == list(PAGES)
    shown = f"fetching tiny (url {site.address}/tiny/) to {store / 'weights' / 'tiny'}\n"
    assert capsys.readouterr() == ("", shown)


def test_from_the_hub_or_its_cache_at_the_pinned_commit(
    site, store, declare, tmp_path, monkeypatch
):
    """The files are copies: what happens to the cache later does not matter."""
    commit = "c" * 40
    site.pages |= repository("someone/tiny", CONTENT | {"pytorch_model.bin": b"pickle"}, commit)
    use_hub(site, tmp_path / "cache", monkeypatch)
    declare({"hub": "someone/tiny", "revision": commit})
    ensure("tiny")
    assert whole(store)
    assert not any("pytorch" in path for path in site.asked)
    assert not any((store / "weights" / "tiny" / name).is_symlink() for name in CONTENT)
    site.asked.clear()
    fetch(assets.asset("tiny"))
    assert not any("/resolve/" in path for path in site.asked)


def test_the_next_source_after_wrong_bytes(site, store, declare, capsys):
    site.pages["/a.zip"] = PACKERS[".zip"](GOOD | {"inside/model.bin": WRONG})
    declare(
        {"archive": f"{site.address}/a.zip", "inside": "inside"}, {"url": f"{site.address}/tiny/"}
    )
    ensure("tiny")
    assert whole(store)
    first, failed, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"fetching tiny (archive {site.address}/a.zip)")
    assert failed.startswith(f"  model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not ")
    assert second.startswith(f"fetching tiny (url {site.address}/tiny/)")


def test_if_no_source_works_the_error_names_all(site, store, declare):
    del site.pages[MODEL]
    site.pages["/a.tar.gz"] = b"<html>Log in first</html>"
    archive = {"archive": f"{site.address}/a.tar.gz", "inside": "inside"}
    declare(archive, {"url": f"{site.address}/tiny/"})
    with pytest.raises(InputError) as error:
        ensure("tiny")
    first, *tried, last = str(error.value).splitlines()
    assert first == "tiny could not be fetched:"
    assert tried[0].startswith(f"  archive {site.address}/a.tar.gz: ")
    assert tried[1:] == [f"  url {site.address}/tiny/: HTTP Error 404: Not Found"]
    assert last == f"Or put its files into {store / 'weights' / 'tiny'} by hand."
    assert whole(store, there=False)


@pytest.mark.parametrize("page", [WRONG, None], ids=["wrong", "missing"])
def test_a_failed_fetch_changes_nothing(page, there_before, site, store):
    """An old, complete copy stays until the new one is complete."""
    site.pages["/tiny/sub/config.json"] = page
    with pytest.raises(InputError, match="tiny could not be fetched"):
        fetch(assets.asset("tiny"))
    assert whole(store, there_before)


def test_a_users_own_file_is_not_lost(site, store):
    ensure("tiny")
    folder = store / "weights" / "tiny"
    (folder / "sub" / "notes.txt").write_text("mine")
    (folder / "model.bin").unlink()
    ensure("tiny")
    assert (folder / "sub" / "notes.txt").read_text() == "mine"
    assert (folder / "model.bin").exists()


def test_what_is_complete_is_not_fetched_again(site, store, monkeypatch, capsys):
    ensure("tiny")
    site.asked.clear()
    capsys.readouterr()
    for offline in ("0", "1"):
        monkeypatch.setenv("MINISBERT_OFFLINE", offline)
        assert ensure("tiny") == store / "weights" / "tiny"
    assert site.asked == []
    assert capsys.readouterr() == ("", "")


DAMAGE = {
    "sub/config.json is missing": Path.unlink,
    "model.bin has 2,047 bytes, not 2,048": lambda path: os.truncate(path, 2047),
}


@pytest.mark.parametrize("found", DAMAGE)
def test_what_is_incomplete_is_reported_and_fetched_again(found, site, store, monkeypatch):
    folder = store / "weights" / "tiny"
    assert assets.asset("tiny").state() == "missing"
    ensure("tiny")
    assert assets.asset("tiny").state() == "complete"
    DAMAGE[found](folder / found.split()[0])
    assert assets.asset("tiny").state() == f"incomplete: {folder}/{found}"
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(
        InputError, match=f"^tiny is incomplete: .*{found} and MINISBERT_OFFLINE forbids"
    ) as error:
        ensure("tiny")
    assert str(error.value).endswith(f"put model.bin, sub/config.json into {folder}")
    monkeypatch.setenv("MINISBERT_OFFLINE", "")
    ensure("tiny")
    assert whole(store)


def test_an_unknown_name_lists_the_known_ones():
    known = r"^unknown asset '.*'; known assets: all-MiniLM-L6-v2, bert-base-unc"
    for name in ("all-minilm", "", "../../etc", "two\nlines"):
        with pytest.raises(InputError, match=known):
            ensure(name)
    for action in ("fetch", "path"):
        with pytest.raises(InputError, match=known):
            run(action, "all-minilm")


def run(*arguments: str) -> None:
    command.main(list(arguments))


def test_the_command_prints_the_folder_and_fetch_repairs_a_file_of_the_right_size(
    site, store, capsys
):
    """``ensure`` checks sizes only; the command hashes."""
    ensure("tiny")
    site.asked.clear()
    for action in ("path", "fetch"):
        run(action, "tiny")
    assert site.asked == []
    (store / "weights" / "tiny" / "model.bin").write_bytes(WRONG)
    assert assets.asset("tiny").state() == "complete"  # the size is right
    run("fetch", "tiny")
    assert whole(store)
    assert capsys.readouterr().out == f"{store / 'weights' / 'tiny'}\n" * 3


def test_the_list_has_state_licence_and_sources(declare, capsys):
    declare({"url": "http://127.0.0.1/a.zip"}, {"hub": "someone/tiny", "revision": "abc"})
    run("list")
    shown = capsys.readouterr().out
    assert all(
        word in shown
        for word in ("tiny", "missing", "CC0", "http://127.0.0.1/a.zip", "someone/tiny")
    )


# ------------------------------------------------------------------------------------- one source


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, which sources must leave empty. Disables proxies and pip's
    index and config.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }
    for name, value in ({"no_proxy": "*", "NO_PROXY": "*"} | settings).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def fill(declare, store, temporary, capsys) -> Callable[..., str]:
    """A function that fetches ``tiny`` from one source; it returns what went wrong."""

    def fill(source: dict) -> str:
        declare(source)
        try:
            fetch(assets.asset("tiny"))
        except InputError as error:
            assert whole(store, there=False)
            return str(error).splitlines()[1]
        finally:
            assert list(temporary.iterdir()) == []
            assert not list(store.parent.rglob("evil*"))
        assert whole(store)
        shutil.rmtree(store)
        return ""

    return fill


def endless(handler) -> None:
    """Far more than the manifest states, without a length."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # the client has closed the connection
        for _ in range(1000):
            handler.wfile.write(bytes(10_000))


BAD = {
    "missing": (None, "HTTP Error 404: Not Found"),
    "wrong byte": (
        WRONG,
        f"model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not {FILES[0].sha256}",
    ),
    "cut": (cut(CONTENT["model.bin"], 1000), "model.bin has 1,000 bytes, not 2,048"),
    "cut, chunked": (cut_chunked(CONTENT["model.bin"]), "IncompleteRead"),
    "closed": (lambda handler: handler.connection.close(), ""),
    "endless": (endless, "model.bin is too large"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_one_line(kind, site, fill):
    site.pages[MODEL], words = BAD[kind]
    failure = fill({"url": f"{site.address}/tiny/"})
    assert failure
    assert words in failure


class FullDisk(io.BytesIO):
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_not_the_fault_of_the_source(site, fill, monkeypatch):
    """The next source could not help."""
    monkeypatch.setattr(assets, "open", lambda *_: FullDisk(), raising=False)
    with pytest.raises(OSError, match="No space left"):
        fill({"url": f"{site.address}/tiny/"})


@pytest.mark.parametrize("ending", PACKERS)
def test_an_archive_gives_only_the_files_in_the_manifest(ending, site, fill):
    packed = {
        "stray": (PACKERS[ending](STRAY | GOOD), ""),
        "lacking": (
            PACKERS[ending]({"inside/model.bin": CONTENT["model.bin"]}),
            "inside/sub/config.json",
        ),
        "wrong byte": (PACKERS[ending](GOOD | {"inside/model.bin": WRONG}), "model.bin has sha256"),
        "bomb": (
            PACKERS[ending](GOOD | {"inside/model.bin": bytes(10**6)}),
            "model.bin is too large",
        ),
        "page": (b"<html>Log in to this network first</html>", "not a "),
    }
    for name, (body, words) in packed.items():
        site.pages[f"/files/a{ending}"] = body
        failure = fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"})
        assert words in failure, name
        assert bool(words) == bool(failure), name


WHEEL = {"wheel": "tiny-weights==1.0", "inside": "tiny_weights/model"}


# subtle: find_spec("pip") switches setuptools' distutils off, which torch 2.6 needs later
@pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")
def test_a_wheel_is_downloaded_and_read_but_not_installed(fill, tmp_path):
    about = "tiny_weights-1.0.dist-info"
    entries = {f"tiny_weights/model/{name}": data for name, data in CONTENT.items()} | {
        "tiny_weights/__init__.py": b"raise SystemExit('executed')",
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tiny_weights\nVersion: 1.0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: "
        b"py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tiny_weights-1.0-py3-none-any.whl").write_bytes(zipped(entries))
    assert fill(WHEEL) == ""
    assert find_spec("tiny_weights") is None
    assert (
        fill(WHEEL | {"wheel": "tiny-weights==2.0"}).count("pip could not download it: ERROR: ")
        == 1
    )


@pytest.mark.parametrize(
    "source", [WHEEL, {"archive": "http://127.0.0.1/a.zip", "inside": "inside"}]
)
def test_an_interrupt_leaves_nothing_behind(source, fill, store, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assets.urllib.request, "urlopen", interrupted)
    monkeypatch.setattr(assets.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(source)
    assert whole(store, there=False)
