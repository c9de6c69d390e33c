"""What a GPU computes is what the CPU computes, and runs repeat to the bit there.

    CUDA_VISIBLE_DEVICES=0 python -m pytest tests/test_gpu.py

Otherwise pytest hides the GPU, and all of it is skipped.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import minisbert
from minisbert.backends.cuda import CudaEncoder
from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.models.pooling import ModelPooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.progress import Bar
from minisbert.train import main
from tests import toys

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA_VISIBLE_DEVICES shows no GPU"
)
REFERENCE = Path(__file__).parent / "reference"
TINY = REFERENCE.parents[1] / "weights" / "tiny"
FOLDERS = [TINY, REFERENCE / "tiny-roberta", REFERENCE / "tiny-distiluse"]
FOLDERS += sorted(path for path in (REFERENCE / "architectures").glob("tiny-*") if path.is_dir())
WORDS = ["the", "cat", "dog", "park", "small", "horse", "and", "piano", "is", "in", "a", "music"]
TEXTS = ["the cat", "a dog is in the park", "the small horse and the piano " * 5, "", "music"] * 7


def tensors(result: Iterable) -> list[torch.Tensor]:
    return [torch.as_tensor(x).cpu().to_dense() for x in result]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_vectors_and_similarities(folder, dtype, tolerance):
    """Every family and class beside the CPU's float64.

    In float32 some vectors are not unit, and round as states do.
    """
    expected = minisbert.load(folder, device="cpu")
    found = minisbert.load(folder, device="cuda")
    expected.double()
    found.to(dtype)
    ours = found.encode(TEXTS)
    theirs = expected.encode(TEXTS)
    for one, other in zip(tensors(ours), tensors(theirs), strict=True):
        assert (one - other).abs().max() < tolerance * other.abs().max().clamp_min(1)
    # Late interaction adds up a cosine for each token, sparse vectors a product for each word.
    assert np.allclose(found.similarity(ours, ours), expected.similarity(theirs, theirs), atol=1e-4)


def test_bfloat16_and_tokens():
    expected = minisbert.load(TINY, device="cpu")
    encoder = minisbert.load(TINY, device="cuda")
    found = encoder.encode(TEXTS, dtype="bfloat16")
    assert 0 < abs(found - expected.encode(TEXTS)).max() < 0.03  # eight bits of precision
    states = encoder.encode(TEXTS, output_value="token_embeddings")
    theirs = expected.encode(TEXTS, output_value="token_embeddings")
    for one, other in zip(states, theirs, strict=True):
        assert (one.cpu() - other).abs().max() < 1e-5


def distinct(count: int, fewest: int, most: int) -> list[str]:
    """Texts of so many words, of which no two have the same tokens.

    Unknown words would all be one token.
    """
    chance = random.Random(0)
    texts = set()
    while len(texts) < count:
        texts.add(" ".join(chance.choices(WORDS, k=chance.randint(fewest, most))))
    return sorted(texts)


def wide_heads(device: str, width: int = 128) -> SentenceEncoder:
    """A small random encoder with heads of 32 columns, which the kernel without pads is for."""
    torch.manual_seed(3)
    tiny = minisbert.load(TINY, device="cpu")
    config = replace(
        tiny.bert.config,
        hidden_size=width,
        num_attention_heads=width // 32,
        intermediate_size=2 * width,
    )
    encoder = SentenceEncoder(
        tiny.tokenizer, Bert(config), ModelPooling("mean"), True, settings=tiny.settings
    )
    return encoder.eval().to(device)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 0.03), ("float16", 0.005)]
)
def test_few_and_many_texts_on_the_fast_path(dtype, tolerance):
    """By graphs and without, in batches of all sizes, beside the CPU's float64."""
    many = distinct(175, 1, 30)
    for folder in (None, *FOLDERS[:3]):
        if folder is None:
            expected = wide_heads("cpu")
            encoder = CudaEncoder(wide_heads("cuda"), TINY, getattr(torch, dtype))
        else:
            expected = SentenceEncoder.load(folder, device="cpu")
            encoder = minisbert.load(folder, compiled=True, dtype=dtype)
        assert isinstance(encoder, CudaEncoder)
        expected.double()
        few = many[:7]
        for texts, size in ((many[:1], 32), (few, 32), (many, 32), (many, 1), (many, 5), (few, 32)):
            vectors = encoder.encode(texts, batch_size=size)
            theirs = expected.encode(texts)
            assert vectors.dtype == np.float32
            assert abs(vectors - theirs).max() < tolerance * max(1, abs(theirs).max())
        assert len(encoder.graphs.kept) == 2


