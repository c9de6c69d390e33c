"""Parity checks around the model: text to ids, parameter names, batches, schedules, the optimizer,
search.

Importing this module adds them to ``checks.CHECKS``. The references are the ``tokenizers`` library,
the names in checkpoints saved by the reference libraries, torch's optimizer and schedulers, and
plain counting.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from lessons.search import bm25, fusion, graph
from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.core import bert, data, loop, read_json, tokenizer, weights
from minisbert.core.weights import read_safetensors
from minisbert.search import dense, quantized
from minisbert.training import losses
from tests.checks import check, normal
from tests.formula_checks import fact, randomised
from tests.parity import PIECE, REFERENCE, ROOT, Comparison, compare
from tests.reference.plain_loop import losses_of_steps
from tests.reference.texts import SENTENCES, TEXTS

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]
GREEDY = [
    "abcd",
    "abc",
    "abbcd",
    "abx",
]  # "a ##bcd" spells abcd, but after abc, the longest, there is no ##d
WORDS = [
    "cat",
    "playing",
    "runs",
    "guitars",
    "a",
    "z",
    "kittenish",
    "hausboot",
    "dogs",
    "é",
    "unplayé",
    "##a",
    "a##b",
]


def padded(numbers: Sequence[int], length: int) -> Tensor:
    """Numbers as a tensor (length,), padded with -1, so that lists of different lengths can be
    compared.
    """
    return torch.tensor([*numbers, *[-1] * length][:length], dtype=torch.float64)


def same(name: str, value: Any, reference: Any, bound: float = PIECE) -> Comparison:
    """``compare`` of numbers in lists, arrays or tensors."""
    return compare(
        name, *(torch.as_tensor(np.asarray(side)).double() for side in (value, reference)), bound
    )


# --------------------------------------------------------------------------------------- text to
# ids


@check
def split_words() -> Iterator[Comparison]:
    """The characters of every word, against the library's normalizer and splitter."""
    normalizer, splitter = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    for text in (*SENTENCES, *TEXTS):
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        words = tokenizer.split_words(text)
        sides = ["\n".join(words), "\n".join(expected)]
        value, reference = (padded([ord(c) for c in side], len(sides[1]) + 20) for side in sides)
        compared = compare(f"words of {text!r}"[:60], value, reference, PIECE)
        yield replace(compared, ours=words, reference=expected)  # words, for the message


@check
def word_pieces() -> Iterator[Comparison]:
    """Ids against the library's WordPiece."""
    greedy = {
        piece: i for i, piece in enumerate(["[UNK]", "ab", "abc", "a", "##c", "##bcd", "##b"])
    }
    for vocabulary, words in ((VOCABULARY, WORDS), (greedy, GREEDY)):
        library = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        for word in words:
            pieces, expected = tokenizer.word_pieces(word, vocabulary), library.encode(word)
            ids = [vocabulary.get(piece, -2) for piece in pieces]
            compared = compare(
                f"pieces of {word}", padded(ids, 12), padded(expected.ids, 12), PIECE
            )
            yield replace(
                compared, ours=pieces, reference=expected.tokens
            )  # pieces, for the message


@check
def name_tables() -> Iterator[Comparison]:
    """For each family: every name in a checkpoint saved by the reference, once, and no other
    name.
    """
    folders = (ROOT / "weights" / "tiny", REFERENCE / "tiny-distiluse", REFERENCE / "tiny-roberta")
    for family, folder in zip(("bert", "distilbert", "roberta"), folders, strict=True):
        layers = read_json(folder / "config.json").get("n_layers", 2)
        expected = sorted(read_safetensors(folder / "model.safetensors"))
        names = ENCODER_FAMILIES[family].names(layers, family != "distilbert")
        if family == "bert":  # the book's
            names = weights.tensor_names(layers, pooler=True)
        found = list(names.values())
        counts = [*map(found.count, expected), len(found)]
        yield same(f"names of {family}", counts, [1] * len(expected) + [len(expected)])
        # both names of a pair have the same ending and the same layer
        agree = [facts_of(ours) == facts_of(file) for ours, file in names.items()]
        yield same(f"names of {family}, both sides", [all(agree), len(agree)], [1, len(expected)])


