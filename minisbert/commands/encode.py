"""Encode texts: print the similarities of a few, or write the vectors of many to a file.

Examples:
  minisbert encode "A cat sits." "A kitten is sitting." "The stock market fell."
  minisbert encode --file sentences.txt --out vectors.npy
  minisbert encode --file millions.txt --out vectors.npy --dtype bfloat16
  sort -u sentences.txt | minisbert encode --file /dev/stdin --out vectors.safetensors
  minisbert encode --file corpus.txt --quantize int8 --out codes.safetensors
  minisbert encode --file nine.txt --heatmap nine.png
  minisbert encode --file sentences.txt --json | jq .vector[0]
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import check_usage, command_parser, escaped, print_json, say
from minisbert.system.files import atomic_file

if TYPE_CHECKING:
    from minisbert.models.sparse_encoder import SparseEncoder
    from minisbert.models.text_encoder import TextEncoder

MAX_MATRIX = 12  # texts; a larger matrix is unreadable
MAX_HEATMAP = 60  # texts
MAX_LABEL = 60  # characters of a text beside its row

parser = command_parser("encode", __doc__)
parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
parser.add_argument("--file", metavar="F", help=f"{shared.CORPUS_FILES}, of any size")
parser.add_argument(
    "--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors"
)
parser.add_argument(
    "--json",
    action="store_true",
    help='print a JSON object per text, {"text": ..., "vector": [...]}',
)
parser.add_argument(
    "--heatmap",
    metavar="F",
    type=Path,
    help="draw the similarities to F.png, .svg or .pdf (needs the plots extra)",
)
of_model = parser.add_argument_group("the model")
shared.add_model_options(of_model)
of_model.add_argument(
    "--dtype", default="float32", help="float32, bfloat16 or auto (default: %(default)s)"
)
of_model.add_argument(
    "--batch-size",
    type=int,
    help="texts of 64 tokens per batch: fewer if they are longer, more if shorter (default: 32; "
    "on a GPU up to 512)",
)
shared.add_prompt_option(of_model)
shared.add_table_options(parser, "the column of texts")
of_vectors = parser.add_argument_group("the vectors")
of_vectors.add_argument(
    "--normalize", action="store_true", help="scale vectors to length 1 (many models do so anyway)"
)
of_vectors.add_argument(
    "--quantize",
    choices=("int8", "binary"),
    help="write int8 codes (a quarter of the bytes) or bits (a 32nd) to F.safetensors, for "
    "search --index F",
)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    check_options(options)

    # What is wrong with the texts is said before the model is loaded.
    texts, total = read_texts(options)
    check_total(options, total)

    encoder = shared.chosen_encoder(options, options.dtype)
    # The options of ``encode`` in Python, under its names.
    settings = {
        "dtype": options.dtype,
        "batch_size": options.batch_size,
        "prompt": options.prompt,
        "prompt_name": options.prompt_name,
        "show_progress_bar": True,
        "normalize_embeddings": options.normalize,
    }
    done = ""
    if options.out:
        done = write_vectors(encoder, texts, total, options, settings)
    elif options.json:
        print_vectors(encoder, list(texts), settings)
    else:
        done = show_similarities(encoder, list(texts), settings, options.heatmap)

    # These messages come last, below the progress bar, where the user sees them.
    shared.say_cut_texts(encoder, total)
    if done:
        say(done)


def check_options(options: argparse.Namespace) -> None:
    """Raise ``InputError`` for options that do not go together, or files that cannot be written."""
    out = options.out
    both_or_none = bool(options.texts) == bool(options.file)
    has_empty = any(not text.strip() for text in options.texts)
    no_safetensors = out is None or out.suffix != ".safetensors"
    check_usage(
        (both_or_none, 'give either texts or --file, such as: minisbert encode "A cat." "A dog."'),
        (has_empty, "an empty text has nothing to encode"),
        (options.texts == ["-"], "- is no file: --file /dev/stdin reads standard input"),
        (
            options.heatmap and out,
            "--out writes vectors, --heatmap draws similarities: give one of them",
        ),
        (
            options.json and (out or options.heatmap),
            "--json prints vectors: leave out --out and --heatmap",
        ),
        (options.quantize and no_safetensors, "--quantize needs --out F.safetensors"),
    )
    inputs = (options.model, options.file)
    shared.check_written("--out", out, [".npy", ".safetensors"], *inputs)
    shared.check_written("--heatmap", options.heatmap, [".png", ".svg", ".pdf"], *inputs)


def read_texts(options: argparse.Namespace) -> tuple[Iterable[str], int]:
    """Return the texts and how many there are; those of a file for ``.npy`` are an iterator."""
    from minisbert.data.rows import every_text

    if not options.file:
        return options.texts, len(options.texts)

    texts = every_text(options.file, options.columns, options.quotes)
    to_npy = options.out is not None and options.out.suffix == ".npy"
    # Only .npy is written as a stream, and only from a file, since a pipe cannot be read twice.
    if not to_npy or not Path(options.file).is_file():
        lines = list(texts)
        return lines, len(lines)

    # The header of .npy comes first and holds the number of rows: count them, then stream the file,
    # so that it is never in memory. The first reading tells the user what was read, the second is
    # silent.
    total = sum(1 for _ in texts)
    return every_text(options.file, options.columns, options.quotes, is_told=True), total


def check_total(options: argparse.Namespace, total: int) -> None:
    """Raise ``InputError`` if there are more texts than a heat map or a matrix can show."""
    if options.heatmap:
        from minisbert.evaluation import plots

        if total > MAX_HEATMAP:
            raise InputError(f"{total:,} texts are too many for a heat map (at most {MAX_HEATMAP})")
        plots.require()
        return

    shows_matrix = options.out is None and not options.json
    if shows_matrix and total > MAX_MATRIX:
        raise InputError(
            f"{total:,} texts are too many for a matrix (at most {MAX_MATRIX}): give --out "
            f"vectors.npy"
        )


def write_vectors(
    encoder: "TextEncoder",
    texts: Iterable[str],
    total: int,
    options: argparse.Namespace,
    settings: dict[str, Any],
) -> str:
    """Encode ``total`` texts with the ``settings`` of ``encode``, and write them to ``--out``.

    To ``.npy`` they are streamed: neither the vectors nor the texts of an iterator are ever all in
    memory. To ``.safetensors`` go ``vectors``, or with ``--quantize`` codes for ``search --index``.
    Returns a line that says what was written.
    """
    from minisbert.models.index import write_npy

    with atomic_file(options.out) as partial:
        if options.out.suffix == ".npy":
            chunks = encoder.encode_stream(texts, total=total, **settings)
            width = write_npy(chunks, total, partial)
        else:
            width = write_tensors(encoder, list(texts), options, settings, partial)
    form = ""
    if options.quantize:
        form = f" as {options.quantize} codes"
    return f"wrote {total:,} vectors of width {width}{form} to {options.out}"


def write_tensors(
    encoder: "TextEncoder",
    texts: list[str],
    options: argparse.Namespace,
    settings: dict[str, Any],
    path: Path,
) -> int:
    """Encode the texts and write their vectors or codes as safetensors; return the width.

    It needs all vectors at once: for the header, and for the ranges of int8.
    """
    from minisbert.checkpoints.weights import write_safetensors
    from minisbert.loading import uncompiled
    from minisbert.models.index import INDEX_MARK, made_from
    from minisbert.models.properties import choose_prompt
    from minisbert.search.codes import write_codes
    from minisbert.search.kinds import KINDS

    if options.quantize and encoder.vectors_are != "dense":
        raise InputError(
            f"--quantize is for arrays of vectors, not for those of a {type(encoder).__name__}"
        )
    kind = KINDS[encoder.vectors_are]
    vectors: Any = encoder.encode(texts, **settings, **kind.encode_options)
    if options.quantize:
        # Codes carry the hashes of the model and the texts, which search --index compares with its
        # own. It reads texts without the blanks around them.
        prompt = choose_prompt(encoder.settings, options.prompt, options.prompt_name)
        stripped = (text.strip() for text in texts)
        origin = made_from(encoder, stripped, prompt, uncompiled(encoder))
        write_codes(vectors, options.quantize, path, INDEX_MARK | origin)
    else:
        write_safetensors(kind.to_tensors(vectors), path)
    width: int = vectors.shape[1]
    return width


def print_vectors(encoder: "TextEncoder", texts: list[str], settings: dict[str, Any]) -> None:
    """Print a JSON object for each text, as soon as its chunk is encoded."""
    if encoder.vectors_are != "dense":
        raise InputError(
            f"--json prints one vector per text, a {type(encoder).__name__} has others: give "
            f"--out F"
        )
    remaining = iter(texts)
    for vectors in encoder.encode_stream(texts, total=len(texts), **settings):
        for vector in vectors.tolist():
            print_json({"text": next(remaining), "vector": vector})


def show_similarities(
    encoder: "TextEncoder", texts: list[str], settings: dict[str, Any], heatmap: Path | None
) -> str:
    """Print the similarities of a few texts; draw them if a file is given, and say so."""
    from minisbert.evaluation import plots
    from minisbert.models.sparse_encoder import SparseEncoder

    vectors: Any = encoder.encode(texts, **settings)
    matrix = encoder.similarity(vectors, vectors)
    similarity = encoder.similarity_fn_name
    # A heat map may have more texts than a terminal has columns.
    if len(texts) <= MAX_MATRIX:
        print_matrix(texts, matrix, similarity)
        if isinstance(encoder, SparseEncoder):
            print_words(encoder, vectors)
    if not heatmap:
        return ""
    plots.save(plots.draw_heatmap(texts, matrix, similarity), heatmap)
    return f"wrote {heatmap}"


def print_matrix(texts: Sequence[str], matrix: Any, similarity: str) -> None:
    """Print the similarities (N, N) with the number of each column, and each row's text."""
    heading = "".join(f"{number:>7}" for number in range(1, len(texts) + 1))
    print(f"{similarity:<8}{heading}")
    for number, (text, row) in enumerate(zip(texts, matrix, strict=True), start=1):
        label = " ".join(text.split())
        if len(label) > MAX_LABEL:
            label = label[: MAX_LABEL - 3] + "..."
        cells = "".join(f"{value:7.3f}" for value in row)
        print(escaped(f"{number:>6}  {cells}   {label}"))


def print_words(encoder: "SparseEncoder", vectors: Any) -> None:
    """Print the words that weigh most in each sparse vector."""
    for number, words in enumerate(encoder.decode(vectors, top_k=10), start=1):
        weights = ", ".join(f"{word} {weight:.2f}" for word, weight in words)
        print(escaped(f"{number:>6}  {weights}"))
