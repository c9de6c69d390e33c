"""A run's folder belongs to one process at a time, and what was changed since the run was stopped is refused."""

import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.system.console import LiveLine, run_command
from minisbert.system.interrupts import Interrupts
from minisbert.training import training
from minisbert.training.encoder_objectives import CosineRegression
from minisbert.training.folder import open_log
from minisbert.training.processes import ProcessGroup
from minisbert.training.run import Run
from minisbert.training.state import RunState
from minisbert.training.training import main
from tests import toys
from tests.conftest import ROOT


@pytest.fixture
def flags(tiny, tmp_path) -> list[str]:
    files = toys.write_all(tmp_path)
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    flags = ["--model", str(tiny), *data, "--batch-size", "8", "--precision", "float32", "--log-every", "1"]
    return [*flags, "--max-steps", "4", "--out", str(tmp_path / "run")]


@pytest.fixture
def stopped(flags, tmp_path, monkeypatch) -> Path:
    """A run stopped in its third step."""
    calls = iter(range(10))
    loss = formulas.cosine_mse_loss

    def interrupted(*arguments):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return loss(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(formulas, "cosine_mse_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(flags)
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
@pytest.mark.parametrize("again", ["--resume", "--overwrite"])
def test_a_second_process_is_refused_and_changes_nothing(stopped, flags, again):
    before = contents(stopped)
    hold = "import sys; from pathlib import Path; from minisbert.training.folder import open_log; "
    hold += "log = open_log(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(stopped)]
    arguments = ["--resume", str(stopped)] if again == "--resume" else [*flags, "--overwrite"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match="run: another process is training this run"):
            main(arguments)
        assert contents(stopped) == before
        other.kill()  # the lock goes with its process
    main(arguments)
    assert (stopped / "results.json").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_the_folder_is_locked_while_the_run_lasts(flags, tmp_path, monkeypatch):
    loss, seen = formulas.cosine_mse_loss, []

    def locked(*arguments):
        with pytest.raises(InputError, match="another process is training this run"):
            open_log(tmp_path / "run")
        seen.append(True)
        return loss(*arguments)

    monkeypatch.setattr(formulas, "cosine_mse_loss", locked)
    main(flags)
    assert len(seen) == 4
    open_log(tmp_path / "run").close()


def test_the_loser_of_two_resumes_that_began_together_says_so(stopped, monkeypatch):
    """It finds the run unfinished, but while it loads the model the other process finishes."""
    set_up = training.set_up

    def slow(*arguments):
        shutil.rmtree(stopped / "state")
        return set_up(*arguments)

    before = contents(stopped / "last") | contents(stopped / "model")
    log = (stopped / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(training, "set_up", slow)
    with pytest.raises(InputError, match=r"state\.json does not exist"):
        main(["--resume", str(stopped)])
    assert contents(stopped / "last") | contents(stopped / "model") == before
    assert (stopped / "metrics.jsonl").read_bytes() == log
    open_log(stopped).close()  # not locked any more


def test_a_short_log_is_refused_and_not_padded(stopped):
    path = stopped / "metrics.jsonl"
    whole = path.read_bytes()
    for content in (whole[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"metrics\.jsonl has {len(content)} bytes, but the state expects"):
            main(["--resume", str(stopped)])
        assert path.read_bytes() == content
    path.write_bytes(whole)
    main(["--resume", str(stopped)])  # a refusal leaves no lock


@pytest.mark.parametrize("option", ["--data", "--dev", "--test"])
def test_a_changed_score_is_refused(stopped, flags, option):
    path = Path(flags[flags.index(option) + 1])
    score, rest = path.read_text().split("\t", 1)
    path.write_text(f"{5 - float(score):g}\t{rest}" if float(score) != 2.5 else f"1\t{rest}")
    with pytest.raises(InputError, match="the training rows, dev, test,"):
        main(["--resume", str(stopped)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", "1"),
        ("epochs", 1.5),
        ("epochs", 0),
        ("epochs", None),
        ("max_steps", -1),
        ("batch_size", [8]),
        ("lr", math.nan),
        ("lr", 10**400),
        ("warmup", 1.5),
        ("weight_decay", {}),
        ("dropout", "high"),
        ("seed", 10**30),
        ("seed", True),
        ("head_hidden", 10**30),
        ("freeze_embeddings", 1),
        ("symmetric", "yes"),
        ("same_mask", None),
        ("objective", "mlm"),
        ("objective", None),
        ("schedule", 3),
        ("pooling", 3),
        ("model", None),
        ("data", ["a.tsv"]),
        ("device", 0),
        ("precision", "float16"),
    ],
)
def test_a_value_that_no_flag_could_set_is_refused_by_name(stopped, key, value):
    path = stopped / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    before = contents(stopped)
    with pytest.raises(InputError, match=rf"config\.json: '{key}' is ") as refused:
        main(["--resume", str(stopped)])
    assert "\n" not in str(refused.value)
    assert contents(stopped) == before


def without(stopped: Path, key: str) -> list[str]:
    """The flags that resume the run, once its ``config.json`` has lost a setting."""
    path = stopped / "config.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))
    return ["--resume", str(stopped)]


@pytest.mark.parametrize("key", ["max_steps", "batch_size"])
def test_a_lost_setting_that_was_not_the_default_is_noticed(stopped, key):
    with pytest.raises(InputError, match=r"or config\.json have changed"):
        main(without(stopped, key))


@pytest.mark.parametrize("key", ["student_layers", "clip", "device"])
def test_a_run_that_is_older_than_an_option_is_resumed(stopped, key):
    main(without(stopped, key))
    assert (stopped / "results.json").is_file()


EDITED = [("lr", 1e-3), ("dropout", 0.3), ("schedule", "cosine"), ("seed", 43), ("clip", 2.0), ("objective", "cosent")]
EDITED += [("recipe", "list"), ("pooling", "cls"), ("epochs", 10**30), ("limit", 10**30)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "meta"}, "device 'meta' cannot be used"),
        *(({key: value}, r"or config\.json have changed") for key, value in EDITED),
    ],
)
def test_an_edited_config_is_refused(stopped, change, message):
    path = stopped / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        main(["--resume", str(stopped)])


# ------------------------------------------------------------------------------------ which folder


@pytest.mark.parametrize("out", [".", "..", "../here", "here/..", ""])
@pytest.mark.parametrize("overwrite", [True, False])
def test_the_current_folder_and_its_parents_are_not_a_runs_folder(flags, tmp_path, monkeypatch, out, overwrite):
    (tmp_path / "here" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    out = out or str(tmp_path)
    with pytest.raises(InputError, match="is the current folder or contains it"):
        main([*flags, "--out", out, *(["--overwrite"] if overwrite else [])])
    assert contents(tmp_path / "here") == {}


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_is_not_a_runs_folder(flags, tmp_path, overwrite):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match="file is not a folder; choose another one"):
        main([*flags, "--out", str(tmp_path / "file"), *(["--overwrite"] if overwrite else [])])
    assert (tmp_path / "file").read_text() == "precious"


def test_a_resumed_run_stays_in_its_folder(stopped, tmp_path, monkeypatch):
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"--out .*other: a resumed run continues in its own .*run; omit --out"):
        main(["--resume", str(stopped), "--out", str(tmp_path / "other")])
    assert contents(tmp_path) == before
    monkeypatch.chdir(stopped)
    main(["--resume", ".", "--out", "../run"])
    assert (stopped / "results.json").is_file()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are UTF-8 there")
