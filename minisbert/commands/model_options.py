"""The options of the commands that encode: which model, on what, and the prompt before each text."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minisbert import loading
from minisbert.compiled.int8 import package_dtype
from minisbert.core import InputError
from minisbert.folder.find import find_model
from minisbert.models.prompts import PROMPT_NAMES, choose_prompt, role_prompt_name
from minisbert.system.arguments import add_threads_option
from minisbert.system.assets import local_path
from minisbert.system.console import bounded, say
from minisbert.system.devices import keep_freed_memory, use_threads
from minisbert.system.files import check_ending, check_output

ROLES = {"query": "query", "corpus": "document"}  # in the names of options -> of texts


def add_model_options(group: argparse._ActionsContainer, device: str = "auto", name: str = "--model") -> None:
    """The options that ``load_encoder`` reads. With the name "model" the model is an argument, which must be given."""
    add_compiled_option(group)
    about = "name, folder, or owner/name on the Hub"
    if name == "model":
        group.add_argument(name, metavar="MODEL", help=about)
    else:
        group.add_argument(name, default="all-MiniLM-L6-v2", help=f"{about} (default: %(default)s)")
    group.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    group.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)")
    group.add_argument(
        "--truncate-dim", type=bounded(int, 1), metavar="N", help="keep the first N columns of a vector (Matryoshka)"
    )
    group.add_argument("--device", default=device, help="auto, cpu, cuda or mps (default: %(default)s)")
    add_threads_option(group)


def add_compiled_option(group: argparse._ActionsContainer) -> None:
    """``--compiled``, which ``if_compiled`` reads."""
    group.add_argument(
        "--compiled",
        nargs="?",
        const="yes",
        metavar="F.pt2",
        help="run the model compiled for this CPU (minisbert compile): F.pt2, or the one in the cache, compiled now if "
        "it is missing; with auto, uncompiled if it is missing or does not fit",
    )


def load_encoder(options: argparse.Namespace) -> loading.Encoder:
    """The model; sets the process's threads, and has it keep the memory that it frees."""
    keep_freed_memory()
    use_threads(options.threads)
    dtype = getattr(options, "dtype", None)
    if dtype == "auto" and options.compiled:
        dtype = package_dtype("auto")
    model = find_model(options.model)

    chosen = {"pooling": options.pooling, "max_seq_length": options.max_length}

    def compiled(package: str | bool) -> loading.Encoder:
        return loading.load_encoder(model, compiled=package, dtype=dtype, **chosen)

    encoder = if_compiled(options, compiled) or loading.load_encoder(model, device=options.device, **chosen)
    if options.truncate_dim is not None:
        if encoder.vectors_are != "dense":
            name = type(encoder).__name__
            raise InputError(f"--truncate-dim: a {name} has no columns that matter less than others")
        encoder.truncate_dim = options.truncate_dim
    return encoder


def load_pooled(options: argparse.Namespace, instead: str) -> loading.Encoder:
    """``load_encoder``; for a model with a vector per token an ``InputError`` that says what to do ``instead``."""
    encoder = load_encoder(options)
    if encoder.vectors_are == "per token":
        raise InputError(f"{options.model} has a vector per token: {instead}")
    return encoder


def check_written(option: str, out: Path | None, endings: Sequence[str], model: str, *inputs: str | None) -> None:
    """Raise ``InputError`` if ``out`` has another ending, or is, contains or lies in the model or another input."""
    check_ending(option, out, *endings)
    check_output(out, local_path(model), *inputs)


def if_compiled(options: argparse.Namespace, load: Callable[[str | bool], Any]) -> Any:
    """The result of ``load`` for the package that ``--compiled`` names; None to run the model uncompiled."""
    if not options.compiled:
        return None
    if options.device not in ("auto", "cpu"):
        raise InputError(f"--compiled is for the CPU, not for --device {options.device}")
    if options.compiled not in ("yes", "auto"):
        check_ending("--compiled", Path(options.compiled), ".pt2")
    try:
        return load({"yes": True, "auto": "auto"}.get(options.compiled, options.compiled))
    except InputError as error:
        if options.compiled != "auto":
            raise
        say(f"not compiled: {error}")
        return None


def add_prompt_option(group: argparse._ActionsContainer, role: str = "") -> None:
    """The options that ``prompt_of`` reads: the prompt of all texts, or of the role "query" or "corpus"."""
    flag, default = "--prompt", "the model's choice"
    if role:
        names = " or ".join(PROMPT_NAMES[ROLES[role]])
        flag, default = f"--{role}-prompt", f"the model's {names} prompt, else its own choice"
    one = group.add_mutually_exclusive_group()
    one.add_argument(flag, metavar="TEXT", help=f'put this before each text, "" for nothing (default: {default})')
    one.add_argument(f"{flag}-name", metavar="NAME", help="one of the model's prompts")


def prompt_of(encoder: loading.Encoder, options: argparse.Namespace, role: str = "") -> str:
    """The prompt from the options, else the model's own for this role, else its default."""
    prefix = f"{role}_" if role else ""
    prompt, name = getattr(options, f"{prefix}prompt"), getattr(options, f"{prefix}prompt_name")
    if role and prompt is None and name is None:
        name = role_prompt_name(encoder.settings, ROLES[role])
    return choose_prompt(encoder.settings, prompt, name)
