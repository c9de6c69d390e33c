"""Models by their names on the Hugging Face Hub: a server that speaks its protocol, and the
library's own cache.
"""

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
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
from tests.servers import Site, refuse, repository, serve, use_hub

COMMIT, OLDER = "a" * 40, "b" * 40
TEXTS = ["a cat sits", "it rains all day"]
STRAY = {  # what repositories hold beside a model
    "pytorch_model.bin": b"pickle", "training_args.bin": b"pickle", "onnx/model.onnx": b"onnx",
    "onnx/config.json": b"{}", "openvino/config.json": b"{}", "tf_model.h5": b"h5", "model.fp16.safetensors": b"half",
    "modeling_custom.py": b"import os", "README.md": b"# tiny", ".gitattributes": b"",
}  # fmt: skip


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The tiny model's files by their names."""
    folder = ROOT / "weights" / "tiny"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def site(files, tmp_path, monkeypatch) -> Iterator[Site]:
    """A hub with the model ``someone/tiny`` and an empty cache."""
    pages = repository("someone/tiny", files | STRAY, COMMIT, "main", "refs/pr/1")
    with serve(pages) as site:
        use_hub(site, tmp_path / "cache", monkeypatch)
        monkeypatch.setattr(assets, "HUB_SECONDS", 0.5)
        yield site


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def served(site: Site) -> list[str]:
    return [path.partition(f"/resolve/{COMMIT}/")[2] for path in site.asked if "/resolve/" in path]


def test_names_of_the_hub_and_paths(site):
    for name in ("BAAI/bge-small-en-v1.5", "a/b", "someone/tiny@v2", "someone/tiny@refs/pr/1"):
        assert is_hub_name(name)
    for name in [
        *[
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
        ],
        "a/b c",
        "",
    ]:
        assert not is_hub_name(name)
        with pytest.raises(InputError, match="neither a folder nor one of"):
            find_model(name)
    with pytest.raises(
        InputError, match="have an owner in their name, such as sentence-transformers/"
    ):
        find_model("all-mpnet-base-v2")
    assert site.asked == []


def test_only_what_a_model_is_loaded_from_is_downloaded_and_only_once(site, files):
    folder = download_model("someone/tiny")
    assert names(folder) == {*files} - {"README.md"}
    assert not {*served(site)} & {*STRAY}
    site.asked.clear()
    assert download_model("someone/tiny") == folder
    assert served(site) == []


def test_modules_in_folders_of_any_name(site, files, tmp_path):
    """The encoder in a folder of its own, the pooling in one without a digit: by name as by
    path.
    """
    modules = json.loads(files["modules.json"])
    modules[0]["path"], modules[1]["path"] = "0_Transformer", "pooling"
    moved = {"modules.json": json.dumps(modules).encode()}
    for name, body in files.items():
        if name == "1_Pooling/config.json":
            moved["pooling/config.json"] = body
        elif name not in ("modules.json", "README.md"):
            moved[
                name if name == "config_sentence_transformers.json" else f"0_Transformer/{name}"
            ] = body
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


def tell(name: str = "someone/tiny") -> str:
    """The one line about a model that cannot be loaded."""
    with pytest.raises(InputError) as error:
        find_model(name)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 400
    return text


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def our_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")


WAYS = [
    (unreachable, "cannot be reached"),
    (offline, "offline mode"),
    (our_offline, "offline mode"),
]


@pytest.mark.parametrize(("way", "words"), WAYS)
def test_what_the_cache_has_needs_no_hub(way, words, site, monkeypatch, capsys):
    folder = download_model("someone/tiny")
    site.asked.clear()
    capsys.readouterr()
    way(monkeypatch)
    assert download_model("someone/tiny") == folder
    assert download_model("someone/tiny", COMMIT) == folder
    assert capsys.readouterr().err.count(f"using {folder}") == (2 if way is unreachable else 0)
    (folder / "1_Pooling" / "config.json").unlink()
    assert words in tell()  # an incomplete model is not used
    shutil.rmtree(constants.HF_HUB_CACHE)
    assert words in tell()
    assert site.asked == []


def test_a_hub_that_never_answers_is_given_up_within_seconds(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert re.search("cannot be reached .*timed out", tell())


def test_a_cache_that_another_library_filled_is_used(site, files, monkeypatch):
    """sentence-transformers asks for one file after the other, and keeps no listing of the
    repository.
    """
    for name in files:
        folder = Path(huggingface_hub.hf_hub_download("someone/tiny", name)).parents[
            name.count("/")
        ]
    assert not list(Path(constants.HF_HUB_CACHE).rglob("trees"))
    offline(monkeypatch)
    assert find_model("someone/tiny") == folder
    assert SentenceEncoder.load("someone/tiny").encode(TEXTS).shape == (2, 24)


ANSWERS = [
    (refuse(404, "RepoNotFound"), "neither a local folder nor a model on "),
    (refuse(401, "RepoNotFound"), "needs HF_TOKEN"),
    (refuse(403, "GatedRepo"), "is gated: accept its terms"),
    (refuse(404, "RevisionNotFound"), "has no revision"),
    (refuse(500, "Broken"), "Internal Server Error"),
    (b"<html>Log in to this network first</html>", "cannot be reached"),
    (lambda handler: handler.connection.close(), "cannot be reached"),
]


@pytest.mark.parametrize(("answer", "words"), ANSWERS)
def test_what_the_hub_answers(answer, words, site):
    site.pages["/api/models/someone/tiny"] = site.pages[
        "/api/models/someone/tiny/revision/main"
    ] = answer
    assert words in tell()


def test_a_repository_without_safetensors_is_refused(site, files):
    held = {"config.json": files["config.json"], "pytorch_model.bin": b"pickle"}
    site.pages |= repository("someone/tiny", held, COMMIT, "main")
    assert "pickle" in tell()
    assert not {*served(site)} & {*STRAY}


def test_a_full_disk(site, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    assert "(No space left on device): free some space, or set HF_HOME" in tell()


def test_names_that_the_hub_does_not_allow(site):
    for name in ("a--b/c", "a/b.", "a/" + "b" * 99, "a/b..b"):
        assert "neither a folder nor a name on" in tell(name)


@pytest.mark.weights
def test_a_repository_of_the_manifest_is_the_asset(minilm, site):
    assert find_model("sentence-transformers/all-MiniLM-L6-v2") == find_model("all-MiniLM-L6-v2")
    assert site.asked == []
