"""``python -m lessons.check mine``: the learner's pieces and the book as one file, running.

What passes alone may fail with the others or with real weights. Then it is named, and the book's
takes its place.
"""

import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch

from lessons.by_hand.adamw import AdamW
from lessons.course import TINY, figure, heatmap, largest_difference
from lessons.grader.assembly import FILE, IN_THE_BOOK, assemble, difference, owners
from lessons.grader.classroom import graded_lesson
from lessons.grader.pieces import MINE, PIECES, mine
from lessons.grader.result import Progress
from lessons.mistakes.planting import replaced
from minisbert import SentenceEncoder
from minisbert.checkpoints.layout import find_model
from minisbert.core import loop
from minisbert.data.rows import SPLITS, load_scored_pairs
from minisbert.system.console import say
from minisbert.system.files import atomic_file
from minisbert.system.progress import Bar
from tests.parity import MINILM_HIDDEN, MINILM_VECTOR, TRACE, golden

RUN = "python -m lessons.check"
MODEL = "all-MiniLM-L6-v2"
PUBLISHED = 82.03  # Spearman x 100 on the STS Benchmark's test split, zero-shot
SENTENCES = [
    "A man is playing a guitar.",
    "A person plays an instrument.",
    "A man is not playing a guitar.",
]
SENTENCE = "The animal did not cross the street because it was too tired."
SHADES = " ░▒▓█"
PART = 256  # texts that are encoded between two looks at the clock


class Finding(NamedTuple):
    """One line of what is shown; ``holds`` is False if it differs from the reference."""

    text: str
    holds: bool | None = None
    score: float = 0.0


Findings = Iterator[Finding]


def close(name: str, largest: float, tolerance: float) -> Finding:
    return Finding(
        f"{name:<24}largest difference {largest:.1e}, tolerance {tolerance:g}", largest <= tolerance
    )


# ---------------------------------------------------------------------------- what there is to see


def matrix(book: Any, sentences: Sequence[str]) -> Findings:
    """Cosines of the reader's own sentences."""
    sentences = sentences or SENTENCES
    encoder = book.SentenceEncoder.load(find_model(MODEL))
    vectors = encoder.encode(sentences)
    for number, (text, row) in enumerate(
        zip(sentences, encoder.similarity(vectors, vectors), strict=True), start=1
    ):
        yield Finding(f"{number:>3} {' '.join(f'{value:5.2f}' for value in row)}  {text}")


def ids(book: Any, _: Sequence[str]) -> Findings:
    """Ids of all sentences of STS-B by ``split_words`` and ``word_pieces``, and the library's."""
    texts: list[str] = []
    for split in SPLITS:
        for pair in load_scored_pairs("stsb", split):
            texts += pair.texts
    tokenizer = book.Tokenizer.load(find_model(MODEL), 512)
    vocabulary = tokenizer.backend.get_vocab()
    rows = zip(Bar(texts, desc="sentences"), tokenizer.encode(texts).ids, strict=True)
    different = [text for text, row in rows if book.token_ids(text, vocabulary) != row]
    equal = (
        f"ids of {len(texts) - len(different):,} of {len(texts):,} sentences equal the library's"
    )
    yield Finding(
        equal + "".join(f"; not those of {text!r}" for text in different[:1]), not different
    )


@torch.no_grad()
def layers(book: Any, _: Sequence[str]) -> Findings:
    """Each layer's hidden states at real tokens, and the vectors, beside the reference's."""
    encoder = book.SentenceEncoder.load(find_model(MODEL))
    reference = golden("minilm")
    numbers = sum(parameter.numel() for parameter in encoder.parameters())
    yield Finding(f"{MODEL}, float32: {numbers:,} numbers have found their places")
    real = reference["mask"]
    for i, state in enumerate(encoder.bert.hidden_states(reference["ids"], real)):
        largest = largest_difference(state[real], reference[f"hidden.{i}"][real])
        yield close(f"layer {i}" if i else "embeddings", largest, MINILM_HIDDEN)
    vectors = encoder(reference["ids"], real)
    yield close("vectors", largest_difference(vectors, reference["vectors"]), MINILM_VECTOR)


