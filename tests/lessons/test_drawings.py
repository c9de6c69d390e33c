"""The drawings in git are what the code draws, each is described and used, and their numbers are the package's."""

import re
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from lessons.drawings import PARTS, all_drawings
from lessons.drawings.course import FAR, PLACES
from lessons.drawings.pen import WIDEST
from lessons.drawings.vectors import COSINES, SENTENCES
from lessons.parts import NEEDS
from minisbert.core import bert, losses, pooling
from minisbert.core.tokenizer import word_pieces
from minisbert.models.batching import packed_batches, same_text, tokenize
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.search import quantized
from tests.conftest import ROOT

FOLDER = ROOT / "lessons" / "drawings"
LESSONS = sorted(FOLDER.parent.glob("[0-9][0-9]_*.py"))
DRAWN = all_drawings()
SVG = "{http://www.w3.org/2000/svg}"


def title(name: str) -> str:
    return ElementTree.fromstring(DRAWN[name]).find(f"{SVG}title").text


def texts(name: str, look: str) -> list[str]:
    """What a drawing says in one kind of letters; ``small`` is written in the cells of grids."""
    found = ElementTree.fromstring(DRAWN[name]).iter(f"{SVG}text")
    return [node.text.replace("−", "-") for node in found if node.get("class") == look]


def test_those_in_git_are_what_the_code_draws():
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert committed.keys() == DRAWN.keys()
    assert [name for name in DRAWN if committed[name] != DRAWN[name]] == [], "python -m lessons.drawings"


def test_each_is_described_fits_a_phone_and_is_used_where_it_teaches_with_its_title_as_description():
    pages = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER.parent / "README.md", *LESSONS)}
    pages["the front page"] = (ROOT / "README.md").read_text(encoding="utf-8").replace("(lessons/", "(")
    for name, drawn in DRAWN.items():
        root = ElementTree.fromstring(drawn)
        assert len(title(name)) > 15, name
        assert len(root.find(f"{SVG}desc").text) > 80, name
        assert int(root.get("width")) <= WIDEST, name
        assert not re.search(r"url\(|href|@import|<script", drawn), f"{name} loads something"
        (page,) = [page for page, text in pages.items() if f"![{title(name)}](drawings/{name})" in text]
        assert not name.startswith("map_") or page.startswith(name[4:6])
    assert {name for text in pages.values() for name in re.findall(r"\]\(drawings/(.*?)\)", text)} <= DRAWN.keys()
    maps = [DRAWN["map.svg"], *(DRAWN[f"map_{lesson}.svg"] for lesson in PARTS)]  # each lights one part
    assert [re.sub("<(title|desc).*", "", drawn).count('"lit"') for drawn in maps] == [0] + [1] * len(PARTS)


def test_the_course_has_a_box_for_each_lesson_and_an_arrow_for_each_need():
    assert texts("course.svg", "bold") == [f"{lesson:02}" for lesson in PLACES]
    assert sorted(PLACES) == sorted(NEEDS)
    assert {lesson: NEEDS[lesson] for lesson in FAR} == FAR
    arrows = sum(len(before) for lesson, before in NEEDS.items() if lesson not in FAR)
    assert DRAWN["course.svg"].count('<path class="head"') == arrows


def test_the_shares_of_the_mask_are_those_of_attention(monkeypatch):
    monkeypatch.setattr(bert, "FUSED", False)
    scores = torch.tensor([[0, 0, 0], [0, np.log(3), 0], [np.log(3), 0, 0]])
    query, key = scores * 3**0.5, torch.eye(3, dtype=torch.double)
    mask = torch.tensor([True, True, False])[None, None, None]
    _, probabilities = bert.attention(query[None, None], key[None, None], key[None, None], mask)
    shown = [float(Fraction(value)) for value in texts("mask.svg", "small")[-9:]]
    assert shown == pytest.approx(probabilities.flatten().tolist(), abs=1e-12)


def test_the_vectors_of_pooling_are_those_of_the_package():
    numbers = torch.tensor([float(value) for value in texts("pooling.svg", "small")])
    hidden, mask = numbers[:8].view(1, 4, 2), torch.tensor([[True, True, True, False]])
    pooled = [pool(hidden, mask)[0] for pool in (pooling.mean_pool, pooling.cls_pool, pooling.max_pool)]
    assert torch.stack(pooled).flatten().tolist() == numbers[8:].tolist()


def test_the_bits_are_those_of_the_package():
    cells = [value for value in texts("packed_bits.svg", "small") if "byte" not in value]
    x, x_bits, y, y_bits, differ = np.array(cells, dtype=int).reshape(5, 8)
    bits = quantized.to_bits(np.stack([x, y]).astype(float))
    assert bits.flatten().tolist() == [int("".join(map(str, row)), 2) for row in (x_bits, y_bits)] == [129, 127]
    assert {"1 byte: 129", "1 byte: 127"} <= {*texts("packed_bits.svg", "small")}
    assert quantized.hamming(bits[:1], bits[1:]).item() == differ.sum() == 7
    assert texts("packed_bits.svg", "bold")[-1] == "7 bits differ"


def test_the_triplet_has_its_loss_and_its_gradient():
    a, p, n = (torch.tensor([point], requires_grad=True) for point in ((0.0, 0.0), (3.0, 4.0), (0.0, 4.5)))
    loss = losses.triplet_loss(a, p, n)
    loss.backward()
    assert f"loss {loss.item():g}" in texts("triplet.svg", "bold")
    arrows = re.findall(r'<path class="force" d="M(\S+) (\S+) L(\S+) (\S+)"', DRAWN["triplet.svg"])
    steps = [(float(x) - float(at_x), float(at_y) - float(y)) for at_x, at_y, x, y in arrows]  # y grows downwards
    for vector, gradient in zip(steps, (p.grad[0], n.grad[0], a.grad[0]), strict=True):
        along = -np.array(vector) / np.linalg.norm(vector)
        assert along == pytest.approx(gradient.numpy() / gradient.norm().item(), abs=0.01)


@pytest.mark.weights
def test_the_pieces_and_the_packed_row_are_the_tokenizers(minilm: Path):
    vocabulary = (minilm / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tried = [text for text in texts("wordpiece.svg", "mono") if text != "en"]
    taken = word_pieces("encoders", vocabulary)
    assert [piece for piece in tried if piece in vocabulary] == [*taken[1:], *taken[1:]]
    (row,) = packed_batches(tokenize(Tokenizer.load(minilm, limit=256), ["A cat.", "Snow."])[0], batch_tokens=64)
    assert [int(value) for value in texts("packed_rows.svg", "small")[3:]] == row.positions[0].tolist()
    looks = re.findall(r'<rect class="(\w+)" x="\d+" y="\d+" width="20" height="20"', DRAWN["packed_rows.svg"])
    assert [look != "none" for look in looks] == same_text(row.text_index).flatten().tolist()


@pytest.mark.weights
def test_the_numbers_of_meaning_are_those_of_the_model(minilm):
    vectors = SentenceEncoder.load(minilm).encode([*SENTENCES])
    for vector, numbers in zip(vectors, SENTENCES.values(), strict=True):
        assert vector[: len(numbers)] == pytest.approx([float(text.replace("−", "-")) for text in numbers], abs=0.00501)
    cosines = [vectors[i] @ vectors[i + 1] for i in range(2)]
    assert cosines == pytest.approx([float(text) for text in COSINES], abs=0.00501)
