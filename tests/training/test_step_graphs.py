"""Steps as graphs, with a stand-in for recording: which shapes have one, and that they change no
number.
"""

from functools import partial

import pytest
import torch
from torch import nn

from minisbert.core import InputError
from minisbert.core.loop import adamw
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.progress import Bar
from minisbert.training import train
from minisbert.training.run import Run
from minisbert.training.settings import parse
from minisbert.training.step_graphs import FlatAdamW, GraphedNetwork, use_graphs
from minisbert.training.train import load_trainable, main, make_objective
from tests import toys

CPU = torch.device("cpu")


@pytest.fixture
def flags(tiny, files):
    return lambda objective, *more: ["--model", str(tiny), *toys.flags(files, objective, *more)]


class Recorder:
    """Computes at every replay, and remembers what was recorded and replayed."""

    def __init__(self):
        self.recorded, self.replayed = [], []

    def __call__(self, network, inputs, pool):
        self.recorded.append(tuple(inputs[0].shape))

        def replay(*inputs):
            self.replayed.append(tuple(inputs[0].shape))
            return network.compute(*inputs)

        return replay


@pytest.mark.parametrize(
    "objective", ["cosine", "mnr", "siamese", "cross-encoder", "cross-attention"]
)
def test_pads_change_no_gradient(flags, objective):
    """Loss and gradients of a batch whose length is rounded up, in float64, beside the network
    itself.
    """
    task = make_objective(
        parse(flags(objective, "--dropout", "0")),
        load_trainable(parse(flags(objective)), CPU),
        None,
    )
    network = task.network.double()
    network.dtype = torch.float32  # of the encoder: no autocast
    train.set_dropout(task.encoder.bert, 0.0)
    recorder = Recorder()
    graphed = GraphedNetwork(network, task.encoder, recorder)
    rows = [7, 0, 3, 12, 5, 1, 9]
    graphed.plan([rows] * 3)
    found = []
    for one in (network, graphed):
        loss = task.loss(one, rows)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in network.parameters() if p.grad is not None)])
        network.zero_grad()
    assert [tokens % 8 for _, tokens in recorder.replayed] == [0]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_shapes_that_occur_often_have_a_graph(flags):
    """Lengths are rounded up to 8, at most the encoder's positions; other shapes, and evaluation,
    have none.
    """
    task = make_objective(parse(flags("cosine")), load_trainable(parse(flags("cosine")), CPU), None)
    recorder = Recorder()
    graphed = GraphedNetwork(task.network, task.encoder, recorder)
    graphed.plan([[0, 1], [2, 3], [4, 5], [0, 1, 2]])
    assert {rows for rows, _ in graphed.often} == {4}
    for rows in ([0, 1], [1, 0], [0, 1, 2]):
        graphed(rows)
    with torch.no_grad():
        graphed([0, 1])
    assert len(recorder.recorded) == 1
    assert recorder.replayed == recorder.recorded * 2
    positions = task.encoder.bert.config.positions
    assert graphed.shape(torch.zeros(2, positions)) == (2, positions)
    assert graphed.shape(torch.zeros(2, 9)) == (2, 16)


