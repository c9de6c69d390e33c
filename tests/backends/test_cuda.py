"""The GPU's forward pass and its cache of graphs, on the CPU: without its kernel, and without
recording.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisbert import loading
from minisbert.backends import cuda
from minisbert.backends.cuda import (
    CudaEncoder,
    Graphs,
    RaggedEncoder,
    TextPlaces,
    choose_gpu_dtype,
    has_graph,
)
from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT

REFERENCE = ROOT / "tests" / "reference"
TINY = ROOT / "weights" / "tiny"
RELATED = [TINY, REFERENCE / "tiny-roberta", REFERENCE / "tiny-distiluse"]
TEXTS = [
    "the cat",
    "a dog is in the park",
    "the small horse and the piano " * 5,
    "",
    "music",
    "the cat",
]


def replayed(compute, pool):
    """In the place of recording: compute again at every replay, from the same input."""
    return compute


def computed_once(compute, pool):
    """As when recording, which warms up, then compute again at every replay."""
    compute()
    return compute


def on_cpu(folder: Path, dtype=torch.float32, capture=replayed, **options) -> CudaEncoder:
    return CudaEncoder(
        SentenceEncoder.load(folder, device="cpu", **options), folder, dtype, capture
    )


def test_texts_by_hand():
    """Texts of 2 and 3 tokens in a row of 6: the last token is nobody's."""
    texts = TextPlaces.of(torch.tensor([2, 3]), tokens=6, longest=4)
    assert texts.edges.tolist() == [0, 2, 5]
    assert texts.positions.tolist() == [0, 1, 0, 1, 2, 3]
    assert texts.places.tolist() == [[0, 1, -1, -1], [2, 3, 4, -1]]
    assert texts.padded.tolist()[:5] == [0, 1, 4, 5, 6]


