"""All families by name: BERT, its relatives, and what came after them.

bert         the book's encoder
electra      BERT, trained as a discriminator, without a pooler; only those whose embeddings are as
             wide as the hidden states
roberta      BERT's names; positions start after the padding index, one token type
xlm-roberta  RoBERTa for many languages: only its own name differs
camembert    RoBERTa for French: only its own name differs

DistilBERT, MPNet, ModernBERT, Qwen3 and Gemma 3 have their own encoders, each in its file.

Imports ``core`` and the files beside this one.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from minisbert.architectures.distilbert import DISTILBERT
from minisbert.architectures.families import (
    ENCODER_ONLY,
    ROBERTA_SKIPPED,
    Family,
    weights_and_biases,
)
from minisbert.architectures.gemma3 import GEMMA
from minisbert.architectures.modernbert import MODERNBERT
from minisbert.architectures.mpnet import MPNET
from minisbert.architectures.offset_encoder import OffsetConfig, OffsetEncoder
from minisbert.architectures.qwen3 import QWEN3
from minisbert.core import InputError, one_line, read_json
from minisbert.core.bert import Bert
from minisbert.core.checks import check_integer
from minisbert.core.weights import BertConfig
from minisbert.system.reading import reading

BERT = Family(
    model_type="bert",
    architecture="BertModel",
    config=BertConfig,
    encoder=Bert,
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
    },
    modules={
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
        "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
    },
    pooler={"pooler": "pooler.dense"},
    prefix="bert.",
    skipped=frozenset(
        {"embeddings.position_ids"}  # 0, 1, 2, ...: a constant that old versions saved
        | {"cls.predictions.bias"}  # the heads of pre-training: masked words and next sentence
        | weights_and_biases("cls.predictions.transform.dense")
        | weights_and_biases("cls.predictions.transform.LayerNorm")
        | weights_and_biases("cls.predictions.decoder", "cls.seq_relationship")
    ),
    accepted=ENCODER_ONLY,
)


class ElectraFamily(Family):
    """ELECTRA's settings: BERT's, and the width of the embeddings."""

    def check(self, raw: dict[str, Any]) -> None:
        """Raise ``ValueError`` also for embeddings of another width than the hidden states.

        ELECTRA small has them, and a projection between the two.
        """
        super().check(raw)
        embedding_size = raw.get("embedding_size")
        if embedding_size is not None and embedding_size != raw["hidden_size"]:
            raise ValueError(
                f"embedding_size {one_line(embedding_size)} is not supported, only that of "
                f"hidden_size is: an ELECTRA small projects its embeddings"
            )

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return BERT's fields, and the width of the embeddings: that of the hidden states.

        It must be written, because transformers takes 128 for a file without it.
        """
        return {"embedding_size": config["hidden_size"]} | super().write(config)


class RobertaFamily(Family):
    """RoBERTa's settings: BERT's, and where positions start."""

    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the settings, and the positions' offset, which follows from the padding index."""
        # A key that is null counts as missing: the padding index is then 1.
        content = {"pad_token_id": 1}
        for key, value in super().fields(raw).items():
            if value is not None:
                content[key] = value
        check_integer("pad_token_id", content["pad_token_id"], least=0)
        # subtle: fairseq, where RoBERTa was made, gives padding the position equal to its id, and
        # the first token the next one
        content["position_offset"] = content["pad_token_id"] + 1
        return content

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return BERT's fields; the offset follows from the padding index."""
        content = super().write(config)
        del content["position_offset"]
        return content


ELECTRA = ElectraFamily(
    model_type="electra",
    architecture="ElectraModel",
    config=BertConfig,
    encoder=Bert,
    tables=BERT.tables,
    modules=BERT.modules,
    prefix="electra.",
    skipped=frozenset(
        {"embeddings.position_ids"}
        | weights_and_biases("discriminator_predictions.dense")
        | weights_and_biases("discriminator_predictions.dense_prediction")
    ),
    accepted=ENCODER_ONLY,
)
ROBERTA = RobertaFamily(
    model_type="roberta",
    architecture="RobertaModel",
    config=OffsetConfig,
    encoder=OffsetEncoder,
    tables=BERT.tables,
    modules=BERT.modules,
    pooler=BERT.pooler,
    prefix="roberta.",
    skipped=ROBERTA_SKIPPED,
    accepted=ENCODER_ONLY,
)
XLM_ROBERTA = replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRobertaModel")
CAMEMBERT = replace(ROBERTA, model_type="camembert", architecture="CamembertModel")

# the encoders whose layers are the book's
RELATIVES = (BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA)
ENCODER_FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (*RELATIVES, MPNET, MODERNBERT, QWEN3, GEMMA)
}


def read_config(
    folder: Path,
    families: Mapping[str, Family] = ENCODER_FAMILIES,
    raw: dict[str, Any] | None = None,
) -> tuple[Family, Any]:
    """Return the family and the config in ``config.json``, or in its contents ``raw``.

    Raises ``InputError`` for a family or a setting that is not supported, and for a missing size.
    """
    path = folder / "config.json"
    if raw is None:
        raw = read_json(path)
    model_type = raw.get("model_type")
    family = families.get(str(model_type))
    if family is None:
        supported = ", ".join(families)
        raise InputError(
            f"{path}: model_type {one_line(model_type)} is not supported; {supported} are"
        )
    with reading(path):
        return family, family.read(raw)


class Classifier(NamedTuple):
    """transformers' head for classes, which reads the hidden state of [CLS]."""

    architecture: str  # the class, as config.json names it
    dense: str  # the first layer, as files name it
    out: str  # the second layer
    between: type[nn.Module]  # the activation between the two
    norm: str = ""  # the norm after the activation, if the family has one


CLASSIFIERS: dict[str, Classifier] = {
    "bert": Classifier(
        architecture="BertForSequenceClassification",
        dense="bert.pooler.dense",
        out="classifier",
        between=nn.Tanh,
    ),
    "distilbert": Classifier(
        architecture="DistilBertForSequenceClassification",
        dense="pre_classifier",
        out="classifier",
        between=nn.ReLU,
    ),
    "roberta": Classifier(
        architecture="RobertaForSequenceClassification",
        dense="classifier.dense",
        out="classifier.out_proj",
        between=nn.Tanh,
    ),
    "xlm-roberta": Classifier(
        architecture="XLMRobertaForSequenceClassification",
        dense="classifier.dense",
        out="classifier.out_proj",
        between=nn.Tanh,
    ),
    "camembert": Classifier(
        architecture="CamembertForSequenceClassification",
        dense="classifier.dense",
        out="classifier.out_proj",
        between=nn.Tanh,
    ),
    "electra": Classifier(
        architecture="ElectraForSequenceClassification",
        dense="classifier.dense",
        out="classifier.out_proj",
        between=nn.GELU,
    ),
    "mpnet": Classifier(
        architecture="MPNetForSequenceClassification",
        dense="classifier.dense",
        out="classifier.out_proj",
        between=nn.Tanh,
    ),
    "modernbert": Classifier(
        architecture="ModernBertForSequenceClassification",
        dense="head.dense",
        out="classifier",
        between=nn.GELU,
        norm="head.norm",
    ),
}
