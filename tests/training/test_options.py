"""Options: what a recipe sets, what flags override, and which values are refused."""

import argparse
import json
import re
from dataclasses import Field
from types import SimpleNamespace

import pytest
import torch

from minisbert.core import InputError
from minisbert.models.pair_model import PairModel
from minisbert.system.console import run_command
from minisbert.training import settings, training
from minisbert.training.folder import create_folder
from minisbert.training.options import make_parser, parse, read_settings
from minisbert.training.recipes import ABOUT, list_recipes, recipes
from minisbert.training.registry import OBJECTIVES, load_encoder, make_objective
from minisbert.training.settings import SETTINGS, USED_BY, RunSettings
from minisbert.training.training import main
from tests import toys
from tests.parity import REFERENCE

RECIPES = list(recipes())


def help_of(setting: Field) -> str:
    """What ``--help`` says of it, if the default is a single one."""
    text = setting.metadata["help"]
    return text if setting.default is not None and text.count("default: ") == 1 else ""


def flags(recipe: str) -> list[str]:
    """A recipe as the flags one would type."""
    settings = {key: value for key, value in recipes()[recipe].items() if key not in ABOUT}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in settings.items()]


def test_defaults_are_those_that_help_states():
    stated = {name: re.findall(r"default: ([0-9.e-]+)", help_of(item)) for name, item in SETTINGS.items()}
    stated = {name: float(*numbers) for name, numbers in stated.items() if numbers}
    assert {name: SETTINGS[name].default for name in stated} == stated
    assert len(stated) > 15


def test_the_promised_recipes():
    heads = ["sts-cross-encoder-published", "sts-cross-encoder", "sts-siamese-published"]
    heads += ["sts-siamese-weighted", "sts-siamese", "sts-cross-attention"]
    sbert = ["sbert-nli-published", "snli-notebook", "sbert-nli", "sbert-regression", "sbert-triplet"]
    simcse = [f"simcse-{kind}" for kind in ("unsupervised", "nt-xent", "supervised")]
    assert [*heads, "quora-1", "quora-2", "quora-3", *sbert, *simcse] == RECIPES


# The settings of the sources, read from them by hand, with the defaults of their libraries.
NOTEBOOK = {  # torch.optim.AdamW, get_scheduler("linear"), DataLoader(shuffle=True), the top four layers trained
    "model": "all-MiniLM-L6-v2",
    "data": None,
    "scale": 5,
    "batch_size": 8,
    "batches": "random",
    "max_length": 128,
    "epochs": 20,
    "lr": 1e-5,
    "head_lr": None,
    "schedule": "linear",
    "warmup": 0,
    "weight_decay": 0.01,
    "clip": 0,
    "freeze_layers": 2,
    "freeze_embeddings": False,
    "loss": "mse",
    "head_dropout": 0,
    "seed": 42,
}
QUORA = {  # torch.optim.Adam without a scheduler, rows in the order of the split in every epoch
    "objective": "binary",
    "data": "quora",
    "limit": 10000,
    "batch_size": 32,
    "batches": "fixed",
    "max_length": 32,
    "epochs": 3,
    "head_lr": None,
    "schedule": "constant",
    "warmup": 0,
    "weight_decay": 0,
    "clip": 0,
    "freeze_layers": 0,
    "concat": "u,v,|u-v|",
    "seed": 42,
}
SBERT = {  # section 3.1
    "objective": "softmax",
    "pooling": "mean",
    "concat": "u,v,|u-v|",
    "head_hidden": 0,
    "batch_size": 16,
    "epochs": 1,
    "lr": 2e-5,
    "head_lr": None,
    "schedule": "linear",
    "warmup": 0.1,
    "weight_decay": 0,
}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("sts-cross-encoder-published", NOTEBOOK | {"objective": "cross-encoder"}),
        ("sts-siamese-published", NOTEBOOK | {"objective": "siamese", "pooling": "cls"}),
        ("sts-siamese-weighted", NOTEBOOK | {"objective": "siamese", "pooling": "cls", "loss": "weighted-mse-literal"}),
        ("quora-1", QUORA | {"lr": 2e-5, "pooling": "mean", "head_hidden": 0, "pos_weight": 1, "head_dropout": 0}),
        ("quora-2", QUORA | {"lr": 1e-5, "pooling": "cls", "head_hidden": 512, "pos_weight": 2, "head_dropout": 0}),
        (
            "quora-3",
            QUORA
            | {"lr": 5e-6, "pooling": "attention", "attention_start": "random"}
            | {"head_hidden": 512, "pos_weight": 2, "head_dropout": 0.1},
        ),
        ("sbert-nli-published", SBERT),
        ("snli-notebook", SBERT | {"batches": "random", "max_length": 128, "clip": 0, "seed": 10}),
    ],
)
def test_a_published_recipe_has_the_settings_of_its_source(recipe, settings):
    options = vars(parse(["--recipe", recipe]))
    assert {name: options[name] for name in settings} == settings