@pytest.mark.parametrize("pooling", ["cls", "max+weightedmean", "lasttoken", "pooler", "attention"])
def test_every_pooling_on_the_fast_path(pooling):
    expected = SentenceEncoder.load(TINY, pooling=pooling, device="cpu").double()
    encoder = minisbert.load(TINY, compiled=True, dtype="float32", pooling=pooling)
    for texts in (TEXTS[:5], TEXTS * 4):
        assert abs(encoder.encode(texts) - expected.encode(texts)).max() < 1e-5


def test_an_architecture_without_a_graph_is_not_compiled(capsys):
    encoder = minisbert.load(REFERENCE / "architectures" / "tiny-mpnet", compiled=True)
    assert (type(encoder), encoder.device.type) == (SentenceEncoder, "cuda")
    assert "not compiled" in capsys.readouterr().err


@pytest.mark.parametrize("compiled", [False, True])
def test_lack_of_memory_is_one_line_and_the_size_that_it_names_fits(compiled):
    encoder = wide_heads("cuda", 1024)
    if compiled:
        encoder = CudaEncoder(encoder, TINY, torch.float32)
    texts = distinct(9000, 15, 16)
    encoder.encode(texts[:100], batch_size=32)
    torch.cuda.empty_cache()
    taken = torch.cuda.mem_get_info()[0] - 2**28
    ballast = torch.empty(taken, dtype=torch.uint8, device="cuda")
    try:
        message = r"too little free memory for batch_size=9000: batch_size=\d+ fits"
        with pytest.raises(InputError, match=message) as error:
            encoder.encode(texts, batch_size=9000)
        size = int(re.search(r"batch_size=(\d+) fits", str(error.value))[1])
        assert encoder.encode(texts, batch_size=size).shape == (9000, 1024)
    finally:
        del ballast
        torch.cuda.empty_cache()


def test_the_course_computes_on_the_cpu():
    code = "import torch, lessons; print(torch.cuda.is_available())"
    environment = dict(os.environ)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


TRAINED = {
    "cosine": [],
    "cosent": [],
    "ranking": [],
    "triplet": [],
    "simcse": ["--dropout", "0"],
    "mse": ["--head", "siamese"],
    "binary": ["--head", "cross-encoder"],
    "softmax": ["--head", "concat"],
    "distillation": ["--teacher", str(TINY)],
}


@pytest.mark.parametrize("loss", TRAINED)
def test_losses_and_scores_of_training(loss, files, tmp_path):
    """Each loss trains on the GPU as on the CPU where nothing is random, and is evaluated."""
    more = [*TRAINED[loss], "--model", str(TINY), "--log-every", "1", "--max-steps", "4"]
    given = toys.flags(files, loss, *more)
    given += ["--dropout", "0", "--dtype", "float32", "--batch-size", "8"]
    losses = []
    for device in ("cuda", "cpu"):
        main([*given, "--device", device, "--out", str(tmp_path / device), "--overwrite"])
        losses.append(toys.losses(tmp_path / device))
    assert losses[0]
    # AdamW's first steps go by the sign of a gradient: where that is rounding, the weights part.
    assert losses[0] == pytest.approx(losses[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_repeat_and_resume_to_the_same_bits(files, tmp_path, dtype):
    more = ["--log-every", "1", "--epochs", "3"]
    given = ["--model", str(TINY), *toys.flags(files, "cosine", *more)]
    given += ["--device", "cuda", "--dtype", dtype, "--batch-size", "4"]
    for name in ("one", "other"):
        main([*given, "--out", str(tmp_path / name)])
    toys.stop_at(7, (Bar, "set_postfix_str"), main, [*given, "--out", str(tmp_path / "stopped")])
    main(["--resume", str(tmp_path / "stopped")])
    expected = toys.losses(tmp_path / "one")
    assert toys.losses(tmp_path / "other") == expected
    assert toys.losses(tmp_path / "stopped") == expected
    weights = set()
    for name in ("one", "other", "stopped"):
        weights.add((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert len(weights) == 1
