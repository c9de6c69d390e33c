"""Calls of sentence-transformers give the same values in the same types."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

import minisbert
from minisbert import CrossEncoder, MultiVectorEncoder, SentenceEncoder, SparseEncoder, util
from minisbert.models.cross_encoder import ClassifierHead
from tests.conftest import ROOT

SPLADE = ROOT / "tests" / "reference" / "architectures" / "tiny-splade"
COLBERT = ROOT / "tests" / "reference" / "architectures" / "tiny-colbert"
TEXTS = [
    "the cat sits on the mat",
    "a dog",
    "a woman eats bread and an apple under the sun",
    "moon",
]
PAIRS = [("the cat sits", "a cat"), ("a dog", "moon"), ("moon", "the sun")]
PROMPTS = {"query": "a bird ", "document": "the sun "}
STATES = ["", "model.max_seq_length = 5", "model.truncate_dim = 6"]
STATES += ["model.prompts, model.default_prompt_name = {'q': 'the moon '}, 'q'"]
IN_EVERY_STATE = [
    "model.encode(TEXTS)",
    "model.encode('a dog', convert_to_numpy=False)",
    "model.encode(TEXTS, convert_to_numpy=False)",
    "model.encode(TEXTS, batch_size=2, show_progress_bar=False)",
    "model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)",
    "model.encode(TEXTS, output_value='token_embeddings')",
    "model.encode('a dog', output_value='token_embeddings')",
    *(
        f"model.encode(TEXTS, precision='{precision}')"
        for precision in ("int8", "uint8", "binary", "ubinary")
    ),
    "model.encode(TEXTS, prompt='a bird ')",
    "model.encode(TEXTS, prompt_name='query') if 'q' not in model.prompts else None",
    "model.encode_query('a dog')",
    "model.encode_document(TEXTS, convert_to_tensor=True)",
    "torch.as_tensor(model.similarity(model.encode(TEXTS), model.encode('a dog')))",
    "torch.as_tensor(model.similarity_pairwise(model.encode(TEXTS), model.encode(TEXTS[::-1])))",
    "model.get_embedding_dimension(), model.max_seq_length",
]
SAME = [  # an expression that both libraries understand
    "model.encode(TEXTS, None, None, 2, False, 'sentence_embedding', 'float32', True, True)",
    "model.encode(TEXTS, precision=None, normalize_embeddings=True)",
    "model.encode([], convert_to_numpy=False)",
    "model.encode([], output_value='token_embeddings')",
    "[model.tokenize(TEXTS)[key] for key in ('input_ids', 'attention_mask', 'token_type_ids')]",
    "model.tokenize([])",
    "util.cos_sim(vectors[0], vectors)",
    "util.cos_sim(list(vectors), list(vectors))",
    "util.dot_score(torch.tensor(vectors), torch.tensor(vectors))",
    "util.semantic_search(torch.tensor(vectors), torch.zeros(0, 24))",
    "util.paraphrase_mining(model, [])",
    "reranker.max_length, reranker.max_seq_length, str(reranker.device), str(reranker.dtype)",
    "reranker.predict(PAIRS, activation_fn=torch.nn.Softmax(dim=-1))",
    "reranker.predict(PAIRS, convert_to_numpy=False)",
    "reranker.predict(PAIRS[0], convert_to_numpy=False)",
    "reranker.predict([list(pair) for pair in PAIRS], batch_size=2, convert_to_tensor=True)",
    "reranker.predict([], convert_to_numpy=False)",
    "reranker.predict(PAIRS, apply_softmax=True)",
    "reranker.rank('the cat', TEXTS, 2, True)",
    "reranker.rank(query='the cat', documents=TEXTS, activation_fn=torch.nn.Identity())",
    "classes.predict(PAIRS)",
    "classes.predict(PAIRS, apply_softmax=True)",
    "classes.predict(PAIRS, activation_fn=torch.nn.Softmax(dim=1), convert_to_tensor=True)",
    "logits.predict(PAIRS)",
    "logits.predict(PAIRS, activation_fn=torch.nn.Sigmoid())",
    "splade.decode(torch.tensor(words), top_k=3)",
    "splade.decode(torch.tensor(words[0]))",
    "splade.encode(TEXTS, convert_to_sparse_tensor=True, max_active_dims=4).to_dense()",
    "splade.encode(TEXTS, convert_to_sparse_tensor=True).layout",
    "splade.encode('a dog', convert_to_sparse_tensor=True).to_dense()",
    "splade.encode('a dog', convert_to_sparse_tensor=True).layout",
    "splade.similarity(torch.tensor(words), torch.tensor(words))",
    "splade.similarity(torch.tensor(words).to_sparse(), torch.tensor(words).to_sparse())",
    "splade.similarity_pairwise(torch.tensor(words).to_sparse(), torch.tensor(words).to_sparse())",
    "late.encode_query('a dog')",
    "late.encode_document('a dog', convert_to_numpy=True)",
    "late.similarity(late.encode_query(TEXTS), late.encode_document(TEXTS)) / 10",
    "late.similarity(late.encode_query('a dog'), late.encode_document(TEXTS)) / 10",
    "late.similarity_pairwise(late.encode_query(TEXTS), late.encode_document(TEXTS)) / 10",
    "splade.similarity_fn_name, splade.max_active_dims, splade.max_seq_length, "
    "splade.get_embedding_dimension()",
]


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """Two CrossEncoders: a reranker that ends in a sigmoid, and one of three classes."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("cross-encoders")
    CrossEncoder(SentenceEncoder.load(tiny), ClassifierHead(24), "binary").save(root / "reranker")
    head = ClassifierHead(24, outputs=3)
    CrossEncoder(SentenceEncoder.load(tiny), head, "classes", ["a", "b", "c"]).save(
        root / "classes"
    )
    return root


