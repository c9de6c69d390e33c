"""SPLADE: a text as weights of words, its own and related ones, of which most are 0 (Formal et al. 2021).

BERT's masked-language head says for each token which words could stand in its place; a word's weight is the highest
over the tokens, damped by a logarithm: one number for each of the V words of the vocabulary. Texts are compared by
dot products, so an inverted index searches them. Models are ``SparseEncoder`` folders of sentence-transformers.

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary, N texts.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from minisbert.core import InputError, reading
from minisbert.core.bert import Bert, LayerNorm, gelu
from minisbert.core.checks import check, check_texts
from minisbert.core.weights import fill
from minisbert.models.checkpoint import (
    Unfilled,
    load_bert,
    named_tensors,
    stored_config,
    weight_files,
    write_safetensors,
)
from minisbert.models.encoding import BATCH_TOKENS
from minisbert.models.families import FAMILIES
from minisbert.models.folders import ModelFolder
from minisbert.models.layout import write_modules, write_settings
from minisbert.models.modern.inverted import sparse_rows, sparse_top_k
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.settings import CONFIG, ONLY_MASKED, SENTENCE, WEIGHTS, unsupported
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.console import Progress
from minisbert.system.files import write_json

CHUNK = 256  # texts whose vectors have their zeros in memory at the same time: 30 MB for BERT's vocabulary


def splade_pool(logits: Tensor, mask: Tensor | None = None, mode: str = "max") -> Tensor:
    """log(1 + relu(logit)) of every word at every token, the largest or the sum over tokens: (B, T, V) -> (B, V).

    Formal et al. 2021, arXiv 2109.10086 (max) and 2107.05720 (sum). mask (B, T), True for real tokens.
    Two tokens with logits [e - 1, -3] and [e^2 - 1, 0] give [2, 0] by max and [3, 0] by sum.
    """
    if mode == "sum":
        weights = logits.relu().log1p()  # (B, T, V)
        return (weights if mask is None else weights * mask.unsqueeze(-1)).sum(dim=1)
    if mask is not None:
        logits = logits.masked_fill(~mask.bool().unsqueeze(-1), -torch.inf)
    # subtle: log and relu never decrease, so they may follow the maximum: V numbers a text, not T V
    return logits.max(dim=1).values.relu().log1p()


def flops_loss(vectors: Tensor) -> Tensor:
    """The sum over words of the squared mean weight in a batch (Paria et al. 2020): (B, V) -> scalar.

    A word's mean is about how often it is in a text, and its square how often two texts must be compared for it.
    [[1, 0], [3, 0]] costs 4, [[2, 0], [0, 2]] costs 2: the same weights, but two words share the work.
    """
    return vectors.mean(dim=0).square().sum()


def parts(dense: str, norm: str, decoder: str, bias: str) -> dict[str, str]:
    """Our name -> the file's, for each parameter of the masked-language head."""
    named = {"dense": dense, "norm": norm}
    names = {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in named.items() for part in ("weight", "bias")}
    return names | {"words": f"{decoder}.weight", "bias": bias}


# by family: the class of transformers with the head, and the head's names in its files
CLS, VOCAB, PROJECTOR = "cls.predictions", ("vocab_transform", "vocab_layer_norm"), "vocab_projector"
BERT_HEAD = parts(f"{CLS}.transform.dense", f"{CLS}.transform.LayerNorm", f"{CLS}.decoder", f"{CLS}.bias")
HEADS = {
    "bert": ("BertForMaskedLM", BERT_HEAD),
    "distilbert": ("DistilBertForMaskedLM", parts(*VOCAB, PROJECTOR, f"{PROJECTOR}.bias")),
}


