"""What the playground computes from: a vocabulary, MiniLM's attention, an index, points.

A Sphinx extension. The build writes it from the model itself, as ``_static/play_data.js``; the
front page has the attention of the first sentences only, as ``_static/front_data.js``.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minisbert.core import bert
from minisbert.core.encoder import SentenceEncoder
from minisbert.data.rows import load_scored_pairs
from minisbert.search import quantized
from minisbert.search.dense import top_k
from minisbert.system.assets import ensure

SENTENCES = Path(__file__).with_name("thirty_sentences.txt")
IN_FRONT = 3  # sentences: 60 kB instead of 1 MB


def attention_of(encoder: SentenceEncoder, text: str) -> tuple[list[str], torch.Tensor]:
    """The tokens of a text, and the probabilities of every head, (L, H, T, T)."""
    ids = encoder.tokenizer.encode([text]).ids[0]
    states: dict[str, torch.Tensor] = {}
    fused = bert.FUSED
    bert.FUSED = False  # the fused operation keeps no probabilities
    try:
        with torch.no_grad():
            encoder.bert(torch.tensor([ids]), trace=states)
    finally:
        bert.FUSED = fused
    layers = [states[f"layers.{number}.attention"][0] for number in range(len(encoder.bert.layers))]
    return encoder.tokenizer.tokens(ids), torch.stack(layers)


def circle() -> tuple[torch.Tensor, torch.Tensor]:
    """The points and the noise of lesson 10, (24, 2) each."""
    generator = torch.Generator().manual_seed(0)
    points = torch.tensor([1.0, 0.0]) + 0.3 * torch.randn(24, 2, generator=generator)
    return points, 0.02 * torch.randn(24, 2, generator=generator)


def packed(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def index(encoder: SentenceEncoder) -> dict[str, Any]:
    """400 sentences of STS-B as int8 codes and bits, 40 queries, and the exact ten of each."""
    pairs = load_scored_pairs("stsb", "test")
    corpus = list(dict.fromkeys(pair.sentence1 for pair in pairs))[:400]
    vectors = encoder.encode(corpus)
    queries = encoder.encode([pair.sentence2 for pair in pairs[:400:10]])
    ranges = quantized.calibrate(vectors).astype(np.float32)
    return {
        "width": vectors.shape[1],
        "queries": packed(queries),
        "codes": packed(quantized.to_int8(vectors, ranges)),
        "bits": packed(quantized.to_bits(vectors)),
        "low": ranges[0].tolist(),
        "step": ((ranges[1] - ranges[0]) / np.float32(quantized.INT8_STEPS)).tolist(),
        "exact": top_k(queries, vectors, 10)[1].tolist(),
    }


def thirty_sentences(encoder: SentenceEncoder) -> list[dict[str, Any]]:
    """Texts, tokens and shares of attention: bytes, 255 for 1, in the order (L, H, T, T)."""
    sentences = []
    for text in SENTENCES.read_text(encoding="utf-8").splitlines():
        tokens, shares = attention_of(encoder, text)
        rounded = (shares * 255).round().byte().numpy()
        sentences.append({"text": text, "tokens": tokens, "shares": packed(rounded)})
    return sentences


def play_data() -> dict[str, Any]:
    """Everything, as JSON can hold it."""
    folder = ensure("all-MiniLM-L6-v2")
    encoder = SentenceEncoder.load(folder)
    points, noise = circle()
    config = encoder.bert.config
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8")
    return {
        "vocabulary": vocabulary.removesuffix("\n").split("\n"),
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "sentences": thirty_sentences(encoder),
        "points": points.tolist(),
        "noise": noise.tolist(),
        "index": index(encoder),
    }


def write(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    if "docs/interactive" not in app.env.found_docs:
        return
    data = play_data()
    front = {
        "layers": data["layers"],
        "heads": data["heads"],
        "sentences": data["sentences"][:IN_FRONT],
    }
    for name, values in (("play_data.js", data), ("front_data.js", front)):
        text = f"const PLAY = {json.dumps(values, separators=(',', ':'))};\n"
        (Path(app.outdir) / "_static" / name).write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
