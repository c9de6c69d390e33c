"""``minisbert export-onnx``: the graph, the folder around it, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minisbert.backends import graphs
from minisbert.commands.convert import to_onnx as main
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT

REFERENCE = ROOT / "tests" / "reference"
MODELS = [ROOT / "weights" / "tiny", REFERENCE / "tiny-roberta", REFERENCE / "tiny-distiluse"]
MODELS += [
    REFERENCE / "architectures" / f"tiny-{name}"
    for name in ("mpnet", "modernbert", "qwen3", "gemma")
]
# Of several lengths, so that there are pads.
LONG = tuple(" ".join(["cat", "dog", "moon"][: 1 + i % 3] * i) for i in range(1, 8))


@pytest.fixture
def runtime() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the onnx extra: pip install '.[onnx]'")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=[path.name for path in MODELS])
def test_a_graph_gives_the_encoders_vectors_for_any_sizes(runtime, model, tmp_path):
    """The sizes of the example must not be compiled in."""
    encoder = SentenceEncoder.load(model)
    graphs.export_onnx(encoder, tmp_path / "model.onnx")
    for texts in (LONG, LONG[:1], LONG[2:4]):
        found = graphs.onnx_vectors(encoder, tmp_path / "model.onnx", texts)
        np.testing.assert_allclose(found, encoder.encode(list(texts)), atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "weightedmean"])
def test_pads_on_the_left_as_other_programs_may_put_them(runtime, pooling, tmp_path):
    """For a family whose positions are relative; those of BERT count from the left."""
    from onnxruntime import InferenceSession

    encoder = SentenceEncoder.load(REFERENCE / "architectures" / "tiny-modernbert", pooling=pooling)
    graphs.export_onnx(encoder, tmp_path / "model.onnx")
    rows = encoder.tokenizer.encode(list(LONG)).ids
    ids = np.full((len(rows), max(map(len, rows))), encoder.tokenizer.pad_id)
    for row, tokens in zip(ids, rows, strict=True):
        row[-len(tokens) :] = tokens
    feed = {
        "input_ids": ids,
        "attention_mask": np.zeros_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    for row, tokens in zip(feed["attention_mask"], rows, strict=True):
        row[-len(tokens) :] = 1
    session = InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(
        ["sentence_embedding"], {each.name: feed[each.name] for each in session.get_inputs()}
    )[0]
    np.testing.assert_allclose(found, encoder.encode(list(LONG)), atol=2e-6, rtol=0)


@pytest.mark.slow
def test_the_command_writes_a_folder_that_opens_and_can_be_replaced(
    runtime, tiny, tmp_path, capsys
):
    """Other programs find the graph where sentence-transformers writes it."""
    out, model = tmp_path / "out", shutil.copytree(tiny, tmp_path / "model")
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    for _ in range(2):
        main([str(model), "--out", str(out)])
        shown = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in shown] == ["onnx/model.onnx"]
    # Other programs read this name.
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 9
    texts = list(LONG)
    np.testing.assert_array_equal(
        SentenceEncoder.load(out).encode(texts), SentenceEncoder.load(model).encode(texts)
    )


def test_a_missing_package_is_one_line_with_the_extra(tiny, tmp_path, monkeypatch):
    """Not a traceback of an import."""
    monkeypatch.setattr("minisbert.commands.convert.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs onnx: pip install -e '\.\[onnx\]'"):
        main([str(tiny), "--out", str(tmp_path / "out")])


def test_a_prompt_that_is_not_pooled_and_a_damaged_file(tiny, tmp_path):
    """Both are refused in one line."""
    encoder = SentenceEncoder.load(tiny)
    encoder.settings = replace(encoder.settings, include_prompt=False)
    with pytest.raises(InputError, match="include_prompt false cannot be exported"):
        graphs.export_onnx(encoder, Path("never.onnx"))
    pytest.importorskip("onnxruntime", reason="needs the onnx extra: pip install '.[onnx]'")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="ONNX Runtime cannot load it"):
        graphs.onnx_vectors(encoder, tmp_path / "model.onnx")
