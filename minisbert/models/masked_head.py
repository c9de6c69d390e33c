"""BERT's masked-language head: how well each word of the vocabulary fits in a token's place (BERT, section 3.1).

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from minisbert.architectures.relatives import FAMILIES
from minisbert.core import InputError, reading
from minisbert.core.bert import Bert, LayerNorm, gelu
from minisbert.core.weights import fill
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import CONFIG, WEIGHTS, unsupported
from minisbert.folder.weights import Unfilled, named_tensors, stored_config, weight_files, write_safetensors
from minisbert.system.files import write_json

# by family: the class of transformers with the head, and the head's parameters in its files
HEADS = {
    "bert": (
        "BertForMaskedLM",
        {
            "dense.weight": "cls.predictions.transform.dense.weight",
            "dense.bias": "cls.predictions.transform.dense.bias",
            "norm.weight": "cls.predictions.transform.LayerNorm.weight",
            "norm.bias": "cls.predictions.transform.LayerNorm.bias",
            "words": "cls.predictions.decoder.weight",
            "bias": "cls.predictions.bias",
        },
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "dense.weight": "vocab_transform.weight",
            "dense.bias": "vocab_transform.bias",
            "norm.weight": "vocab_layer_norm.weight",
            "norm.bias": "vocab_layer_norm.bias",
            "words": "vocab_projector.weight",
            "bias": "vocab_projector.bias",
        },
    ),
}


class MaskedHead(nn.Module):
    """A dense layer, GELU and LayerNorm, then the product with every word: (..., D) -> (..., V).

    ``words`` (V, D) is the table of word embeddings again (it is tied), unless the file has another.
    """

    def __init__(self, width: int, words: int, eps: float):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = LayerNorm(width, eps)
        self.words = nn.Parameter(torch.empty(words, width))
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(gelu(self.dense(hidden))) @ self.words.T + self.bias


def load_head(folder: ModelFolder, bert: Bert) -> MaskedHead:
    """The masked-language head in an encoder's folder. Raises ``InputError`` by file and key if it has none."""
    config = bert.config
    if config.model_type not in HEADS:
        reason = f"a SparseEncoder is a {' or a '.join(name for name, _ in HEADS.values())}"
        raise unsupported(folder.path / CONFIG, "model_type", config.model_type, reason)
    class_name, names = HEADS[config.model_type]
    decoder_bias = bias_of(names["words"])
    found = read_tensors(folder, {*names.values(), decoder_bias})
    words = bert.embeddings.word.weight
    tied = folder.json(CONFIG).get("tie_word_embeddings", True)
    if tied:
        found.setdefault(names["words"], words)
    if decoder_bias in found:  # transformers prefers it
        found[names["bias"]] = found.pop(decoder_bias)
    path = weight_files(folder)[0]
    for name in names.values():
        if name not in found:
            raise InputError(f"{path} has no {name}: a SparseEncoder needs the masked-language head of a {class_name}")
    with torch.device("meta"), Unfilled():
        head = MaskedHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)
    fill(head, found, path, names)
    if tied and torch.equal(head.words, words):
        head.words = words  # one parameter, as it is trained
    return head


def read_tensors(folder: ModelFolder, names: set[str]) -> dict[str, Tensor]:
    """Those of the tensors that are in the folder's weights."""
    canonical = FAMILIES[folder.model.model_type].canonical
    found = {}
    for file in weight_files(folder):
        with reading(file), safe_open(file, "pt") as tensors:
            stored = {canonical(key): key for key in tensors.keys()}  # noqa: SIM118 (it is no dictionary)
            for name in names & stored.keys():
                found[name] = tensors.get_tensor(stored[name])
    return found


def save_masked(bert: Bert, head: MaskedHead, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` of encoder and head, as transformers has them, float32."""
    family = FAMILIES[bert.config.model_type]
    class_name, names = HEADS[bert.config.model_type]
    tied = head.words is bert.embeddings.word.weight
    about = {"architectures": [class_name], "tie_word_embeddings": tied}
    write_json(folder / CONFIG, stored_config(bert.config) | about)
    tensors = {family.prefix + name: tensor for name, tensor in named_tensors(bert).items()}
    tensors |= {names[ours]: parameter.float() for ours, parameter in head.named_parameters()}
    if tied:
        del tensors[names["words"]]
    else:
        tensors[bias_of(names["words"])] = head.bias.float()  # the one that transformers reads
    write_safetensors(tensors, folder / WEIGHTS)


def bias_of(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"