def test_data_in_a_folder_whose_name_is_not_utf_8(tiny, tmp_path, monkeypatch):
    """Such a run is stopped, resumed and finished; its own folder cannot have such a name, for safetensors."""
    home = tmp_path / os.fsdecode(b"caf\xe9")
    home.mkdir()
    files = toys.write_all(home)
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    flags = ["--model", str(tiny), *data, "--max-steps", "2", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(formulas, "cosine_mse_loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            main(flags)
    main(["--resume", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["data"] == files["scored"]
    assert (tmp_path / "run" / "results.json").is_file()
    main([*flags, "--overwrite"])
    with pytest.raises(InputError, match=r"--out .*: the path is not UTF-8") as refused:
        main([*flags, "--out", str(home / "run")])
    str(refused.value).encode()
    assert not (home / "run").exists()


# ------------------------------------------------------------------------------------ interrupted


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_of_the_last_evaluation_names_resume(flags, tmp_path, monkeypatch, capsys):
    """The last table scores test again, of the best model; its dev scores are known."""
    evaluate = CosineRegression.evaluate

    def interrupted(self, scored: str) -> dict[str, float]:
        if scored == "test" and (tmp_path / "run" / "state").is_dir():
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, scored)

    with monkeypatch.context() as patch:
        patch.setattr(CosineRegression, "evaluate", interrupted)
        with pytest.raises(SystemExit, match="130"):
            run_command(lambda: main(flags))
    last, stopped = capsys.readouterr().err.splitlines()[-2:]
    run = tmp_path / "run"
    assert last == f"stopped in the final evaluation, all 4 steps are saved: --resume {run} repeats it"
    assert stopped == "stopped"
    main(["--resume", str(run)])
    assert json.loads((run / "results.json").read_text())["steps"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
@pytest.mark.parametrize("again", ["--resume", "--overwrite"])
def test_what_a_killed_save_left_is_restored_and_removed(stopped, flags, again):
    """Killed between the two renames that replace state/, with older leftovers of other saves."""
    shutil.copytree(stopped / "state", stopped / ".state.partial-0123abcd" / "new")
    (stopped / "state").rename(stopped / ".state.partial-0123abcd" / "old")
    for name in ("model", "last", "state", "results.json"):
        (stopped / f".{name}.partial-89abcdef" / "new").mkdir(parents=True)
    main(["--resume", str(stopped)] if again == "--resume" else [*flags, "--overwrite"])
    assert sorted(path.name for path in stopped.iterdir()) == ["config.json", "metrics.jsonl", "model", "results.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize(
    ("full", "named"),
    [
        (200, r"File too large: '.*run/config\.json'"),
        (100_000, r"File too large: '.*run/state'"),
    ],
)
def test_a_full_disk_names_the_file(flags, tmp_path, full, named):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
        with pytest.raises(OSError, match=named):
            main(flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_line_that_does_not_fit_on_the_disk_names_the_file(capsys):
    log = open("/dev/full", "a")  # noqa: SIM115
    run = SimpleNamespace(log=log, state=RunState(), steps_per_epoch=1, interrupts=Interrupts(), line=LiveLine())
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Run.record(run, loss=0.5)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        Run.__exit__(run)  # what could not be written is tried again when the file is closed
    assert log.closed


def test_every_step_has_dropout_masks_of_its_process(flags, monkeypatch):
    seeds = []
    monkeypatch.setattr(ProcessGroup, "reseed", lambda group, seed, step: seeds.append((seed, step)))
    main(flags)
    assert seeds == [(42, 0), (42, 1), (42, 2), (42, 3)]


@pytest.mark.parametrize(("save_every", "saved"), [("1", [1, 2, 3, 4]), ("3", [3, 4]), ("4", [4]), ("100", [4])])
def test_the_state_is_saved_every_few_steps_and_once_at_the_end(flags, monkeypatch, save_every, saved):
    save, steps = Run.save, []
    monkeypatch.setattr(Run, "save", lambda run: steps.append(run.state.step) or save(run))
    main([*flags, "--save-every", save_every])
    assert steps == saved


def test_from_the_command_to_the_optimizer_are_few_files_and_to_the_loss_two_calls(flags, monkeypatch):
    stacks = {}

    def spy(module, name: str) -> None:
        function = getattr(module, name)

        def called(*arguments, **options):
            stack = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
            stacks[name] = [(file, function) for file, function in stack if file.startswith(str(ROOT / "minisbert"))]
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, called)

    spy(torch.optim.AdamW, "step")
    spy(formulas, "cosine_mse_loss")
    monkeypatch.setattr(sys, "argv", ["minisbert.train", *flags])
    runpy.run_module("minisbert.train", run_name="__main__")
    assert stacks["step"][0][0].endswith("minisbert/train.py")
    assert stacks["step"][-1][1] == "fit"
    assert len({file for file, _ in stacks["step"]}) <= 7
    assert [function for _, function in stacks["cosine_mse_loss"][-2:]] == ["fit", "loss"]
