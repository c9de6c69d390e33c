"""Options that several commands share, the model and texts that they name, and printing results.

Parsers are made without torch, which takes a second to load: the functions that open a model
import it.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.core import InputError, one_line
from minisbert.system.assets import local_path
from minisbert.system.console import add_threads_option, bounded, cut_message, say
from minisbert.system.files import check_ending, check_output

if TYPE_CHECKING:
    from minisbert.loading import Encoder
    from minisbert.models.pair_model import PairScorer

MODEL_NAME = "name, folder, or owner/name on the Hub"
CORPUS_FILES = (
    "one text per line (.txt, .txt.gz), or .jsonl, .csv, .tsv or .parquet with a column called text"
)
ROLES = {"query": "query", "corpus": "document"}  # in the names of options -> of texts

# -------------------------------------------------------------------------------------------
# options


def add_model_option(group: argparse._ActionsContainer, name: str = "--model") -> None:
    """Add the model alone. With the name "model" it is an argument, which must be given."""
    if name == "model":
        group.add_argument(name, metavar="MODEL", help=MODEL_NAME)
    else:
        group.add_argument(
            name, default="all-MiniLM-L6-v2", help=f"{MODEL_NAME} (default: %(default)s)"
        )


def add_pooling_option(group: argparse._ActionsContainer) -> None:
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")


def add_device_options(group: argparse._ActionsContainer, device: str = "auto") -> None:
    """Add ``--device`` and ``--threads``."""
    group.add_argument(
        "--device", default=device, help="auto, cpu, cuda or mps (default: %(default)s)"
    )
    add_threads_option(group)


def add_length_options(group: argparse._ActionsContainer) -> None:
    """Add ``--compiled``, which ``opened`` reads, and ``--max-length``."""
    # an optional value: --compiled alone means the package in the cache
    about = "run a package that minisbert compile made: F.pt2, or the one in the cache (compiled "
    about += 'now if it is missing; a GPU needs none); "auto" runs the model uncompiled if the '
    about += "package is missing or does not fit"
    group.add_argument("--compiled", nargs="?", const="yes", metavar="F.pt2", help=about)
    group.add_argument(
        "--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)"
    )


def add_model_options(
    group: argparse._ActionsContainer,
    device: str = "auto",
    name: str = "--model",
    compares: bool = False,
) -> None:
    """Add the options that ``chosen_encoder`` reads, with ``--similarity`` for a command that
    ``compares`` vectors.
    """
    add_model_option(group, name)
    add_pooling_option(group)
    add_length_options(group)
    about = "keep the first N columns of a vector (Matryoshka)"
    group.add_argument("--truncate-dim", type=bounded(int, 1), metavar="N", help=about)
    group.set_defaults(similarity=None)
    if compares:
        about = "compare vectors by this, not by the model's own similarity"
        group.add_argument(
            "--similarity", choices=("cosine", "dot", "euclidean", "manhattan"), help=about
        )
    add_device_options(group, device)


def add_prompt_option(group: argparse._ActionsContainer, role: str = "") -> None:
    """Add the options that ``prompt_of`` reads: the prompt of all texts, or of the role "query" or
    "corpus".
    """
    flag, default = "--prompt", "the model's choice"
    if role:
        flag, default = f"--{role}-prompt", f"the model's prompt called {ROLES[role]}, if any"
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        flag, metavar="TEXT", help=f'put this before each text, "" for nothing (default: {default})'
    )
    one.add_argument(f"{flag}-name", metavar="NAME", help="one of the model's prompts")


def add_rerank_options(group: argparse._ActionsContainer, below: float = math.inf) -> None:
    """Add ``--rerank`` and ``--candidates``, a number from 1 that is less than ``below``."""
    group.add_argument(
        "--rerank", metavar="MODEL", help="cross-encoder that sorts the best texts of a search anew"
    )
    about = (
        "texts for each query that --rerank reads, in search at least --top (default: %(default)s)"
    )
    group.add_argument(
        "--candidates", type=bounded(int, 1, below), default=50, metavar="N", help=about
    )


def add_corpus_options(
    parser: argparse.ArgumentParser, columns: str, roles: Sequence[str] = ("",)
) -> None:
    """Add the options shared by ``search``, ``pairs`` and ``mine``; with a prompt for each of the
    roles. ``columns`` says which ones ``--columns`` names.
    """
    add_model_options(parser.add_argument_group("model"), compares=True)
    prompts = parser.add_argument_group("prompts")
    for role in roles:
        add_prompt_option(prompts, role)
    files = parser.add_argument_group("files")
    about = "keep the vectors in F.safetensors, to be reused with the same model and texts"
    about += "; or read those of the same texts that encode --quantize has written"
    files.add_argument("--index", type=Path, metavar="F", help=about)
    add_table_options(files, columns)
    add_json_option(files)


def add_table_options(group: argparse._ActionsContainer, columns: str) -> None:
    """Add ``--columns`` and ``--no-quotes``, as ``options.quotes``; ``columns`` says which."""
    group.add_argument(
        "--columns", metavar="A,B", help=f"{columns}: their names, or numbers without a header"
    )
    about = "quotation marks in a table are text (default: they enclose a cell, as in pandas)"
    group.add_argument("--no-quotes", action="store_false", dest="quotes", help=about)


def add_json_option(group: argparse._ActionsContainer) -> None:
    """Add ``--json``, which ``print_result`` reads."""
    group.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object at full precision; rows count from 0",
    )


def check_written(
    option: str, out: Path | None, endings: Sequence[str], model: str, *inputs: str | None
) -> None:
    """Raise ``InputError`` if ``out`` has another ending, or overlaps the model or another
    input.
    """
    check_ending(option, out, *endings)
    check_output(out, local_path(model), *inputs)


# -------------------------------------------------------------------------------------------
# results


def print_result(options: argparse.Namespace, result: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a result as one JSON object with ``--json``, else as lines for people."""
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for line in lines:
        print(line)


