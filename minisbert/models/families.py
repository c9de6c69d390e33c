"""One explicit name table per checkpoint family: what each of our tensors and settings is called in its files.

A table maps our module's name to the file's; a line with ``{i}`` stands for every layer. Reading and writing
use the same table, so a checkpoint goes through both ways without loss.

    bert        BERT, MiniLM, and most sentence encoders; as ``bert.*`` with gamma and beta where it is old
    distilbert  other names, no token types, no pooler
    roberta     BERT's names; positions start behind the padding index, one token type
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Dialect:
    """The names of one family. ``linears`` and ``norms`` have a weight and a bias each, ``tables`` a weight."""

    model_type: str  # in config.json
    architecture: str  # written to config.json
    tables: dict[str, str]
    norms: dict[str, str]
    linears: dict[str, str]
    pooler: dict[str, str]  # optional: in the file or not
    prefix: str  # stands before every name in files that also hold pre-training heads
    skipped: frozenset[str]  # in some files, of no use to an encoder
    settings: dict[str, str] = field(default_factory=dict)  # our config field -> the file's key, where they differ
    constants: dict[str, Any] = field(default_factory=dict)  # our config fields that the family never states

    def names(self, layers: int, pooler: bool) -> dict[str, str]:
        """Our name -> the file's name, of every tensor of a model with so many layers."""
        modules = self.norms | self.linears | (self.pooler if pooler else {})
        names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in self.tables.items()}
        for ours, theirs in modules.items():
            for i in range(layers) if "{i}" in ours else [0]:
                for part in ("weight", "bias"):
                    names[f"{ours.format(i=i)}.{part}"] = f"{theirs.format(i=i)}.{part}"
        return names

    def canonical(self, name: str) -> str:
        """A name as it stands in a file -> as it stands in the table: without prefix, gamma and beta renamed."""
        name = name.removeprefix(self.prefix)
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):  # TensorFlow's names, in BERT of 2018
            if name.endswith(f"LayerNorm{old}"):
                name = name.removesuffix(old) + new
        return name

    def fields(self, raw: dict) -> dict[str, Any]:
        """The contents of ``config.json`` under our field names, the family's constants filled in."""
        renamed = {theirs: ours for ours, theirs in self.settings.items()}
        found = {renamed.get(key, key): value for key, value in raw.items()} | self.constants
        if self.model_type == "roberta":
            found["position_offset"] = found.get("pad_token_id", 1) + 1
        return found

    def raw(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The inverse: our fields as the family's ``config.json`` has them, what it never states left out."""
        hidden = {*self.constants, "position_offset"}
        return {self.settings.get(name, name): value for name, value in fields.items() if name not in hidden}


def dense(module: str) -> set[str]:
    return {f"{module}.weight", f"{module}.bias"}


BERT = Dialect(
    model_type="bert",
    architecture="BertModel",
    tables={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
    },
    norms={
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
    },
    linears={
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
        "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    },
    pooler={"pooler": "pooler.dense"},
    prefix="bert.",
    skipped=frozenset(
        # 0, 1, 2, ...: a constant that old versions saved
        {"embeddings.position_ids"}
        # the heads of pre-training: masked words and next sentence
        | {"cls.predictions.bias"}
        | dense("cls.predictions.transform.dense")
        | dense("cls.predictions.transform.LayerNorm")
        | dense("cls.predictions.decoder")
        | dense("cls.seq_relationship")
    ),
)

DISTILBERT = Dialect(
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
        {"embeddings.position_ids"} | dense("vocab_transform") | dense("vocab_layer_norm") | dense("vocab_projector")
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
    constants={"type_vocab_size": 0, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"},
)

ROBERTA = Dialect(
    model_type="roberta",
    architecture="RobertaModel",
    tables=BERT.tables,
    norms=BERT.norms,
    linears=BERT.linears,
    pooler=BERT.pooler,
    prefix="roberta.",
    skipped=frozenset(
        {"embeddings.position_ids", "lm_head.bias"}
        | dense("lm_head.dense")
        | dense("lm_head.layer_norm")
        | dense("lm_head.decoder")
    ),
)

DIALECTS = {dialect.model_type: dialect for dialect in (BERT, DISTILBERT, ROBERTA)}
