"""A run's folder: made or refused, its log, and its results.

runs/NAME/config.json             every setting
runs/NAME/metrics.jsonl           a line every few steps and for every evaluation
runs/NAME/model/                  the best model by dev
runs/NAME/state.json, state-N..., best-N...  for ``--resume``, until the run is finished
runs/NAME/results.json            scores before and after, once it is finished
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from minisbert.core import InputError, one_line
from minisbert.core.loop import Diverged
from minisbert.system import files
from minisbert.system.assets import local_path
from minisbert.system.console import Interrupts, say
from minisbert.training import BEST, MODEL, RESULTS, RUN_CONFIG, RUN_LOG, STATE
from minisbert.training.options import Settings
from minisbert.training.scores import Gain
from minisbert.training.state import Progress, remove_state

# -----------------------------------------------------------------------------
# the folder and its log


def folder_of(settings: Settings) -> Path:
    """Return the folder of a run: --out, or one in runs/ named after the loss and the model."""
    if settings.out:
        return Path(settings.out)
    name = settings.recipe or settings.head or settings.loss
    if settings.data and not settings.recipe:
        name = f"{Path(settings.data).stem}-{name}"
    return Path("runs", f"{name}-{Path(settings.model).name}")


def new_folder(out: Path, settings: Settings) -> None:
    """Make a run's folder with its ``config.json``; a resumed run has one.

    ``--overwrite`` deletes the run that is there. Raises ``InputError`` for a run without
    ``--overwrite``, for one that another process is training, and for a folder with other files and
    no run.
    """
    if settings.resume is not None:
        return
    check_out(out, settings)
    out.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in out.iterdir()}
    if names and RUN_LOG not in names:
        reason = f"it has no {RUN_LOG}"
        raise InputError(f"{out} is not the folder of a run ({reason}): choose another --out")

    with open_log(out) as log:
        # A log alone is left by a run that ended before its first line.
        has_run = len(names) > 1
        if has_run and not settings.overwrite:
            advice = "--overwrite to delete that run"
            if f"{STATE}.json" in names:
                advice = f"--resume {out} to continue it, or {advice}"
            raise InputError(f"{out} exists: choose another --out, or {advice}")

        # The log is emptied and not deleted, since it holds the lock. The user's own files stay.
        log.truncate(0)
        remove_state(out)
        for name in (RESULTS, RUN_CONFIG):
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / MODEL, ignore_errors=True)
        files.write_json(out / RUN_CONFIG, asdict(settings))


def check_out(out: Path, settings: Settings) -> None:
    """Raise ``InputError`` if ``out`` is one of the run's inputs, or cannot be written to."""
    model = local_path(settings.model)
    files.check_output(out, model, settings.teacher, settings.data, settings.dev, settings.test)
    # safetensors writes to no path that is not UTF-8
    path = os.path.realpath(out)
    if path.encode(errors="ignore") != os.fsencode(path):
        raise InputError(f"--out {one_line(out)}: the path is not UTF-8; choose another one")


def remove_unused(out: Path) -> None:
    """Delete what ``new_folder`` has made of a run that has not begun to train."""
    if (out / f"{STATE}.json").exists():
        return
    (out / RUN_CONFIG).unlink(missing_ok=True)
    if (out / RUN_LOG).exists() and not (out / RUN_LOG).stat().st_size:
        (out / RUN_LOG).unlink()
    # a folder with files of the user's own stays
    with suppress(OSError):
        out.rmdir()