def facts_of(name: str) -> list[str]:
    """What our name and the file's name have in common: the layer's number, and weight or bias."""
    return [part for part in name.split(".") if part.isdigit() or part in ("weight", "bias")]


# -------------------------------------------------------------------------------------------
# batches


@check
def padded_batches() -> Iterator[Comparison]:
    """Rows of 3, 1 and 4 ids; one real token has the pad's id."""
    ids, mask = tokenizer.pad_batch([[7, 0, 9], [5], [1, 2, 3, 4]], pad_id=0)
    yield compare(
        "padded ids", ids, torch.tensor([[7, 0, 9, 0], [5, 0, 0, 0], [1, 2, 3, 4]]), PIECE
    )
    expected = torch.tensor([[True, True, True, False], [True, False, False, False], [True] * 4])
    mask = torch.zeros(3, 4, dtype=torch.bool) if mask is None else mask
    yield compare("mask", mask.double(), expected.double(), PIECE)


@check
def grouped_batches() -> Iterator[Comparison]:
    """Counts that hold for any random numbers."""
    lengths = torch.randperm(
        103, generator=torch.Generator().manual_seed(1)
    ).tolist()  # all different
    batches = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2))
    again = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2))
    other = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(3))
    narrow = data.length_grouped_batches(lengths, 10, torch.Generator().manual_seed(2), window=2)
    for name, found in (("", batches), (", windows of 2", narrow)):
        rows = [row for batch in found for row in batch]
        yield same(f"visits of each row{name}", [*map(rows.count, range(103))], [1] * 103)
        sizes = padded(sorted(map(len, found), reverse=True), 12)
        yield compare(f"batch sizes{name}", sizes, padded([10] * 10 + [3], 12), PIECE)
    # if one window holds all rows, the batches are cut from all rows sorted by length
    # (or the other way round), so each holds as many neighbours as it has rows
    spread = padded(
        sorted(max(lengths[row] for row in b) - min(lengths[row] for row in b) for b in batches), 12
    )
    yield compare("longest minus shortest of each batch", spread, padded([2, *[9] * 10], 12), PIECE)
    spread = [
        max(lengths[row] for row in batch) - min(lengths[row] for row in batch) for batch in narrow
    ]
    first = [min(lengths[row] for row in batch) for batch in batches]
    wide = max(spread) > 10  # in windows of two batches, no batch can consist of ten neighbours
    yield fact("the same seed gives the same batches", batches == again)
    yield fact("another seed gives other batches", batches != other)
    yield fact(
        "the batches do not come sorted by length",
        first not in (sorted(first), sorted(first)[::-1]),
    )
    yield fact("a window of 2 batches mixes lengths that one of 50 keeps apart", wide)
    # the two batches of a window never overlap; two batches that come together by chance nearly
    # always do
    many = torch.randperm(400, generator=torch.Generator().manual_seed(4)).tolist()
    found = data.length_grouped_batches(many, 10, torch.Generator().manual_seed(5), window=2)
    ends = [(min(many[row] for row in batch), max(many[row] for row in batch)) for batch in found]
    apart = [a[1] < b[0] or b[1] < a[0] for a, b in zip(ends[::2], ends[1::2], strict=False)]
    yield fact("batches of different windows are mixed", not all(apart))


# ------------------------------------------------------------------------------------------- layers


@check
def layer_choice() -> Iterator[Comparison]:
    """By hand; 12 to 6 is the list in DistilBERT's extract_distilbert.py."""
    for total, keep, expected in (
        (12, 6, [0, 2, 4, 7, 9, 11]),
        (12, 4, [0, 4, 7, 11]),
        (12, 3, [0, 6, 11]),
        (6, 3, [0, 3, 5]),
        (6, 2, [0, 5]),
        (6, 1, [5]),
        (4, 4, [0, 1, 2, 3]),
    ):
        layers = losses.spread_layers(total, keep)
        compared = compare(
            f"{keep} layers of {total}", padded(layers, 12), padded(expected, 12), PIECE
        )
        yield replace(compared, ours=layers, reference=expected)


