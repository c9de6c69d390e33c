"""Texts to vectors from the command line.

python -m minisbert.encode "A cat sits." "A kitten is sitting." "The stock market fell."
python -m minisbert.encode --file sentences.txt --out vectors.npy
python -m minisbert.encode --file millions.txt --out vectors.npy --precision bfloat16
sort -u sentences.txt | python -m minisbert.encode - --out vectors.safetensors
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from minisbert.core import InputError, open_bytes
from minisbert.core.data import text_lines
from minisbert.models.checkpoint import write_safetensors
from minisbert.models.sentence_encoder import BATCH_TOKENS, SentenceEncoder
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device, keep_freed_memory
from minisbert.system.files import atomic_file

MATRIX_MOST = 12  # more texts than this make no readable matrix


def print_matrix(texts: list[str], matrix: np.ndarray) -> None:
    """The cosine of every text with every other; matrix (N, N)."""
    numbers = [str(i + 1) for i in range(len(texts))]
    print("cosine  " + "".join(f"{number:>7}" for number in numbers))
    for number, text, row in zip(numbers, texts, matrix, strict=True):
        shown = " ".join(text.split())
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        print(f"{number:>6}  " + "".join(f"{value:7.3f}" for value in row) + f"   {shown}")


def write_npy(parts: Iterator[np.ndarray], rows: int, path: Path) -> tuple[int, int]:
    """``parts`` (n, D) one below the other as ``.npy``, never more than one in memory; the shape, (rows, D).

    The file's head states the rows and comes first, so they must be known.
    """
    with open(path, "wb") as file:
        written = 0
        for part in parts:
            if not written:
                head = {"descr": np.lib.format.dtype_to_descr(part.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, head | {"shape": (rows, part.shape[1])})
            file.write(np.ascontiguousarray(part).data)
            written += len(part)
    if written != rows:
        raise InputError(f"{rows:,} texts were counted and {written:,} encoded: was the file changed meanwhile?")
    return rows, part.shape[1]


def write_tokens(states: list[np.ndarray], path: Path) -> None:
    """Every text's (T, D) one below the other as ``states``, and each text's T as ``lengths``."""
    lengths = torch.tensor([len(rows) for rows in states])  # (N,)
    write_safetensors({"states": torch.from_numpy(np.concatenate(states)), "lengths": lengths}, path)


def file_lines(path: str) -> Iterator[str]:
    with open_bytes(path) as file:
        yield from text_lines(file, path)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``InputError`` for those that cannot be, before anything is loaded."""
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.encode",
        description="Similarities of a handful of texts, or the vectors of many.",
        epilog='Example: python -m minisbert.encode "A cat sits." "A kitten is sitting."',
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; a single - reads lines from standard input")
    parser.add_argument("--file", metavar="F", help="read one text a line from this file, of any size")
    parser.add_argument("--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors")
    group = parser.add_argument_group("the model")
    group.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    group.add_argument("--precision", default="float32", help="float32, bfloat16 or auto (default: %(default)s)")
    group.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS, help="of a batch (default: %(default)s)")
    group = parser.add_argument_group("the vectors")
    group.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="length 1 (default: as the model)")
    group.add_argument("--truncate-dim", type=int, metavar="N", help="keep the first N columns")
    group.add_argument("--output", default="sentence", help="sentence, or token: every token's state, to .safetensors")
    options = parser.parse_args(arguments)

    if bool(options.texts) == bool(options.file):
        raise InputError('give either texts or --file, such as: python -m minisbert.encode "A cat." "A dog."')
    if options.texts != ["-"] and not all(text.strip() for text in options.texts):
        raise InputError("an empty text has nothing to encode")
    if options.out and options.out.suffix not in (".npy", ".safetensors"):
        raise InputError(f"--out {options.out}: the name must end in .npy or .safetensors")
    if options.output == "token" and (not options.out or options.out.suffix != ".safetensors"):
        raise InputError("--output token needs --out F.safetensors: texts differ in length and make no matrix")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    streamed = bool(options.file and options.out and options.out.suffix == ".npy")
    if streamed:
        total = sum(1 for _ in file_lines(options.file))  # also reads every line before the work begins
    else:
        texts = options.texts
        if options.file:
            texts = list(file_lines(options.file))
        elif texts == ["-"]:
            texts = list(text_lines(sys.stdin.buffer, "standard input"))
        total = len(texts)
    if not options.out and total > MATRIX_MOST:
        raise InputError(f"{total:,} texts are too many for a matrix (at most {MATRIX_MOST}): give --out vectors.npy")

    keep_freed_memory()
    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device))
    names = ("normalize", "truncate_dim", "output", "precision", "batch_tokens")
    chosen = {"progress": True} | {name: getattr(options, name) for name in names}
    with atomic_file(options.out) if options.out else nullcontext() as partial:
        if streamed:
            shape = write_npy(encoder.encode_stream(file_lines(options.file), total=total, **chosen), total, partial)
        else:
            vectors = encoder.encode(texts, **chosen)
            if options.output == "token":
                write_tokens(vectors, partial)
                shape = len(vectors), vectors[0].shape[1]
            elif partial and options.out.suffix == ".npy":
                shape = write_npy(iter([vectors]), total, partial)
            elif partial:
                write_safetensors({"vectors": torch.from_numpy(vectors)}, partial)
                shape = vectors.shape
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, total))
    if options.out:
        noun = "vectors" if options.output == "sentence" else "texts' states"
        say(f"wrote {shape[0]:,} {noun} of width {shape[1]} to {options.out}")
    else:
        print_matrix(texts, encoder.similarity(vectors, vectors))


if __name__ == "__main__":
    run_command(main)
