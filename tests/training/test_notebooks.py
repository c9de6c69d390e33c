"""benchmarks/notebooks.py: settings of its sources, and losses for what no option does."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.notebooks import RECIPES, main
from lessons.by_hand.losses import nt_xent_loss
from minisbert.core import InputError
from minisbert.models.pair_heads import ClsCrossHead
from minisbert.models.pair_model import PairModel
from minisbert.training import starting_model
from minisbert.training.base_loss import Loss
from minisbert.training.options import Settings, parse
from minisbert.training.run_data import RunData
from minisbert.training.table import loss_of
from tests import toys
from tests.parity import REFERENCE

# The settings of the sources, read from them by hand, with the defaults of their libraries. The
# first uses torch.optim.AdamW, get_scheduler("linear") and DataLoader(shuffle=True), and trains the
# top four layers.
STS = {
    "loss": "mse",
    "model": "all-MiniLM-L6-v2",
    "data": None,
    "batch_size": 8,
    "max_length": 128,
    "epochs": 20,
    "lr": 1e-5,
    "head_lr": None,
    "schedule": "linear",
    "warmup": 0,
    "weight_decay": 0.01,
    "clip": 0,
    "seed": 42,
}
# It uses torch.optim.Adam without a scheduler, and rows in the order of the split in every epoch.
QUORA = {
    "loss": "binary",
    "head": "concat",
    "data": "quora",
    "limit": 10000,
    "batch_size": 32,
    "warmup": 0,
    "max_length": 32,
    "epochs": 3,
    "head_lr": None,
    "schedule": "constant",
    "weight_decay": 0,
    "clip": 0,
    "seed": 42,
}
SNLI = {
    "loss": "softmax",
    "head": "concat",
    "pooling": "mean",
    "batch_size": 16,
    "epochs": 1,
    "lr": 2e-5,
    "warmup": 0.1,
    "max_length": 128,
    "clip": 0,
    "seed": 10,
    "schedule": "linear",
    "weight_decay": 0,
}
SETTINGS = {
    "sts-cross-encoder-published": STS | {"head": "cross-encoder"},
    "sts-siamese-published": STS | {"head": "siamese", "pooling": "cls"},
    "sts-siamese-weighted": STS | {"head": "siamese", "pooling": "cls"},
    "quora-1": QUORA | {"lr": 2e-5, "pooling": "mean"},
    "quora-2": QUORA | {"lr": 1e-5, "pooling": "cls"},
    "quora-3": QUORA | {"lr": 5e-6, "pooling": "attention"},
    "snli-notebook": SNLI,
}


def settings_of(name: str, *flags: str) -> Settings:
    recipe = RECIPES[name]
    return replace(parse([*recipe.options.split(), *flags]), **recipe.settings)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_settings_of_its_source(name):
    found = vars(settings_of(name))
    for key, value in SETTINGS.get(name, {}).items():
        assert found[key] == value, key


def made(name: str, model: Path) -> SimpleNamespace:
    """The loss, the model and the network of a recipe on toy rows."""
    settings = settings_of(name, "--max-length", "16", "--model", str(model))
    loss = loss_of(settings, RECIPES[name].loss())
    rows = toys.rows(toys.FORM[settings.loss])
    data = RunData(rows, [], [], [], sorted(toys.NLI_LABELS))
    torch.manual_seed(3)
    found = starting_model.load(settings, torch.device("cpu"), loss, data)
    return SimpleNamespace(loss=loss, model=found, network=loss.prepare(found, rows), rows=rows)


def test_the_batches_are_those_of_the_sources(tiny):
    """In the file's order; of any rows, which mix lengths: the spread within a batch, added up."""
    task = made("quora-1", tiny)
    count = len(task.rows)
    in_order = [list(range(start, min(start + 8, count))) for start in range(0, count, 8)]
    lengths = task.network.lengths
    assert task.loss.batches(task.rows, lengths, 8, torch.Generator()) == in_order
    task = made("sts-siamese-published", tiny)
    lengths = task.network.lengths
    spread = []
    for maker in (task.loss.batches, Loss().batches):
        batches = maker(task.rows, lengths, 8, torch.Generator().manual_seed(1))
        assert sorted(row for batch in batches for row in batch) == list(range(40))
        total = 0
        for batch in batches:
            of_batch = [lengths[row] for row in batch]
            total += max(of_batch) - min(of_batch)
        spread.append(total)
    assert spread[0] > 2 * spread[1]


def test_a_weighted_loss(tiny):
    rows = [7, 0, 3, 12, 5]
    task = made("sts-siamese-weighted", tiny)
    task.network.eval()
    outputs = task.network(rows)
    targets = task.loss.targets[rows]
    expected = ((outputs - targets).square() * torch.where(targets < 1, 2, 1)).mean()
    found = task.loss.batch_loss(task.network, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_nt_xent(tiny):
    rows = [7, 0, 3, 12, 5]
    task = made("simcse-nt-xent", tiny)
    task.network.eval()
    u, v = task.network(rows).unbind(dim=1)
    found = task.loss.batch_loss(task.network, rows)
    torch.testing.assert_close(found, nt_xent_loss(u, v, 0.05), rtol=0, atol=1e-6)


def test_positives_are_weighted_twice(tiny):
    outputs = torch.tensor([0.5, -1.0, 2.0])
    targets = torch.tensor([1.0, 0.0, 1.0])
    two = torch.tensor(2.0)
    expected = functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=two)
    found = made("quora-2", tiny).loss.formula(outputs, targets)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_heads_that_no_option_makes(tiny):
    head = made("sts-cross-attention-published", tiny).model.head
    assert isinstance(head, ClsCrossHead)
    model = made("quora-3", tiny).model
    dropouts = [module.p for module in model.head.modules() if isinstance(module, nn.Dropout)]
    assert dropouts == [0.1]
    score = model.encoder.pooling.score.weight
    # uniform between -1 / sqrt(D) and 1 / sqrt(D)
    assert 0.5 * 24**-0.5 < score.abs().max() <= 24**-0.5


def test_the_lowest_two_layers_are_frozen():
    model = made("sts-cross-encoder-published", REFERENCE / "tiny-distiluse").model
    trained = []
    for layer in model.encoder.bert.layers:
        trained.append(any(parameter.requires_grad for parameter in layer.parameters()))
    assert trained == [False, False, True]


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
    path = tmp_path / "questions.tsv"
    out = tmp_path / "run"
    lines = [f"{i}\t1\t2\t{a}\t{b}\t{label}\n" for i, (label, a, b) in enumerate(rows)]
    path.write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + "".join(lines))
    flags = [name, "--model", str(tiny), "--data", str(path), "--max-steps", "2", "--out", str(out)]
    toys.stop_at(2, (RECIPES[name].loss, "formula"), main, flags)
    main([name, "--resume", str(out)])
    model = PairModel.load(out / "model")
    assert model.encoder.pooling.mode == pooling
    layers = [layer for layer in model.head.mlp if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == widths


def test_alone_it_lists_the_recipes(capsys):
    main([])
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line and not line.startswith(" ")] == list(RECIPES)
    with pytest.raises(InputError, match="no recipe 'quora-4'"):
        main(["quora-4"])
