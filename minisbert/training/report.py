"""What a run tells people: its plan before the training, a table of scores after it."""

from minisbert.evaluation.model_scores import Scores
from minisbert.system.console import say
from minisbert.training.objectives.base import Objective
from minisbert.training.settings import RunSettings


def describe(options: RunSettings, objective: Objective, counts: tuple[int, int], total: int, precision: str) -> None:
    """A few lines about the run that begins. ``counts``: all parameters, and those that are not frozen."""
    encoder, (parameters, trainable) = objective.encoder, counts
    size = f"{parameters:,} parameters"
    if trainable < parameters:
        size += f" ({trainable:,} trainable)"
    unused = sum(parameter.numel() for parameter in objective.unused_parameters())
    if unused:
        size += f", {unused:,} of them not used"
    say(f"model  {options.model}, {encoder.pooling_mode} pooling, {size}, {encoder.device}")
    say("data   " + ", ".join(f"{split} {note}" for split, note in objective.notes.items()))
    say(f"plan   {total} steps of {options.batch_size} rows, AdamW {options.lr:g}, {precision}, seed {options.seed}")
    truncated = sum(encoded.truncated for encoded in objective.encoded)
    if truncated:
        say(encoder.tokenizer.cut_message(truncated, sum(map(len, objective.encoded))))


def print_table(before: dict[str, Scores], after: dict[str, Scores]) -> None:
    """Every metric on dev and test, before training and of the best model; the loss is in ``results.json``."""
    print(f"{'x 100':<16}{'dev':>17}{'test':>19}")
    for metric in before["dev"]:
        if metric == "loss":
            continue
        shown = []
        for split in ("dev", "test"):
            first, last = before[split], after[split]
            # test may have no alike pairs for alignment, and no qrels for a search
            shown.append(f"{100 * first[metric]:.2f} -> {100 * last[metric]:.2f}" if metric in first else "")
        print(f"{metric:<16}{shown[0]:>17}{shown[1]:>19}".rstrip())
