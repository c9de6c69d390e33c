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
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import check_usage, command_parser, cut_message, say
from minisbert.system.files import atomic_file

if TYPE_CHECKING:
    from minisbert.loading import Encoder

MAX_MATRIX = 12  # texts; a larger matrix is unreadable
MAX_HEATMAP = 60  # texts

parser = command_parser("encode", __doc__)
parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
parser.add_argument("--file", metavar="F", help=f"{shared.CORPUS_FILES}, of any size")
parser.add_argument(
    "--out", metavar="F", type=Path, help="write the vectors to F.npy or F.safetensors"
)
about = 'print a JSON object per text, {"text": ..., "vector": [...]}'
parser.add_argument("--json", action="store_true", help=about)
parser.add_argument(
    "--heatmap",
    metavar="F",
    type=Path,
    help="draw the similarities to F.png, .svg or .pdf (the plots extra)",
)
of_model = parser.add_argument_group("the model")
shared.add_model_options(of_model)
of_model.add_argument(
    "--dtype", default="float32", help="float32, bfloat16 or auto (default: %(default)s)"
)
of_model.add_argument(
    "--batch-size", type=int, default=32, help="texts of 64 tokens per batch (default: %(default)s)"
)
shared.add_prompt_option(of_model)
shared.add_table_options(parser, "the column of texts")
of_vectors = parser.add_argument_group("the vectors")
of_vectors.add_argument(
    "--normalize", action="store_true", help="scale to length 1 at the end (many models do anyway)"
)
quantize_help = (
    "write int8 codes (a quarter of the bytes) or bits (a 32nd) to F.safetensors, "
    "for search --index F"
)
of_vectors.add_argument("--quantize", choices=("int8", "binary"), help=quantize_help)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    out, heatmap = options.out, options.heatmap
    both = bool(options.texts) == bool(options.file)
    other_file = out is None or out.suffix != ".safetensors"
    empty = not all(map(str.strip, options.texts))
    check_usage(
        (both, 'give either texts or --file, such as: minisbert encode "A cat." "A dog."'),
        (empty, "an empty text has nothing to encode"),
        (options.texts == ["-"], "- is no file: --file /dev/stdin reads standard input"),
        (heatmap and out, "--out writes vectors, --heatmap draws similarities: give one of them"),
        (options.json and (out or heatmap), "--json prints vectors: leave out --out and --heatmap"),
        (options.quantize and other_file, "--quantize needs --out F.safetensors"),
    )
    shared.check_written("--out", out, [".npy", ".safetensors"], options.model, options.file)
    shared.check_written(
        "--heatmap", heatmap, [".png", ".svg", ".pdf"], options.model, options.file
    )

    from minisbert.data.rows import every_text

    def file_texts(is_told: bool = False) -> Iterator[str]:
        return every_text(options.file, options.columns, options.quotes, is_told=is_told)

    # what is wrong with the texts is said before the model is loaded
    texts: Iterable[str] = options.texts
    if options.file and out and out.suffix == ".npy" and Path(options.file).is_file():
        # the header of .npy, which comes first, holds the number of rows: count them, then stream
        # the file, which is never in memory. A pipe can be read only once
        total = sum(1 for _ in file_texts())
        texts = file_texts(is_told=True)
    else:
        if options.file:
            texts = file_texts()
        texts = list(texts)
        total = len(texts)
    if heatmap:
        from minisbert.evaluation.plots import require

        check_usage(
            (
                total > MAX_HEATMAP,
                f"{total:,} texts are too many for a heat map (at most {MAX_HEATMAP})",
            )
        )
        require()
    elif out is None and not options.json and total > MAX_MATRIX:
        raise InputError(
            f"{total:,} texts are too many for a matrix (at most {MAX_MATRIX}): give --out "
            f"vectors.npy"
        )
    encoder = shared.chosen_encoder(options, options.dtype)
    # the options that ``encode`` in Python has, under its names
    settings = {
        name: getattr(options, name) for name in ("dtype", "batch_size", "prompt", "prompt_name")
    }
    settings |= {"show_progress_bar": True, "normalize_embeddings": options.normalize}
    done = ""
    if out:
        done = write_vectors(encoder, texts, total, options, settings)
    elif options.json:
        if encoder.vectors_are != "dense":
            raise InputError(
                f"--json prints one vector per text, a {type(encoder).__name__} has others: give "
                f"--out F"
            )
        rows = iter(texts)
        for vectors in encoder.encode_stream(texts, total=total, **settings):
            for vector in vectors.tolist():
                print(json.dumps({"text": next(rows), "vector": vector}, ensure_ascii=False))
    else:
        done = show_similarities(encoder, list(texts), settings, heatmap)
    # at the end, where it is seen
    if encoder.truncated:
        say(cut_message(encoder.tokenizer.limit, encoder.truncated, total))
    if done:
        say(done)


