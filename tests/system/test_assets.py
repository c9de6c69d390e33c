"""An asset is either complete and verified or absent, and the commands report which."""

import hashlib
import json
import os
import re
import sys
import threading
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from minisbert.assets import main
from minisbert.core import InputError
from minisbert.system import assets, hub, sources
from minisbert.system.assets import ensure, fetch, home
from minisbert.system.console import run_command
from tests.servers import cut, repository, send, serve, use_hub
from tests.system.test_sources import CONTENT, GOOD, PACKERS, WRONG

ENTRIES = tomllib.loads(assets.MANIFEST.read_text(encoding="utf-8"))
SOURCES = [(name, source) for name, entry in ENTRIES.items() for source in entry["sources"]]
FILES = [(name, file) for name, entry in ENTRIES.items() for file in entry["files"]]
PAGES = {f"/tiny/{name}": data for name, data in CONTENT.items()}
MODEL = "/tiny/model.bin"


# ------------------------------------------------------------------------------------- the manifest


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_states_its_kind_licence_and_upstream(name):
    entry = ENTRIES[name]
    assert set(entry) == {"kind", "about", "licence", "upstream", "sources", "files"}
    assert entry["kind"] in {"weights", "data"}
    assert all(entry[key].strip() for key in ("about", "licence", "upstream"))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)  # it becomes a folder name
    assert entry["sources"]
    assert entry["files"]


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_a_source_is_of_a_known_kind_and_pinned(name, source):
    kind = next(iter(source))
    assert kind in sources.SOURCES
    if kind == "wheel":
        assert set(source) == {"wheel", "inside"}
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", source["wheel"])  # one version
    elif kind == "hub":
        assert set(source) == {"hub", "revision"}
        assert re.fullmatch(r"[0-9a-f]{40}", source["revision"])  # one commit
    elif kind == "url":
        assert set(source) == {"url"}
        assert len(ENTRIES[name]["files"]) == 1 or source["url"].endswith("/")
    else:
        assert set(source) == {"archive", "inside"}
        assert source["archive"].endswith((".zip", ".tar.gz"))
    assert not source.get("inside", "").startswith("/")


@pytest.mark.parametrize(("asset", "file"), FILES, ids=[f"{name}/{file['name']}" for name, file in FILES])
def test_a_file_has_its_hash_and_stays_in_its_folder(asset, file):
    if asset == "quora":  # the one whose publisher gave no sha256
        assert set(file) == {"name", "size", "md5"}
        assert re.fullmatch(r"[0-9a-f]{32}", file["md5"])
    else:
        assert set(file) - {"size"} == {"name", "sha256"}
        assert re.fullmatch(r"[0-9a-f]{64}", file["sha256"])
    assert "size" not in file or (type(file["size"]) is int and file["size"] > 0)
    path = PurePosixPath(file["name"])
    assert str(path) == file["name"]
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert not set(file["name"]) & set('\\:*?"<>|')


def test_no_file_is_in_the_manifest_twice():
    assert len({(name, file["name"].lower()) for name, file in FILES}) == len(FILES)


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "stsb"])
def test_what_the_first_steps_need_has_two_independent_sources(name):
    kinds = {next(iter(source)) for source in ENTRIES[name]["sources"]}
    assert "wheel" in kinds
    assert kinds & {"hub", "archive"}


def test_the_manifest_is_read_completely_and_in_order():
    read = assets.assets()
    assert list(read) == list(ENTRIES)
    for name, entry in ENTRIES.items():
        assert read[name].name == name
        assert (read[name].kind, read[name].licence) == (entry["kind"], entry["licence"])
        assert list(read[name].sources) == entry["sources"]
        given = [{key: value for key, value in vars(file).items() if value is not None} for file in read[name].files]
        assert given == entry["files"]


