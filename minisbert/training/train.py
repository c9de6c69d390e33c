"""Train from options to results: set up, step through ``fit``, act between two steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import cast

import torch
from torch import nn

from minisbert.architectures.modern import AttentionHeads, Encoder
from minisbert.checkpoints.card import base_model_of
from minisbert.checkpoints.layout import SENTENCE_ENCODER, find_model, read_folder
from minisbert.core import InputError
from minisbert.core.bert import Attention
from minisbert.core.loop import Diverged, adamw, fit, linear_schedule
from minisbert.data.datasets import shared_rows, text_rows
from minisbert.evaluation.retrieval import Retrieval, load_retrieval_folder
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.models.pair_model import PairModel
from minisbert.models.pooling import Pooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import cut_message, say
from minisbert.system.devices import choose_dtype, save_training_memory, use_threads
from minisbert.training.distributed import ProcessGroup, lost_contact, process_group, say_once
from minisbert.training.gradient_cache import MICRO_TOKENS, Cut, cut, equal_parts, whole
from minisbert.training.losses import keep_layers, spread_layers
from minisbert.training.objectives import Objective, PairNetwork, VectorNetwork, sources_of
from minisbert.training.objectives.masked import new_model, train_vocabulary
from minisbert.training.run import Run
from minisbert.training.settings import OBJECTIVES, RunSettings, list_recipes, parse, reads
from minisbert.training.step_graphs import FlatAdamW, GraphedNetwork, use_graphs

Maker = Callable[[RunSettings, SentenceEncoder], Objective]
CACHED_TOKENS = (
    4096  # per process: a larger batch whose loss compares rows is cached, for a quarter more time
)


# ------------------------------------------------------------------------------------------- the
# model


def load_trainable(options: RunSettings, device: torch.device) -> SentenceEncoder:
    """Load or make the encoder to train, with the options' pooling, layers and dropout.

    Raises ``InputError`` as ``SentenceEncoder.load`` does, and for a kind of model that the
    objective does not train.
    """
    traits = OBJECTIVES[options.objective]
    if options.from_nothing:
        layers, width, words = map(int, options.from_nothing.split("x"))
        rows, _ = text_rows(sources_of(options))
        texts, dropout = (
            [text for (text,) in rows],
            0.1 if options.dropout is None else options.dropout,
        )
        return new_model(
            train_vocabulary(texts, words, options.max_length or 128), layers, width, dropout
        ).to(device)

    folder = read_folder(find_model(options.model))
    if traits.head and folder.classifier:
        # a CrossEncoder: its head is not in the way of another one
        encoder = PairModel.load(folder.path, device=device, max_length=options.max_length).encoder
        if traits.reads == "pooled" and options.pooling:
            pooling = Pooling(options.pooling, encoder.hidden_size).to(device)
            encoder = SentenceEncoder(encoder.tokenizer, encoder.bert, pooling).eval()
    else:
        if folder.model_class != SENTENCE_ENCODER:
            advice = "sentence-transformers trains it, and the result opens here"
            raise InputError(
                f"--model {options.model}: a {folder.model_class} is not trained here; {advice}"
            )
        kind = MaskedLanguageModel if traits.reads == "masked" else SentenceEncoder
        # where nothing is pooled a plain BERT needs no --pooling
        pooled = "cls" if traits.reads == "tokens" and folder.pooling is None else options.pooling
        encoder = kind.load(
            folder.path, pooling=pooled, device=device, max_seq_length=options.max_length
        )
    if traits.taught and options.student_layers is not None:
        layers = len(encoder.bert.layers)
        if options.student_layers > layers:
            raise InputError(
                f"--student-layers {options.student_layers}: {options.model} has {layers} layers"
            )
        encoder.bert = keep_layers(encoder.bert, spread_layers(layers, options.student_layers))
    if options.dropout is not None:
        set_dropout(encoder.bert, options.dropout)
    encoder.base_model = base_model_of(folder.path)  # of what was made around it too
    return encoder


def make_objective(
    options: RunSettings,
    encoder: SentenceEncoder,
    dtype: torch.dtype = torch.float32,
    maker: Maker | None = None,
) -> Objective:
    """Make the objective of ``options.objective``, or what ``maker`` makes in its place.

    ``dtype`` is that of the encoder's matrix products.
    """
    if maker is None:
        maker = resolve_name(f"minisbert.training.objectives.{OBJECTIVES[options.objective].maker}")
    objective = maker(options, encoder)
    objective.network.dtype = dtype
    if reads(options.objective, "matryoshka") and options.matryoshka:
        widths = list(map(int, options.matryoshka.split(",")))
        if widths[0] > encoder.width:
            raise InputError(
                f"--matryoshka {widths[0]}: the vectors of {options.model} have {encoder.width} "
                f"columns"
            )
        # the whole width always takes part, so that the untruncated vectors stay good
        objective.prefixes = [encoder.width] + [width for width in widths if width < encoder.width]
    if reads(options.objective, "retrieval") and options.retrieval:
        searches = load_retrieval_folder(options.retrieval)
        dev = cast(Retrieval, searches["dev"])  # which the folder must have
        objective.retrieval, objective.best = searches, "ndcg@10"
        objective.notes["retrieval"] = f"{options.retrieval} ({len(dev.queries):,} dev queries)"
    return objective


def set_dropout(bert: Encoder, rate: float) -> None:
    """Set the rate of all dropout in the encoder, for hidden states and attention, and in its
    ``config``.

    Raises ``ValueError`` for a rate outside [0, 1).
    """
    bert.config = replace(bert.config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    for module in bert.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, Attention | AttentionHeads):
            module.dropout = rate


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a module, and of those that are trained."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(count for count, _ in counts), sum(count for count, trained in counts if trained)


# --------------------------------------------------------------------------------------------- the
# run


def main(arguments: list[str] | None = None, maker: Maker | None = None) -> None:
    """Run ``minisbert train``; ``maker`` makes an objective in the place of the options' one."""
    save_training_memory()
    options = parse(arguments)
    if options.recipe == "list" and options.resume is None:
        print(list_recipes())
        return
    use_threads(options.threads)
    with process_group(options.device) as group:
        train_objective(options, group, maker)


