"""Encode texts: print the similarities of a few, or write the vectors of many to a file.

minisbert encode "A cat sits." "A kitten is sitting." "The stock market fell."
minisbert encode --file sentences.txt --out vectors.npy
minisbert encode --file millions.txt --out vectors.npy --dtype bfloat16
sort -u sentences.txt | minisbert encode - --out vectors.safetensors
minisbert encode --file corpus.txt --quantize int8 --out codes.safetensors
minisbert encode --file nine.txt --heatmap nine.png
minisbert encode --file billions.txt.gz --out shards --shard-rows 100000
minisbert encode merge shards --out vectors.npy
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minisbert.checkpoints.weights import write_safetensors
from minisbert.commands.options import TEXT_FILES, add_model_options, add_prompt_option, check_written, load_encoder
from minisbert.core import InputError
from minisbert.corpus.index import INDEX_MARK, made_from, texts_hash
from minisbert.corpus.shards import encode_shards, merge_shards
from minisbert.data.lines import every_text, text_lines
from minisbert.evaluation import plots
from minisbert.loading import Encoder
from minisbert.models.encoder import BATCH_SIZE
from minisbert.models.prompts import choose_prompt
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.search.vector_files import QUANTIZATIONS, write_codes, write_npy
from minisbert.system.assets import local_path
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, check_usage, run_command, say
from minisbert.system.files import atomic_file, check_ending, check_output

ENDINGS = (".npy", ".safetensors")
MAX_MATRIX = 12  # texts; a larger matrix is unreadable
MAX_HEATMAP = 60  # texts


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; ``InputError`` for invalid combinations, before anything is loaded."""
    parser = command_parser("encode", __doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; a single - reads lines from standard input")
    parser.add_argument("--file", metavar="F", help=f"{TEXT_FILES}, of any size")
    parser.add_argument("--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors")
    parser.add_argument("--heatmap", metavar="F", type=Path, help="draw the similarities to F.png (the plots extra)")
    group = parser.add_argument_group("the model")
    add_model_options(group)
    group.add_argument("--dtype", default="float32", help="float32, bfloat16 or auto (default: %(default)s)")
    group.add_argument(
        "--batch-size", type=int, default=BATCH_SIZE, help="texts of 64 tokens per batch (default: %(default)s)"
    )
    add_prompt_option(group)
    group = parser.add_argument_group("the vectors")
    group.add_argument("--normalize", action="store_true", help="scale to length 1 at the end (many models do anyway)")
    group.add_argument("--tokens", action="store_true", help="every token's hidden state, to F.safetensors")
    group.add_argument(
        "--quantize",
        choices=QUANTIZATIONS,
        help="write int8 codes (a quarter of the bytes) or bits (a 32nd) to F.safetensors, for search --index F",
    )
    group = parser.add_argument_group("shards, for millions of texts: an encoding that can be interrupted at any time")
    group.add_argument("--shard-rows", type=bounded(int, 1), metavar="N", help="write N vectors per file to --out DIR")
    group.add_argument("--overwrite", action="store_true", help="replace shards of another input, model or option")
    options = parser.parse_args(arguments)
    check_combinations(options)
    check_written("--heatmap", options.heatmap, [".png"], options.model, options.file)
    check_output(options.out, local_path(options.model), options.file)
    return options


def check_combinations(options: argparse.Namespace) -> None:
    """Raise ``InputError`` for options that exclude each other."""
    out, states = options.out, options.tokens
    check_usage(
        (
            bool(options.texts) == bool(options.file),
            'give either texts or --file, such as: minisbert encode "A cat." "A dog."',
        ),
        (options.texts != ["-"] and not all(map(str.strip, options.texts)), "an empty text has nothing to encode"),
        (options.heatmap and out, "--out writes vectors, --heatmap draws similarities: give one of them"),
        (options.quantize and states, "--quantize is for vectors of sentences, not for --tokens"),
        (options.truncate_dim and states, "--truncate-dim is for vectors of sentences, not for --tokens"),
        (states and options.shard_rows, "--shard-rows writes vectors of sentences; --tokens has one file only"),
    )
    if options.shard_rows is None:
        single = out is None or out.suffix != ".safetensors"
        check_usage(
            ((options.quantize or states) and single, "--quantize and --tokens need --out F.safetensors"),
            (options.overwrite, "--overwrite is for the folder of --shard-rows; files are replaced anyway"),
        )
        check_ending("--out", out, *ENDINGS)
        return
    check_usage((not options.file or not out, "--shard-rows needs --file F and --out DIR"))
    once = not Path(options.file).is_file()
    check_usage(
        (options.quantize, "--quantize writes one file, --shard-rows a folder of float32: give one of them"),
        (out.suffix in ENDINGS or out.is_file(), f"--out {out}: --shard-rows writes a folder"),
        (once, f"{options.file} does not exist or can be read only once: --shard-rows needs a regular file"),
    )


def merge(arguments: list[str]) -> None:
    """Copy the shards of a folder to one file, in bounded memory.

    Example: minisbert encode merge shards --out vectors.npy
    """
    parser = command_parser("encode merge", inspect.getdoc(merge))
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder with the shards")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="write the vectors to F.npy")
    options = parser.parse_args(arguments)
    check_ending("--out", options.out, ".npy")
    check_output(options.out, options.folder)
    rows, width = merge_shards(options.folder, options.out)
    say(f"wrote {rows:,} vectors of width {width} to {options.out}")


def read_input(options: argparse.Namespace) -> tuple[list[str] | Iterator[str], int]:
    """The texts, and how many they are. A long file for a ``.npy`` is read twice and never held."""
    if options.file and options.out and options.out.suffix == ".npy" and Path(options.file).is_file():
        return every_text(options.file), sum(1 for _ in every_text(options.file))
    if options.file:
        texts = list(every_text(options.file))
    elif options.texts == ["-"]:
        texts = list(text_lines(sys.stdin.buffer, "standard input"))
    else:
        texts = options.texts
    return texts, len(texts)


def encode_to_file(
    encoder: Encoder,
    texts: list[str] | Iterator[str],
    total: int,
    out: Path,
    quantize: str | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Encode ``total`` texts with the ``options`` of ``encode`` and write them to ``out``; the shape, (N, D).

    To ``.npy`` they are streamed: neither the vectors nor the texts of an iterator are ever all in memory. To
    ``.safetensors`` also, with ``output_value="token_embeddings"``, each text's states (T, D), concatenated, as
    ``states``, and each text's T as ``lengths``; and with ``quantize`` codes for ``search --index``.
    """
    with atomic_file(out) as partial:
        if out.suffix == ".npy":
            return write_npy(encoder.encode_stream(texts, total=total, **options), total, partial)
        if options.get("output_value") == "token_embeddings":
            states = encoder.encode(texts, **options)
            lengths = torch.tensor([len(rows) for rows in states])  # (N,)
            write_safetensors({"states": torch.cat(states), "lengths": lengths}, partial)
            return total, states[0].shape[1]
        if quantize and encoder.vectors_are != "dense":
            raise InputError(f"--quantize is for arrays of vectors, not for those of a {type(encoder).__name__}")
        vectors = encoder.encode(texts, **options, **encoder.search_options)
        if quantize:
            prompt = choose_prompt(encoder.settings, options.get("prompt"), options.get("prompt_name"))
            made = made_from(encoder, prompt) | {"texts": texts_hash(text.strip() for text in texts)}
            write_codes(vectors, quantize, partial, INDEX_MARK | made)
        else:
            write_safetensors(encoder.to_tensors(vectors), partial)
        return vectors.shape


def show(encoder: Encoder, texts: list[str], vectors: Any, heatmap: Path | None) -> None:
    """Print the similarities of a few texts, and draw them if a file is given."""
    matrix = encoder.similarity(vectors, vectors)
    if len(texts) <= MAX_MATRIX:
        print_matrix(texts, matrix, encoder.settings.similarity)
        if isinstance(encoder, SparseEncoder):
            for number, words in enumerate(encoder.words(vectors), start=1):
                print(f"{number:>6}  " + ", ".join(f"{word} {weight:.2f}" for word, weight in words))
    if heatmap:
        plots.heatmap(texts, matrix, encoder.settings.similarity, heatmap)
        say(f"wrote {heatmap}")


def print_matrix(texts: list[str], matrix: np.ndarray, similarity: str) -> None:
    """Print the similarity (N, N) of every text with every other."""
    numbers = [str(i + 1) for i in range(len(texts))]
    print(f"{similarity:<8}" + "".join(f"{number:>7}" for number in numbers))
    for number, text, row in zip(numbers, texts, matrix, strict=True):
        label = " ".join(text.split())
        if len(label) > 60:
            label = label[:57] + "..."
        print(f"{number:>6}  " + "".join(f"{value:7.3f}" for value in row) + f"   {label}")


def main(arguments: list[str] | None = None) -> None:
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments[:1] == ["merge"]:
        merge(arguments[1:])
        return
    options = parse(arguments)
    chosen = {name: getattr(options, name) for name in ("dtype", "batch_size", "prompt", "prompt_name")}
    if options.normalize:
        chosen["normalize_embeddings"] = True
    if options.tokens:
        chosen["output_value"] = "token_embeddings"
    if options.shard_rows:
        encoder = load_encoder(options)
        encode_shards(encoder, options.file, options.out, options.shard_rows, options.overwrite, **chosen)
        return
    texts, total = read_input(options)
    if options.heatmap:
        check_usage((total > MAX_HEATMAP, f"{total:,} texts are too many for a heat map (at most {MAX_HEATMAP})"))
        plots.require()
    elif not options.out and total > MAX_MATRIX:
        raise InputError(f"{total:,} texts are too many for a matrix (at most {MAX_MATRIX}): give --out vectors.npy")
    encoder = load_encoder(options)
    if options.out is None:
        vectors = encoder.encode(texts, show_progress_bar=True, **chosen)
    else:
        chosen["show_progress_bar"] = True
        rows, width = encode_to_file(encoder, texts, total, options.out, options.quantize, **chosen)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, total))
    if options.out is None:
        show(encoder, texts, vectors, options.heatmap)
        return
    noun, form = "vectors", ""
    if options.tokens:
        noun = "texts' states"
    if options.quantize:
        form = f" as {options.quantize} codes"
    say(f"wrote {rows:,} {noun} of width {width}{form} to {options.out}")


if __name__ == "__main__":
    run_command(main)
