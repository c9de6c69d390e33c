"""CrossEncoder folders: the same scores as in transformers and sentence-transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.architectures.relatives import CLASSIFIERS, ENCODER_FAMILIES
from minisbert.core import InputError
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_heads import head_settings
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.named_heads import classifier_head
from tests.models.classifiers import change, classifier, exactly
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity

PAIRS = [
    ("a cat sits", "the kitten is sitting on a mat"),
    ("dogs run fast in the snow", "rain"),
    ("sun", "a happy child"),
    ("", "moon"),
    ("a man plays the guitar and the piano", "music"),
    ("red ball", "a red ball"),
]
LONG = [("a cat " * 9, "moon"), ("moon", "the dog runs " * 9)]  # beyond the limit, on either side
SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"


def cross_encoder(folder: Path):
    """sentence-transformers' model of a folder."""
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the reference extra"
    )
    return sentence_transformers.CrossEncoder(str(folder), device="cpu")


def scores_of(folder: Path, pairs: list[tuple[str, str]], **options: bool) -> torch.Tensor:
    """sentence-transformers' scores in float64."""
    with exactly():
        theirs = cross_encoder(folder)
        theirs.model.double()
        return theirs.predict(pairs, convert_to_tensor=True, **options)


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_classifier_of_transformers_forward_and_backward(family, tmp_path):
    """Equal scores do not prove equal gradients, and a training needs both."""
    reference = classifier(tmp_path / "theirs", family)
    model = PairModel.load(tmp_path / "theirs").double()
    firsts, seconds = zip(*PAIRS, strict=True)
    ids, mask, types = model.batch(model.tokenize(firsts, seconds), range(6))
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if types is not None:
        inputs["token_type_ids"] = types
    with exactly():
        expected = reference(**inputs).logits.squeeze(-1)
    scores = model(ids, mask, types)
    assert_parity(f"{family}, logits", scores, expected, PIECE)

    pull = torch.randn(6, dtype=torch.float64)
    (scores * pull).sum().backward()
    (expected * pull).sum().backward()
    theirs = dict(reference.named_parameters())
    ours = named_as_theirs(model, family)
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert_parity(f"{family}, gradient of {name}", parameter.grad, theirs[name].grad, GRADIENT)


def named_as_theirs(model: PairModel, family: str) -> dict[str, torch.nn.Parameter]:
    """The parameters of our model under transformers' names."""
    names = ENCODER_FAMILIES[family].names(2, pooler=False)
    prefix = ENCODER_FAMILIES[family].prefix
    parameters = {}
    for name, parameter in model.encoder.bert.named_parameters():
        parameters[prefix + names[name]] = parameter
    layers = {
        CLASSIFIERS[family].dense: model.head.mlp[0],
        CLASSIFIERS[family].out: model.head.mlp[3],
    }
    if family == "modernbert":
        layers["head.norm"] = model.head.mlp[1][1]
    for name, layer in layers.items():
        parameters[f"{name}.weight"] = layer.weight
        if layer.bias is not None:
            parameters[f"{name}.bias"] = layer.bias
    return parameters


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("activation", [None, SIGMOID, IDENTITY])
@pytest.mark.parametrize("writer", ["transformers", "sentence-transformers"])
def test_scores_are_those_of_a_cross_encoder_also_after_saving(
    family, activation, writer, tmp_path
):
    """A model goes there and back without a change of its scores."""
    classifier(tmp_path / "transformers", family)
    if activation:
        settings = {"activation_fn": activation}
        change(tmp_path / "transformers" / "config.json", sentence_transformers=settings)
    theirs = cross_encoder(tmp_path / "transformers")
    theirs.save(str(tmp_path / "sentence-transformers"), create_model_card=False)
    pairs = [*PAIRS, *LONG]
    expected = scores_of(tmp_path / "transformers", pairs)
    assert len({round(float(score), 4) for score in expected}) > 3, "the pairs differ"

    model = PairModel.load(tmp_path / writer).double()
    assert model.task == ("logit" if activation == IDENTITY else "binary")
    np.testing.assert_allclose(model.predict(pairs), expected, rtol=0, atol=PIECE)
    assert model.truncated >= 2

    model.save(tmp_path / "ours")
    again = PairModel.load(tmp_path / "ours").double()
    np.testing.assert_array_equal(again.predict(pairs), model.predict(pairs))
    assert again.encoder.tokenizer.limit == theirs.max_seq_length
    scores = scores_of(tmp_path / "ours", pairs)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=PIECE)


