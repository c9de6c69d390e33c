"""What the benchmarks' tables are computed from, and that vectors are checked."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks import emulated, ladder, machine, peers, sides, tune
from minisbert.core import InputError
from minisbert.core.weights import BertConfig
from minisbert.models.sentence_encoder import SentenceEncoder

LINES = [" ".join(words) for words in product(("cats", "a dog"), ("sits", "eats"), "abcdefg")]


@pytest.mark.parametrize(
    ("sizes", "lengths", "operations"),
    [
        ((8, 1, 12), [5], 5_280),
        ((12, 3, 20), [7, 7, 7], 154_224),
        ((384, 6, 1536), [14], 299_077_632),
    ],
)
def test_operations_of_an_encoder(sizes, lengths, operations):
    """The first two as torch.utils.flop_counter counts them in the forward pass of ``Bert``."""
    width, layers, inner = sizes
    config = BertConfig(
        vocab_size=30,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=inner,
        max_position_embeddings=20,
    )
    assert machine.encoder_flop(config, lengths) == operations


def test_an_emulated_cpu_has_nothing_beyond_avx2():
    flags = "flags\t\t: fma avx f16c avx2 avx512f avx512_vnni avx_vnni sse4_2 amx_bf16 amx_tile\n"
    expected = ["flags", ":", "fma", "avx", "f16c", "avx2", "sse4_2"]
    assert emulated.kept_from(flags).split() == expected


def lengths_of_texts() -> peers.Encode:
    """A side that encodes a text as its length."""

    def encode(texts):
        return np.array([len(text) for text in texts])

    return encode


def test_each_side_has_a_process_of_its_own():
    side = sides.Side(lengths_of_texts, keep_memory=False)
    seconds, vectors = side.timed([["a"], ["b", "cde"]])
    assert (len(seconds), vectors.tolist()) == (2, [1, 3])
    with pytest.raises(InputError, match="TypeError"):
        side.timed([[5]])
    side.close()
    assert not side.process.is_alive()


def test_the_steps_of_the_ladder_give_the_same_vectors(tiny, monkeypatch):
    monkeypatch.setattr(peers, "PAUSE", 0)  # between turns
    ids = SentenceEncoder.load(tiny).tokenizer.encode(LINES).ids
    eager = [step for step in ladder.STEPS if not step.compiled and step.dtype == "float32"]
    rows = ladder.measure(str(tiny), ids, eager, 2)
    assert all(len(row["seconds"]) == 2 and row["difference"] < 2e-6 for row in rows)

    def turned_round(encoder, ids):
        return ladder.as_given(encoder, ids[::-1])

    wrong = replace(eager[0], unscaled=turned_round)
    with pytest.raises(InputError, match="differ"):
        ladder.measure(str(tiny), ids, [eager[1], wrong], 1)


def test_advice_weighs_the_rate_and_the_accuracy():
    found = {
        "minisbert float32": {"texts_per_second": 480.0, "spearman": 82.03},
        "minisbert compiled bfloat16": {"texts_per_second": 900.0, "spearman": 82.04},
        "minisbert compiled int8": {"texts_per_second": 1_170.0, "spearman": 81.5},
    }
    assert tune.advice(found).startswith("use minisbert compiled bfloat16")
    found["minisbert compiled int8"]["spearman"] = 81.9
    assert tune.advice(found).startswith("use minisbert compiled int8")
