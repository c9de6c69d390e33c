"""An asset is either complete and verified or absent, and the commands report which."""

import hashlib
import os
import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from minisbert.commands import assets as command
from minisbert.core import InputError
from minisbert.system import assets
from minisbert.system.assets import AssetFile, ensure, fetch, home
from minisbert.system.console import run_command
from tests.servers import cut, repository, serve, use_hub
from tests.system.test_sources import CONTENT, GOOD, PACKERS, WRONG

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
def test_an_entry_states_its_licence_and_pins_its_sources_and_files(name):
    entry = ENTRIES[name]
    assert set(entry) == {"kind", "about", "licence", "upstream", "sources", "files"}
    assert entry["kind"] in {"weights", "data"}
    assert all(entry[key].strip() for key in entry if isinstance(entry[key], str))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)  # it becomes a folder name
    for source in entry["sources"]:
        kind = next(iter(source))
        keys, pattern = PINNED[kind]
        assert set(source) == keys
        assert re.fullmatch(pattern, source[kind])
        assert re.fullmatch("[0-9a-f]{40}", source.get("revision", "0" * 40))
        assert kind != "url" or len(entry["files"]) == 1 or source["url"].endswith("/")
        assert not source.get("inside", "").startswith("/")
    for file in entry["files"]:
        kind, digits = ("md5", 32) if name == "quora" else ("sha256", 64)  # Quora published no sha256
        assert set(file) - {"size"} == {"name", kind}
        assert re.fullmatch(f"[0-9a-f]{{{digits}}}", file[kind])
        assert file.get("size", 1) > 0
        path = PurePosixPath(file["name"])
        assert str(path) == file["name"]
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert not set(file["name"]) & set('\\:*?"<>|')
    assert len({file["name"].lower() for file in entry["files"]}) == len(entry["files"]) > 0
    if name in ("all-MiniLM-L6-v2", "stsb"):  # what the first steps need has two independent sources
        assert {next(iter(source)) for source in entry["sources"]} > {"wheel"}


def test_the_manifest_is_read_completely_and_in_order():
    read = assets.assets()
    assert list(read) == list(ENTRIES)
    for name, entry in ENTRIES.items():
        assert vars(read[name]) | {"files": None} == entry | {"name": name, "files": None}
        given = [{key: value for key, value in vars(file).items() if value is not None} for file in read[name].files]
        assert given == entry["files"]


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


def test_the_home_is_the_variables_else_the_checkout_else_the_cache(tmp_path, installed, monkeypatch):
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
    assert assets.asset("all-MiniLM-L6-v2").folder == tmp_path / "mine" / "weights" / "all-MiniLM-L6-v2"
    monkeypatch.setenv("MINISBERT_HOME", "~/models")
    assert home() == tmp_path / "me" / "models"


