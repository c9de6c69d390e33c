"""The formulas of the site's page to play with, in node: they give the package's numbers."""

import base64
import json
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from minisbert.core import bert, losses
from minisbert.core.encoder import normalize
from minisbert.core.loop import fit
from minisbert.core.tokenizer import split_words, word_pieces
from minisbert.data.datasets import load_scored_pairs
from minisbert.evaluation import metrics
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import distill
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="needs node to run JavaScript")
STATIC = ROOT / "docs" / "static"


def javascript(expression: str, data: Any) -> Any:
    """The value of an expression over ``data``, with the functions of ``numbers.js`` and ``gallery.js`` at hand."""
    requires = [f"require({json.dumps(str(STATIC / name))})" for name in ("numbers.js", "gallery.js")]
    code = f"Object.assign(globalThis, {', '.join(requires)});"
    code += "const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    code += f"console.log(JSON.stringify({expression}));"
    done = subprocess.run(["node", "-e", code], input=json.dumps(data), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def play_data() -> Iterator[ModuleType]:
    """``docs/tools/play_data.py``, as Sphinx imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "tools"))
        import play_data

        yield play_data


@pytest.fixture(scope="module")
def encoder(minilm) -> SentenceEncoder:
    return SentenceEncoder.load(minilm)


def test_every_character_is_a_letter_a_space_a_mark_or_nothing_as_in_the_package():
    """Of those that Unicode has had since 3.2: node and Python may know later ones or not."""
    old = [chr(code) for code in range(0x30000) if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")]
    texts = [f"x{character}Y" for character in old]
    found = javascript("data.map(splitWords)", texts)
    different = [text for text, words in zip(texts, found, strict=True) if words != split_words(text)]
    assert len(texts) > 90_000
    assert different == []


@pytest.mark.weights
def test_pieces_are_those_of_the_package(minilm, stsb):
    lines = (minilm / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = [pair.sentence1 for pair in load_scored_pairs("stsb", "test")]
    words = sorted({word for text in texts for word in split_words(text)})
    words += ["encoders", "unaffordable", "x" * 100, "x" * 101, "日", "zürich", "##s", "🙂", "a🙂"]
    code = "((v) => data.words.map((word) => wordPieces(word, v)))(new Map(data.lines.map((piece, i) => [piece, i])))"
    found = javascript(code, {"lines": lines, "words": words})
    vocabulary = {*lines}
    assert found == [word_pieces(word, vocabulary) for word in words]
    assert max(map(len, found)) > 3
    assert ["[UNK]"] in found


def test_masked_shares_and_their_entropy_are_those_of_torch():
    scores = [[2.0, 1, 0, -1, 3], [1000, 999, -1000, 0, 1001], [-1000, -1001, 5, 5, 5]]
    real = [[True, True, True, True, False], [True, True, True, True, True], [True, True, False, False, False]]
    scales = [0, 0.35, 1, 5]
    code = "data.scales.map((scale) => data.scores.map((row, i) => maskedSoftmax(row, data.real[i], scale)))"
    shares = javascript(code, {"scores": scores, "real": real, "scales": scales})
    scaled = torch.tensor(scores, dtype=torch.double) * torch.tensor(scales, dtype=torch.double)[:, None, None]
    expected = scaled.masked_fill(~torch.tensor(real), float("-inf")).softmax(-1)
    assert torch.allclose(torch.tensor(shares, dtype=torch.double), expected, rtol=0, atol=1e-12)
    assert javascript("data.flat().map(entropy)", shares) == pytest.approx(
        torch.special.entr(expected).sum(-1).flatten().tolist()
    )
    assert javascript("maskedSoftmax(data, [false, false], 1)", [1, 2]) is None  # no real place, no shares


@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_layer_norm_and_the_margin_are_the_packages(eps):
    rows = [[2.0, 4, 6, 8], [-1, 0.5, 3, 3], [5, 5, 5, 5]]
    found = javascript("data.rows.map((row) => layerNorm(row, 2, 0.5, data.eps).result)", {"rows": rows, "eps": eps})
    x, gamma, beta = (torch.tensor(y, dtype=torch.double) for y in (rows, [2.0] * 4, [0.5] * 4))
    assert torch.allclose(torch.tensor(found, dtype=torch.double), bert.layer_norm(x, gamma, beta, eps), atol=1e-12)
    far = [(1.0, 1.5), (1.0, 2.5), (0.0, 0.0)]
    anchor = torch.zeros(1, 1, dtype=torch.double)
    sides = [(torch.full_like(anchor, positive), torch.full_like(anchor, -negative)) for positive, negative in far]
    expected = [losses.triplet_loss(anchor, p, n, margin=eps).item() for p, n in sides]
    found = javascript(f"data.map(([p, n]) => tripletLoss(p, n, {eps}))", far)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.02, 0.05, 1.0])
def test_points_on_the_circle_move_as_the_package_and_torch_move_them(temperature, play_data):
    points, noise = (tensor.double() for tensor in play_data.circle())
    data = {"points": points.tolist(), "noise": noise.tolist(), "tau": temperature}
    table = torch.nn.Embedding.from_pretrained(points.clone(), freeze=False)  # as in lesson 10

    def loss(table: torch.nn.Embedding, rows: torch.Tensor) -> torch.Tensor:
        unit = normalize(table(rows))
        return losses.simcse_loss(unit, unit + noise[rows], temperature=temperature)

    rows = torch.arange(len(points))
    (gradient,) = torch.autograd.grad(first := loss(table, rows), table.weight)
    found = javascript("circleLoss(data.points, data.noise, data.tau)", data)
    assert found["loss"] == pytest.approx(first.item(), abs=1e-12)
    assert torch.allclose(torch.tensor(found["gradient"], dtype=torch.double), gradient, rtol=0, atol=1e-12)

    optimizer = torch.optim.Adam(table.parameters(), lr=0.02)
    list(fit(table, loss, [rows] * 50, optimizer, schedule=lambda step: 1.0))
    after = table.weight.detach()
    walk = "((s) => { for (let i = 0; i < 50; i++) circleStep(s, data.noise, data.tau); return s.points; })"
    moved = javascript(f"{walk}(circleStart(data.points))", data)
    assert torch.allclose(torch.tensor(moved, dtype=torch.double), after, rtol=0, atol=1e-7)
    assert javascript("uniformity(data)", moved) == pytest.approx(metrics.uniformity(after.numpy()))


@pytest.mark.weights
@pytest.mark.usefixtures("written_out")
def test_attention_is_the_models_up_to_a_byte(encoder, play_data):
    heads = [[0, 2], [3, 1], [5, 11]]
    texts = play_data.SENTENCES.read_text(encoding="utf-8").splitlines()
    assert len({*texts}) == len(texts) == 30
    for text in texts[::10]:
        ids = encoder.tokenizer.encode([text]).ids
        states: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            encoder.bert(torch.tensor(ids), trace=states)
        tokens, shares = play_data.attention_of(encoder, text)
        assert tokens == encoder.tokenizer.tokens(ids[0])
        decoded = {"tokens": tokens, "shares": (shares * 255).round().byte().flatten().tolist()}
        shown = javascript(f"{heads}.map(([layer, head]) => attentionOf(data, layer, head, 12))", decoded)
        expected = torch.stack([states[f"layers.{layer}.attention"][0, head] for layer, head in heads])
        assert (torch.tensor(shown) - expected).abs().max() <= 0.5 / 255 + 1e-6


def test_the_live_search_of_the_gallery_ranks_as_the_package_does(tiny, play_data):
    """With the table as it is stored, in int8: scores to the rounding of float32, and every text in its place."""
    import gallery_data

    texts = [
        "A man plays a guitar.",
        "He reads the book",
        "the cat",
        "A woman is eating onions!",
        "rain",
        "Two dogs run",
    ]
    stored = gallery_data.data(SentenceEncoder.load(tiny), [f"f{row}" for row in range(len(texts))], texts)
    codes = np.frombuffer(base64.b64decode(stored["codes"]), np.int8).reshape(-1, stored["columns"])
    scales = np.frombuffer(base64.b64decode(stored["scales"]), np.float32)
    exact = distill(SentenceEncoder.load(tiny), gallery_data.COLUMNS)
    table = exact.embedding.weight.detach().numpy()
    assert np.abs(codes * scales[:, None] - table).max() <= np.abs(table).max() / 254 * 1.001  # half a step

    with torch.no_grad():
        exact.embedding.weight.copy_(torch.from_numpy(codes * scales[:, None]))
    queries = ["Who plays?", "a DOG", "reading books", "café, 日"]
    expected = exact.similarity(exact.encode(queries), exact.encode(texts))  # (4, 6)
    code = f"((table) => data.queries.map((text) => bestOf(table, text, {len(texts)})))(openTable(data.stored))"
    for found, scores in zip(javascript(code, {"stored": stored, "queries": queries}), expected, strict=True):
        assert sorted(row for _, row in found) == list(range(len(texts)))
        assert [score for score, _ in found] == pytest.approx([scores[row] for _, row in found], abs=2e-6)
        assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