@pytest.mark.weights
@pytest.mark.parametrize(
    ("head", "counts"),
    [
        ("joint", (22_812_033, 19_263_105)),
        ("siamese", (23_008_641, 19_459_713)),
    ],
)
def test_a_published_head_has_the_parameters_that_the_notebook_printed(head, counts, minilm, tmp_path):
    files = toys.write_all(tmp_path)
    data = [f"--{split}={files[name]}" for split, name in (("data", "scored"), ("dev", "dev"), ("test", "test"))]
    options = parse(["--recipe", f"sts-{head}-published", "--model", str(minilm), *data])
    objective, found = training.set_up(options, torch.device("cpu"), torch.float32)
    assert found == counts
    assert objective.encoder.tokenizer.limit == 128


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_equals_its_flags(recipe):
    """So every key is an option, and every value is valid for it."""
    assert vars(parse(["--recipe", recipe])) == vars(parse(flags(recipe))) | {"recipe": recipe}
    assert all(recipes()[recipe][key] for key in ABOUT)


@pytest.mark.parametrize("recipe", RECIPES)
def test_flags_override_a_recipe_before_and_after_it(recipe):
    for arguments in (["--recipe", recipe, "--lr", "0.5"], ["--lr", "0.5", "--recipe", recipe]):
        options = parse([*arguments, "--epochs", "7", "--objective", "mnr", "--no-projection"])
        assert (options.lr, options.epochs, options.objective, options.projection) == (0.5, 7, "mnr", False)


def test_a_recipe_does_not_change_the_defaults():
    before = vars(parse([]))
    assert vars(parse(["--recipe", "quora-3"])) != before
    assert vars(parse([])) == before


def test_the_list_names_all_recipes_with_source_needs_and_score(capsys):
    main(["--recipe", "list"])
    shown = capsys.readouterr().out
    assert shown == list_recipes() + "\n"
    assert [line for line in shown.splitlines() if line and not line.startswith(" ")] == RECIPES
    for name, block in zip(RECIPES, shown.split("\n\n"), strict=True):
        source, needs, expected, options = (line.split(None, 1) for line in block.splitlines()[1:])
        assert [source[0], needs[0], expected[0], options[0]] == ["source", "needs", "expected", "options"]
        assert [source[1], needs[1], expected[1]] == [recipes()[name][key] for key in ABOUT]
        assert vars(parse(options[1].split())) == vars(parse(flags(name)))


def test_an_unknown_recipe_exits_2_and_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(["--recipe", "sts-joined"]))
    err = capsys.readouterr().err
    assert err.startswith("error: unknown recipe 'sts-joined'; choose from sts-cross-encoder-published, sts-cross-enc")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("former", "name"),
    [("sts-joint-published", "sts-cross-encoder-published"), ("sts-cross", "sts-cross-attention")],
)
def test_the_former_name_of_a_recipe_is_accepted(former, name):
    assert vars(parse(["--recipe", former])) == vars(parse(["--recipe", name]))


