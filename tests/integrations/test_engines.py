"""Encoding in the workers of an engine: a picklable function of batches, and the examples of docs/engines.md.

The examples run as they stand, on the real engines with two workers. They get a subclass that notes what the workers
do, and one that kills a worker.
"""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.integrations.engines import EncodeBatch, worker_encoder, worker_threads
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.toys import NOUNS

TEXTS = ["the cat sits on the mat", "a dog", "", "a woman eats an apple", "a dog"]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "engines.md").read_text(encoding="utf-8"), re.DOTALL)
NEEDS = {"ray": ["ray", "pandas", "pyarrow"], "pyspark": ["pyspark", "pandas", "pyarrow"], "datasets": ["datasets"]}
EXTRAS = {"ray": "ray", "pyspark": "spark", "datasets": "datasets"}
WAIT = 120  # seconds for a worker to see what another one does


@pytest.fixture(autouse=True)
def process_alone(monkeypatch):
    """No encoder is loaded yet, and the threads that are set go back."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    worker_encoder.cache_clear()


# ---------------------------------------------------------------------------------------- the function


@pytest.mark.parametrize("kind", [list, np.array, lambda texts: np.array(texts, dtype=object)])
def test_the_vectors_of_encode_bit_for_bit_and_the_other_columns(tiny, kind):
    batch = {"id": np.array([5, 3, 9, 1, 7]), "text": kind(TEXTS)}
    found = EncodeBatch(tiny)(batch)
    assert list(found) == ["id", "text", "vector"]
    assert list(batch) == ["id", "text"]  # the caller's own
    assert all(found[name] is batch[name] for name in batch)
    assert found["vector"].dtype == np.float32
    np.testing.assert_array_equal(found["vector"], SentenceEncoder.load(tiny).encode(TEXTS))


def test_every_option_reaches_the_encoder(tiny):
    options = {"normalize_embeddings": True, "truncate_dim": 7, "prompt": "the "}
    encode = EncodeBatch(tiny, text="sentence", vector="v", pooling="max", max_seq_length=5, **options)
    encoder = SentenceEncoder.load(tiny, pooling="max", max_seq_length=5)
    expected = encoder.encode(TEXTS, **options)
    assert encoder.truncated == 2
    found = encode({"sentence": TEXTS, "text": [1, 2, 3, 4, 5]})
    np.testing.assert_array_equal(found["v"], expected)
    assert found["text"] == [1, 2, 3, 4, 5]
    for name, other in {"normalize_embeddings": False, "truncate_dim": None, "prompt": None}.items():
        assert not np.array_equal(encoder.encode(TEXTS, **options | {name: other}), expected)
    for wrong in ({"truncate_dim": 25}, {"dtype": "half"}, {"prompt_name": "song"}):
        with pytest.raises(InputError, match=str(*wrong.values())):
            EncodeBatch(tiny, **wrong)({"text": TEXTS})


def test_an_empty_batch(tiny):
    for empty in ([], np.array([]), np.array([], dtype=object)):
        found = EncodeBatch(tiny, truncate_dim=5)({"id": [], "text": empty})
        assert found["vector"].shape == (0, 5)
        assert found["vector"].dtype == np.float32


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "NoneType"),
        (float("nan"), "nan"),
        (b"a", "bytes"),
        ("b\ud800", "lone surrogate"),
    ],
)
def test_a_value_that_is_not_a_text_is_refused_with_its_row(tiny, value, reason):
    with pytest.raises(InputError) as refused:
        EncodeBatch(tiny, text="title")({"id": [70, 80, 90], "title": ["a", "b", value]})
    assert "column 'title', row 2 of a batch of 3, with {'id': 90}: " in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, {"id": [1], "title": ["a"]}, "'id', 'title'.*text="),
        ({}, {}, "'text'"),
        ({}, {"text": ["a"], "vector": [0]}, "vector="),
        ({"vector": "text"}, {"text": ["a"]}, "'text'"),
        ({"workers": 0}, {}, "workers"),
        ({"workers": 1.5}, {}, "workers"),
    ],
)
def test_columns_and_numbers_of_workers_that_cannot_be(tiny, options, batch, message):
    with pytest.raises(InputError, match=message):
        EncodeBatch(tiny, **options)(batch)


def test_an_unknown_option_is_refused_before_a_worker_has_it(tiny):
    with pytest.raises(TypeError, match="normalise"):
        EncodeBatch(tiny, normalise=True)


# ------------------------------------------------------------------------------------------- processes


def test_a_pickled_copy_carries_settings_and_does_not_load_again(tiny):
    encode, largest = EncodeBatch(tiny, truncate_dim=5), EncodeBatch(tiny, pooling="max", truncate_dim=5)
    first = encode({"text": TEXTS})["vector"]
    for _ in range(3):  # Spark sends a copy with each task
        pickled = pickle.dumps(encode)
        assert len(pickled) < 2000
        np.testing.assert_array_equal(pickle.loads(pickled)({"text": TEXTS})["vector"], first)
    assert EncodeBatch(tiny, text="t", normalize_embeddings=False)({"t": ["a"]})["vector"].shape == (1, 24)
    assert worker_encoder.cache_info().misses == 1
    for _ in range(2):
        assert not np.array_equal(largest({"text": TEXTS})["vector"], first)
    assert worker_encoder.cache_info().misses == 2  # pooling is another model


def test_a_model_trained_anew_into_the_same_folder_is_another_model(tiny, tmp_path, monkeypatch):
    shutil.copytree(tiny, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    before = EncodeBatch("model")
    old = before({"text": TEXTS})["vector"]
    encoder = SentenceEncoder.load("model")
    with torch.no_grad():
        encoder.bert.embeddings.word.weight.mul_(1.5)
    encoder.save("model")
    after = EncodeBatch("model")
    assert pickle.dumps(after) != pickle.dumps(before)  # datasets takes a cached result for the same bytes
    monkeypatch.chdir("/")  # a worker may start elsewhere
    new = pickle.loads(pickle.dumps(after))({"text": TEXTS})["vector"]
    np.testing.assert_array_equal(new, SentenceEncoder.load(tmp_path / "model").encode(TEXTS))
    assert not np.array_equal(new, old)


def test_a_name_from_the_manifest_goes_before_a_folder(tmp_path, monkeypatch):
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert EncodeBatch("all-MiniLM-L6-v2").model == "all-MiniLM-L6-v2"


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    assert [worker_threads(workers) for workers in (1, 2, 5, 12, 40)] == [12, 6, 2, 1, 1]
    torch.set_num_threads(3)
    assert worker_threads(None) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_with_one_thread(tiny):
    """With two it would wait for threads that only its parent has: libgomp's do not survive a fork.

    And the import needs no engine.
    """
    code = f"""
