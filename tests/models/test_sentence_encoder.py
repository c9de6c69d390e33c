"""The encoder: loading, encoding in any batch, comparing, saving."""

import errno
import json
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from minisbert import CrossEncoder, MultiVectorEncoder, SparseEncoder
from minisbert.checkpoints import weights as checkpoint
from minisbert.core import InputError
from minisbert.models import sentence_encoder, transformer_encoder
from minisbert.models.batching import Tokens, chunks
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import distill
from minisbert.system import devices
from minisbert.system.progress import Bar
from tests.colbert import write_colbert
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR, PIECE, assert_parity, golden

# 0 to 16 words, in no order of length; the third is twice as long as the tiny model takes
TEXTS = [
    "the cat sits on the mat",
    "a dog",
    "a small child plays the guitar in the park with a happy dog and a sad cat . " * 2,
    "",
    "moon",
    "a woman eats bread and an apple under the sun",
    "the horse runs fast over snow , the bird is slow",
]


@pytest.fixture(scope="module")
def model(tiny: Path) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def plain(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model as a plain BERT folder that says nothing about pooling."""
    folder = tmp_path / "plain"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder)
    return folder


def states_of(tiny: Path, text: str, double: bool = False, limit: int = 16) -> np.ndarray:
    """A text's hidden states (T, D), from the encoder without batches."""
    model = SentenceEncoder.load(tiny, max_seq_length=limit)
    if double:
        model.double()
    with torch.inference_mode():
        return model.bert(torch.tensor(model.tokenizer.encode([text]).ids))[0].numpy()


def in_another_thread(function: Callable, *arguments: Any) -> None:
    thread = Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True))


# -------------------------------------------------------------------------------------------- load


