"""Models by their names on the Hugging Face Hub.

A local server speaks its protocol; the cache is the library's own.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from minisbert.checkpoints.layout import find_model
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import assets
from minisbert.system.assets import download_model, is_hub_name
from tests.conftest import ROOT
from tests.servers import Answer, Site, refuse, repository, send, serve, use_hub

COMMIT = "a" * 40
OLDER = "b" * 40
TEXTS = ["a cat sits", "it rains all day"]
# What repositories hold beside a model.
STRAY = {
    "pytorch_model.bin": b"pickle",
    "training_args.bin": b"pickle",
    "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}",
    "openvino/config.json": b"{}",
    "tf_model.h5": b"h5",
    "model.fp16.safetensors": b"half",
    "modeling_custom.py": b"import os",
    "README.md": b"# tiny",
    ".gitattributes": b"",
}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The tiny model's files by their names."""
    folder = ROOT / "weights" / "tiny"
    return {name: (folder / name).read_bytes() for name in names(folder)}


@pytest.fixture
def site(files, tmp_path, monkeypatch) -> Iterator[Site]:
    """A hub with the model ``someone/tiny`` and an empty cache."""
    pages = repository("someone/tiny", files | STRAY, COMMIT, "main", "refs/pr/1")
    with serve(pages) as site:
        use_hub(site, tmp_path / "cache", monkeypatch)
        monkeypatch.setattr(assets, "HUB_SECONDS", 0.5)
        yield site


def names(folder: Path) -> set[str]:
    """The files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def served(site: Site) -> list[str]:
    """The files that were downloaded."""
    return [path.partition(f"/resolve/{COMMIT}/")[2] for path in site.asked if "/resolve/" in path]


@pytest.mark.parametrize(
    "name", ["BAAI/bge-small-en-v1.5", "a/b", "someone/tiny@v2", "someone/tiny@refs/pr/1"]
)
def test_a_name_of_the_hub(name):
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        "/a/b",
        "./a",
        "../a/b",
        "../a",
        "~/a",
        "a/b/c",
        "a/",
        "/a",
        "a//b",
        "a\\b",
        "a/b@",
        "a/b c",
        "",
    ],
)
def test_a_path_is_not_looked_up_on_the_hub(name, site):
    """A folder that is missing must not become a request."""
    assert not is_hub_name(name)
    with pytest.raises(InputError, match="neither a folder nor one of"):
        find_model(name)
    assert site.asked == []


def test_a_name_without_an_owner_says_how_the_hubs_look(site):
    with pytest.raises(InputError, match="have an owner in their name, such as sentence-tr"):
        find_model("all-mpnet-base-v2")
    assert site.asked == []


def test_only_what_a_model_is_loaded_from_is_downloaded_and_only_once(site, files):
    """A repository may hold ten times as much, pickles among it."""
    folder = download_model("someone/tiny")
    assert names(folder) == {*files} - {"README.md"}
    assert not {*served(site)} & {*STRAY}
    site.asked.clear()
    assert download_model("someone/tiny") == folder
    assert served(site) == []


def test_modules_in_folders_of_any_name(site, files, tmp_path):
    """The encoder may be in a folder of its own, the pooling in one without a digit."""
    modules = json.loads(files["modules.json"])
    modules[0]["path"] = "0_Transformer"
    modules[1]["path"] = "pooling"
    moved = {"modules.json": json.dumps(modules).encode()}
    for name, body in files.items():
        if name == "1_Pooling/config.json":
            moved["pooling/config.json"] = body
        elif name == "config_sentence_transformers.json":
            moved[name] = body
        elif name not in ("modules.json", "README.md"):
            moved[f"0_Transformer/{name}"] = body
    for name, body in moved.items():
        (tmp_path / "M" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "M" / name).write_bytes(body)
    site.pages |= repository("someone/else", moved | STRAY, COMMIT, "main")
    assert names(download_model("someone/else")) == {*moved}
    expected = SentenceEncoder.load(tmp_path / "M").encode(TEXTS)
    np.testing.assert_array_equal(SentenceEncoder.load("someone/else").encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("name", "revision"),
    [("someone/tiny", "v1"), (f"someone/tiny@{OLDER}", None), ("someone/tiny@refs/pr/9", None)],
)
def test_a_revision(name, revision, site, files):
    older = files | {"config_sentence_transformers.json": b'{"older": true}'}
    site.pages |= repository("someone/tiny", older, OLDER, "v1", "refs/pr/9")
    folder = download_model(name, revision)
    assert json.loads((folder / "config_sentence_transformers.json").read_text()) == {"older": True}
    assert folder.name == OLDER
    assert download_model("someone/tiny").name == COMMIT


def message_about(name: str = "someone/tiny") -> str:
    """The one line that says why a model cannot be loaded."""
    with pytest.raises(InputError) as error:
        find_model(name)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 500  # the path of a temporary folder is long
    return text


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def our_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")


@pytest.mark.parametrize(
    ("cut_off", "messages"), [(unreachable, 1), (offline, 0), (our_offline, 0)]
)
@pytest.mark.parametrize("revision", [None, COMMIT])
def test_what_the_cache_has_needs_no_hub(revision, cut_off, messages, site, monkeypatch, capsys):
    """It may be an old revision: who has not asked to be offline is told."""
    folder = download_model("someone/tiny")
    site.asked.clear()
    capsys.readouterr()
    cut_off(monkeypatch)
    assert download_model("someone/tiny", revision) == folder
    assert capsys.readouterr().err.count(f"using {folder}") == messages
    assert site.asked == []


@pytest.mark.parametrize(
    ("cut_off", "message"),
    [
        (unreachable, "cannot be reached"),
        (offline, "offline mode"),
        (our_offline, "offline mode"),
    ],
)
def test_what_the_cache_lacks_needs_the_hub(cut_off, message, site, monkeypatch):
    """An incomplete model is not used."""
    folder = download_model("someone/tiny")
    site.asked.clear()
    cut_off(monkeypatch)
    (folder / "1_Pooling" / "config.json").unlink()
    assert message in message_about()
    shutil.rmtree(constants.HF_HUB_CACHE)
    assert message in message_about()
    assert site.asked == []


def test_a_hub_that_never_answers_is_given_up_within_seconds(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert re.search("cannot be reached .*timed out", message_about())


def test_a_cache_that_another_library_filled_is_used(site, files, monkeypatch):
    """sentence-transformers asks for one file after the other, and keeps no listing."""
    for name in files:
        path = huggingface_hub.hf_hub_download("someone/tiny", name)
        folder = Path(path.removesuffix(name))
    assert not list(Path(constants.HF_HUB_CACHE).rglob("trees"))
    offline(monkeypatch)
    assert find_model("someone/tiny") == folder
    assert SentenceEncoder.load("someone/tiny").encode(TEXTS).shape == (2, 24)


def close(handler: BaseHTTPRequestHandler) -> None:
    """No answer."""
    handler.connection.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse(404, "RepoNotFound"), "neither a local folder nor a model on "),
        (refuse(401, "RepoNotFound"), "needs HF_TOKEN"),
        (refuse(403, "GatedRepo"), "is gated: accept its terms"),
        (refuse(404, "RevisionNotFound"), "has no revision"),
        (refuse(500, "Broken"), "try again later"),
        (refuse(429, "TooMany"), "too many requests"),
        (refuse(418, "Teapot"), "refuses"),
        (b"<html>Log in to this network first</html>", "log in to this network"),
        (b"[1, 2]", "does not answer as a hub"),
        (close, "set HTTPS_PROXY"),
    ],
)
def test_what_the_hub_answers(answer, message, site):
    """The line says what the user can do."""
    site.pages["/api/models/someone/tiny"] = answer
    site.pages["/api/models/someone/tiny/revision/main"] = answer
    text = message_about()
    assert message in text
    # Only a connection that fails is mended by a proxy.
    assert ("HTTPS_PROXY" in text) == (answer is close)


def test_a_file_of_another_length_than_announced(site, files):
    """The library's error is a bare OSError, as a proxy that fails is none."""
    page = f"/someone/tiny/resolve/{COMMIT}/model.safetensors"
    body = files["model.safetensors"]
    headers = {"ETag": '"' + "c" * 64 + '"', "X-Repo-Commit": COMMIT}
    site.pages[page] = lambda handler: send(
        handler, body[:400], X_Linked_Size=str(len(body)), **headers
    )
    assert "does not answer as a hub" in message_about()