def write_vectors(
    encoder: "Encoder",
    texts: Iterable[str],
    total: int,
    options: argparse.Namespace,
    settings: dict[str, Any],
) -> str:
    """Encode ``total`` texts with the ``settings`` of ``encode``, write them to ``--out``, and say
    what was written.

    To ``.npy`` they are streamed: neither the vectors nor the texts of an iterator are ever all in
    memory. To ``.safetensors`` go ``vectors``, or with ``--quantize`` codes for ``search --index``.
    """
    from minisbert.checkpoints.weights import write_safetensors
    from minisbert.loading import uncompiled
    from minisbert.models.index import INDEX_MARK, made_from, write_npy
    from minisbert.models.properties import choose_prompt
    from minisbert.search.codes import write_codes
    from minisbert.search.kinds import KINDS

    with atomic_file(options.out) as partial:
        if options.out.suffix == ".npy":
            width = write_npy(encoder.encode_stream(texts, total=total, **settings), total, partial)
        else:  # this needs all vectors at once: the ranges of int8, and the header of .safetensors
            if options.quantize and encoder.vectors_are != "dense":
                raise InputError(
                    f"--quantize is for arrays of vectors, not for those of a "
                    f"{type(encoder).__name__}"
                )
            texts = list(texts)
            kind = KINDS[encoder.vectors_are]
            vectors: Any = encoder.encode(texts, **settings, **kind.encode_options)
            width = vectors.shape[1]
            if options.quantize:
                prompt = choose_prompt(encoder.settings, options.prompt, options.prompt_name)
                # search strips its texts too
                made = made_from(
                    encoder, (text.strip() for text in texts), prompt, uncompiled(encoder)
                )
                write_codes(vectors, options.quantize, partial, INDEX_MARK | made)
            else:
                write_safetensors(kind.to_tensors(vectors), partial)
    form = f" as {options.quantize} codes" if options.quantize else ""
    return f"wrote {total:,} vectors of width {width}{form} to {options.out}"


def show_similarities(
    encoder: "Encoder", texts: list[str], settings: dict[str, Any], heatmap: Path | None
) -> str:
    """Print the similarities of a few texts; draw them if a file is given, and say so."""
    from minisbert.evaluation import plots
    from minisbert.models.sparse_encoder import SparseEncoder

    vectors: Any = encoder.encode(texts, **settings)
    matrix, similarity = encoder.similarity(vectors, vectors), encoder.similarity_fn_name
    if len(texts) <= MAX_MATRIX:  # a heat map may have more texts than a terminal has columns
        print(f"{similarity:<8}" + "".join(f"{number:>7}" for number in range(1, len(texts) + 1)))
        for number, (text, row) in enumerate(zip(texts, matrix, strict=True), start=1):
            label = " ".join(text.split())
            if len(label) > 60:
                label = label[:57] + "..."
            print(f"{number:>6}  " + "".join(f"{value:7.3f}" for value in row) + f"   {label}")
        if isinstance(encoder, SparseEncoder):
            for number, words in enumerate(encoder.decode(vectors, top_k=10), start=1):
                print(
                    f"{number:>6}  " + ", ".join(f"{word} {weight:.2f}" for word, weight in words)
                )
    if not heatmap:
        return ""
    plots.save(plots.draw_heatmap(texts, matrix, similarity), heatmap)
    return f"wrote {heatmap}"
