"""Pair models: scores in the caller's order, and nothing lost on disk; ``head_checks.py`` compares
their numbers.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.architectures.relatives import CLASSIFIERS, ENCODER_FAMILIES
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import CrossEncoder, PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.named_heads import classifier_head
from minisbert.training.options import Settings
from minisbert.training.starting_model import load_encoder
from tests.parity import (
    GRADIENT,
    MINILM_VECTOR,
    PIECE,
    REFERENCE,
    assert_parity,
    assert_same_weights,
)
from tests.reference.texts import SENTENCES

FIRSTS = [
    "a cat sits",
    "dogs run fast in the snow",
    "sun",
    "",
    "a man plays the guitar and the piano",
    "red ball",
]
SECONDS = ["the kitten is sitting on a mat", "rain", "a happy child", "moon", "music", "a red ball"]
PAIRS = [*zip(FIRSTS, SECONDS, strict=True)]
KINDS = ["joint", "siamese", "published", "compare", "binary", "classes"]


def pair_model(folder: Path, kind: str) -> PairModel:
    """An untrained head, from a fixed seed, on the encoder in a folder."""
    torch.manual_seed(5)
    head, *more = {
        "joint": (JointHead(24, hidden=40),),
        "siamese": (siamese(24, hidden=40),),
        "binary": (ConcatHead(24, hidden=40, dropout=0.3), "binary"),
        "classes": (ConcatHead(24, outputs=3), "classes", ["no", "maybe", "yes"]),
        "published": (CrossHead(24, "published", hidden=40),),
        "compare": (CrossHead(24, "compare", hidden=40),),
    }[kind]
    return PairModel(SentenceEncoder.load(folder), head, *more)


@pytest.fixture(params=KINDS)
def model(request, tiny) -> PairModel:
    return pair_model(tiny, request.param)


def change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | changes))


def test_scores_are_in_the_callers_order_and_both_sentences_are_read(model, monkeypatch):
    monkeypatch.setattr("minisbert.models.pair_model.HEAD_PAIRS", 4)  # of six pairs: two blocks
    together = model.predict(PAIRS, batch_size=1)
    alone = [model.predict(pair) for pair in PAIRS]
    np.testing.assert_allclose(
        together, alone, rtol=0, atol=2e-5
    )  # float32, from hidden states of up to 3
    assert len({round(float(np.ravel(score)[0]), 4) for score in alone}) == len(FIRSTS), (
        "each pair has its own score"
    )
    assert together.shape == ((6, 3) if model.task == "classes" else (6,))
    assert together.dtype == np.float32
    for firsts, seconds in ((FIRSTS, SECONDS[::-1]), (FIRSTS[::-1], SECONDS)):
        assert (model.predict([*zip(firsts, seconds, strict=True)]) != together).any()
    assert model.predict([]).shape[0] == 0


def test_units_of_the_scores(tiny):
    """0 to 1, and logits of classes; by hand from a head of known bias and no weights."""
    encoder, logit = SentenceEncoder.load(tiny), float(np.log(3))
    for task, labels, bias, expected, softmax in (
        ("regression", (), [1.1], [1.1], False),  # beyond the scale, and not clamped
        ("binary", (), [logit], [0.75], False),
        ("logit", (), [logit], [logit], True),
        ("classes", ("a", "b"), [0.0, logit], [[0.0, logit]], False),
        ("classes", ("a", "b"), [0.0, logit], [[0.25, 0.75]], True),
        ("labels", ("a", "b"), [0.0, logit], [[0.5, 0.75]], True),
    ):
        head = ConcatHead(24, outputs=len(bias))
        torch.nn.init.zeros_(head.mlp[0].weight)
        head.mlp[0].bias.data = torch.tensor(bias, dtype=torch.float32)
        found = PairModel(encoder, head, task, labels).predict(
            [("a cat", "a dog")], apply_softmax=softmax
        )
        np.testing.assert_allclose(
            found, expected, rtol=1e-6, atol=1e-6
        )  # float32, and logits above 1


def test_scoring_is_without_dropout_and_leaves_the_mode(model):
    model.train()
    model.encoder.bert.embeddings.eval()  # a caller's own choice
    modes = [module.training for module in model.modules()]
    np.testing.assert_array_equal(model.predict(PAIRS), model.predict(PAIRS))
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", ["tiny-distiluse", "tiny-roberta"])
def test_encoders_of_other_families(name, tmp_path):
    """Of other widths; distiluse has a dense layer after its pooling, and neither family has a
    second token type.
    """
    encoder = SentenceEncoder.load(REFERENCE / name)
    width = encoder.bert.config.hidden_size
    for head in (JointHead(width), siamese(encoder.width), CrossHead(width, heads=2)):
        model = PairModel(encoder, head)
        scores = model.predict(PAIRS)
        assert np.isfinite(scores).all()
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(PairModel.load(tmp_path / "model").predict(PAIRS), scores)


def test_a_cross_encoder_predicts_and_ranks(tiny, tmp_path):
    torch.manual_seed(3)
    PairModel(SentenceEncoder.load(tiny), JointHead(24), "regression").eval().save(
        tmp_path / "model"
    )
    model = CrossEncoder.load(tmp_path / "model")
    predicted = model.predict([("moon", text) for text in SECONDS])
    assert model.predict(("moon", SECONDS[1])).shape == ()
    assert model.predict([["moon", "a dog"]], convert_to_tensor=True).shape == (1,)
    ranked = model.rank("moon", SECONDS, top_k=2, return_documents=True)
    best = sorted(range(6), key=lambda row: -predicted[row])[:2]
    assert [(hit["corpus_id"], hit["text"]) for hit in ranked] == [
        (row, SECONDS[row]) for row in best
    ]
    with pytest.raises(InputError, match="ConcatHead"):
        CrossEncoder(SentenceEncoder.load(tiny), ConcatHead(24))


# ---------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_scored(model):
    for pairs in (
        None,
        3,
        "moon",
        [("a", "b", "c")],
        ["ab"],
        [None],
        [("a", None)],
        [("a", "b"), ("c", 3)],
    ):
        with pytest.raises(InputError, match=r"pairs|string"):
            model.predict(pairs)
    with pytest.raises(InputError, match="pairs"):
        model.outputs(["a", "b"], ["c"])
    with pytest.raises(InputError, match="batch_size"):
        model.predict(["a", "b"], batch_size=2.5)
    with pytest.raises(InputError, match="activation_fn"):
        model.predict(["a", "b"], activation_fn="sigmoid")
    model.head.mlp[-1].weight.data.fill_(torch.nan)
    with pytest.raises(InputError, match="NaN"):
        model.predict(PAIRS)


def test_cut_texts_are_counted(tiny):
    assert pair_model(tiny, "siamese").truncated == 0
    for kind, expected in (("siamese", 2), ("joint", 1)):
        model = pair_model(tiny, kind)
        model.predict([("cat " * 40, "dog " * 40), ("sun", "moon")])
        assert model.truncated == expected


def test_parts_and_rows_that_do_not_fit(tiny):
    encoder = SentenceEncoder.load(tiny)
    for head, task, labels, message in (
        (torch.nn.Linear(24, 1), "regression", (), "JointHead"),
        (ConcatHead(24, outputs=2), "classes", ("a", 3), "text 1"),
        (JointHead(23), "regression", (), "width 23"),
        (ConcatHead(24), "ranking", (), "'ranking'"),
        (ConcatHead(24, outputs=2), "regression", (), "2 outputs"),
        (ConcatHead(24, outputs=2), "classes", ("a",), "2 outputs"),
        (ConcatHead(24), "classes", ("a",), "1 outputs"),
        (ConcatHead(24), "binary", ("a", "b"), "labels"),
    ):
        with pytest.raises(ValueError, match=message):
            PairModel(encoder, head, task, labels)
    with pytest.raises(ValueError, match="3 rows"):
        pair_model(tiny, "siamese")(torch.ones(3, 4, dtype=torch.long))


# ------------------------------------------------------------------------------------------ on disk


def test_a_saved_model_gives_the_same_scores_bit_for_bit_also_after_a_move(model, tmp_path):
    model.save(tmp_path / "model")
    shutil.move(tmp_path / "model", tmp_path / "moved")  # no path is written down in it
    torch.manual_seed(0)
    before = torch.get_rng_state()
    again = PairModel.load(tmp_path / "moved")
    assert torch.equal(torch.get_rng_state(), before)  # loading draws no random numbers
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    assert (again.task, again.labels, again.head.settings) == (
        model.task,
        model.labels,
        model.head.settings,
    )
    assert not any(module.training for module in again.modules())
    assert all(parameter.requires_grad for parameter in again.parameters())
    for one in (
        model,
        again,
    ):  # weights anywhere in a file's memory would round products another way
        assert {parameter.data_ptr() % 64 for parameter in one.parameters()} == {0}
    encoder = SentenceEncoder.load(tmp_path / "moved")
    assert_same_weights(encoder, model.encoder)
    # not to the bit: the encoder's weights may be anywhere in their file's memory
    np.testing.assert_allclose(
        encoder.encode(SENTENCES), model.encoder.encode(SENTENCES), atol=MINILM_VECTOR, rtol=0
    )


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"head": "bilinear"},
            "head must be one of cross-encoder, concat, cross-attention, not 'bilinear'",
        ),
        ({"task": "ranking"}, "task must be"),
        ({"task": "classes"}, "two or more, each with a label"),
        ({"labels": ["a", 3]}, "labels must be"),
        (
            {
                "settings": {
                    "width": 10**30,
                    "hidden": 4,
                    "outputs": 1,
                    "dropout": 0,
                    "variant": "compare",
                    "heads": 8,
                }
            },
            "width",
        ),
        (
            {"settings": {"width": 24}},
            "must state each of width, variant, heads, hidden, outputs, dropout",
        ),
    ],
)
def test_a_head_json_that_cannot_be_used(saved, changes, message):
    path = saved / "head.json"
    change(path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        PairModel.load(saved)
    assert str(path) in str(caught.value)


def test_files_of_the_head_that_are_damaged_or_missing(saved):
    path = saved / "head.safetensors"
    tensors = load_file(path)
    less = {name: tensor for name, tensor in tensors.items() if name != "attention.key.bias"}
    for spoiled, message in (
        (less, r"(?s)head\.safetensors.*attention\.key\.bias"),
        (tensors | {"mlp.0.bias": torch.zeros(41)}, r"\(41,\)"),
        (tensors | {"more": torch.zeros(1)}, "more"),
        (tensors | {"mlp.0.bias": torch.zeros(40, dtype=torch.long)}, "int64"),
    ):
        save_file(spoiled, path)
        with pytest.raises(InputError, match=message):
            PairModel.load(saved)
    path.write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is not a safetensors file"):
        PairModel.load(saved)
    (saved / "head.json").write_text("{")
    with pytest.raises(InputError, match=r"head\.json, line 1: not valid JSON"):
        PairModel.load(saved)


@pytest.mark.parametrize("kind", ["joint", "siamese"])
def test_pads_have_the_models_padding_and_the_first_token_type(tiny, tmp_path, kind):
    folder = shutil.copytree(tiny, tmp_path / "model")
    change(folder / "config.json", pad_token_id=4)  # neither 0 nor 1, as in most models
    model = pair_model(folder, kind)
    encoded = model.tokenize(FIRSTS, SECONDS)
    ids, mask, types = model.batch(encoded, range(6))
    assert set(ids[~mask].tolist()) == {4}
    assert types is None or (set(types[~mask].tolist()), set(types.tolist()[0])) == ({0}, {0, 1})
    longest = mask.sum(dim=1).view(-1, 6).amax(dim=0)  # of each pair's rows: one, or two
    assert model.lengths(encoded) == (len(ids) // 6 * longest).tolist()
    np.testing.assert_allclose(
        model.predict(PAIRS), pair_model(tiny, kind).predict(PAIRS), atol=2e-6
    )


def test_a_plain_bert_under_a_head_of_tokens_needs_no_pooling_and_keeps_cls(tiny, tmp_path):
    ignore = shutil.ignore_patterns("[0-9]_*", "modules.json", "*sentence*")
    folder = shutil.copytree(tiny, tmp_path / "plain", ignore=ignore)
    for name, head in (("cross-encoder", JointHead(24)), ("cross-attention", CrossHead(24))):
        encoder = load_encoder(Settings(head=name), ModelFolder(folder), torch.device("cpu"))
        assert encoder.pooling.mode == "cls"
        PairModel(encoder, head).save(tmp_path / "saved")
        again = SentenceEncoder.load(tmp_path / "saved")
        assert (again.pooling.mode, again.normalize) == ("cls", False)
    encoder = load_encoder(Settings(head="siamese"), ModelFolder(folder), torch.device("cpu"))
    assert encoder.pooling.mode == "mean"


# --------------------------------------------------------------------------------- CrossEncoder
# folders

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
LONG = [("a cat " * 9, "moon"), ("moon", "the dog runs " * 9)]  # beyond the limit, on either side


def classifier(folder, family: str, labels: int = 1):
    """Write a classifier of ``family`` with random weights, as transformers does, to ``folder``;
    its model, float64.
    """
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    own = {
        "roberta": REFERENCE / "tiny-roberta",
        "mpnet": REFERENCE / "architectures" / "tiny-mpnet",
    }
    source = own.get(family, REFERENCE.parents[1] / "weights" / "tiny")
    shutil.copytree(
        source,
        folder,
        ignore=lambda _, names: {*names} - {"tokenizer.json", "tokenizer_config.json"},
    )
    name = CLASSIFIERS[family][0].removesuffix("ForSequenceClassification")
    sizes = {
        "vocab_size": 301 if family == "roberta" else 131,
        "hidden_size": 18,
        "intermediate_size": 29,
    }
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 3}
    if family == "distilbert":
        sizes = {
            ENCODER_FAMILIES[family].settings.get(key, key): value for key, value in sizes.items()
        }
    else:
        sizes |= {"type_vocab_size": 1 if "bert" in family.removeprefix("bert") else 2}
    sizes |= {"embedding_size": 18} if family == "electra" else {}
    config = getattr(transformers, f"{name}Config")(
        **sizes, max_position_embeddings=33, num_labels=labels
    )
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    model.save_pretrained(folder)
    if family in ("xlm-roberta", "camembert"):
        pieces = [
            "<s>",
            "<pad>",
            "</s>",
            "<unk>",
            *"▁abcdefghijklmnopqrstuvwxyz",
            "▁the",
            "at",
            "og",
            "ing",
        ]
        if family == "camembert":
            before = [
                "<s>NOTUSED",
                "<pad>",
                "</s>NOTUSED",
                "<unk>NOTUSED",
                "<unk>",
                "<s>",
                "</s>",
                "<mask>",
            ]
            pieces = before + pieces[4:]
        vocabulary = [(piece, -float(len(piece))) for piece in pieces]
        getattr(transformers, f"{name}Tokenizer")(
            vocab=vocabulary, model_max_length=16
        ).save_pretrained(folder)
    if family == "distilbert":
        change(folder / "tokenizer_config.json", tokenizer_class="DistilBertTokenizer")
    return model.double().eval()


def cross_encoder(folder):
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the reference extra"
    )
    return sentence_transformers.CrossEncoder(str(folder), device="cpu")


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_classifier_of_transformers_forward_and_backward(family, tmp_path):
    reference = classifier(tmp_path / "theirs", family)
    model = PairModel.load(tmp_path / "theirs").double()
    ids, mask, types = model.batch(model.tokenize(FIRSTS, SECONDS), range(6))
    pull = torch.randn(6, dtype=torch.float64)
    types = {} if types is None else {"token_type_ids": types}
    expected = reference(ids, mask.long(), **types).logits.squeeze(-1)
    found = model(ids, mask, types.get("token_type_ids"))
    assert_parity(f"{family}, logits", found, expected, PIECE)
    for outputs in (found, expected):
        (outputs * pull).sum().backward()
    theirs = dict(reference.named_parameters())
    names = ENCODER_FAMILIES[family].names(2, pooler=False)
    ours = {
        f"{ENCODER_FAMILIES[family].prefix}{names[name]}": p
        for name, p in model.encoder.bert.named_parameters()
    }
    _, dense, out, _ = CLASSIFIERS[family]
    for place, name in (("mlp.0", dense), ("mlp.3", out)):
        ours |= {
            f"{name}.{part}": model.head.get_parameter(f"{place}.{part}")
            for part in ("weight", "bias")
        }
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert_parity(f"{family}, gradient of {name}", parameter.grad, theirs[name].grad, GRADIENT)


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("activation", [None, SIGMOID, IDENTITY])
def test_scores_are_those_of_a_cross_encoder_also_after_saving(family, activation, tmp_path):
    """As transformers has the folder, as sentence-transformers saves it, and as we do."""
    classifier(tmp_path / "plain", family)
    if activation:
        change(
            tmp_path / "plain" / "config.json", sentence_transformers={"activation_fn": activation}
        )
    theirs = cross_encoder(tmp_path / "plain")
    theirs.save(str(tmp_path / "theirs"), create_model_card=False)
    theirs.model.double()
    pairs = [*PAIRS, *LONG]
    expected = theirs.predict(pairs, convert_to_tensor=True)
    assert len({round(float(score), 4) for score in expected}) > 3, "the pairs differ"
    for name in ("plain", "theirs"):
        model = PairModel.load(tmp_path / name).double()
        assert model.task == ("logit" if activation == IDENTITY else "binary")
        np.testing.assert_allclose(model.predict(pairs), expected, rtol=0, atol=PIECE)
        assert model.truncated >= 2
    model.save(tmp_path / "ours")
    again = PairModel.load(tmp_path / "ours").double()
    np.testing.assert_array_equal(again.predict(pairs), model.predict(pairs))
    assert again.encoder.tokenizer.limit == theirs.max_seq_length
    theirs = cross_encoder(tmp_path / "ours")
    theirs.model.double()
    np.testing.assert_allclose(
        theirs.predict(pairs, convert_to_tensor=True), expected, rtol=0, atol=PIECE
    )


def assert_same_scores(folder: Path, **options: bool) -> PairModel:
    """The folder's model and its saved copy, against sentence-transformers on either folder, in
    float64.
    """
    model, saved = PairModel.load(folder).double(), folder.with_name("ours")
    model.save(saved)
    again = PairModel.load(saved).double()
    assert (again.task, again.labels, again.head.settings) == (
        model.task,
        model.labels,
        model.head.settings,
    )
    for name in (folder, saved):
        theirs = cross_encoder(name)
        theirs.model.double()
        expected = theirs.predict(PAIRS, convert_to_tensor=True, **options)
        for found in (model, again):
            np.testing.assert_allclose(
                found.predict(PAIRS, **options), expected, rtol=0, atol=PIECE
            )
        assert model.labels in ((), tuple(theirs.config.id2label.values()))
    return model


@pytest.mark.reference
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes_of_a_cross_encoder_also_after_saving(family, tmp_path):
    classifier(tmp_path / "plain", family, labels=3)
    labels = ("contradiction", "entailment", "neutral")
    change(tmp_path / "plain" / "config.json", id2label=dict(enumerate(labels)))
    model = assert_same_scores(tmp_path / "plain", apply_softmax=True)
    assert (model.task, model.labels) == ("classes", labels)


@pytest.mark.reference
def test_labels_of_a_cross_encoder_of_which_several_may_be_true(tmp_path):
    classifier(tmp_path / "plain", "bert", labels=3)
    labels = ("angry", "polite", "short")
    about = {
        "id2label": dict(enumerate(labels)),
        "sentence_transformers": {"activation_fn": SIGMOID},
    }
    change(tmp_path / "plain" / "config.json", **about)
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
    classifier(tmp_path / "plain", "bert")
    change(tmp_path / "plain" / "tokenizer_config.json", **options)
    assert_same_scores(tmp_path / "plain")


@pytest.mark.reference
@pytest.mark.parametrize("task", ["binary", "logit", "regression"])
def test_a_joint_model_with_that_head_opens_as_a_cross_encoder(tiny, tmp_path, task):
    """Also with another limit of tokens, and with a pooler in the encoder, which the head does not
    use.
    """
    torch.manual_seed(5)
    model = PairModel(
        SentenceEncoder.load(tiny, max_seq_length=9), ClassifierHead(24, dropout=0.2), task
    ).eval()
    torch.nn.init.normal_(model.head.mlp[3].weight)
    model.save(tmp_path / "saved")
    theirs = cross_encoder(tmp_path / "saved")
    assert (theirs.max_seq_length, theirs.config.classifier_dropout) == (9, 0.2)
    theirs.model.double()
    expected = theirs.predict(PAIRS, convert_to_tensor=True)
    np.testing.assert_allclose(model.double().predict(PAIRS), expected, rtol=0, atol=PIECE)
    again = PairModel.load(tmp_path / "saved").double()
    np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))
    assert (again.task, again.head.settings) == (task, model.head.settings)


def test_the_pooler_moves_into_the_head(tiny):
    """As in transformers, whose classifier reads BERT's pooler. Without one the head starts from
    random weights.
    """
    encoder = SentenceEncoder.load(tiny)
    pooler = encoder.bert.pooler
    head = classifier_head(encoder, 1)
    assert head.mlp[0] is pooler
    assert encoder.bert.pooler is None
    assert torch.equal(
        head.mlp[:2](torch.ones(1, 24)), SentenceEncoder.load(tiny).bert.pool(torch.ones(1, 1, 24))
    )
    assert head.settings == classifier_head(encoder, 1).settings


def test_an_encoder_that_a_cross_encoder_cannot_have(tiny, tmp_path):
    width = SentenceEncoder.load(REFERENCE / "tiny-distiluse").bert.config.hidden_size
    with pytest.raises(
        InputError, match=r"a CrossEncoder of distilbert has ReLU in its head, not Tanh\(\)"
    ):
        PairModel(
            SentenceEncoder.load(REFERENCE / "tiny-distiluse"), ClassifierHead(width), "logit"
        )
    folder = shutil.copytree(tiny, tmp_path / "lower")
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(InputError, match="do_lower_case of"):
        PairModel(SentenceEncoder.load(folder), ClassifierHead(24), "logit")


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
    classifier(tmp_path / "model", "bert")
    configure(tmp_path / "model")
    change(tmp_path / "model" / f"{name}.json", **changes)
    with pytest.raises(InputError, match=message) as error:
        PairModel.load(tmp_path / "model")
    assert str(tmp_path / "model") in str(error.value)


def configure(folder: Path, **settings: object) -> None:
    """The files by which sentence-transformers 5 and later know a CrossEncoder."""
    module = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.Transformer",
    }
    (folder / "modules.json").write_text(json.dumps([module]))
    change(
        folder / "config_sentence_transformers.json", **{"model_type": "CrossEncoder"} | settings
    )


@pytest.mark.reference
@pytest.mark.parametrize("left_over", ["no modules.json", "no model_type", None])
def test_files_that_sentence_transformers_does_not_read_change_no_score(left_over, tmp_path):
    folder = tmp_path / "model"
    classifier(folder, "bert")
    configure(folder, activation_fn=IDENTITY)
    texts = {
        "max_seq_length": 9,
        "transformer_task": "sequence-classification",
        "module_output_name": "scores",
    }
    change(folder / "sentence_bert_config.json", **texts)
    if left_over == "no modules.json":
        (folder / "modules.json").unlink()
    if left_over == "no model_type":
        change(folder / "config_sentence_transformers.json", model_type="SentenceTransformer")
    model, expected = PairModel.load(folder), cross_encoder(folder).predict(LONG)
    np.testing.assert_allclose(
        model.predict(LONG), expected, rtol=0, atol=1e-5
    )  # either computes in float32
    assert (model.task == "logit") == (left_over is None)


@pytest.mark.reference
def test_a_cross_encoder_of_several_modules_classes_with_an_activation_and_one_without_a_head(
    tmp_path,
):
    classifier(tmp_path / "classes", "bert", labels=3)
    change(
        tmp_path / "classes" / "config.json",
        sentence_transformers={"activation_fn": SIGMOID.replace("Sigmoid", "Tanh")},
    )
    with pytest.raises(InputError, match="Tanh' is not supported"):
        PairModel.load(tmp_path / "classes")
    folder = tmp_path / "model"
    classifier(folder, "bert")
    names = {"Transformer": "", "Dense": "1_Dense"}
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in names.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="modules Transformer, Dense are not supported"):
        PairModel.load(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(
        InputError, match=r"has a task head, classifier\.bias.*PairModel opens a CrossEncoder"
    ):
        SentenceEncoder.load(folder, pooling="mean")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensors[name] for name in tensors if name != "classifier.bias"},
        folder / "model.safetensors",
    )
    with pytest.raises(InputError, match=r"missing classifier\.bias \(1,\)"):
        PairModel.load(folder)
