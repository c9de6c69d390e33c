"""A tiny MPNet, random in every parameter."""

from pathlib import Path

import transformers
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from tests.reference.make_reference import (
    LIMIT,
    ids_of,
    randomise,
    vocabulary,
    write_sentence_model,
)

SPECIAL = {
    "[PAD]": "<pad>",
    "[CLS]": "<s>",
    "[SEP]": "</s>",
    "[MASK]": "<mask>",
}  # [UNK] stays as in BERT
ORDER = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
# batch 5, heads 3, head width 6, width 18, feed-forward 31, layers 2
SIZES = {
    "hidden_size": 18,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "max_position_embeddings": 29,
    "layer_norm_eps": 1e-5,
}


def tokenizer() -> transformers.MPNetTokenizer:
    words = [piece for piece in vocabulary() if piece not in (*SPECIAL, "[UNK]")]
    return transformers.MPNetTokenizer(vocab=ids_of(ORDER + words), model_max_length=LIMIT)


def write(folder: Path) -> None:
    """Mean pooling, normalised: the modules of all-mpnet-base-v2."""
    words = tokenizer()
    model = transformers.MPNetModel(transformers.MPNetConfig(vocab_size=len(words), **SIZES))
    randomise(model, seed=21)
    write_sentence_model(folder, model, words, [Pooling(SIZES["hidden_size"], "mean"), Normalize()])


FOLDERS = {"tiny-mpnet": write}