def test_loads_a_path_a_string_or_a_name_in_eval_mode(tiny, monkeypatch):
    """A name is looked up among the assets, and only a name."""
    asked = []

    def ensure(asset):
        asked.append(asset.name)
        return tiny

    monkeypatch.setattr("minisbert.checkpoints.layout.ensure", ensure)
    for folder in (tiny, str(tiny), "all-MiniLM-L6-v2"):
        model = SentenceEncoder.load(folder)
        assert (model.width, model.pooling.mode, model.normalize) == (24, "mean", True)
        assert not any(module.training for module in model.modules())
        assert model.device == torch.device("cpu")
    assert asked == ["all-MiniLM-L6-v2"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stsb", {}, "'stsb'.*all-MiniLM-L6-v2, bert-base-uncased"),
        ("no/such/folder", {}, "'no/such/folder'.*all-MiniLM-L6-v2, bert-base-uncased"),
        ("weights/tiny/model.safetensors", {}, r"model\.safetensors': a file"),
        ("weights/tiny", {"pooling": "sum"}, "unknown pooling 'sum'.*mean, cls, max"),
        ("weights/tiny", {"device": "cuda:97"}, "device 'cuda:97' cannot be used"),
    ],
)
def test_what_cannot_be_loaded(name, options, message, monkeypatch):
    """The line names what there is."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(name, **options)


def test_a_folder_without_pooling_has_the_mean_unscaled_and_says_so(tiny, plain, capsys):
    """A plain BERT was trained for no vector at all."""
    model = SentenceEncoder.load(plain)
    assert capsys.readouterr().err.startswith(
        f"{plain} states no pooling (1_Pooling/config.json): the mean is taken"
    )
    expected = states_of(tiny, TEXTS[0], double=True).mean(axis=0)
    np.testing.assert_allclose(model.double().encode(TEXTS[:1])[0], expected, atol=PIECE, rtol=0)
    np.testing.assert_allclose(
        np.linalg.norm(model.encode(TEXTS, normalize_embeddings=True), axis=1), 1, atol=1e-6
    )
    model = SentenceEncoder.load(plain, pooling="max")
    assert (model.pooling.mode, model.normalize) == ("max", False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("pooling", ["cls", "max", "pooler", "cls+max", "mean+attention"])
def test_every_pooling_overrides_the_folders_and_reads_what_it_needs(tiny, pooling):
    """By ``encode`` and by ``forward`` alike."""
    model = SentenceEncoder.load(tiny, pooling=pooling)
    with torch.inference_mode():
        expected = torch.cat(
            [model(torch.tensor([ids])) for ids in model.tokenizer.encode(TEXTS).ids]
        ).numpy()
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=2e-6, rtol=0)


# ------------------------------------------------------------------------------------------ encode


@pytest.mark.parametrize(("double", "bound"), [(False, MINILM_VECTOR), (True, 1e-12)])
def test_a_vector_does_not_depend_on_its_batch(tiny, double, bound):
    """The same text alone, beside longer ones and in batches of every size."""
    model = SentenceEncoder.load(tiny)
    if double:
        model.double()
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    assert alone.dtype == (np.float64 if double else np.float32)
    assert alone.shape == (len(TEXTS), 24)
    np.testing.assert_allclose((alone**2).sum(axis=1), 1, atol=1e-6, rtol=0)  # of length 1
    tokens = model.tokens_of(TEXTS)
    for batch_tokens in (1, 16, 23, 40, 64, 10_000):
        vectors = model.vectors_of(tokens, batch_tokens)
        np.testing.assert_allclose(vectors, alone, atol=bound, rtol=0)
    for batch_size in (1, np.int64(2), 10_000):
        vectors = model.encode(TEXTS, batch_size=batch_size)
        np.testing.assert_allclose(vectors, alone, atol=bound, rtol=0)


def test_no_texts_and_an_empty_text(model):
    """No texts give an array of the right width; an empty one is [CLS] [SEP]."""
    vectors = model.encode([])
    assert (vectors.shape, vectors.dtype, model.truncated) == ((0, 24), np.float32, 0)
    assert model.encode([], output_value="token_embeddings") == []
    with torch.inference_mode():
        expected = model(torch.tensor([[2, 3]]))[0]  # [CLS] [SEP]
    np.testing.assert_allclose(model.encode([""])[0], expected.numpy(), atol=1e-6, rtol=0)


def test_texts_that_were_cut_are_counted_copies_too(model):
    """Also texts that become equal by the cut, which are computed once."""
    fourteen = "cat " * 14  # with [CLS] and [SEP] exactly the 16 tokens that the tiny model takes
    vectors = model.encode([fourteen, fourteen + "dog", "a dog", fourteen + "dog"])
    assert model.truncated == 2
    np.testing.assert_allclose(vectors[[1, 3]], vectors[[0, 0]], atol=1e-6, rtol=0)
    model.encode(["a dog"])
    assert model.truncated == 0  # of the last call, not of all


def test_a_thread_reads_how_many_texts_its_own_call_has_cut(model):
    """While another thread encodes long texts, none of this thread's short ones was cut."""
    model.encode(["a dog"])
    in_another_thread(model.encode, ["cat " * 40])
    assert model.truncated == 0
    cut = []

    def encode_long_texts():
        for _ in range(100):
            model.encode(["cat " * 40, "cat " * 50])
            cut.append(model.truncated)

    thread = Thread(target=encode_long_texts)
    thread.start()
    for _ in range(100):
        model.encode(["a dog"])
        assert model.truncated == 0
    thread.join()
    assert cut == [2] * 100


def test_encode_in_training_is_without_dropout_and_restores_the_modes(tiny, model):
    """A training loop that encodes its dev set goes on as before, with its frozen modules."""
    other = SentenceEncoder.load(tiny).train()
    other.bert.layers[0].eval()
    modes = [module.training for module in other.modules()]
    np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
    assert [module.training for module in other.modules()] == modes
    # an inference tensor that was left behind would stop this
    other(torch.tensor([[2, 58, 3]])).sum().backward()
    assert other.bert.embeddings.word.weight.grad is not None


def test_encode_restores_the_mode_after_an_error(tiny):
    """Otherwise training would go on without dropout."""
    model = SentenceEncoder.load(tiny).train()

    def fail(hidden, mask):
        raise ZeroDivisionError

    model.pooling.forward = fail
    with pytest.raises(ZeroDivisionError):
        model.encode(TEXTS)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double().float(),
        lambda model: model.train().eval(),
        lambda model: model.similarity(np.eye(24, dtype=np.float32), np.ones((3, 24))),
    ],
    ids=["double", "train", "similarity"],
)
def test_another_thread_changes_no_vector(tiny, change):
    """A call that meets half of a conversion, or dropout, would fail or give other vectors."""
    model = SentenceEncoder.load(tiny)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    expected = model.encode(TEXTS)
    ended = Event()

    def keep_changing():
        while not ended.is_set():
            change(model)

    thread = Thread(target=keep_changing)
    thread.start()
    try:
        for _ in range(30):
            np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=2e-6)
    finally:
        ended.set()
        thread.join()


