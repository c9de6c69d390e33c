"""A tiny MultiVectorEncoder, random in every parameter: BERT, a projection to 7 columns, fillers
and skipped words.
"""

import tempfile
from pathlib import Path

import torch
import transformers
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from tests.reference.make_reference import LIMIT, SIZES, ids_of, randomise, vocabulary
from tests.reference.texts import SENTENCES

TOKENS = {"module_input_name": "token_embeddings"}


def write(folder: Path) -> None:
    encoder = transformers.BertModel(transformers.BertConfig(**SIZES))
    randomise(encoder, seed=51)
    with tempfile.TemporaryDirectory() as plain:
        encoder.save_pretrained(plain)
        transformers.BertTokenizer(
            vocab=ids_of(vocabulary()), model_max_length=LIMIT
        ).save_pretrained(plain)
        first = Transformer(
            plain, document_length=12, query_expansion={"strategy": "fixed", "length": 9}
        )
        dense = Dense(
            SIZES["hidden_size"], 7, bias=False, activation_function=nn.Identity(), **TOKENS
        )
        randomise(dense, seed=52)
        modules = [
            first,
            dense,
            MultiVectorMask(skiplist_words=[",", ".", "the"]),
            Normalize(**TOKENS),
        ]
        prompts = {"query": "[unused0] ", "document": "[unused1] "}
        model = MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")
        model.save_pretrained(str(folder), create_model_card=False)


def golden(name: str) -> dict[str, Tensor]:
    """Tokens' vectors of ``SENTENCES`` as queries and as documents, one after the other, and the
    latter's gradients.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        model = MultiVectorEncoder(str(Path(folder) / name), device="cpu").double().eval()
    found = {
        "queries": model.encode_query(list(SENTENCES)),
        "documents": model.encode_document(list(SENTENCES)),
    }
    values = {
        side: torch.cat([torch.as_tensor(matrix) for matrix in matrices])
        for side, matrices in found.items()
    }
    values |= {
        f"{side}.lengths": torch.tensor([*map(len, matrices)]) for side, matrices in found.items()
    }
    features = model(
        model.preprocess([f"[unused1] {text}" for text in SENTENCES], task="document"),
        task="document",
    )
    vectors = features["token_embeddings"][features["attention_mask"].bool()]
    pull = torch.randn(
        vectors.shape, generator=torch.Generator().manual_seed(53), dtype=torch.float64
    )
    (vectors * pull).sum().backward()
    words = model[0].model.embeddings.word_embeddings.weight
    return values | {
        "pull": pull,
        "gradients.projection": model[1].linear.weight.grad,
        "gradients.words": words.grad,
    }


FOLDERS = {"tiny-colbert": write}
