"""CrossEncoder folders of sentence-transformers, in both directions: an encoder under transformers' classifier.

    hidden (B, T, D) -> [CLS] (B, D) -> dense, tanh (B, D) -> linear (B, C) -> sigmoid, or nothing

With one label the output is a pair's score; with several, the logits of classes.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from minisbert.architectures.relatives import CLASSIFIERS, FAMILIES
from minisbert.core import InputError, reading
from minisbert.core.weights import fill
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    CrossEncoderSettings,
    unsupported,
)
from minisbert.folder.weights import (
    Unfilled,
    fill_bert,
    named_tensors,
    read_encoder,
    stored_config,
    write_safetensors,
)
from minisbert.models.heads import ClassifierHead
from minisbert.models.pooling import Pooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.files import write_json

# the activation after the classifier, as the files name it -> the task of a ``PairModel``
ACTIVATION_TASKS = {"torch.nn.modules.activation.Sigmoid": "binary", "torch.nn.modules.linear.Identity": "logit"}


def read_cross_encoder(
    folder: ModelFolder, limit: int | None = None
) -> tuple[SentenceEncoder, ClassifierHead, str, list[str]]:
    """The encoder, with [CLS] as its pooling, the head, the task and the labels of a folder.

    Raises ``InputError`` for another family's classifier, and for what is missing or misshapen.
    """
    kind, layers = folder.model.classifier, {kind: layers for kind, *layers in CLASSIFIERS.values()}
    if kind not in layers:
        raise unsupported(folder.path / CONFIG, "architectures", kind, f"{', '.join(layers)} are")
    if folder.modules not in ([], [("Transformer", ".")]):
        raise unsupported(folder.path / MODULES_FILE, "modules", folder.modules, "a CrossEncoder has one Transformer")
    *layers, between = layers[kind]
    (family, config), (path, found), names = folder.config, read_encoder(folder), head_names(layers)
    tensors = {name: found.pop(name) for name in map(family.canonical, names.values()) if name in found}
    outputs = tensors.get(names["mlp.3.bias"], torch.empty(1)).numel()
    task, known = read_task(folder, outputs), folder.model.id2label
    labels = [known.get(str(i), f"LABEL_{i}") for i in range(outputs)] if outputs > 1 else []
    rates = folder.model.classifier_dropout, folder.model.seq_classif_dropout, config.hidden_dropout_prob
    with reading(folder.path / CONFIG), torch.device("meta"), Unfilled():  # the weights are replaced at once
        rate = next(rate for rate in rates if rate is not None)
        head = ClassifierHead(config.hidden_size, rate, outputs, between)
    fill(head, tensors, path, {ours: family.canonical(theirs) for ours, theirs in names.items()})
    bert = fill_bert(folder, path, found)
    return SentenceEncoder(Tokenizer.load(folder, limit), bert, Pooling("cls"), normalize=False), head, task, labels


def head_names(layers: list[str]) -> dict[str, str]:
    """The head's parameters -> their names in a file, from the names of its two layers."""
    pairs = zip(("mlp.0", "mlp.3"), layers, strict=True)
    return {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in pairs for part in ("weight", "bias")}


def read_task(folder: ModelFolder, outputs: int) -> str:
    """The task by the activation after the classifier. Raises ``InputError`` for one that is not supported."""
    path, own, model = folder.path / SENTENCE, folder.parse(SENTENCE, CrossEncoderSettings), folder.model
    if own.default_prompt_name is not None:
        raise unsupported(path, "default_prompt_name", own.default_prompt_name, "a CrossEncoder's prompts are not")
    name = own.activation_fn
    if name is None:  # older files
        path = folder.path / CONFIG
        name = model.sentence_transformers.get("activation_fn") or model.sbert_ce_default_activation_function
    known = list(ACTIVATION_TASKS)[outputs > 1 :]  # several logits go through no activation
    if name not in (None, *known):
        raise unsupported(path, "activation_fn", name, f"{', '.join(known)} are")
    if outputs > 1:
        return "classes"
    task = ACTIVATION_TASKS[name or known[0]]
    return "regression" if task == "logit" and model.minisbert.get("task") == "regression" else task


def check_writable(encoder: SentenceEncoder, head: ClassifierHead) -> None:
    """Raise ``InputError`` if a CrossEncoder's files cannot hold encoder and head."""
    kind = encoder.bert.config.model_type
    if not isinstance(head.mlp[1], between := CLASSIFIERS[kind][-1]):
        raise InputError(f"a CrossEncoder of {kind} has {between.__name__} in its head, not {head.mlp[1]}")
    if encoder.tokenizer.kept.get("do_lower_case"):
        raise InputError("do_lower_case of sentence_bert_config.json has no place in a CrossEncoder's files")


def write_cross_encoder(
    encoder: SentenceEncoder, head: ClassifierHead, task: str, labels: Sequence[str], folder: Path
) -> None:
    """The files of a CrossEncoder into an empty folder, float32."""
    family = FAMILIES[encoder.bert.config.model_type]
    kind, *layers, _ = CLASSIFIERS[family.model_type]
    labels = labels or ["LABEL_0"]
    dropout = "seq_classif_dropout" if family.model_type == "distilbert" else "classifier_dropout"
    activation = next(name for name, known in ACTIVATION_TASKS.items() if (known == "binary") == (task == "binary"))
    about = {"architectures": [kind], "id2label": {str(i): label for i, label in enumerate(labels)}}
    about |= {"label2id": {label: i for i, label in enumerate(labels)}, dropout: head.settings["dropout"]}
    about["sentence_transformers"] = {"activation_fn": activation}
    about["minisbert"] = {"task": task}  # a regression's scores are 0 to 5 here, and 0 to 1 in sentence-transformers
    write_json(folder / CONFIG, stored_config(encoder.bert.config) | about)
    tensors = {f"{family.prefix}{name}": tensor for name, tensor in named_tensors(encoder.bert).items()}
    tensors = {name: tensor for name, tensor in tensors.items() if ".pooler." not in name}  # the head has its own
    tensors |= {name: head.get_parameter(ours).float() for ours, name in head_names(layers).items()}
    write_safetensors(tensors, folder / WEIGHTS)
    encoder.tokenizer.save(folder)
    stated = ModelFolder(folder).json(TOKENIZER_CONFIG)  # the place of a CrossEncoder's maximum length
    write_json(folder / TOKENIZER_CONFIG, stated | {"model_max_length": encoder.tokenizer.limit})
