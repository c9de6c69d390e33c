"""Options that several commands share, the model and the texts that they name, and the printing of results.

Parsers are made without torch, which takes a second to import: the functions that load a model import it.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.core import InputError, one_line
from minisbert.data.lines import read_texts
from minisbert.system.assets import local_path
from minisbert.system.command_line import add_threads_option
from minisbert.system.console import bounded, say
from minisbert.system.files import check_ending, check_output

if TYPE_CHECKING:
    from minisbert.loading import Encoder
    from minisbert.models.pair_model import PairScorer

MODEL_NAME = "name, folder, or owner/name on the Hub"
CORPUS_FILES = "one text per line (.txt, .txt.gz), or .jsonl, .csv or .tsv with a column called text"
ROLES = {"query": "query", "corpus": "document"}  # in the names of options -> of texts
PROMPTS_OF = {"query": "query", "corpus": "document or passage or corpus"}  # in the names of options -> of prompts

# ------------------------------------------------------------------------------------------- options


def add_model_option(group: argparse._ActionsContainer, name: str = "--model") -> None:
    """Add the model alone. With the name "model" it is an argument, which must be given."""
    if name == "model":
        group.add_argument(name, metavar="MODEL", help=MODEL_NAME)
    else:
        group.add_argument(name, default="all-MiniLM-L6-v2", help=f"{MODEL_NAME} (default: %(default)s)")


def add_pooling_option(group: argparse._ActionsContainer) -> None:
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")


def add_device_options(group: argparse._ActionsContainer, device: str = "auto") -> None:
    """Add ``--device`` and ``--threads``."""
    group.add_argument("--device", default=device, help="auto, cpu, cuda or mps (default: %(default)s)")
    add_threads_option(group)


def add_length_options(group: argparse._ActionsContainer) -> None:
    """Add ``--compiled``, which ``if_compiled`` reads, and ``--max-length``."""
    # an optional value: --compiled alone means the package in the cache
    group.add_argument(
        "--compiled",
        nargs="?",
        const="yes",
        metavar="F.pt2",
        help="run a package that minisbert compile made: F.pt2, or the one in the cache (compiled now if it is "
        'missing; a GPU needs none); "auto" runs the model uncompiled if the package is missing or does not fit',
    )
    group.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)")


def add_model_options(group: argparse._ActionsContainer, device: str = "auto", name: str = "--model") -> None:
    """Add the options that ``chosen_encoder`` reads."""
    add_model_option(group, name)
    add_pooling_option(group)
    add_length_options(group)
    about = "keep the first N columns of a vector (Matryoshka)"
    group.add_argument("--truncate-dim", type=bounded(int, 1), metavar="N", help=about)
    add_device_options(group, device)


def add_prompt_option(group: argparse._ActionsContainer, role: str = "") -> None:
    """Add the options that ``prompt_of`` reads: the prompt of all texts, or of the role "query" or "corpus"."""
    flag, default = "--prompt", "the model's choice"
    if role:
        flag, default = f"--{role}-prompt", f"the model's {PROMPTS_OF[role]} prompt, else its own choice"
    one = group.add_mutually_exclusive_group()
    one.add_argument(flag, metavar="TEXT", help=f'put this before each text, "" for nothing (default: {default})')
    one.add_argument(f"{flag}-name", metavar="NAME", help="one of the model's prompts")


def add_similarity_option(group: argparse._ActionsContainer) -> None:
    """Add ``--similarity``, which ``chosen_encoder`` reads."""
    about = "compare vectors by this, not by the model's own similarity"
    group.add_argument("--similarity", choices=("cosine", "dot", "euclidean", "manhattan"), help=about)


def add_rerank_options(group: argparse._ActionsContainer, below: float = math.inf) -> None:
    """Add ``--rerank`` and ``--candidates``, a number from 1 that is less than ``below``."""
    group.add_argument("--rerank", metavar="MODEL", help="cross-encoder that sorts the best texts of a search anew")
    about = "texts for each query that --rerank reads, in search at least --top (default: %(default)s)"
    group.add_argument("--candidates", type=bounded(int, 1, below), default=50, metavar="N", help=about)


def add_corpus_options(parser: argparse.ArgumentParser, roles: Sequence[str] = ("",)) -> None:
    """Add the options shared by ``search``, ``pairs`` and ``mine``; with a prompt for each of the roles."""
    model = parser.add_argument_group("model")
    add_model_options(model)
    add_similarity_option(model)
    prompts = parser.add_argument_group("prompts")
    for role in roles:
        add_prompt_option(prompts, role)
    files = parser.add_argument_group("files")
    files.add_argument(
        "--index",
        type=Path,
        metavar="F",
        help="keep the vectors in F.safetensors, to be reused with the same model and texts; or read those of the same "
        "texts that encode --quantize has written",
    )
    add_json_option(files)


def add_json_option(group: argparse._ActionsContainer) -> None:
    """Add ``--json``, which ``print_result`` reads."""
    group.add_argument("--json", action="store_true", help="print one JSON object at full precision; rows count from 0")


def check_written(option: str, out: Path | None, endings: Sequence[str], model: str, *inputs: str | None) -> None:
    """Raise ``InputError`` if ``out`` has another ending, or overlaps the model or another input."""
    check_ending(option, out, *endings)
    check_output(out, local_path(model), *inputs)


# ------------------------------------------------------------------------------------------- results


def print_result(options: argparse.Namespace, result: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a result as one JSON object with ``--json``, else as lines for people."""
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for line in lines:
        print(line)