def test_a_conversion_waits_for_the_end_of_a_call(tiny):
    """And the thread of the call itself does not wait for itself."""
    model = SentenceEncoder.load(tiny)
    thread = Thread(target=model.double)
    with model.computing(None):
        model.eval()
        thread.start()
        thread.join(0.2)
        assert model.dtype == torch.float32
    thread.join()
    assert model.dtype == torch.float64


def test_two_threads_may_evaluate_one_model(tiny):
    """The first to leave must not switch dropout on for the other; the last restores the modes."""
    model = SentenceEncoder.load(tiny).train()
    model.pooling.eval()
    first = transformer_encoder.evaluating(model)
    second = transformer_encoder.evaluating(model.bert)
    first.__enter__()
    in_another_thread(second.__enter__)
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.bert.modules())
    assert model.training
    in_another_thread(second.__exit__, None, None, None)
    assert all(module.training for module in model.bert.modules())
    assert not model.pooling.training


@pytest.mark.parametrize(
    ("texts", "longest", "fitting", "expected"),
    [
        (100, 20, None, 2048),  # one batch holds them: the free memory is not asked for
        (1000, 20, 2**40, 32768),
        (1000, 20, 10_000, 10_000),
        (1000, 20, 100, 2048),
        (1000, 513, None, 2048),  # one of them is long
    ],
)
def test_a_gpu_has_larger_batches_if_they_fit(
    model, monkeypatch, texts, longest, fitting, expected
):
    """Each batch costs Python's time there, and a GPU without free memory must not fail."""
    monkeypatch.setattr(SentenceEncoder, "device", torch.device("cuda"))
    monkeypatch.setattr(sentence_encoder, "fitting_tokens", lambda device, width: fitting)
    ids = [array("i", [5] * 20) for _ in range(texts - 1)]
    ids.append(array("i", [5] * longest))
    tokens = Tokens(ids)
    assert model.usual_batch_tokens(tokens) == expected


def test_a_mask_is_as_small_as_the_batch_allows(tiny, monkeypatch):
    """None without pads, (R, T) for a text with pads, (R, 1, T, T) for two texts in a row."""
    model = SentenceEncoder.load(tiny, max_seq_length=32)
    shapes = []
    packed_states = transformer_encoder.packed_states

    def spy(encoder, ids, mask, positions):
        shapes.append(None if mask is None else tuple(mask.shape))
        return packed_states(encoder, ids, mask, positions)

    monkeypatch.setattr(transformer_encoder, "packed_states", spy)
    # With [CLS] and [SEP] 28, 27, 11 and 3 tokens.
    for words in (["cat " * 26], ["cat " * 25], ["cat " * 9, "cat"]):
        vectors = model.encode([text.strip() for text in words])
        for text, vector in zip(words, vectors, strict=True):
            expected = unit(states_of(tiny, text, limit=32).mean(axis=0))
            np.testing.assert_allclose(vector, expected, atol=1e-6, rtol=0)
    assert shapes == [None, (1, 28), (1, 1, 16, 16)]


# ------------------------------------------------------------------------------- options of encode


def test_texts_of_the_same_tokens_are_computed_once_and_copied(tiny, model, monkeypatch):
    """Repeated rows are common in tables of pairs."""
    other = SentenceEncoder.load(tiny)
    seen = []
    embed = other.embed

    def spy(batch):
        seen.extend(batch.texts)
        return embed(batch)

    monkeypatch.setattr(other, "embed", spy)
    texts = ["a dog", "moon", "A DOG", "the cat"] * 3  # the tokenizer makes lower case of all
    vectors = other.encode(texts)
    assert sorted(seen) == [0, 1, 2]
    alone = np.concatenate([model.encode([text]) for text in texts])
    np.testing.assert_allclose(vectors, alone, atol=MINILM_VECTOR, rtol=0)
    states = model.encode(["a dog", "a dog"], output_value="token_embeddings")
    states[0][:] = 0
    assert abs(states[1]).max() > 0