@contextmanager
def open_log(out: Path) -> Iterator[TextIO]:
    """Open a run's ``metrics.jsonl`` to append to, and lock it; ``InputError`` if it is locked.

    Whoever holds it is alone in the folder, so what a killed process was writing there is removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    check_no_links(out)
    path = out / RUN_LOG
    log = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed below, with the file's name
    try:
        files.lock(log)
    except BlockingIOError as error:
        log.close()
        advice = "wait for it to finish, or stop it"
        raise InputError(f"{out}: another process is training this run; {advice}") from error
    try:
        for unfinished in out.glob(f".*.{files.PARTIAL}*"):
            if unfinished.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
            else:
                unfinished.unlink(missing_ok=True)
        yield log
    finally:
        with files.naming(path):
            log.close()


def check_no_links(out: Path) -> None:
    """Raise ``InputError`` if the run would write through a link in its folder.

    The folder may be somebody else's.
    """
    for name in (RUN_LOG, RUN_CONFIG, RESULTS, MODEL):
        files.check_no_link(out / name)
    for start in (STATE, BEST):
        for path in out.glob(f"{start}*"):
            files.check_no_link(path)


@contextmanager
def log_of(folder: Path | None) -> Iterator[TextIO | None]:
    """``open_log``, or None for a training without a folder."""
    if folder is None:
        yield None
        return
    with open_log(folder) as log:
        yield log


def cut_log(log: TextIO | None, size: int) -> None:
    """Cut a log to its first ``size`` bytes: what was logged after the state was saved is dropped.

    Raises ``InputError`` if it is shorter.
    """
    if log is None:
        return
    length = Path(log.name).stat().st_size
    if length < size:
        raise InputError(
            f"{log.name} was cut or replaced: it has {length} bytes, not {size}; put the whole log "
            f"back, or start again with --overwrite"
        )
    log.truncate(size)


def write_line(log: TextIO | None, progress: Progress, **values: Any) -> None:
    """Write a line of ``metrics.jsonl``, if there is one, and count its bytes."""
    if log is None:
        return
    line = {"step": progress.step} | values
    with files.naming(log.name):
        log.write(json.dumps(line) + "\n")
        log.flush()
    progress.logged = log.tell()


def log_loss(log: TextIO | None, progress: Progress, lr: float, log_every: int) -> None:
    """Every few steps log the mean loss since the line before, the learning rate and the speed.

    ``total`` is the number of steps that the schedule was made for: ``minisbert plot`` draws it.
    """
    if progress.step % log_every != 0 and progress.step != progress.total:
        return
    loss = sum(progress.unlogged) / len(progress.unlogged)
    speed = round(progress.tokens / max(progress.seconds, 1e-9))
    write_line(log, progress, loss=loss, lr=lr, total=progress.total, tokens_per_second=speed)
    progress.unlogged = []


def save_stopped(model: Any, progress: Progress, out: Path, error: BaseException) -> None:
    """Save the best weights so far of a run that was stopped, and say how to go on.

    A run that has not begun to train leaves no folder, or its folder as it was.
    """
    if not progress.total:
        remove_unused(out)
        return
    with Interrupts() as interrupts, interrupts.defer():
        model.save(out / MODEL)
        weights = "the weights"
        if progress.history:
            weights = f"the best weights so far, of step {progress.best_step},"
        advice = f"continue with --resume {out}"
        if isinstance(error, Diverged):
            # A resumed run would come to the same step.
            advice = "begin anew with --overwrite"
        say(f"stopped at step {progress.step}: {weights} are in {out / MODEL}; {advice}")


# -----------------------------------------------------------------------------
# results


def write_results(
    out: Path, progress: Progress, splits: Mapping[str, tuple[dict, dict]], gain: Gain | None
) -> None:
    """Write ``results.json``: the scores of each split before and after, and the gain on test."""
    results: dict[str, Any] = {"before": {}, "after": {}}
    for split, (before, after) in splits.items():
        results["before"][split] = before
        results["after"][split] = after
    if gain is not None:
        results["gain"] = asdict(gain)
    results["steps"] = progress.step
    results["best_step"] = None  # without dev rows no step is better than another
    if progress.history:
        results["best_step"] = progress.best_step
    results["training_seconds"] = round(progress.seconds, 2)
    with files.atomic_file(out / RESULTS) as new:
        files.write_json(new, results)


def dev_scores(progress: Progress, step: int) -> dict[str, float]:
    """Return the dev scores of a step."""
    for scores in progress.history:
        if scores["step"] == step:
            return {name: value for name, value in scores.items() if name != "step"}
    raise ValueError(f"step {step} was not evaluated")