@pytest.mark.parametrize("recipe", ["quora-1", "quora-2", "quora-3"])
def test_a_recipe_without_its_data_says_where_to_get_it(recipe, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    monkeypatch.setenv("MINISBERT_OFFLINE", "1")
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: main(["--recipe", recipe, "--model", str(tiny), "--out", str(tmp_path / "run")]))
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "quora is missing and MINISBERT_OFFLINE forbids fetching it" in err
    assert "put quora_duplicate_questions.tsv into" in err
    assert "http://qim.fs.quoracdn.net/quora_duplicate_questions.tsv" in err
    assert "or --data FILE of duplicates (label 0 or 1, sentence1, sentence2)" in err
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
    """Quora's columns: id, two question ids, two questions, the label."""
    rows = [line.rstrip("\n").split("\t") for line in toys.duplicates(40, seed=3)]
    path = tmp_path / "questions.tsv"
    lines = [f'"{i}"\t"1"\t"2"\t"{a}"\t"{b}"\t"{label}"\n' for i, (label, a, b) in enumerate(rows)]
    path.write_text('"id"\t"qid1"\t"qid2"\t"question1"\t"question2"\t"is_duplicate"\n' + "".join(lines))
    out = tmp_path / "run"
    main(["--recipe", recipe, "--model", str(tiny), "--data", str(path), "--max-steps", "2", "--out", str(out)])
    model = PairModel.load(out / "model")
    assert model.encoder.pooling.mode == pooling
    assert [tuple(layer.weight.shape) for layer in model.head.mlp if isinstance(layer, torch.nn.Linear)] == widths
    assert (
        f"train {path} (40 pairs), dev held out of it (4 pairs), test held out of it (4 pairs)"
        in capsys.readouterr().err
    )


def test_a_run_is_named_after_its_recipe(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = toys.write_all(tmp_path)["sentences"]
    objective = SimpleNamespace(notes={}, best="spearman")
    monkeypatch.setattr(training, "train", lambda options, group: create_folder(options, group.device, objective))
    main(["--recipe", "simcse-unsupervised", "--model", str(tiny), "--data", path])
    assert (tmp_path / "runs" / "simcse-unsupervised-tiny" / "config.json").is_file()


# --------------------------------------------------------------------------------------- single flags


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--limit", ["1", "10000"], ["0", "-5", "1.5", "all"]),
        ("--dropout", ["0", "0.9"], ["1", "-0.1", "nan"]),
        ("--head-lr", ["0", "1e-3"], ["-1", "nan", "inf"]),
        ("--freeze-layers", ["0", "6"], ["-1", "1.5"]),
        ("--head-hidden", ["0", "512"], ["-1"]),
        ("--head-dropout", ["0", "0.9"], ["1", "-0.1", "nan"]),
        ("--pos-weight", ["0.5", "2"], ["0", "-1", "nan", "inf"]),
        ("--margin", ["0.1", "5"], ["0", "-1", "nan", "inf"]),
        ("--temperature", ["0.05", "1"], ["0", "-0.05", "nan", "inf"]),
        ("--hard-negative-weight", ["-1", "0", "0.69"], ["nan", "inf", "-inf"]),
        ("--objective", list(OBJECTIVES), ["mlm", ""]),
        ("--schedule", ["linear", "cosine", "constant"], ["step"]),
        ("--loss", ["mse", "weighted-mse"], ["mae"]),
        ("--variant", ["published", "compare"], ["other", "published-bug"]),
        ("--batches", ["grouped", "random", "fixed"], ["sorted"]),
        ("--scale", ["1", "5", "100"], ["0", "-1", "nan", "inf"]),
        ("--shuffled-negatives", ["1", "4"], ["0", "-1", "1.5"]),
        ("--max-length", ["1", "512"], ["0", "-1", "1.5"]),
        ("--matryoshka", ["64", "256,128,64"], ["", "64,128", "64,64", "8,0", "8,-1", "8,", "all", "1.5"]),
        ("--student-layers", ["1", "6"], ["0", "-1", "1.5"]),
    ],
)
def test_values_of_an_option(option, good, bad, capsys):
    name = option[2:].replace("-", "_")
    objective = [] if option == "--objective" else ["--objective", USED_BY.get(name, ["cosine"])[0]]
    for value in good:
        assert str(getattr(parse([*objective, f"{option}={value}"]), name)) in (value, str(float_or(value)))
    for value in bad:
        with pytest.raises(SystemExit, match="2"):
            parse([f"{option}={value}"])
        assert f"argument {option}: invalid" in capsys.readouterr().err


