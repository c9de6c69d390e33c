"""benchmarks/notebooks.py: settings of its sources, and objectives for what no option does."""

from pathlib import Path

import pytest
import torch
from minisbert.training.objectives import Objective
from minisbert.training.objectives.pairs import PairObjective
from minisbert.training.settings import parse
from torch import nn
from torch.nn import functional

from benchmarks.notebooks import RECIPES, AnyRows, main
from lessons.by_hand.losses import nt_xent_loss
from minisbert.core import InputError
from minisbert.core.heads import CrossHead
from minisbert.models.pair_model import PairModel
from minisbert.training import train as training
from tests import toys
from tests.parity import REFERENCE

# The settings of the sources, read from them by hand, with the defaults of their libraries.
# torch.optim.AdamW, get_scheduler("linear"), DataLoader(shuffle=True), the top four layers trained
STS = {
    "model": "all-MiniLM-L6-v2",
    "data": None,
    "scale": 5,
    "batch_size": 8,
    "max_length": 128,
    "epochs": 20,
}
STS |= {
    "lr": 1e-5,
    "head_lr": None,
    "schedule": "linear",
    "warmup": 0,
    "weight_decay": 0.01,
    "clip": 0,
}
STS |= {"seed": 42}
# torch.optim.Adam without a scheduler, rows in the order of the split in every epoch
QUORA = {
    "objective": "binary",
    "data": "quora",
    "limit": 10000,
    "batch_size": 32,
    "warmup": 0,
    "max_length": 32,
}
QUORA |= {
    "epochs": 3,
    "head_lr": None,
    "schedule": "constant",
    "weight_decay": 0,
    "clip": 0,
    "seed": 42,
}
SNLI = {
    "objective": "softmax",
    "pooling": "mean",
    "batch_size": 16,
    "epochs": 1,
    "lr": 2e-5,
    "warmup": 0.1,
}
SNLI |= {"max_length": 128, "clip": 0, "seed": 10, "schedule": "linear", "weight_decay": 0}
SETTINGS = {
    "sts-cross-encoder-published": STS | {"objective": "cross-encoder"},
    "sts-siamese-published": STS | {"objective": "siamese", "pooling": "cls"},
    "sts-siamese-weighted": STS | {"objective": "siamese", "pooling": "cls"},
    "quora-1": QUORA | {"lr": 2e-5, "pooling": "mean"},
    "quora-2": QUORA | {"lr": 1e-5, "pooling": "cls"},
    "quora-3": QUORA | {"lr": 5e-6, "pooling": "attention"},
    "snli-notebook": SNLI,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_settings_of_its_source(name):
    options, settings = vars(parse(RECIPES[name].options.split())), SETTINGS.get(name, {})
    assert {key: options[key] for key in settings} == settings
    assert PairObjective.concat == "u,v,|u-v|"  # of every head over two vectors


def made(name: str, model: Path, files: dict[str, str]) -> Objective:
    options = parse(RECIPES[name].options.split())
    flags = [
        *RECIPES[name].options.split(),
        "--max-length",
        "16",
        *toys.flags(files, options.objective),
    ]
    flags += ["--model", str(model)]
    objective, _ = training.prepare_objective(
        parse(flags), torch.device("cpu"), torch.float32, RECIPES[name].objective
    )
    return objective


def test_the_batches_are_those_of_the_sources(tiny, files):
    """In the file's order; of any rows, which mix lengths: the spread of lengths within a batch,
    added up.
    """
    task = made("quora-1", tiny, files)
    count = len(task.lengths)
    in_order = [list(range(start, min(start + 8, count))) for start in range(0, count, 8)]
    assert task.batches(8, torch.Generator()) == in_order
    any_rows, spread = made("sts-siamese-published", tiny, files), {}
    for name, maker in (("any", any_rows.batches), ("alike", super(AnyRows, any_rows).batches)):
        batches = maker(8, torch.Generator().manual_seed(1))
        assert sorted(row for batch in batches for row in batch) == list(range(40))
        lengths = [[any_rows.lengths[row] for row in batch] for batch in batches]
        spread[name] = sum(max(batch) - min(batch) for batch in lengths)
    assert spread["any"] > 2 * spread["alike"]


def test_the_losses_and_heads_that_no_option_sets(tiny, files):
    rows = [7, 0, 3, 12, 5]
    task = made("sts-siamese-weighted", tiny, files)
    task.model.eval()
    outputs, targets = task.network(rows), task.targets[rows]
    expected = ((outputs - targets).square() * torch.where(targets < 1, 2, 1)).mean()
    torch.testing.assert_close(task.loss(task.network, rows), expected, rtol=0, atol=1e-6)
    task = made("simcse-nt-xent", tiny, files)
    task.model.eval()
    u, v = task.network(rows).unbind(dim=1)
    torch.testing.assert_close(
        task.loss(task.network, rows), nt_xent_loss(u, v, 0.05), rtol=0, atol=1e-6
    )
    task = made("quora-2", tiny, files)
    outputs, targets = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
    expected = functional.binary_cross_entropy_with_logits(
        outputs, targets, pos_weight=torch.tensor(2.0)
    )
    torch.testing.assert_close(task.formula(outputs, targets), expected, rtol=0, atol=1e-6)
    head = made("sts-cross-attention-published", tiny, files).model.head
    assert isinstance(head, CrossHead)
    assert head.variant == "published"
    task = made("quora-3", tiny, files)
    assert [module.p for module in task.model.head.modules() if isinstance(module, nn.Dropout)] == [
        0.1
    ]
    score = task.encoder.pooling.score.weight
    assert 0.5 * 24**-0.5 < score.abs().max() <= 24**-0.5, (
        "uniform between -1 / sqrt(D) and 1 / sqrt(D)"
    )


def test_the_lowest_two_layers_are_frozen(files):
    bert = made("sts-cross-encoder-published", REFERENCE / "tiny-distiluse", files).encoder.bert
    trained = [
        any(parameter.requires_grad for parameter in layer.parameters()) for layer in bert.layers
    ]
    assert trained == [False, False, True]
    assert all(parameter.requires_grad for parameter in bert.embeddings.parameters())


@pytest.mark.parametrize(
    ("name", "pooling", "widths"),
    [
        ("quora-1", "mean", [(1, 72)]),
        ("quora-2", "cls", [(512, 72), (1, 512)]),
        ("quora-3", "attention", [(512, 72), (1, 512)]),
    ],
)
def test_a_recipe_runs_and_resumes_on_any_file_of_the_form(name, pooling, widths, tiny, tmp_path):
    """The columns of Quora's release: id, two question ids, two questions, the label."""
    rows = [line.rstrip("\n").split("\t") for line in toys.duplicates(40, seed=3)]
    path, out = tmp_path / "questions.tsv", tmp_path / "run"
    lines = [f"{i}\t1\t2\t{a}\t{b}\t{label}\n" for i, (label, a, b) in enumerate(rows)]
    path.write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + "".join(lines))
    flags = [name, "--model", str(tiny), "--data", str(path), "--max-steps", "2", "--out", str(out)]
    toys.stop_at(2, (RECIPES[name].objective, "formula"), main, flags)
    main([name, "--resume", str(out)])
    model = PairModel.load(out / "model")
    assert model.encoder.pooling.mode == pooling
    assert [
        tuple(layer.weight.shape) for layer in model.head.mlp if isinstance(layer, nn.Linear)
    ] == widths


def test_alone_it_lists_the_recipes(capsys):
    main([])
    assert [line for line in capsys.readouterr().out.splitlines() if line and line[0] != " "] == [
        *RECIPES
    ]
    with pytest.raises(InputError, match="no recipe 'quora-4'"):
        main(["quora-4"])