class SpladePooling(nn.Module):
    """The masked-language head and ``splade_pool``, in the place of another model's pooling.

    ``words`` (V, D) is the table of word embeddings again unless the file has another.
    """

    names: tuple[str, ...] = ()  # of the poolings of ``models/poolings.py``
    score = None

    def __init__(self, width: int, words: int, eps: float, mode: str = "max"):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = LayerNorm(width, eps)
        self.words = nn.Parameter(torch.empty(words, width))
        self.bias = nn.Parameter(torch.zeros(words))
        self.strategy = mode

    @property
    def mode(self) -> str:
        return f"splade-{self.strategy}"

    def width(self, hidden_size: int) -> int:
        return len(self.bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V): how well each word fits in a token's place (BERT, section 3.1)."""
        return self.norm(gelu(self.dense(hidden))) @ self.words.T + self.bias

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: Any) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> weights of words (B, V), text by text, for (B, T, V) is large."""
        masks = [None] * len(hidden) if mask is None else mask.bool()
        real = [text if own is None else text[own] for text, own in zip(hidden, masks, strict=True)]
        return torch.cat([splade_pool(self.logits(text).unsqueeze(0), None, self.strategy) for text in real])


@dataclass(frozen=True)
class SpladeSettings:
    """``1_SpladePooling/config.json``."""

    pooling_strategy: Annotated[str, "max|sum"] = "max"
    activation_function: Annotated[str, "relu"] = "relu"


class SparseEncoder(SentenceEncoder):
    """``SentenceEncoder`` whose vectors have a column for each word of the vocabulary, most of them 0.

    ``encode`` gives arrays (N, V) as ever; with ``convert="sparse"`` a CSR tensor.
    """

    searched: ClassVar[dict[str, Any]] = {"convert": "sparse"}
    top_k = staticmethod(sparse_top_k)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> "SparseEncoder":
        if pooling is not None:
            raise InputError(f"pooling {pooling}: {folder.path} is a SparseEncoder, whose pooling is its own")
        places = folder.places("SpladePooling")  # checks the modules; a model of transformers has none
        settings = folder.parse(f"{places[0]}/{CONFIG}", SpladeSettings) if places else SpladeSettings()
        bert = load_bert(folder.encoder)
        head = load_head(folder.encoder, bert, settings.pooling_strategy)
        stated = folder.settings
        if folder.json(SENTENCE).get("similarity_fn_name") is None:
            stated = replace(stated, similarity_fn_name="dot")
        tokenizer = Tokenizer.load(folder.encoder, limit, ONLY_MASKED)
        return cls(tokenizer, bert, head, False, (), stated).eval()

    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | Progress = False,
        *,
        convert: str = "array",
        top: int | None = None,
        **options: Any,
    ) -> np.ndarray | Tensor | list:
        """As ``SentenceEncoder.encode``; with ``convert="sparse"`` a CSR tensor (N, V), in little memory.

        ``top`` keeps the largest weights of each text. Raises ``InputError`` as ``SentenceEncoder.encode`` does.
        """
        if convert != "sparse" and top is None:
            return super().encode(texts, batch_tokens, progress, convert=convert, **options)
        with reading("encode"):
            check("convert sparse, output sentence", convert, options.get("output", "sentence"))
            check("top an integer from 1", 1 if top is None else top)
        texts, truncated = check_texts(texts), 0
        parts = [torch.empty(0, self.width, dtype=self.dtype).to_sparse()]
        shown = nullcontext(progress) if isinstance(progress, Progress) else Progress(len(texts), progress)
        with shown as line:
            for start in range(0, len(texts), CHUNK):
                dense = super().encode(texts[start : start + CHUNK], batch_tokens, line, convert="tensor", **options)
                parts, truncated = [*parts, sparse_rows(dense, top).to_sparse_coo()], truncated + self.truncated
        self.truncated = truncated
        return torch.cat(parts).to_sparse_csr()

    def words(self, rows: Tensor, top: int = 10) -> list[list[tuple[str, float]]]:
        """The heaviest words of each text, from sparse rows (N, V): ``[[("cat", 1.9), ("kitten", 0.7)], ...]``."""
        found = []
        for i in range(len(rows)):
            row = slice(*rows.crow_indices()[i : i + 2].tolist())
            words, weights = rows.col_indices()[row], rows.values()[row]
            best = weights.argsort(descending=True, stable=True)[:top]
            names = map(self.tokenizer.backend.id_to_token, words[best].tolist())
            found.append(list(zip(names, weights[best].tolist(), strict=True)))
        return found

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> np.ndarray:
        """As ``SentenceEncoder.similarity``, also of sparse tensors; by default the dot product."""
        return super().similarity(*(x.to_dense().numpy() if isinstance(x, Tensor) else x for x in (a, b)))

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        family, head = FAMILIES[self.bert.config.model_type], self.pooling
        (kind, names), tied = HEADS[family.model_type], head.words is self.bert.embeddings.word.weight
        about = {"architectures": [kind], "tie_word_embeddings": tied}
        write_json(folder / CONFIG, stored_config(self.bert.config) | about)
        tensors = {family.prefix + name: tensor for name, tensor in named_tensors(self.bert).items()}
        tensors |= {names[ours]: part.float() for ours, part in head.named_parameters() if not tied or ours != "words"}
        if not tied:
            tensors[names["words"].replace(".weight", ".bias")] = head.bias.float()  # the one that transformers reads
        write_safetensors(tensors, folder / WEIGHTS)
        self.tokenizer.save(folder)
        _, place = write_modules(folder, ["MLMTransformer", "SpladePooling"], "sparse_encoder.models")
        pooling = {"pooling_strategy": head.strategy, "activation_function": "relu", "embedding_dimension": self.width}
        write_json(folder / place / CONFIG, pooling)
        write_settings(self, folder, model_type="SparseEncoder")


def load_head(folder: ModelFolder, bert: Bert, mode: str) -> SpladePooling:
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
        head = SpladePooling(config.hidden_size, config.vocab_size, config.layer_norm_eps, mode)
    fill(head, found, path, names)
    if tied and torch.equal(head.words, words):
        head.words = words  # one parameter, as it is trained
    return head