@check
def kept_layers() -> Iterator[Comparison]:
    """The teacher's own layers, one after the other; and the student is a model of its own."""
    config = bert.BertConfig(31, 8, 5, 2, 11, 9, layer_norm_eps=1e-5)
    teacher = randomised(bert.Bert(config, pooler=False))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    ids, mask = (
        torch.tensor([[3, 7, 1, 30], [5, 2, 9, 0]]),
        torch.tensor([[True] * 4, [True, True, False, False]]),
    )
    for layers in ([0, 2, 4], [1, 2], [3]):
        student = losses.keep_layers(teacher, layers)
        x = teacher.embeddings(ids, None)
        for i in layers:
            x, _ = teacher.layers[i](x, mask[:, None, None, :])
        yield compare(f"hidden states of layers {layers}", student(ids, mask), x, PIECE)
        yield fact(
            f"the config counts layers {layers}", student.config.num_hidden_layers == len(layers)
        )
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.zero_()
        same = [value.equal(before[name]) for name, value in teacher.state_dict().items()]
        yield fact(f"teacher unchanged, layers {layers}", all(same) and len(teacher.layers) == 5)


# ----------------------------------------------------------------------------------------- training


@check
def linear_rates() -> Iterator[Comparison]:
    """Shares of the learning rate, from torch's schedulers: up in 4 steps, down in 6."""
    shares = torch.tensor(
        [float(loop.linear_schedule(step, 4, 10)) for step in range(12)], dtype=torch.float64
    )
    weight = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    down = torch.optim.lr_scheduler.PolynomialLR(weight, total_iters=6)
    falling = []
    for _ in range(8):
        falling.append(weight.param_groups[0]["lr"])
        weight.step()
        down.step()
    expected = torch.tensor([0, 0.25, 0.5, 0.75, *falling], dtype=torch.float64)
    for step, (found, share) in enumerate(zip(shares, expected, strict=True)):
        yield compare(f"step {step} of 10, warm-up 4: share of the rate", found, share, PIECE)


@check
def adamw_steps() -> Iterator[Comparison]:
    """The parameter and both running means, with the usual betas and eps, then with others."""
    yield from five_steps("")
    yield from five_steps(", other betas", betas=(0.75, 0.875))
    yield from five_steps(", other eps", eps=0.125)


def five_steps(name: str, **others: Any) -> Iterator[Comparison]:
    """Five steps against ``torch.optim.AdamW``."""
    reference = nn.Parameter(normal(3, 4).detach())
    library = torch.optim.AdamW([reference], lr=0.05, weight_decay=0.3, **others)
    value, m, v = normal(3, 4).detach(), torch.zeros(3, 4).double(), torch.zeros(3, 4).double()
    for step in range(1, 6):
        gradient = normal(3, 4, seed=step).detach()
        reference.grad = gradient.clone()
        library.step()
        value, m, v = loop.adamw_step(value, gradient, m, v, step, 0.05, 0.3, **others)
        state = library.state[reference]
        yield compare(f"parameter after step {step}{name}", value, reference.detach(), PIECE)
        yield compare(f"m after step {step}{name}", m, state["exp_avg"], PIECE)
        yield compare(f"v after step {step}{name}", v, state["exp_avg_sq"], PIECE)


