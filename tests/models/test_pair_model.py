"""Pair models: scores in the caller's order, and nothing lost on disk; ``parity/heads.py`` compares
their numbers.
"""

import json
import shutil
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.models.pair_heads import ClsCrossHead, head_settings
from minisbert.models.pair_model import (
    CrossEncoder,
    PairModel,
    compare_in_blocks,
    is_pair,
    to_scores,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.options import Settings
from minisbert.training.starting_model import load_encoder
from tests.parity import MINILM_VECTOR, REFERENCE, assert_same_weights
from tests.reference.texts import SENTENCES

PAIRS = [
    ("a cat sits", "the kitten is sitting on a mat"),
    ("dogs run fast in the snow", "rain"),
    ("sun", "a happy child"),
    ("", "moon"),
    ("a man plays the guitar and the piano", "music"),
    ("red ball", "a red ball"),
]
FIRSTS = [first for first, _ in PAIRS]
SECONDS = [second for _, second in PAIRS]
KINDS = ["joint", "siamese", "published", "compare", "binary", "classes"]


def pair_model(folder: Path, kind: str) -> PairModel:
    """An untrained head, from a fixed seed, on the encoder in a folder."""
    encoder = SentenceEncoder.load(folder)
    torch.manual_seed(5)
    if kind == "joint":
        return PairModel(encoder, JointHead(24, hidden=40))
    if kind == "siamese":
        return PairModel(encoder, siamese(24, hidden=40))
    if kind == "published":
        return PairModel(encoder, ClsCrossHead(24, hidden=40))
    if kind == "compare":
        return PairModel(encoder, CrossHead(24, hidden=40))
    if kind == "binary":
        return PairModel(encoder, ConcatHead(24, hidden=40, dropout=0.3), "binary")
    return PairModel(encoder, ConcatHead(24, outputs=3), "classes", ["no", "maybe", "yes"])


@pytest.fixture(params=KINDS)
def model(request, tiny) -> PairModel:
    return pair_model(tiny, request.param)


def change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


# ------------------------------------------------------------------------------------------- scores


def test_scores_are_in_the_callers_order(model):
    """Batches are of pairs of similar length, so the order changes on the way."""
    together = model.predict(PAIRS, batch_size=1)
    alone = [model.predict(pair) for pair in PAIRS]
    # float32, from hidden states of up to 3
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-5)
    first_columns = {round(float(np.ravel(score)[0]), 4) for score in alone}
    assert len(first_columns) == len(PAIRS), "each pair has its own score"


def test_the_shape_and_type_of_scores(model):
    expected = (6, 3) if model.task == "classes" else (6,)
    scores = model.predict(PAIRS)
    assert scores.shape == expected
    assert scores.dtype == np.float32
    assert model.predict([]).shape == (0, *expected[1:])


def test_both_sentences_are_read(model):
    """A head that reads one of them learns something too, and looks plausible."""
    scores = model.predict(PAIRS)
    other_seconds = list(zip(FIRSTS, SECONDS[::-1], strict=True))
    other_firsts = list(zip(FIRSTS[::-1], SECONDS, strict=True))
    assert (model.predict(other_seconds) != scores).any()
    assert (model.predict(other_firsts) != scores).any()


