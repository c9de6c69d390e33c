"""What users and libraries write for sentence-transformers: it does the same here, or an error names the way out."""

import copy
import json
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import minisbert
from minisbert import CrossEncoder, SentenceEncoder, SparseEncoder, StaticEncoder, util
from minisbert.backends import package
from minisbert.backends.package import About, CompiledEncoder
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError
from minisbert.models import habits
from minisbert.models.cross_encoder import ClassifierHead
from tests.conftest import ROOT

SPLADE = ROOT / "tests" / "reference" / "architectures" / "tiny-splade"
TEXTS = ["the cat sits on the mat", "a dog", "a woman eats bread and an apple under the sun", "moon"]
PAIRS = [("the cat sits", "a cat"), ("a dog", "moon"), ("moon", "the sun")]
ADVICE = [  # a statement, its error, and a word of the way out
    ("from minisbert import SentenceTransformer", ImportError, r"SentenceEncoder\.load"),
    ("from minisbert import SentenceTransformerTrainer", ImportError, r"minisbert\.train"),
    ("from minisbert import SentenceTransformerTrainingArguments", ImportError, r"minisbert\.train"),
    ("from minisbert import CrossEncoderTrainer", ImportError, r"minisbert\.train"),
    ("from minisbert import InputExample", ImportError, "header"),
    ("from minisbert import losses", ImportError, "--objective"),
    ("from minisbert import datasets", ImportError, "inspect"),
    ("from minisbert import quantize_embeddings", ImportError, "precision"),
    ("from minisbert.models import Transformer, Pooling", ImportError, "pooling="),
    ("from minisbert.evaluation import EmbeddingSimilarityEvaluator", ImportError, "evaluators"),
    ("minisbert.SentenceTransformer('all-MiniLM-L6-v2')", AttributeError, r"SentenceEncoder\.load"),
    ("minisbert.losses.CosineSimilarityLoss(model)", AttributeError, "--objective"),
    ("minisbert.models.Normalize()", AttributeError, "normalize_embeddings"),
    ("minisbert.SimilarityFunction.COSINE", AttributeError, "cosine"),
    ("util.pytorch_cos_sim", AttributeError, "cos_sim"),
    ("util.http_get", AttributeError, "assets"),
    ("SentenceEncoder('all-MiniLM-L6-v2')", TypeError, r"SentenceEncoder\.load\('all-MiniLM-L6-v2'\)"),
    ("SentenceEncoder(modules=[1])", TypeError, "pooling="),
    ("CrossEncoder('ms-marco', max_length=512)", TypeError, r"CrossEncoder\.load"),
    ("StaticEncoder('potion')", TypeError, r"StaticEncoder\.load"),
    ("SentenceEncoder.from_pretrained('x')", AttributeError, "load"),
    ("SentenceEncoder.load('x', trust_remote_code=True)", TypeError, r"models\.md"),
    ("SentenceEncoder.load('x', revision='v2')", TypeError, "@revision"),
    ("SentenceEncoder.load('x', cache_folder='/x')", TypeError, "HF_HOME"),
    ("SentenceEncoder.load('x', token='hf_')", TypeError, "HF_TOKEN"),
    ("SentenceEncoder.load('x', local_files_only=True)", TypeError, "HF_HUB_OFFLINE"),
    ("SentenceEncoder.load('x', backend='onnx')", TypeError, "export-onnx"),
    ("SentenceEncoder.load('x', model_kwargs={'dtype': 'bfloat16'})", TypeError, "dtype="),
    ("SentenceEncoder.load('x', tokenizer_kwargs={})", TypeError, "max_seq_length"),
    ("SentenceEncoder.load('x', max_length=256)", TypeError, "max_seq_length"),
    ("SentenceEncoder.load(model_name_or_path='x')", TypeError, "first"),
    ("CrossEncoder.load('x', num_labels=1)", TypeError, "PairModel"),
    ("CrossEncoder.load('x', max_seq_length=256)", TypeError, "max_length"),
    ("minisbert.load('x', trust_remote_code=True)", TypeError, r"models\.md"),
    ("model.encode(TEXTS, device='cuda')", TypeError, r"load\("),
    ("model.encode_query(TEXTS, device='cuda')", TypeError, r"load\("),
    ("model.encode(TEXTS, pool={})", TypeError, "Ray"),
    ("model.encode(sentences=TEXTS)", TypeError, "first"),
    ("model.encode(TEXTS, num_workers=4)", TypeError, "cores"),
    ("reranker.predict(PAIRS, device='cuda')", TypeError, r"load\("),
    ("reranker.rank('a', TEXTS, device='cuda')", TypeError, r"load\("),
    ("util.semantic_search(vectors, vectors, corpus_chunk_size=9)", TypeError, "blocks"),
    ("model.fit([(1, 2)])", AttributeError, r"minisbert\.train"),
    ("model.evaluate(print)", AttributeError, r"evaluator\("),
    ("model.push_to_hub('me/model')", AttributeError, "hf upload"),
    ("model.start_multi_process_pool()", AttributeError, "Ray"),
    ("model.encode_multi_process(TEXTS, {})", AttributeError, "Ray"),
    ("model[0].auto_model", TypeError, r"\.bert"),
    ("model._first_module()", AttributeError, r"\.bert"),
    ("reranker.model", AttributeError, r"\.bert"),
    ("reranker.num_labels", AttributeError, "labels"),
    ("[layer for layer in model]", TypeError, r"\.bert"),
    ("model.tokenizer(TEXTS, padding=True)", TypeError, "tokenize"),
    ("model(model.tokenize(TEXTS))", TypeError, "input_ids"),
    ("model.preprocess(TEXTS)", AttributeError, "tokenize"),
    ("model.get_max_seq_length()", AttributeError, "max_seq_length"),
    ("reranker.predict(PAIRS, 32)", TypeError, "batch_size=32"),
    ("reranker.predict(PAIRS, prompt='query: ')", TypeError, "before"),
    ("reranker.predict(PAIRS, prompt_name='query')", TypeError, "before"),
    ("reranker.rank('a', TEXTS, convert_to_tensor=True)", TypeError, "plain"),
    ("reranker.rank('a', TEXTS, apply_softmax=True)", TypeError, "predict"),
    ("reranker.prompts", AttributeError, "before"),
    ("reranker.default_prompt_name", AttributeError, "before"),
    ("reranker.default_activation_function", AttributeError, "activation_fn"),
    ("reranker.get_default_activation_fn()", AttributeError, "activation_fn"),
    ("reranker.backend", AttributeError, "compiled=True"),
    ("reranker.model_type", AttributeError, "__name__"),
    ("reranker.modalities", AttributeError, "texts"),
    ("reranker.supports('text')", AttributeError, "texts"),
    ("reranker.merge", AttributeError, "state_dict"),
    ("reranker.set_adapter('x')", AttributeError, "peft"),
    ("reranker.encode(TEXTS)", AttributeError, "predict"),
    ("splade.splade_pooling_chunk_size", AttributeError, "leave it out"),
    ("splade.is_singular_input('a')", AttributeError, "isinstance"),
    ("splade.get_model_kwargs()", AttributeError, "signatures"),
    ("splade.SUPPORTED_SIMILARITY_FN_NAMES", AttributeError, "dot"),
    ("splade.active_adapters()", AttributeError, "peft"),
    ("splade.encode(TEXTS, save_to_cpu=True)", TypeError, "CPU"),
    ("splade.predict(PAIRS)", AttributeError, "CrossEncoder"),
    ("model.sparsity(vectors)", AttributeError, "SparseEncoder"),
    ("model.decode(vectors)", AttributeError, "SparseEncoder"),
    ("model.intersection(vectors[0], vectors)", AttributeError, "SparseEncoder"),
    ("model.save_pretrained('x', safe_serialization=True)", TypeError, "safetensors"),
    ("model.save_pretrained('x', create_model_card=True)", TypeError, "cards"),
]
SAME = [  # an expression that both libraries understand
    "model.encode(TEXTS)",
    "model.encode('moon')",
    "model.encode(TEXTS, None, None, 2, False, 'sentence_embedding', 'float32', True, True)",
    "model.encode(TEXTS, precision=None)",
    "model.encode(TEXTS, device=None, pool=None, chunk_size=None, normalize_embeddings=True)",
    "model.encode(TEXTS, convert_to_numpy=False)",
    "model.encode('moon', convert_to_numpy=False)",
    "model.encode(TEXTS, output_value='token_embeddings')",
    "model.encode([], convert_to_numpy=False)",
    "model.encode([], output_value='token_embeddings')",
    "model.tokenize(TEXTS)['input_ids']",
    "model.tokenize(TEXTS)['attention_mask']",
    "model.tokenize(TEXTS)['token_type_ids']",
    "model.tokenize([])",
    "util.cos_sim(vectors, vectors[:2])",
    "util.cos_sim(vectors[0], vectors)",
    "util.cos_sim(list(vectors), list(vectors))",
    "util.dot_score(torch.tensor(vectors), torch.tensor(vectors))",
    "util.pairwise_cos_sim(vectors[:2], vectors[2:])",
    "util.normalize_embeddings(torch.tensor(vectors))",
    "util.semantic_search(torch.tensor(vectors), torch.zeros(0, 24))",
    "util.semantic_search(torch.zeros(0, 24), torch.tensor(vectors))",
    "util.paraphrase_mining(model, [])",
    "reranker.max_length",
    "reranker.max_seq_length",
    "reranker.predict(PAIRS)",
    "reranker.predict(PAIRS, activation_fn=torch.nn.Identity())",
    "reranker.predict(PAIRS, activation_fn=torch.nn.Softmax(dim=-1))",
    "reranker.predict(PAIRS, convert_to_numpy=False)",
    "reranker.predict(PAIRS[0], convert_to_numpy=False)",
    "reranker.predict(PAIRS, convert_to_tensor=True, device=None)",
    "reranker.predict([], convert_to_numpy=False)",
    "reranker.rank('the cat', TEXTS, 2, True)",
    "reranker.rank('the cat', TEXTS, activation_fn=torch.nn.Identity())",
    "reranker.predict([list(pair) for pair in PAIRS], batch_size=2)",
    "reranker.predict(PAIRS, apply_softmax=True)",
    "reranker.rank(query='the cat', documents=TEXTS, top_k=9, batch_size=1)",
    "str(reranker.device), str(reranker.dtype), reranker.training, reranker.eval() is reranker",
    "reranker.to('cpu').predict(PAIRS)",
    "sum(weights.numel() for weights in reranker.parameters())",
    "classes.predict(PAIRS)",
    "classes.predict(PAIRS, apply_softmax=True)",
    "classes.predict(PAIRS, activation_fn=torch.nn.Softmax(dim=1), convert_to_tensor=True)",
    "classes.predict(PAIRS[0]).argmax()",
    "splade.sparsity(torch.tensor(words))",
    "splade.sparsity(torch.tensor(words[0]))",
    "splade.decode(torch.tensor(words), top_k=3)",
    "splade.decode(torch.tensor(words[0]))",
    "splade.decode(splade.intersection(torch.tensor(words[0]), torch.tensor(words)), top_k=2)",
    "splade.decode(splade.intersection(torch.tensor(words[0]), torch.tensor(words[1])))",
    "splade.encode(TEXTS, convert_to_sparse_tensor=True, max_active_dims=4).to_dense()",
    "splade.similarity_fn_name, splade.max_active_dims, splade.max_seq_length, splade.get_embedding_dimension()",
    "str(splade.device), str(splade.dtype), splade.eval() is splade",
    "logits.predict(PAIRS)",
    "logits.predict(PAIRS, activation_fn=torch.nn.Sigmoid())",
]


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A CrossEncoder that ends in a sigmoid, in the layout of both libraries."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("reranker") / "model"
    CrossEncoder(SentenceEncoder.load(tiny), ClassifierHead(24), "binary").save(path)
    return path