def train_objective(options: RunSettings, group: ProcessGroup, maker: Maker | None = None) -> None:
    """Train as the options say; ``group`` is the processes of the run, usually one."""
    # before the model is made: new heads are drawn from it, later dropout
    torch.manual_seed(options.seed)
    dtype, reason = choose_dtype(options.dtype, group.device)
    objective, counts = prepare_objective(options, group.device, dtype, maker)
    graphs = use_graphs(options, objective, group.size)
    optimizer = adamw(
        objective.parameter_groups(options.lr, options.head_lr), options.lr, options.weight_decay
    )
    with Run(options, objective, optimizer, group) as run:
        # a resumed run has its own number by now
        if options.threads not in (None, torch.get_num_threads()):
            say_once(
                f"threads: {options.threads}, before {torch.get_num_threads()}: the last bits may "
                f"differ"
            )
            torch.set_num_threads(options.threads)
        if group.rank == 0:
            arithmetic = f"{str(dtype).removeprefix('torch.')} ({reason})"
            describe(run, counts, arithmetic + " in CUDA graphs" * graphs)
        try:
            step_through(run, options, graphs)
            run.save()  # so that a run interrupted in its last evaluation can be resumed
        except RuntimeError as error:
            # another process has gone; this one still has all that its state needs
            if lost_contact(error):
                run.stop()
            raise
        except Diverged:  # a resumed run would come to the same step
            run.stop("begin anew with --overwrite")
            raise
        except (KeyboardInterrupt, InputError, OSError):  # OSError: a closed pipe, a full disk
            run.stop()
            raise
        run.finish()


def prepare_objective(
    options: RunSettings, device: torch.device, dtype: torch.dtype, maker: Maker | None = None
) -> tuple[Objective, tuple[int, int]]:
    """Return the objective, ready to train, and its model's numbers of parameters."""
    encoder = load_trainable(options, device)
    if options.freeze_embeddings:
        encoder.bert.embeddings.requires_grad_(False)
    objective = make_objective(options, encoder, dtype, maker)
    # before more is frozen: the options' number of trainable ones
    counts = count_parameters(objective.model)
    for parameter in objective.unused_parameters():
        parameter.requires_grad_(False)
    for parameter in objective.network.parameters():
        # subtle: loaded weights have any offset in their file, and an address can change the last
        # bit of a product
        parameter.data = parameter.data.clone()
    return objective, counts