@pytest.mark.parametrize("pairs", [1, 4, 6, 100])
def test_vectors_are_compared_in_blocks(pairs):
    """The size of a block bounds the memory and changes no score."""
    torch.manual_seed(0)
    head = siamese(8, outputs=3).double()
    u = torch.randn(6, 8, dtype=torch.float64)
    v = torch.randn(6, 8, dtype=torch.float64)
    blocks = compare_in_blocks(head, u, v, pairs)
    torch.testing.assert_close(blocks, head(u, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("task", "outputs", "softmax", "expected"),
    [
        ("regression", [1.1], False, [1.1]),  # beyond the scale, and not clamped
        ("binary", [np.log(3)], False, [0.75]),
        ("logit", [np.log(3)], True, [np.log(3)]),
        ("classes", [[0.0, np.log(3)]], False, [[0.0, np.log(3)]]),
        ("classes", [[0.0, np.log(3)]], True, [[0.25, 0.75]]),
        ("labels", [[0.0, np.log(3)]], True, [[0.5, 0.75]]),
    ],
)
def test_units_of_the_scores(task, outputs, softmax, expected):
    """By hand: probabilities where the task has them, logits of classes."""
    scores = to_scores(torch.tensor(outputs), task, None, softmax)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "outputs", "softmax", "shape", "expected"),
    [
        ("binary", [1.0, 2.0], False, (2, 1), [2.0, 4.0]),
        ("binary", [1.0, 2.0], True, (2, 1), [2.0, 4.0]),
        ("classes", [[0.0, np.log(3) / 2]], False, (1, 2), [[0.0, np.log(3)]]),
        ("classes", [[0.0, np.log(3) / 2]], True, (1, 2), [[0.25, 0.75]]),
        ("labels", [[0.0, np.log(3) / 2]], False, (1, 2), [[0.0, np.log(3)]]),
        ("labels", [[0.0, np.log(3) / 2]], True, (1, 2), [[0.25, 0.75]]),
    ],
)
def test_the_callers_activation_replaces_the_tasks(task, outputs, softmax, shape, expected):
    """It gets a column for each output, as in sentence-transformers."""
    shapes = []

    def double(logits):
        shapes.append(tuple(logits.shape))
        return 2 * logits

    scores = to_scores(torch.tensor(outputs), task, double, softmax)
    assert shapes == [shape]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_predict_computes_scores_from_outputs(tiny):
    """From a head of known bias and no weights: the whole way, once."""
    head = ConcatHead(24, outputs=2)
    torch.nn.init.zeros_(head.mlp[0].weight)
    head.mlp[0].bias.data = torch.tensor([0.0, np.log(3)], dtype=torch.float32)
    model = PairModel(SentenceEncoder.load(tiny), head, "classes", ("a", "b"))
    scores = model.predict([("a cat", "a dog")], apply_softmax=True)
    np.testing.assert_allclose(scores, [[0.25, 0.75]], rtol=1e-6)


def test_scoring_is_without_dropout_and_leaves_the_mode(model):
    """A caller in the middle of a training finds the model as it was."""
    model.train()
    model.encoder.bert.embeddings.eval()  # a caller's own choice
    modes = [module.training for module in model.modules()]
    np.testing.assert_array_equal(model.predict(PAIRS), model.predict(PAIRS))
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", ["tiny-distiluse", "tiny-roberta"])
@pytest.mark.parametrize("kind", ["joint", "siamese", "cross"])
def test_encoders_of_other_families(name, kind, tmp_path):
    """distiluse has a dense layer after its pooling; neither family has a second token type."""
    encoder = SentenceEncoder.load(REFERENCE / name)
    width = encoder.bert.config.hidden_size
    if kind == "joint":
        model = PairModel(encoder, JointHead(width))
    elif kind == "siamese":
        model = PairModel(encoder, siamese(encoder.width))
    else:
        model = PairModel(encoder, CrossHead(width, heads=2))
    scores = model.predict(PAIRS)
    assert np.isfinite(scores).all()
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(PairModel.load(tmp_path / "model").predict(PAIRS), scores)


def test_a_cross_encoder_predicts_and_ranks(tiny, tmp_path):
    torch.manual_seed(3)
    PairModel(SentenceEncoder.load(tiny), JointHead(24)).eval().save(tmp_path / "model")
    model = CrossEncoder.load(tmp_path / "model")
    predicted = model.predict([("moon", text) for text in SECONDS])
    ranked = model.rank("moon", SECONDS, top_k=2, return_documents=True)
    best = sorted(range(6), key=lambda row: -predicted[row])[:2]
    assert [hit["corpus_id"] for hit in ranked] == best
    assert [hit["text"] for hit in ranked] == [SECONDS[row] for row in best]


def test_a_cross_encoder_reads_pairs_together(tiny):
    """The name promises it."""
    with pytest.raises(InputError, match="ConcatHead"):
        CrossEncoder(SentenceEncoder.load(tiny), ConcatHead(24))


