"""What commands share: options, opening the model and texts that they name, printing results.

Parsers are made without torch, which takes a second to import: the functions that open a model
import it.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.core import InputError, one_line
from minisbert.system.assets import local_path
from minisbert.system.console import (
    add_threads_option,
    bounded,
    cut_message,
    escaped,
    print_json,
    say,
)
from minisbert.system.files import check_ending, check_output

if TYPE_CHECKING:
    from minisbert.models.pair_model import PairScorer
    from minisbert.models.text_encoder import TextEncoder

MODEL_NAME = "name, folder, or owner/name on the Hub"
CORPUS_FILES = (
    "one text per line (.txt, .txt.gz), or .jsonl, .csv, .tsv or .parquet with a column called text"
)
# A role in the names of options (--corpus-prompt), and the name that models give its prompt.
ROLES = {"query": "query", "corpus": "document"}

# -------------------------------------------------------------------------------------------
# options


def add_model_option(group: argparse._ActionsContainer, name: str = "--model") -> None:
    """Add ``--model``, or with the name "model" a positional argument, which has no default."""
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
    """Add ``--compiled`` and ``--max-length``, which ``open_model`` reads.

    They are together because a cross-encoder can be compiled and cut, too, but has no pooling.
    """
    # The value is optional: --compiled alone means the package in the cache.
    group.add_argument(
        "--compiled",
        nargs="?",
        const="yes",
        metavar="F.pt2",
        help="run a package that minisbert compile made: F.pt2, or without a value the one in the "
        'cache, which is compiled now if it is missing (a GPU needs none); "auto" runs the model '
        "uncompiled if the package is missing or does not fit",
    )
    group.add_argument(
        "--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)"
    )


def add_model_options(
    group: argparse._ActionsContainer,
    device: str = "auto",
    name: str = "--model",
    compares: bool = False,
) -> None:
    """Add the options that ``chosen_encoder`` reads.

    A command that ``compares`` vectors has ``--similarity`` too.
    """
    add_model_option(group, name)
    add_pooling_option(group)
    add_length_options(group)
    group.add_argument(
        "--truncate-dim",
        type=bounded(int, 1),
        metavar="N",
        help="keep the first N dimensions of a vector (Matryoshka)",
    )
    # chosen_encoder reads options.similarity of every command.
    group.set_defaults(similarity=None)
    if compares:
        group.add_argument(
            "--similarity",
            choices=("cosine", "dot", "euclidean", "manhattan"),
            help="compare vectors by this similarity (default: the model's own)",
        )
    add_device_options(group, device)


def add_prompt_option(group: argparse._ActionsContainer, role: str = "") -> None:
    """Add the options that ``prompt_of`` reads.

    They name the prompt of all texts, or of the role "query" or "corpus".
    """
    flag = "--prompt"
    default = "the model's choice"
    if role:
        flag = f"--{role}-prompt"
        default = f"the model's prompt called {ROLES[role]}, if any"
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        flag, metavar="TEXT", help=f'put this before each text, "" for nothing (default: {default})'
    )
    either.add_argument(
        f"{flag}-name", metavar="NAME", help="put the model's prompt of this name before each text"
    )


def add_rerank_options(group: argparse._ActionsContainer, below: float = math.inf) -> None:
    """Add ``--rerank`` and ``--candidates``, a number from 1 that is less than ``below``."""
    group.add_argument(
        "--rerank", metavar="MODEL", help="sort the best texts of the search by this cross-encoder"
    )
    group.add_argument(
        "--candidates",
        type=bounded(int, 1, below),
        default=50,
        metavar="N",
        help="texts per query that --rerank sorts (default: %(default)s); minisbert search sorts "
        "at least --top",
    )


def add_corpus_options(
    parser: argparse.ArgumentParser, columns: str, roles: Sequence[str] = ("",)
) -> None:
    """Add the options shared by ``search``, ``pairs`` and ``mine``.

    ``columns`` describes the columns that ``--columns`` names. Each of the roles, "query" and
    "corpus", gets the options of a prompt; the role "" is that of all texts.
    """
    add_model_options(parser.add_argument_group("model"), compares=True)

    prompts = parser.add_argument_group("prompts")
    for role in roles:
        add_prompt_option(prompts, role)

    files = parser.add_argument_group("files")
    files.add_argument(
        "--index",
        type=Path,
        metavar="F",
        help="keep the vectors in F.safetensors and reuse them for the same model and texts; "
        "search also reads what encode --quantize has written for the same texts",
    )
    add_table_options(files, columns)
    add_json_option(files)


def add_table_options(group: argparse._ActionsContainer, columns: str) -> None:
    """Add ``--columns``, and ``--no-quotes``, which makes ``options.quotes`` false.

    ``columns`` describes the columns that ``--columns`` names.
    """
    group.add_argument(
        "--columns",
        metavar="A,B",
        help=f"{columns}: by name, or by number if the file has no header",
    )
    group.add_argument(
        "--no-quotes",
        action="store_false",
        dest="quotes",
        help="read quotation marks in a table as text (default: they enclose a cell, as in pandas)",
    )


def add_json_option(group: argparse._ActionsContainer) -> None:
    """Add ``--json``, which ``print_result`` reads."""
    group.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object at full precision; rows are counted from 0",
    )


def check_written(
    option: str, out: Path | None, endings: Sequence[str], model: str, *inputs: str | None
) -> None:
    """Raise ``InputError`` if the file that an option names has a wrong ending or is an input.

    The model and ``inputs`` are what the command reads, so they must not be overwritten.
    """
    check_ending(option, out, *endings)
    check_output(out, local_path(model), *inputs)


# -------------------------------------------------------------------------------------------
# results


def print_result(options: argparse.Namespace, result: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a result as one JSON object with ``--json``, else as lines for people."""
    if options.json:
        print_json(result)
        return
    for line in lines:
        print(escaped(line))


