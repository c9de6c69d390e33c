"""The capstone: all of the learner's pieces that pass, together inside the book, with the real weights.

Grading looks at one piece at a time. Here everything runs on the learner's code at once: the ten-step training trace,
all-MiniLM-L6-v2 layer by layer next to the reference, and the Spearman correlation on the STS Benchmark.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from lessons.by_hand.adamw import AdamW
from lessons.grader import sandbox
from lessons.grader.pieces import PIECES, ROOT, mine, pieces_of
from minisbert.checkpoints.layout import find_model
from minisbert.core import InputError, loop, metrics, tokenizer
from minisbert.core.encoder import SentenceEncoder, cosine
from minisbert.data.datasets import load_scored_pairs
from minisbert.diagnosis.planting import replaced
from minisbert.system.console import run_command, say
from minisbert.system.progress import Bar, Progress
from tests.checks import CHECKS
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, compare, golden

MODEL = "all-MiniLM-L6-v2"
PUBLISHED = 82.03  # Spearman x 100 on the STS Benchmark's test split, zero-shot
WORDS = ("tokenizer.split_words", "tokenizer.word_pieces")  # the encoder itself uses the library's
TOGETHER = 64  # sentences that are encoded between two updates of the progress line


def graft(pairs: int | None) -> bool:
    """Grade, then run what passes in a separate process. Returns whether everything equals the reference."""
    if pairs is not None and pairs < 2:
        raise InputError(f"--pairs {pairs}: a correlation needs at least 2")
    results = []
    for lesson in Bar(dict.fromkeys(piece.lesson for piece in PIECES.values()), desc="grading", unit=" lessons"):
        if mine(lesson).is_file():
            results += sandbox.grade(lesson)
    passed = [result.master for result in results if result.passed]
    left = [f"{result.master} ({result.status})" for result in results if not result.passed]
    if left := [text for text in left if not text.endswith("(unwritten)")]:
        say(f"left out, the package's are used instead: {', '.join(left)}")
    if not passed:
        raise InputError("no piece passes yet: python -m lessons.check start 01")
    command = [sys.executable, "-m", "lessons.grader.graft", str(pairs or 0), *passed]
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        sys.exit(2)  # the process has printed why
    return done.returncode == 0


# ------------------------------------------------------------------------------- inside the package


@contextmanager
def grafted(functions: dict[str, Callable], spaces: dict[int, dict[str, Any]] | None = None) -> Iterator[None]:
    """While this lasts the book computes with these functions, by master's name; ``spaces`` is what a file defines."""
    originals = {master: PIECES[master].original for master in functions}  # all of them before any is replaced
    with ExitStack() as stack:
        for master, original in originals.items():
            piece = PIECES[master]
            stack.enter_context(replaced(original, functions[master], piece.owner, piece.path[-1]))
        for master in functions:
            stack.enter_context(sandbox.lent((spaces or {}).get(PIECES[master].lesson, {}), PIECES[master]))
        if "loop.adamw_step" in functions:  # torch's optimizer would not call it
            stack.enter_context(replaced(loop.adamw, AdamW, loop, "adamw"))
        yield


def learners_functions(masters: Sequence[str], calls: Counter) -> tuple[dict[str, Callable], dict[int, dict]]:
    """The learner's functions by master's name, their calls counted, and what each lesson's file defines.

    If one calls another of its lesson it gets the learner's as well, or, if that is not among them, the package's.
    """
    functions: dict[str, Callable] = {}
    spaces: dict[int, dict[str, Any]] = {}
    for lesson in dict.fromkeys(PIECES[master].lesson for master in masters):
        path = mine(lesson)
        space = sandbox.load(path, path.read_text(encoding="utf-8-sig"), pieces_of(lesson))
        spaces[lesson] = dict(space)
        for piece in pieces_of(lesson):
            function = piece.original
            if piece.master in masters:
                written, problem = sandbox.find(space, piece, path)
                if written is None:
                    raise InputError(problem)
                function = functions[piece.master] = counted(written, piece.master, calls)
            if len(piece.path) == 1:
                space[piece.path[0]] = function
    return functions, spaces


