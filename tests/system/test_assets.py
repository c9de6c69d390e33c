"""An asset is either complete and verified or absent, whatever servers, archives and pip do."""

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

import huggingface_hub
import pytest
from huggingface_hub import constants

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
# What an attacker, or a careless packager, may add to an archive.
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


# By the kind of a source: its keys, and what its value must look like, such as one version.
PINNED = {
    "wheel": ({"wheel", "inside"}, "[a-z0-9-]+==[0-9.]+"),
    "hub": ({"hub", "revision"}, "[a-zA-Z0-9-]+/[a-zA-Z0-9.-]+"),
    "url": ({"url"}, "https?://.+"),
    "archive": ({"archive", "inside"}, r"https?://.+\.(zip|tar\.gz)"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_pins_its_sources_and_files(name):
    """What is downloaded in ten years is what was downloaded today."""
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


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "stsb"])
def test_what_the_first_steps_need_has_two_independent_sources(name):
    kinds = {next(iter(source)) for source in ENTRIES[name]["sources"]}
    assert "wheel" in kinds
    assert len(kinds) > 1


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


def test_the_home_of_an_installed_package_is_the_cache(tmp_path, installed, monkeypatch):
    assert home() == tmp_path / "me" / ".cache" / "minisbert"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "cache" / "minisbert"


def test_the_home_is_the_checkout_and_not_another_projects_folder(tmp_path, installed):
    """Another project has a pyproject.toml too, but no weights."""
    (installed / "pyproject.toml").touch()
    assert home() == tmp_path / "me" / ".cache" / "minisbert"
    (installed / "weights").mkdir()
    assert home() == installed