def float_or(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_the_promised_objectives():
    promised = "cosine cosent cross-encoder siamese cross-attention softmax binary contrastive triplet mnr simcse"
    assert (
        [*OBJECTIVES]
        == [*promised.split(), "simcse-supervised", "splade", "late-interaction", "distillation"]
        == [*settings.OBJECTIVES]
    )


@pytest.mark.parametrize(("old", "new"), [("joint", "cross-encoder"), ("cross", "cross-attention")])
def test_an_objective_has_its_former_name_too(old, new):
    assert vars(parse(["--objective", old])) == vars(parse(["--objective", new])) == vars(RunSettings(objective=old))


def test_every_option_has_a_help_text_and_a_name_that_describes_no_recipe():
    actions = make_parser()._actions
    assert all(action.help for action in actions)
    assert not {action.dest for action in actions} & set(ABOUT)


# ------------------------------------------------------------------- flags that an objective does not read

FLAGS = {  # each with a valid value
    "pooling": ["--pooling", "cls"],
    "scale": ["--scale", "1"],
    "batches": ["--batches", "random"],
    "loss": ["--loss", "mse"],
    "variant": ["--variant", "compare"],
    "pooler_head": ["--pooler-head"],
    "head_dropout": ["--head-dropout", "0"],
    "head_hidden": ["--head-hidden", "0"],
    "concat": ["--concat", "u,v"],
    "pos_weight": ["--pos-weight", "1"],
    "margin": ["--margin", "0.5"],
    "temperature": ["--temperature", "0.05"],
    "symmetric": ["--symmetric"],
    "hard_negative_weight": ["--hard-negative-weight", "0"],
    "projection": ["--projection"],
    "nt_xent": ["--nt-xent"],
    "same_mask": ["--same-mask"],
    "augment": ["--augment", "delete-one"],
    "query_flops": ["--query-flops", "1e-3"],
    "document_flops": ["--document-flops", "0"],
    "shuffled_negatives": ["--shuffled-negatives", "1"],
    "allow_no_dropout": ["--allow-no-dropout"],
    "matryoshka": ["--matryoshka", "16,8"],
    "teacher": ["--teacher", "tiny"],
    "student_layers": ["--student-layers", "1"],
    "attention_start": ["--attention-start", "random"],
    "bias_free": ["--bias-free"],
}


@pytest.fixture
def toy_options(tiny, tmp_path, monkeypatch):
    """``toy_options("mnr", *flags)`` -> the options of a run on toy rows of the right form."""
    monkeypatch.setattr("minisbert.training.pair_objectives.load_scored_pairs", lambda name, split: [])
    files = toys.write_all(tmp_path)
    forms = dict.fromkeys(("cosine", "cosent", "cross-encoder", "siamese", "cross-attention"), "scored") | {
        "softmax": "nli"
    }
    forms |= dict.fromkeys(("binary", "contrastive"), "duplicates")
    forms |= dict.fromkeys(("simcse", "distillation"), "sentences")

    def build(objective: str, *flags: str):
        form = forms.get(objective, "triplets")
        scored = [] if form in ("nli", "duplicates") else ["--dev", files["dev"], "--test", files["test"]]
        taught = ["--teacher", str(tiny)] if objective == "distillation" else []
        model = REFERENCE / "modern" / "tiny-splade" if objective == "splade" else tiny
        return parse(["--objective", objective, "--model", str(model), "--data", files[form], *scored, *taught, *flags])

    return build


class Watched(argparse.Namespace):
    """Options that record which of them were read."""

    def __getattribute__(self, name):
        if not name.startswith("_"):
            object.__getattribute__(self, "_read").add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_the_table_names_what_an_objective_reads(objective, toy_options):
    """All but what ``load_encoder`` reads: pooling (see the next test), its start, and the student's layers."""
    options = toy_options(objective, "--dropout", "0", *(["--allow-no-dropout"] if objective == "simcse" else []))
    encoder = load_encoder(options, "cpu")
    watched = Watched(_read=set(), **vars(options))
    made = make_objective(watched, encoder)
    made.loss(made.network, [0, 1, 2])
    read_before = {"pooling", "attention_start", "student_layers"}
    expected = {name for name in USED_BY if objective in USED_BY[name]} - read_before
    assert watched._read & {*USED_BY} == expected


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "splade"])  # refused with it
def test_the_table_names_the_objectives_that_depend_on_the_pooling(objective, toy_options):
    found = []
    for pooling in ("mean", "max"):
        options = toy_options(objective)
        options.pooling = pooling
        torch.manual_seed(0)
        made = make_objective(options, load_encoder(options, "cpu"))
        found.append(made.loss(made.network.eval(), [0, 1, 2]).item())
    assert (found[0] != found[1]) == (objective in USED_BY["pooling"])