def counted(function: Callable, master: str, calls: Counter) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[master] += 1
        return function(*args, **kwargs)

    return call


# -------------------------------------------------------------------------------- what is computed


def loss_trace() -> bool:
    """Ten steps of training a tiny model, compared with the reference's."""
    found = list(CHECKS["training_trace"]())
    losses = next(result for result in found if result.name == "10 losses")
    print(f"training, 10 steps: loss {losses.ours[0]:.6f} to {losses.ours[-1]:.6f}")
    parts = {"losses": [losses], "parameters afterwards": [result for result in found if "after" in result.name]}
    good = True
    for name, part in parts.items():
        good &= tell(name, max(result.largest for result in part), part[0].tolerance)
    return good


@torch.no_grad()
def minilm(encoder: SentenceEncoder) -> bool:
    """Each layer's hidden states at real tokens, and the vectors, compared with the reference's."""
    reference = golden("minilm")
    real, good = reference["mask"], True
    print(f"{MODEL}, float32")
    for i, state in enumerate(encoder.bert.hidden_states(reference["ids"], real)):
        result = compare("", state[real], reference[f"hidden.{i}"][real], MINILM_HIDDEN)
        good &= tell(f"layer {i}" if i else "embeddings", result.largest, MINILM_HIDDEN)
    result = compare("", encoder(reference["ids"], real), reference["vectors"], MINILM_VECTOR)
    return tell("vectors", result.largest, MINILM_VECTOR) and good


def sts_benchmark(encoder: SentenceEncoder, count: int | None, own_words: bool) -> bool:
    """Spearman on the first ``count`` test pairs; with the learner's own tokenizer the ids are compared as well."""
    pairs = load_scored_pairs("stsb", "test")[:count]
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    ids = encoder.tokenizer.encode(texts).ids
    print(f"STS Benchmark, test, {len(pairs):,} pairs")
    good = True
    if own_words:
        vocabulary = encoder.tokenizer.backend.get_vocab()
        equal = sum(tokenizer.token_ids(text, vocabulary) == row for text, row in zip(texts, ids, strict=True))
        good = equal == len(texts)
        print(f"  {'ok  ' if good else 'FAIL'}  ids of {equal:,} of {len(texts):,} sentences equal the library's")
    order = sorted(range(len(texts)), key=lambda row: len(ids[row]))
    vectors = torch.empty(len(texts), encoder.bert.config.hidden_size)
    with Progress(len(texts)) as line:
        line.expect(len(texts), sum(map(len, ids)))
        for rows in (order[start : start + TOGETHER] for start in range(0, len(order), TOGETHER)):
            vectors[rows] = torch.from_numpy(encoder.encode([texts[row] for row in rows]))
            line.update(sum(len(ids[row]) for row in rows))
    spearman = 100 * metrics.spearman(cosine(*vectors.chunk(2)), [pair.score for pair in pairs])
    whole = count is None or count >= 1379
    right = not whole or abs(spearman - PUBLISHED) < 0.01
    published = f", published {PUBLISHED}" if whole else ""
    print(f"  {'ok  ' if right else 'FAIL'}  Spearman x 100: {spearman:.2f}{published}")
    return right and good


def tell(name: str, largest: float, tolerance: float) -> bool:
    good = largest <= tolerance
    print(f"  {'ok  ' if good else 'FAIL'}  {name:<24}largest difference {largest:.1e}, tolerance {tolerance:g}")
    return good


def main(arguments: Sequence[str]) -> None:
    count, masters = int(arguments[0]) or None, arguments[1:]
    calls: Counter[str] = Counter()
    with grafted(*learners_functions(masters, calls)):
        good = loss_trace()
        encoder = SentenceEncoder.load(find_model(MODEL))
        good &= minilm(encoder)
        good &= sts_benchmark(encoder, count, not {*masters}.isdisjoint(WORDS))
    print(f"computed with {len(masters)} pieces of yours, of {len(PIECES)}")
    for master in masters:
        times = f"called {calls[master]:,} times" if calls[master] else "passes; nothing here needs it"
        print(f"  {master:<40}{times}")
    if not good:
        sys.stdout.flush()
        sys.exit(1)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
