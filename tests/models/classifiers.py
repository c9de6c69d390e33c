"""Folders of classifiers as transformers writes them, with small random weights."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from minisbert.architectures.relatives import CLASSIFIERS, ENCODER_FAMILIES
from minisbert.integrations.transformers import in_double
from tests.parity import REFERENCE

# The vocabulary of the families whose tokenizers are SentencePiece's; its first pieces differ.
PIECES = [*"▁abcdefghijklmnopqrstuvwxyz", "▁the", "at", "og", "ing"]
XLM_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
CAMEMBERT = [
    "<s>NOTUSED",
    "<pad>",
    "</s>NOTUSED",
    "<unk>NOTUSED",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
]


def change(path: Path, **changes: object) -> None:
    """Change some keys of a JSON file, or write one with these keys."""
    content = {}
    if path.is_file():
        content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


@contextmanager
def exactly() -> Iterator[None]:
    """Build and run models of transformers in here: its ModernBERT would round to float32."""
    from transformers.models.modernbert import modeling_modernbert

    with in_double(modeling_modernbert):
        yield


def classifier(folder: Path, family: str, labels: int = 1, **settings: object) -> torch.nn.Module:
    """Write a classifier with random weights, as transformers does; return it in float64.

    ``settings`` are others of config.json.
    """
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    copy_tokenizer(family, folder)
    name = CLASSIFIERS[family].architecture.removesuffix("ForSequenceClassification")
    config = getattr(transformers, f"{name}Config")(
        **sizes_of(family), max_position_embeddings=33, num_labels=labels, **settings
    )
    torch.manual_seed(3)
    with exactly():
        model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    model.save_pretrained(folder)

    if family in ("xlm-roberta", "camembert"):
        specials = CAMEMBERT if family == "camembert" else XLM_ROBERTA
        pieces = specials + PIECES
        vocabulary = [(piece, -float(len(piece))) for piece in pieces]
        tokenizer = getattr(transformers, f"{name}Tokenizer")
        tokenizer(vocab=vocabulary, model_max_length=16).save_pretrained(folder)
    if family == "distilbert":
        change(folder / "tokenizer_config.json", tokenizer_class="DistilBertTokenizer")
    return model.double().eval()


def copy_tokenizer(family: str, folder: Path) -> None:
    """Make the folder, with the tokenizer of a small model of the family, or of a BERT."""
    source = REFERENCE.parents[1] / "weights" / "tiny"
    if family == "roberta":
        source = REFERENCE / "tiny-roberta"
    elif family == "mpnet":
        source = REFERENCE / "architectures" / "tiny-mpnet"
    elif family == "modernbert":
        source = REFERENCE / "architectures" / "tiny-modernbert"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)


def sizes_of(family: str) -> dict[str, int]:
    """The sizes of a small model, under the names that the family's config.json has for them."""
    sizes = {
        "vocab_size": 301 if family in ("roberta", "modernbert") else 131,
        "hidden_size": 18,
        "intermediate_size": 29,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    if family == "distilbert":
        keys = ENCODER_FAMILIES[family].settings
        return {keys.get(name, name): size for name, size in sizes.items()}
    if family == "modernbert":
        return sizes | {"local_attention": 6, "pad_token_id": 0, "cls_token_id": 2}
    sizes["type_vocab_size"] = 2
    if family in ("roberta", "xlm-roberta", "camembert"):
        sizes["type_vocab_size"] = 1
    if family == "electra":
        sizes["embedding_size"] = 18
    return sizes
