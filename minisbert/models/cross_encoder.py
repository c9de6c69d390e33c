"""CrossEncoder folders of sentence-transformers, in both directions: an encoder under transformers' classifier.

    hidden (B, T, D) -> [CLS] (B, D) -> dense, tanh (B, D) -> linear (B, C) -> sigmoid, or nothing

With one label the output is a pair's score; with several, the logits of classes, or behind a sigmoid of labels.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from minisbert.architectures.relatives import CLASSIFIERS, ENCODER_FAMILIES
from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    CrossEncoderSettings,
    unsupported,
)
from minisbert.checkpoints.layout import ModelFolder
from minisbert.checkpoints.weights import (
    Unfilled,
    fill_bert,
    named_tensors,
    read_encoder,
    stored_config,
    write_safetensors,
)
from minisbert.core import InputError, reading
from minisbert.core.heads import JointHead
from minisbert.core.weights import fill
from minisbert.models.pooling import Pooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.files import write_json

# the task of a ``PairModel`` -> the activation after the classifier, as the files name it
ACTIVATIONS = {"binary": "torch.nn.modules.activation.Sigmoid", "logit": "torch.nn.modules.linear.Identity"}


class ClassifierHead(JointHead):
    """The head of transformers' ``BertForSequenceClassification``: BERT's pooler, dropout, a linear layer.

    ``between`` is the pooler's activation, which depends on the family. transformers' RoBERTa and ELECTRA have a second
    dropout, before the pooler.
    """

    def __init__(self, width: int, dropout: float = 0.0, outputs: int = 1, between: type[nn.Module] = nn.Tanh):
        super().__init__(width, width, outputs, dropout)
        self.mlp[1] = between()  # for the ReLU


def read_cross_encoder(
    folder: ModelFolder, limit: int | None = None
) -> tuple[SentenceEncoder, ClassifierHead, str, list[str]]:
    """The encoder, with [CLS] as its pooling, the head, the task and the labels of a folder.

    Raises ``InputError`` for another family's classifier, and for what is missing or misshapen.
    """
    model, known = folder.model, {name: layers for name, *layers in CLASSIFIERS.values()}
    if model.classifier not in known:
        raise unsupported(folder.path / CONFIG, "architectures", model.classifier, f"{', '.join(known)} are")
    if folder.modules not in ([], [("Transformer", ".")]):
        raise unsupported(folder.path / MODULES_FILE, "modules", folder.modules, "a CrossEncoder has one Transformer")
    dense, out, between = known[model.classifier]
    family, config = folder.config
    path, tensors = read_encoder(folder)
    names = {ours: family.canonical(name) for ours, name in head_names(dense, out).items()}
    stored = {name: tensors.pop(name) for name in names.values() if name in tensors}
    bias = stored.get(names["mlp.3.bias"])
    outputs = 1 if bias is None else bias.numel()
    labels = []
    if outputs > 1:
        labels = [model.id2label.get(str(i), f"LABEL_{i}") for i in range(outputs)]
    rates = model.classifier_dropout, model.seq_classif_dropout, config.hidden_dropout_prob
    rate = next(rate for rate in rates if rate is not None)
    task = read_task(folder, outputs)
    with reading(folder.path / CONFIG), torch.device("meta"), Unfilled():  # the weights are replaced at once
        head = ClassifierHead(config.hidden_size, rate, outputs, between)
    fill(head, stored, path, names)
    bert = fill_bert(folder, path, tensors)
    encoder = SentenceEncoder(Tokenizer.load(folder, limit), bert, Pooling("cls"), normalize=False)
    return encoder, head, task, labels


def head_names(dense: str, out: str) -> dict[str, str]:
    """The head's parameters -> their names in a file, from the names of its two layers."""
    return {
        "mlp.0.weight": f"{dense}.weight",
        "mlp.0.bias": f"{dense}.bias",
        "mlp.3.weight": f"{out}.weight",
        "mlp.3.bias": f"{out}.bias",
    }


def read_task(folder: ModelFolder, outputs: int) -> str:
    """The task by the activation after the classifier. Raises ``InputError`` for one that is not supported."""
    path, settings, model = folder.path / SENTENCE, CrossEncoderSettings(), folder.model
    if folder.described:
        settings = CrossEncoderSettings.read(folder.json_settings(SENTENCE))
    if settings.default_prompt_name is not None:
        reason = "a CrossEncoder's prompts are not"
        raise unsupported(path, "default_prompt_name", settings.default_prompt_name, reason)
    activation = settings.activation_fn
    if activation is None:  # older files
        path = folder.path / CONFIG
        activation = model.sentence_transformers.get("activation_fn") or model.sbert_ce_default_activation_function
    tasks = {name: task for task, name in ACTIVATIONS.items()}
    if outputs > 1:  # one of them is true, or each may be
        tasks = {ACTIVATIONS["logit"]: "classes", ACTIVATIONS["binary"]: "labels"}
    if activation is None:
        activation = next(iter(tasks))
    if activation not in tasks:
        raise unsupported(path, "activation_fn", activation, f"{', '.join(tasks)} are")
    task = tasks[activation]
    if task == "logit" and model.minisbert.get("task") == "regression":
        return "regression"
    return task


def check_writable(encoder: SentenceEncoder, head: ClassifierHead) -> None:
    """Raise ``InputError`` if a CrossEncoder's files cannot hold encoder and head."""
    kind = encoder.bert.config.model_type
    between = CLASSIFIERS[kind][-1]
    if not isinstance(head.mlp[1], between):
        raise InputError(f"a CrossEncoder of {kind} has {between.__name__} in its head, not {head.mlp[1]}")
    if encoder.tokenizer.more_text_settings.get("do_lower_case"):
        raise InputError("do_lower_case of sentence_bert_config.json has no place in a CrossEncoder's files")


def write_cross_encoder(
    encoder: SentenceEncoder, head: ClassifierHead, task: str, labels: Sequence[str], folder: Path
) -> None:
    """The files of a CrossEncoder into an empty folder, float32."""
    family = ENCODER_FAMILIES[encoder.bert.config.model_type]
    architecture, dense, out, _ = CLASSIFIERS[family.model_type]
    labels = labels or ["LABEL_0"]
    dropout = "seq_classif_dropout" if family.model_type == "distilbert" else "classifier_dropout"
    activation = ACTIVATIONS["binary" if task in ("binary", "labels") else "logit"]
    about = {
        "architectures": [architecture],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        dropout: head.settings["dropout"],
        "sentence_transformers": {"activation_fn": activation},
        "minisbert": {"task": task},  # a regression's scores are 0 to 5 here, and 0 to 1 in sentence-transformers
    }
    write_json(folder / CONFIG, stored_config(encoder.bert.config) | about)
    tensors = {}
    for name, tensor in named_tensors(encoder.bert).items():
        if not name.startswith("pooler."):  # the head has its own
            tensors[family.prefix + name] = tensor
    for ours, name in head_names(dense, out).items():
        tensors[name] = head.get_parameter(ours).float()
    write_safetensors(tensors, folder / WEIGHTS)
    encoder.tokenizer.save(folder)
    stated = ModelFolder(folder).json(TOKENIZER_CONFIG)  # the place of a CrossEncoder's maximum length
    write_json(folder / TOKENIZER_CONFIG, stated | {"model_max_length": encoder.tokenizer.limit})
