"""Fixtures: the tiny committed checkpoint, and the real weights if they can be downloaded."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from minisbert.backends.package import COMPILERS
from minisbert.core import InputError, bert
from minisbert.diagnosis.tracing import unfused
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import torch_internals
from minisbert.system.assets import ensure
from minisbert.system.console import messages_on_stderr
from tests import toys
from tests.jitter import Jitter

ROOT = Path(__file__).parents[1]
os.environ.setdefault(
    "CUDA_VISIBLE_DEVICES", ""
)  # on a machine with a GPU too, what is tested is the CPU
torch.backends.mps.is_available = lambda: False  # on Apple's too
# OMP_NUM_THREADS, which torch has read, holds for every test; without it the processes of ``pytest
# -n`` share the cores
GIVEN = "OMP_NUM_THREADS" in os.environ
WORKERS = 1 if GIVEN else int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, torch.get_num_threads() // WORKERS)

settings.register_profile("untimed", deadline=None)  # a slow example is not a failure
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    message = "compute as another CPU might: every float32 product is off by a relative 1e-6 "
    message += "(%(metavar)s chooses how)"
    parser.addoption("--jitter", type=int, metavar="SEED", help=message)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """No bytes in the names of tests: an archive holds its time, and two workers must collect the
    same names.
    """
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tiny_package" in item.fixturenames:
            item.add_marker("slow")


@pytest.hookimpl(
    tryfirst=True
)  # before the fixtures of a module, which compute in as many threads as its tests
def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread for tiny tensors, where handing out the work costs far more than doing it; all for
    real weights.

    As many as OMP_NUM_THREADS says for both, if it is set: .ci/run compares results of several
    numbers of threads.
    """
    torch.set_num_threads(THREADS if GIVEN or item.get_closest_marker("weights") else 1)
    if item.get_closest_marker("reference") and find_spec("sentence_transformers") is None:
        pytest.skip("needs the reference extra: pip install '.[reference]'")


@pytest.fixture(autouse=True)
def jitter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make float32 products inexact if ``--jitter`` asks for it, except in tests marked
    ``exact``.
    """
    seed = request.config.getoption("--jitter")
    if seed is None or request.node.get_closest_marker("exact"):
        yield
        return
    with Jitter(f"{seed} {request.node.nodeid}"):
        yield


@pytest.fixture(params=[True, False], ids=["onednn", "public"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search with oneDNN's private operations, and without, as on CPUs and in builds of torch
    that lack them.
    """
    if request.param and not torch_internals.ONEDNN:
        pytest.skip("this torch has no such operations")
    monkeypatch.setattr(torch_internals, "ONEDNN", request.param)


@pytest.fixture(autouse=True, scope="session")
def fused_from_the_first_test_on() -> None:
    """As outside lessons, whatever the collection has imported: fixtures of a module begin before
    ``fused``.
    """
    bert.FUSED = True


@pytest.fixture(autouse=True)
def prints_messages() -> Iterator[None]:
    """Print what the library says on stderr, as a command does: most tests call one's ``main``."""
    with messages_on_stderr():
        yield


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    """As outside lessons, even if another test has imported one."""
    bert.FUSED = True
    yield
    bert.FUSED = True


@pytest.fixture
def encoded_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that ``SentenceEncoder.encode`` gets, in order, from the last ``clear`` on."""
    texts: list[str] = []
    encode = SentenceEncoder.encode

    def noted(self: SentenceEncoder, sentences: Sequence[str], *rest: Any, **options: Any) -> Any:
        texts.extend(sentences)
        return encode(self, sentences, *rest, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", noted)
    return texts


@pytest.fixture
def written_out(fused: None) -> Iterator[None]:
    """The encoder's formulas as the book writes them out, with attention's probabilities."""
    with unfused():
        yield


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The tiny random checkpoint in git: 2 layers, width 24, as sentence-transformers saved it."""
    return ROOT / "weights" / "tiny"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Toy files of every form, by name; not to be changed."""
    return toys.write_all(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="session")
def tiny_package(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model compiled, once for all processes of ``pytest -n``."""
    if not any(map(shutil.which, filter(None, [os.environ.get("CXX"), *COMPILERS]))):
        pytest.skip("there is no C++ compiler")
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if base.name.startswith("popen-") else base) / "package" / "tiny.pt2"
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path}.lock"):
        return path if path.is_file() else compile_model(tiny, path)


def compile_model(folder: Path, out: Path) -> Path:
    """The command in a separate process, so that other tests do not disturb the compiler."""
    command = [sys.executable, "-m", "minisbert", "compile", str(folder), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"{out}: " in done.stdout
    return out


def fetched(name: str) -> Path:
    """An asset's folder. If it is unavailable the test is skipped with the reason; with CI=true it
    fails.
    """
    try:
        with FileLock(
            Path(tempfile.gettempdir(), f"minisbert-{name}.lock")
        ):  # one process fetches, the others wait
            return ensure(name)
    except InputError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs {name}: {error}")
        pytest.skip(f"{name} cannot be had: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real all-MiniLM-L6-v2."""
    return fetched("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def stsb() -> Path:
    """The STS Benchmark's files."""
    return fetched("stsb")
