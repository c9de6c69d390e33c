"""A run's folder belongs to one process at a time, and whatever was changed since the run was
stopped is refused.
"""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import Interrupts, run_command
from minisbert.system.progress import Bar
from minisbert.training import run as runs
from minisbert.training import train as training
from minisbert.training.distributed import ProcessGroup
from minisbert.training.objectives.encoders import CosineRegression
from minisbert.training.run import Run, RunState, open_log, print_table
from minisbert.training.train import main
from tests import toys

LOSS = (formulas, "cosine_mse_loss")


@pytest.fixture
def flags(tiny, tmp_path) -> list[str]:
    flags = [
        "--model",
        str(tiny),
        *toys.flags(toys.write_all(tmp_path), "cosine"),
        "--batch-size",
        "8",
    ]
    return [
        *flags,
        "--dtype",
        "float32",
        "--log-every",
        "1",
        "--max-steps",
        "4",
        "--out",
        str(tmp_path / "run"),
    ]


@pytest.fixture
def stopped(flags, tmp_path) -> Path:
    """A run stopped in its third step."""
    toys.stop_at(3, LOSS, main, flags)
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_a_second_process_is_refused_and_changes_nothing(stopped, flags):
    before = contents(stopped)
    hold = "import sys; from pathlib import Path; from minisbert.training.run import open_log; "
    hold += "log = open_log(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(stopped)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        for arguments in (["--resume", str(stopped)], [*flags, "--overwrite"]):
            with pytest.raises(InputError, match="run: another process is training this run"):
                main(arguments)
            assert contents(stopped) == before
        other.kill()  # the lock goes with its process
    main(["--resume", str(stopped)])
    assert (stopped / "results.json").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
@pytest.mark.parametrize("overwritten", [False, True])
def test_the_folder_is_locked_while_the_run_lasts(overwritten, flags, tmp_path, monkeypatch):
    """The run that ``--overwrite`` deletes cannot be resumed any more while the new one trains."""
    if overwritten:
        toys.stop_at(3, LOSS, main, flags)
        flags = [*flags, "--overwrite"]
    loss, seen = formulas.cosine_mse_loss, []

    def locked(*arguments):
        with pytest.raises(InputError, match="another process is training this run"):
            open_log(tmp_path / "run")
        seen.append(True)
        return loss(*arguments)

    monkeypatch.setattr(*LOSS, locked)
    main(flags)
    assert len(seen) == 4
    open_log(tmp_path / "run").close()


def test_the_loser_of_two_resumes_that_began_together_says_so(stopped, monkeypatch):
    """It finds the run unfinished, but while it loads the model the other process finishes."""
    prepare = training.prepare_objective

    def slow(*arguments):
        (stopped / "state.safetensors").unlink()
        return prepare(*arguments)

    before = {
        path: content
        for path, content in contents(stopped).items()
        if "state" not in Path(path).name
    }
    monkeypatch.setattr(training, "prepare_objective", slow)
    with pytest.raises(InputError, match=r"state\.safetensors does not exist"):
        main(["--resume", str(stopped)])
    assert contents(stopped) == before
    open_log(stopped).close()  # not locked any more