def test_a_flag_of_other_objectives_is_an_error_that_lists_them():
    assert FLAGS.keys() == USED_BY.keys()
    for name, users in USED_BY.items():
        for objective in OBJECTIVES:
            arguments = ["--objective", objective, *FLAGS[name]]
            if objective in users:
                parse(arguments)
                continue
            message = f"{FLAGS[name][0]} is not for objective {objective}: used by {', '.join(users)}"
            with pytest.raises(InputError, match=f"^{message}$"):
                parse(arguments)


def test_a_former_name_of_an_option_is_accepted_and_not_shown(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"objective": "joint", "cross_encoder": True}))
    found = [parse(["--objective", "cross-encoder", option]) for option in ("--pooler-head", "--cross-encoder")]
    assert all(options.pooler_head for options in (*found, read_settings(tmp_path / "config.json")))
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "--cross-encoder" not in capsys.readouterr().out


def test_a_teacher_implies_the_objective():
    assert parse(["--teacher", "tiny"]).objective == "distillation"
    assert parse(["--recipe", "sts-siamese", "--teacher", "tiny", "--objective", "distillation"]).teacher == "tiny"


def test_a_flag_is_noticed_however_it_is_written():
    for arguments in (["--margin=1"], ["--marg", "1"], ["--marg=0.5"]):
        with pytest.raises(InputError, match="--margin is not for objective cosine: used by contrastive, triplet"):
            parse(arguments)


def test_switching_off_is_allowed_everywhere():
    off = ["--no-projection", "--no-symmetric", "--no-nt-xent"]
    assert vars(parse(off)) == vars(parse([]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_unused_settings_of_a_recipe_are_ignored_and_unused_flags_are_not(recipe):
    for objective in OBJECTIVES:
        parse(["--recipe", recipe, "--objective", objective])
    with pytest.raises(InputError, match="--pos-weight is not for objective mnr"):
        parse(["--recipe", recipe, "--objective", "mnr", "--pos-weight", "2"])


def test_an_unknown_recipe_is_an_input_error():
    with pytest.raises(InputError, match="unknown recipe ''"):
        parse(["--recipe", ""])