def table(rows: Iterable[Sequence[float | str]], first: int, width: int) -> list[str]:
    """Lay out rows in columns, the first one to the left; numbers are shown times 100."""
    lines = []
    for name, *cells in rows:
        line = f"{name:<{first}}"
        for cell in cells:
            shown = cell if isinstance(cell, str) else f"{100 * cell:.2f}"
            line += f"{shown:>{width}}"
        lines.append(line)
    return lines


def say_cut_pairs(model: "PairScorer", pairs: int) -> None:
    """Report how many texts the last ``predict`` of so many pairs had to cut."""
    if model.truncated:
        # a joint head reads a pair as one text
        texts = pairs if model.joint else 2 * pairs
        say(model.tokenizer.cut_message(model.truncated, texts))


# ------------------------------------------------------------------------------------------- the model


def chosen_encoder(options: argparse.Namespace) -> "Encoder":
    """Load the model that the options name; set the process's threads, and have it keep the memory that it frees."""
    from minisbert import loading
    from minisbert.backends.graphs import package_dtype
    from minisbert.checkpoints.layout import find_model
    from minisbert.system.devices import choose_device, keep_freed_memory, use_threads

    # both before the first tensor and the first text: later they would change nothing
    keep_freed_memory()
    use_threads(options.threads)
    # a package has its dtype, so "auto" is settled before one is looked for; other models choose at each call
    dtype = getattr(options, "dtype", None)
    if dtype == "auto" and options.compiled:
        needs_no_package = options.compiled in ("yes", "auto") and choose_device(options.device).type != "cpu"
        if not needs_no_package:
            dtype = package_dtype("auto")
    model = find_model(options.model)
    settings = {"pooling": options.pooling, "max_seq_length": options.max_length}

    def compiled(package: str | bool) -> "Encoder":
        return loading.load_encoder(model, compiled=package, dtype=dtype, device=options.device, **settings)

    encoder = if_compiled(options, compiled, gpu=True)
    if encoder is None:
        encoder = loading.load_encoder(model, device=options.device, **settings)
    if options.truncate_dim is not None:
        if encoder.vectors_are != "dense":
            kind = type(encoder).__name__
            raise InputError(f"--truncate-dim is for dense vectors, whose first columns may do; this is a {kind}")
        encoder.truncate_dim = options.truncate_dim
    similarity = getattr(options, "similarity", None)
    if similarity is not None:
        if encoder.vectors_are == "per token":
            raise InputError(f"{options.model} has a vector per token, which only maxsim compares: omit --similarity")
        encoder.similarity_fn_name = similarity
    return encoder


def load_pooled(options: argparse.Namespace, instead: str) -> "Encoder":
    """Load the model; if it has a vector per token, raise ``InputError`` that says what to do ``instead``."""
    encoder = chosen_encoder(options)
    if encoder.vectors_are == "per token":
        raise InputError(f"{options.model} has a vector per token: {instead}")
    return encoder