def test_a_short_log_is_refused_and_not_padded(stopped):
    path = stopped / "metrics.jsonl"
    whole = path.read_bytes()
    for content in (whole[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(
            InputError,
            match=rf"metrics\.jsonl was cut or replaced: it has {len(content)} bytes, not",
        ):
            main(["--resume", str(stopped)])
        assert path.read_bytes() == content
    path.write_bytes(whole)
    main(["--resume", str(stopped)])  # a refusal leaves no lock


@pytest.mark.parametrize("option", ["--data", "--dev", "--test"])
def test_a_changed_score_is_refused(stopped, flags, option):
    path = Path(flags[flags.index(option) + 1])
    header, rows = path.read_text().split("\n", 1)
    score, rest = rows.split("\t", 1)
    path.write_text(f"{header}\n{5 - float(score):g}\t{rest}")
    with pytest.raises(InputError, match="the training rows, dev, test,"):
        main(["--resume", str(stopped)])


def test_another_model_in_place_of_the_best_is_refused(stopped):
    (stopped / "model").rename(stopped / "elsewhere")
    model = SentenceEncoder.load(stopped / "elsewhere")
    with torch.no_grad():
        model.bert.embeddings.word.weight[0, 0] += 1e-6  # of the pad: no score shows it
    for is_there in (False, True):
        if is_there:
            model.save(stopped / "model")
        with pytest.raises(InputError, match="model is gone, or is not the model"):
            main(["--resume", str(stopped)])
    shutil.rmtree(stopped / "model")
    (stopped / "elsewhere").rename(stopped / "model")
    (stopped / "model" / "README.md").write_text("mine")  # no weights
    main(["--resume", str(stopped)])


# Values that no flag could set, and valid ones that the run was not started with.
BAD = [
    ("epochs", 1.5),
    ("epochs", 0),
    ("max_steps", -1),
    ("batch_size", [8]),
    ("lr", math.nan),
    ("lr", 10**400),
]
BAD += [
    ("warmup", 1.5),
    ("weight_decay", {}),
    ("dropout", "high"),
    ("seed", 10**30),
    ("seed", True),
]
BAD += [
    ("freeze_embeddings", 1),
    ("projection", None),
    ("objective", "clm"),
    ("schedule", 3),
    ("dtype", "float16"),
]
EDITED = [
    ("lr", 1e-3),
    ("dropout", 0.3),
    ("schedule", "cosine"),
    ("seed", 43),
    ("clip", 2.0),
    ("objective", "cosent"),
]
EDITED += [
    ("recipe", "list"),
    ("pooling", "cls"),
    ("epochs", 10**30),
    ("limit", 10**30),
    ("max_steps", None),
]


def test_an_edited_config_is_refused(stopped):
    path = stopped / "config.json"
    config, before = json.loads(path.read_text()), contents(stopped)
    for key, value in (*BAD, *EDITED, ("device", "meta")):
        path.write_text(json.dumps(config | {key: value}))
        message = (
            rf"config\.json: .*{key.replace('_', '.')}"
            if (key, value) in BAD
            else r"config\.json have changed"
        )
        with pytest.raises(
            InputError, match="cannot be used" if key == "device" else message
        ) as refused:
            main(["--resume", str(stopped)])
        assert "\n" not in str(refused.value)
        assert contents(stopped) | {str(path): b""} == before | {str(path): b""}
    path.write_text(json.dumps({name: value for name, value in config.items() if name != "clip"}))
    with pytest.raises(InputError, match=r"config\.json: no key 'clip'"):
        main(["--resume", str(stopped)])


# ------------------------------------------------------------------------------------ which folder


def test_a_folder_with_other_files_is_not_a_runs_folder(flags, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    (home / "model" / "precious.txt").write_text("mine")
    before = contents(home)
    for out in (str(home), str(home / "model"), "."):
        monkeypatch.chdir(home)
        with pytest.raises(InputError, match="is not the folder of a run"):
            main([*flags, "--out", out, "--overwrite"])
    assert contents(home) == before
    (home / "empty").mkdir()
    monkeypatch.chdir(home / "empty")
    main([*flags, "--out", "."])  # an empty one may become one, even the current one
    assert (home / "empty" / "results.json").is_file()


def test_overwrite_deletes_a_run_and_keeps_the_users_files(flags, tmp_path):
    run = tmp_path / "run"
    main([*flags, "--lr", "1e-3"])
    (run / "notes.txt").write_text("mine")
    before = contents(run)
    with pytest.raises(InputError, match="--overwrite"):
        main(flags)
    with pytest.raises(InputError, match=r"overlaps .*run/model, which this command reads"):
        main([*flags, "--model", str(run / "model"), "--overwrite"])
    assert contents(run) == before
    main([*flags, "--overwrite"])
    main([*flags, "--out", str(tmp_path / "other")])
    assert toys.losses(run) == toys.losses(tmp_path / "other")
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json", "metrics.jsonl", "model", "notes.txt", "results.json",
    ]  # fmt: skip


class Killed(BaseException):
    """As ``kill -9``: nothing is cleaned up after it."""


def killed_after(calls: int, call: Callable, made: list[None]) -> Callable:
    """The function, killed at the call after so many; ``made`` counts them, for several functions
    together.
    """

    def counted(*arguments: Any, **options: Any) -> Any:
        if len(made) == calls:
            raise Killed
        made.append(None)
        return call(*arguments, **options)

    return counted


def test_a_kill_at_any_moment_loses_nothing(flags, tmp_path, monkeypatch):
    """At each removal, renaming and saving of a run whose every evaluation is the best so far; then
    it is resumed.
    """
    start = SentenceEncoder.load(flags[flags.index("--model") + 1]).bert.embeddings.word.weight

    def distance(objective: CosineRegression, split: str) -> dict[str, float]:
        return {"spearman": (objective.encoder.bert.embeddings.word.weight - start).norm().item()}

    monkeypatch.setattr(CosineRegression, "evaluate", distance)
    flags, whole = (
        [*flags, "--eval-every", "1", "--save-every", "2", "--max-steps", "3"],
        tmp_path / "whole",
    )
    main([*flags, "--out", str(whole)])
    scores = [line["dev"]["spearman"] for line in toys.metrics(whole) if "dev" in line]
    assert scores == sorted(scores)
    for moment in itertools.count():
        run, made = tmp_path / str(moment), []
        with monkeypatch.context() as patch, suppress(Killed):
            for owner, name in ((runs.shutil, "rmtree"), (Path, "rename"), (runs, "save_state")):
                patch.setattr(owner, name, killed_after(moment, getattr(owner, name), made))
            main([*flags, "--out", str(run)])
            break
        if (run / "state.safetensors").exists():
            main(["--resume", str(run)])
            assert toys.results(run) | toys.TIMELESS == toys.results(whole) | toys.TIMELESS
            for name in ("model/model.safetensors", "model/config.json"):
                assert (run / name).read_bytes() == (whole / name).read_bytes()
            left = sorted(path.name for path in run.iterdir())
            assert left == ["config.json", "metrics.jsonl", "model", "results.json"]
    assert moment > 20


def test_a_run_does_not_lie_in_the_model_that_it_reads(flags, tiny, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "model")
    before = contents(model)
    with pytest.raises(InputError, match=r"model/runs overlaps .*model, which this command reads"):
        main([*flags, "--model", str(model), "--out", str(model / "runs")])
    assert contents(model) == before


def test_a_resumed_run_stays_in_its_folder(stopped, tmp_path, monkeypatch):
    before = contents(tmp_path)
    with pytest.raises(
        InputError, match=r"--out .*other: .*run was started with .*run and continues with it"
    ):
        main(["--resume", str(stopped), "--out", str(tmp_path / "other")])
    assert contents(tmp_path) == before
    monkeypatch.chdir(stopped)
    main(["--resume", ".", "--out", "../run"])
    assert (stopped / "results.json").is_file()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are UTF-8 there")
def test_data_in_a_folder_whose_name_is_not_utf_8(tiny, tmp_path):
    """Such a run is stopped, resumed and finished; its own folder cannot have such a name, for
    safetensors.
    """
    home = tmp_path / os.fsdecode(b"caf\xe9")
    home.mkdir()
    files = toys.write_all(home)
    flags = ["--model", str(tiny), *toys.flags(files, "cosine"), "--max-steps", "2"]
    toys.stop_at(1, LOSS, main, [*flags, "--out", str(tmp_path / "run")])
    main(["--resume", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["data"] == files["scored"]
    assert (tmp_path / "run" / "results.json").is_file()
    with pytest.raises(InputError, match=r"--out .*: the path is not UTF-8") as refused:
        main([*flags, "--out", str(home / "run")])
    str(refused.value).encode()
    assert not (home / "run").exists()


# ---------------------------------------------------------------------- interrupts, kills, full
# disks


def test_an_interrupt_of_the_last_evaluation_names_resume(flags, tmp_path, monkeypatch, capsys):
    """The last table scores test again, of the best model; its dev scores are known. No other step
    is made.
    """
    evaluate = CosineRegression.evaluate

    def interrupted(self, scored: str) -> dict[str, float]:
        if scored == "test" and (tmp_path / "run" / "state.safetensors").is_file():
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, scored)

    with monkeypatch.context() as patch:
        patch.setattr(CosineRegression, "evaluate", interrupted)
        with pytest.raises(SystemExit, match="130"):
            run_command(lambda: main(flags))
    run, whole = tmp_path / "run", tmp_path / "whole"
    said = [
        f"stopped in the final evaluation, all 4 steps are saved: --resume {run} repeats it",
        "stopped",
    ]
    assert capsys.readouterr().err.splitlines()[-2:] == said
    assert not (run / "results.json").exists()
    main(["--resume", str(run)])
    main([*flags, "--out", str(whole)])
    assert toys.metrics(run) == toys.metrics(whole)
    assert toys.results(run) | toys.TIMELESS == toys.results(whole) | toys.TIMELESS


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize(
    ("full", "named"), [(200, r"run/config\.json"), (100_000, r"run/state\.safetensors")]
)
def test_a_full_disk_names_the_file(flags, full, named):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
        with pytest.raises(OSError, match=f"File too large: '.*{named}'"):
            main(flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_line_that_does_not_fit_on_the_disk_names_the_file():
    log = open("/dev/full", "a")  # noqa: SIM115
    run = SimpleNamespace(
        log=log, state=RunState(), steps_per_epoch=1, interrupts=Interrupts(), line=Bar()
    )
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Run.record(run, loss=0.5)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Run.__exit__(run)  # what could not be written is tried again when the file is closed
    assert log.closed


# --------------------------------------------------------------------------------- between two
# steps


@pytest.mark.parametrize(
    ("save_every", "saved"), [("1", [1, 2, 3, 4]), ("3", [3, 4]), ("100", [4])]
)
def test_the_state_is_saved_every_few_steps_and_once_at_the_end(
    flags, monkeypatch, save_every, saved
):
    save, steps, seeds = Run.save, [], []
    monkeypatch.setattr(Run, "save", lambda run: steps.append(run.state.step) or save(run))
    monkeypatch.setattr(
        ProcessGroup, "reseed", lambda group, seed, step: seeds.append((seed, step))
    )
    main([*flags, "--save-every", save_every])
    assert steps == saved
    assert seeds == [
        (42, 0),
        (42, 1),
        (42, 2),
        (42, 3),
    ]  # each step has the dropout masks of its process


# --------------------------------------------------------------------------------- what a run says


def test_the_plan_says_how_many_rows_meet_if_texts_repeat(tiny, files, tmp_path, capsys):
    """Ninety-six messages with one of three answers each: three rows at most can meet in a
    batch.
    """
    path = tmp_path / "classes.tsv"
    rows = [f"the {i} cat\t{('sun', 'moon', 'rain')[i % 3]}\n" for i in range(96)]
    path.write_text("".join(["anchor\tpositive\n", *rows]))
    data = ["--data", str(path), "--dev", files["dev"], "--test", files["test"], "--max-steps", "2"]
    main(["--objective", "mnr", "--model", str(tiny), *data, "--out", str(tmp_path / "run")])
    path.write_text(
        "".join(["anchor\tpositive\n", *(f"the {i} cat\tthe {i} sun\n" for i in range(40))])
    )
    main(["--objective", "mnr", "--model", str(tiny), *data, "--out", str(tmp_path / "other")])
    plan = "plan   2 steps of 3.0 rows on average, not 32: rows that share a text never meet, AdamW 2e-05"
    said = capsys.readouterr().err
    assert plan in said
    assert (
        "plan   2 steps of 32 rows, AdamW 2e-05" in said
    )  # the last of 8 has no texts of the first


def test_rows_of_dev_and_test_that_are_training_rows_are_counted(flags, files, tmp_path, capsys):
    """Two of the pairs, one of them the other way round; then of triplets, by their first two
    texts.
    """
    rows = [line.split("\t") for line in Path(files["scored"]).read_text().splitlines()[1:]]
    scored = {(row[1], row[2]) for row in rows}
    new = [
        line
        for line in Path(files["dev"]).read_text().splitlines()
        if tuple(line.split("\t")[1:]) not in scored
    ]
    path = tmp_path / "shared.tsv"
    both_ways = ["\t".join(rows[0]), f"3\t{rows[1][2]}\t{rows[1][1]}"]
    path.write_text("\n".join([*new[:10], "4\tnever seen\ta cat", *both_ways]))
    main([*flags, "--dev", str(path)])
    told = re.findall("warning: (.*) rows of dev are training rows too", capsys.readouterr().err)
    both = {frozenset(pair) for pair in scored}
    assert told == [
        str(sum(frozenset(line.split("\t")[1:]) in both for line in path.read_text().splitlines()))
    ]
    triplets = [
        "--objective",
        "mnr",
        "--data",
        files["triplets"],
        "--dev",
        files["triplets"],
        "--overwrite",
    ]
    main([*flags, *triplets])
    assert "warning: 20 rows of dev are training rows too" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the table


def test_the_table_shows_under_dev_what_only_dev_has(capsys):
    before = {"dev": {"f1": 0.5, "ndcg@10": 0.25, "loss": 2.0}, "test": {"f1": 0.25, "loss": 2.0}}
    after = {"dev": {"f1": 0.75, "ndcg@10": 0.5, "loss": 1.0}, "test": {"f1": 1.0, "loss": 1.0}}
    print_table(before, after)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["x", "100", "dev", "test"]
    assert rows[0].split() == ["f1", "50.00", "->", "75.00", "25.00", "->", "100.00"]
    assert rows[1].split()[:4] == ["ndcg@10", "25.00", "->", "50.00"]
    assert rows[1].endswith("right texts near the top of ten")
    print_table(before | {"test": {}}, after | {"test": {}})
    assert capsys.readouterr().out.splitlines()[0].split() == ["x", "100", "dev"]
