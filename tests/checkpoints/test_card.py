"""The model card: what the Hub reads of it, and that nobody's own page is lost."""

import re
import shutil
from pathlib import Path

import pytest

from minisbert import PairModel, SentenceEncoder, StaticEncoder
from minisbert.checkpoints.card import CARD, base_model_of, training_section
from minisbert.core import InputError
from minisbert.core.heads import siamese
from minisbert.models.static_encoder import distill
from minisbert.system.assets import assets


def front_matter(card: str) -> dict[str, str]:
    """Return the keys before the text, and their values as they are written."""
    block = re.match("---\n(.*?)\n---\n", card, re.DOTALL)[1]
    return dict(re.findall(r"^(\w+):((?: .*)?(?:\n- .*)*)", block, re.MULTILINE))


def test_a_saved_encoder_has_a_card_of_its_own_sizes(tiny, tmp_path):
    """The front matter decides where the Hub lists the model."""
    SentenceEncoder.load(tiny).save(tmp_path / "model")
    card = (tmp_path / "model" / CARD).read_text()
    assert front_matter(card) == {
        "library_name": " sentence-transformers",
        "pipeline_tag": " sentence-similarity",
        "tags": "\n- sentence-transformers\n- sentence-similarity\n- minisbert",
    }
    sizes = "at most 16 tokens into a vector of 24 numbers (mean pooling, scaled to length 1)"
    assert sizes in card


@pytest.mark.parametrize("kind", ["encoder", "pair model"])
def test_the_code_of_the_card_runs(kind, tiny, tmp_path, capsys):
    """It is the first thing that a visitor of the Hub copies."""
    model = SentenceEncoder.load(tiny)
    if kind == "pair model":
        model = PairModel(model, siamese(model.width))
    model.save(tmp_path / "model")
    card = (tmp_path / "model" / CARD).read_text()
    ours = re.findall("```python\n(.*?)```", card, re.DOTALL)[0]
    exec(ours.replace("path/to/this/folder", str(tmp_path / "model")))
    assert capsys.readouterr().out


@pytest.mark.parametrize("kind", ["encoder", "pair model"])
def test_what_sentence_transformers_cannot_open_does_not_name_it(kind, tiny, tmp_path):
    """It has neither attention pooling nor heads over two vectors."""
    model = SentenceEncoder.load(tiny, pooling="attention")
    if kind == "pair model":
        model = PairModel(model, siamese(model.width))
    model.save(tmp_path / "model")
    assert "sentence_transformers" not in (tmp_path / "model" / CARD).read_text()


def test_a_card_names_the_base_model(tiny, tmp_path):
    """The Hub shows the model in the tree of those it was trained from."""
    encoder = SentenceEncoder.load(tiny)
    encoder.base_model = "owner/its--name"
    encoder.save(tmp_path)
    card = (tmp_path / CARD).read_text()
    assert front_matter(card)["base_model"] == " owner/its--name"
    assert "# Sentence-similarity model based on owner/its--name\n" in card


def test_a_page_that_the_user_wrote_is_kept(tiny, tmp_path):
    """Saving a model again must not lose somebody's work."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path)
    (tmp_path / CARD).write_text("my page\n")
    encoder.save(tmp_path)
    encoder.write_card(tmp_path, training="## Training")
    assert (tmp_path / CARD).read_text() == "my page\n"


def test_a_page_that_the_user_edited_is_kept(tiny, tmp_path):
    """A page of ours with a license in it is the user's."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path)
    edited = (tmp_path / CARD).read_text().replace("# license:", "license: mit #")
    (tmp_path / CARD).write_text(edited)
    encoder.save(tmp_path)
    encoder.write_card(tmp_path, training="## Training")
    assert (tmp_path / CARD).read_text() == edited


def test_a_card_that_nobody_edited_is_replaced(tiny, tmp_path):
    """It would describe the model that was there before."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path)
    encoder.write_card(tmp_path, training_section("minisbert train", ["train  a file"], {}))
    assert "minisbert train" in (tmp_path / CARD).read_text()
    encoder.save(tmp_path)
    assert "minisbert train" not in (tmp_path / CARD).read_text()


def test_a_card_is_written_complete_or_not_at_all(tiny, tmp_path, monkeypatch):
    """Half a page does not fit its hash: it would count as the user's for ever."""
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path / "model")
    before = (tmp_path / "model" / CARD).read_text()

    def write_half(path, text, **options):
        path.write_bytes(text.encode()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(KeyboardInterrupt):
        encoder.write_card(tmp_path / "model", training="## Training")
    assert (tmp_path / "model" / CARD).read_text() == before


def test_a_card_is_not_written_through_a_link(tiny, tmp_path):
    """In a folder of somebody else's it may lead to a file of yours."""
    encoder = SentenceEncoder.load(tiny)
    (tmp_path / "README.md").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="link"):
        encoder.write_card(tmp_path)
    assert not (tmp_path / "mine").exists()


def test_the_base_model_of_an_asset_is_the_hubs_name():
    asset = assets()["all-MiniLM-L6-v2"]
    assert base_model_of(asset.folder) == asset.sources[0]["hub"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models--owner--its--name/snapshots/abc", "owner/its--name"),
        ("models--bert-base-uncased/snapshots/abc", "bert-base-uncased"),
        ("a/folder", None),
    ],
)
def test_the_base_model_is_the_name_in_the_hubs_cache(folder, name):
    assert base_model_of(Path(folder)) == name


def test_the_base_model_is_passed_on(tiny, tmp_path):
    """A model that was trained twice names the published one that it came from."""
    cached = shutil.copytree(tiny, tmp_path / "models--owner--its--name" / "snapshots" / "abc")
    SentenceEncoder.load(cached).save(tmp_path / "first")
    SentenceEncoder.load(tmp_path / "first").save(tmp_path / "second")
    for folder in ("first", "second"):
        card = (tmp_path / folder / CARD).read_text()
        assert front_matter(card)["base_model"] == " owner/its--name"


def test_a_static_model_has_a_card(tmp_path, tiny):
    distill(SentenceEncoder.load(tiny), 8).save(tmp_path / "table")
    assert "a vector of 8 numbers" in (tmp_path / "table" / CARD).read_text()
    assert StaticEncoder.load(tmp_path / "table").width == 8
