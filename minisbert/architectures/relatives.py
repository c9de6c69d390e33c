"""The families beyond BERT: what DistilBERT, RoBERTa and others call our tensors and settings.

distilbert   other names, no token types, no pooler, no dropout between attention and the sum
roberta      BERT's names; positions start after the padding index, one token type
xlm-roberta  RoBERTa for many languages: only the name differs; so does camembert, in French
electra      BERT as a discriminator (of embeddings as wide as the hidden states), without a pooler
others       have their own encoders, each in its file

Imports ``core`` and the files beside this one.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from minisbert.architectures.gemma3 import GEMMA
from minisbert.architectures.modernbert import MODERNBERT
from minisbert.architectures.mpnet import MPNET, SKIPPED
from minisbert.architectures.qwen3 import QWEN3
from minisbert.core.checks import check_integer
from minisbert.core.weights import BERT, Family, dense


class DistilBertFamily(Family):
    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Read as transformers does: three sizes under BERT's names too, which win; BERT's other
        names are ignored.
        """
        content = super().fields(
            {key: value for key, value in raw.items() if key not in self.settings}
        )
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if key in raw:
                content[key] = raw[key]
        return content


DISTILBERT = DistilBertFamily(
    model_type="distilbert",
    architecture="DistilBertModel",
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
    },
    norms={
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
        "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
    },
    linears={
        "layers.{i}.attention.query": "transformer.layer.{i}.attention.q_lin",
        "layers.{i}.attention.key": "transformer.layer.{i}.attention.k_lin",
        "layers.{i}.attention.value": "transformer.layer.{i}.attention.v_lin",
        "layers.{i}.attention.output": "transformer.layer.{i}.attention.out_lin",
        "layers.{i}.feed_forward.up": "transformer.layer.{i}.ffn.lin1",
        "layers.{i}.feed_forward.down": "transformer.layer.{i}.ffn.lin2",
    },
    pooler={},
    prefix="distilbert.",
    skipped=frozenset(
        {"embeddings.position_ids"}
        | dense("vocab_transform")
        | dense("vocab_layer_norm")
        | dense("vocab_projector")
    ),
    settings={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "hidden_act": "activation",
    },
    constants={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
    },
)


class RobertaFamily(Family):
    def fields(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of ``config.json``, and the positions' offset, which follows from the
        padding index.
        """
        content = {"pad_token_id": 1}
        for key, value in super().fields(raw).items():
            if value is not None:
                content[key] = value
        check_integer("pad_token_id", content["pad_token_id"], least=0)
        # subtle: the first token has the position after the padding's, which is the padding's id
        # (fairseq's habit)
        return content | {"position_offset": content["pad_token_id"] + 1}


ROBERTA = RobertaFamily(
    **vars(replace(BERT, model_type="roberta", architecture="RobertaModel", prefix="roberta."))
    | {"skipped": SKIPPED}
)
XLM_ROBERTA = replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRobertaModel")
CAMEMBERT = replace(ROBERTA, model_type="camembert", architecture="CamembertModel")
ELECTRA = replace(
    BERT,
    model_type="electra",
    architecture="ElectraModel",
    pooler={},
    prefix="electra.",
    skipped=frozenset(
        {"embeddings.position_ids"}
        | dense("discriminator_predictions.dense")
        | dense("discriminator_predictions.dense_prediction")
    ),
)
RELATIVES = (BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA)
ENCODER_FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (*RELATIVES, MPNET, MODERNBERT, QWEN3, GEMMA)
}

# transformers' classifier on [CLS]: its class, its two layers as files name them, and what is
# between them
CLASSIFIERS: dict[str, tuple[str, str, str, type[nn.Module]]] = {
    "bert": ("BertForSequenceClassification", "bert.pooler.dense", "classifier", nn.Tanh),
    "distilbert": ("DistilBertForSequenceClassification", "pre_classifier", "classifier", nn.ReLU),
    "roberta": (
        "RobertaForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
        nn.Tanh,
    ),
    "xlm-roberta": (
        "XLMRobertaForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
        nn.Tanh,
    ),
    "camembert": (
        "CamembertForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
        nn.Tanh,
    ),
    "electra": (
        "ElectraForSequenceClassification",
        "classifier.dense",
        "classifier.out_proj",
        nn.GELU,
    ),
    "mpnet": ("MPNetForSequenceClassification", "classifier.dense", "classifier.out_proj", nn.Tanh),
}
