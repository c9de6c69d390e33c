"""A training run's folder, and its table of scores.

runs/NAME/config.json      every setting, resolved
runs/NAME/metrics.jsonl    a line every few steps and for every evaluation
runs/NAME/model/           the best model by dev
runs/NAME/state/           for ``--resume``, until the run is finished
runs/NAME/last/            the weights at the moment a run was stopped
runs/NAME/results.json     scores before and after, once it is finished

With ``--overwrite`` a run is made in ``runs/NAME.replacement/`` and moves to ``runs/NAME/`` when it is finished.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from minisbert.core import InputError, one_line
from minisbert.evaluation.model_scores import Scores
from minisbert.folder.overwrite import SAVED
from minisbert.system.files import atomic_file, foreign_entries, listed, lock, recover, write_json
from minisbert.system.version import __version__
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings

CONFIG, METRICS, RESULTS = "config.json", "metrics.jsonl", "results.json"
MODEL, LAST, STATE = "model", "last", "state"
STATE_FILES = ("state.safetensors", "state.json")
REPLACEMENT = ".replacement"


def create_folder(options: RunSettings, device: torch.device, objective: Objective) -> tuple[Path, TextIO]:
    """The run's folder with its ``config.json``, and its locked, empty ``metrics.jsonl``.

    Raises ``InputError`` rather than overwrite a run without ``--overwrite``, a folder that is not a run's, or files
    that no run wrote.
    """
    out = chosen_path(options)
    out.mkdir(parents=True, exist_ok=True)
    folder = out
    if {path.name for path in out.iterdir()} - {METRICS}:
        check_replaceable(out, options.overwrite)
        path = Path(os.path.realpath(out))
        folder = path.with_name(path.name + REPLACEMENT)
        folder.mkdir(exist_ok=True)
    log = open_log(folder)
    try:
        recover_run(folder)
        for name in (MODEL, LAST, STATE):  # of an earlier replacement that was not finished
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / RESULTS).unlink(missing_ok=True)
        log.truncate(0)  # and not removed: it holds the lock
        resolved = {"out": str(out), "device": str(device), "minisbert": __version__, "torch": torch.__version__}
        config = vars(options) | {"rows": objective.notes, "best_metric": objective.best} | resolved
        write_json(folder / CONFIG, config)
    except BaseException:
        log.close()
        raise
    return folder, log


def chosen_path(options: RunSettings) -> Path:
    """``--out``, or a folder in ``runs/`` that is named after the recipe, or data and objective, and the model."""
    name = options.recipe or options.objective
    if options.data and not options.recipe:
        name = f"{Path(options.data).stem}-{options.objective}"
    out = Path(options.out or f"runs/{name}-{Path(options.model).name}")
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):  # safetensors writes to no such path
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")
    return out


def check_replaceable(out: Path, overwrite: bool) -> None:
    """Raise ``InputError`` unless ``out`` is a run that may be replaced, at rest, without files of others in it."""
    if not (out / METRICS).is_file():
        raise InputError(f"{out} is not the folder of a run (it has no {METRICS}): choose another --out")
    open_log(out).close()
    if not overwrite:
        advice = "--overwrite to replace that run"
        if (out / STATE).is_dir():
            advice = f"--resume {out} to continue it, or {advice}"
        raise InputError(f"{out} exists: choose another --out, or {advice}")
    recover_run(out)
    for name, written in ((MODEL, SAVED), (LAST, SAVED), (STATE, STATE_FILES)):
        foreign = foreign_entries(out / name, written)
        if foreign:
            raise InputError(f"{out / name} holds files that no run wrote ({listed(foreign)}): move them elsewhere")


def finish_folder(folder: Path, results: dict[str, Any]) -> Path:
    """Write ``results.json`` and delete what only a resumed run needs; return the folder, which may have moved."""
    with atomic_file(folder / RESULTS) as partial:
        write_json(partial, results)
    for name in (STATE, LAST):
        shutil.rmtree(folder / name, ignore_errors=True)
    return publish(folder)


def publish(folder: Path) -> Path:
    """Move a finished run over the one that it replaces, if it does; return the folder where it is now."""
    folder = Path(os.path.realpath(folder))
    out = folder.with_name(folder.name.removesuffix(REPLACEMENT))
    if out == folder or not out.is_dir():
        return folder
    for name in (LAST, STATE):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (MODEL, METRICS, CONFIG, RESULTS):  # results.json last: if killed, --resume goes on here
        if (folder / name).exists():
            if (out / name).is_symlink():
                (out / name).unlink()
            shutil.rmtree(out / name, ignore_errors=True)
            (folder / name).replace(out / name)
    with suppress(OSError):  # somebody has put files there
        folder.rmdir()
    return out


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


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Every metric on dev and test, before training and of the best model; the loss is in ``results.json``."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in dict.fromkeys([*before["dev"], *before["test"]]):
        if metric == "loss":
            continue
        shown = {"dev": "", "test": ""}
        for split in shown:  # test may have no alike pairs for alignment, no qrels for a search, or no rows at all
            if metric in before[split]:
                shown[split] = f"{100 * before[split][metric]:.2f} -> {100 * after[split][metric]:.2f}"
        print(f"{metric:<16}{shown['dev']:>17}{shown['test']:>19}".rstrip())
