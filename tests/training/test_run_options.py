"""Options: what a recipe sets, what flags override, and which values are refused."""

import argparse
import re
from types import SimpleNamespace

import pytest
import torch

from minisbert.core import InputError
from minisbert.training import train as training
from minisbert.training.run import create_folder
from minisbert.training.settings import (
    ABOUT,
    OBJECTIVES,
    SETTINGS,
    as_flags,
    make_parser,
    parse,
    recipe_settings,
    recipes,
)
from minisbert.training.train import load_trainable, main, make_objective
from tests import toys

RECIPES = list(recipes())
USED_BY = {
    name: item.metadata["only"]
    for name, item in SETTINGS.items()
    if len(item.metadata["only"]) < len(OBJECTIVES)
}


def test_defaults_are_those_that_help_states():
    stated = {}
    for name, item in SETTINGS.items():
        found = re.findall(r"default: ([0-9.e-]+)", item.metadata["help"])
        if item.default is not None and len(found) == 1:
            stated[name] = float(found[0])
    assert {name: SETTINGS[name].default for name in stated} == stated
    assert len(stated) > 10
    actions = make_parser(advanced=True)._actions
    assert all(action.help for action in actions)
    assert not {action.dest for action in actions} & set(ABOUT)


def test_sberts_recipe_has_the_settings_of_the_paper():
    """Section 3.1; the classifier reads (u, v, |u - v|) and has no hidden layer."""
    options = vars(parse(["--recipe", "sbert-nli-published"]))
    paper = {
        "objective": "softmax",
        "pooling": "mean",
        "batch_size": 16,
        "epochs": 1,
        "lr": 2e-5,
        "head_lr": None,
    }
    paper |= {"schedule": "linear", "warmup": 0.1, "weight_decay": 0}
    assert {name: options[name] for name in paper} == paper


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_equals_its_flags_which_override_it(recipe):
    """So every key is an option, and every value is valid for it."""
    assert vars(parse(["--recipe", recipe])) == vars(parse(as_flags(recipe_settings(recipe)))) | {
        "recipe": recipe
    }
    assert all(recipes()[recipe][key] for key in ABOUT)
    # settings of the recipe that another objective does not read are ignored, flags are not
    options = parse(
        [
            "--lr",
            "0.5",
            "--recipe",
            recipe,
            "--epochs",
            "7",
            "--objective",
            "mnr",
            "--no-projection",
        ]
    )
    assert (options.lr, options.epochs, options.objective, options.projection) == (
        0.5,
        7,
        "mnr",
        False,
    )
    with pytest.raises(InputError, match="--margin"):
        parse(["--recipe", recipe, "--objective", "mnr", "--margin", "2"])


def test_the_list_names_all_recipes_and_an_unknown_one_is_refused(capsys):
    main(["--recipe", "list"])
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line and not line.startswith(" ")] == RECIPES
    with pytest.raises(InputError, match=f"sts-joined.*{RECIPES[0]}"):
        main(["--recipe", "sts-joined"])


def test_data_that_cannot_be_fetched_says_where_to_get_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(InputError, match=r"MINISBERT_OFFLINE.*quora_duplicate_questions\.tsv"):
        main(
            [
                "--objective",
                "binary",
                "--data",
                "quora",
                "--model",
                str(tiny),
                "--out",
                str(tmp_path / "run"),
            ]
        )
    assert not (tmp_path / "run").exists()


def test_a_run_is_named_after_its_recipe(tiny, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objective = SimpleNamespace(notes={}, best="spearman")
    monkeypatch.setattr(
        training,
        "train_objective",
        lambda options, group, _: create_folder(options, group.device, objective),
    )
    main(["--recipe", "simcse-unsupervised", "--model", str(tiny), "--data", files["sentences"]])
    assert (tmp_path / "runs" / "simcse-unsupervised-tiny" / "config.json").is_file()


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--batch-size", "1", "0 -1 2.5 many"),
        ("--lr", "0 1e-3", "nan -1e-5 inf fast"),
        ("--warmup", "0 0.5 1 7", "1.5 -1 -0.1 nan inf"),
        ("--seed", f"0 {2**64 - 1}", f"-1 {2**64} now"),
        ("--dropout", "0 0.9", "1 -0.1 nan"),
        ("--margin", "0.1 2", "0 -1 nan inf"),
        ("--objective", " ".join(OBJECTIVES), "clm"),
        ("--matryoshka", "64 256,128,64", "64,128 64,64 8,0 8,-1 8, all 1.5"),
        ("--from-nothing", "1x64x500", "3 3x256 0x64x500 2x100x500 2x64x9 axbxc"),
    ],
)
def test_values_of_an_option(option, good, bad):
    name = option[2:].replace("-", "_")
    objective = [] if option == "--objective" else ["--objective", USED_BY.get(name, ["cosine"])[0]]
    for value in good.split():
        found = getattr(parse([*objective, f"{option}={value}"]), name)
        assert found == (value if isinstance(found, str) else float(value)) or str(found) == value
    for value in bad.split():
        with pytest.raises(InputError, match=f"argument {option}: invalid"):
            parse([f"{option}={value}"])


# ------------------------------------------------------------------- flags that an objective does
# not read


@pytest.fixture
def toy_options(tiny, files, monkeypatch):
    """``toy_options("mnr", *flags)`` -> the options of a run on toy rows of the right form."""
    monkeypatch.setattr(
        "minisbert.training.objectives.pairs.load_scored_pairs", lambda name, split: []
    )

    def build(objective: str, *flags: str):
        more = {
            "distillation": ["--teacher", str(tiny)],
            "mlm": ["--from-nothing", "1x64x200"],
        }.get(objective, [])
        return parse(["--model", str(tiny), *toys.flags(files, objective), *more, *flags])

    return build


class Watched(argparse.Namespace):
    """Options that record which of them were read."""

    def __getattribute__(self, name):
        if not name.startswith("_"):
            object.__getattribute__(self, "_read").add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_the_table_names_what_an_objective_reads(objective, toy_options):
    """All but what ``load_trainable`` reads: pooling (see the next test) and the student's
    layers.
    """
    options = toy_options(objective, "--dropout", "0")
    encoder = load_trainable(options, "cpu")
    watched = Watched(_read=set(), **vars(options))
    made = make_objective(watched, encoder)
    made.loss(made.network, [0, 1, 2])
    expected = {name for name in USED_BY if objective in USED_BY[name]} - {
        "pooling",
        "student_layers",
        "from_nothing",
    }
    assert watched._read & {*USED_BY} == expected


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_the_table_names_the_objectives_that_depend_on_the_pooling(objective, toy_options):
    found = []
    for pooling in ("mean", "max"):
        options = toy_options(objective)
        options.pooling = pooling
        torch.manual_seed(0)
        made = make_objective(options, load_trainable(options, "cpu"))
        found.append(made.loss(made.network.eval(), [0, 1, 2]).item())
    assert (found[0] != found[1]) == (objective in USED_BY["pooling"])


def test_a_flag_of_other_objectives_is_an_error():
    with pytest.raises(InputError, match=r"--margin .*cosine: .*triplet"):
        parse(["--marg=0.5"])  # however it is written
    assert parse(["--no-projection", "--no-symmetric"]) == parse([])  # off is allowed everywhere


def test_a_teacher_implies_the_objective():
    assert parse(["--teacher", "tiny"]).objective == "distillation"
    assert (
        parse(
            ["--recipe", "sts-siamese", "--teacher", "tiny", "--objective", "distillation"]
        ).teacher
        == "tiny"
    )