def head(book: Any, sentences: Sequence[str]) -> Findings:
    """Where the tokens of a sentence look, in lesson 05's head: from the pronoun to its noun."""
    encoder = book.SentenceEncoder.load(find_model(MODEL))
    row = encoder.tokenizer.encode([sentences[0] if sentences else SENTENCE]).ids[0]
    tokens = encoder.tokenizer.tokens(row)
    states = {}
    book.FUSED = False  # the library's operation keeps no probabilities
    with torch.no_grad():
        encoder.bert(torch.tensor([row]), trace=states)
    shares = states["layers.3.attention"][0, 1]  # (T, T)
    about = "a row for each token, two signs for each that it looks at, in the same order"
    yield Finding(f"layer 3, head 1: {about}:")
    yield Finding(
        "none below .05, ░ to .30, ▒ to .55, ▓ to .80, █ above; then the largest share, and whose "
        "it is"
    )
    for token, values in zip(tokens, shares.tolist(), strict=True):
        shades = "".join(2 * SHADES[min(4, round(4 * value + 0.3))] for value in values)
        yield Finding(f"{token:>14} {shades} {max(values):.2f} {tokens[values.index(max(values))]}")

    def draw(plt: Any) -> Any:
        drawn, axes = plt.subplots(figsize=(6, 5.5), layout="constrained")
        heatmap(axes, shares, tokens, tokens)
        return drawn

    figure("your_attention", draw)


def vector(book: Any, sentences: Sequence[str]) -> Findings:
    """A sentence's vector, and the package's."""
    texts = sentences or SENTENCES
    ours, theirs = (
        kind.load(find_model(MODEL)).encode(texts)
        for kind in (book.SentenceEncoder, SentenceEncoder)
    )
    for text, *both in zip(texts, ours, theirs, strict=True):
        yield Finding(text)
        for name, row in zip(("yours", "MiniLM's"), both, strict=True):
            first = " ".join(f"{value:8.5f}" for value in row[:8])
            yield Finding(f"  {name:<10}{first} ... {len(row)} numbers")
    yield close("yours and MiniLM's", largest_difference(ours, theirs), MINILM_VECTOR)


def score(book: Any, encoder: Any, split: str) -> float:
    """Spearman x 100 on a split of the STS Benchmark."""
    pairs = load_scored_pairs("stsb", split)
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    parts = []
    for start in Bar(range(0, len(texts), PART), desc=split, unit=" parts"):
        parts.append(torch.from_numpy(encoder.encode(texts[start : start + PART])))
    u, v = torch.cat(parts).chunk(2)  # (N, D) each
    return 100 * book.spearman(book.cosine(u, v).numpy(), [pair.score for pair in pairs])


def spearman(book: Any, _: Sequence[str]) -> Findings:
    """The published number."""
    found = score(book, book.SentenceEncoder.load(find_model(MODEL)), "test")
    text = f"Spearman x 100 on the 1,379 test pairs: {found:.2f}, published {PUBLISHED}"
    yield Finding(text, abs(found - PUBLISHED) < 0.02, found)