@pytest.mark.parametrize("truncate_dim", [None, 1, 7, 24])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_normalize_and_truncate_dim(tiny, own, normalize, truncate_dim):
    """False: the model's own scaling, then the cut. True: the cut, then scaling."""
    model = SentenceEncoder.load(tiny).double()
    model.normalize = own
    expected = np.stack([states_of(tiny, text, double=True).mean(axis=0) for text in TEXTS])
    if own:
        expected = unit(expected)
    expected = expected[:, :truncate_dim]
    if normalize:
        expected = unit(expected)
    vectors = model.encode(TEXTS, normalize_embeddings=normalize, truncate_dim=truncate_dim)
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=PIECE, rtol=0)


@pytest.mark.parametrize("batch_tokens", [1, 16, 10_000])
def test_states_of_tokens(tiny, batch_tokens):
    """Each text's hidden states without pads, as the encoder gives them for the text alone."""
    model = SentenceEncoder.load(tiny).double()
    states = model.states_of(model.tokens_of(TEXTS), batch_tokens)
    for text, matrix in zip(TEXTS, states, strict=True):
        expected = states_of(tiny, text, double=True)
        np.testing.assert_allclose(matrix, expected, atol=PIECE, rtol=0)


def test_output_of_tokens(tiny):
    """For whoever needs the states themselves, such as a tagger."""
    model = SentenceEncoder.load(tiny).double()
    states = model.encode(TEXTS, output_value="token_embeddings")
    for text, matrix in zip(TEXTS, states, strict=True):
        assert type(matrix) is torch.Tensor
        expected = states_of(tiny, text, double=True)
        np.testing.assert_allclose(matrix, expected, atol=PIECE, rtol=0)


def test_a_tensor_can_be_trained_on(model):
    """It is computed without gradients, and gradients may be computed with it."""
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    assert type(vectors) is torch.Tensor
    np.testing.assert_array_equal(vectors.numpy(), model.encode(TEXTS))
    weight = torch.ones(24, requires_grad=True)
    (vectors @ weight).sum().backward()  # an inference tensor would refuse
    # Sums of up to 4 in float32.
    np.testing.assert_allclose(weight.grad, vectors.sum(dim=0), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": ["a cat", 3]}, "text 1"),
        ({"texts": ["a cat", "a dog", "a \ud800"]}, "text 2"),
        ({"output_value": "word"}, "'word'"),
        ({"precision": "int4"}, "'int4'"),
        ({"dtype": "float16"}, "'float16'"),
        ({"truncate_dim": 0}, "truncate_dim"),
        ({"truncate_dim": 25}, "24"),
        ({"batch_size": 0}, "batch_size"),
        ({"truncate_dim": 5, "output_value": "token_embeddings"}, "truncate_dim"),
        (
            {"normalize_embeddings": True, "output_value": "token_embeddings"},
            "normalize_embeddings",
        ),
    ],
)
def test_texts_and_options_that_cannot_be_used(model, options, message):
    """Before anything is computed."""
    options = {"texts": TEXTS} | options
    with pytest.raises(InputError, match=message):
        model.encode(**options)
    with pytest.raises(InputError, match=message):
        list(model.encode_stream(**options))


