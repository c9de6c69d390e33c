"""Fine-tune a sentence encoder: the bare training loop, from the rows of a file to a table of scores.

    python -m minisbert.train                           all-MiniLM-L6-v2 on the STS Benchmark
    python -m minisbert.train --data pairs.csv --dev scored.csv --test others.csv --loss ranking --epochs 2
More objectives, recipes, resuming and several processes: minisbert train --help
"""

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from minisbert.core import InputError, heads, losses, metrics
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.data import datasets, formats
from minisbert.data.batches import MICRO_TOKENS, equal_parts, unique_batches
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import choose_dtype
from minisbert.system.progress import Bar


def read_rows(loss: str, data: str | None) -> tuple[list[Sequence[str]], torch.Tensor]:
    """The training texts in columns, and the rows' labels: scores for cosine, classes for softmax, else none."""
    if loss == "simcse":
        texts, _ = datasets.plain_texts(datasets.Sources(data=data))
        return [texts, texts], torch.empty(0)  # dropout makes two views of each text
    if loss in ("ranking", "triplet"):
        triplets, _ = datasets.triplet_rows(datasets.Sources(data=data), only_triplets=loss == "triplet")
        return list(zip(*triplets, strict=True)), torch.empty(0)
    if loss == "softmax":
        rows = datasets.load_labelled(data or "snli", formats.NLI).rows
        classes = formats.class_names(row.label for row in rows)
        labels = torch.tensor([classes.index(row.label) for row in rows])
    else:
        rows = datasets.scored_rows(datasets.Sources(data=data), splits=["train"])[0]["train"]
        labels = torch.tensor([row.score / 5 for row in rows])  # people's scores are 0 to 5
    return [[row.sentence1 for row in rows], [row.sentence2 for row in rows]], labels


def evaluate(encoder: SentenceEncoder, pairs: Sequence[formats.Row]) -> tuple[float, float]:
    """Pearson's and Spearman's correlation of the pairs' similarities with people's scores."""
    u, v = encoder.encode([pair.sentence1 for pair in pairs]), encoder.encode([pair.sentence2 for pair in pairs])
    similarities, scores = encoder.similarity_pairwise(u, v), [pair.score for pair in pairs]
    return metrics.pearson(similarities, scores), metrics.spearman(similarities, scores)


def train(options: argparse.Namespace) -> None:
    out = Path(options.out or f"runs/{options.loss}-{Path(options.model).name}", "model")
    if out.exists():
        raise InputError(f"{out} exists: name another folder with --out")
    torch.manual_seed(options.seed)  # dropout's, and that of a new head
    encoder = SentenceEncoder.load(options.model)
    dtype, _ = choose_dtype("auto", encoder.device)  # of the encoder's matrix products
    columns, labels = read_rows(options.loss, options.data)
    judged, notes = datasets.scored_rows(datasets.Sources(dev=options.dev, test=options.test), splits=["dev", "test"])
    texts, labels = TextColumns(encoder.tokenizer, columns), labels.to(encoder.device)
    print(f"{len(texts.lengths):,} training rows; dev {notes['dev']}, test {notes['test']}; {encoder.device}, {dtype}")
    softmax = options.loss == "softmax"
    head = heads.ConcatHead(encoder.width, outputs=int(labels.max()) + 1) if softmax else torch.nn.Identity()
    parameters = [*encoder.parameters(), *head.to(encoder.device).parameters()]  # the head is only for training

    def loss(model: torch.nn.Module, rows: Sequence[int]) -> torch.Tensor:
        ids, mask = (None if x is None else x.to(encoder.device) for x in texts.batch(rows))  # (n B, T): n columns
        vectors = encoder.unscaled if softmax else encoder
        u, v, *negatives = vectors(ids, mask, dtype).chunk(len(columns))  # type: ignore[arg-type]  # there are ids
        if options.loss == "cosine":
            return losses.cosine_mse_loss(u, v, labels[rows])
        if softmax:
            return losses.softmax_cross_entropy_loss(head(u, v), labels[rows])
        if options.loss == "triplet":
            return losses.triplet_loss(u, v, *negatives)
        if options.loss == "simcse":
            return losses.simcse_loss(u, v)
        return losses.multiple_negatives_ranking_loss(u, v, torch.cat(negatives) if negatives else None)

    draw, most = length_grouped_batches, MICRO_TOKENS if encoder.device.type == "cpu" else math.inf
    if options.loss in ("ranking", "simcse"):  # a batch is whole, and rows that share a text would be false negatives
        draw, most = partial(unique_batches, list(zip(*columns, strict=True))), math.inf
    parts = partial(equal_parts, lengths=texts.lengths, most=most)
    generator = torch.Generator().manual_seed(options.seed)
    epochs = [draw(texts.lengths, options.batch_size, generator) for _ in range(options.epochs)]
    batches = [batch for epoch in epochs for batch in epoch][: options.max_steps]
    before = {split: evaluate(encoder, pairs) for split, pairs in judged.items()}
    best, best_step = before["dev"], 0
    encoder.save(out)
    schedule = partial(linear_schedule, warmup=math.ceil(len(batches) / 10), total=len(batches))
    steps = fit(encoder.train(), loss, batches, adamw(parameters, options.lr), schedule, clip=1.0, micro_batches=parts)
    bar = Bar(steps, total=len(batches), unit=" steps")
    for step in bar:
        bar.set_postfix_str(f"loss {step.loss:.4f}", refresh=False)
        if step.number % len(epochs[0]) == 0 or step.number == len(batches):
            scores = evaluate(encoder, judged["dev"])
            bar.clear()
            print(f"step {step.number:5}  dev spearman {100 * scores[1]:.2f}")
            if scores[1] > best[1]:
                best, best_step = scores, step.number
                encoder.save(out)
    after = {"dev": best, "test": evaluate(SentenceEncoder.load(out), judged["test"])}
    print(f"\ntrained {len(batches)} steps; best by dev: step {best_step}, in {out}\nx 100{'dev':>23}{'test':>18}")
    for row, name in enumerate(("pearson", "spearman")):
        print(f"{name:10}", *(f"{100 * before[k][row]:7.2f} -> {100 * after[k][row]:.2f}" for k in before))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name, folder, or owner/name on the Hub")
    parser.add_argument("--data", help="training rows: a file, or a data set's name (default: stsb; snli for classes)")
    parser.add_argument("--dev", help="scored pairs that choose the best epoch (default: stsb's)")
    parser.add_argument("--test", help="scored pairs for the table at the end (default: stsb's)")
    parser.add_argument("--loss", default="cosine", choices=["cosine", "ranking", "triplet", "softmax", "simcse"])
    parser.add_argument("--lr", type=bounded(float, 0), default=2e-5, help="peak learning rate (default: 2e-5)")
    for name, least, default in (("epochs", 1, 1), ("batch-size", 1, 32), ("max-steps", 1, None), ("seed", 0, 42)):
        parser.add_argument(f"--{name}", type=bounded(int, least), default=default, help=f"default: {default}")
    parser.add_argument("--out", help="folder of the trained model (default: runs/LOSS-MODEL)")
    run_command(lambda: train(parser.parse_args()))