@check
def fit_steps() -> Iterator[Comparison]:
    """Five steps of ``fit``, with micro-batches of different sizes, against torch's tools on whole
    batches.
    """
    x, y = normal(12, 3, seed=1).detach(), normal(12, 1, seed=2).detach()
    batches = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11], [3, 1], [7, 2, 9, 4, 0]]

    def loss(model: nn.Module, rows: list[int]) -> Tensor:
        return (model(x[rows]) - y[rows]).pow(2).mean()

    def prepared() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = randomised(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        groups = [
            {"params": list(model[0].parameters())},
            {"params": list(model[2].parameters()), "lr": 0.3},
        ]
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.5)

    def schedule(step: int) -> float:
        return (0.0, 0.5, 1.0, 0.75, 0.5, 0.25)[step]

    # a clipped gradient is 1e-6 / |g| shorter by torch than by the formula: both are right
    for clip, bound in ((np.inf, PIECE), (0.25, 1e-5)):
        model, optimizer = prepared()
        expected = losses_of_steps(model, loss, batches, optimizer, schedule, clip)
        fitted, optimizer = prepared()
        options = {
            "clip": clip,
            "micro_batches": lambda rows: [rows[:2], rows[2:]] if rows[2:] else [rows],
        }
        steps = [*loop.fit(fitted, loss, batches[:3], optimizer, schedule, **options)]
        for group, rate in zip(optimizer.param_groups, (0.1, 0.3), strict=True):
            group["lr"] = (
                rate  # whoever does not keep the first rates in the optimizer reads them here
            )
        steps += loop.fit(fitted, loss, batches[3:], optimizer, schedule, start=3, **options)
        name = "" if clip == np.inf else ", clipped"
        values = torch.tensor([step.loss for step in steps], dtype=torch.float64)
        yield compare(f"5 losses{name}", values, expected, bound)
        for (key, ours), theirs in zip(fitted.named_parameters(), model.parameters(), strict=True):
            yield compare(f"{key} after 5 steps{name}", ours, theirs, bound)
    before = [parameter.detach().clone() for parameter in fitted.parameters()]
    with contextlib.suppress(loop.Diverged):
        list(
            loop.fit(
                fitted,
                lambda model, rows: loss(model, rows) * np.nan,
                batches,
                optimizer,
                schedule,
                start=1,
            )
        )
    for (key, ours), theirs in zip(fitted.named_parameters(), before, strict=True):
        yield compare(f"{key} after a loss of NaN", ours, theirs, PIECE)


# ------------------------------------------------------------------------------------------- search


@check
def top_k() -> Iterator[Comparison]:
    """All cosines by torch, sorted by Python; two vectors of the corpus are multiples of others."""
    queries, corpus = normal(4, 5).detach(), normal(9, 5, seed=1).detach()
    corpus[[8, 5]] = corpus[[1, 3]] * torch.tensor([[2.0], [4.0]]).double()
    cosines = (
        nn.functional.cosine_similarity(queries[:, None], corpus[None], dim=-1).float().tolist()
    )
    expected = [sorted(range(9), key=lambda j, row=row: (-row[j], j))[:6] for row in cosines]
    scores, indices = (torch.tensor(np.array(found)) for found in dense.top_k(queries, corpus, 6))
    best = torch.tensor(
        [[row[j] for j in chosen] for row, chosen in zip(cosines, expected, strict=True)]
    )
    # rounded to float32 on both sides: one unit in the last place is 6e-8
    yield compare("scores of the best 6", scores, best, 1e-7)
    yield same("indices of the best 6", indices, expected)
    # 64 cosines that are 1e-9 apart: float32 cannot tell them apart, float64 can
    angles = torch.pi / 2 - 1e-9 * torch.arange(1.0, 65.0).double()  # (64,)
    turned = torch.linalg.qr(normal(8, 8, seed=2).detach()).Q  # (8, 8)
    close = angles.cos()[:, None] * turned[0] + angles.sin()[:, None] * turned[1]  # (64, 8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    indices = torch.tensor(np.array(dense.top_k(turned[:1], close[order], 64)[1]))
    yield fact("cosines 1e-9 apart are in order", order[indices[0]].equal(torch.arange(63, -1, -1)))


# ------------------------------------------------------------------------------------------
# quantised


