"""Make the golden files: the values that transformers and sentence-transformers compute.

    python -m tests.reference.make_reference            write the tiny checkpoints and golden files
    python -m tests.reference.make_reference --check    make them in memory and compare

Needs the ``reference`` extra. This file imports nothing of minisbert: the expected values must not
come from the code under test. Every parameter of the tiny models is random, LayerNorm's weights
around 1 and no bias zero, because newly initialised models hide a missing bias or LayerNorm; and
all sizes differ, so that no two axes can be confused. Reference values are float64.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here or already on disk

import scipy.stats
import sentence_transformers
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn

from tests.reference.heads_reference import heads_golden
from tests.reference.losses_reference import losses_golden
from tests.reference.metrics_reference import more_metrics_golden
from tests.reference.texts import SENTENCES, TEXTS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TINY = ROOT / "weights" / "tiny"

# batch 5, tokens 11, heads 3, head width 8, width 24, feed-forward 40, layers 2, vocabulary 131:
# all different
SIZES = {
    "vocab_size": 131,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
LENGTHS = (11, 2, 7, 4, 9)  # ragged; one full, one with special tokens only
LIMIT = 16  # tokens of a text in the tiny model: below its position table, as in MiniLM

WORDS = [
    "a",
    "the",
    "cat",
    "dog",
    "kitten",
    "child",
    "man",
    "woman",
    "bird",
    "horse",
    "is",
    "are",
    "was",
    "sit",
    "sits",
    "sitting",
    "run",
    "runs",
    "running",
    "play",
    "plays",
    "playing",
    "eat",
    "eats",
    "eating",
    "on",
    "in",
    "at",
    "with",
    "and",
    "of",
    "to",
    "over",
    "under",
    "mat",
    "park",
    "garden",
    "house",
    "street",
    "red",
    "blue",
    "green",
    "small",
    "large",
    "happy",
    "sad",
    "fast",
    "slow",
    "music",
    "guitar",
    "piano",
    "ball",
    "food",
    "apple",
    "bread",
    "water",
    "sun",
    "moon",
    "rain",
    "snow",
    ",",
    ".",
    "!",
    "?",
]


def vocabulary() -> list[str]:
    """131 word pieces: special tokens, letters at the start and inside of a word, some whole
    words.
    """
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        + letters
        + [f"##{letter}" for letter in letters]
    )
    pieces += [word for word in WORDS if word not in pieces]
    if len(pieces) < SIZES["vocab_size"]:
        pieces += [f"[unused{i}]" for i in range(SIZES["vocab_size"] - len(pieces))]
    assert len(pieces) == len(set(pieces)) == SIZES["vocab_size"], len(pieces)
    return pieces


def randomise(model: nn.Module, seed: int) -> None:
    """Fill every parameter with float32 values, which a saved float32 checkpoint keeps exactly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "LayerNorm.weight" in name or "layer_norm.weight" in name
            parameter.copy_((1 + 0.2 * noise if is_norm else 0.2 * noise).float())


def ragged_batch(seed: int) -> dict[str, Tensor]:
    """ids and mask (B, T) with the lengths above."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(5, SIZES["vocab_size"], mask.shape, generator=generator).masked_fill(
        ~mask, 0
    )
    return {"ids": ids, "mask": mask}


def tiny_bert() -> transformers.BertModel:
    model = transformers.BertModel(transformers.BertConfig(**SIZES, attn_implementation="eager"))
    randomise(model, seed=1)
    return model.eval()


def tiny_tokenizer() -> transformers.BertTokenizer:
    return transformers.BertTokenizer(
        vocab=ids_of(vocabulary()), do_lower_case=True, model_max_length=LIMIT
    )


def write_tiny(folder: Path) -> None:
    """The committed checkpoint, saved by sentence-transformers in its new layout: mean pooling,
    normalised.
    """
    modules = sentence_transformers.sentence_transformer.modules
    rest = [modules.Pooling(SIZES["hidden_size"], "mean"), modules.Normalize()]
    write_sentence_model(folder, tiny_bert(), tiny_tokenizer(), rest)


def tiny_distiluse(folder: Path) -> None:
    """DistilBERT, two poolings, a dense layer with tanh, normalising: the modules of distiluse."""
    sizes = {
        "vocab_size": 131,
        "dim": 20,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 34,
        "max_position_embeddings": 28,
    }
    model = transformers.DistilBertModel(transformers.DistilBertConfig(**sizes))
    randomise(model, seed=7)
    tokenizer = transformers.DistilBertTokenizer(vocab=ids_of(vocabulary()), model_max_length=LIMIT)
    modules = sentence_transformers.sentence_transformer.modules
    dense = sentence_transformers.base.modules.Dense(2 * 20, 13, activation_function=nn.Tanh())
    randomise(dense, seed=8)
    pooling = modules.Pooling(20, ("mean", "cls"))
    write_sentence_model(folder, model, tokenizer, [pooling, dense, modules.Normalize()])


def tiny_roberta(folder: Path) -> None:
    """RoBERTa with a byte-level BPE tokenizer, max pooling, not normalised."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = transformers.RobertaTokenizer(
        **vocab_and_merges(byte_level_bpe(specials)), model_max_length=LIMIT
    )
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 18,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 29,
        "max_position_embeddings": 27,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    }
    model = transformers.RobertaModel(transformers.RobertaConfig(**sizes))
    randomise(model, seed=9)
    modules = sentence_transformers.sentence_transformer.modules
    write_sentence_model(folder, model, tokenizer, [modules.Pooling(18, "max")])


