"""Models in several threads and in forked processes: right vectors or an error, and no hang."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from minisbert import SentenceEncoder
from minisbert.core import InputError
from minisbert.models.transformer_encoder import evaluating
from minisbert.train import train

ROWS = [("a cat sits", "a cat"), ("the dog runs", "a dog"), ("blue sky", "the sky"), ("one", "two")]

# The parent starts OpenMP's threads, the child needs an answer that is large enough for threads.
FORK = """
import multiprocessing
import sys

import torch

from minisbert import SentenceEncoder

def encode(texts):
    return encoder.encode(texts), torch.get_num_threads()

torch.set_num_threads(2)
encoder = SentenceEncoder.load(sys.argv[1])
texts = ["a cat sits on the mat"] * 300
expected = encoder.encode(texts)
with multiprocessing.get_context("fork").Pool(1) as pool:
    vectors, threads = pool.apply(encode, [texts])
print(threads, abs(vectors - expected).max() < 1e-6)
"""
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)


@needs_fork
def test_a_child_that_is_forked_after_its_parent_has_encoded_can_encode_too(tiny):
    """It waited for ever for the threads of its parent, in a Pool on Linux and behind gunicorn."""
    command = [sys.executable, "-c", FORK, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "1 True\n"


def test_another_thread_cannot_encode_by_a_model_in_training(tiny):
    """Its vectors would have dropout, and the training would lose it."""
    model = SentenceEncoder.load(tiny)
    errors = []

    def encode_elsewhere(step, scores):
        with ThreadPoolExecutor() as threads:
            errors.append(threads.submit(model.encode, "a cat").exception())

    train(model, ROWS, batch_size=4, callback=encode_elsewhere)
    assert isinstance(errors[0], InputError)
    assert "train" in str(errors[0])


def test_the_training_thread_may_encode(tiny):
    """A callback scores the model between two steps, and after the training everybody may."""
    model = SentenceEncoder.load(tiny)
    vectors = []

    def encode_here(step, scores):
        vectors.append(model.encode("a cat"))

    train(model, ROWS, batch_size=4, callback=encode_here)
    with ThreadPoolExecutor() as threads:
        after = threads.submit(model.encode, "a cat").result()
    np.testing.assert_array_equal(vectors[0], after)


def test_a_model_that_another_thread_computes_with_is_not_trained(tiny):
    """The batch that it computes would get the weights of two steps."""
    model = SentenceEncoder.load(tiny)
    before = model.bert.embeddings.word.weight.clone()
    with evaluating(model.bert), pytest.raises(InputError, match="thread"):
        train(model, ROWS, batch_size=4)
    torch.testing.assert_close(model.bert.embeddings.word.weight, before, rtol=0, atol=0)
