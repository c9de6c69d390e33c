"""An adapter takes the options that it obeys, and says what to write in place of others."""

import inspect
import shutil

import numpy as np
import pytest
import torch

import minisbert
from minisbert.core import InputError
from minisbert.integrations.engines import EncodeBatch
from minisbert.integrations.opening import (
    EMBEDDER_OPTIONS,
    ENCODE_OPTIONS,
    RANKER_OPTIONS,
    open_cached,
    open_dense,
    open_once,
    open_ranker,
)
from minisbert.models.pair_model import PairScorer
from minisbert.models.sentence_encoder import SentenceEncoder

TEXTS = ["the cat sits on the mat", "a dog runs in the park"]


def test_every_option_is_one_of_load_encode_or_rank():
    """A renamed argument must not leave a name here that every adapter then passes on in vain."""
    of_load = {*inspect.signature(minisbert.load).parameters}
    of_encode = {*inspect.signature(SentenceEncoder.encode).parameters}
    of_rank = {*inspect.signature(PairScorer.rank).parameters}
    assert {*ENCODE_OPTIONS} <= of_encode
    assert {*EMBEDDER_OPTIONS} <= of_load | of_encode
    assert {*RANKER_OPTIONS} <= of_load | of_rank


def test_options_of_load_and_of_encode_reach_them(tiny):
    """One dictionary of options serves both."""
    options = {"max_seq_length": 5, "truncate_dim": 7, "normalize_embeddings": True}
    encoder, encode_options = open_dense("X", tiny, options, EMBEDDER_OPTIONS)
    vectors = encoder.encode(TEXTS, **encode_options)
    assert vectors.shape == (2, 7)
    assert encoder.max_seq_length == 5
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_dtype_is_encodes_unless_the_model_is_compiled(tiny):
    """Both functions have the option, and load takes it only for a compiled model."""
    encoder, encode_options = open_dense("X", tiny, {"dtype": "bfloat16"}, EMBEDDER_OPTIONS)
    vectors = encoder.encode(TEXTS, **encode_options)
    exact = SentenceEncoder.load(tiny).encode(TEXTS)
    assert 1e-5 < np.abs(vectors - exact).max() < 0.1


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("truncate_dims", "truncate_dim"),  # misspelt
        ("model_kwargs", "device"),  # LangChain's
        ("encode_kwargs", "batch_size"),
        ("query_instruction", "prompts"),  # LlamaIndex'
        ("prefix", "prompts"),  # Haystack's
        ("progress_bar", "show_progress_bar"),
        ("model_name", "model"),  # Chroma's
        ("cache_folder", "HF_HOME"),
        ("embed_dim", "truncate_dim"),  # MTEB's
        ("default_prompt_name", "prompts"),  # would change nothing
        ("song", "max_seq_length"),
    ],
)
def test_an_unknown_option_says_what_to_write(tiny, name, noun):
    """An option that nobody reads makes a wrong result without a word."""
    with pytest.raises(TypeError, match=f"{name}: .*{noun}"):
        open_dense("MinisbertEmbeddings", tiny, {name: 1}, EMBEDDER_OPTIONS)


def test_options_of_load_are_too_late_for_an_open_model(tiny):
    """They were ignored for a model that is given in place of its name."""
    encoder = SentenceEncoder.load(tiny)
    with pytest.raises(InputError, match="truncate_dim"):
        open_dense("X", encoder, {"truncate_dim": 7}, EMBEDDER_OPTIONS)
    same, encode_options = open_dense("X", encoder, {"batch_size": 2}, EMBEDDER_OPTIONS)
    assert same is encoder
    assert encode_options == {"batch_size": 2}


def test_a_ranker_takes_no_option_of_an_encoder(tiny):
    with pytest.raises(TypeError, match="normalize_embeddings"):
        open_ranker("X", tiny, {"normalize_embeddings": True})


def test_a_dtype_without_compiled_is_none_of_a_rankers(tiny):
    """rank has no such option, and an open cross-encoder would have ignored it."""
    with pytest.raises(InputError, match="compiled"):
        open_ranker("X", tiny, {"dtype": "bfloat16"})


def test_prompts_are_a_dictionary(tiny):
    with pytest.raises(InputError, match="dictionary"):
        open_dense("X", tiny, {"prompts": "query: "}, EMBEDDER_OPTIONS)


def test_a_prompt_that_no_text_would_get_is_refused(tiny):
    """An embedder asks for the prompts of queries and documents, by these names."""
    with pytest.raises(InputError, match="qery"):
        open_dense("X", tiny, {"prompts": {"qery": "query: "}}, EMBEDDER_OPTIONS)


def test_a_model_is_opened_once_until_it_is_saved_anew(tiny, tmp_path):
    """A notebook trains into the same folder again and again."""
    open_cached.cache_clear()
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    options = {"device": "cpu", "prompts": {"query": "query: "}}
    first = open_once(folder, options)
    assert open_once(folder, options) is first
    assert first.prompts["query"] == "query: "

    changed = SentenceEncoder.load(folder)
    with torch.no_grad():
        changed.bert.embeddings.word.weight.mul_(1.5)
    shutil.rmtree(folder)
    changed.save(folder)
    second = open_once(folder, options)
    np.testing.assert_array_equal(second.encode(TEXTS), changed.encode(TEXTS))


def test_prompts_reach_the_workers_of_an_engine(tiny):
    """They are a dictionary, which is no key of the workers' cache."""
    encode = EncodeBatch(tiny, prompts={"title": "the "}, prompt_name="title", batch_size=1)
    expected = SentenceEncoder.load(tiny).encode(TEXTS, prompt="the ")
    np.testing.assert_allclose(encode({"text": TEXTS})["vector"], expected, atol=2e-6)


def test_an_engine_refuses_an_open_encoder(tiny):
    """Each worker opens its own."""
    with pytest.raises(InputError, match="folder"):
        EncodeBatch(SentenceEncoder.load(tiny))
