"""Encoding in the workers of an engine, and the examples of docs/engines.md."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.integrations.engines import EncodeBatch, worker_encoder, worker_threads
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.toys import NOUNS

TEXTS = ["the cat sits on the mat", "a dog", "", "a woman eats an apple", "a dog"]
EXAMPLES = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "engines.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture(autouse=True)
def process_alone(monkeypatch):
    """No encoder is loaded yet, and the threads that are set go back."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    worker_encoder.cache_clear()


@pytest.mark.parametrize("kind", [list, np.array])
def test_the_vectors_of_encode_and_the_other_columns(tiny, kind):
    """Engines give lists or arrays; what comes back is a row for each row."""
    batch = {"id": np.array([5, 3, 9, 1, 7]), "text": kind(TEXTS)}
    encoded = EncodeBatch(tiny)(batch)
    assert list(encoded) == ["id", "text", "vector"]
    assert list(batch) == ["id", "text"]  # the caller's own is not changed
    assert encoded["id"] is batch["id"]
    assert encoded["vector"].dtype == np.float32
    np.testing.assert_array_equal(encoded["vector"], SentenceEncoder.load(tiny).encode(TEXTS))


def test_every_option_reaches_the_encoder(tiny):
    loading = {"pooling": "max", "max_seq_length": 5}
    options = {"normalize_embeddings": True, "truncate_dim": 7, "prompt": "the "}
    encode = EncodeBatch(tiny, text="sentence", vector="v", **loading, **options)
    expected = SentenceEncoder.load(tiny, **loading).encode(TEXTS, **options)
    np.testing.assert_array_equal(encode({"sentence": TEXTS})["v"], expected)


def test_an_empty_batch_has_vectors_of_the_right_width(tiny):
    """Spark asks with one for the type of the column."""
    assert EncodeBatch(tiny, truncate_dim=7)({"text": np.array([])})["vector"].shape == (0, 7)


@pytest.mark.parametrize(
    ("option", "value"), [("truncate_dim", 25), ("dtype", "half"), ("prompt_name", "song")]
)
def test_a_wrong_option_is_refused_at_the_first_batch(tiny, option, value):
    encode = EncodeBatch(tiny, **{option: value})
    with pytest.raises(InputError, match=str(value)):
        encode({"text": TEXTS})


@pytest.mark.parametrize("value", [None, float("nan"), b"a", "b\ud800"])
def test_a_value_that_is_not_a_text_is_refused_with_its_row(tiny, value):
    """A batch's row has no number that the user knows: the other columns name it."""
    with pytest.raises(InputError, match=r"'title', row 2 .*'id': 90"):
        EncodeBatch(tiny, text="title")({"id": [70, 80, 90], "title": ["a", "b", value]})


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, {"id": [1], "title": ["a"]}, "text="),
        ({}, {"text": ["a"], "vector": [0]}, "vector="),
        ({}, {"text": "a"}, "batched"),
        ({"workers": 0}, {}, "workers"),
    ],
)
def test_columns_and_numbers_of_workers_that_cannot_be(tiny, options, batch, message):
    with pytest.raises(InputError, match=message):
        EncodeBatch(tiny, **options)(batch)


def test_a_pickled_copy_carries_settings_and_does_not_load_again(tiny):
    encode = EncodeBatch(tiny, truncate_dim=5)
    first = encode({"text": TEXTS})["vector"]
    for _ in range(3):  # Spark sends a copy with each task
        pickled = pickle.dumps(encode)
        assert len(pickled) < 4000
        np.testing.assert_array_equal(pickle.loads(pickled)({"text": TEXTS})["vector"], first)
    assert worker_encoder.cache_info().misses == 1


def test_other_settings_are_another_encoder(tiny):
    mean = EncodeBatch(tiny)({"text": TEXTS})["vector"]
    largest = EncodeBatch(tiny, pooling="max")({"text": TEXTS})["vector"]
    assert not np.array_equal(mean, largest)


def test_a_model_trained_anew_into_the_same_folder_is_another_model(tiny, tmp_path, monkeypatch):
    """datasets takes a cached result for a function with the same bytes."""
    shutil.copytree(tiny, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    before = EncodeBatch("model")
    old = before({"text": TEXTS})["vector"]
    encoder = SentenceEncoder.load("model")
    with torch.no_grad():
        encoder.bert.embeddings.word.weight.mul_(1.5)
    shutil.rmtree("model")
    encoder.save("model")
    after = EncodeBatch("model")
    assert pickle.dumps(after) != pickle.dumps(before)
    monkeypatch.chdir("/")  # a worker may start elsewhere
    new = pickle.loads(pickle.dumps(after))({"text": TEXTS})["vector"]
    np.testing.assert_array_equal(new, SentenceEncoder.load(tmp_path / "model").encode(TEXTS))
    assert not np.array_equal(new, old)


@pytest.fixture
def twelve_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)