def linked(body: bytes, sha256: str) -> Answer:
    """A large file: the hub states its sha256, by which the library names it in the cache."""
    headers = {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(body))}
    return lambda handler: send(handler, body, ETag='"x"', X_Repo_Commit=COMMIT, **headers)


def test_weights_with_other_bytes_than_the_hub_states_are_refused(site, files):
    """The library compares lengths only, so other weights would be loaded without a word."""
    page = f"/someone/tiny/resolve/{COMMIT}/model.safetensors"
    body = files["model.safetensors"]
    sha256 = hashlib.sha256(body).hexdigest()
    site.pages[page] = linked(body[:-400] + bytes(400), sha256)
    assert sha256 in message_about()
    assert not list(Path(constants.HF_HUB_CACHE).rglob(sha256))
    # Nothing wrong stays in the cache: a hub that serves the right bytes mends it.
    site.pages[page] = linked(body, sha256)
    assert (find_model("someone/tiny") / "model.safetensors").resolve().name == sha256


def test_a_damaged_file_of_the_cache_says_which_to_delete(site, files):
    """Nothing fetches again what is there; without the link alone the damaged file stays."""
    folder = find_model("someone/tiny")
    weights = (folder / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match=f"delete {re.escape(str(weights))}"):
        SentenceEncoder.load("someone/tiny")
    weights.unlink()
    assert SentenceEncoder.load("someone/tiny").encode(TEXTS).shape == (2, 24)


def test_a_repository_without_safetensors_is_refused(site, files):
    """A pickle can execute code."""
    pickled = {"config.json": files["config.json"], "pytorch_model.bin": b"pickle"}
    site.pages |= repository("someone/tiny", pickled, COMMIT, "main")
    assert "pickle" in message_about()
    assert not {*served(site)} & {*STRAY}


def test_a_full_disk(site, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    assert "(No space left on device): free some space, or set HF_HOME" in message_about()


@pytest.mark.parametrize("name", ["a--b/c", "a/b.", "a/" + "b" * 99, "a/b..b"])
def test_names_that_the_hub_does_not_allow(name, site):
    assert "neither a folder nor a name on" in message_about(name)


@pytest.mark.weights
def test_a_repository_of_the_manifest_is_the_asset(minilm, site):
    assert find_model("sentence-transformers/all-MiniLM-L6-v2") == find_model("all-MiniLM-L6-v2")
    assert site.asked == []