def test_what_cannot_be_recorded_is_told_once_and_trained_without(flags, capsys):
    task = make_objective(
        parse(flags("cosine")), load_trainable(parse(flags("cosine", "--dropout", "0")), CPU), None
    )

    def refuse(network, inputs, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    graphed = GraphedNetwork(task.network, task.encoder, refuse)
    for _ in range(2):
        graphed.plan([[0, 1]] * 3)
        assert graphed([0, 1]).shape == (2, 2, 24)
    assert capsys.readouterr().err.count("no CUDA graphs") == 1


def test_a_flat_optimizer_takes_the_steps_of_the_one_that_it_is_made_of():
    """In float64, from the third step on; the state of the one is always that of the other."""
    torch.manual_seed(4)
    gradients = torch.randn(5, 108, dtype=torch.float64).split([35, 70, 3], dim=1)
    found = []
    for flat in (False, True):
        torch.manual_seed(5)
        parameters = [
            nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in [(5, 7), (70,), (3,)]
        ]
        groups = [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "lr": 0.3}]
        optimizer = stepped = adamw(groups, lr=0.1, weight_decay=0.02)
        for number in range(5):
            if flat and number == 2:
                stepped = FlatAdamW(optimizer)
                assert [len(group["params"]) for group in stepped.param_groups] == [1, 1]
            stepped.zero_grad()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                added = gradient[number].view_as(parameter)
                parameter.grad = (
                    added.clone() if parameter.grad is None else parameter.grad.add_(added)
                )
            norm = nn.utils.clip_grad_norm_(
                [x for group in stepped.param_groups for x in group["params"]], 3.0
            )
            stepped.step()
        states = [optimizer.state[parameter] for parameter in parameters]
        found.append([*parameters, norm, *(x for state in states for x in state.values())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_run_by_graphs_goes_the_way_of_one_without_and_resumes_as_one(
    tiny, flags, tmp_path, monkeypatch
):
    """Not to the bit: AdamW's first steps go by a gradient's sign, and of some weights that is
    rounding.
    """
    ends = []
    monkeypatch.setattr(Run, "finish", lambda run: ends.append(weights(run.objective.model)))
    given = flags("cosine", "--batch-size", "4", "--epochs", "2", "--dropout", "0", "--clip", "0.5")
    main([*given, "--out", str(tmp_path / "without")])
    with monkeypatch.context() as patch:
        patch.setattr(
            train, "use_graphs", lambda options, objective, processes: True
        )  # there is no GPU
        patch.setattr(train, "GraphedNetwork", partial(GraphedNetwork, capture=Recorder()))
        main([*given, "--out", str(tmp_path / "with")])
        toys.stop_at(
            5, (Bar, "set_postfix_str"), main, [*given, "--out", str(tmp_path / "stopped")]
        )
    main(["--resume", str(tmp_path / "stopped")])
    expected, *found = ends
    way = (expected - weights(SentenceEncoder.load(tiny))).norm()
    assert all((other - expected).norm() < 0.1 * way for other in found)


@pytest.mark.exact("the same steps of one process and of two")
def test_a_resumed_run_makes_the_same_steps_by_graphs(flags, tmp_path, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(
        train, "use_graphs", lambda options, objective, processes: True
    )  # there is no GPU
    monkeypatch.setattr(train, "GraphedNetwork", partial(GraphedNetwork, capture=recorder))
    given = flags(
        "cosine", "--graphs", "on", "--log-every", "1", "--batch-size", "4", "--epochs", "2"
    )
    main([*given, "--out", str(tmp_path / "one")])
    assert len(recorder.replayed) > len(set(recorder.recorded)) > 0
    toys.stop_at(5, (Bar, "set_postfix_str"), main, [*given, "--out", str(tmp_path / "stopped")])
    main(["--resume", str(tmp_path / "stopped")])
    assert toys.losses(tmp_path / "one") == toys.losses(tmp_path / "stopped")
    weights = [
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("one", "stopped")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("objective", "more", "processes", "message"),
    [
        ("cosine", [], 1, "not on a CUDA GPU"),
        ("cosine", [], 2, "several processes"),
        ("cosine", ["--micro-tokens", "64"], 1, "give one of them"),
        ("cross-encoder-ranking", [], 1, "not made for them"),
    ],
)
def test_runs_without_graphs_say_why(flags, monkeypatch, objective, more, processes, message):
    """By default silently, and with ``--graphs on`` the reason is an error."""
    auto, on = (parse(flags(objective, "--graphs", choice, *more)) for choice in ("auto", "on"))
    task = make_objective(auto, load_trainable(auto, CPU), None)
    if message != "not on a CUDA GPU":
        monkeypatch.setattr(type(task.encoder), "device", torch.device("cuda"))
    with pytest.raises(InputError, match=message):
        use_graphs(on, task, processes)
    assert not use_graphs(auto, task, processes)


def test_a_run_on_a_gpu_has_graphs_unless_it_asks_for_none(flags, monkeypatch):
    auto, on, off = (parse(flags("cosine", "--graphs", choice)) for choice in ("auto", "on", "off"))
    task = make_objective(auto, load_trainable(auto, CPU), None)
    monkeypatch.setattr(type(task.encoder), "device", torch.device("cuda"))
    assert [use_graphs(options, task, 1) for options in (auto, on, off)] == [True, True, False]