def if_compiled(options: argparse.Namespace, load: Callable[[str | bool], Any], gpu: bool = False) -> Any:
    """Return the result of ``load`` for the package that ``--compiled`` names; None to run the model uncompiled.

    ``gpu``: without a package's name ``load`` can do without one there.
    """
    if not options.compiled:
        return None
    gpu = gpu and options.compiled in ("yes", "auto") and options.device.startswith("cuda")
    if options.device not in ("auto", "cpu") and not gpu:
        raise InputError(f"a package is for the CPU, not for --device {options.device}; a GPU needs --compiled alone")
    package = {"yes": True, "auto": "auto"}.get(options.compiled, options.compiled)
    if package not in (True, "auto"):
        check_ending("--compiled", Path(package), ".pt2")
    try:
        return load(package)
    except InputError as error:
        # if you name a package, you want to know why it does not fit; "auto" takes what there is
        if package != "auto":
            raise
        say(f"not compiled: {error}")
        return None


def prompt_of(encoder: "Encoder", options: argparse.Namespace, role: str = "") -> str:
    """Return the prompt from the options, else the model's own for this role, else its default."""
    from minisbert.models.prompts import choose_prompt, role_prompt_name

    prompt, name = given_prompt(options, role)
    # an empty prompt was given on purpose: "" means none, and not the model's own
    if role and prompt is None and name is None:
        name = role_prompt_name(encoder.settings, ROLES[role])
    return choose_prompt(encoder.settings, prompt, name)


def given_prompt(options: argparse.Namespace, role: str) -> tuple[str | None, str | None]:
    """Return the values of ``--prompt`` and ``--prompt-name``, or of those for a role."""
    prefix = f"{role}_" if role else ""
    return getattr(options, f"{prefix}prompt"), getattr(options, f"{prefix}prompt_name")


# ------------------------------------------------------------------------------------------- the corpus


def read_corpus(path: str) -> list[str]:
    """Read the texts of a file; report how many empty lines were skipped."""
    lines = [text for _, text in read_texts(path)]
    texts = [text for text in lines if text]
    if len(texts) < len(lines):
        say(f"{path}: {len(lines) - len(texts):,} empty lines were skipped")
    return texts


def say_unread(path: str, skipped: int, columns: Sequence[str]) -> None:
    """Report what a table holds beside the rows that were read."""
    if skipped:
        say(f"{path}: {skipped:,} rows with an empty text were skipped")
    if columns:
        say(f"{path}: not read: {', '.join(columns)}")


def encoded_metadata(options: argparse.Namespace) -> dict[str, str] | None:
    """Return what ``encode --quantize`` noted in the codes of ``--index``; None for an index, which may be remade."""
    from minisbert.search.index import index_metadata

    path = options.index
    if path is None:
        return None
    made = index_metadata(path)
    # an index of plain vectors is ours to remake; what encode wrote is somebody's result and stays
    if made is None or "quantized" not in made:
        return None
    if made["quantized"] == "binary" and not hasattr(options, "rescore"):
        raise InputError(f"{path} holds bits, which only search reads: encode with --quantize int8")
    return made


def load_and_encode(texts: Sequence[str], options: argparse.Namespace) -> tuple["Encoder", Any, str]:
    """Return the model, the vectors (N, D) of the texts, from ``--index`` if it is given, and the prompt before each.

    The vectors are an array, or, from codes, a ``Stacked`` or ``Bits``.
    """
    from minisbert.loading import uncompiled
    from minisbert.search.index import encode_with_progress, indexed_vectors

    check_output(options.index, local_path(options.model))
    made = encoded_metadata(options)
    encoder = chosen_encoder(options)
    # only search, which has --rescore, knows sparse vectors and vectors per token
    if encoder.vectors_are != "dense" and (made or not hasattr(options, "rescore")):
        kind = type(encoder).__name__
        raise InputError(f"{options.model} is a {kind}: mine, pairs, codes and bits are for dense vectors")
    role = ""
    if hasattr(options, "query_prompt"):
        prompt_of(encoder, options, "query")  # an unknown name ends the work here
        role = "corpus"
    prompt = prompt_of(encoder, options, role)
    if options.index is None:
        return encoder, encode_with_progress(encoder, texts, prompt), prompt
    # files of encode keep the prompt that they were made with, unless an option asks for another, which is an error
    if made and made["prompt"] != prompt and given_prompt(options, role) == (None, None):
        say(f"{options.index}: the texts have the prompt {one_line(made['prompt'])}, not {one_line(prompt)}")
        prompt = made["prompt"]
    return encoder, indexed_vectors(encoder, texts, options.index, prompt, uncompiled(encoder)), prompt
