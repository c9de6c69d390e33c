"""Encode texts: print the similarities of a few, or write the vectors of many to a file.

minisbert encode "A cat sits." "A kitten is sitting." "The stock market fell."
minisbert encode --file sentences.txt --out vectors.npy
minisbert encode --file millions.txt --out vectors.npy --precision bfloat16
sort -u sentences.txt | minisbert encode - --out vectors.safetensors
minisbert encode --file corpus.txt --quantize int8 --out codes.safetensors
minisbert encode --file nine.txt --heatmap nine.png
minisbert encode --file billions.txt.gz --out shards --shard-rows 100000
minisbert encode merge shards --out vectors.npy
"""

import argparse
import inspect
import sys
from functools import partial
from pathlib import Path

import numpy as np

from minisbert.commands.model_options import add_model_options, add_prompt_option, check_written, load_encoder
from minisbert.commands.options import command_parser
from minisbert.corpus.codes import QUANTIZATIONS
from minisbert.corpus.shard_vectors import merge_shards
from minisbert.corpus.sharding import encode_shards, own_device
from minisbert.corpus.vectors import encode_to_file
from minisbert.data.rows import file_lines, text_lines
from minisbert.evaluation import plots
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.models.text_encoder import BATCH_TOKENS
from minisbert.system.assets import local_path
from minisbert.system.console import bounded, check_usage, run_command, say
from minisbert.system.files import check_ending, check_output

ENDINGS = (".npy", ".safetensors")
MAX_MATRIX = 12  # texts; a larger matrix is unreadable
MAX_HEATMAP = 60  # texts


def print_matrix(texts: list[str], matrix: np.ndarray, similarity: str) -> None:
    """Print the similarity (N, N) of every text with every other."""
    numbers = [str(i + 1) for i in range(len(texts))]
    print(f"{similarity:<8}" + "".join(f"{number:>7}" for number in numbers))
    for number, text, row in zip(numbers, texts, matrix, strict=True):
        label = " ".join(text.split())
        label = label if len(label) <= 60 else label[:57] + "..."
        print(f"{number:>6}  " + "".join(f"{value:7.3f}" for value in row) + f"   {label}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``InputError`` for invalid combinations, before anything is loaded."""
    parser = command_parser("encode", __doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; a single - reads lines from standard input")
    parser.add_argument("--file", metavar="F", help="read one text per line from this file or .gz, of any size")
    parser.add_argument("--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors")
    parser.add_argument("--heatmap", metavar="F", type=Path, help="draw the similarities to F.png (the plots extra)")
    group = parser.add_argument_group("the model")
    add_model_options(group)
    group.add_argument("--precision", default="float32", help="float32, bfloat16 or auto (default: %(default)s)")
    group.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS, help="tokens per batch (default: %(default)s)")
    add_prompt_option(group)
    group = parser.add_argument_group("the vectors")
    either = argparse.BooleanOptionalAction
    group.add_argument("--normalize", action=either, help="scale to length 1 (default: as the model does)")
    group.add_argument("--truncate-dim", type=int, metavar="N", help="keep the first N columns")
    group.add_argument("--output", default="sentence", help="sentence, or token: every token's state, to .safetensors")
    group.add_argument(
        "--quantize",
        choices=QUANTIZATIONS,
        help="write int8 codes (a quarter of the bytes) or bits (a 32nd) to F.safetensors, for search --index F",
    )
    group = parser.add_argument_group("shards, for millions of texts and several processes")
    rows = ("--shard-rows", "--part-rows")
    group.add_argument(*rows, type=bounded(int, 1), metavar="N", help="write N vectors per file to the folder --out")
    group.add_argument("--overwrite", action="store_true", help="replace shards of another input, model or option")
    options = parser.parse_args(arguments)

    sharded, out = options.shard_rows is not None, options.out
    ending, sentences = out.suffix if out else "", options.output == "sentence"
    tensors = options.quantize or options.output == "token"
    example = 'minisbert encode "A cat." "A dog."'
    check_usage((sharded and not (options.file and out), "--shard-rows needs --file F and --out DIR"))
    once = sharded and not Path(options.file).is_file()
    check_usage(
        (bool(options.texts) == bool(options.file), f"give either texts or --file, such as: {example}"),
        (options.texts != ["-"] and not all(map(str.strip, options.texts)), "an empty text has nothing to encode"),
        (options.overwrite and not sharded, "--overwrite is for the folder of --shard-rows; files are replaced anyway"),
        (sharded and (ending in ENDINGS or out.is_file()), f"--out {out}: --shard-rows writes a folder"),
        (sharded and not sentences, "--shard-rows writes vectors of sentences; --output token has one file only"),
        (options.heatmap and out, "--out writes vectors, --heatmap draws similarities: give one of them"),
        (tensors and ending != ".safetensors", "--quantize and --output token need --out F.safetensors"),
        (options.quantize and not sentences, "--quantize is for vectors of sentences, not for --output token"),
        (once, f"{options.file} does not exist or can be read only once: --shard-rows needs a regular file"),
    )
    check_written("--heatmap", options.heatmap, [".png"], options.model, options.file)
    check_output(out, local_path(options.model), options.file)
    if not sharded:
        check_ending("--out", out, *ENDINGS)
    return options


def merge(arguments: list[str]) -> None:
    """Copy the shards of a folder to one file, in bounded memory; checks every hash.

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


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["merge"]:
        merge(arguments[1:])
        return
    options = parse(arguments)
    names = ("normalize", "truncate_dim", "output", "precision", "batch_tokens", "prompt", "prompt_name")
    chosen = {name: getattr(options, name) for name in names}
    if options.shard_rows:
        load = partial(load_encoder, options, own_device)
        encode_shards(load, options.file, options.out, options.shard_rows, options.overwrite, **chosen)
        return
    texts = file_lines(options.file) if options.file else options.texts
    if texts == ["-"]:
        texts = text_lines(sys.stdin.buffer, "standard input")
    if options.file and options.out and options.out.suffix == ".npy" and Path(options.file).is_file():
        total = sum(1 for _ in file_lines(options.file))  # read twice, never held; checks every line before the work
    else:
        texts = list(texts)
        total = len(texts)
    most, kind = (MAX_HEATMAP, "heat map") if options.heatmap else (MAX_MATRIX, "matrix")
    too_many = f"{total:,} texts are too many for a {kind} (at most {most}): give --out vectors.npy"
    check_usage((not options.out and total > most, too_many))
    if options.heatmap:
        plots.require()
    encoder = load_encoder(options)
    if options.out:
        rows, width = encode_to_file(encoder, texts, total, options.out, options.quantize, progress=True, **chosen)
    else:
        vectors = encoder.encode(texts, progress=True, **chosen)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, total))
    if options.out:
        noun = "vectors" if options.output == "sentence" else "texts' states"
        form = f" as {options.quantize} codes" if options.quantize else ""
        say(f"wrote {rows:,} {noun} of width {width}{form} to {options.out}")
        return
    matrix = encoder.similarity(vectors, vectors)
    if total <= MAX_MATRIX:
        print_matrix(texts, matrix, encoder.settings.similarity)
        for number, words in enumerate(encoder.words(vectors) if isinstance(encoder, SparseEncoder) else (), start=1):
            print(f"{number:>6}  " + ", ".join(f"{word} {weight:.2f}" for word, weight in words))
    if options.heatmap:
        plots.heatmap(texts, matrix, encoder.settings.similarity, options.heatmap)
        say(f"wrote {options.heatmap}")


if __name__ == "__main__":
    run_command(main)
