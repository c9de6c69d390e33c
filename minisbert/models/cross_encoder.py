"""CrossEncoder folders of sentence-transformers, in both directions: an encoder under transformers' classifier.

    hidden (B, T, D) -> [CLS] (B, D) -> dense, tanh (B, D) -> linear (B, 1) -> sigmoid, or nothing

Only models with one label are read: what they give is a pair's score.
"""

from pathlib import Path

import torch

from minisbert.core import InputError, reading
from minisbert.core.weights import fill
from minisbert.models.checkpoint import (
    Unfilled,
    fill_bert,
    named_tensors,
    read_encoder,
    stored_config,
    write_safetensors,
)
from minisbert.models.families import CLASSIFIERS, FAMILIES
from minisbert.models.folders import ModelFolder
from minisbert.models.heads import ClassifierHead
from minisbert.models.poolings import Pooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.settings import CONFIG, MODULES, OPTIONS, SENTENCE, WEIGHTS, CrossEncoderSettings, unsupported
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.files import write_json

# what follows the classifier, as the files name it -> the task of a ``PairModel``
TASKS = {"torch.nn.modules.activation.Sigmoid": "binary", "torch.nn.modules.linear.Identity": "logit"}


def read_cross_encoder(folder: ModelFolder, limit: int | None = None) -> tuple[SentenceEncoder, ClassifierHead, str]:
    """The encoder, with [CLS] as its pooling, the head and the task of a folder.

    Raises ``InputError`` for another family's classifier, for several labels, and for what is missing or misshapen.
    """
    kind, layers = folder.model.classifier, {kind: layers for kind, *layers in CLASSIFIERS.values()}
    if kind not in layers:
        raise unsupported(folder.path / CONFIG, "architectures", kind, f"{', '.join(layers)} are")
    if folder.modules not in ([], [("Transformer", ".")]):
        raise unsupported(folder.path / MODULES, "modules", folder.modules, "a CrossEncoder has one Transformer")
    task, (family, config), (path, found) = read_task(folder), folder.config, read_encoder(folder)
    names = head_names(layers[kind])
    tensors = {name: found.pop(name) for name in map(family.canonical, names.values()) if name in found}
    labels = tensors.get(names["mlp.3.bias"], torch.empty(1)).numel()
    if labels != 1:
        raise InputError(f"{path}: a CrossEncoder with {labels} labels is not supported, only one with a single score")
    rate = folder.model.classifier_dropout
    with reading(folder.path / CONFIG), torch.device("meta"), Unfilled():  # the weights are replaced at once
        head = ClassifierHead(config.hidden_size, config.hidden_dropout_prob if rate is None else rate)
    fill(head, tensors, path, {ours: family.canonical(theirs) for ours, theirs in names.items()})
    bert = fill_bert(folder, path, found)
    return SentenceEncoder(Tokenizer.load(folder, limit), bert, Pooling("cls"), normalize=False), head, task


def head_names(layers: list[str]) -> dict[str, str]:
    """The head's parameters -> their names in a file, from the names of its two layers."""
    pairs = zip(("mlp.0", "mlp.3"), layers, strict=True)
    return {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in pairs for part in ("weight", "bias")}


def read_task(folder: ModelFolder) -> str:
    """What follows the classifier, as a task. Raises ``InputError`` for settings that are not supported."""
    path, own, model = folder.path / SENTENCE, folder.parse(SENTENCE, CrossEncoderSettings), folder.model
    if own.default_prompt_name is not None:
        raise unsupported(path, "default_prompt_name", own.default_prompt_name, "a CrossEncoder's prompts are not")
    name = own.activation_fn
    if name is None:  # older files
        path = folder.path / CONFIG
        name = model.sentence_transformers.get("activation_fn") or model.sbert_ce_default_activation_function
    task = TASKS.get(str(name or next(iter(TASKS))))
    if task is None:
        raise unsupported(path, "activation_fn", name, f"{', '.join(TASKS)} are")
    return "regression" if task == "logit" and model.minisbert.get("task") == "regression" else task


def check_writable(encoder: SentenceEncoder) -> None:
    """Raise ``InputError`` if a CrossEncoder's files cannot hold the encoder."""
    kind = encoder.bert.config.model_type
    if kind not in CLASSIFIERS:
        raise InputError(f"a CrossEncoder of {kind} is not supported; {', '.join(CLASSIFIERS)} are")
    if encoder.tokenizer.kept.get("do_lower_case"):
        raise InputError("do_lower_case of sentence_bert_config.json has no place in a CrossEncoder's files")


def write_cross_encoder(encoder: SentenceEncoder, head: ClassifierHead, task: str, folder: Path) -> None:
    """The files of a CrossEncoder into an empty folder, float32."""
    family = FAMILIES[encoder.bert.config.model_type]
    kind, *layers = CLASSIFIERS[family.model_type]
    activation = next(name for name, known in TASKS.items() if (known == "binary") == (task == "binary"))
    about = {"architectures": [kind], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    about |= {"classifier_dropout": head.settings["dropout"], "sentence_transformers": {"activation_fn": activation}}
    about["minisbert"] = {"task": task}  # a regression's scores are 0 to 5 here, and 0 to 1 in sentence-transformers
    write_json(folder / CONFIG, stored_config(encoder.bert.config) | about)
    tensors = {f"{family.prefix}{name}": tensor for name, tensor in named_tensors(encoder.bert).items()}
    tensors = {name: tensor for name, tensor in tensors.items() if ".pooler." not in name}  # the head has its own
    tensors |= {name: head.get_parameter(ours).float() for ours, name in head_names(layers).items()}
    write_safetensors(tensors, folder / WEIGHTS)
    encoder.tokenizer.save(folder)
    stated = ModelFolder(folder).json(OPTIONS)  # the place of a CrossEncoder's maximum length
    write_json(folder / OPTIONS, stated | {"model_max_length": encoder.tokenizer.limit})
