"""What a training run says: before it, about its batches, and the table at its end."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minisbert.core import one_line
from minisbert.system.console import cut_message, say
from minisbert.system.devices import choose_dtype
from minisbert.system.progress import Bar
from minisbert.training import MODEL
from minisbert.training.base_loss import Loss, Plan, RowNetwork, commonest_text
from minisbert.training.distributed import warn_once
from minisbert.training.options import Settings
from minisbert.training.run_data import RunData
from minisbert.training.scores import Gain
from minisbert.training.starting_model import count_parameters, encoder_of
from minisbert.training.state import Progress

# What the table says of a score, in its row.
MEANINGS = {
    "accuracy@1": "queries whose first text is a right one",
    "recall@10": "right texts among the first ten",
    "mrr@10": "1 / rank of the first right text",
    "ndcg@10": "right texts near the top of ten",
    "map@100": "precision at each right text of a hundred",
}


def describe_run(settings: Settings, model: Any, data: RunData) -> None:
    """Say what is trained on which rows."""
    encoder = encoder_of(model)
    parameters, trainable = count_parameters(model)
    size = f"{parameters:,} parameters"
    if trainable < parameters:
        size += f" ({trainable:,} trainable)"
    dtype, reason = choose_dtype(settings.dtype, encoder.device)
    arithmetic = f"{str(dtype).removeprefix('torch.')} ({reason})"
    name = settings.from_nothing or settings.model
    say(f"model  {name}, {encoder.pooling_mode} pooling, {size}, {encoder.device}, {arithmetic}")
    for note in data.notes:
        say(note)


def describe_batches(
    loss: Loss, network: RowNetwork, rows: Sequence[tuple], plan: Plan, batch_size: int
) -> None:
    """Say if rows are in no batch, if most batches are too small, and if texts are cut."""
    if plan.unused:
        warn_once(unused_rows(loss, rows, plan.unused))

    # A few rows less are not worth a line.
    usual_size = statistics.median(len(batch) for batch in plan.batches)
    possible_size = min(batch_size, len(network.lengths))
    if loss.negatives_in_batch and 1.1 * usual_size < possible_size:
        why = "rows that share a text never meet"
        warn_once(f"most batches have {usual_size:.0f} rows, not {batch_size}: {why}")

    texts = 0
    truncated = 0
    for column in network.encoded:
        texts += len(column)
        truncated += sum(column.truncated)
    if truncated:
        limit = encoder_of(network.model).tokenizer.limit
        warn_once(cut_message(limit, truncated, texts))


def bar_text(loss: float, progress: Progress) -> str:
    """Return what stands beside the bar: ``loss 0.0312, dev spearman 84.82``.

    A command prints each dev score on a line of its own. In Python those lines are of the level
    INFO, which few programs show: there the bar alone says how the training goes.
    """
    text = f"loss {loss:.4f}"
    if progress.history:
        score = progress.history[-1][progress.metric]
        text += f", dev {progress.metric} {100 * score:.2f}"
    return text


def unused_rows(loss: Loss, rows: Sequence[tuple], unused: Sequence[int]) -> str:
    """``96 of 200 rows are in no batch: they share the text 'contact us'``."""
    are = "are"
    if len(unused) == 1:
        are = "is"
    sentence = f"{len(unused):,} of {len(rows):,} rows {are} in no batch"
    if not loss.negatives_in_batch:
        return sentence
    text = commonest_text(rows, unused)
    if len(unused) == 1:
        return f"{sentence}: it shares the text {one_line(text)} with others"
    if all(text in rows[number] for number in unused):
        return f"{sentence}: they share the text {one_line(text)}"
    return f"{sentence}: they share texts with others, such as {one_line(text)}"


def describe_learning_rate(multiplier: Callable[[int], float], total: int) -> None:
    """Say if the learning rate is 0 in all steps, as in a single one of the warm-up."""
    if not any(multiplier(step) for step in range(total)):
        warn_once(
            f"{total} step with a learning rate of 0, because the warm-up begins there: the model "
            f"does not change; more epochs or a warmup of 0 train it"
        )


def say_end(progress: Progress, out: Path) -> None:
    """Say how long the training took, and which model was kept."""
    folder = out / MODEL
    print(f"\ntrained {progress.step} steps in {Bar.format_interval(progress.seconds)}")
    if not progress.history:
        print(f"no dev rows: the model of step {progress.step} is in {folder}")
        return
    score = f"{progress.metric} {100 * (progress.best or 0):.2f}"
    if progress.best_step:
        print(f"best on dev: step {progress.best_step}, {score}, in {folder}")
    else:
        advice = "try more --epochs, another --lr or --loss"
        print(f"no step was better on dev than the untrained model, {score}, in {folder}: {advice}")


def print_table(table: Mapping[str, tuple[dict, dict]], gain: Gain | None) -> None:
    """Print every score before training and of the best model, and what the gain is worth."""
    if not table:
        return
    header = f"{'x 100':<16}"
    for split in table:
        header += f"{split:>19}"
    print(f"\n{header}")
    for metric in metrics_of(table):
        line = f"{metric:<16}"
        for before, after in table.values():
            cell = ""
            if metric in before:
                cell = f"{100 * before[metric]:.2f} -> {100 * after[metric]:.2f}"
            line += f"{cell:>19}"
        meaning = MEANINGS.get(metric, "")
        print(f"{line}   {meaning}".rstrip())
    print()
    if "dev" in table:
        print("dev chose the step, so its scores are too good")
    if gain is not None:
        print(gain.sentence())


def metrics_of(table: Mapping[str, tuple[dict, dict]]) -> list[str]:
    """The names of all scores; test may have others than dev, whose rows it need not be like."""
    metrics: list[str] = []
    for before, _ in table.values():
        metrics += [metric for metric in before if metric not in metrics]
    return metrics