@pytest.fixture(scope="module")
def of_three(tiny, tmp_path_factory):
    """A CrossEncoder for three classes."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("classes") / "model"
    CrossEncoder(SentenceEncoder.load(tiny), ClassifierHead(24, outputs=3), "classes", ["a", "b", "c"]).save(path)
    return path


@pytest.fixture(scope="module")
def ours(tiny, folder, of_three):
    model, identity = SentenceEncoder.load(tiny), torch.nn.Identity()
    models = {"model": model, "reranker": CrossEncoder.load(folder)}
    models["logits"] = CrossEncoder.load(folder, activation_fn=identity)
    models |= {"classes": CrossEncoder.load(of_three), "splade": SparseEncoder.load(SPLADE)}
    classes = {"SentenceEncoder": SentenceEncoder, "CrossEncoder": CrossEncoder, "StaticEncoder": StaticEncoder}
    # far enough from each other that both sort them alike
    words = np.float32([[0, 1.5, 0.25, 3, *[0] * 127], [0.75, 0, 2, 1, *[0] * 127], [0] * 131])
    values = {"words": words, "TEXTS": TEXTS, "PAIRS": PAIRS, "vectors": model.encode(TEXTS), "torch": torch}
    return models | classes | values | {"util": util, "minisbert": minisbert}


@pytest.fixture(scope="module")
def theirs(ours, tiny, folder, of_three):
    library = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    reranker = library.CrossEncoder(str(folder), device="cpu")
    logits = library.CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity())
    model = library.SentenceTransformer(str(tiny), device="cpu")
    classes = library.CrossEncoder(str(of_three), device="cpu")
    ours = ours | {"classes": classes, "splade": library.SparseEncoder(str(SPLADE), device="cpu")}
    return ours | {"model": model, "reranker": reranker, "logits": logits, "util": library.util}


@pytest.mark.parametrize(("code", "error", "word"), ADVICE, ids=[code for code, _, _ in ADVICE])
def test_a_habit_that_fails_names_the_way_out(code, error, word, ours):
    with pytest.raises(error, match=word) as caught:
        exec(code, dict(ours))
    assert type(caught.value) in (error, InputError)


def assert_same(found, expected):
    """Equal values in equal types, to the tolerance of real vectors."""
    assert isinstance(found, Tensor | np.ndarray) == isinstance(expected, Tensor | np.ndarray)
    if isinstance(expected, dict):
        found, expected = list(found.items()), list(expected.items())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor | np.ndarray):
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        # of vectors of length 1; hidden states are not scaled, their largest numbers are near 3
        atol = 2e-6 if abs(expected).max() <= 1 else 1e-5
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    elif isinstance(expected, float):
        assert isinstance(found, float)
        assert found == pytest.approx(expected, abs=2e-6)
    else:
        assert found == expected


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", SAME)
def test_a_habit_that_works_gives_the_same(code, ours, theirs):
    assert_same(eval(code, dict(ours)), eval(code, dict(theirs)))


def test_names_that_are_missing_are_missing(ours):
    """hasattr, getattr with a default and dir ask as ever: only a use fails."""
    assert not hasattr(minisbert, "SentenceTransformer")
    assert not hasattr(SentenceEncoder, "from_pretrained")
    assert not hasattr(ours["model"], "fit")
    assert getattr(ours["reranker"], "num_labels", 7) == 7
    assert not {*dir(minisbert)} & {*habits.NAMES}
    with pytest.raises(AttributeError, match=r"'SentenceEncoder' object has no attribute 'encoed'"):
        _ = ours["model"].encoed
    with pytest.raises(TypeError, match="batch_sise"):
        ours["model"].encode(TEXTS, batch_sise=3)


def test_layers_are_found_and_models_are_copied(ours):
    model = ours["model"]
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
        assert other.bert.config == model.bert.config
    model.config = torch.nn.Linear(1, 1)  # a layer of this name is found before the advice
    assert model.config.in_features == 1
    del model.config


def test_no_texts_have_no_vectors(ours):
    """Where theirs forgets the width, (0,), ours keeps it: rows of none can be stacked and compared."""
    model = ours["model"]
    for none in (model.encode([]), model.encode([], convert_to_tensor=True), model.encode((), precision="int8")):
        assert none.shape == (0, 24)
    assert model.similarity(model.encode([]), model.encode(TEXTS)).shape == (0, 4)
    assert util.cos_sim(model.encode_query([]), model.encode_document(TEXTS)).shape == (0, 4)
    assert util.community_detection(model.encode([])) == []
    assert ours["reranker"].predict([]).shape == (0,)
    assert ours["reranker"].predict([], convert_to_tensor=True, activation_fn=torch.nn.Identity()).shape == (0,)
    assert ours["reranker"].rank("a", []) == []


def test_a_ranking_is_written_as_json(ours):
    ranking = ours["reranker"].rank("the cat", TEXTS, num_workers=0)
    assert json.loads(json.dumps(ranking)) == ranking


def test_the_length_of_pairs_is_set(ours, folder):
    reranker = CrossEncoder.load(folder)
    reranker.max_length = 5
    assert reranker.tokenize(["the cat sits on the mat"], ["moon"]).ids[0][0] == 2  # [CLS]
    assert (len(reranker.tokenize(["the cat sits on the mat"], ["moon"]).ids[0]), reranker.max_length) == (5, 5)
    with pytest.raises(InputError, match="positions"):
        reranker.max_length = 1000


@pytest.mark.exact("one side is computed in a fixture, before the mode begins")
def test_a_model_saves_under_their_name(ours, tmp_path):
    for name in ("model", "reranker"):
        ours[name].save_pretrained(tmp_path / name)
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "model").encode(TEXTS), ours["vectors"])
    again = CrossEncoder.load(tmp_path / "reranker")
    np.testing.assert_array_equal(again.predict(PAIRS), ours["reranker"].predict(PAIRS))


def test_a_subclass_loads(tiny, folder):
    class MyEncoder(SentenceEncoder):
        pass

    class MyReranker(CrossEncoder):
        pass

    assert type(MyEncoder.load(tiny)) is MyEncoder
    assert type(MyReranker.load(folder)) is MyReranker
    with pytest.raises(InputError, match=re.escape("SentenceEncoder.load")):
        StaticEncoder.load(tiny)


def test_a_compiled_encoder_pickles_by_its_path(tiny, tmp_path, monkeypatch):
    """The package itself is native code. What was set on the encoder comes with it."""
    opened = []
    about = About(kind="SentenceEncoder", dtype="float32", pooling="mean", width=24, hidden_size=24)

    def open_package(package, folder, dtype, pooling=None):
        opened.append((package, folder.path, dtype, pooling))
        return SimpleNamespace, about

    monkeypatch.setattr(package, "open_package", open_package)
    monkeypatch.chdir(tmp_path)
    encoder = CompiledEncoder.load(tiny, "tiny.pt2", max_seq_length=7, truncate_dim=3)
    other = pickle.loads(pickle.dumps(encoder))
    assert (other.max_seq_length, other.truncate_dim, other.run) == (7, 3, SimpleNamespace)
    assert opened[1] == (tmp_path / "tiny.pt2", ModelFolder(tiny).path, "float32", "mean")
    with pytest.raises(AttributeError, match="package"):
        other.save_pretrained(tmp_path / "x")