# ------------------------------------------------------------------------------------ where they go


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch) -> None:
    for name in ("MINISBERT_HOME", "MINISBERT_OFFLINE", "MINISBERT_TRACEBACK", "XDG_CACHE_HOME", "LOCALAPPDATA"):
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
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def test_minisbert_home_decides(tmp_path, installed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"
    assert assets.asset("stsb").folder == tmp_path / "mine" / "data" / "stsb"
    assert assets.asset("all-MiniLM-L6-v2").folder == tmp_path / "mine" / "weights" / "all-MiniLM-L6-v2"
    monkeypatch.setenv("MINISBERT_HOME", "~/models")
    assert home() == tmp_path / "me" / "models"


def test_a_home_that_is_no_folder(installed, monkeypatch):
    for name in ("~nosuch", "~nosuch/models", os.devnull):
        monkeypatch.setenv("MINISBERT_HOME", name)
        with pytest.raises(InputError, match=f"MINISBERT_HOME='{name}' is not a folder: name another one"):
            home()
    monkeypatch.delenv("MINISBERT_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a container that runs under a user id of its own
    with pytest.raises(InputError, match="this user has no home folder: set MINISBERT_HOME"):
        home()


def test_a_checkout_keeps_its_assets(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (installed / "pyproject.toml").touch()
    assert home() == tmp_path / "cache" / "minisbert"  # no weights/: some other project's folder
    (installed / "weights").mkdir()
    assert home() == installed
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"


@pytest.mark.parametrize("empty", ["MINISBERT_HOME", "XDG_CACHE_HOME"])
def test_an_empty_variable_counts_as_unset(empty, installed, tmp_path, monkeypatch):
    monkeypatch.setenv(empty, "")
    assert home() == tmp_path / "me" / ".cache" / "minisbert"


@pytest.mark.parametrize(
    ("platform", "folder"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData")]
)
def test_the_cache_folder_of_each_system(platform, folder, installed, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    if platform == "win32":
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "me" / "AppData"))
    assert home() == tmp_path / "me" / folder / "minisbert"


# ---------------------------------------------------------------------------- a small asset to fetch


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    """An empty home for assets."""
    folder = tmp_path / "home"
    monkeypatch.setenv("MINISBERT_HOME", str(folder))
    return folder


@pytest.fixture
def declare(store, monkeypatch):
    """A function that makes a manifest with one asset, ``tiny``, from the given sources."""

    def table(entries: dict) -> str:
        return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in entries.items()) + " }"

    def declare(*chosen: dict, hashed: str = "sha256") -> None:
        files = [
            {"name": name, "size": len(data), hashed: hashlib.new(hashed, data).hexdigest()}
            for name, data in CONTENT.items()
        ]
        manifest = store.parent / "assets.toml"
        manifest.write_text(
            '[tiny]\nkind = "weights"\nabout = "made by a test"\nlicence = "CC0"\nupstream = "nobody"\n'
            f"sources = [{', '.join(map(table, chosen))}]\nfiles = [{', '.join(map(table, files))}]\n"
        )
        monkeypatch.setattr(assets, "MANIFEST", manifest)

    return declare


@pytest.fixture
def site(declare):
    """A server with the asset ``tiny``; a test may change ``site.pages``."""
    with serve(dict(PAGES)) as site:
        declare({"url": f"{site.address}/tiny/"})
        yield site


def stored(store: Path) -> dict[str, bytes]:
    """Every file under the home, hidden and partial ones included."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()
    }


WHOLE = {f"weights/tiny/{name}": data for name, data in CONTENT.items()}


def whole(store: Path) -> bool:
    """The asset is complete and there is nothing else, not even an empty partial folder."""
    return stored(store) == WHOLE and [path.name for path in (store / "weights").iterdir()] == ["tiny"]


def nothing(store: Path) -> bool:
    return stored(store) == {} and list((store / "weights").iterdir()) == []


def test_from_a_url(site, store, capsys):
    assert ensure("tiny") == store / "weights" / "tiny"
    assert whole(store)
    assert site.asked == list(PAGES)
    told = f"fetching tiny (url {site.address}/tiny/) to {store / 'weights' / 'tiny'}\n"
    assert capsys.readouterr() == ("", told)


def test_from_the_hub_or_its_cache_at_the_pinned_commit(site, store, declare, tmp_path, monkeypatch):
    """The files are copies: what happens to the cache later does not matter."""
    commit = "c" * 40
    site.pages |= repository("someone/tiny", CONTENT | {"pytorch_model.bin": b"pickle"}, commit)
    use_hub(site, tmp_path / "cache", monkeypatch)
    declare({"hub": "someone/tiny", "revision": commit})
    ensure("tiny")
    assert whole(store)
    assert not any("pytorch" in path for path in site.asked)
    for name in CONTENT:
        assert not (store / "weights" / "tiny" / name).is_symlink()
    site.asked.clear()
    fetch(assets.asset("tiny"))
    assert not any("/resolve/" in path for path in site.asked)


def test_the_next_source_where_the_hub_does_not_answer_within_seconds(
    site, store, declare, tmp_path, monkeypatch, capsys
):
    def slow(handler) -> None:
        threading.Event().wait(2)

    site.pages["/api/models/someone/tiny/revision/main"] = slow
    use_hub(site, tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(hub, "SECONDS", 0.2)
    declare({"hub": "someone/tiny", "revision": "main"}, {"url": f"{site.address}/tiny/"})
    ensure("tiny")
    assert whole(store)
    assert "cannot be reached (timed out)" in capsys.readouterr().err


# ---------------------------------------------------------------------------------- sources that fail


def test_wrong_bytes_make_the_next_source_be_tried(site, store, declare, capsys):
    site.pages["/a.zip"] = PACKERS[".zip"](GOOD | {"inside/model.bin": WRONG})
    declare({"archive": f"{site.address}/a.zip", "inside": "inside"}, {"url": f"{site.address}/tiny/"})
    ensure("tiny")
    assert whole(store)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    assert shown[0].startswith(f"fetching tiny (archive {site.address}/a.zip)")
    assert shown[1].startswith(f"  model.bin has sha256 {hashlib.sha256(WRONG).hexdigest()}, not ")
    assert shown[2].startswith(f"fetching tiny (url {site.address}/tiny/)")


def test_if_no_source_works_the_error_names_all(site, store, declare):
    del site.pages[MODEL]
    site.pages["/a.tar.gz"] = b"<html>Log in first</html>"
    archive = {"archive": f"{site.address}/a.tar.gz", "inside": "inside"}
    declare(archive, {"url": f"{site.address}/tiny/"})
    with pytest.raises(InputError) as error:
        ensure("tiny")
    first, *tried, last = str(error.value).splitlines()
    assert first == "tiny could not be fetched:"
    assert len(tried) == 2
    assert tried[0].startswith(f"  archive {site.address}/a.tar.gz: ")
    assert tried[1] == f"  url {site.address}/tiny/: HTTP Error 404: Not Found"
    assert last == f"Or put its files into {store / 'weights' / 'tiny'} by hand."
    assert nothing(store)


@pytest.mark.parametrize("page", [WRONG, cut(CONTENT["model.bin"], 1000), None], ids=["wrong", "cut", "missing"])
@pytest.mark.parametrize("name", [MODEL, "/tiny/sub/config.json"])
@pytest.mark.parametrize("there_before", [True, False])
def test_a_failed_fetch_changes_nothing(page, name, there_before, site, store):
    """An old, complete copy stays until the new one is complete."""
    if there_before:
        ensure("tiny")
    site.pages[name] = page
    with pytest.raises(InputError, match="tiny could not be fetched"):
        fetch(assets.asset("tiny"))
    assert whole(store) if there_before else nothing(store)


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_ctrl_c_changes_nothing(after, there_before, site, store, monkeypatch):
    """During the first file, after it is complete, and while the hashes are computed."""
    if there_before:
        ensure("tiny")
    copy, done = sources.copy, []

    def interrupted(*arguments) -> None:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(copy(*arguments))

    monkeypatch.setattr(sources, "copy", interrupted)
    monkeypatch.setattr(assets, "problems", lambda *_: interrupted())
    with pytest.raises(KeyboardInterrupt):
        fetch(assets.asset("tiny"))
    assert len(done) == after
    assert whole(store) if there_before else nothing(store)


def test_a_home_or_folder_that_is_a_file_is_reported_at_once(site, store):
    store.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"MINISBERT_HOME='.*home' is not a folder"):
        ensure("tiny")
    store.unlink()
    (store / "weights").mkdir(parents=True)
    (store / "weights" / "tiny").write_text("in the way")
    with pytest.raises(InputError, match=r"weights/tiny is a file, a folder is needed"):
        ensure("tiny")
    assert (store / "weights" / "tiny").read_text() == "in the way"
    assert site.asked == []


@pytest.mark.parametrize("name", ["notes.txt", "sub/notes.txt", "model.bin.bak", "own/model.bin", ".git/HEAD"])
@pytest.mark.parametrize("damaged", [True, False])
def test_a_users_own_file_is_not_lost(name, damaged, site, store):
    ensure("tiny")
    folder = store / "weights" / "tiny"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    if damaged:
        (folder / "model.bin").unlink()
    site.asked.clear()
    shown = name if name.startswith("sub/") else name.split("/")[0]
    with pytest.raises(InputError, match=f"tiny also holds {re.escape(repr(shown))}, not part of tiny"):
        fetch(assets.asset("tiny"))
    assert (folder / name).read_text() == "mine"
    assert (folder / "model.bin").exists() != damaged
    assert site.asked == []  # nothing is downloaded in vain


# -------------------------------------------------------------------------------------- ensure


def test_what_is_complete_is_not_fetched_again(site, store, monkeypatch, capsys):
    ensure("tiny")
    site.asked.clear()
    capsys.readouterr()
    assert ensure("tiny") == store / "weights" / "tiny"
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    assert ensure("tiny") == store / "weights" / "tiny"
    assert site.asked == []
    assert capsys.readouterr() == ("", "")


def make_missing(folder: Path) -> None:
    (folder / "sub" / "config.json").unlink()


def make_shorter(folder: Path) -> None:
    (folder / "model.bin").write_bytes(CONTENT["model.bin"][:-1])


def make_folder(folder: Path) -> None:
    (folder / "model.bin").unlink()
    (folder / "model.bin").mkdir()


DAMAGE = {
    make_missing: "incomplete: sub/config.json is missing",
    make_shorter: "incomplete: model.bin has 2,047 bytes, not 2,048",
    make_folder: "incomplete: model.bin is missing",
}


@pytest.mark.parametrize(("damage", "state"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE])
def test_what_is_incomplete_is_reported_and_fetched_again(damage, state, site, store, monkeypatch, capsys):
    assert assets.asset("tiny").state() == "missing"
    ensure("tiny")
    assert assets.asset("tiny").state() == "complete"
    damage(store / "weights" / "tiny")
    assert assets.asset("tiny").state() == state
    with pytest.raises(InputError, match=r"does not match the manifest: tiny; fetch again: .* fetch tiny"):
        run("verify")
    assert f"tiny: {store / 'weights' / 'tiny'}" in capsys.readouterr().out
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(InputError, match=f"^tiny is {state} and MINISBERT_OFFLINE forbids .*; put model.bin, sub/conf"):
        ensure("tiny")
    monkeypatch.setenv("MINISBERT_OFFLINE", "0")
    ensure("tiny")
    assert whole(store)


def test_offline_says_what_to_put_where(site, store, monkeypatch):
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(InputError, match=r"^tiny is missing and MINISBERT_OFFLINE forbids") as error:
        ensure("tiny")
    assert str(error.value).endswith(f"put model.bin, sub/config.json into {store / 'weights' / 'tiny'}")
    assert site.asked == []
    monkeypatch.setenv("MINISBERT_OFFLINE", "")
    ensure("tiny")
    assert whole(store)


@pytest.mark.parametrize("name", ["all-minilm", "", "../../etc", "two\nlines"])
def test_an_unknown_name_lists_the_known_ones(name):
    for ask in (
        ensure,
        lambda name: run("fetch", name),
        lambda name: run("path", name),
        lambda name: run("verify", name),
    ):
        if name or ask is ensure:
            with pytest.raises(InputError, match=r"^unknown asset '.*'; known assets: all-MiniLM-L6-v2, bert-base-unc"):
                ask(name)


@pytest.mark.parametrize("there_before", [True, False])
def test_two_concurrent_fetches_both_succeed(there_before, site, store):
    """Each has its own partial folder; neither may break the other's result."""
    if there_before:
        ensure("tiny")
    both_are_fetching = threading.Barrier(2)

    def slow(handler) -> None:
        both_are_fetching.wait(timeout=30)
        send(handler, CONTENT["model.bin"])

    site.pages[MODEL] = slow
    errors = []

    def work() -> None:
        try:
            fetch(assets.asset("tiny"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert whole(store)


# ------------------------------------------------------------------------------------- the commands


def run(*arguments: str) -> None:
    main(list(arguments))


def test_path_prints_the_folder_and_fetches_nothing(site, store, capsys):
    run("path", "tiny")
    assert capsys.readouterr() == (f"{store / 'weights' / 'tiny'}\n", "")
    assert site.asked == []


def test_fetch_repairs_a_file_of_the_right_size_and_prints_the_folder(site, store, capsys):
    """``ensure`` checks sizes only; the command downloads everything again."""
    ensure("tiny")
    (store / "weights" / "tiny" / "model.bin").write_bytes(WRONG)
    run("fetch", "tiny")
    assert whole(store)
    assert capsys.readouterr().out == f"{store / 'weights' / 'tiny'}\n"


def test_list_shows_state_licence_and_sources(site, store, declare, capsys):
    declare({"url": "http://127.0.0.1/a.zip"}, {"hub": "someone/tiny", "revision": "abc"})
    run("list")
    assert capsys.readouterr().out == (
        "tiny  (weights, 0.0 MB, missing)\n"
        "  made by a test\n"
        "  nobody; licence: CC0\n"
        "  from url http://127.0.0.1/a.zip, else hub someone/tiny\n"
    )


def test_an_asset_with_only_an_md5_is_checked_and_says_so(site, store, declare, capsys):
    declare({"url": f"{site.address}/tiny/"}, hashed="md5")
    ensure("tiny")
    capsys.readouterr()
    run("list")
    assert "(weights, 0.0 MB, complete)" in (shown := capsys.readouterr().out)
    assert shown.endswith("  checked by md5 only: its publisher gave no sha256\n")
    run("verify", "tiny")
    site.pages[MODEL] = WRONG
    with pytest.raises(InputError, match=f"model.bin has md5 {hashlib.md5(WRONG).hexdigest()}, not "):
        fetch(assets.asset("tiny"))


@pytest.mark.parametrize("arguments", [("verify",), ("verify", "tiny")])
def test_verify_finds_one_flipped_bit(arguments, site, store, capsys):
    ensure("tiny")
    run(*arguments)
    assert capsys.readouterr().out == "tiny: 2 files, all match the manifest\n"
    path = store / "weights" / "tiny" / "model.bin"
    path.write_bytes(WRONG)
    assert assets.asset("tiny").state() == "complete"  # the size is right
    with pytest.raises(SystemExit, match="2"):  # as run by python -m minisbert.assets verify
        run_command(lambda: run(*arguments))
    right, wrong = (hashlib.sha256(data).hexdigest() for data in (CONTENT["model.bin"], WRONG))
    told = "error: does not match the manifest: tiny; fetch again: python -m minisbert.assets fetch tiny\n"
    assert capsys.readouterr() == (f"tiny: {path} has sha256 {wrong}, not {right}\n", told)


def test_verify_of_what_is_missing(site, capsys):
    run("verify")
    assert capsys.readouterr().out == "nothing has been fetched yet\n"
    with pytest.raises(InputError, match=r"fetch again: python -m minisbert\.assets fetch tiny"):
        run("verify", "tiny")