@pytest.mark.parametrize(("workers", "threads"), [(1, 12), (2, 6), (5, 2), (12, 1), (40, 1)])
def test_workers_share_the_cores(twelve_cores, workers, threads):
    """More threads than cores are slower than one."""
    assert worker_threads(workers) == threads


def test_torch_chooses_the_threads_of_workers_that_nobody_counted(twelve_cores):
    torch.set_num_threads(3)
    assert worker_threads(None) == 3


IMPORT = """
import sys
import minisbert.integrations.engines
print({"ray", "pyspark", "datasets", "pandas", "pyarrow"} & {*sys.modules})
"""
FORK = """
import os, signal, sys, torch
from minisbert.integrations.engines import EncodeBatch
torch.set_num_threads(2)
long_texts = ["the cat sits on the mat " * 4] * 500
short_texts = ["dog " * n for n in range(30)]
batch = {"text": long_texts + short_texts}
encode = EncodeBatch(sys.argv[1])
torch.rand(3000, 300) @ torch.rand(300, 3000)
encode(batch)  # the parent's threads have started
if os.fork():
    _, status = os.wait()
    raise SystemExit(os.waitstatus_to_exitcode(status))
signal.alarm(60)
encode(batch)
torch.rand(3000, 300) @ torch.rand(300, 3000)
os._exit(0 if torch.get_num_threads() == 1 else 3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_with_one_thread(tiny):
    """With two it would wait for threads that only its parent has: libgomp's survive no fork."""
    command = [sys.executable, "-c", FORK, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_import_needs_no_engine():
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr


# -------------------------------------------------------------------------------- the real engines

NEEDS = {
    "ray": ["ray", "pandas", "pyarrow"],
    "pyspark": ["pyspark", "pandas", "pyarrow"],
    "datasets": ["datasets"],
}
START = {
    "ray": "import ray; ray.init(num_cpus=3, object_store_memory=80 * 2**20, "
    "include_dashboard=False)\n",
    "pyspark": "",
    "datasets": "import datasets; datasets.config.HF_DATASETS_CACHE = 'cache'\n",
}


@pytest.mark.engines
@pytest.mark.parametrize("engine", NEEDS)
def test_the_example_of_the_page_gives_every_vector_to_its_row(engine, tiny, tmp_path):
    """As it stands but for the model, and batches so small that both workers get some."""
    if not all(find_spec(package) for package in NEEDS[engine]):
        pytest.skip(f"needs {', '.join(NEEDS[engine])}")
    if engine == "pyspark" and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs Java")
    import pyarrow
    from pyarrow import dataset, parquet

    # Twelve files of eight rows, whose ids are in no order.
    texts = {37 * i % 96 + 1000: f"a {NOUNS[i % len(NOUNS)]} " * (1 + i // 20) for i in range(96)}
    ids = list(texts)
    (tmp_path / "sentences").mkdir()
    for part in range(12):
        part_ids = ids[8 * part : 8 * part + 8]
        table = pyarrow.table({"id": part_ids, "text": [texts[i] for i in part_ids]})
        parquet.write_table(table, tmp_path / "sentences" / f"{part:02}.parquet")

    imports = re.compile(rf"^(import|from) {engine}\b", re.MULTILINE)
    (code,) = [example for example in EXAMPLES if imports.search(example)]
    code = code.replace('"all-MiniLM-L6-v2"', repr(str(tiny)))
    code = code.replace("batch_size=1000", "batch_size=8")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYSPARK_PYTHON": sys.executable,  # its workers would take the first python3 of PATH
    }
    program = [sys.executable, "-c", START[engine] + code]
    done = subprocess.run(
        program, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]

    if engine == "ray":
        import ray.data  # noqa: F401  Arrow needs it to read Ray's type of a column of arrays
    table = dataset.dataset(tmp_path / "vectors", format="parquet").to_table()
    rows = zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
    assert dict(rows) == texts
    reference = SentenceEncoder.load(tiny).encode(table["text"].to_pylist())
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(vectors, reference, rtol=0, atol=2e-6)


def test_the_first_example_of_the_page(tiny):
    variables: dict = {}
    exec(EXAMPLES[0].replace('"all-MiniLM-L6-v2"', repr(str(tiny))), variables)
    assert variables["batch"]["vector"].shape == (2, 24)
