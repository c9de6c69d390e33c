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


def head_names(dense: str, norm: str, decoder: str, bias: str) -> dict[str, str]:
    """Our name -> the file's, for each parameter of the masked-language head."""
    named = {"dense": dense, "norm": norm}
    names = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in named.items() for part in ("weight", "bias")}
    return names | {"words": f"{decoder}.weight", "bias": bias}


# by family: the class of transformers with the head, and the head's names in its files
CLS, VOCAB, PROJECTOR = "cls.predictions", ("vocab_transform", "vocab_layer_norm"), "vocab_projector"
BERT_HEAD = head_names(f"{CLS}.transform.dense", f"{CLS}.transform.LayerNorm", f"{CLS}.decoder", f"{CLS}.bias")
HEADS = {
    "bert": ("BertForMaskedLM", BERT_HEAD),
    "distilbert": ("DistilBertForMaskedLM", head_names(*VOCAB, PROJECTOR, f"{PROJECTOR}.bias")),
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
        reason = f"a SparseEncoder is a {' or a '.join(kind for kind, _ in HEADS.values())}"
        raise unsupported(folder.path / CONFIG, "model_type", config.model_type, reason)
    (kind, names), path = HEADS[config.model_type], weight_files(folder)[0]
    own_bias = names["words"].replace(".weight", ".bias")  # of the decoder, which transformers prefers
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with reading(file), safe_open(file, "pt") as tensors:
            keys = {FAMILIES[config.model_type].canonical(key): key for key in tensors.keys()}  # noqa: SIM118
            found |= {name: tensors.get_tensor(keys[name]) for name in {*names.values(), own_bias} & keys.keys()}
    words, tied = bert.embeddings.word.weight, folder.json(CONFIG).get("tie_word_embeddings", True)
    if tied:
        found.setdefault(names["words"], words)
    found[names["bias"]] = found.pop(own_bias, found.get(names["bias"]))
    if missing := [name for name in names.values() if found.get(name) is None]:
        raise InputError(f"{path} has no {missing[0]}: a SparseEncoder needs the masked-language head of a {kind}")
    with torch.device("meta"), Unfilled():
        head = MaskedHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)
    fill(head, found, path, names)
    if tied and torch.equal(head.words, words):
        head.words = words  # one parameter, as it is trained
    return head


def save_masked(bert: Bert, head: MaskedHead, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` of encoder and head, as transformers has them, float32."""
    family, (kind, names) = FAMILIES[bert.config.model_type], HEADS[bert.config.model_type]
    tied = head.words is bert.embeddings.word.weight
    about = {"architectures": [kind], "tie_word_embeddings": tied}
    write_json(folder / CONFIG, stored_config(bert.config) | about)
    tensors = {family.prefix + name: tensor for name, tensor in named_tensors(bert).items()}
    tensors |= {names[ours]: part.float() for ours, part in head.named_parameters() if not tied or ours != "words"}
    if not tied:
        tensors[names["words"].replace(".weight", ".bias")] = head.bias.float()  # the one that transformers reads
    write_safetensors(tensors, folder / WEIGHTS)