@pytest.mark.parametrize(("flags", "able"), [({"avx2"}, False), ({"avx2", "amx_bf16"}, True)])
def test_bfloat16_if_the_cpu_has_it(model, monkeypatch, flags, able):
    """Emulated, it is many times slower."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    exact = model.encode(TEXTS)
    if not able:
        with pytest.raises(InputError, match="bfloat16 cannot be used: the CPU has none of"):
            model.encode(TEXTS, dtype="bfloat16")
        np.testing.assert_array_equal(model.encode(TEXTS, dtype="auto"), exact)
        return
    for dtype in ("bfloat16", "auto"):
        vectors = model.encode(TEXTS, dtype=dtype)
        assert vectors.dtype == np.float32
        assert (vectors != exact).any(axis=1).all()  # it was computed otherwise
        np.testing.assert_allclose((vectors * exact).sum(axis=1), 1, atol=1e-3, rtol=0)


def test_a_training_loops_autocast_does_not_reach_in(model):
    """The dev score of a run must not depend on it."""
    expected = model.encode(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_an_encoder_in_bfloat16_gives_float32_arrays(tiny):
    """NumPy has no bfloat16."""
    encoder = SentenceEncoder.load(tiny).bfloat16()
    exact = encoder.encode(TEXTS, convert_to_tensor=True)
    for vector, tensor in zip(encoder.encode(TEXTS), exact, strict=True):
        assert (vector.dtype, tensor.dtype) == (np.float32, torch.bfloat16)
        np.testing.assert_array_equal(vector, tensor.float())


@pytest.mark.parametrize("output", ["sentence_embedding", "token_embeddings"])
@pytest.mark.parametrize(
    "name", ["bert.embeddings.word.weight", "bert.layers.1.feed_forward_norm.weight"]
)
def test_vectors_that_are_not_finite_are_an_error(tiny, output, name):
    """3e38 is a number of float32, and its square is not."""
    model = SentenceEncoder.load(tiny)
    weight = model.get_parameter(name)
    weight.data = weight.data.clone()
    weight.data[..., :2] = 3e38
    with pytest.raises(InputError, match="a dog"):
        model.encode(["a dog"], output_value=output)


def test_the_text_of_a_vector_that_is_not_finite_is_named(tiny):
    """Each text has a row to itself here: NaN reaches no other."""
    model = SentenceEncoder.load(tiny)
    word = model.bert.embeddings.word.weight
    word.data = word.data.clone()
    word.data[model.tokenizer.encode(["moon"]).ids[0][1]] = torch.nan
    tokens = model.tokens_of(["the cat", "a dog", "the moon", "the sun"])
    with pytest.raises(InputError, match="'the moon'"):
        model.vectors_of(tokens, batch_tokens=1)


@pytest.fixture
def counted(monkeypatch) -> list[tuple[int, int | None]]:
    """The texts that each bar has counted, and its total, when it is closed."""
    counts: list[tuple[int, int | None]] = []
    close = Bar.close

    def spy(bar):
        if not bar.disable:
            counts.append((bar.n, bar.total))
            close(bar)

    monkeypatch.setattr(Bar, "close", spy)
    return counts


class Updates(Bar):
    """A bar that lists what it counts."""

    def __init__(self):
        super().__init__(total=3)
        self.counts = []

    def update(self, n=1):
        self.counts.append(n)


def test_a_bar_counts_the_texts_of_each_batch(model):
    """A repeated text, which is not computed again, is counted first."""
    bar = Updates()
    tokens = model.tokens_of(["a dog", "moon", "moon"])
    model.vectors_of(tokens, batch_tokens=4, progress=bar)
    assert bar.counts == [1, 1, 1]


def test_a_bar_counts_the_texts_of_a_call(model, counted):
    """One bar for each call that asks for it."""
    model.encode(["a dog", "moon", "moon"], show_progress_bar=True)
    model.encode(["a dog", "moon"], output_value="token_embeddings", show_progress_bar=True)
    model.encode(TEXTS)
    assert counted == [(3, 3), (2, 2)]


@pytest.mark.parametrize("total", [6, None])
def test_a_stream_has_one_bar_for_all_chunks(model, counted, total):
    """A bar for each would tell nobody how long the whole takes."""
    parts = [["a dog", "moon"], ["moon", "the cat"], ["a dog", "the sun"]]
    assert len([*model.encode_chunks(parts, True, total, {})]) == 3
    assert counted == [(6, total)]


def test_the_other_models_count_too(tiny, tmp_path, counted):
    """Each has batches of its own."""
    scorer = CrossEncoder(SentenceEncoder.load(tiny), ClassifierHead(24), "binary")
    scorer.predict([("a dog", text) for text in TEXTS], show_progress_bar=True)
    MultiVectorEncoder.load(write_colbert(tmp_path / "colbert")).encode(
        TEXTS, query=False, show_progress_bar=True
    )
    sparse = SparseEncoder.load(ROOT / "tests" / "reference" / "architectures" / "tiny-splade")
    sparse.encode(TEXTS, convert_to_sparse_tensor=True, show_progress_bar=True)
    distill(SentenceEncoder.load(tiny), 8).encode(TEXTS, show_progress_bar=True)
    assert counted == [(7, 7)] * 4


# ----------------------------------------------------------------------------------- encode_stream


@given(st.lists(st.sampled_from(TEXTS), max_size=15), st.integers(1, 100))
@settings(max_examples=25, deadline=None)
def test_a_stream_gives_what_a_list_gives(model, texts, characters):
    """In chunks of any size, and all texts that were cut are counted."""
    parts = list(chunks(texts, characters))
    vectors = list(model.encode_chunks(parts, False, None, {}))
    assert model.truncated == texts.count(TEXTS[2])
    assert [len(part) for part in vectors] == [len(part) for part in parts]
    if texts:
        np.testing.assert_allclose(np.concatenate(vectors), model.encode(texts), atol=1e-6, rtol=0)


def test_a_stream_is_read_as_far_as_it_is_computed(model):
    """A file larger than memory must not be read at once."""
    numbers = []

    def texts():
        for number in range(5):
            numbers.append(number)
            yield "ten letters " * 2**15  # a chunk of its own

    vectors = model.encode_stream(texts(), truncate_dim=3, convert_to_tensor=True)
    assert numbers == []
    assert next(vectors).shape == (1, 3)
    assert numbers == [0]


# -------------------------------------------------------------------------------------------- save


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_saved_and_loaded_the_vectors_are_the_same_bit_for_bit(tiny, plain, tmp_path, pooling):
    """Also without normalising."""
    for source, normalize in ((tiny, True), (plain, False)):
        model = SentenceEncoder.load(source, pooling=pooling)
        model.save(tmp_path / "saved")
        again = SentenceEncoder.load(tmp_path / "saved")
        np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
        assert (again.tokenizer.limit, again.pooling.mode, again.normalize) == (
            16,
            pooling,
            normalize,
        )
        assert (tmp_path / "saved" / "2_Normalize").exists() == normalize


def test_the_saved_folder_has_every_file_of_the_layout_and_nothing_of_the_former_model(
    tiny, model, tmp_path
):
    """Files of two models would be mixed."""
    folder = tmp_path / "saved"
    SentenceEncoder.load(tiny, pooling="max").save(folder)
    model.save(folder)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert found >= {
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "config.json",
    }
    assert found >= {"model.safetensors", "tokenizer.json", "1_Pooling/config.json", "2_Normalize"}
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 16
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("target", ["source", "other"])
def test_saving_over_the_source_or_without_it(tiny, tmp_path, model, target):
    """Nothing is read from the source after it was loaded."""
    shutil.copytree(tiny, tmp_path / "source")
    own = SentenceEncoder.load(tmp_path / "source")
    if target == "other":
        shutil.rmtree(tmp_path / "source")
    own.save(tmp_path / target)
    np.testing.assert_array_equal(
        SentenceEncoder.load(tmp_path / target).encode(TEXTS), model.encode(TEXTS)
    )


@pytest.mark.parametrize(
    ("module", "name", "failure"),
    [
        (
            checkpoint,
            "save_file",
            SafetensorError("Error while serializing: I/O error: No space left on device"),
        ),
        (sentence_encoder, "write_modules", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_full_disk_leaves_the_old_folder_whole(
    tiny, model, tmp_path, monkeypatch, module, name, failure
):
    """Hours of training may be in it."""

    def fail(*_, **__):
        raise failure

    folder = tmp_path / "saved"
    model.save(folder)
    monkeypatch.setattr(module, name, fail)
    with pytest.raises(OSError, match="No space left on device"):
        SentenceEncoder.load(tiny, pooling="max").save(folder)
    np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(TEXTS), model.encode(TEXTS))
    assert [*tmp_path.iterdir()] == [folder]


# ---------------------------------------------------------------------------------- the real model


@pytest.mark.weights
def test_real_vectors_are_those_of_the_reference(minilm):
    """The published weights, in float32."""
    sentences = [
        "A man is playing a guitar.",
        "Hi",
        "Two dogs run through the snow, chasing a ball.",
    ]
    vectors = torch.from_numpy(SentenceEncoder.load(minilm).encode(sentences))
    assert_parity("all-MiniLM-L6-v2 vectors", vectors, golden("minilm")["vectors"], MINILM_VECTOR)