def say_cut_pairs(model: "PairScorer", pairs: int) -> None:
    """Report how many texts the last ``predict`` of so many pairs had to cut."""
    if model.truncated:
        # a joint head reads a pair as one text
        texts = pairs if model.joint else 2 * pairs
        say(cut_message(model.tokenizer.limit, model.truncated, texts))


# ------------------------------------------------------------------------------------------- the
# model


def opened(
    options: argparse.Namespace, load: Callable[..., Any], dtype: str | None = None, **settings: Any
) -> Any:
    """Return what ``load`` makes of the model and ``--compiled``, ``--device``, ``--max-length``
    and ``--threads``.

    ``dtype`` is that of a package; an uncompiled model chooses at each call.
    """
    from minisbert.backends.graphs import package_dtype
    from minisbert.system.devices import choose_device, keep_freed_memory, use_threads

    # both before the first tensor and the first text: later they would change nothing
    keep_freed_memory()
    use_threads(options.threads)
    settings |= {"device": options.device, "max_seq_length": options.max_length}
    if not options.compiled:
        return load(options.model, **settings)
    package = True if options.compiled == "yes" else options.compiled
    if options.compiled not in ("yes", "auto"):
        check_ending("--compiled", Path(options.compiled), ".pt2")
    try:
        # a GPU has no package, and chooses "auto" itself
        if dtype == "auto" and (
            package not in (True, "auto") or choose_device(options.device).type == "cpu"
        ):
            dtype = package_dtype("auto")
        return load(options.model, compiled=package, dtype=dtype, **settings)
    except InputError as error:
        # if you name a package, you want to know why it does not fit; "auto" takes what there is
        if package != "auto":
            raise
        say(f"not compiled: {error}")
        return load(options.model, **settings)


def chosen_encoder(
    options: argparse.Namespace, dtype: str | None = None, instead: str = ""
) -> "Encoder":
    """Load the encoder that the options of ``add_model_options`` name.

    ``instead`` says what to do with a model that has a vector per token, which is refused if it is
    given.
    """
    from minisbert.loading import load_encoder

    encoder: Encoder = opened(options, load_encoder, dtype, pooling=options.pooling)
    if instead and encoder.vectors_are == "per token":
        raise InputError(f"{options.model} has a vector per token: {instead}")
    if options.truncate_dim is not None:
        if encoder.vectors_are != "dense":
            kind = type(encoder).__name__
            raise InputError(
                f"--truncate-dim is for dense vectors, whose first columns may do; this is a {kind}"
            )
        encoder.truncate_dim = options.truncate_dim
    if options.similarity is not None:
        if encoder.vectors_are == "per token":
            raise InputError(
                f"{options.model} has a vector per token, which only maxsim compares: omit "
                f"--similarity"
            )
        encoder.similarity_fn_name = options.similarity
    return encoder


def prompt_of(
    encoder: "Encoder", options: argparse.Namespace, role: str = "", stored: str | None = None
) -> str:
    """Return the prompt from the options, else ``stored``, else the model's own: for this role, or
    its default.
    """
    from minisbert.models.properties import choose_prompt, role_prompt

    prefix = f"{role}_" if role else ""
    prompt, name = getattr(options, f"{prefix}prompt"), getattr(options, f"{prefix}prompt_name")
    # an empty prompt was given on purpose: "" means none, and not the model's own
    if prompt is not None or name is not None:
        return choose_prompt(encoder.settings, prompt, name)
    settings = encoder.settings
    prompt = role_prompt(settings, ROLES[role]) if role else choose_prompt(settings)
    if stored is None or stored == prompt:
        return prompt
    say(f"{options.index}: the texts have the prompt {one_line(stored)}, not {one_line(prompt)}")
    return stored


# ------------------------------------------------------------------------------------------- the
# corpus


def read_corpus(
    path: str, columns: str | None = None, quotes: bool = True, columns_may_lack: bool = False
) -> list[str]:
    """Read the texts of a file; report how many empty lines were skipped."""
    from minisbert.data.rows import every_text

    lines = list(every_text(path, columns, quotes, blanks=True, names_may_lack=columns_may_lack))
    texts = [text for text in lines if text]
    if len(texts) < len(lines):
        say(f"{path}: empty lines skipped: {len(lines) - len(texts):,}")
    return texts


def stored_codes(options: argparse.Namespace) -> dict[str, str]:
    """Return what ``encode --quantize`` noted in the file of ``--index``; {} for an index, which
    may be made anew.
    """
    from minisbert.models.index import index_metadata

    check_output(options.index, local_path(options.model))
    made = index_metadata(options.index) or {}
    return made if "quantized" in made else {}


def check_no_codes(options: argparse.Namespace) -> None:
    """Raise ``InputError`` if the file of ``--index`` holds codes."""
    if stored_codes(options):
        raise InputError(f"{options.index} holds codes, which only search reads: name another file")


def corpus_vectors(
    encoder: "Encoder", texts: Sequence[str], prompt: str, index: Path | None
) -> Any:
    """Return the vectors of the texts, from ``--index`` if it is given."""
    from minisbert.loading import uncompiled
    from minisbert.models.index import encode_with_progress, indexed_vectors

    if index is None:
        return encode_with_progress(encoder, texts, prompt)
    return indexed_vectors(encoder, texts, index, prompt, uncompiled(encoder))