def assert_same_scores(folder: Path, **options: bool) -> PairModel:
    """Compare the folder's model, and its saved copy, with sentence-transformers on both folders.

    In float64.
    """
    saved = folder.with_name("ours")
    model = PairModel.load(folder).double()
    model.save(saved)
    again = PairModel.load(saved).double()
    assert (again.task, again.labels) == (model.task, model.labels)
    assert head_settings(again.head) == head_settings(model.head)
    for name in (folder, saved):
        expected = scores_of(name, PAIRS, **options)
        np.testing.assert_allclose(model.predict(PAIRS, **options), expected, rtol=0, atol=PIECE)
        np.testing.assert_allclose(again.predict(PAIRS, **options), expected, rtol=0, atol=PIECE)
        assert model.labels in ((), tuple(cross_encoder(name).config.id2label.values()))
    return model


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes_of_a_cross_encoder_also_after_saving(family, tmp_path):
    """One of several is true, as in natural language inference."""
    classifier(tmp_path / "plain", family, labels=3)
    labels = ("contradiction", "entailment", "neutral")
    change(tmp_path / "plain" / "config.json", id2label=dict(enumerate(labels)))
    model = assert_same_scores(tmp_path / "plain", apply_softmax=True)
    assert (model.task, model.labels) == ("classes", labels)


MODERN_HEADS = [
    {"classifier_pooling": "mean"},  # gte-reranker-modernbert's
    {"classifier_activation": "silu"},
    {"classifier_bias": True, "classifier_dropout": 0.25, "embedding_dropout": 0.5},
    {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_pooling": "mean"},
]


@pytest.mark.reference
@pytest.mark.parametrize("settings", MODERN_HEADS, ids=str)
def test_settings_of_modernberts_classifier_also_after_saving(settings, tmp_path):
    """Published rerankers read the mean of the tokens, or [CLS]; an ignored setting would show."""
    classifier(tmp_path / "plain", "modernbert", **settings)
    model = assert_same_scores(tmp_path / "plain")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())
    for key in ("classifier_pooling", "classifier_activation", "classifier_bias"):
        assert saved[key] == json.loads((tmp_path / "plain" / "config.json").read_text())[key]
    assert head_settings(model.head)["dropout"] == settings.get("classifier_dropout", 0.0)


@pytest.mark.reference
def test_a_setting_of_modernberts_classifier_that_is_not_supported(tmp_path):
    """Another activation would give other scores."""
    classifier(tmp_path / "plain", "modernbert")
    change(tmp_path / "plain" / "config.json", classifier_activation="tanh")
    with pytest.raises(InputError, match="classifier_activation must be gelu or silu"):
        PairModel.load(tmp_path / "plain")


def test_a_new_head_of_modernbert_is_saved_and_opened(tmp_path):
    """``--head classifier`` trains one; another family's head has no place in its files."""
    encoder = SentenceEncoder.load(REFERENCE / "architectures" / "tiny-modernbert")
    model = PairModel(encoder, classifier_head(encoder, 1), "binary").eval()
    model.save(tmp_path / "saved")
    again = PairModel.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    with pytest.raises(InputError, match="ModernClassifierHead"):
        PairModel(encoder, ClassifierHead(24), "binary")