def ids_of(pieces: list[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces)}


def byte_level_bpe(specials: list[str]) -> ByteLevelBPETokenizer:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [" ".join(WORDS)] * 3, vocab_size=301, min_frequency=2, special_tokens=specials
    )
    return bpe


def vocab_and_merges(bpe: Any) -> dict[str, Any]:
    """What transformers' tokenizers take of a trained BPE."""
    spec = json.loads(bpe.to_str())["model"]
    return {"vocab": spec["vocab"], "merges": [tuple(merge) for merge in spec["merges"]]}


def write_sentence_model(
    folder: Path,
    model: nn.Module,
    tokenizer: Any,
    rest: list[nn.Module],
    prompts: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """A folder as sentence-transformers saves it: an encoder loaded with the options, its
    tokenizer, other modules.
    """
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer.save_pretrained(plain)
        encoder = sentence_transformers.sentence_transformer.modules.Transformer(plain, **options)
        model = SentenceTransformer(modules=[encoder, *rest], prompts=prompts, device="cpu")
        model.save(str(folder), create_model_card=False)


FOLDERS = {
    "tiny-distiluse": tiny_distiluse,
    "tiny-roberta": tiny_roberta,
}  # beside the golden files


def family_golden(name: str) -> dict[str, Tensor]:
    """Ids, every layer, the sentence vectors, and every parameter's gradient for a random gradient
    of the vectors.
    """
    with tempfile.TemporaryDirectory() as folder:
        FOLDERS[name](Path(folder) / name)
        model = SentenceTransformer(str(Path(folder) / name), device="cpu").double().eval()
    encoder, tokenizer = model[0].model, model.tokenizer
    encoder.set_attn_implementation("eager")
    batch = tokenizer(list(SENTENCES), padding="longest", truncation=True, return_tensors="pt")
    mask = batch["attention_mask"]
    out = encoder(batch["input_ids"], mask, output_hidden_states=True, output_attentions=True)
    golden = {"ids": batch["input_ids"], "mask": mask.bool(), "embeddings": out.hidden_states[0]}
    for i, (state, probabilities) in enumerate(
        zip(out.hidden_states[1:], out.attentions, strict=True)
    ):
        golden |= {f"layers.{i}": state, f"layers.{i}.attention": probabilities}
    vectors = model({"input_ids": batch["input_ids"], "attention_mask": mask})["sentence_embedding"]
    pull = torch.randn(
        vectors.shape, generator=torch.Generator().manual_seed(10), dtype=torch.float64
    )
    (vectors * pull).sum().backward()
    golden |= {"vectors": vectors, "pull": pull}
    golden |= {
        f"grad.{key}": value.grad
        for key, value in encoder.named_parameters()
        if value.grad is not None
    }
    pair = tokenizer(list(SENTENCES), list(reversed(SENTENCES)), truncation=True)
    golden |= {f"pair.{i}": torch.tensor(ids) for i, ids in enumerate(pair["input_ids"])}
    return golden


def bert_golden() -> dict[str, Tensor]:
    """Everything a BERT computes on a ragged batch, and the gradient of every parameter.

    The gradients are those of sum(hidden * pull_hidden) + sum(pooler * pull_pooler).
    """
    model = tiny_bert().double()
    batch = ragged_batch(2)
    second = (
        torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None] / 2
    )  # the second half of a text
    batch["token_types"] = (second & batch["mask"]).long()
    generator = torch.Generator().manual_seed(3)
    embeddings: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        output.retain_grad()
        embeddings.append(output)

    hook = model.embeddings.register_forward_hook(keep)
    out = model(
        batch["ids"],
        batch["mask"].long(),
        batch["token_types"],
        output_hidden_states=True,
        output_attentions=True,
    )
    hook.remove()
    pull = {
        "hidden": torch.randn(
            out.last_hidden_state.shape, generator=generator, dtype=torch.float64
        ),
        "pooler": torch.randn(out.pooler_output.shape, generator=generator, dtype=torch.float64),
    }
    pull["hidden"] *= batch["mask"].unsqueeze(-1)  # pads are never used
    (
        (out.last_hidden_state * pull["hidden"]).sum() + (out.pooler_output * pull["pooler"]).sum()
    ).backward()

    golden = dict(batch) | {f"pull.{name}": value for name, value in pull.items()}
    golden |= {"embeddings": out.hidden_states[0], "pooler": out.pooler_output}
    for i, (state, probabilities) in enumerate(
        zip(out.hidden_states[1:], out.attentions, strict=True)
    ):
        golden |= {f"layers.{i}": state, f"layers.{i}.attention": probabilities}
    golden["grad.embeddings"] = embeddings[0].grad
    golden |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}

    pooling = sentence_transformers.sentence_transformer.modules.Pooling
    for mode in ("mean", "cls", "max"):
        features = {
            "token_embeddings": out.last_hidden_state,
            "attention_mask": batch["mask"].long(),
        }
        golden[f"pooled.{mode}"] = pooling(SIZES["hidden_size"], mode)(features)[
            "sentence_embedding"
        ]
    return golden


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def trace_golden() -> dict[str, Tensor]:
    """Ten steps of AdamW on one batch of pairs: warm-up over 3 steps, linear decay to 0 at step 12,
    weight decay .01.

    Dropout is off (eval mode), so the trace depends only on the arithmetic.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder) / "tiny")
        model = SentenceTransformer(str(Path(folder) / "tiny"), device="cpu").double().eval()
    first, second = ragged_batch(4), ragged_batch(5)
    targets = doubles([0.0, 0.25, 0.5, 0.75, 1.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=3, num_training_steps=12
    )
    loss_function = CosineSimilarityLoss(model)
    losses, rates = [], []
    for _ in range(10):
        features = [
            {"input_ids": batch["ids"], "attention_mask": batch["mask"].long()}
            for batch in (first, second)
        ]
        loss = loss_function(features, targets)
        optimizer.zero_grad()
        loss.backward()
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    golden = {f"first.{name}": value for name, value in first.items()}
    golden |= {f"second.{name}": value for name, value in second.items()}
    golden |= {"targets": targets, "losses": doubles(losses), "rates": doubles(rates)}
    weights = model[0].model.named_parameters()
    return golden | {
        f"after.{name}": value.detach() for name, value in weights if not name.startswith("pooler")
    }


def metrics_golden() -> dict[str, Tensor]:
    """Correlations by scipy, of rounded scores (as people give them) and of continuous ones."""
    generator = torch.Generator().manual_seed(6)
    noise = [torch.randn(41, generator=generator, dtype=torch.float64) for _ in range(2)]
    golden = {}
    for name, (x, y) in {
        "ties": (noise[0].round(), (noise[0] + noise[1]).round()),
        "few_ties": (noise[0].mul(5).round(), noise[1] + noise[0]),
        "no_ties": (noise[0] + 3, noise[0].exp() + noise[1]),
    }.items():
        golden |= {f"{name}.x": x, f"{name}.y": y}
        golden[f"{name}.pearson"] = doubles([scipy.stats.pearsonr(x, y).statistic])
        golden[f"{name}.spearman"] = doubles([scipy.stats.spearmanr(x, y).statistic])
    return golden


def minilm_golden(folder: Path) -> dict[str, Tensor]:
    """The real model in float32: every layer on a ragged batch, unit vectors, and token ids of
    difficult texts.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    sentences = [
        "A man is playing a guitar.",
        "Hi",
        "Two dogs run through the snow, chasing a ball.",
    ]
    batch = tokenizer(sentences, padding="longest", return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    golden = {"ids": batch["input_ids"], "mask": batch["attention_mask"].bool()}
    golden |= {f"hidden.{i}": state for i, state in enumerate(states)}
    golden["vectors"] = SentenceTransformer(str(folder), device="cpu").encode(
        sentences, convert_to_tensor=True
    )
    for i, text in enumerate(TEXTS):
        # as lists of one: as a plain string, an empty second text would count as none
        single = tokenizer([text], truncation=True, max_length=256)
        pair = tokenizer([text], [TEXTS[i - 1]], truncation=True, max_length=256)
        golden[f"single.{i}"] = torch.tensor(single["input_ids"][0])
        golden[f"pair.{i}"] = torch.tensor(pair["input_ids"][0])
        golden[f"pair_types.{i}"] = torch.tensor(pair["token_type_ids"][0])
    return golden


def make(minilm: Path) -> dict[str, dict[str, Tensor]]:
    """Every golden file by name."""
    golden = {
        "bert": bert_golden(),
        "trace": trace_golden(),
        "metrics": metrics_golden(),
        "classification_metrics": more_metrics_golden(),
        "losses": losses_golden(),
        "heads": heads_golden(tiny_bert().double(), tiny_tokenizer()),
        "minilm": minilm_golden(minilm),
    }
    return golden | {name: family_golden(name) for name in FOLDERS}


def metadata() -> dict[str, str]:
    """Written to each file: the versions of the libraries and of this script."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }


REBUILD = "rebuild it: python -m tests.reference.make_reference"


def check(name: str, tensors: dict[str, Tensor]) -> list[str]:
    """The differences between a committed golden file and the same file made now."""
    path = HERE / f"{name}.safetensors"
    if not path.is_file():
        return [f"{path.name} is missing; {REBUILD}"]
    problems = []
    with safe_open(path, "pt") as file:
        made = file.metadata() or {}
        for key, value in metadata().items():
            if (
                key != "torch" and made.get(key) != value
            ):  # torch is recorded, but is not the reference
                problems.append(
                    f"{path.name} is stale: {key} was {made.get(key)}, is {value}; {REBUILD}"
                )
        if set(file.keys()) != set(tensors):
            problems.append(
                f"{path.name}: other tensors: {sorted(set(file.keys()) ^ set(tensors))}; {REBUILD}"
            )
            return problems
        for key, value in tensors.items():
            # processors round differently: by up to 1.5e-11, and in float32 by 5.2e-6 at real
            # tokens
            bound = 5e-11 if value.dtype == torch.float64 else 1e-5
            stored = file.get_tensor(key)
            difference = (
                (stored.double() - value.double()).abs() if stored.shape == value.shape else None
            )
            if difference is not None and key.startswith("hidden."):
                difference = difference[tensors["mask"]]  # pads are never used
            if difference is None or difference.max() > bound:
                problems.append(
                    f"{path.name}: {key} is not what the reference computes now; {REBUILD}"
                )
    return problems


def check_folder(stored: Path, write: Callable[[Path], None]) -> list[str]:
    """The differences between a committed checkpoint and the same one made now, file by file."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / stored.name
        write(made)
        names = {
            path.relative_to(root)
            for root in (made, stored)
            for path in root.rglob("*")
            if path.is_file()
        }
        wrong = [
            str(name)
            for name in sorted(names)
            if not (made / name).is_file()
            or not (stored / name).is_file()
            or (made / name).read_bytes() != (stored / name).read_bytes()
        ]
    return [f"{stored} differs in {', '.join(wrong)}; {REBUILD}"] if wrong else []


CHECKPOINTS = {TINY: write_tiny} | {HERE / name: write for name, write in FOLDERS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reference.make_reference", description=__doc__
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the committed files and write nothing"
    )
    parser.add_argument(
        "--minilm",
        type=Path,
        default=ROOT / "weights" / "all-MiniLM-L6-v2",
        help="its folder (default: %(default)s)",
    )
    options = parser.parse_args()
    golden = {
        name: {key: value.detach().contiguous() for key, value in tensors.items()}
        for name, tensors in make(options.minilm).items()
    }
    if options.check:
        problems = [problem for name, tensors in golden.items() for problem in check(name, tensors)]
        problems += [
            problem
            for folder, write in CHECKPOINTS.items()
            for problem in check_folder(folder, write)
        ]
        good = f"{len(golden)} golden files and {len(CHECKPOINTS)} checkpoints "
        good += "are what the reference computes"
        print("\n".join(problems) or good)
        sys.exit(1 if problems else 0)
    for folder, write in CHECKPOINTS.items():
        shutil.rmtree(folder, ignore_errors=True)
        write(folder)
    for name, tensors in golden.items():
        save_file(tensors, HERE / f"{name}.safetensors", metadata=metadata())
    print(json.dumps(metadata(), indent=2))


if __name__ == "__main__":
    main()