def eighths(rows: int, columns: int, seed: int) -> np.ndarray:
    """Random multiples of 1/8 between -6 and 6, float32: every step below is exact."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-48, 49, (rows, columns), generator=generator) / 8).numpy()


@check
def int8_codes() -> Iterator[Comparison]:
    """Whole steps counted in Python; some values are outside the ranges, one column's range is
    empty.
    """
    x, steps = eighths(9, 6, seed=1), [1 / 32, 1 / 64, 1 / 32, 1 / 4, 1.0, 0.0]
    low = [-4.0, -1.5, -3.25, -60.0, -2.0, 1.0]
    ranges = np.array(
        [low, [a + 255 * step for a, step in zip(low, steps, strict=True)]], dtype=np.float32
    )
    steps = [*steps[:-1], 1.0]
    levels = [
        [min(max((v - a) // s, 0), 255) for v, a, s in zip(row, low, steps, strict=True)]
        for row in x.tolist()
    ]
    codes = quantized.to_int8(x, ranges)
    yield same("int8 codes", codes, np.array(levels) - 128)
    middle = [
        [a + (q + 0.5) * s for q, a, s in zip(row[:5], low, steps, strict=False)] for row in levels
    ]
    yield same("vectors of int8 codes", quantized.from_int8(codes[:, :5], ranges[:, :5]), middle)


@check
def bits_of_vectors() -> Iterator[Comparison]:
    """Bytes from strings of 0 and 1: of 11 columns, padded at the end, and of 16."""
    for width in (11, 16):
        x = eighths(7, width, seed=2)
        x[0], x[1, ::2] = 0, 0
        rows = [
            "".join("1" if value > 0 else "0" for value in row).ljust(16, "0") for row in x.tolist()
        ]
        yield same(
            f"bits of {width} columns",
            quantized.to_bits(x),
            [[int(r[:8], 2), int(r[8:], 2)] for r in rows],
        )


@check
def hamming_distances() -> Iterator[Comparison]:
    """Ones counted in Python's integers, for rows of 5 and of 16 bytes; then the nearest, ties by
    index.
    """
    for width in (5, 16):
        generator = np.random.default_rng(width)
        a, b = (generator.integers(0, 256, (n, width), dtype=np.uint8) for n in (4, 9))
        numbers = [[int.from_bytes(row.tobytes(), "big") for row in side] for side in (a, b)]
        expected = [[(x ^ y).bit_count() for y in numbers[1]] for x in numbers[0]]
        yield same(f"Hamming distances of {width} bytes", quantized.hamming(a, b), expected)
    x, y = (
        eighths(3, 8, seed=3),
        eighths(40, 8, seed=4),
    )  # 9 possible distances among 40 rows: many ties
    differ = [
        [sum((p > 0) != (q > 0) for p, q in zip(a, b, strict=True)) for b in y.tolist()]
        for a in x.tolist()
    ]
    order = [sorted(range(40), key=lambda j, row=row: (row[j], j))[:12] for row in differ]
    best = [[row[j] for j in chosen] for row, chosen in zip(differ, order, strict=True)]
    distances, indices = quantized.hamming_top_k(x, quantized.to_bits(y), 12)
    yield same("distances of the nearest 12", distances, best)
    yield same("indices of the nearest 12", indices, order)


@check
def rescored() -> Iterator[Comparison]:
    """Cosines by torch, sorted by Python; two candidates are multiples of others, and come
    first.
    """
    queries, corpus = normal(4, 6).detach(), normal(30, 6, seed=1).detach()
    generator = torch.Generator().manual_seed(2)
    candidates = torch.stack(
        [torch.randperm(30, generator=generator)[:12] for _ in range(4)]
    )  # (4, 12)
    vectors = corpus[candidates]  # (4, 12, 6)
    vectors[:, 0], vectors[:, 1] = 2 * queries, 4 * queries
    cosines = nn.functional.cosine_similarity(queries[:, None], vectors, dim=-1).float().tolist()
    named = [
        dict(zip(row.tolist(), scores, strict=True))
        for row, scores in zip(candidates, cosines, strict=True)
    ]
    expected = [sorted(row, key=lambda i, row=row: (-row[i], i))[:5] for row in named]
    arrays = queries.numpy(), candidates.numpy(), vectors.numpy()
    scores, indices = (torch.tensor(np.array(found)) for found in quantized.rescore(*arrays, 5))
    best = torch.tensor(
        [[row[i] for i in chosen] for row, chosen in zip(named, expected, strict=True)]
    )
    yield compare("scores of the best 5", scores, best, 1e-7)  # as in top_k
    yield same("candidates of the best 5", indices, expected)


# ------------------------------------------------------------------------------------------- words
# alone

DOCUMENTS = (
    "remove every member of the archive",
    "read the archive and read it again",
    "open a file",
    "the file the file the end",
    "close",
    "a b a b a b a",
)
QUERIES = ("read the archive", "file", "the the end", "a missing word", "close")
BM25 = {  # k1 and b -> the scores (Q, N) of bm25s 0.3.16, method "lucene", in float64
    (1.2, 0.75): (
        (0.7238515116559259, 1.5383742645724774, 0.0, 0.4747583428492776, 0.0, 0.0),
        (0.0, 0.0, 0.5595757702071512, 0.6092422586870758, 0.0, 0.0),
        (0.5824766223192818, 0.5415212348124573, 0.0, 1.5967625012225675, 0.0, 0.0),
        (0.0, 0.0, 0.5595757702071512, 0.0, 0.0, 0.7407333936555094),
        (0.0, 0.0, 0.0, 0.0, 1.0408412438832086, 0.0),
    ),
    (0.5, 0.3): (
        (1.1259912403536623, 2.307810250894513, 0.0, 0.589076923988622, 0.0, 0.0),
        (0.0, 0.0, 0.715013484153582, 0.8139283930285833, 0.0, 0.0),
        (0.9060747458299938, 0.8886502314871093, 0.0, 2.1849806721257075, 0.0, 0.0),
        (0.0, 0.0, 0.715013484153582, 0.0, 0.0, 0.9031749273518931),
        (0.0, 0.0, 0.0, 0.0, 1.1162645224254704, 0.0),
    ),
}


@check
def bm25_scores() -> Iterator[Comparison]:
    """Five queries and six documents, with the usual k1 and b and with others, against another
    library.
    """
    queries, documents = ([text.split() for text in texts] for texts in (QUERIES, DOCUMENTS))
    for (k1, b), expected in BM25.items():
        found = bm25.bm25_scores(queries, documents, k1, b)
        yield same(f"bm25, k1 {k1}, b {b}", found, expected)


SCORES = (
    (0.3, 0.9, 0.3, -1.0, 0.9, 0.0),
    (5.0, 1.0, 2.0, 4.0, 3.0, 6.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)
RANKS = (
    (3, 1, 4, 6, 2, 5),
    (2, 6, 5, 3, 4, 1),
    (1, 2, 3, 4, 5, 6),
)  # scipy 1.17, rankdata(-scores, "ordinal", axis=1)


@check
def reciprocal_ranks() -> Iterator[Comparison]:
    """Three queries and six documents with ties, for two k, against another library's ranks."""
    for k in (60, 1):
        expected = 1 / (k + np.array(RANKS, dtype=np.float64))
        yield same(
            f"reciprocal ranks, k {k}", fusion.reciprocal_ranks(np.array(SCORES), k), expected
        )


