"""Options: what a recipe sets, what flags override, and which values are refused."""

import argparse
import re
from dataclasses import Field
from types import SimpleNamespace

import pytest
import torch

from minisbert.core import InputError
from minisbert.models.pair_model import PairModel
from minisbert.system.console import run_command
from minisbert.training import train as training
from minisbert.training.objectives.pairs import PairObjective
from minisbert.training.objectives.registry import MAKERS, make_objective
from minisbert.training.run_folder import create_folder
from minisbert.training.run_options import ABOUT, as_flags, list_recipes, make_parser, parse, recipe_settings, recipes
from minisbert.training.settings import OBJECTIVES, SETTINGS
from minisbert.training.train import load_trainable, main
from tests import toys
from tests.parity import REFERENCE

RECIPES = list(recipes())
USED_BY = {
    name: item.metadata["only"] for name, item in SETTINGS.items() if len(item.metadata["only"]) < len(OBJECTIVES)
}


def help_of(setting: Field) -> str:
    """What ``--help`` says of it, if the default is a single one."""
    text = setting.metadata["help"]
    return text if setting.default is not None and text.count("default: ") == 1 else ""


def test_defaults_are_those_that_help_states():
    stated = {name: re.findall(r"default: ([0-9.e-]+)", help_of(item)) for name, item in SETTINGS.items()}
    stated = {name: float(*numbers) for name, numbers in stated.items() if numbers}
    assert {name: SETTINGS[name].default for name in stated} == stated
    assert len(stated) > 15
    actions = make_parser(advanced=True)._actions
    assert all(action.help for action in actions)
    assert not {action.dest for action in actions} & set(ABOUT)


def test_help_shows_what_a_user_chooses_and_help_all_the_rest(capsys):
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            parse([option])
        shown[option] = {*re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)}
    assert 30 <= len(shown["--help"]) <= 40
    assert {"--data", "--epochs", "--lr", "--teacher"} < shown["--help"] < shown["--help-all"]
    assert len(shown["--help-all"]) == len(SETTINGS) + 2  # and itself and --version


def test_the_promised_recipes_and_objectives():
    assert len(RECIPES) == 18
    assert len(MAKERS) == 19
    assert [*MAKERS] == [*OBJECTIVES]


# The settings of the sources, read from them by hand, with the defaults of their libraries.
# torch.optim.AdamW, get_scheduler("linear"), DataLoader(shuffle=True), the top four layers trained
NOTEBOOK = {"model": "all-MiniLM-L6-v2", "data": None, "scale": 5, "batch_size": 8, "batches": "random"}
NOTEBOOK |= {"max_length": 128, "epochs": 20, "lr": 1e-5, "head_lr": None, "schedule": "linear", "warmup": 0}
NOTEBOOK |= {"weight_decay": 0.01, "clip": 0, "freeze_layers": 2, "loss": "mse"}
NOTEBOOK |= {"head_dropout": 0, "seed": 42}
# torch.optim.Adam without a scheduler, rows in the order of the split in every epoch
QUORA = {"objective": "binary", "data": "quora", "limit": 10000, "batch_size": 32, "batches": "fixed", "warmup": 0}
QUORA |= {"max_length": 32, "epochs": 3, "head_lr": None, "schedule": "constant", "weight_decay": 0, "clip": 0}
QUORA |= {"freeze_layers": 0, "seed": 42, "head_dropout": 0, "head_hidden": 512, "pos_weight": 2}
# section 3.1
SBERT = {"objective": "softmax", "pooling": "mean", "head_hidden": 0, "batch_size": 16}
SBERT |= {"epochs": 1, "lr": 2e-5, "head_lr": None, "schedule": "linear", "warmup": 0.1, "weight_decay": 0}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("sts-cross-encoder-published", NOTEBOOK | {"objective": "cross-encoder"}),
        ("sts-siamese-published", NOTEBOOK | {"objective": "siamese", "pooling": "cls"}),
        ("sts-siamese-weighted", NOTEBOOK | {"objective": "siamese", "pooling": "cls", "loss": "weighted-mse-literal"}),
        ("quora-1", QUORA | {"lr": 2e-5, "pooling": "mean", "head_hidden": 0, "pos_weight": 1}),
        ("quora-2", QUORA | {"lr": 1e-5, "pooling": "cls"}),
        ("quora-3", QUORA | {"lr": 5e-6, "pooling": "attention", "attention_start": "random", "head_dropout": 0.1}),
        ("sbert-nli-published", SBERT),
        ("snli-notebook", SBERT | {"batches": "random", "max_length": 128, "clip": 0, "seed": 10}),
    ],
)
def test_a_published_recipe_has_the_settings_of_its_source(recipe, settings):
    options = vars(parse(["--recipe", recipe]))
    assert {name: options[name] for name in settings} == settings
    assert PairObjective.concat == "u,v,|u-v|"  # of every head over two vectors


