"""Runs of published papers by name: ``minisbert train --recipe NAME``.

``settings`` are those of ``options.Settings``; the command line overrides them. ``expected`` is
what the recipe gave here, with MiniLM, and what a source reports for its own model, each named.
docs/sources.md says what the sources get wrong; benchmarks/notebooks.py repeats notebooks.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """A published run."""

    source: str
    needs: str  # its data
    expected: str
    settings: dict[str, Any] = field(hash=False)


RECIPES = {
    "sts-cross-encoder": Recipe(
        source="the cross-encoder with settings of ours: batches, learning rates, warm-up, decay, "
        "clipping, epochs, all layers trained",
        needs="stsb",
        expected="Pearson dev 86.0, test 83.6 (one run)",
        settings={
            "head": "cross-encoder",
            "loss": "mse",
            "batch_size": 16,
            "lr": 5e-5,
            "head_lr": 1e-3,
            "epochs": 3,
        },
    ),
    "sts-siamese": Recipe(
        source="the siamese head with settings of ours, mean pooling among them",
        needs="stsb",
        expected="Pearson dev 88.8, test 84.8 (one run)",
        settings={
            "head": "siamese",
            "loss": "mse",
            "batch_size": 16,
            "lr": 5e-5,
            "head_lr": 1e-3,
            "epochs": 2,
        },
    ),
    "sts-cross-attention": Recipe(
        source="cross-attention that compares each token with what it attended to",
        needs="stsb",
        expected="Pearson dev 88.1, test 84.1 (one run)",
        settings={
            "head": "cross-attention",
            "loss": "mse",
            "batch_size": 16,
            "lr": 5e-5,
            "head_lr": 1e-3,
            "epochs": 3,
        },
    ),
    "sbert-nli-published": Recipe(
        source="SBERT (Reimers & Gurevych 2019), section 3.1: softmax over (u, v, |u-v|), an epoch "
        "of SNLI and MultiNLI, batch 16, lr 2e-5",
        needs="--data snli,multinli; without --data, snli alone",
        expected="SNLI test accuracy 72.0 (one run, 100,000 rows of SNLI, grouped batches of 32); "
        "a notebook's BERT-base: STS-B dev 59.3 before SNLI, 76.7 after",
        settings={
            "loss": "softmax",
            "head": "concat",
            "pooling": "mean",
            "batch_size": 16,
            "epochs": 1,
            "lr": 2e-5,
            "warmup": 0.1,
        },
    ),
    "sbert-nli": Recipe(
        source="the same with batches of 32 rows of like length, lr 5e-5 and a separate learning "
        "rate for the head",
        needs="snli, or --data FILE of NLI rows",
        expected="SNLI test accuracy 80.6; its encoder on STS-B 83.5 dev / 79.0 test (one run, "
        "100,000 rows)",
        settings={
            "loss": "softmax",
            "head": "concat",
            "batch_size": 32,
            "lr": 5e-5,
            "head_lr": 1e-3,
        },
    ),
    "sbert-regression": Recipe(
        source="SBERT, section 3 (cosine and squared error) and 4.2; four epochs as table 2 says "
        "of its BERT systems",
        needs="stsb",
        expected="Spearman dev 89.5, test 85.7 (one run); the paper's BERT-base: test 84.67 ± .19 "
        "(10 seeds)",
        settings={"loss": "cosine", "batch_size": 16, "epochs": 4},
    ),
    "sbert-triplet": Recipe(
        source="SBERT, section 3: margin 1, Euclidean; section 4.4: one epoch (1.8 million "
        "Wikipedia triplets there, judged by accuracy)",
        needs="snli, or --data FILE of triplets",
        expected="not measured; the paper's .8042 (BERT-base) is the accuracy on its own "
        "Wikipedia triplets",
        settings={"loss": "triplet", "batch_size": 16},
    ),
    "simcse-unsupervised": Recipe(
        source="SimCSE (Gao et al. 2021), section 3: two dropout masks; 6.3: CLS, a dense layer in "
        "training only; table A.1: batch 64, lr 3e-5; appendix D: temperature .05",
        needs="--data FILE of sentences, one per line",
        expected="STS-B 84.9 ± .1 dev / 78.9 ± .1 test (3 seeds, 6,400 sentences); the paper's "
        "BERT-base, a million sentences: 76.25 average STS",
        settings={
            "loss": "simcse",
            "pooling": "cls",
            "batch_size": 64,
            "lr": 3e-5,
            "projection": True,
        },
    ),
    "simcse-supervised": Recipe(
        source="after SimCSE, section 4: contradictions as hard negatives. Theirs: SNLI and "
        "MultiNLI (275,601 triplets), MLP kept on CLS (6.3, appendix A), 3 epochs of batch 512",
        needs="snli, or --data FILE",
        expected="STS-B 82.4 dev / 79.3 test (one run, 100,000 rows of SNLI); the paper's "
        "BERT-base: 81.57 average STS, 86.2 on STS-B dev with or without the MLP (table 6)",
        settings={"loss": "ranking", "pooling": "cls", "batch_size": 64, "lr": 5e-5},
    ),
    "student": Recipe(
        source="a student of three of MiniLM's layers, whose teacher is MiniLM",
        needs="stsb",
        expected="STS-B dev 86.4, test 81.7 (one run)",
        settings={
            "loss": "distillation",
            "teacher": "all-MiniLM-L6-v2",
            "student_layers": 3,
            "lr": 5e-4,
            "freeze_embeddings": True,
            "dropout": 0.0,
        },
    ),
    "from-nothing": Recipe(
        source="BERT (Devlin et al. 2019), section 3.1: 15 % of the words hidden; a model of some "
        "four million parameters, for minutes, not days",
        needs="--data FILE of sentences, one per line; STS-B's without it",
        expected="no good score: lesson 24, on the same kind of text, falls from 57 to 53 on STS-B "
        "dev and learns to guess words",
        settings={
            "loss": "mlm",
            "from_nothing": "3x256x6000",
            "max_length": 64,
            "batch_size": 128,
            "lr": 1e-3,
            "weight_decay": 0.01,
            "epochs": 10,
        },
    ),
}


def list_recipes() -> str:
    """Write a few lines per recipe: its source, its data, the expected score, its settings."""
    blocks = []
    for name, recipe in RECIPES.items():
        settings = [f"{key}={value}" for key, value in recipe.settings.items()]
        lines = [name, f"  source    {recipe.source}", f"  needs     {recipe.needs}"]
        lines += [f"  expected  {recipe.expected}", f"  settings  {', '.join(settings)}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