def test_an_empty_variable_counts_as_unset(tmp_path, installed, monkeypatch):
    """As ``MINISBERT_HOME= minisbert ...`` sets it."""
    monkeypatch.setenv("MINISBERT_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert home() == tmp_path / "me" / ".cache" / "minisbert"


def test_the_home_is_what_the_variable_says(tmp_path, installed, monkeypatch):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"
    assert assets.asset("stsb").folder == tmp_path / "mine" / "data" / "stsb"
    minilm = assets.asset("all-MiniLM-L6-v2")
    assert minilm.folder == tmp_path / "mine" / "weights" / "all-MiniLM-L6-v2"
    monkeypatch.setenv("MINISBERT_HOME", "~/models")
    assert home() == tmp_path / "me" / "models"


@pytest.mark.parametrize("name", ["~nosuch", "~nosuch/models", os.devnull])
def test_a_home_that_is_no_folder(name, installed, monkeypatch):
    """Nobody wants a folder called ~nosuch in the working directory."""
    monkeypatch.setenv("MINISBERT_HOME", name)
    message = f"'{name}' is not a folder: set MINISBERT_HOME to one"
    with pytest.raises(InputError, match=message):
        home()


def test_a_user_without_a_home(installed, monkeypatch):
    """A container may run under a user id that no one has."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
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
        manifest = {"tiny": tiny}
        monkeypatch.setattr(assets, "assets", lambda: manifest)
        monkeypatch.setattr(command, "assets", lambda: manifest)

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


def assert_complete(store: Path) -> None:
    """The asset is complete, and there is nothing else, not even a partial folder."""
    assert [path.name for path in (store / "weights").iterdir()] == ["tiny"]
    stored = {}
    for path in store.rglob("*"):
        if path.is_file():
            stored[path.relative_to(store / "weights" / "tiny").as_posix()] = path.read_bytes()
    assert stored == CONTENT


def assert_absent(store: Path) -> None:
    """There is nothing of the asset, not even a partial folder."""
    assert list((store / "weights").iterdir()) == []
    assert [path for path in store.rglob("*") if path.is_file()] == []


def test_from_a_url(site, store, capsys):
    assert ensure("tiny") == store / "weights" / "tiny"
    assert_complete(store)
    assert site.asked == list(PAGES)
    message = f"fetching tiny (url {site.address}/tiny/) to {store / 'weights' / 'tiny'}\n"
    assert capsys.readouterr() == ("", message)


def test_from_the_hub_or_its_cache_at_the_pinned_commit(
    site, store, declare, tmp_path, monkeypatch
):
    """The files are copies: what happens to the cache later does not matter."""
    commit = "c" * 40
    site.pages |= repository("someone/tiny", CONTENT | {"pytorch_model.bin": b"pickle"}, commit)
    use_hub(site, tmp_path / "cache", monkeypatch)
    declare({"hub": "someone/tiny", "revision": commit})
    ensure("tiny")
    assert_complete(store)
    assert not any("pytorch" in path for path in site.asked)
    for name in CONTENT:
        assert not (store / "weights" / "tiny" / name).is_symlink()
    site.asked.clear()
    fetch(assets.asset("tiny"))
    assert not any("/resolve/" in path for path in site.asked)


def test_the_next_source_after_wrong_bytes(site, store, declare, capsys):
    """No source has to be trusted."""
    site.pages["/a.zip"] = PACKERS[".zip"](GOOD | {"inside/model.bin": WRONG})
    declare(
        {"archive": f"{site.address}/a.zip", "inside": "inside"}, {"url": f"{site.address}/tiny/"}
    )
    ensure("tiny")
    assert_complete(store)
    first, failed, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"fetching tiny (archive {site.address}/a.zip)")
    assert failed.startswith(f"  model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not ")
    assert second.startswith(f"fetching tiny (url {site.address}/tiny/)")


def test_if_no_source_works_the_error_names_all(site, store, declare):
    """The user sees which one could be repaired, and what to do by hand."""
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
    assert_absent(store)


@pytest.mark.parametrize("page", [WRONG, None], ids=["wrong", "missing"])
def test_a_failed_fetch_changes_nothing(page, there_before, site, store):
    """An old, complete copy stays until the new one is complete."""
    site.pages["/tiny/sub/config.json"] = page
    with pytest.raises(InputError, match="tiny could not be fetched"):
        fetch(assets.asset("tiny"))
    if there_before:
        assert_complete(store)
    else:
        assert_absent(store)


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


def test_the_state_of_an_asset(site):
    assert assets.asset("tiny").state() == "missing"
    ensure("tiny")
    assert assets.asset("tiny").state() == "complete"


@pytest.fixture(params=["missing", "cut"])
def fault(request, site, store) -> str:
    """The asset is there but for one file; what is wrong with that."""
    ensure("tiny")
    folder = store / "weights" / "tiny"
    if request.param == "missing":
        (folder / "sub" / "config.json").unlink()
        return f"{folder}/sub/config.json is missing"
    os.truncate(folder / "model.bin", 2047)
    return f"{folder}/model.bin has 2,047 bytes, not 2,048"


def test_what_is_incomplete_is_reported_and_fetched_again(fault, store):
    """A copy that somebody has cut short is never loaded."""
    assert assets.asset("tiny").state() == f"incomplete: {fault}"
    ensure("tiny")
    assert_complete(store)


def test_what_is_incomplete_cannot_be_fetched_offline(fault, store, monkeypatch):
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    message = re.escape(f"tiny is incomplete: {fault} and MINISBERT_OFFLINE forbids")
    with pytest.raises(InputError, match=f"^{message}") as error:
        ensure("tiny")
    folder = store / "weights" / "tiny"
    assert str(error.value).endswith(f"put model.bin, sub/config.json into {folder}")


def test_the_hubs_offline_mode_stops_every_source(site, store, monkeypatch):
    """pip would ask a package index over the network for a stranger's package."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE forbids"):
        ensure("tiny")
    assert site.asked == []
    assert_absent(store)


def test_offline_the_hubs_cache_is_a_source(site, store, declare, tmp_path, monkeypatch, capsys):
    """The files are on the disk: another library has fetched them."""
    commit = "c" * 40
    site.pages |= repository("someone/tiny", CONTENT, commit)
    use_hub(site, tmp_path / "cache", monkeypatch)
    for name in CONTENT:
        huggingface_hub.hf_hub_download("someone/tiny", name, revision=commit)
    site.asked.clear()
    declare({"url": f"{site.address}/tiny/"}, {"hub": "someone/tiny", "revision": commit})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ensure("tiny")
    assert_complete(store)
    assert site.asked == []
    assert capsys.readouterr() == ("", "")


KNOWN = r"^unknown asset '.*'; known assets: all-MiniLM-L6-v2, bert-base-unc"


@pytest.mark.parametrize("name", ["all-minilm", "", "../../etc", "two\nlines"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(InputError, match=KNOWN):
        ensure(name)


@pytest.mark.parametrize("action", ["fetch", "path"])
def test_an_unknown_name_in_the_command_lists_the_known_ones(action):
    with pytest.raises(InputError, match=KNOWN):
        run(action, "all-minilm")


def run(*arguments: str) -> None:
    command.main(list(arguments))


@pytest.mark.parametrize("action", ["path", "fetch"])
def test_the_command_prints_the_folder(action, site, store, capsys):
    """For a script: ``cd $(minisbert assets path tiny)``."""
    ensure("tiny")
    site.asked.clear()
    run(action, "tiny")
    assert capsys.readouterr().out == f"{store / 'weights' / 'tiny'}\n"
    assert site.asked == []


def test_fetch_repairs_a_file_of_the_right_size(site, store):
    """``ensure`` checks sizes only; the command hashes."""
    ensure("tiny")
    (store / "weights" / "tiny" / "model.bin").write_bytes(WRONG)
    assert assets.asset("tiny").state() == "complete"
    run("fetch", "tiny")
    assert_complete(store)


def test_the_list_has_state_licence_and_sources(declare, capsys):
    declare({"url": "http://127.0.0.1/a.zip"}, {"hub": "someone/tiny", "revision": "abc"})
    run("list")
    listing = capsys.readouterr().out
    for word in ("tiny", "missing", "CC0", "http://127.0.0.1/a.zip", "someone/tiny"):
        assert word in listing


# ------------------------------------------------------------------------------------- one source


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files, which sources must leave empty.

    Proxies are disabled, and pip's index and config.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in list(os.environ):
        if name.upper().startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return folder


@pytest.fixture
def fill(declare, store, temporary, capsys) -> Callable[..., str]:
    """A function that fetches ``tiny`` from one source; it returns what went wrong."""

    def fill(source: dict) -> str:
        declare(source)
        try:
            fetch(assets.asset("tiny"))
        except InputError as error:
            assert_absent(store)
            return str(error).splitlines()[1]
        finally:
            assert list(temporary.iterdir()) == []
            assert not list(store.parent.rglob("evil*"))
        assert_complete(store)
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


def close(handler) -> None:
    """No answer."""
    handler.connection.close()


WRONG_HASH = f"model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not {FILES[0].sha256}"
# An answer, and a part of what is said about it.
BAD_ANSWERS = {
    "missing": (None, "HTTP Error 404: Not Found"),
    "wrong byte": (WRONG, WRONG_HASH),
    "cut": (cut(CONTENT["model.bin"], 1000), "model.bin has 1,000 bytes, not 2,048"),
    "cut, chunked": (cut_chunked(CONTENT["model.bin"]), "IncompleteRead"),
    "closed": (close, ""),
    "endless": (endless, "model.bin is too large"),
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
def test_a_bad_answer_is_one_line(kind, site, fill):
    """Whatever a server does, the asset is absent and the next source gets its turn."""
    answer, message = BAD_ANSWERS[kind]
    site.pages[MODEL] = answer
    failure = fill({"url": f"{site.address}/tiny/"})
    assert failure
    assert message in failure


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
    """An archive with a path that leads out must not write there."""
    site.pages[f"/files/a{ending}"] = PACKERS[ending](STRAY | GOOD)
    assert fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"}) == ""


# What an archive holds, and what is said about it.
BAD_ARCHIVES = {
    "lacking": ({"inside/model.bin": CONTENT["model.bin"]}, "inside/sub/config.json"),
    "wrong byte": (GOOD | {"inside/model.bin": WRONG}, "model.bin has sha256"),
    "bomb": (GOOD | {"inside/model.bin": bytes(10**6)}, "model.bin is too large"),
}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_a_bad_archive_is_one_line(kind, ending, site, fill):
    entries, message = BAD_ARCHIVES[kind]
    site.pages[f"/files/a{ending}"] = PACKERS[ending](entries)
    failure = fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"})
    assert message in failure


@pytest.mark.parametrize("ending", PACKERS)
def test_a_page_in_the_place_of_an_archive_is_one_line(ending, site, fill):
    """Networks of hotels answer so."""
    site.pages[f"/files/a{ending}"] = b"<html>Log in to this network first</html>"
    failure = fill({"archive": f"{site.address}/files/a{ending}", "inside": "inside"})
    assert "not a " in failure


WHEEL = {"wheel": "tiny-weights==1.0", "inside": "tiny_weights/model"}


# subtle: find_spec("pip") switches setuptools' distutils off, which torch 2.6 needs later
@pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")
def test_a_wheel_is_downloaded_and_read_but_not_installed(fill, tmp_path):
    """Nothing of it is executed."""
    metadata = "tiny_weights-1.0.dist-info"
    entries = {
        "tiny_weights/model/model.bin": CONTENT["model.bin"],
        "tiny_weights/model/sub/config.json": CONTENT["sub/config.json"],
        "tiny_weights/__init__.py": b"raise SystemExit('executed')",
        f"{metadata}/METADATA": b"Metadata-Version: 2.1\nName: tiny_weights\nVersion: 1.0\n",
        f"{metadata}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{metadata}/RECORD": b"",
    }
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tiny_weights-1.0-py3-none-any.whl").write_bytes(zipped(entries))
    assert fill(WHEEL) == ""
    assert find_spec("tiny_weights") is None


@pytest.mark.skipif(not any(distributions(name="pip")), reason="this environment has no pip")
def test_a_wheel_that_is_not_there_is_one_line(fill, tmp_path):
    (tmp_path / "wheels").mkdir()
    failure = fill(WHEEL | {"wheel": "tiny-weights==2.0"})
    assert failure.count("pip could not download it: ERROR: ") == 1


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
    assert_absent(store)
