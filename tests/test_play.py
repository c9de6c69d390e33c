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
from numpy.typing import ArrayLike

from lessons.by_hand.geometry import uniformity
from minisbert.core import bert, losses
from minisbert.core.encoder import normalize
from minisbert.core.loop import fit
from minisbert.core.tokenizer import split_words, word_pieces
from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import distill
from tests.conftest import ROOT
from tests.ranking import check_ranking

pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="needs node to run JavaScript")
STATIC = ROOT / "docs" / "static"


def javascript(expression: str, data: Any) -> Any:
    """The value of an expression over ``data``, with the functions of the two scripts."""
    code = ""
    for name in ("numbers.js", "gallery.js"):
        code += f"Object.assign(globalThis, require({json.dumps(str(STATIC / name))}));"
    code += "const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    code += f"console.log(JSON.stringify({expression}));"
    command = ["node", "-e", code]
    done = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def agree(expression: str, data: Any, expected: ArrayLike, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(javascript(expression, data), expected, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def play_data() -> Iterator[ModuleType]:
    """``docs/tools/play_data.py``, as Sphinx imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "tools"))
        import play_data

        yield play_data


def test_every_character_is_a_letter_a_space_a_mark_or_nothing_as_in_the_package():
    """Of those that Unicode has had since 3.2: node and Python may know later ones or not."""
    characters = [chr(code) for code in range(0x30000)]
    category = unicodedata.ucd_3_2_0.category
    texts = [f"x{each}Y" for each in characters if category(each) not in ("Cn", "Cs")]
    assert len(texts) > 90_000
    different = []
    for text, words in zip(texts, javascript("data.map(splitWords)", texts), strict=True):
        if words != split_words(text):
            different.append(text)
    assert different == []


@pytest.mark.weights
def test_pieces_are_those_of_the_package(minilm, stsb):
    lines = (minilm / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = [pair.sentence1 for pair in load_scored_pairs("stsb", "test")]
    words = sorted(set().union(*map(split_words, texts)))
    words += ["encoders", "unaffordable", "x" * 100, "x" * 101, "日", "zürich", "##s", "🙂", "a🙂"]
    code = "((v) => data.words.map((word) => wordPieces(word, v)))(new Map(data.lines.map((piece, i) => [piece, i])))"
    found = javascript(code, {"lines": lines, "words": words})
    vocabulary = {*lines}
    assert found == [word_pieces(word, vocabulary) for word in words]
    assert max(map(len, found)) > 3
    assert ["[UNK]"] in found


def test_masked_shares_and_their_entropy_are_those_of_torch():
    rows = [[2.0, 1, 0, -1, 3], [1000, 999, -1000, 0, 1001], [-1000, -1001, 5, 5, 5]]
    scores = torch.tensor(rows).double()
    counts = torch.tensor([4, 5, 2])  # of real places, which come first
    real = torch.arange(5) < counts[:, None]
    for scale in (0, 0.35, 1, 5):
        data = {"scores": scores.tolist(), "real": real.tolist(), "scale": scale}
        expected = (scale * scores).masked_fill(~real, float("-inf")).softmax(-1)
        shares = "data.scores.map((row, i) => maskedSoftmax(row, data.real[i], data.scale))"
        agree(shares, data, expected)
        agree("data.map(entropy)", expected.tolist(), torch.special.entr(expected).sum(-1))
    # Without a real place there are no shares.
    assert javascript("maskedSoftmax(data, [false, false], 1)", [1, 2]) is None


@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_layer_norm_and_the_margin_are_the_packages(eps):
    rows = torch.tensor([[2.0, 4, 6, 8], [-1, 0.5, 3, 3], [5, 5, 5, 5]]).double()
    expected = bert.layer_norm(
        rows, torch.full((4,), 2.0).double(), torch.full((4,), 0.5).double(), eps
    )
    agree(f"data.map((row) => layerNorm(row, 2, 0.5, {eps}).result)", rows.tolist(), expected)
    far = torch.tensor(
        [[1.0, 1.5], [1.0, 2.5], [0.0, 0.0]]
    ).double()  # of the positive, of the negative
    expected = [
        losses.triplet_loss(0 * row[None, :1], row[None, :1], row[None, 1:], margin=eps)
        for row in far
    ]
    agree(f"data.map(([p, n]) => tripletLoss(p, n, {eps}))", far.tolist(), expected)


@pytest.mark.parametrize("temperature", [0.02, 0.05, 1.0])
def test_points_on_the_circle_move_as_the_package_and_torch_move_them(temperature, play_data):
    points, noise = (tensor.double() for tensor in play_data.circle())
    data = {"points": points.tolist(), "noise": noise.tolist(), "tau": temperature}
    table = torch.nn.Embedding.from_pretrained(points.clone(), freeze=False)  # as in lesson 10

    def loss(table: torch.nn.Embedding, rows: torch.Tensor) -> torch.Tensor:
        unit = normalize(table(rows))
        return losses.simcse_loss(unit, unit + noise[rows], temperature=temperature)

    rows = torch.arange(len(points))
    first = loss(table, rows)
    agree("circleLoss(data.points, data.noise, data.tau).loss", data, first.item())
    agree(
        "circleLoss(data.points, data.noise, data.tau).gradient",
        data,
        *torch.autograd.grad(first, table.weight),
    )

    optimizer = torch.optim.Adam(table.parameters(), lr=0.02)
    list(fit(table, loss, [rows] * 50, optimizer, schedule=lambda step: 1.0))
    after = table.weight.detach()
    walk = "((s) => { for (let i = 0; i < 50; i++) circleStep(s, data.noise, data.tau); return s.points; })"
    agree(f"{walk}(circleStart(data.points))", data, after, atol=1e-7)
    agree("uniformity(data)", after.tolist(), uniformity(after.numpy()))


@pytest.mark.weights
@pytest.mark.usefixtures("written_out")
def test_attention_is_the_models_up_to_a_byte(minilm, play_data):
    encoder = SentenceEncoder.load(minilm)
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
        for layer, head in ((0, 2), (3, 1), (5, 11)):
            expected = states[f"layers.{layer}.attention"][0, head]
            agree(
                f"attentionOf(data, {layer}, {head}, 12)", decoded, expected, atol=0.5 / 255 + 1e-6
            )


def test_the_live_search_of_the_gallery_ranks_as_the_package_does(tiny, play_data):
    """The table as stored, in int8: scores to the rounding of float32, every text in place."""
    import gallery_data

    texts = [
        "A man plays a guitar.",
        "He reads the book",
        "the cat",
        "A woman is eating onions!",
        "rain",
        "Dogs run",
    ]
    stored = gallery_data.data(
        SentenceEncoder.load(tiny), [f"f{row}" for row in range(len(texts))], texts
    )
    codes = np.frombuffer(base64.b64decode(stored["codes"]), np.int8).reshape(-1, stored["columns"])
    scales = np.frombuffer(base64.b64decode(stored["scales"]), np.float32)
    exact = distill(SentenceEncoder.load(tiny), gallery_data.COLUMNS)
    table = exact.embedding.weight.detach().numpy()
    # Rounding costs at most half a step.
    assert np.abs(codes * scales[:, None] - table).max() <= np.abs(table).max() / 254 * 1.001

    with torch.no_grad():
        exact.embedding.weight.copy_(torch.from_numpy(codes * scales[:, None]))
    queries = ["Who plays?", "a DOG", "reading books", "café, 日"]
    expected = exact.similarity(exact.encode(queries), exact.encode(texts))  # (4, 6)
    code = f"((table) => data.queries.map((text) => bestOf(table, text, {len(texts)})))(openTable(data.stored))"
    for found, scores in zip(
        javascript(code, {"stored": stored, "queries": queries}), expected, strict=True
    ):
        check_ranking(
            [(row, score) for score, row in found],
            dict(enumerate(scores.tolist())),
            len(texts),
            2e-6,
        )
