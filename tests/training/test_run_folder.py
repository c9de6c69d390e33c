"""A run's folder: which folders are refused, what is kept, and what a full disk says."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from minisbert.core import InputError
from minisbert.core import losses as formulas
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import main
from minisbert.training.messages import print_table
from minisbert.training.run_folder import dev_scores
from minisbert.training.state import Progress
from tests import toys

LOSS = (formulas, "cosine_mse_loss")


@pytest.fixture
def flags(tiny, files, tmp_path) -> list[str]:
    """A run of four steps."""
    given = ["--model", str(tiny), *toys.flags(files, "cosine"), "--dtype", "float32"]
    return [*given, "--max-steps", "4", "--batch-size", "8", "--out", str(tmp_path / "run")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def test_an_empty_folder_may_become_a_runs_even_the_current_one(flags, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    main([*flags, "--out", "."])
    assert (tmp_path / "empty" / "results.json").is_file()


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


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.json", "results.json", "model", "state.json", "best-4.x"]
)
def test_a_run_is_not_written_through_a_link(name, flags, tmp_path):
    """In a folder of somebody else's, a link under a name of the run may lead to a file of ours."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "mine")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match=f"{name} is a symbolic link"):
        main([*flags, "--overwrite"])
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_run_does_not_lie_in_the_model_that_it_reads(flags, tiny, tmp_path):
    model = shutil.copytree(tiny, tmp_path / "model")
    before = contents(model)
    with pytest.raises(InputError, match=r"model/runs overlaps .*model, which this command reads"):
        main([*flags, "--model", str(model), "--out", str(model / "runs")])
    assert contents(model) == before


def test_a_resumed_run_stays_in_its_folder(flags, tmp_path, monkeypatch):
    toys.stop_at(3, LOSS, main, flags)
    with pytest.raises(InputError, match=r"--out .*other: .*run was started with .*run"):
        main(["--resume", str(tmp_path / "run"), "--out", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "run")
    main(["--resume", ".", "--out", "../run"])
    assert (tmp_path / "run" / "results.json").is_file()


def test_a_run_that_cannot_begin_leaves_no_folder(flags, tmp_path):
    """A negative score is no score of a head; the rows are read before anything is trained."""
    rows = tmp_path / "rows.tsv"
    rows.write_text(f"{toys.SCORED_HEADER}-1\ta cat\ta dog\n1\tsun\tmoon\n0\train\tsnow\n")
    head = ["--loss", "mse", "--head", "siamese", "--data", str(rows)]
    head += ["--dev", "none", "--test", "none"]
    with pytest.raises(InputError, match="scores of 0 or more"):
        main([*flags, *head])
    assert not (tmp_path / "run").exists()


def test_a_refused_resume_leaves_everything_as_it_was(flags, files, tmp_path):
    """Above all the best model so far."""
    toys.stop_at(3, LOSS, main, flags)
    before = contents(tmp_path / "run")
    with open(files["scored"], "a") as rows:
        rows.write("3\ta cat\tthe cat\n")
    try:
        with pytest.raises(InputError, match="have changed"):
            main(["--resume", str(tmp_path / "run")])
    finally:
        text = Path(files["scored"]).read_text()
        Path(files["scored"]).write_text(text.removesuffix("3\ta cat\tthe cat\n"))
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("key", "value"), [("epochs", "many"), ("lr", {}), ("quotes", 1), ("batch_size", 1.5)]
)
def test_a_config_that_no_option_could_have_written_is_refused(flags, tmp_path, key, value):
    toys.stop_at(3, LOSS, main, flags)
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"config\.json: {key}"):
        main(["--resume", str(tmp_path / "run")])


def test_an_edited_config_is_refused(flags, tmp_path):
    toys.stop_at(3, LOSS, main, flags)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    for key, value in (("lr", 1e-3), ("seed", 43), ("dropout", 0.3), ("clip", 2.0)):
        path.write_text(json.dumps(config | {key: value}))
        with pytest.raises(InputError, match="have changed"):
            main(["--resume", str(tmp_path / "run")])
    del config["clip"]
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match="no key 'clip'"):
        main(["--resume", str(tmp_path / "run")])


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are UTF-8 there")
def test_data_in_a_folder_whose_name_is_not_utf_8(tiny, flags, tmp_path):
    """Such a run is stopped, resumed and finished; its own folder cannot have such a name."""
    home = tmp_path / os.fsdecode(b"caf\xe9")
    home.mkdir()
    files = toys.write_all(home)
    given = [*flags, *toys.flags(files, "cosine")]
    toys.stop_at(1, LOSS, main, given)
    main(["--resume", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["data"] == files["scored"]
    with pytest.raises(InputError, match=r"--out .*: the path is not UTF-8") as refused:
        main([*given, "--out", str(home / "run")])
    str(refused.value).encode()
    assert not (home / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize(
    ("full", "named"), [(200, r"run/config\.json"), (100_000, r"run/state-4\.safetensors")]
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


def test_the_card_of_the_user_is_kept(flags, tmp_path):
    """A page that somebody wrote into the model's folder survives a resumed run."""
    toys.stop_at(3, LOSS, main, flags)
    (tmp_path / "run" / "model" / "README.md").write_text("mine")
    main(["--resume", str(tmp_path / "run")])
    assert (tmp_path / "run" / "model" / "README.md").read_text() == "mine"
    SentenceEncoder.load(tmp_path / "run" / "model")


def test_the_table_shows_under_dev_what_only_dev_has(capsys):
    before = {"f1": 0.5, "ndcg@10": 0.25}
    after = {"f1": 0.75, "ndcg@10": 0.5}
    print_table({"dev": (before, after), "test": ({"f1": 0.25}, {"f1": 1.0})}, None)
    header, f1, ndcg, *_ = capsys.readouterr().out.splitlines()[1:]
    assert header.split() == ["x", "100", "dev", "test"]
    assert f1.split() == ["f1", "50.00", "->", "75.00", "25.00", "->", "100.00"]
    assert ndcg.split()[:4] == ["ndcg@10", "25.00", "->", "50.00"]
    assert ndcg.endswith("right texts near the top of ten")
    print_table({}, None)
    assert capsys.readouterr().out == ""


def test_the_scores_of_a_step():
    progress = Progress(history=[{"step": 0, "f1": 0.5}, {"step": 9, "f1": 0.75}])
    assert dev_scores(progress, 9) == {"f1": 0.75}
