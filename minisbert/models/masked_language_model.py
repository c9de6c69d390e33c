"""Predict masked words: how every sentence encoder's weights began (BERT, 3.1).

    model = MaskedLanguageModel.load("runs/from-nothing/model")
    model.fill_mask("A cat [MASK] on the mat.")  # [("sits", 0.31), ("is", 0.12), ...]

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.checkpoints.layout import (
    CONFIG,
    WEIGHTS,
    EncoderSettings,
    ModelFolder,
    unsupported,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.weights import (
    fill,
    named_tensors,
    read_weights,
    stored_config,
    unfilled,
    weight_files,
    write_safetensors,
)
from minisbert.core import InputError, one_line
from minisbert.core.bert import LayerNorm
from minisbert.models.pooling import Dense, ModelPooling
from minisbert.models.properties import check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.transformer_encoder import evaluating
from minisbert.system.files import write_json

MASK = "[MASK]"
# The class of transformers that has the head, by family.
MASKED_CLASSES = {"bert": "BertForMaskedLM", "distilbert": "DistilBertForMaskedLM"}
# The names of the head's parameters in files, by family.
MASKED_HEAD_NAMES = {
    "bert": {
        "dense.weight": "cls.predictions.transform.dense.weight",
        "dense.bias": "cls.predictions.transform.dense.bias",
        "norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "words": "cls.predictions.decoder.weight",
        "bias": "cls.predictions.bias",
    },
    "distilbert": {
        "dense.weight": "vocab_transform.weight",
        "dense.bias": "vocab_transform.bias",
        "norm.weight": "vocab_layer_norm.weight",
        "norm.bias": "vocab_layer_norm.bias",
        "words": "vocab_projector.weight",
        "bias": "vocab_projector.bias",
    },
}
# If a file has both, transformers takes this one and not "cls.predictions.bias".
DECODER_BIAS = "cls.predictions.decoder.bias"


class MaskedHead(nn.Module):
    """A dense layer, GELU and LayerNorm, then the product with every word: (..., D) -> (..., V).

    ``words`` (V, D) is the table of word embeddings again (it is tied), unless the file has
    another.
    """

    def __init__(self, width: int, vocab_size: int, eps: float):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = LayerNorm(width, eps)
        self.words = nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        x = nn.functional.gelu(self.dense(hidden))  # (..., D)
        x = self.norm(x)
        return x @ self.words.T + self.bias  # (..., V)


def load_head(folder: ModelFolder, bert: Encoder) -> MaskedHead:
    """Open the masked-language head in an encoder's folder; ``InputError`` if it has none."""
    config = bert.config
    if config.model_type not in MASKED_CLASSES:
        classes = " or a ".join(MASKED_CLASSES.values())
        reason = f"a masked-language head is read from a {classes}"
        raise unsupported(folder.path / CONFIG, "model_type", config.model_type, reason)

    names = MASKED_HEAD_NAMES[config.model_type]
    canonical = ENCODER_FAMILIES[config.model_type].canonical
    tensors: dict[str, Tensor] = {}
    files = weight_files(folder)
    for file in files:
        for name, tensor in read_weights(file).items():
            tensors[canonical(name)] = tensor

    # Most files leave out the table of words, which is the embeddings' again.
    words = bert.embeddings.word.weight
    tied = folder.json(CONFIG).get("tie_word_embeddings", True)
    if tied:
        tensors.setdefault(names["words"], words)
    if DECODER_BIAS in tensors:
        tensors[names["bias"]] = tensors[DECODER_BIAS]

    path = files[-1]  # for messages: most models have a single file
    for name in names.values():
        if name not in tensors:
            expected = MASKED_CLASSES[config.model_type]
            raise InputError(
                f"{path} has no {name}: the masked-language head of a {expected} is needed"
            )
    with unfilled():  # the weights are replaced at once
        head = MaskedHead(config.hidden_size, config.vocab_size, config.layer_norm_eps)
    fill(head, {name: tensors[name] for name in names.values()}, path, names)
    if tied and torch.equal(head.words, words):
        head.words = cast(nn.Parameter, words)  # one parameter, as it is trained
    return head


def save_masked(bert: Encoder, head: MaskedHead, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as transformers has them, float32."""
    family = ENCODER_FAMILIES[bert.config.model_type]
    names = MASKED_HEAD_NAMES[bert.config.model_type]
    tied = head.words is bert.embeddings.word.weight
    description = {
        "architectures": [MASKED_CLASSES[family.model_type]],
        "tie_word_embeddings": tied,
    }
    write_json(folder / CONFIG, stored_config(bert.config) | description)
    tensors = {family.prefix + name: tensor for name, tensor in named_tensors(bert).items()}
    for ours, parameter in head.named_parameters():
        tensors[names[ours]] = parameter.float()
    # transformers ties the words on loading, and expects the bias under a second name if they are
    # not tied.
    if tied:
        del tensors[names["words"]]
    elif family.model_type == "bert":
        tensors[DECODER_BIAS] = head.bias.float()
    write_safetensors(tensors, folder / WEIGHTS)


class MaskedLanguageModel(SentenceEncoder):
    """A ``SentenceEncoder`` that also predicts masked words.

    ``save`` writes a BertForMaskedLM beside the modules of sentence-transformers, so the folder
    opens as either.
    """

    def __init__(
        self,
        head: MaskedHead,
        tokenizer: ModelTokenizer,
        bert: Encoder,
        pooling: ModelPooling,
        normalize: bool = False,
        dense: Sequence[Dense] = (),
        settings: EncoderSettings | None = None,
    ):
        super().__init__(tokenizer, bert, pooling, normalize, dense, settings)
        self.head = head
        mask_id = self.tokenizer.backend.token_to_id(MASK)
        if mask_id is None:
            raise InputError(f"the vocabulary has no {MASK}, which stands for a word to predict")
        self.mask_id = mask_id
        added = self.tokenizer.backend.get_added_tokens_decoder()
        self.special_ids = [i for i, token in added.items() if token.special]

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        plain = SentenceEncoder.from_folder(folder, pooling, limit)
        dense = [cast(Dense, layer) for layer in plain.dense]
        return cls(
            load_head(folder.encoder, plain.bert),
            plain.tokenizer,
            plain.bert,
            plain.pooling,
            plain.normalize,
            dense,
            plain.settings,
        ).eval()

    def logits(
        self, ids: Tensor, mask: Tensor | None, chosen: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Score each word at the N places that ``chosen`` (B, T) marks -> logits (N, V)."""
        hidden = self.hidden(ids, mask, None, dtype)[chosen]  # (N, D)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.head(hidden).to(self.dtype)

    def fill_mask(self, text: str, top: int = 5) -> list[tuple[str, float]]:
        """Return the ``top`` most probable words for the first [MASK], and their probabilities."""
        check_count("top", top)
        ids = torch.tensor(self.tokenizer.encode([text]).ids, device=self.device)  # (1, T)
        places = (ids == self.mask_id).nonzero()
        if not len(places):
            raise InputError(f"the text {one_line(text)} has no {MASK}")
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        chosen[tuple(places[0])] = True
        with evaluating(self):
            probabilities = self.logits(ids, None, chosen)[0].softmax(dim=0)  # (V,)
        # topk refuses a number beyond the size of the vocabulary.
        best = probabilities.topk(min(top, len(probabilities)))
        words = cast(list[str], self.tokenizer.tokens(best.indices.tolist()))  # all ids have one
        return list(zip(words, best.values.tolist(), strict=True))

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        super().write(folder)
        save_masked(self.bert, self.head, folder)