def describe(run: Run, counts: tuple[int, int], arithmetic: str) -> None:
    """Print a few lines about the run that begins."""
    options, objective, encoder = run.options, run.objective, run.objective.encoder
    parameters, trainable = counts
    size = f"{parameters:,} parameters"
    if trainable < parameters:
        size += f" ({trainable:,} trainable)"
    unused = sum(parameter.numel() for parameter in objective.unused_parameters())
    if unused:
        size += f", {unused:,} of them not used"
    say(
        f"model  {options.from_nothing or options.model}, {encoder.pooling_mode} pooling, {size}, "
        f"{encoder.device}"
    )
    say("data   " + ", ".join(f"{split} {note}" for split, note in objective.notes.items()))
    # a pair that was trained on says little about new ones
    for split in ("dev", "test"):
        shared = shared_rows(objective.rows["train"], objective.rows.get(split, ()))
        if shared:
            advice = ": drop them" if options.data else ""
            say(
                f"warning: {shared:,} rows of {split} are training rows too, so its score is too "
                f"high{advice}"
            )
    rows = f"{options.batch_size} rows"
    if objective.keys is not None and run.steps_per_epoch > 1.1 * math.ceil(
        len(objective.keys) / options.batch_size
    ):
        rows = f"{run.rows_per_step:.1f} rows on average, not {options.batch_size}: rows that share a text never meet"
    say(
        f"plan   {run.total} steps of {rows}, AdamW {options.lr:g}, {arithmetic}, seed "
        f"{options.seed}"
    )
    truncated = sum(sum(encoded.truncated) for encoded in objective.encoded)
    if truncated:
        say(cut_message(encoder.tokenizer.limit, truncated, sum(map(len, objective.encoded))))


def cosine_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then decay to 0 along half a cosine (Loshchilov & Hutter 2017); .5 halfway
    down.
    """
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def constant_schedule(step: int, warmup: int, total: int) -> float:
    """Warm up linearly, then stay at 1."""
    return step / warmup if step < warmup else 1.0


SCHEDULES = {"linear": linear_schedule, "cosine": cosine_schedule, "constant": constant_schedule}


def step_through(run: Run, options: RunSettings, graphs: bool = False) -> None:
    """Step through the run to its end, logging, saving and evaluating on the way."""
    warmup = math.ceil(options.warmup * run.total if options.warmup < 1 else options.warmup)
    if options.warmup >= run.total:
        say_once(
            f"--warmup {warmup}: the run has {run.total} steps, so the learning rate never reaches "
            f"its peak"
        )
    schedule = partial(SCHEDULES[options.schedule], warmup=warmup, total=run.total)
    clip = options.clip or math.inf
    cut_batch, network = divide(run.objective, options, run.group, graphs)
    network.train()
    optimizer = FlatAdamW(run.optimizer) if graphs else run.optimizer
    # a turn for each epoch: fit ends with the batches that it is given
    while True:
        if run.evaluation_due:
            run.evaluate()
        if run.finished:
            return
        batches = run.epoch()
        if graphs:
            cast(GraphedNetwork, network).plan(run.batches)
        steps = fit(
            network,
            run.objective.loss,
            batches,
            optimizer,
            schedule,
            run.state.step,
            clip,
            cut_batch,
        )
        for step in run.recorded(steps):
            if step.number % options.save_every == 0 and step.number < run.total:
                run.save()
            if run.evaluation_due:
                run.evaluate()
            if run.finished:
                break


def divide(
    objective: Objective, options: RunSettings, group: ProcessGroup, graphs: bool = False
) -> tuple[Cut, nn.Module]:
    """Return what cuts a batch for ``fit``, and the network, shared out among the processes.

    If the loss is the mean of its rows' losses, ``fit`` adds up the gradients of the parts.
    Otherwise ``fit`` gets whole batches, and the network caches gradients. A GPU needs neither, so
    graphs have whole batches.
    """
    if graphs:
        network = cast(VectorNetwork | PairNetwork, objective.network)  # ``use_graphs`` has looked
        return whole, GraphedNetwork(network, objective.encoder)
    cut_batch = partial(micro_batches, objective=objective, options=options, device=group.device)
    if objective.separable:
        return partial(cut_batch, processes=group.size), group.wrap(objective.network)
    return whole, group.wrap(objective.network, cut_batch)


def micro_batches(
    rows: Sequence[int],
    objective: Objective,
    options: RunSettings,
    device: torch.device,
    processes: int = 1,
) -> list[list[int]]:
    """Divide a batch into parts, each of which ``processes`` compute together.

    ``--micro-tokens`` bounds each process's tokens. Without it, on a CPU, a long batch is cut into
    parts of some ``MICRO_TOKENS``; if its loss compares rows only from ``CACHED_TOKENS`` on, since
    caching costs another forward.
    """
    if options.micro_tokens is not None:
        return cut(rows, objective.lengths, options.micro_tokens * processes)
    tokens = sum(objective.lengths[row] for row in rows) / processes
    if device.type != "cpu" or (tokens <= CACHED_TOKENS and not objective.separable):
        return whole(rows)
    return equal_parts(rows, objective.lengths, MICRO_TOKENS * processes)