def test_the_form_of_the_scores(model):
    """An array by default; one pair gives its score alone; a tensor wins over an array."""
    pair = PAIRS[0]
    shape = (3,) if model.task == "classes" else ()
    assert model.predict(pair).shape == shape
    assert model.predict(list(pair)).shape == shape
    assert model.predict([pair]).shape == (1, *shape)
    assert isinstance(model.predict([pair], convert_to_tensor=True), torch.Tensor)
    assert model.predict([pair], convert_to_tensor=True).shape == (1, *shape)
    assert model.predict(pair, convert_to_tensor=True).shape == shape
    tensors = model.predict([pair], convert_to_numpy=False)
    assert isinstance(tensors, list)
    assert tensors[0].shape == shape
    assert isinstance(model.predict(pair, convert_to_numpy=False), torch.Tensor)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (("a", "b"), True),
        (["a", "b"], True),
        ([("a", "b")], False),
        ([("a", "b"), ("c", "d")], False),
        (["a", "b", "c"], False),
        (("a", None), False),
        ("ab", False),
        (None, False),
    ],
)
def test_one_pair_is_two_texts(pairs, expected):
    assert is_pair(pairs) is expected


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "pairs",
    [None, 3, "moon", [("a", "b", "c")], ["ab"], [None], [("a", None)], [("a", "b"), ("c", 3)]],
)
def test_what_is_no_pair_of_texts(model, pairs):
    with pytest.raises(InputError, match=r"pairs|string"):
        model.predict(pairs)


def test_columns_of_unequal_length(model):
    with pytest.raises(InputError, match="2 first and 1 second sentences"):
        model.outputs(["a", "b"], ["c"])


def test_options_that_predict_refuses(model):
    with pytest.raises(InputError, match="batch_size"):
        model.predict(["a", "b"], batch_size=2.5)
    with pytest.raises(InputError, match="activation_fn"):
        model.predict(["a", "b"], activation_fn="sigmoid")


def test_a_score_that_is_not_a_number(model):
    """It would be sorted somewhere without a word."""
    model.head.mlp[-1].weight.data.fill_(torch.nan)
    with pytest.raises(InputError, match="NaN"):
        model.predict(PAIRS)


@pytest.mark.parametrize(("kind", "expected"), [("siamese", 2), ("joint", 1)])
def test_cut_texts_are_counted(tiny, kind, expected):
    """Each text by itself, or the joined pair."""
    model = pair_model(tiny, kind)
    assert model.truncated == 0
    model.predict([("cat " * 40, "dog " * 40), ("sun", "moon")])
    assert model.truncated == expected


@pytest.mark.parametrize(("kind", "expected"), [("siamese", 2), ("joint", 1), ("compare", 2)])
def test_a_thread_reads_how_many_texts_its_own_call_has_cut(tiny, kind, expected):
    """While another thread scores long texts, none of this thread's short ones was cut."""
    model = pair_model(tiny, kind)
    counts = []

    def score_long_texts():
        model.predict([("cat " * 40, "dog " * 40)])
        counts.append(model.truncated)

    model.predict([("sun", "moon")])
    thread = Thread(target=score_long_texts)
    thread.start()
    thread.join()
    assert model.truncated == 0
    assert counts == [expected]


@pytest.mark.parametrize(
    ("head", "task", "labels", "message"),
    [
        (torch.nn.Linear(24, 1), "regression", (), "JointHead"),
        (ConcatHead(24, outputs=2), "classes", ("a", 3), "text 1"),
        (JointHead(23), "regression", (), "width 23"),
        (ConcatHead(24), "ranking", (), "'ranking'"),
        (ConcatHead(24, outputs=2), "regression", (), "2 outputs"),
        (ConcatHead(24, outputs=2), "classes", ("a",), "2 outputs"),
        (ConcatHead(24), "classes", ("a",), "1 outputs"),
        (ConcatHead(24), "binary", ("a", "b"), "labels"),
    ],
)
def test_parts_that_do_not_fit(tiny, head, task, labels, message):
    """Found when the model is made, and not in the first batch or never."""
    with pytest.raises(ValueError, match=message):
        PairModel(SentenceEncoder.load(tiny), head, task, labels)