@pytest.mark.reference
def test_labels_of_a_cross_encoder_of_which_several_may_be_true(tmp_path):
    """A sigmoid after several outputs says so."""
    classifier(tmp_path / "plain", "bert", labels=3)
    labels = ("angry", "polite", "short")
    settings = {"activation_fn": SIGMOID}
    change(
        tmp_path / "plain" / "config.json",
        id2label=dict(enumerate(labels)),
        sentence_transformers=settings,
    )
    model = assert_same_scores(tmp_path / "plain")
    assert (model.task, model.labels) == ("labels", labels)
    with pytest.raises(InputError, match="3 labels gives no score to rank by"):
        model.rank("a cat", ["a dog"])


@pytest.mark.reference
@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "DistilBertTokenizer"},
        {"model_input_names": ["input_ids", "attention_mask"]},
    ],
    ids=str,
)
def test_a_cross_encoder_whose_tokenizer_gives_no_token_types(options, tmp_path):
    """Then the second text has the first one's type, in training and here."""
    classifier(tmp_path / "plain", "bert")
    change(tmp_path / "plain" / "tokenizer_config.json", **options)
    assert_same_scores(tmp_path / "plain")


@pytest.mark.reference
@pytest.mark.parametrize("task", ["binary", "logit", "regression"])
def test_a_joint_model_with_that_head_opens_as_a_cross_encoder(tiny, tmp_path, task):
    """Also with another limit of tokens, and with a pooler that the head does not use."""
    torch.manual_seed(5)
    encoder = SentenceEncoder.load(tiny, max_seq_length=9)
    model = PairModel(encoder, ClassifierHead(24, dropout=0.2), task).eval()
    torch.nn.init.normal_(model.head.mlp[3].weight)
    model.save(tmp_path / "saved")

    theirs = cross_encoder(tmp_path / "saved")
    assert (theirs.max_seq_length, theirs.config.classifier_dropout) == (9, 0.2)
    theirs.model.double()
    expected = theirs.predict(PAIRS, convert_to_tensor=True)
    np.testing.assert_allclose(model.double().predict(PAIRS), expected, rtol=0, atol=PIECE)

    again = PairModel.load(tmp_path / "saved").double()
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    assert again.task == task
    assert head_settings(again.head) == head_settings(model.head)


def test_the_pooler_moves_into_the_head(tiny):
    """As in transformers, whose classifier reads BERT's pooler."""
    encoder = SentenceEncoder.load(tiny)
    pooler = encoder.bert.pooler
    head = classifier_head(encoder, 1)
    assert head.mlp[0] is pooler
    assert encoder.bert.pooler is None
    states = torch.ones(1, 1, 24)
    expected = SentenceEncoder.load(tiny).bert.pool(states)
    assert torch.equal(head.mlp[:2](states[:, 0]), expected)


def test_a_head_without_a_pooler_has_the_same_sizes(tiny):
    """It starts from random weights."""
    encoder = SentenceEncoder.load(tiny)
    with_pooler = classifier_head(encoder, 1)
    without = classifier_head(encoder, 1)
    assert head_settings(without) == head_settings(with_pooler)


def test_a_head_whose_activation_the_family_does_not_have():
    """Found when the model is made, before it is trained."""
    encoder = SentenceEncoder.load(REFERENCE / "tiny-distiluse")
    head = ClassifierHead(encoder.bert.config.hidden_size)
    message = r"a CrossEncoder of distilbert has ReLU in its head, not Tanh"
    with pytest.raises(InputError, match=message):
        PairModel(encoder, head, "logit")


def test_an_encoder_whose_settings_a_cross_encoder_cannot_have(tiny, tmp_path):
    """Its files have no place for lowercasing outside the tokenizer."""
    folder = shutil.copytree(tiny, tmp_path / "lower")
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(InputError, match="do_lower_case of"):
        PairModel(SentenceEncoder.load(folder), ClassifierHead(24), "logit")


# ------------------------------------------------------------------------------- settings and files


