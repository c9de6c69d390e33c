"""Encoding with the architectures of ``minisbert/architectures`` beside sentence-transformers: texts per second.

    python -m benchmarks.architectures                      short and long texts, float32 and bfloat16: some ten minutes
    python -m benchmarks.architectures modernbert --layers 2 --lengths 2048

Weights are random, widths those of the published base models, layers fewer (both sides have as many); the tokenizers
are tiny, and texts have the lengths in tokens that are asked for. Both sides take turns; rates are medians. The vectors
must agree.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import Encode, sentence_transformers, stay_offline, turns
from minisbert.architectures.relatives import ENCODER_FAMILIES, build_bert
from minisbert.checkpoints.layout import ModelFolder
from minisbert.checkpoints.weights import save_bert
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command
from minisbert.system.devices import keep_freed_memory

TINY = Path(__file__).parents[1] / "tests" / "reference" / "architectures"  # folders with tokenizers and settings
SIZES = {  # of all-mpnet-base-v2, ModernBERT-base, Qwen3-Embedding-0.6B, EmbeddingGemma-300m
    "mpnet": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "modernbert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 1152, "local_attention": 128},
    "qwen3": {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    | {"intermediate_size": 3072},
}
TOKENS = {20: 256, 100: 64, 500: 8, 2048: 2}  # texts of a length
AGREE = {"float32": 1e-4, "bfloat16": 0.1}  # the largest difference of two numbers of a vector of length 1


def model(name: str, layers: int, longest: int, folder: Path) -> Path:
    """A folder with a random model of these sizes and the tiny model's tokenizer."""
    shutil.copytree(TINY / f"tiny-{name}", folder)
    raw = json.loads((folder / "config.json").read_text()) | SIZES[name]
    raw |= {"num_hidden_layers": layers, "max_position_embeddings": longest + 16, "layer_types": None}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    family, config = ModelFolder(folder).config
    torch.manual_seed(0)
    save_bert(build_bert(config, pooler=bool(family.pooler)), folder)
    for file in ("sentence_bert_config.json", "tokenizer_config.json"):
        content = json.loads((folder / file).read_text())
        length = {"max_seq_length"} & content.keys() or {"model_max_length"} & content.keys()
        (folder / file).write_text(json.dumps(content | dict.fromkeys(length, longest)))
    pooling = folder / "1_Pooling" / "config.json"
    about = json.loads(pooling.read_text())
    width = {key: config.hidden_size for key in about if key.endswith("dimension")}
    pooling.write_text(json.dumps(about | width))
    return folder


def texts_of(encoder: SentenceEncoder, tokens: int, count: int) -> list[str]:
    """Texts of so many tokens, special ones included, all different."""
    chance = random.Random(tokens)
    words = "the cat dog sits runs red blue garden house music".split()
    found = []
    while len(found) < count:
        text: list[str] = []
        while len(encoder.tokenizer.encode([" ".join(text)]).ids[0]) < tokens:
            text += chance.choices(words, k=max(1, (tokens - len(text)) // 8))
        found.append(" ".join(text))
    return found


def compare(name: str, layers: int, lengths: list[int], rounds: int, device: str) -> None:
    """Print a row for each dtype and length."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = model(name, layers, max(lengths), Path(temporary) / "model")
        encoder = SentenceEncoder.load(folder, device=device)
        peers = {kind: sentence_transformers(getattr(torch, kind), folder, 1, device) for kind in AGREE}
        for tokens in lengths:
            texts = texts_of(encoder, tokens, TOKENS.get(tokens, 4))
            for kind, most in AGREE.items():
                sides: dict[str, Encode] = {
                    "minisbert": lambda texts, size, kind=kind: encoder.encode(
                        texts, dtype=kind, normalize_embeddings=True
                    ),
                    "sentence-transformers": peers[kind],
                }
                size = 32 if tokens <= 100 else 2
                ours, theirs = (side(texts, size) for side in sides.values())
                theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
                if (found := np.abs(ours - theirs).max()) > most:
                    raise ValueError(f"{name}, {kind}: the vectors differ by {found:.2g}")
                spent: dict[str, list[float]] = {side: [] for side in sides}
                for _, side, encode in turns(f"{name} {tokens} {kind}", rounds, sides):
                    start = time.perf_counter()
                    encode(texts, size)
                    spent[side].append(time.perf_counter() - start)
                a, b = (len(texts) / statistics.median(found) for found in spent.values())
                print(f"| {name} | {tokens:,} | {kind} | {a:,.1f} | {b:,.1f} | {a / b:.2f} |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", default=[*SIZES], metavar="NAME", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--layers", type=int, default=4, help="of each model (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[*TOKENS], help="in tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="that count (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="of both sides: cpu or cuda (default: %(default)s)")
    options = parser.parse_args(arguments)
    stay_offline()
    keep_freed_memory()
    if unknown := [name for name in options.names if name not in SIZES or name not in ENCODER_FAMILIES]:
        parser.error(f"no architecture {unknown[0]}: {', '.join(SIZES)}")
    print("| architecture | tokens | dtype | minisbert | sentence-transformers | ratio |\n|---|---|---|---|---|---|")
    for name in options.names:
        compare(name, options.layers, options.lengths, options.rounds, options.device)


if __name__ == "__main__":
    run_command(main)
