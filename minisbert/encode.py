"""Texts to vectors from the command line.

python -m minisbert.encode "A cat sits." "A kitten is sitting." "The stock market fell."
python -m minisbert.encode --file sentences.txt --out vectors.npy
sort -u sentences.txt | python -m minisbert.encode - --out vectors.safetensors
"""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from minisbert.checkpoint import write_safetensors
from minisbert.console import InputError, run_command, say
from minisbert.data import text_lines
from minisbert.device import choose_device
from minisbert.encoder import SentenceEncoder
from minisbert.files import atomic_file, decode, read_text

MATRIX_MOST = 12  # more texts than this make no readable matrix


def print_matrix(texts: list[str], matrix: np.ndarray) -> None:
    """The cosine of every text with every other; matrix (N, N)."""
    numbers = [str(i + 1) for i in range(len(texts))]
    print("cosine  " + "".join(f"{number:>7}" for number in numbers))
    for number, text, row in zip(numbers, texts, matrix, strict=True):
        shown = " ".join(text.split())
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        print(f"{number:>6}  " + "".join(f"{value:7.3f}" for value in row) + f"   {shown}")


def write_vectors(vectors: np.ndarray, path: Path, suffix: str) -> None:
    """(N, D) as ``.npy``, or as ``.safetensors`` with the one tensor ``vectors``."""
    if suffix == ".npy":
        with open(path, "wb") as file:
            np.save(file, vectors)
        return
    write_safetensors({"vectors": torch.from_numpy(vectors)}, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.encode",
        description="Similarities of a handful of texts, or the vectors of many.",
        epilog='Example: python -m minisbert.encode "A cat sits." "A kitten is sitting."',
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; a single - reads lines from standard input")
    parser.add_argument("--file", metavar="F", help="read one text a line from this file")
    parser.add_argument("--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    options = parser.parse_args(arguments)

    if bool(options.texts) == bool(options.file):
        raise InputError('give either texts or --file, such as: python -m minisbert.encode "A cat." "A dog."')
    if options.file:
        texts = text_lines(read_text(options.file), options.file)
    elif options.texts == ["-"]:
        texts = text_lines(decode(sys.stdin.buffer.read(), "standard input"), "standard input")
    else:
        texts = options.texts
        if not all(text.strip() for text in texts):
            raise InputError("an empty text has nothing to encode")
    if options.out and options.out.suffix not in (".npy", ".safetensors"):
        raise InputError(f"--out {options.out}: the name must end in .npy or .safetensors")
    if not options.out and len(texts) > MATRIX_MOST:
        raise InputError(
            f"{len(texts):,} texts are too many for a matrix (at most {MATRIX_MOST}): give --out vectors.npy"
        )

    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device))
    with atomic_file(options.out) if options.out else nullcontext() as partial:
        vectors = encoder.encode(texts, progress=True)
        if encoder.truncated:
            say(encoder.tokenizer.cut_message(encoder.truncated, len(texts)))
        if partial:
            write_vectors(vectors, partial, options.out.suffix)
    if options.out:
        say(f"wrote {vectors.shape[0]:,} vectors of width {vectors.shape[1]} to {options.out}")
    else:
        print_matrix(texts, encoder.similarity(vectors, vectors))


if __name__ == "__main__":
    run_command(main)