def test_an_odd_number_of_rows_is_no_batch_of_pairs(tiny):
    with pytest.raises(ValueError, match="3 rows"):
        pair_model(tiny, "siamese")(torch.ones(3, 4, dtype=torch.long))


# ------------------------------------------------------------------------------------------ on disk


def test_a_saved_model_gives_the_same_scores_to_the_bit(model, tmp_path):
    model.save(tmp_path / "model")
    again = PairModel.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    assert (again.task, again.labels) == (model.task, model.labels)
    assert head_settings(again.head) == head_settings(model.head)
    assert not any(module.training for module in again.modules())
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_a_saved_folder_can_be_moved(model, tmp_path):
    """No path is written down in it."""
    model.save(tmp_path / "model")
    shutil.move(tmp_path / "model", tmp_path / "moved")
    again = PairModel.load(tmp_path / "moved")
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))


def test_loading_draws_no_random_numbers(model, tmp_path):
    """A seed that a caller has set stays worth something."""
    model.save(tmp_path / "model")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    PairModel.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_loaded_weights_are_aligned_in_memory(model, tmp_path):
    """Weights at any other address would round products another way."""
    model.save(tmp_path / "model")
    again = PairModel.load(tmp_path / "model")
    assert {parameter.data_ptr() % 64 for parameter in model.parameters()} == {0}
    assert {parameter.data_ptr() % 64 for parameter in again.parameters()} == {0}


def test_the_encoder_of_a_saved_model_opens_by_itself(model, tmp_path):
    model.save(tmp_path / "model")
    encoder = SentenceEncoder.load(tmp_path / "model")
    assert_same_weights(encoder, model.encoder)
    # not to the bit: the encoder's weights may be anywhere in their file's memory
    expected = model.encoder.encode(SENTENCES)
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=MINILM_VECTOR, rtol=0)


@pytest.mark.parametrize(("kind", "warns"), [("joint", True), ("siamese", False)])
def test_an_encoder_out_of_a_cross_encoder_is_warned_of(tiny, tmp_path, capsys, kind, warns):
    """Its vectors look like any others, and were never trained to be compared."""
    pair_model(tiny, kind).save(tmp_path / "model")
    SentenceEncoder.load(tmp_path / "model")
    assert ("cross-encoder" in capsys.readouterr().err) == warns


def test_a_pair_model_is_asked_for_vectors(tiny):
    """``minisbert.load`` opens a cross-encoder as such, and it has no ``encode``."""
    with pytest.raises(AttributeError, match="predict"):
        pair_model(tiny, "joint").encode(FIRSTS)


def test_a_cross_encoder_that_is_trained_further_is_not_warned_of(tiny, tmp_path, capsys):
    """Its head is opened, by another call."""
    pair_model(tiny, "joint").save(tmp_path / "model")
    settings = Settings(model=str(tmp_path / "model"), head="cross-encoder")
    load_encoder(settings, read_folder(tmp_path / "model"), "cpu")
    assert capsys.readouterr().err == ""


@pytest.fixture
def saved(tiny, tmp_path):
    """A saved cross-attention model to spoil."""
    pair_model(tiny, "compare").save(tmp_path / "model")
    return tmp_path / "model"


def test_folders_that_are_no_pair_models(tiny, tmp_path):
    with pytest.raises(InputError, match=r"has no head\.json"):
        PairModel.load(tiny)
    with pytest.raises(InputError, match="nowhere': there is no such folder"):
        PairModel.load(tmp_path / "nowhere")


