"""A training run's folder, and the tables that people see.

runs/NAME/config.json      every setting, resolved
runs/NAME/metrics.jsonl    a line every few steps and for every evaluation
runs/NAME/model/           the best model by dev
runs/NAME/state/           for ``--resume``, until the run is finished
runs/NAME/last/            the weights at the moment a run was stopped
runs/NAME/results.json     scores before and after, once it is finished
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import torch

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.evaluation.model_scores import Scores
from minisbert.system.console import say
from minisbert.system.files import lock, recover, write_json
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings

STATE, MODEL, LAST, METRICS, RESULTS = "state", "model", "last", "metrics.jsonl", "results.json"


def create_folder(options: RunSettings, device: torch.device, objective: Objective) -> tuple[Path, TextIO]:
    """The run's folder with its ``config.json``, and its locked, empty ``metrics.jsonl``.

    Raises ``InputError`` rather than overwrite a run without ``--overwrite``, or a folder that is not a run's.
    """
    stem = f"{Path(options.data).stem}-" if options.data else ""
    name = options.recipe or f"{stem}{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):  # safetensors writes to no such path
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not (out / METRICS).is_file():
        raise InputError(f"{out} is not the folder of a run (it has no {METRICS}): choose another --out")
    resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
    config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
    with ExitStack() as stack:  # closes the log if something fails
        log = stack.enter_context(open_log(out))
        if not options.overwrite and {path.name for path in out.iterdir()} != {METRICS}:
            resume = f", --resume {out} to continue it" if (out / STATE).is_dir() else ""
            raise InputError(f"{out} exists: choose another --out{resume}, or --overwrite to replace that run")
        recover_run(out)
        for file in (out / "config.json", out / RESULTS):
            file.unlink(missing_ok=True)
        for folder in (MODEL, LAST, STATE):
            shutil.rmtree(out / folder, ignore_errors=True)
        log.truncate(0)  # and not removed: it holds the lock
        write_json(out / "config.json", config)
        stack.pop_all()
    return out, log


def open_log(out: Path) -> TextIO:
    """A run's ``metrics.jsonl``, to append to, locked until it is closed; ``InputError`` if another process has it."""
    log = open(out / METRICS, "a", encoding="utf-8")  # noqa: SIM115 - it stays open as long as the run
    try:
        lock(log)
    except BlockingIOError as error:
        log.close()
        raise InputError(f"{out}: another process is training this run; wait for it to finish, or stop it") from error
    return log


def recover_run(out: Path) -> None:
    """Clean up after processes of this run that were killed while they saved."""
    for name in (STATE, MODEL, LAST, RESULTS):
        recover(out / name)


def describe(options: RunSettings, objective: Objective, counts: tuple[int, int], total: int, precision: str) -> None:
    """A few lines about the run that begins. ``counts``: all parameters, and those that are not frozen."""
    encoder, (parameters, trainable) = objective.encoder, counts
    unused = sum(parameter.numel() for parameter in objective.unused_parameters())
    frozen = "" if trainable == parameters else f" ({trainable:,} trainable)"
    idle = f", {unused:,} of them not used" if unused else ""
    size = f"{parameters:,} parameters{frozen}{idle}"
    say(f"model  {options.model}, {encoder.pooling_mode} pooling, {size}, {encoder.device}")
    say("data   " + ", ".join(f"{split} {note}" for split, note in objective.notes.items()))
    say(f"plan   {total} steps of {options.batch_size} rows, AdamW {options.lr:g}, {precision}, seed {options.seed}")
    if truncated := sum(encoded.truncated for encoded in objective.encoded):
        say(encoder.tokenizer.cut_message(truncated, sum(map(len, objective.encoded))))


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Every metric on dev and test, before training and of the best model; the loss is in ``results.json``."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in (name for name in before["dev"] if name != "loss"):
        # test may have no alike pairs for alignment, and no qrels for a search
        both = [(before[split], after[split]) for split in ("dev", "test")]
        shown = [f"{100 * b[metric]:.2f} -> {100 * a[metric]:.2f}" if metric in b else "" for b, a in both]
        print(f"{metric:<16}{shown[0]:>17}{shown[1]:>19}".rstrip())
