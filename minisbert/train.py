"""Fine-tune a sentence encoder: the bare training loop, from rows of texts to a table of scores.

    python -m minisbert.train                                    all-MiniLM-L6-v2 on the STS Benchmark
    python -m minisbert.train --data pairs.csv --loss ranking    a tenth of your rows is held out and chooses the epoch
More objectives, recipes, resuming and several processes: minisbert train --help
"""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from minisbert.checkpoints.card import training_section
from minisbert.core import InputError, heads, losses, metrics
from minisbert.core.checks import check_one_of
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import Step, adamw, fit, linear_schedule
from minisbert.data.batches import unique_batches
from minisbert.data.datasets import bare_rows
from minisbert.evaluation.retrieval import retrieval_from_pairs, retrieval_scores
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import choose_dtype
from minisbert.system.progress import Bar
from minisbert.training.gradient_cache import MICRO_TOKENS, equal_parts

Scores = dict[str, float]
LOSSES = ("cosine", "ranking", "triplet", "softmax", "simcse")


def evaluate(encoder: SentenceEncoder, rows: Sequence[tuple]) -> Scores:
    """Correlate similarities with scores; without scores, search each anchor's positive. The last
    metric decides.
    """
    if isinstance(rows[0][-1], str):
        scores = retrieval_scores(encoder, retrieval_from_pairs(rows))
        return {name: scores[name] for name in ("accuracy@1", "ndcg@10")}
    first, second, wanted = zip(*rows, strict=True)
    similarities = encoder.similarity_pairwise(encoder.encode(first), encoder.encode(second))
    return {
        "pearson": metrics.pearson(similarities, wanted),
        "spearman": metrics.spearman(similarities, wanted),
    }


def train(
    encoder: SentenceEncoder,
    rows: Iterable,
    dev: Iterable | None = None,
    loss: str = "ranking",
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 2e-5,
    max_steps: int | None = None,
    seed: int = 42,
    callback: Callable[[Step, Scores | None], object] = lambda step, scores: None,
) -> SentenceEncoder:
    """Train an encoder in place and return it, with the weights that were best on ``dev``, or
    without it with the last.

    A row is (anchor, positive, negative, ...) for the loss "ranking", three texts for "triplet",
    (text, text, score in -1..1) for "cosine", (text, text, class from 0) for "softmax", (text,) for
    "simcse"; of a dictionary its values. ``dev``, scored pairs or anchors and positives, is
    evaluated as step 0 and after each epoch. ``callback`` gets each step and what ``evaluate`` gave
    after it, if anything; training ends when it returns something true.
    """
    check_one_of("loss", loss, LOSSES)
    torch.manual_seed(seed)  # dropout's, and that of a new head
    rows, dev = (
        [tuple(row.values()) if isinstance(row, dict) else row for row in some or ()]
        for some in (rows, dev)
    )
    columns, labels = list(zip(*rows, strict=True)), torch.empty(0)
    if loss in ("cosine", "softmax"):
        labels = torch.tensor(columns.pop(), device=encoder.device)
    if loss == "cosine" and not (labels.abs() <= 1).all():
        reached = f"{labels.abs().max():g}: divide them by the highest possible score"
        raise InputError(f"scores for the loss cosine must be in -1..1, and reach {reached}")
    if loss == "simcse":
        columns *= 2  # dropout makes two views of each text
    texts, (dtype, _) = (
        TextColumns(encoder.tokenizer, columns),
        choose_dtype("auto", encoder.device),
    )
    head = (
        heads.ConcatHead(encoder.width, outputs=int(labels.max()) + 1)
        if loss == "softmax"
        else torch.nn.Identity()
    )
    parameters = [
        *encoder.parameters(),
        *head.to(encoder.device).parameters(),
    ]  # the head is only for training

    def batch_loss(model: Any, batch: Sequence[int]) -> torch.Tensor:
        ids, mask = (
            None if x is None else x.to(model.device) for x in texts.batch(batch)
        )  # (n B, T): n columns
        vectors = model.unscaled if loss == "softmax" else model
        u, v, *negatives = vectors(ids, mask, dtype).chunk(len(columns))  # (B, D) each
        if loss == "cosine":
            return losses.cosine_mse_loss(u, v, labels[batch])
        if loss == "softmax":
            return losses.softmax_cross_entropy_loss(head(u, v), labels[batch])
        if loss == "triplet":
            return losses.triplet_loss(u, v, *negatives)
        if loss == "simcse":
            return losses.simcse_loss(u, v)
        return losses.multiple_negatives_ranking_loss(
            u, v, torch.cat(negatives) if negatives else None
        )

    draw, most = length_grouped_batches, MICRO_TOKENS if encoder.device.type == "cpu" else math.inf
    if loss in (
        "ranking",
        "simcse",
    ):  # a batch is whole, and rows that share a text would be false negatives
        draw, most = partial(unique_batches, list(zip(*columns, strict=True))), math.inf
    parts = partial(equal_parts, lengths=texts.lengths, most=most)
    generator = torch.Generator().manual_seed(seed)
    by_epoch = [draw(texts.lengths, batch_size, generator) for _ in range(epochs)]
    batches = [batch for epoch in by_epoch for batch in epoch][:max_steps]
    schedule = partial(linear_schedule, warmup=math.ceil(len(batches) / 10), total=len(batches))
    steps = fit(
        encoder.train(),
        batch_loss,
        batches,
        adamw(parameters, lr),
        schedule,
        clip=1.0,
        micro_batches=parts,
    )
    bar = Bar(steps, total=len(batches), unit=" steps")
    best, weights = -math.inf, encoder.state_dict()
    try:
        for step in chain([Step(0, [], math.nan, 0.0)], bar):
            scores = None
            if dev and (step.number % len(by_epoch[0]) == 0 or step.number == len(batches)):
                scores = evaluate(encoder, dev)
                if [*scores.values()][-1] >= best:  # of equal ones the later
                    best, weights = (
                        [*scores.values()][-1],
                        {k: x.clone() for k, x in encoder.state_dict().items()},
                    )
                bar.clear()
            bar.set_postfix_str(f"loss {step.loss:.4f}", refresh=False)
            if callback(step, scores):
                break
    finally:  # after Ctrl-C too
        encoder.load_state_dict(weights)
    return encoder.eval()