def partners(book: Any, _: Sequence[str]) -> Findings:
    """Losses of pairs that mean the same, each text with its partner, and with somebody else's."""
    pairs = [pair for pair in load_scored_pairs("stsb", "test") if pair.score == 5][:32]
    encoder = book.SentenceEncoder.load(find_model(MODEL))
    u = torch.from_numpy(encoder.encode([pair.sentence1 for pair in pairs]))  # (N, D)
    v = torch.from_numpy(encoder.encode([pair.sentence2 for pair in pairs]))

    def cross_entropy(u: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Which of all texts is the partner? The cosines are the logits."""
        return book.softmax_cross_entropy_loss(book.cosine_matrix(u, other), torch.arange(len(u)))

    losses = {
        "cross-entropy": cross_entropy,
        "triplet": partial(book.triplet_loss, negative=v.roll(2, 0)),
        "multiple negatives": book.multiple_negatives_ranking_loss,
        "SimCSE": book.simcse_loss,
    }
    for name, loss in losses.items():
        right, wrong = (loss(u, other).item() for other in (v, v.roll(1, 0)))
        yield Finding(
            f"{name:<20}{right:7.4f} with its partner, {wrong:7.4f} with another's", right < wrong
        )


def losses(book: Any, _: Sequence[str]) -> Findings:
    """Ten steps of ``fit`` with a tiny model, its losses beside the reference's."""
    encoder = book.SentenceEncoder.load(TINY).double()
    reference = golden("trace")
    parameters = [
        parameter for name, parameter in encoder.named_parameters() if "pooler" not in name
    ]

    def loss(encoder: Any, rows: list[int]) -> torch.Tensor:
        u, v = (
            encoder(reference[f"{side}.ids"], reference[f"{side}.mask"])
            for side in ("first", "second")
        )
        return book.cosine_mse_loss(u, v, reference["targets"])

    schedule = partial(book.linear_schedule, warmup=3, total=12)
    with replaced(
        loop.adamw_step, book.adamw_step, loop, "adamw_step"
    ):  # ``adamw`` itself is PyTorch's own
        optimizer = AdamW(parameters, lr=1e-2, weight_decay=0.01)
        steps = list(
            book.fit(encoder, loss, [range(len(reference["targets"]))] * 10, optimizer, schedule)
        )
    values = torch.tensor([step.loss for step in steps], dtype=torch.float64)
    yield Finding(f"ten steps, loss {values[0]:.6f} to {values[-1]:.6f}")
    yield close("10 losses", largest_difference(values, reference["losses"]), TRACE)


def training(book: Any, _: Sequence[str]) -> Findings:
    """MiniLM trained on every second of the short pairs, for an epoch."""
    torch.manual_seed(0)
    encoder = book.SentenceEncoder.load(find_model(MODEL))
    before = score(book, encoder, "test")
    pairs = [pair for pair in load_scored_pairs("stsb", "train") if len(str(pair.texts)) < 140][::2]
    texts = book.TextColumns(
        encoder.tokenizer, [*zip(*(pair.texts for pair in pairs), strict=True)]
    )
    wanted = torch.tensor([pair.score / 5 for pair in pairs])

    def loss(encoder: Any, rows: Sequence[int]) -> torch.Tensor:
        return book.cosine_mse_loss(*encoder(*texts.batch(rows)).chunk(2), wanted[rows])

    batches = book.length_grouped_batches(texts.lengths, 32, torch.Generator().manual_seed(0))
    schedule = partial(book.linear_schedule, warmup=len(batches) // 10, total=len(batches))
    optimizer = book.adamw(encoder.parameters(), 4e-5)
    steps = book.fit(encoder.train(), loss, batches, optimizer, schedule, clip=1.0)
    for step in Bar(steps, total=len(batches), desc="training", unit=" steps"):
        if step.number % 20 == 0:
            yield Finding(f"step {step.number:>4} of {len(batches)}, loss {step.loss:.4f}")
    after = score(book, encoder.eval(), "test")
    yield Finding(
        f"Spearman x 100 on the 1,379 test pairs: {before:.2f} -> {after:.2f}",
        after > before,
        after,
    )


def everything(book: Any, _: Sequence[str]) -> Findings:
    """Layers, losses and score: what lesson 14 calls its three instruments."""
    for show in (layers, losses, spearman):
        yield from show(book, ())


# a lesson without one shows what the lesson before it does
SHOWS: dict[int, Callable[[Any, Sequence[str]], Findings]] = {
    0: matrix,
    2: ids,
    3: layers,
    5: head,
    6: layers,
}
SHOWS |= {8: vector, 9: spearman, 10: partners, 11: losses, 13: training, 14: everything}


# ------------------------------------------------------------------------------------- the command


def your_model(lesson: int | None, sentences: Sequence[str], chapter: str | None) -> bool:
    """Write the file, run it on what the lesson shows. Returns whether all equals the reference."""
    passed, failed = verdicts()
    named: set[str] = set()
    lesson = lesson or max(
        (PIECES[master].lesson for master in passed if PIECES[master].lesson < 15), default=1
    )
    show = SHOWS[max(number for number in SHOWS if number <= lesson)]
    while True:
        assembly = assemble(passed, failed)
        for master in [master for master in assembly.left_out if master not in named]:
            say(f"{master}: the book's is used instead of yours: {assembly.left_out[master]}")
            named.add(master)
        with atomic_file(MINE / FILE) as path:
            path.write_text(assembly.text, encoding="utf-8")
        if chapter:
            names = [chapter] if chapter in assembly.chapters else assembly.chapters
            found = "\n".join(filter(None, (difference(assembly, name) for name in names)))
            print(found or f"{', '.join(names)}: nothing here is yours yet")
            return True
        book = ModuleType("my_minisbert")
        try:
            exec(compile(assembly.text, FILE, "exec"), vars(book))
            print(f"{os.path.relpath(MINE / FILE)}: {show.__doc__}\n")
            good = True
            best = 0.0
            for text, holds, score in show(book, sentences):
                if holds is None:  # something to see, not a comparison
                    mark = ""
                elif holds:
                    mark = "ok    "
                else:
                    mark = "FAIL  "
                    good = False
                print(f"  {mark}{text}", flush=True)
                best = max(best, score)
            break
        except Exception as error:
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == FILE
            ]
            whose = [
                owner for line in lines if (owner := owners(assembly.text)[line - 1]) in passed
            ]
            if not whose:
                raise
            failed = assembly.left_out | {whose[-1]: f"{type(error).__name__}: {error}"}
            passed = [master for master in passed if master not in failed]
    code = [owner for owner in owners(assembly.text) if owner != "-"]
    own = Counter(filter(None, code))
    print()
    for name in dict.fromkeys(master.split(".")[0] for master in own):
        parts = {
            master.partition(".")[2]: lines
            for master, lines in own.items()
            if master.split(".")[0] == name
        }
        lines = [owner for owner in owners(assembly.chapters[name]) if owner != "-"]
        print(f"  {name:<10}{sum(parts.values()):>4} of {len(lines):>3}  {', '.join(parts)}")
    scored = f"they score {best:.2f}" if best else f"what they score: {RUN} mine 09"
    print(f"\n{own.total()} of {len(code):,} lines are yours; {scored}.")
    print(f"Where the published ones differ: {RUN} mine --diff; in one chapter only: --diff bert")
    return good


def verdicts() -> tuple[list[str], dict[str, str]]:
    """The pieces of the book that pass, and why others do not; new files are graded."""
    progress = Progress()
    passed: list[str] = []
    failed: dict[str, str] = {}
    for lesson in Bar(
        dict.fromkeys(piece.lesson for piece in IN_THE_BOOK.values()),
        desc="grading",
        unit=" lessons",
    ):
        pieces = [
            piece
            for piece in IN_THE_BOOK.values()
            if piece.lesson == lesson and mine(lesson).is_file()
        ]
        if any(
            progress.state(piece) not in ("passed", "failed", "refused", "unwritten")
            for piece in pieces
        ):
            progress.remember(graded_lesson(lesson))
        for piece in pieces:
            if progress.state(piece) == "passed":
                passed.append(piece.master)
            elif progress.state(piece) != "unwritten":
                failed[piece.master] = (
                    f"{progress.state(piece)}, {progress.results[piece.master].get('seen', '')}"
                )
    return passed, failed