@pytest.fixture(scope="module")
def ours(tiny, folders):
    model = SentenceEncoder.load(tiny)
    # far enough from each other that both libraries sort them alike
    words = np.float32([[0, 1.5, 0.25, 3, *[0] * 127], [0.75, 0, 2, 1, *[0] * 127], [0] * 131])
    return {
        "model": model,
        "reranker": CrossEncoder.load(folders / "reranker"),
        "logits": CrossEncoder.load(folders / "reranker", activation_fn=torch.nn.Identity()),
        "classes": CrossEncoder.load(folders / "classes"),
        "splade": SparseEncoder.load(SPLADE),
        "late": MultiVectorEncoder.load(COLBERT),
        "util": util,
        **{
            "TEXTS": TEXTS,
            "PAIRS": PAIRS,
            "vectors": model.encode(TEXTS),
            "words": words,
            "torch": torch,
        },
    }


@pytest.fixture(scope="module")
def theirs(ours, tiny, folders):
    library = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    reranker = str(folders / "reranker")
    return ours | {
        "model": library.SentenceTransformer(str(tiny), device="cpu"),
        "reranker": library.CrossEncoder(reranker, device="cpu"),
        "logits": library.CrossEncoder(reranker, device="cpu", activation_fn=torch.nn.Identity()),
        "classes": library.CrossEncoder(str(folders / "classes"), device="cpu"),
        "splade": library.SparseEncoder(str(SPLADE), device="cpu"),
        "late": library.MultiVectorEncoder(str(COLBERT), device="cpu"),
        "util": library.util,
    }


def assert_same(found, expected, levels=0):
    """Equal values in equal types, to the tolerance of real vectors, or so many levels of codes."""
    if isinstance(expected, dict):
        found, expected = list(found.items()), list(expected.items())
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, levels)
    elif isinstance(expected, Tensor | np.ndarray):
        assert (type(found), found.dtype) == (type(expected), expected.dtype)
        # of vectors of length 1; hidden states are not scaled, their largest numbers are near 3
        atol = 2e-6 if abs(expected).max() <= 1 else 1e-5
        np.testing.assert_allclose(found, expected, rtol=0, atol=levels or atol)
    elif isinstance(expected, float):
        assert type(found) is float
        assert found == pytest.approx(expected, abs=2e-6)
    else:
        assert found == expected


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", SAME)
def test_the_same_call_gives_the_same(code, ours, theirs):
    """Code for sentence-transformers runs with the same result."""
    assert_same(eval(code, dict(ours)), eval(code, dict(theirs)))


@pytest.mark.reference
@pytest.mark.parametrize("state", STATES)
def test_the_same_calls_in_every_state_of_a_model(tiny, state):
    """After every setting that users change."""
    library = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    models = (
        minisbert.load(tiny, prompts=PROMPTS, device="cpu"),
        library.SentenceTransformer(str(tiny), device="cpu"),
    )
    models[1].prompts = dict(PROMPTS)
    for model in models:
        exec(state, {"model": model})
    for code in IN_EVERY_STATE:
        # a level, where the last bit of a float decides; hidden states of up to 3
        levels = 1 if "int8" in code else 2e-5 if "token" in code else 0
        assert_same(
            *(eval(code, {"model": model, "TEXTS": TEXTS, "torch": torch}) for model in models),
            levels,
        )


def test_models_are_copied_and_pickled(ours):
    """Ray and multiprocessing do it."""
    model = ours["model"]
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))


def test_no_texts_have_no_vectors(ours):
    """Where theirs forgets the width, (0,), ours keeps it: rows of none can be stacked and
    compared.
    """
    model = ours["model"]
    for none in (model.encode([], convert_to_tensor=True), model.encode((), precision="int8")):
        assert none.shape == (0, 24)
    assert model.similarity(model.encode([]), model.encode(TEXTS)).shape == (0, 4)
    assert util.community_detection(model.encode([])) == []
    assert ours["reranker"].predict(
        [], convert_to_tensor=True, activation_fn=torch.nn.Identity()
    ).shape == (0,)
    assert ours["reranker"].rank("a", []) == []


def test_a_ranking_is_written_as_json(ours):
    """NumPy's numbers could not be."""
    ranking = ours["reranker"].rank("the cat", TEXTS, num_workers=0)
    assert json.loads(json.dumps(ranking)) == ranking


def test_the_length_of_pairs_is_set(folders):
    reranker = CrossEncoder.load(folders / "reranker")
    reranker.max_length = 5
    assert (
        len(reranker.tokenize(["the cat sits on the mat"], ["moon"]).ids[0])
        == reranker.max_length
        == 5
    )


def test_a_subclass_loads(tiny):
    """A user's subclass is opened as what it is."""

    class MyEncoder(SentenceEncoder):
        pass

    assert type(MyEncoder.load(tiny)) is MyEncoder
