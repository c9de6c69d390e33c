"""The gallery: tiles of code, which runs and prints what the page shows."""

import re

import pytest

from docs.tools import make_gallery
from minisbert import CrossEncoder, SentenceEncoder
from minisbert.models.cross_encoder import ClassifierHead

TILES = make_gallery.tiles()
PYTHON = [tile for tile in TILES if tile.kind == "python"]
WITH_OUTPUT = [tile for tile in PYTHON if tile.shown]
NUMBER = re.compile(r"-?\d+\.\d+|\d+")


def name_of(tile: make_gallery.Tile) -> str:
    return tile.name


@pytest.mark.parametrize("tile", PYTHON, ids=name_of)
def test_the_code_of_a_tile_runs(tile, tiny, tmp_path):
    """With the tiny model for every model that it names."""
    folder = tiny
    if "CrossEncoder" in tile.code:
        folder = tmp_path / "reranker"
        head = ClassifierHead(24, dropout=0.0)
        CrossEncoder(SentenceEncoder.load(tiny), head, "logit").save(folder)
    make_gallery.run(re.sub(r'"[^"\n]*MiniLM-L[^"\n]*"', f'"{folder.as_posix()}"', tile.code))


def near(printed: str, shown: str) -> None:
    """Assert the same words, and numbers that are the same but for a unit of their last digit."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for got, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        unit = 10.0 ** -len(expected.partition(".")[2])
        assert abs(float(got) - float(expected)) <= (1.01 * unit if "." in expected else 0)


@pytest.mark.weights
@pytest.mark.parametrize("tile", WITH_OUTPUT, ids=name_of)
def test_a_tile_prints_what_the_page_shows(tile, minilm):
    code = tile.code.replace("all-MiniLM-L6-v2", minilm.as_posix())
    near(make_gallery.run(code)["printed"], tile.shown)
