"""The settings of a training run: each field is an option of ``minisbert train`` and a key of the run's config.json.

``OBJECTIVES`` is the table of what can be trained; which options an objective reads follows from its columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from minisbert.system.console import bounded, score_scale

# ----------------------------------------------------------------------------------------- the objectives


@dataclass(frozen=True)
class Traits:
    """A row of ``OBJECTIVES``."""

    maker: str  # the file in objectives/ and the class, or a function that chooses one
    rows: str  # what a training row is: scores, labels, candidates, triplets or texts
    # what the loss reads: the pooled vector of each text, the states of a pair's tokens, sparse vectors, a vector per
    # token (multi), or the states at masked words
    reads: str = "pooled"
    head: str = ""  # joint: over one input of both texts; cross, siamese, concat: over two
    # what a loss compares the rows of a batch for: the order of their scores, or as negatives of each other
    in_batch: str = ""
    nested: bool = False  # it compares vectors of any width, so it also works on their first columns
    taught: bool = False  # it has a teacher


OBJECTIVES = {
    "cosine": Traits("encoders:CosineRegression", "scores", nested=True),
    "cosent": Traits("encoders:CoSENT", "scores", in_batch="order", nested=True),
    "cross-encoder": Traits("pairs:ScoreRegression", "scores", reads="tokens", head="joint"),
    "siamese": Traits("pairs:ScoreRegression", "scores", head="siamese"),
    "cross-attention": Traits("pairs:ScoreRegression", "scores", reads="tokens", head="cross"),
    "softmax": Traits("pairs:Softmax", "labels", head="concat"),
    "binary": Traits("pairs:Duplicates", "labels", head="concat"),
    "cross-encoder-binary": Traits("pairs:BinaryReranker", "labels", reads="tokens", head="joint"),
    "cross-encoder-ranking": Traits("pairs:RankingReranker", "candidates", reads="tokens", head="joint"),
    "cross-encoder-multilabel": Traits("pairs:MultiLabel", "labels", reads="tokens", head="joint"),
    "contrastive": Traits("encoders:Contrastive", "labels", nested=True),
    "triplet": Traits("encoders:TripletMargin", "triplets", nested=True),
    "mnr": Traits("encoders:Ranking", "triplets", in_batch="negatives", nested=True),
    "simcse": Traits("encoders:SimCSE", "texts", in_batch="negatives", nested=True),
    "simcse-supervised": Traits("encoders:SupervisedSimCSE", "triplets", in_batch="negatives", nested=True),
    "splade": Traits("encoders:Splade", "triplets", reads="sparse", in_batch="negatives"),
    "late-interaction": Traits("encoders:LateInteraction", "triplets", reads="multi", in_batch="negatives"),
    "distillation": Traits("teachers:distillation", "texts", taught=True),
    "mlm": Traits("masked:MaskedWords", "texts", reads="masked"),
}


def where(condition: Callable[[Traits], Any]) -> tuple[str, ...]:
    """Return the objectives whose row of the table meets a condition."""
    return tuple(name for name, traits in OBJECTIVES.items() if condition(traits))


POOLED = where(lambda row: row.reads == "pooled")
# labels have no scale; the others have scores, or are evaluated on scored pairs
SCALED = where(lambda row: row.rows in ("scores", "triplets", "texts"))
WITH_HEAD = where(lambda row: row.head)
JOINT = where(lambda row: row.head == "joint")
RANKING = where(lambda row: row.reads == "pooled" and row.in_batch == "negatives")
SINGLE = where(lambda row: row.reads != "tokens")  # vectors of single texts, which a search needs
BINARY = ("binary", "cross-encoder-binary")
NESTED, TAUGHT = where(lambda row: row.nested), where(lambda row: row.taught)
COMPARING = where(lambda row: row.in_batch and row.nested)

# ----------------------------------------------------------- types of options: a text to a value, for argparse


def warmup_length(text: str) -> float:
    """Read a fraction of the steps, or from 1 on a whole number of steps."""
    value = bounded(float, 0)(text)
    if value >= 1 and not value.is_integer():
        raise ValueError
    return value


def prefix_widths(text: str) -> str:
    """Check numbers of columns, each smaller than the one before: ``256,128,64``."""
    widths = list(map(int, text.split(",")))
    if widths != sorted(set(widths), reverse=True) or widths[-1] < 1:
        raise ValueError
    return ",".join(map(str, widths))


def model_size(text: str) -> str:
    """Check ``3x256x6000``: layers, width and size of the vocabulary; the width is a multiple of 64."""
    layers, width, words = map(int, text.split("x"))
    if layers < 1 or width < 1 or width % 64 or words < 100:
        raise ValueError
    return f"{layers}x{width}x{words}"


# argparse names the type in its message
warmup_length.__name__ = "fraction below 1 or whole number of steps"
prefix_widths.__name__ = "descending widths"
model_size.__name__ = "LAYERSxWIDTHxWORDS, the width a multiple of 64"
COUNT, LAYERS = bounded(int, 1), bounded(int, 0)
RATE, POSITIVE, FRACTION = bounded(float, 0), bounded(float, 1e-4), bounded(float, 0, 1)
THREADS = bounded(int, 1, 1025)
DTYPES = ("auto", "float32", "bfloat16")

# ------------------------------------------------------------------------------------------- the settings


def option(
    help: str,
    default: Any = None,
    read: Callable[[str], Any] = str,
    metavar: str | None = None,
    only: Sequence[str] = tuple(OBJECTIVES),
    choices: Sequence[str] | None = None,
) -> Any:
    """Define a field that is also an option. ``read`` parses its text; ``only``: the objectives that read it."""
    about = {"help": help, "read": read, "metavar": metavar, "only": only, "choices": choices}
    return field(default=default, metadata=about)


GROUPS = {  # the first setting of each group of options, and the group's title in --help
    "recipe": "objective, model, data and output",
    "epochs": "duration and evaluation",
    "batch_size": "training",
    "pooler_head": "heads, losses and teachers",
    "save_every": "more about the run",
    "schedule": "more about training",
    "head_dropout": "more about heads (cross-encoder, siamese, cross-attention, softmax, binary)",
    "symmetric": "more about losses between vectors",
}
FIRST_ADVANCED = "save_every"  # --help shows the settings before this one, --help-all the others too


@dataclass
class RunSettings:
    """All settings of a run."""

    recipe: str | None = option("a named recipe, which other options override; list shows all", metavar="NAME")
    objective: str = option("default: cosine", "cosine", choices=tuple(OBJECTIVES))
    model: str = option("name, folder, or owner/name on the Hub (default: all-MiniLM-L6-v2)", "all-MiniLM-L6-v2")
    pooling: str | None = option("override the model's: mean, cls, max, attention, first-last, pooler", only=POOLED)
    data: str | None = option("stsb, snli, multinli, quora or a file; NLI takes several: A,B (default: by objective)")
    dev: str | None = option("rows that select the best checkpoint (default: stsb's, or held out)", metavar="FILE")
    test: str | None = option("rows for the final scores (default: stsb's, or held out)", metavar="FILE")
    retrieval: str | None = option("BEIR folder whose dev nDCG@10 selects the checkpoint", metavar="DIR", only=SINGLE)
    scale: float = option("scores in files are 0 to S (default: 5); -1 for -1 to 1", 5.0, score_scale, "S", SCALED)
    columns: str | None = option("read these columns of --data, in the order of a row: score,left,right", metavar="A,B")
    limit: int | None = option("read only the first ROWS training rows", None, COUNT, "ROWS")
    max_length: int | None = option("truncate texts to N tokens (default: the model's limit)", None, COUNT, "N")
    out: str | None = option("folder of the run (default: in runs/, named after recipe or data, objective and model)")
    overwrite: bool = option("delete the run in that folder and begin", False)
    resume: str | None = option("continue a stopped run; the results are those of an uninterrupted one", metavar="RUN")

    epochs: int = option("default: 1", 1, COUNT)
    max_steps: int | None = option("stop after N steps", None, COUNT, "N")
    eval_every: int | None = option("evaluate on dev every STEPS (default: each epoch)", None, COUNT, "STEPS")
    patience: int | None = option("stop after N evaluations without a better score", None, COUNT, "N")

    batch_size: int = option("rows per step (default: 32)", 32, COUNT)
    micro_tokens: int | None = option("compute each batch in parts of at most N tokens", None, COUNT, "N")
    lr: float = option("peak learning rate (default: 2e-5)", 2e-5, RATE)
    head_lr: float | None = option("peak learning rate outside the encoder (default: --lr)", None, RATE)
    warmup: float = option("a fraction of the steps, or from 1 on steps (default: 0.1)", 0.1, warmup_length)
    freeze_layers: int = option("freeze the lowest N layers (default: 0)", 0, LAYERS, "N")
    dropout: float | None = option("dropout rate of the encoder (default: the model's)", None, FRACTION, "P")
    seed: int = option("for dropout and batch order (default: 42)", 42, bounded(int, 0, 2**64))
    device: str = option("auto, cpu, cuda or mps (default: auto)", "auto")
    threads: int | None = option("CPU threads (default: OMP_NUM_THREADS, or one a core)", None, THREADS, "N")
    dtype: str = option("of matrix products; auto: bfloat16 on hardware for it", "auto", choices=DTYPES)
    graphs: str = option("steps as CUDA graphs; auto: on a GPU that can", "auto", choices=("auto", "on", "off"))

    pooler_head: bool = option("BERT's pooler and a linear layer, as CrossEncoder has it", False, only=JOINT)
    margin: float | None = option(
        "of triplet (default: 1) and contrastive (default: 0.5)", None, POSITIVE, only=("contrastive", "triplet")
    )
    temperature: float = option("of in-batch losses (default: 0.05)", 0.05, POSITIVE, only=COMPARING)
    matryoshka: str | None = option("the loss also of the first N columns: 256,64", None, prefix_widths, "N,N", NESTED)
    teacher: str | None = option("learn its vectors, or a cross-encoder's scores", metavar="MODEL", only=TAUGHT)
    from_nothing: str | None = option(
        "random weights and a new vocabulary instead of --model: 3x256x6000", None, model_size, "LxDxV", ("mlm",)
    )
    student_layers: int | None = option("keep N of --model's layers (default: all)", None, COUNT, "N", TAUGHT)

    # only in --help-all; recipes set some of them
    save_every: int = option("save for --resume every STEPS (default: 100)", 100, COUNT, "STEPS")
    log_every: int = option("write metrics.jsonl every STEPS (default: 10)", 10, COUNT, "STEPS")

    schedule: str = option("default: linear", "linear", choices=("linear", "cosine", "constant"))
    weight_decay: float = option("also of biases and LayerNorm (default: 0)", 0.0, RATE)
    clip: float = option("maximum gradient norm, 0: no clipping (default: 1)", 1.0, RATE)
    freeze_embeddings: bool = option("freeze the embeddings", False)

    head_dropout: float = option("before a head's last layer (default: 0)", 0.0, FRACTION, only=WITH_HEAD)
    pos_weight: float = option("weight of label 1 in binary ones (default: 1)", 1.0, POSITIVE, only=BINARY)

    symmetric: bool = option("mnr in both directions", False, only=("mnr",))
    projection: bool = option("SimCSE's dense layer and tanh, in training only", False, only=("triplet", *RANKING))
    query_flops: float = option("splade: price of a query's words (default: 5e-5)", 5e-5, RATE, only=("splade",))
    document_flops: float = option("splade: price of a document's words (default: 3e-5)", 3e-5, RATE, only=("splade",))


SETTINGS: dict[str, Field] = {item.name: item for item in fields(RunSettings)}
FREE = ("resume", "overwrite", "out", "log_every", "save_every", "threads")  # may differ in a resumed run


def reads(objective: str, name: str) -> bool:
    """Return whether an objective reads a setting. One that it does not read is an error on the command line."""
    return objective in SETTINGS[name].metadata["only"]