def say_cut_texts(encoder: "TextEncoder", total: int) -> None:
    """Report how many of the ``total`` texts of the encoder's last call were cut."""
    if encoder.truncated:
        say(cut_message(encoder.tokenizer.limit, encoder.truncated, total))


def say_cut_pairs(model: "PairScorer", pairs: int) -> None:
    """Report how many texts were cut in the last ``predict``, which was given ``pairs`` pairs."""
    if model.truncated:
        total = 2 * pairs
        if model.joint:
            total = pairs  # a joint head reads a pair as one text
        say(cut_message(model.tokenizer.limit, model.truncated, total))


# -------------------------------------------------------------------------------------------
# the model


def open_model(
    options: argparse.Namespace, load: Callable[..., Any], dtype: str | None = None, **settings: Any
) -> Any:
    """Set ``--threads``; call ``load`` with the model, ``--device`` and ``--max-length``.

    With ``--compiled`` it loads a package, which has one ``dtype``. An uncompiled model is told its
    dtype at each call.
    """
    from minisbert.backends.package import package_dtype
    from minisbert.system.devices import choose_device, keep_freed_memory, use_threads

    # Both come before the first tensor and the first text: later they would change nothing.
    keep_freed_memory()
    use_threads(options.threads)

    settings["device"] = options.device
    settings["max_seq_length"] = options.max_length
    if not options.compiled:
        return load(options.model, **settings)

    # For ``load`` True is the package in the cache, "auto" the same if it is there and fits.
    package: bool | str = options.compiled
    if package == "yes":
        package = True
    is_file = package not in (True, "auto")
    if is_file:
        check_ending("--compiled", Path(options.compiled), ".pt2")
    try:
        # A package's dtype is chosen before it is made or found. A GPU has no package in the cache:
        # the model that runs there chooses what "auto" means.
        if dtype == "auto":
            runs_package = is_file or choose_device(options.device).type == "cpu"
            if runs_package:
                dtype = package_dtype("auto")
        return load(options.model, compiled=package, dtype=dtype, **settings)
    except InputError as error:
        # Who names a package wants to know why it does not fit; "auto" takes what there is.
        if package != "auto":
            raise
        say(f"not compiled: {error}")
        return load(options.model, **settings)


