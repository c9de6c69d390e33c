"""One explicit name table per checkpoint family: what each of our tensors is called in a file.

A table maps our module's name to the file's; a line with ``{i}`` stands for every layer. Reading and writing
use the same table, so a checkpoint goes through both ways without loss.
"""

from dataclasses import dataclass, field


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
    skipped: frozenset[str] = field(default_factory=frozenset)  # in some files, of no use to an encoder

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
        {
            "embeddings.position_ids",  # 0, 1, 2, ...: a constant that old versions saved
            "cls.predictions.bias",  # the heads of pre-training: masked words and next sentence
            "cls.predictions.transform.dense.weight",
            "cls.predictions.transform.dense.bias",
            "cls.predictions.transform.LayerNorm.weight",
            "cls.predictions.transform.LayerNorm.bias",
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.seq_relationship.weight",
            "cls.seq_relationship.bias",
        }
    ),
)

DIALECTS = {dialect.model_type: dialect for dialect in (BERT,)}