def main(options: argparse.Namespace) -> None:
    out = Path(options.out or f"runs/{options.loss}-{Path(options.model).name}", "model")
    if out.exists():
        raise InputError(f"{out} exists: name another folder with --out")
    out.parent.mkdir(parents=True, exist_ok=True)  # an error now, not after the training
    encoder = SentenceEncoder.load(options.model)
    rows, notes = bare_rows(
        options.loss, options.data, options.dev, options.test, options.seed, options.quotes
    )
    print("; ".join(f"{split} {note}" for split, note in notes.items()), encoder.device, sep="; ")
    untrained = evaluate(encoder, rows["test"]) if rows["test"] else {}
    history: list[tuple[float, int, Scores]] = []

    def report(step: Step, scores: Scores | None) -> None:
        if scores:
            history.append(([*scores.values()][-1], step.number, scores))
            print(
                f"step {step.number:5}  dev",
                *(f"{name} {100 * score:.2f}" for name, score in scores.items()),
            )

    chosen = {
        name: getattr(options, name)
        for name in ("loss", "epochs", "batch_size", "lr", "max_steps", "seed")
    }
    try:
        train(encoder, rows["train"], rows["dev"], callback=report, **chosen)
    finally:  # after Ctrl-C the best weights so far
        encoder.save(out)
        print(f"saved in {out}")
    table = {"test": (untrained, evaluate(encoder, rows["test"]))} if rows["test"] else {}
    if history:
        _, best, scores = max(history)
        print(
            f"best on dev: step {best}"
            + ("" if best else ", untrained: try more --epochs, another --lr or --loss")
        )
        table = {"dev": (history[0][2], scores), **table}
    command = shlex.join(["python", "-m", "minisbert.train", *sys.argv[1:]])
    encoder.write_card(out, training_section(command, notes, table))
    for split, (before, after) in table.items():
        print(
            f"{split:5}",
            "  ".join(
                f"{name} {100 * before[name]:.2f} -> {100 * after[name]:.2f}" for name in before
            ),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name, folder, or owner/name on the Hub"
    )
    parser.add_argument(
        "--data",
        help="training rows: a file, or a data set's name (default: stsb; snli for classes)",
    )
    parser.add_argument(
        "--dev", help="FILE, share, stsb or none (default: a tenth of your own rows; else stsb)"
    )
    parser.add_argument(
        "--test", help="rows for the table at the end (default: stsb's, or with --data FILE none)"
    )
    parser.add_argument(
        "--no-quotes",
        action="store_false",
        dest="quotes",
        help="quotation marks in a table are text",
    )
    parser.add_argument("--loss", default="cosine", choices=LOSSES)
    parser.add_argument(
        "--lr", type=bounded(float, 0), default=2e-5, help="peak learning rate (default: 2e-5)"
    )
    for name, least, default in (
        ("epochs", 1, 1),
        ("batch-size", 1, 32),
        ("max-steps", 1, None),
        ("seed", 0, 42),
    ):
        parser.add_argument(
            f"--{name}", type=bounded(int, least), default=default, help=f"default: {default}"
        )
    parser.add_argument("--out", help="folder of the trained model (default: runs/LOSS-MODEL)")
    run_command(lambda: main(parser.parse_args()))