TOO_WIDE = {
    "width": 10**30,
    "variant": "compare",
    "heads": 8,
    "hidden": 4,
    "outputs": 1,
    "dropout": 0,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "bilinear"}, "head must be one of cross-encoder, concat, cross-attention"),
        ({"task": "ranking"}, "task must be"),
        ({"task": "classes"}, "two or more, each with a label"),
        ({"labels": ["a", 3]}, "labels must be"),
        ({"settings": TOO_WIDE}, "width"),
        ({"settings": {"width": 24}}, "must state each of width, variant, heads, hidden, outputs"),
    ],
)
def test_a_head_json_that_cannot_be_used(saved, changes, message):
    """The message names the file."""
    path = saved / "head.json"
    change(path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        PairModel.load(saved)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("attention.key.bias", None, r"(?s)head\.safetensors.*attention\.key\.bias"),
        ("mlp.0.bias", torch.zeros(41), r"\(41,\)"),
        ("mlp.0.bias", torch.zeros(40, dtype=torch.long), "int64"),
        ("more", torch.zeros(1), "more"),
    ],
)
def test_tensors_of_another_head(saved, name, tensor, message):
    path = saved / "head.safetensors"
    tensors = load_file(path)
    tensors[name] = tensor
    if tensor is None:
        del tensors[name]
    save_file(tensors, path)
    with pytest.raises(InputError, match=message):
        PairModel.load(saved)


def test_files_of_the_head_that_are_damaged(saved):
    (saved / "head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is not a safetensors file"):
        PairModel.load(saved)
    (saved / "head.json").write_text("{")
    with pytest.raises(InputError, match=r"head\.json, line 1: not valid JSON"):
        PairModel.load(saved)


# -------------------------------------------------------------------------------- batches of tokens


@pytest.fixture
def padded_with_four(tiny, tmp_path):
    """An encoder whose padding is neither 0 nor 1, as in most models."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    change(folder / "config.json", pad_token_id=4)
    return folder


@pytest.mark.parametrize("kind", ["joint", "siamese"])
def test_pads_have_the_models_padding_and_the_first_token_type(padded_with_four, kind):
    model = pair_model(padded_with_four, kind)
    ids, mask, types = model.batch(model.tokenize(FIRSTS, SECONDS), range(6))
    assert set(ids[~mask].tolist()) == {4}
    if types is not None:
        assert set(types[~mask].tolist()) == {0}
        assert set(types[0].tolist()) == {0, 1}
    assert (types is None) == (kind == "siamese")


@pytest.mark.parametrize("kind", ["joint", "siamese"])
def test_lengths_are_those_of_the_padded_rows(tiny, kind):
    """Batches are filled by them."""
    model = pair_model(tiny, kind)
    encoded = model.tokenize(FIRSTS, SECONDS)
    _, mask, _ = model.batch(encoded, range(6))
    rows = len(mask) // 6  # of a pair: one, or two
    longest = mask.sum(dim=1).view(rows, 6).amax(dim=0)
    assert model.lengths(encoded) == (rows * longest).tolist()


@pytest.mark.parametrize("kind", ["joint", "siamese"])
def test_the_padding_changes_no_score(tiny, padded_with_four, kind):
    scores = pair_model(padded_with_four, kind).predict(PAIRS)
    np.testing.assert_allclose(scores, pair_model(tiny, kind).predict(PAIRS), atol=2e-6)


@pytest.fixture
def plain(tiny, tmp_path):
    """A BERT without the files of sentence-transformers, which name a pooling."""
    ignore = shutil.ignore_patterns("[0-9]_*", "modules.json", "*sentence*")
    return shutil.copytree(tiny, tmp_path / "plain", ignore=ignore)


@pytest.mark.parametrize("name", ["cross-encoder", "cross-attention"])
def test_a_plain_bert_under_a_head_of_tokens_needs_no_pooling_and_keeps_cls(plain, name, tmp_path):
    """Such a head reads tokens; the pooling only matters if the encoder is used by itself."""
    encoder = load_encoder(Settings(head=name), read_folder(plain), torch.device("cpu"))
    assert encoder.pooling.mode == "cls"
    head = JointHead(24) if name == "cross-encoder" else CrossHead(24)
    PairModel(encoder, head).save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert (again.pooling.mode, again.normalize) == ("cls", False)


def test_a_plain_bert_under_a_head_of_vectors_pools_the_mean(plain):
    encoder = load_encoder(Settings(head="siamese"), read_folder(plain), torch.device("cpu"))
    assert encoder.pooling.mode == "mean"