def test_a_home_that_is_no_folder(installed, monkeypatch):
    for name in ("~nosuch", "~nosuch/models", os.devnull):
        monkeypatch.setenv("MINISBERT_HOME", name)
        with pytest.raises(InputError, match=f"'{name}' is not a folder: set MINISBERT_HOME to one"):
            home()
    monkeypatch.delenv("MINISBERT_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a container with a user id that no one has
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

    def declare(*sources: dict, hashed: str = "sha256") -> None:
        files = tuple(
            AssetFile(name, len(data), **{hashed: hashlib.new(hashed, data).hexdigest()})
            for name, data in CONTENT.items()
        )
        tiny = assets.Asset("tiny", "weights", "made by a test", "CC0", "nobody", [*sources], files)
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
    """The asset is complete (or absent) and there is nothing else, not even an empty partial folder."""
    stored = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert [path.name for path in (store / "weights").iterdir()] == (["tiny"] if there else [])
    return stored == ({f"weights/tiny/{name}": data for name, data in CONTENT.items()} if there else {})


def test_from_a_url(site, store, capsys):
    assert ensure("tiny") == store / "weights" / "tiny"
    assert whole(store)
    assert site.asked == list(PAGES)
    shown = f"fetching tiny (url {site.address}/tiny/) to {store / 'weights' / 'tiny'}\n"
    assert capsys.readouterr() == ("", shown)


def test_from_the_hub_or_its_cache_at_the_pinned_commit(site, store, declare, tmp_path, monkeypatch):
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
    declare({"archive": f"{site.address}/a.zip", "inside": "inside"}, {"url": f"{site.address}/tiny/"})
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


@pytest.mark.parametrize("page", [WRONG, cut(CONTENT["model.bin"], 1000), None], ids=["wrong", "cut", "missing"])
@pytest.mark.parametrize("name", [MODEL, "/tiny/sub/config.json"])
def test_a_failed_fetch_changes_nothing(page, name, there_before, site, store):
    """An old, complete copy stays until the new one is complete."""
    site.pages[name] = page
    with pytest.raises(InputError, match="tiny could not be fetched"):
        fetch(assets.asset("tiny"))
    assert whole(store, there_before)


def test_a_users_own_file_is_not_lost(site, store):
    ensure("tiny")
    site.asked.clear()
    folder = store / "weights" / "tiny"
    (folder / "sub" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"tiny also holds 'sub/notes\.txt', not part of tiny"):
        fetch(assets.asset("tiny"))
    assert (folder / "sub" / "notes.txt").read_text() == "mine"
    assert (folder / "model.bin").exists()
    assert site.asked == []  # nothing is downloaded in vain


def test_what_is_complete_is_not_fetched_again(site, store, monkeypatch, capsys):
    ensure("tiny")
    site.asked.clear()
    capsys.readouterr()
    for offline in ("0", "1"):
        monkeypatch.setenv("MINISBERT_OFFLINE", offline)
        assert ensure("tiny") == store / "weights" / "tiny"
    assert site.asked == []
    assert capsys.readouterr() == ("", "")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = {
    "sub/config.json is missing": Path.unlink,
    "model.bin has 2,047 bytes, not 2,048": lambda path: os.truncate(path, 2047),
    "model.bin is missing": make_folder,
}


@pytest.mark.parametrize("found", DAMAGE)
def test_what_is_incomplete_is_reported_and_fetched_again(found, site, store, monkeypatch, capsys):
    folder = store / "weights" / "tiny"
    assert assets.asset("tiny").state() == "missing"
    ensure("tiny")
    assert assets.asset("tiny").state() == "complete"
    DAMAGE[found](folder / found.split()[0])
    assert assets.asset("tiny").state() == f"incomplete: {folder}/{found}"
    with pytest.raises(InputError, match=r"does not match the manifest: tiny; fetch again: .* fetch tiny"):
        run("verify")
    assert capsys.readouterr().out == f"tiny: {folder}/{found}\n"
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(InputError, match=f"^tiny is incomplete: .*{found} and MINISBERT_OFFLINE forbids") as error:
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
    for action in ("fetch", "path", "verify"):
        with pytest.raises(InputError, match=known):
            run(action, "all-minilm")


def run(*arguments: str) -> None:
    command.main(list(arguments))


def test_path_and_fetch_print_the_folder_and_fetch_repairs_a_file_of_the_right_size(site, store, capsys):
    """``ensure`` checks sizes only; the command downloads everything again."""
    run("path", "tiny")
    assert site.asked == []
    ensure("tiny")
    (store / "weights" / "tiny" / "model.bin").write_bytes(WRONG)
    run("fetch", "tiny")
    assert whole(store)
    assert capsys.readouterr().out == f"{store / 'weights' / 'tiny'}\n" * 2


def test_list_shows_state_licence_and_sources(declare, capsys):
    declare({"url": "http://127.0.0.1/a.zip"}, {"hub": "someone/tiny", "revision": "abc"}, hashed="md5")
    run("list")
    assert capsys.readouterr().out == (
        "tiny  (weights, 0.0 MB, missing)\n"
        "  made by a test\n"
        "  nobody; licence: CC0\n"
        "  from url http://127.0.0.1/a.zip, else hub someone/tiny\n"
        "  checked by md5 only: its publisher gave no sha256\n"
    )


@pytest.mark.parametrize("arguments", [("verify",), ("verify", "tiny")])
def test_verify_finds_one_flipped_bit(arguments, site, store, capsys):
    ensure("tiny")
    run(*arguments)
    assert capsys.readouterr().out == "tiny: 2 files, all match the manifest\n"
    path = store / "weights" / "tiny" / "model.bin"
    path.write_bytes(WRONG)
    assert assets.asset("tiny").state() == "complete"  # the size is right
    with pytest.raises(SystemExit, match="2"):  # as run by minisbert assets verify
        run_command(lambda: run(*arguments))
    right, wrong = (hashlib.sha256(data).hexdigest() for data in (CONTENT["model.bin"], WRONG))
    shown = "error: does not match the manifest: tiny; fetch again: minisbert assets fetch tiny\n"
    assert capsys.readouterr() == (f"tiny: {path} has sha256 {wrong}, not {right}\n", shown)


def test_verify_of_what_is_missing(site, capsys):
    run("verify")
    assert capsys.readouterr().out == "nothing has been fetched yet\n"
    with pytest.raises(InputError, match=r"fetch again: minisbert assets fetch tiny"):
        run("verify", "tiny")