@pytest.mark.weights
@pytest.mark.parametrize(
    ("head", "counts"), [("cross-encoder", (22_812_033, 19_263_105)), ("siamese", (23_008_641, 19_459_713))]
)
def test_a_published_head_has_the_parameters_that_the_notebook_printed(head, counts, minilm, files):
    data = ["--data", files["scored"], "--dev", files["dev"], "--test", files["test"]]
    options = parse(["--recipe", f"sts-{head}-published", "--model", str(minilm), *data])
    objective, found = training.prepare_objective(options, torch.device("cpu"), torch.float32)
    assert found == counts
    assert objective.encoder.tokenizer.limit == 128


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_equals_its_flags_which_override_it(recipe):
    """So every key is an option, and every value is valid for it."""
    defaults = vars(parse([]))
    assert vars(parse(["--recipe", recipe])) == vars(parse(as_flags(recipe_settings(recipe)))) | {"recipe": recipe}
    assert all(recipes()[recipe][key] for key in ABOUT)
    for arguments in (["--recipe", recipe, "--lr", "0.5"], ["--lr", "0.5", "--recipe", recipe]):
        options = parse([*arguments, "--epochs", "7", "--objective", "mnr", "--no-projection"])
        assert (options.lr, options.epochs, options.objective, options.projection) == (0.5, 7, "mnr", False)
    for objective in MAKERS:  # settings of the recipe that another objective does not read are ignored, flags are not
        parse(["--recipe", recipe, "--objective", objective])
    with pytest.raises(InputError, match="--pos-weight is not for objective mnr"):
        parse(["--recipe", recipe, "--objective", "mnr", "--pos-weight", "2"])
    assert vars(parse([])) == defaults


def test_the_list_names_all_recipes(capsys):
    main(["--recipe", "list"])
    shown = capsys.readouterr().out
    assert shown == list_recipes() + "\n"
    assert [line for line in shown.splitlines() if line and not line.startswith(" ")] == RECIPES
    for name, block in zip(RECIPES, shown.split("\n\n"), strict=True):
        keys, texts = zip(*(line.split(None, 1) for line in block.splitlines()[1:]), strict=True)
        assert keys == (*ABOUT, "options")
        assert texts[:3] == tuple(recipes()[name][key] for key in ABOUT)


def test_an_unknown_recipe_exits_2_and_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(["--recipe", "sts-joined"]))
    err = capsys.readouterr().err
    assert err.startswith("error: unknown recipe 'sts-joined'; choose from " + ", ".join(RECIPES[:3]))
    assert err.count("\n") == 1


def test_a_recipe_without_its_data_says_where_to_get_it(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(["--recipe", "quora-1", "--model", str(tiny), "--out", str(tmp_path / "run")]))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for advice in ("MINISBERT_OFFLINE", "quora_duplicate_questions.tsv", "--data FILE"):
        assert advice in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "pooling", "widths"),
    [
        ("quora-1", "mean", [(1, 72)]),
        ("quora-2", "cls", [(512, 72), (1, 512)]),
        ("quora-3", "attention", [(512, 72), (1, 512)]),
    ],
)
def test_a_recipe_runs_on_any_file_of_the_form(recipe, pooling, widths, tiny, tmp_path, capsys):
    """The columns of Quora's release: id, two question ids, two questions, the label."""
    rows = [line.rstrip("\n").split("\t") for line in toys.duplicates(40, seed=3)]
    path = tmp_path / "questions.tsv"
    lines = [f"{i}\t1\t2\t{a}\t{b}\t{label}\n" for i, (label, a, b) in enumerate(rows)]
    path.write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + "".join(lines))
    out = tmp_path / "run"
    main(["--recipe", recipe, "--model", str(tiny), "--data", str(path), "--max-steps", "2", "--out", str(out)])
    model = PairModel.load(out / "model")
    assert model.encoder.pooling.mode == pooling
    assert [tuple(layer.weight.shape) for layer in model.head.mlp if isinstance(layer, torch.nn.Linear)] == widths
    noted = f"train {path} (40 pairs), dev held out of it (4 pairs), test held out of it (4 pairs)"
    assert noted in capsys.readouterr().err