@check
def walks() -> Iterator[Comparison]:
    """Every node linked to every other, and a ring that leads to all: the best by torch. Two hills:
    by hand.
    """
    vectors, query = normal(20, 6).detach(), normal(6, seed=1).detach()
    best = (vectors @ query).sort(descending=True).indices.tolist()
    arrays = vectors.numpy(), query.numpy()
    everywhere = [[other for other in range(20) if other != node] for node in range(20)]
    ring = [[(node + 1) % 20, (node - 1) % 20] for node in range(20)]
    for name, links, width in (("all links", everywhere, 5), ("a ring, width 20", ring, 20)):
        nodes, read = graph.walk(arrays[0], links, arrays[1], 3, width)
        yield same(f"{name}: nodes", padded(nodes, 20).tolist(), padded(best[:width], 20).tolist())
        yield same(f"{name}: read", [read], [20])
    hills, one = np.array([[5.0], [3.0], [1.0], [4.0], [9.0]]), np.array([1.0])
    line = [[1], [0, 2], [1, 3], [2, 4], [3]]
    for width, best, count in ((1, [0], 2), (2, [0, 1], 3), (3, [4, 0, 3], 5)):  # by hand
        nodes, read = graph.walk(hills, line, one, 0, width)
        yield same(
            f"hills, width {width}: nodes", padded(nodes, 5).tolist(), padded(best, 5).tolist()
        )
        yield same(f"hills, width {width}: read", [read], [count])
    fork, links = np.array([[5.0], [6.0], [5.5], [9.0], [1.0]]), [[1, 2], [3], [4], [], []]
    nodes, read = graph.walk(
        fork, links, one, 0, 2
    )  # by hand: 9 is found by way of 6, so nobody visits 5.5
    yield same("a fork: nodes", padded(nodes, 5).tolist(), padded([3, 1], 5).tolist())
    yield same("a fork: read", [read], [4])
