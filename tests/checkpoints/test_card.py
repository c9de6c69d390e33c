"""The model card: what the Hub reads of it, and that nobody's own page is lost."""

import re
import shutil

import pytest

from minisbert import PairModel, SentenceEncoder, StaticEncoder
from minisbert.checkpoints.card import CARD, base_model_of, training_section
from minisbert.core.heads import siamese
from minisbert.system.assets import assets


def front_matter(card: str) -> dict[str, str]:
    """Return the keys before the text, and their values as they are written."""
    block = re.match("---\n(.*?)\n---\n", card, re.DOTALL)[1]
    return dict(re.findall(r"^(\w+):((?: .*)?(?:\n- .*)*)", block, re.MULTILINE))


def test_a_saved_encoder_has_a_card_of_its_own_sizes(tiny, tmp_path):
    SentenceEncoder.load(tiny).save(tmp_path / "model")
    card = (tmp_path / "model" / CARD).read_text()
    assert front_matter(card) == {
        "library_name": " sentence-transformers",
        "pipeline_tag": " sentence-similarity",
        "tags": "\n- sentence-transformers\n- sentence-similarity\n- minisbert",
    }
    assert (
        "at most 16 tokens into a vector of 24 numbers (mean pooling, scaled to length 1)" in card
    )


def test_the_code_of_the_card_runs(tiny, tmp_path, capsys):
    encoder = SentenceEncoder.load(tiny)
    for model in (encoder, PairModel(encoder, siamese(encoder.width))):
        model.save(tmp_path / "model")
        card = (tmp_path / "model" / CARD).read_text()
        ours = re.findall("```python\n(.*?)```", card, re.DOTALL)[0]
        exec(ours.replace("path/to/this/folder", str(tmp_path / "model")))
        assert capsys.readouterr().out
        shutil.rmtree(tmp_path / "model")


def test_what_sentence_transformers_cannot_open_does_not_name_it(tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny, pooling="attention")
    for model in (encoder, PairModel(encoder, siamese(encoder.width))):
        model.save(tmp_path / type(model).__name__)
        assert (
            "sentence" + "_transformers" not in (tmp_path / type(model).__name__ / CARD).read_text()
        )


@pytest.mark.parametrize("change", ["written", "edited"])
def test_a_page_of_the_user_is_kept(tiny, tmp_path, change):
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path)
    page = tmp_path / CARD
    own = (
        "my page\n"
        if change == "written"
        else page.read_text().replace("# license:", "license: mit #")
    )
    page.write_text(own)
    encoder.save(tmp_path)
    encoder.write_card(tmp_path, training="## Training")
    assert page.read_text() == own


def test_a_card_that_nobody_edited_is_replaced(tiny, tmp_path):
    encoder = SentenceEncoder.load(tiny)
    encoder.save(tmp_path)
    encoder.write_card(tmp_path, training_section("minisbert train", ["train  a file"], {}))
    assert "minisbert train" in (tmp_path / CARD).read_text()
    encoder.save(tmp_path)
    assert "minisbert train" not in (tmp_path / CARD).read_text()


def test_the_base_model_is_the_hubs_name_and_passed_on(tiny, tmp_path):
    name, asset = next((name, asset) for name, asset in assets().items() if asset.kind == "weights")
    assert base_model_of(asset.folder) == asset.sources[0]["hub"], name
    cached = tmp_path / "models--owner--its--name" / "snapshots" / "abc"
    shutil.copytree(tiny, cached)
    first = SentenceEncoder.load(cached)
    first.save(tmp_path / "first")
    SentenceEncoder.load(tmp_path / "first").save(tmp_path / "second")
    for folder in ("first", "second"):
        assert (
            front_matter((tmp_path / folder / CARD).read_text())["base_model"] == " owner/its--name"
        )
    assert base_model_of(tiny) is None
    assert (
        base_model_of(tmp_path / "models--bert-base-uncased" / "snapshots" / "abc")
        == "bert-base-uncased"
    )


def test_a_static_model_has_a_card(tmp_path, tiny):
    from minisbert.models.static_encoder import distill

    distill(SentenceEncoder.load(tiny), 8).save(tmp_path / "table")
    assert "a vector of 8 numbers" in (tmp_path / "table" / CARD).read_text()
    assert StaticEncoder.load(tmp_path / "table").width == 8