def chosen_encoder(
    options: argparse.Namespace, dtype: str | None = None, instead: str = ""
) -> "TextEncoder":
    """Load the encoder that the options of ``add_model_options`` name.

    A command that cannot use a vector per token says in ``instead`` what to do with such a model,
    which is then refused.
    """
    from minisbert.loading import load_encoder

    encoder: TextEncoder = open_model(options, load_encoder, dtype, pooling=options.pooling)
    if instead and encoder.vectors_are == "per token":
        raise InputError(f"{options.model} has a vector per token: {instead}")
    if options.truncate_dim is not None:
        if encoder.vectors_are != "dense":
            kind = type(encoder).__name__
            raise InputError(
                f"--truncate-dim cuts dense vectors to their first dimensions; this is a {kind}"
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
    encoder: "TextEncoder", options: argparse.Namespace, role: str = "", stored: str | None = None
) -> str:
    """Return the prompt from the options, else ``stored``, else the model's own.

    ``stored`` is the prompt that the file of ``--index`` names for its texts.
    """
    from minisbert.models.properties import choose_prompt

    option = "prompt"
    if role:
        option = f"{role}_prompt"
    prompt = getattr(options, option)
    name = getattr(options, f"{option}_name")
    # An empty prompt was given on purpose: "" means none, and not the model's own.
    if prompt is not None or name is not None:
        return choose_prompt(encoder.settings, prompt, name)

    own = own_prompt(encoder, role)
    if stored is None or stored == own:
        return own
    say(f"{options.index}: the texts have the prompt {one_line(stored)}, not {one_line(own)}")
    return stored


def own_prompt(encoder: "TextEncoder", role: str) -> str:
    """Return the model's prompt for a role, or its default one for all texts."""
    from minisbert.models.properties import choose_prompt, role_prompt

    if role:
        return role_prompt(encoder.settings, ROLES[role])
    return choose_prompt(encoder.settings)


# -------------------------------------------------------------------------------------------
# the corpus


def read_corpus(
    path: str, columns: str | None = None, quotes: bool = True, columns_may_lack: bool = False
) -> list[str]:
    """Read the texts of a file; report how many empty lines were skipped.

    If ``columns_may_lack``, a file without the named columns is read as if none were named.
    """
    from minisbert.data.rows import every_text

    # With blanks=True an empty line is "", and not an error.
    lines = list(every_text(path, columns, quotes, blanks=True, names_may_lack=columns_may_lack))
    texts = [text for text in lines if text]
    if len(texts) < len(lines):
        say(f"{path}: empty lines skipped: {len(lines) - len(texts):,}")
    return texts


def stored_codes(options: argparse.Namespace) -> dict[str, str]:
    """Return what ``encode --quantize`` noted in the file of ``--index``.

    Returns {} if the file holds vectors or is missing, and without ``--index``. The file may be
    written, so one that overlaps the model is an ``InputError``.
    """
    from minisbert.models.index import index_metadata

    check_output(options.index, local_path(options.model))
    metadata = index_metadata(options.index)
    if metadata is None or "quantized" not in metadata:
        return {}
    return metadata


def check_no_codes(options: argparse.Namespace) -> None:
    """Raise ``InputError`` if the file of ``--index`` holds codes."""
    if stored_codes(options):
        raise InputError(f"{options.index} holds codes, which only search reads: name another file")


def corpus_vectors(
    encoder: "TextEncoder", texts: Sequence[str], prompt: str, index: Path | None
) -> Any:
    """Return the vectors of the texts, from ``--index`` if it is given."""
    from minisbert.loading import uncompiled
    from minisbert.models.index import encode_with_progress, indexed_vectors

    if index is None:
        return encode_with_progress(encoder, texts, prompt)
    # The index notes a hash of the weights, which a compiled encoder cannot show.
    return indexed_vectors(encoder, texts, index, prompt, uncompiled(encoder))