import os, signal, sys, torch
torch.set_num_threads(2)
from minisbert.integrations.engines import EncodeBatch
assert not {{"ray", "pyspark", "datasets", "pandas", "pyarrow"}} & {{*sys.modules}}
batch = {{"text": ["the cat sits on the mat " * 4] * 500 + [" ".join(["dog"] * n) for n in range(30)]}}
encode = EncodeBatch({str(tiny)!r})
torch.rand(3000, 300) @ torch.rand(300, 3000)
encode(batch)  # the parent's threads have started
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
signal.alarm(60)
encode(batch)
torch.rand(3000, 300) @ torch.rand(300, 3000)
os._exit(0 if torch.get_num_threads() == 1 else 3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_first_example_of_the_page(tiny):
    found: dict = {}
    exec(on_tiny(EXAMPLES[0], tiny), found)
    assert list(found["batch"]) == ["id", "text", "vector"]
    assert found["batch"]["vector"].shape == (2, 24)


# -------------------------------------------------------------------------------------- the real engines


def on_tiny(code: str, model: Path) -> str:
    """An example with another model, and batches that are small enough for two workers to get some."""
    return code.replace('"all-MiniLM-L6-v2"', repr(str(model))).replace("batch_size=1000", "batch_size=8")


def rows() -> dict[int, str]:
    """96 texts by id; the ids are not in order."""
    frames = ["the {}", "a {} is in the park", "a small {} and a small cat is under the house", "{} {} {} and music"]
    texts = [frame.format(noun, noun, noun) for noun in NOUNS for frame in frames][:80]
    texts += [f"{text} in the park" for text in texts[:16]]
    return {37 * i % 96 + 1000: text for i, text in enumerate(texts)}


def once(name: str) -> bool:
    """Whether this process is the first to ask."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_for(pattern: str, count: int = 1) -> None:
    """Wait until that many files are there. Without them the test fails later, and says how."""
    end = time.monotonic() + WAIT
    while len(list(Path().glob(pattern))) < count and time.monotonic() < end:
        time.sleep(0.05)


class Noted(EncodeBatch):
    """Writes a line per batch, of rows, loads so far and threads, to a file per process."""

    def __call__(self, batch):
        found = super().__call__(batch)
        with Path("notes", str(os.getpid())).open("a") as stream:
            loads, threads = worker_encoder.cache_info().misses, torch.get_num_threads()
            stream.write(f"{len(found['vector'])} {loads} {threads}\n")
        return found


class Together(Noted):
    """Two processes begin at the same time, so that neither does the work of both."""

    def __call__(self, batch):
        own = Path("notes", str(os.getpid()))
        if not own.exists():
            own.touch()
            wait_for("notes/*", 2)
        return super().__call__(batch)


class Killed(EncodeBatch):
    """The process that meets a certain text first is killed."""

    def __call__(self, batch):
        found = super().__call__(batch)
        if rows()[1040] in list(batch["text"]) and once("notes/killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class KilledLate(Noted):
    """The same at the end of the second shard of two, when ``datasets`` has stored the first."""

    def __call__(self, batch):
        if list(rows().values())[-1] in list(batch["text"]) and once("notes/killed"):
            wait_for("cache/**/cache-*_00000_of_00002.arrow")
            time.sleep(2)  # until the process that wrote it has returned: seldom datasets writes it again otherwise
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


class Spoiled(EncodeBatch):
    """Meets a value that is not a text."""

    def __call__(self, batch):
        return super().__call__(dict(batch) | {"text": [*batch["text"][:-1], None]})


START = {
    "ray": """
import ray
from ray.data import DataContext
settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
ray.init(num_cpus=3, object_store_memory=80 * 2**20, **settings)
DataContext.get_current().enable_progress_bars = False
""",
    "pyspark": "",
    "datasets": """
import datasets
datasets.config.HF_DATASETS_CACHE = "cache"
""",
}
# what follows the start: each example with one class, and again if the job ends with an error
RUN = """
import json, os, sys
from pathlib import Path
import tests.integrations.test_engines as test
from minisbert.integrations import engines

for name in sys.argv[2:]:
    engines.EncodeBatch = getattr(test, name)
    os.mkdir("notes")
    try:
        exec(sys.argv[1], {})
    except Exception as error:
        Path(name + ".error").write_text(f"{type(error).__name__}: {error}")
        if name.startswith("Killed"):
            os.rename("notes", name + ".first")
            os.mkdir("notes")
            Path("notes/killed").touch()
            exec(sys.argv[1], {})
    os.rename("notes", name + ".notes")
    if Path("vectors").exists():
        os.rename("vectors", name)
"""


@cache
def run_example(engine: str, home: Path, model: Path) -> Path:
    """Run an engine's example with each class, in a process of its own; the folder of the results."""
    import pyarrow
    import pyarrow.parquet

    items = list(rows().items())
    (home / "sentences").mkdir()
    for part in range(12):
        some = items[8 * part : 8 * part + 8]
        table = pyarrow.table({"id": [key for key, _ in some], "text": [text for _, text in some]})
        pyarrow.parquet.write_table(table, home / "sentences" / f"{part:02}.parquet")
    (code,) = [code for code in EXAMPLES if re.search(rf"^(import|from) {engine}\b", code, re.MULTILINE)]
    names = ["Together", "KilledLate" if engine == "datasets" else "Killed", "Spoiled"]
    program = [sys.executable, "-c", START[engine] + RUN, on_tiny(code, model), *names]
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    own["PYSPARK_PYTHON"] = sys.executable  # its workers would take the first python3 of PATH
    own["PYSPARK_SUBMIT_ARGS"] = "--conf spark.ui.enabled=false pyspark-shell"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_NUM", "RAYON_"))}
    done = subprocess.run(program, capture_output=True, text=True, cwd=home, env=inherited | own, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return home


@pytest.fixture(scope="module")
def homes(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(params=list(NEEDS))
def results(request, homes, tiny) -> tuple[str, Path]:
    engine = request.param
    if not all(map(find_spec, NEEDS[engine])):
        pytest.skip(f"needs the {EXTRAS[engine]} extra: pip install '.[{EXTRAS[engine]}]'")
    if engine == "pyspark" and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs Java")
    (homes / engine).mkdir(exist_ok=True)
    return engine, run_example(engine, homes / engine, tiny)


def notes(folder: Path) -> dict[str, list[list[int]]]:
    """By process: the rows of each batch, loads, threads."""
    files = [path for path in folder.iterdir() if path.name != "killed"]
    return {path.name: [[int(x) for x in line.split()] for line in path.read_text().splitlines()] for path in files}


def check_vectors(folder: Path, tiny: Path) -> None:
    """Every id once, in the row of its text and of its vector."""
    from pyarrow import dataset

    if find_spec("ray"):
        import ray.data  # noqa: F401  Arrow needs it to read Ray's type of a column of arrays
    table = dataset.dataset(folder, format="parquet").to_table()
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    expected = rows()
    assert sorted(ids) == sorted(expected)
    assert texts == [expected[key] for key in ids]
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    reference = SentenceEncoder.load(tiny).encode(texts)
    assert np.abs(reference - np.roll(reference, 1, axis=0)).max(axis=1).min() > 1e-3  # a row off would be noticed
    np.testing.assert_allclose(vectors, reference, rtol=0, atol=2e-6)


@pytest.mark.engines
def test_two_workers_give_every_vector_to_its_row(results, tiny):
    check_vectors(results[1] / "Together", tiny)


@pytest.mark.engines
def test_each_worker_loads_once_and_has_its_threads(results):
    engine, home = results
    found = notes(home / "Together.notes")
    assert sum(rows for lines in found.values() for rows, _, _ in lines) >= 96
    assert len(found) == 2
    assert max(map(len, found.values())) > 1
    assert {loads for lines in found.values() for _, loads, _ in lines} == {1}
    cores = len(os.sched_getaffinity(0))
    assert {line[2] for lines in found.values() for line in lines} == {cores // 2 if engine == "pyspark" else 1}


@pytest.mark.engines
def test_a_worker_that_is_killed_once_loses_nothing(results, tiny):
    engine, home = results
    name = "KilledLate" if engine == "datasets" else "Killed"
    assert (home / f"{name}.notes" / "killed").exists()
    check_vectors(home / name, tiny)
    error = home / f"{name}.error"
    if engine != "datasets":
        assert not error.exists(), error.read_text()
        return
    assert error.read_text().startswith("RuntimeError: One of the subprocesses has abruptly died")
    again = notes(home / f"{name}.notes")
    assert sum(rows for lines in again.values() for rows, _, _ in lines) == 48  # only the shard that was not finished


@pytest.mark.engines
def test_a_value_that_is_not_a_text_ends_the_job_with_its_place(results):
    _, home = results
    assert re.search(r"column 'text', row \d+ of a batch of \d+", (home / "Spoiled.error").read_text())
    assert not list((home / "Spoiled").glob("*.parquet"))
