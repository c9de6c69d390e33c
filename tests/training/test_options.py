"""The options of a run: one vocabulary, recipes, old names, and what does not go together."""

import shlex

import pytest

from minisbert.core import InputError
from minisbert.train import main
from minisbert.training.options import (
    LOSS_HELP,
    OLD_OBJECTIVES,
    OLD_OPTIONS,
    Settings,
    command_of,
    make_parser,
    parse,
)
from minisbert.training.recipes import RECIPES


def test_the_help_fits_on_two_screens(monkeypatch):
    """In a terminal of 80 columns no line is broken by the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = make_parser().format_help().splitlines()
    assert len(lines) < 90
    assert max(len(line) for line in lines) < 80
    assert "default: None" not in "\n".join(lines)


@pytest.mark.parametrize("scale", ["nan", "0", "-5", "inf", "five"])
def test_a_scale_that_is_none_is_refused_before_anything_is_read(scale):
    with pytest.raises(InputError, match="scale"):
        parse(["--scale", scale])
    assert parse(["--scale", "10"]).scale == 10.0


# -----------------------------------------------------------------------------
# one vocabulary


@pytest.mark.parametrize("name", OLD_OBJECTIVES)
def test_an_old_objective_is_refused_with_what_to_write(name):
    """What the message says can be parsed as it stands."""
    with pytest.raises(InputError, match=r"--objective .*: it is .* now") as refused:
        parse(["--objective", name])
    words = shlex.split(str(refused.value).partition(": it is ")[2].removesuffix(" now"))
    settings = parse(words)
    assert settings.loss in LOSS_HELP


@pytest.mark.parametrize("option", OLD_OPTIONS)
def test_an_old_option_is_refused_with_what_to_write(option):
    with pytest.raises(InputError, match=f"{option}"):
        parse([option])


def test_an_old_loss_is_refused_with_the_new_one():
    with pytest.raises(InputError, match="--loss mnr: it is --loss ranking now"):
        parse(["--loss", "mnr"])
    with pytest.raises(InputError, match="choose from cosine"):
        parse(["--loss", "clm"])


def test_what_follows_from_what_is_given():
    assert parse([]).loss == "cosine"
    assert parse(["--head", "siamese"]).loss == "mse"
    assert parse(["--teacher", "tiny"]).loss == "distillation"
    assert parse(["--head", "siamese", "--loss", "binary"]).loss == "binary"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--loss mse", "needs --head"),
        ("--loss binary", "needs --head"),
        ("--loss cosine --head siamese", "trains the encoder alone"),
        ("--head pointwise", "choose from cross-encoder"),
        ("--loss distillation", "needs --teacher"),
        ("--loss cosine --teacher tiny", "--teacher is for"),
        ("--student-layers 3", "needs --teacher"),
        ("--temperature 0.1", "--temperature is for"),
        ("--loss simcse --batch-size 1", "at least 2"),
        ("--loss ranking --batch-size 1", "at least 2"),
        ("--loss softmax --matryoshka 8", "--matryoshka"),
        ("--recipe simcse-unsupervised --matryoshka 8", "projection"),
        ("--dev none --patience 2", "--patience"),
        ("--recipe sts-joined", "sts-cross-encoder"),
        ("--data ''", "is empty"),
    ],
)
def test_what_does_not_go_together(words, message):
    with pytest.raises(InputError, match=message):
        parse(shlex.split(words))


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--batch-size", "1", "0 -1 2.5 many"),
        ("--lr", "0 1e-3", "nan -1e-5 inf fast"),
        ("--warmup", "0 0.5 1 7", "1.5 -1 -0.1 nan inf"),
        ("--seed", f"0 {2**64 - 1}", f"-1 {2**64} now"),
        ("--dropout", "0 0.9", "1 -0.1 nan"),
        ("--matryoshka", "64 256,128,64", "64,128 64,64 8,0 8,-1 8, all 1.5"),
    ],
)
def test_values_of_an_option(option, good, bad):
    name = option[2:].replace("-", "_")
    for value in good.split():
        found = getattr(parse([f"{option}={value}"]), name)
        assert str(found) == value or float(found) == float(value)
    for value in bad.split():
        with pytest.raises(InputError, match=f"argument {option}: invalid"):
            parse([f"{option}={value}"])


def test_the_command_of_a_run_is_parsed_to_the_same_settings():
    words = "--loss ranking --data a.csv --no-quotes --epochs 3 --lr 0.001 --matryoshka 64,32"
    settings = parse(words.split())
    assert parse(command_of(settings)[2:]) == settings
    assert command_of(Settings()) == ["minisbert", "train"]


# -----------------------------------------------------------------------------
# recipes


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_sets_settings_that_go_together_and_the_command_line_overrides(name):
    settings = parse(["--recipe", name, "--seed", "7", "--epochs", "2"])
    for key, value in RECIPES[name].settings.items():
        assert getattr(settings, key) == (2 if key == "epochs" else value)
    assert (settings.seed, settings.epochs) == (7, 2)
    again = parse(command_of(settings)[2:])
    assert again == settings


def test_the_list_names_all_recipes(capsys):
    main(["--recipe", "list"])
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line and not line.startswith(" ")] == list(RECIPES)


def test_data_that_cannot_be_fetched_says_where_to_get_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    out = tmp_path / "run"
    words = ["--loss", "binary", "--head", "concat", "--model", str(tiny), "--out", str(out)]
    with pytest.raises(InputError, match=r"MINISBERT_OFFLINE.*quora_duplicate_questions\.tsv"):
        main(words)
    assert not out.exists()


def test_texts_have_no_default(tiny):
    with pytest.raises(InputError, match="--data FILE is needed"):
        main(["--loss", "simcse", "--model", str(tiny)])
