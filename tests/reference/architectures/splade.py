"""A tiny SparseEncoder, random in every parameter: BERT with its masked-language head, and
SpladePooling.
"""

import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import SparseEncoder
from torch import Tensor

from tests.reference.make_reference import LIMIT, SIZES, ids_of, randomise, vocabulary
from tests.reference.texts import SENTENCES


def write(folder: Path) -> None:
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    randomise(model, seed=41)
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        transformers.BertTokenizer(
            vocab=ids_of(vocabulary()), model_max_length=LIMIT
        ).save_pretrained(plain)
        SparseEncoder(plain, device="cpu").save_pretrained(str(folder), create_model_card=False)


def golden(name: str) -> dict[str, Tensor]:
    """The vectors (5, V) of ``SENTENCES``, and the gradient of some parameters for a random
    gradient of the vectors.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        model = SparseEncoder(str(Path(folder) / name), device="cpu").double().eval()
    model[1].train()  # in eval mode it works in place, without gradients; it has no dropout
    vectors = model(model.tokenize(list(SENTENCES)))["sentence_embedding"]
    pull = torch.randn(
        vectors.shape, generator=torch.Generator().manual_seed(42), dtype=torch.float64
    )
    (vectors * pull).sum().backward()
    head, bert = model[0].model.cls.predictions, model[0].model.bert
    parameters = {
        "bias": head.bias,
        "dense.weight": head.transform.dense.weight,
        "norm.bias": head.transform.LayerNorm.bias,
    }
    parameters |= {
        "words": bert.embeddings.word_embeddings.weight
    }  # tied: from both places where it is used
    return {"vectors": vectors, "pull": pull} | {
        f"gradients.{name}": part.grad for name, part in parameters.items()
    }


FOLDERS = {"tiny-splade": write}
