"""What the lessons write out by hand: merges, the way back, the costs of a step, a gain in pairs.

The references are the ``tokenizers`` library's trainer, autograd, torch's own counts of operations
and bytes, and Python's ``statistics``.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from lessons.by_hand import backward, divergence, paired, sheet, vocabulary
from minisbert.core import bert
from minisbert.core.weights import BertConfig
from minisbert.diagnosis.tracing import unfused
from tests.parity import PIECE, Comparison, compare
from tests.parity.comparison import double, fact, normal, same_text
from tests.parity.encoder import tiny
from tests.reference.texts import SENTENCES

MINILM = BertConfig(30_522, 384, 6, 12, 1536, 512)
SMALL = BertConfig(13, 6, 2, 3, 10, 9)
COSTS = ("forward", "backward", "weights", "gradients", "moments", "probabilities")


def byte_pair_merges() -> Iterator[Comparison]:
    """Merges of sentences, of words that are mostly one letter, and of words soon used up."""
    sentences = Counter(" ".join(SENTENCES).lower().split())
    for name, words, most in (
        ("sentences", sentences, 120),
        ("one letter", {"aaaa": 3, "aaab": 2, "baaaaa": 4, "aa": 1}, 6),
        ("few words", {"abc": 2, "bcd": 2, "cab": 1}, 50),
    ):
        merges = vocabulary.learn_merges(words, most)
        expected = trained_merges(words, most)
        result = same_text(f"merges of {name}", as_lines(merges), as_lines(expected))
        yield replace(result, ours=merges, reference=expected)


def as_lines(merges: Iterable[tuple[str, str]]) -> list[str]:
    return [" ".join(pair) for pair in merges]


def trained_merges(words: Mapping[str, int], most: int) -> list[tuple[str, str]]:
    """The first merges that the library's trainer makes of these words."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=most + 500, show_progress=False)
    texts = [" ".join([word] * times) for word, times in words.items()]
    library.train_from_iterator(texts, trainer)
    merges = json.loads(library.to_str())["model"]["merges"]
    return [tuple(pair) for pair in merges[:most]]


def dense_gelu_gradients() -> Iterator[Comparison]:
    x = normal(5, 4, seed=1)
    weight = normal(7, 4, seed=2)
    bias = normal(7, seed=3)
    pull = normal(5, 7, seed=4).detach()
    output = functional.gelu(functional.linear(x, weight, bias))
    expected = torch.autograd.grad(output, (x, weight, bias), pull)
    found = backward.dense_gelu_backward(x.detach(), weight.detach(), bias.detach(), pull)
    for name, ours, theirs in zip(("x", "weight", "bias"), found, expected, strict=True):
        yield compare(f"dense layer with GELU, dL/d{name}", ours, theirs, PIECE)


def measured_gradients() -> Iterator[Comparison]:
    """Of a square form, for which the difference to both sides is exact, beside autograd."""
    form = normal(12, 12, seed=1).detach()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.flatten() @ form @ x.flatten() + x.sum()

    x = normal(3, 4, seed=2)
    (expected,) = torch.autograd.grad(loss(x), x)
    for h in (0.5, 0.125):
        found = backward.measured_gradient(loss, x.detach(), h)
        yield compare(f"measured slopes, h = {h}", found, expected, PIECE)


def step_costs() -> Iterator[Comparison]:
    """MiniLM's sizes, without numbers behind them, and a small model's."""
    for name, config, B, T in (
        ("MiniLM, 32 x 64", MINILM, 32, 64),
        ("a small model, 3 x 5", SMALL, 3, 5),
    ):
        found = sheet.training_step(config, B, T)
        expected = counted_costs(config, B, T)
        ours = double([found.get(cost, -1) for cost in COSTS])
        theirs = double([expected[cost] for cost in COSTS])
        result = compare(f"costs of {name}", ours, theirs, PIECE)
        yield replace(result, ours=found, reference=expected)


def counted_costs(config: BertConfig, B: int, T: int) -> dict[str, int]:
    """What torch counts in one step of AdamW.

    On the meta device, where tensors have shapes and no numbers.
    """
    with torch.device("meta"), unfused():
        model = bert.Bert(config, pooler=False)
        trace: dict[str, torch.Tensor] = {}
        with FlopCounterMode(display=False) as forward:
            hidden = model(torch.zeros(B, T, dtype=torch.long), trace=trace)
        with FlopCounterMode(display=False) as back:
            hidden.sum().backward()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()

    moments = []
    for state in optimizer.state.values():
        moments += [state["exp_avg"], state["exp_avg_sq"]]
    probabilities = [value for key, value in trace.items() if key.endswith("attention")]
    return {
        "forward": forward.get_total_flops(),
        "backward": back.get_total_flops(),
        "weights": size(parameters),
        "gradients": size([parameter.grad for parameter in parameters]),
        "moments": size(moments),
        "probabilities": size(probabilities),
    }


def size(tensors: list[torch.Tensor]) -> int:
    """Bytes."""
    return sum(x.nbytes for x in tensors)


def gain_in_pairs() -> Iterator[Comparison]:
    """Thirty runs whose sides share most of their chance."""
    shared = normal(30, seed=5).detach()
    own = normal(30, seed=6).detach()
    a = 80 + 3 * shared
    b = 79.5 + 3 * shared + 0.5 * own
    differences = (a - b).tolist()
    gain = statistics.fmean(differences)
    error = statistics.stdev(differences) / 30**0.5
    expected = double([gain, error, gain - 2 * error, gain + 2 * error])
    found = double(paired.paired_gain(a.numpy(), b.numpy()))
    yield compare("gain of thirty pairs, its error, its interval", found, expected, PIECE)


def divergences() -> Iterator[Comparison]:
    """The tiny model's states, with one number changed by twice and by half the tolerance."""
    ids = torch.tensor([[2, 57, 58, 59, 3], [2, 60, 3, 0, 0]])
    trace: dict[str, torch.Tensor] = {}
    tiny().bert(ids, ids != 0, trace=trace)
    ours = {name: state for name, state in trace.items() if "attention" not in name}
    for name in ours:
        for factor, says in ((2.0, name), (-2.0, name), (0.5, "")):
            theirs = {key: state.clone() for key, state in ours.items()}
            theirs[name][1, 2, 5] += factor * 1e-6
            found = divergence.first_divergence(ours, theirs, ids != 0, 1e-6)
            yield fact(f"{name} changed by {factor:g} tolerances: {says or 'equal'}", found == says)
