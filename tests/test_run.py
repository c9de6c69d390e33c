"""A run's folder belongs to one process at a time, and what was changed since the run was stopped is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.run.folder import open_log
from minisbert.run.training import main
from tests import toys


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
    hold = "import sys; from pathlib import Path; from minisbert.run.folder import open_log; "
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


def test_a_short_log_is_refused_and_not_padded(stopped):
    path = stopped / "metrics.jsonl"
    whole = path.read_bytes()
    for content in (whole[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"metrics\.jsonl has {len(content)} bytes, but the state counts"):
            main(["--resume", str(stopped)])
        assert path.read_bytes() == content
    path.write_bytes(whole)
    main(["--resume", str(stopped)])  # a refusal leaves no lock


@pytest.mark.parametrize("option", ["--data", "--dev", "--test"])
def test_a_changed_score_is_refused(stopped, flags, option):
    path = Path(flags[flags.index(option) + 1])
    score, rest = path.read_text().split("\t", 1)
    path.write_text(f"{5 - float(score):g}\t{rest}" if float(score) != 2.5 else f"1\t{rest}")
    with pytest.raises(InputError, match="the training rows are not those of the run, or dev, test,"):
        main(["--resume", str(stopped)])


@pytest.mark.parametrize(
    "change", [{"lr": 1e-3}, {"dropout": 0.3}, {"schedule": "cosine"}, {"seed": 43}, {"clip": 2.0}]
)
def test_an_edited_config_is_refused(stopped, change):
    path = stopped / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"or config\.json changed"):
        main(["--resume", str(stopped)])