def configure(folder: Path, **settings: object) -> None:
    """Write the files by which sentence-transformers 5 and later know a CrossEncoder."""
    module = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.Transformer",
    }
    (folder / "modules.json").write_text(json.dumps([module]))
    settings = {"model_type": "CrossEncoder"} | settings
    change(folder / "config_sentence_transformers.json", **settings)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "config",
            {"architectures": ["GPT2ForSequenceClassification"]},
            "architectures 'GPT2ForSeq",
        ),
        ("config", {"id2label": {"0": 5}}, "id2label must be"),
        (
            "config",
            {"sentence_transformers": {"activation_fn": "a.Gate"}},
            "activation_fn 'a.Gate' is",
        ),
        ("config", {"classifier_dropout": 1.5}, "dropout must be at least 0"),
        ("config", {"architectures": ["BertModel"]}, "modules Transformer"),
        ("config_sentence_transformers", {"activation_fn": 5}, "activation_fn must be"),
        (
            "config_sentence_transformers",
            {"default_prompt_name": "q"},
            "default_prompt_name 'q' is",
        ),
        ("sentence_bert_config", {"module_output_name": "x"}, "module_output_name 'x' is not"),
    ],
)
def test_a_cross_encoder_that_cannot_be_read(name, changes, message, tmp_path):
    """A setting that is not computed would give other scores, without a word."""
    classifier(tmp_path / "model", "bert")
    configure(tmp_path / "model")
    change(tmp_path / "model" / f"{name}.json", **changes)
    with pytest.raises(InputError, match=message) as error:
        PairModel.load(tmp_path / "model")
    assert str(tmp_path / "model") in str(error.value)


@pytest.mark.reference
@pytest.mark.parametrize("left_over", ["no modules.json", "no model_type", None])
def test_files_that_sentence_transformers_does_not_read_change_no_score(left_over, tmp_path):
    """It ignores an activation beside an undescribed CrossEncoder, and a limit in any."""
    folder = tmp_path / "model"
    classifier(folder, "bert")
    configure(folder, activation_fn=IDENTITY)
    change(
        folder / "sentence_bert_config.json",
        max_seq_length=9,
        transformer_task="sequence-classification",
        module_output_name="scores",
    )
    if left_over == "no modules.json":
        (folder / "modules.json").unlink()
    if left_over == "no model_type":
        change(folder / "config_sentence_transformers.json", model_type="SentenceTransformer")
    model = PairModel.load(folder)
    expected = cross_encoder(folder).predict(LONG)
    # either computes in float32
    np.testing.assert_allclose(model.predict(LONG), expected, rtol=0, atol=1e-5)
    assert (model.task == "logit") == (left_over is None)


@pytest.mark.reference
def test_classes_with_an_activation_that_means_no_task(tmp_path):
    folder = tmp_path / "classes"
    classifier(folder, "bert", labels=3)
    settings = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    change(folder / "config.json", sentence_transformers=settings)
    with pytest.raises(InputError, match="Tanh' is not supported"):
        PairModel.load(folder)


@pytest.mark.reference
def test_a_cross_encoder_of_several_modules(tmp_path):
    """What the second one computes would be left out."""
    folder = tmp_path / "model"
    classifier(folder, "bert")
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Dense", "path": "1_Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="modules Transformer, Dense are not supported"):
        PairModel.load(folder)


@pytest.mark.reference
def test_a_cross_encoder_is_no_sentence_encoder(tmp_path):
    """Its vectors were never trained to be compared; the message says what opens it."""
    classifier(tmp_path / "model", "bert")
    message = r"has a task head, classifier\.bias.*PairModel opens a CrossEncoder"
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(tmp_path / "model", pooling="mean")


@pytest.mark.reference
def test_a_cross_encoder_without_a_tensor_of_its_head(tmp_path):
    """Random weights in its place would give random scores."""
    classifier(tmp_path / "model", "bert")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.bias"]
    save_file(tensors, path)
    with pytest.raises(InputError, match=r"missing classifier\.bias \(1,\)"):
        PairModel.load(tmp_path / "model")
