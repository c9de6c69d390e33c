"""docs/serving.md: its examples run, and give the vectors of the eager encoder."""

import re
import shutil

from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    """The page's Python that needs a package; test_pages.py runs what needs none."""
    return re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_example(tiny_package, tiny, tmp_path, monkeypatch):
    shutil.copy(tiny_package, tmp_path / "all-MiniLM-L6-v2.pt2")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks()[0].replace('load("all-MiniLM-L6-v2"', f'load("{tiny.as_posix()}"'), names)
    expected = SentenceEncoder.load(tiny).encode(["A cat sits.", "A kitten is sitting."])
    assert abs(names["vectors"] - expected).max() <= MINILM_VECTOR


def test_the_example_of_a_reranker(tiny, tmp_path):
    """With the eager model: ``backends/test_runtime.py`` compares a compiled one with it."""
    encoder = SentenceEncoder.load(tiny)
    PairModel(encoder, JointHead(encoder.width)).save(tmp_path / "model")
    code = blocks()[-1].replace("path/to/cross-encoder", (tmp_path / "model").as_posix())
    names: dict = {}
    exec(code.replace("compiled=True", "compiled=False"), names)
    assert names["scores"].shape == (2,)
    assert names["best"][0] == names["passages"][names["scores"].argmax()]
