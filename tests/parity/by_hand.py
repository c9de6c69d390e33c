"""What the lessons write out by hand: merges, the way back, the costs of a step, a gain in pairs.

The references are the ``tokenizers`` library's trainer, autograd, torch's own counts of operations
and bytes, and Python's ``statistics``.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from lessons.by_hand import backward, paired, sheet, vocabulary
from minisbert.core import bert
from minisbert.core.weights import BertConfig
from minisbert.diagnosis.tracing import unfused
from tests.parity import PIECE, Comparison, compare
from tests.parity.comparison import normal, padded
from tests.reference.texts import SENTENCES

MINILM = BertConfig(30_522, 384, 6, 12, 1536, 512)

SMALL = BertConfig(13, 6, 2, 3, 10, 9, type_vocab_size=1)

COSTS = ("forward", "backward", "weights", "gradients", "moments", "probabilities")


def trained_merges(words: Mapping[str, int], most: int) -> list[tuple[str, str]]:
    """The first merges that the library's trainer makes of these words."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=most + 500, show_progress=False)
    library.train_from_iterator(
        [" ".join([word] * times) for word, times in words.items()], trainer
    )
    return [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]][:most]


def byte_pair_merges() -> Iterator[Comparison]:
    """Merges of real sentences, of words that are mostly one letter, and of words that are soon
    used up.
    """
    sentences = Counter(word for text in SENTENCES for word in text.lower().split())
    for name, words, most in (
        ("sentences", sentences, 120),
        ("one letter", {"aaaa": 3, "aaab": 2, "baaaaa": 4, "aa": 1}, 6),
        ("few words", {"abc": 2, "bcd": 2, "cab": 1}, 50),
    ):
        merges, expected = vocabulary.learn_merges(words, most), trained_merges(words, most)
        sides = ["\n".join(map(" ".join, pairs)) for pairs in (merges, expected)]
        value, reference = (padded([ord(c) for c in side], len(sides[1]) + 20) for side in sides)
        yield replace(
            compare(f"merges of {name}", value, reference, PIECE), ours=merges, reference=expected
        )


def dense_gelu_gradients() -> Iterator[Comparison]:
    x, weight, bias = normal(5, 4, seed=1), normal(7, 4, seed=2), normal(7, seed=3)
    pull = normal(5, 7, seed=4).detach()
    expected = torch.autograd.grad(
        functional.gelu(functional.linear(x, weight, bias)), (x, weight, bias), pull
    )
    found = backward.dense_gelu_backward(x.detach(), weight.detach(), bias.detach(), pull)
    for name, ours, theirs in zip(("x", "weight", "bias"), found, expected, strict=True):
        yield compare(f"dense layer with GELU, dL/d{name}", ours, theirs, PIECE)


def step_costs() -> Iterator[Comparison]:
    """MiniLM's sizes, without numbers behind them, and a small model's."""
    for name, config, B, T in (
        ("MiniLM, 32 x 64", MINILM, 32, 64),
        ("a small model, 3 x 5", SMALL, 3, 5),
    ):
        expected = counted_costs(config, B, T)
        found = sheet.training_step(config, B, T)
        sides = (
            torch.tensor([side.get(cost, -1) for cost in COSTS]).double()
            for side in (found, expected)
        )
        yield replace(compare(f"costs of {name}", *sides, PIECE), ours=found, reference=expected)


def counted_costs(config: BertConfig, B: int, T: int) -> dict[str, int]:
    """What torch counts in one step of AdamW on the meta device, where tensors have shapes and no
    numbers.
    """

    def size(tensors: list[torch.Tensor]) -> int:
        return sum(x.nbytes for x in tensors)

    with torch.device("meta"), unfused():
        model, trace = bert.Bert(config, pooler=False), {}
        with FlopCounterMode(display=False) as forward:
            hidden = model(torch.zeros(B, T, dtype=torch.long), trace=trace)
        with FlopCounterMode(display=False) as back:
            hidden.sum().backward()
    parameters = list(model.parameters())
    kept = [value for key, value in trace.items() if key.endswith("attention")]
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()
    moments = [
        state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
    ]
    bytes_of = map(size, (parameters, [p.grad for p in parameters], moments, kept))
    return dict(
        zip(COSTS, (forward.get_total_flops(), back.get_total_flops(), *bytes_of), strict=True)
    )


def gain_in_pairs() -> Iterator[Comparison]:
    """Thirty runs whose sides share most of their chance."""
    shared, own = normal(30, seed=5).detach(), normal(30, seed=6).detach()
    a, b = 80 + 3 * shared, 79.5 + 3 * shared + 0.5 * own
    differences = (a - b).tolist()
    gain, error = statistics.fmean(differences), statistics.stdev(differences) / 30**0.5
    expected = torch.tensor([gain, error, gain - 2 * error, gain + 2 * error], dtype=torch.float64)
    found = torch.tensor(paired.paired_gain(a.numpy(), b.numpy()), dtype=torch.float64)
    yield compare("gain of thirty pairs, its error, its interval", found, expected, PIECE)