def test_a_run_is_named_after_its_recipe(tiny, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objective = SimpleNamespace(notes={}, best="spearman")
    monkeypatch.setattr(training, "train", lambda options, group: create_folder(options, group.device, objective))
    main(["--recipe", "simcse-unsupervised", "--model", str(tiny), "--data", files["sentences"]])
    assert (tmp_path / "runs" / "simcse-unsupervised-tiny" / "config.json").is_file()


# --------------------------------------------------------------------------------------- single flags


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--batch-size", "1", "0 -1 2.5 many"),
        ("--lr", "0 1e-3", "nan -1e-5 inf fast"),
        ("--warmup", "0 0.5 1 7", "1.5 -1 -0.1 nan inf"),
        ("--seed", f"0 {2**64 - 1}", f"-1 {2**64} now"),
        ("--dropout", "0 0.9", "1 -0.1 nan"),
        ("--freeze-layers", "0 6", "-1 1.5"),
        ("--margin", "0.1 2", "0 -1 nan inf"),
        ("--objective", " ".join(MAKERS), "clm"),
        ("--schedule", "linear cosine constant", "step"),
        ("--batches", "grouped random fixed", "sorted"),
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


# ------------------------------------------------------------------- flags that an objective does not read

VALUES = {  # of the options that only some objectives read
    **{"pooling": "cls", "scale": "1", "batches": "random", "loss": "mse", "variant": "compare", "pooler_head": None},
    **{"head_dropout": "0", "head_hidden": "0", "pos_weight": "1", "margin": "0.5"},
    **{"temperature": "0.05", "symmetric": None, "projection": None, "nt_xent": None},
    **{"query_flops": "1e-3", "document_flops": "0", "matryoshka": "16,8", "teacher": "tiny"},
    **{"retrieval": "search", "student_layers": "1", "attention_start": "random", "bias_free": None},
    **{"from_nothing": "1x64x500"},
}


@pytest.fixture
def toy_options(tiny, files, monkeypatch):
    """``toy_options("mnr", *flags)`` -> the options of a run on toy rows of the right form."""
    monkeypatch.setattr("minisbert.training.objectives.pairs.load_scored_pairs", lambda name, split: [])

    def build(objective: str, *flags: str):
        more = {"distillation": ["--teacher", str(tiny)], "mlm": ["--from-nothing", "1x64x200"]}.get(objective, [])
        model = REFERENCE / "architectures" / "tiny-splade" if objective == "splade" else tiny
        return parse(["--model", str(model), *toys.flags(files, objective), *more, *flags])

    return build


class Watched(argparse.Namespace):
    """Options that record which of them were read."""

    def __getattribute__(self, name):
        if not name.startswith("_"):
            object.__getattribute__(self, "_read").add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("objective", list(MAKERS))
def test_the_table_names_what_an_objective_reads(objective, toy_options):
    """All but what ``load_trainable`` reads: pooling (see the next test), its start, and the student's layers."""
    options = toy_options(objective, "--dropout", "0")
    encoder = load_trainable(options, "cpu")
    watched = Watched(_read=set(), **vars(options))
    made = make_objective(watched, encoder)
    made.loss(made.network, [0, 1, 2])
    read_before = {"pooling", "attention_start", "student_layers", "from_nothing"}
    expected = {name for name in USED_BY if objective in USED_BY[name]} - read_before
    assert watched._read & {*USED_BY} == expected


@pytest.mark.parametrize("objective", [name for name in MAKERS if name != "splade"])  # refused with it
def test_the_table_names_the_objectives_that_depend_on_the_pooling(objective, toy_options):
    found = []
    for pooling in ("mean", "max"):
        options = toy_options(objective)
        options.pooling = pooling
        torch.manual_seed(0)
        made = make_objective(options, load_trainable(options, "cpu"))
        found.append(made.loss(made.network.eval(), [0, 1, 2]).item())
    assert (found[0] != found[1]) == (objective in USED_BY["pooling"])


def test_a_flag_of_other_objectives_is_an_error_that_lists_them():
    assert VALUES.keys() == USED_BY.keys()
    for name, users in USED_BY.items():
        option = "--" + name.replace("_", "-")
        given = [option] if VALUES[name] is None else [option, VALUES[name]]
        parse(["--objective", users[-1], *given, *(["--pooling", "attention"] if name == "attention_start" else [])])
        other = next(objective for objective in MAKERS if objective not in users)
        with pytest.raises(InputError, match=f"^{option} is not for objective {other}: used by {', '.join(users)}$"):
            parse(["--objective", other, *given])
    with pytest.raises(InputError, match="--margin is not for objective cosine: used by contrastive, triplet"):
        parse(["--marg=0.5"])  # however it is written
    assert parse(["--no-projection", "--no-symmetric", "--no-nt-xent"]) == parse([])  # off is allowed everywhere


def test_a_teacher_implies_the_objective():
    assert parse(["--teacher", "tiny"]).objective == "distillation"
    assert parse(["--recipe", "sts-siamese", "--teacher", "tiny", "--objective", "distillation"]).teacher == "tiny"