@pytest.mark.parametrize("folder", RELATED, ids=lambda path: path.name)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    spare=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_the_ragged_forward_is_the_books(folder, lengths, spare, seed):
    """Texts of random lengths in one row, with tokens of nobody behind them, beside
    ``Bert.forward`` for each alone.
    """
    encoder = SentenceEncoder.load(folder, device="cpu").double()
    vocabulary = encoder.bert.config.vocab_size
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, vocabulary, (length,), generator=generator) for length in lengths]
    with torch.no_grad():
        expected = torch.cat([encoder(row[None]) for row in rows])
        ragged = RaggedEncoder(encoder, torch.float64)
        ids = torch.cat([*rows, torch.zeros(spare, dtype=torch.long)])
        found = ragged(ids, torch.tensor(lengths), max(lengths) + spare % 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pooling", ["cls", "max", "weightedmean+lasttoken", "pooler", "attention"])
def test_every_pooling(pooling):
    """The padded batch after the layers is what every pooling reads."""
    expected = SentenceEncoder.load(TINY, pooling=pooling, device="cpu").encode(TEXTS)
    found = on_cpu(TINY, pooling=pooling).encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_encode_as_everywhere(monkeypatch):
    """Options, prompts that are not pooled, one text, batches of their own size, and vectors in the
    texts' order.
    """
    expected, found = SentenceEncoder.load(TINY, device="cpu"), on_cpu(TINY)
    many = [f"{text} {number}" for number, text in enumerate(TEXTS * 15)]
    calls = [
        lambda encoder: encoder.encode(TEXTS),
        lambda encoder: encoder.encode(many),
        lambda encoder: encoder.encode(many, batch_size=1),
        lambda encoder: encoder.encode("music", normalize_embeddings=True, truncate_dim=7),
        lambda encoder: encoder.encode([], truncate_dim=7),
        lambda encoder: encoder.similarity(encoder.encode(TEXTS), encoder.encode(["a"])),
    ]
    for call in calls:
        np.testing.assert_allclose(call(found), call(expected), atol=2e-6)
    assert found.graphs.kept, "few texts are a graph"
    for encoder in (expected, found):
        encoder.prompts = {"query": "the "}
        encoder.settings = encoder.settings.__class__(
            **vars(encoder.settings) | {"include_prompt": False}
        )
    np.testing.assert_allclose(
        found.encode(TEXTS[:3], prompt_name="query"),
        expected.encode(TEXTS[:3], prompt_name="query"),
        atol=2e-6,
    )
    with pytest.raises(InputError, match="choose it at load"):
        found.encode(TEXTS, dtype="bfloat16")
    with pytest.raises(InputError, match="hidden states"):
        found.encode(TEXTS, output_value="token_embeddings")


def test_one_graph_for_each_shape():
    """Lengths are rounded up to 8; the graph that was not used for longest goes."""
    made = []

    def compute(ids, lengths, longest, unpooled):
        made.append((len(lengths), longest))
        return torch.stack([row.sum() for row in ids[: lengths.sum()].split(lengths.tolist())])[
            :, None
        ]

    graphs = Graphs(
        compute,
        torch.device("cpu"),
        limit=30,
        capture=computed_once,
        most=2,
    )
    for lengths, shape in [
        ([3, 2], (2, 8)),
        ([8], (1, 8)),
        ([7, 8], (2, 8)),
        ([9], (1, 16)),
        ([29], (1, 30)),
    ]:
        ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
        ends = list(itertools.accumulate(lengths, initial=0))
        expected = [[ids[start:end].sum()] for start, end in itertools.pairwise(ends)]
        assert graphs(ids, np.array(lengths, dtype=np.int32)).tolist() == expected
        assert made[-1] == shape
    assert [key[:2] for key in graphs.kept] == [(1, 16), (1, 30)]


def test_without_a_graph_it_is_told_once(capsys):
    """A driver that cannot record is no reason to fail, nor to repeat it at each call."""

    def refuse(compute, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    encoder = on_cpu(TINY, capture=refuse)
    expected = SentenceEncoder.load(TINY, device="cpu").encode(TEXTS)
    for _ in range(2):
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-6)
    assert capsys.readouterr().err.count("no CUDA graph") == 1


def test_lack_of_memory_is_one_line_with_a_size_that_fits(monkeypatch):
    """CUDA's own message does not say what would fit."""
    encoder = on_cpu(TINY)

    def compute(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(encoder.compute, "forward", compute)
    monkeypatch.setattr("minisbert.system.devices.fitting_tokens", lambda device, width: 700)
    with pytest.raises(
        InputError, match="too little free memory for batch_size=64: batch_size=10 fits"
    ):
        encoder.encode(TEXTS, batch_size=64)


def test_which_models_and_dtypes():
    """Only the book's layers have a ragged attention."""
    assert all(has_graph(read_folder(folder)) for folder in RELATED)
    assert not has_graph(read_folder(REFERENCE / "architectures" / "tiny-mpnet"))
    with pytest.raises(InputError, match="choose bfloat16, float16, float32"):
        choose_gpu_dtype("int8", torch.device("cpu"))
    assert choose_gpu_dtype("float32", torch.device("cpu")) == torch.float32


def test_an_encoder_in_a_subfolder_has_a_graph(folder_with_encoder_inside):
    """The sizes are in the subfolder's config.json, and the model's own folder has none."""
    assert has_graph(read_folder(folder_with_encoder_inside))


def test_a_gpu_without_bfloat16_gets_float16_and_is_told(monkeypatch, capsys):
    """Older GPUs have one half precision and not the other."""
    monkeypatch.setattr(
        cuda, "bfloat16_hardware", lambda device: (False, "the GPU has compute capability 7.5")
    )
    assert choose_gpu_dtype(None, torch.device("cuda")) == torch.float16
    assert "float16: the GPU has compute capability 7.5" in capsys.readouterr().err
    with pytest.raises(InputError, match="choose float16 or float32"):
        choose_gpu_dtype("bfloat16", torch.device("cuda"))


@pytest.mark.parametrize("compiled", [True, "auto"])
def test_no_package_is_loaded_where_there_is_a_gpu(compiled, tiny, monkeypatch):
    """A package would compute on the CPU."""
    monkeypatch.setattr(loading, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(loading, "choose_gpu_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr(loading, "CudaEncoder", lambda *_: "on the GPU")
    monkeypatch.setattr(loading.SentenceEncoder, "load_folder", lambda *_, **__: None)
    assert loading.load(tiny, compiled=compiled) == "on the GPU"


def test_a_dtype_is_not_dropped_where_nothing_is_compiled(tiny, monkeypatch):
    """The encoder would compute in another precision than the one that was asked for."""
    monkeypatch.setattr(loading, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(loading, "has_graph", lambda folder: False)
    with pytest.raises(InputError, match="bfloat16"):
        loading.load(tiny, compiled=True, dtype="bfloat16")
