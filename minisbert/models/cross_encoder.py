"""CrossEncoder folders of sentence-transformers: an encoder under transformers' classifier.

    hidden (B, T, D) -> [CLS] (B, D) -> dense, tanh (B, D) -> linear (B, C) -> sigmoid, or nothing

ModernBERT's classifier may read the mean of the tokens in place of [CLS], and has a norm after the
dense layer.

With one label the output is a pair's score. With several it is a logit for each. A sigmoid after
them says that several labels may be true; without it they are classes, of which one is true.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from minisbert.architectures.modernbert import ModernBertConfig, ModernBertNorm
from minisbert.architectures.relatives import CLASSIFIERS, ENCODER_FAMILIES, Classifier
from minisbert.checkpoints.layout import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    ModelFolder,
    read_folder,
    unsupported,
)
from minisbert.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer
from minisbert.checkpoints.weights import (
    fill,
    load_transformer,
    named_tensors,
    read_encoder,
    stored_config,
    unfilled,
    write_safetensors,
)
from minisbert.core import InputError
from minisbert.core.heads import JointHead
from minisbert.core.pooling import cls_pool, mean_pool
from minisbert.models.pair_heads import head_settings
from minisbert.models.pooling import ModelPooling
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.files import write_json
from minisbert.system.reading import reading

# The activations after the classifier, as the files name them.
SIGMOID_PATH = "torch.nn.modules.activation.Sigmoid"
IDENTITY_PATH = "torch.nn.modules.linear.Identity"
# The task of a ``PairModel`` that each activation means, with one output and with several.
PAIR_TASKS = {SIGMOID_PATH: "binary", IDENTITY_PATH: "logit"}
LABEL_TASKS = {IDENTITY_PATH: "classes", SIGMOID_PATH: "labels"}
# The settings of ModernBERT's classifier, as config.json has them.
MODERN_POOLINGS = {"cls": cls_pool, "mean": mean_pool}
MODERN_ACTIVATIONS = {"gelu": nn.GELU, "silu": nn.SiLU}


class ClassifierHead(JointHead):
    """The head of transformers' ``BertForSequenceClassification``.

    It is BERT's pooler, dropout and a linear layer. ``between`` is the pooler's activation, which
    depends on the family. transformers' RoBERTa and ELECTRA have a second dropout, before the
    pooler; this head does not.
    """

    def __init__(
        self, width: int, dropout: float = 0.0, outputs: int = 1, between: type[nn.Module] = nn.Tanh
    ):
        super().__init__(width, width, outputs, dropout)
        self.mlp[1] = between()  # in place of the ReLU

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states of the joined pairs (B, T, D), mask (B, T) -> (B, outputs).

        Only a head that averages the real tokens reads the mask.
        """
        return self.mlp(cls_pool(states))


class ModernClassifierHead(ClassifierHead):
    """The head of transformers' ``ModernBertForSequenceClassification``.

    It reads [CLS] or, with ``pooling="mean"``, the average of the real tokens; a norm stands after
    the activation; the dense layer of most files has no bias.
    """

    def __init__(
        self,
        config: ModernBertConfig,
        dropout: float = 0.0,
        outputs: int = 1,
        activation: str = "gelu",
        pooling: str = "cls",
        bias: bool = False,
    ):
        width = config.hidden_size
        super().__init__(width, dropout, outputs)
        self.activation = activation
        self.pooling = pooling
        self.mlp[0] = nn.Linear(width, width, bias)
        self.mlp[1] = nn.Sequential(MODERN_ACTIVATIONS[activation](), ModernBertNorm(config))

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states of the joined pairs (B, T, D), mask (B, T) -> (B, outputs)."""
        pooled = MODERN_POOLINGS[self.pooling](states, mask)  # (B, D)
        return self.mlp(pooled)


def read_cross_encoder(
    folder: ModelFolder, limit: int | None = None
) -> tuple[SentenceEncoder, ClassifierHead, str, list[str]]:
    """Read the encoder, with [CLS] as its pooling, the head, the task and the labels of a folder.

    Raises ``InputError`` for another family's classifier, and for a file or tensor that is missing
    or misshapen.
    """
    classifier = classifier_of(folder)
    family, _ = folder.config
    names = {}
    for ours, theirs in head_names(classifier).items():
        names[ours] = family.canonical(theirs)
    path, tensors = read_encoder(folder, head=names.values())

    # The head's tensors leave the dictionary, so that ``load_transformer`` refuses whatever else is
    # no part of the encoder.
    head_tensors: dict[str, Tensor] = {}
    for name in names.values():
        if name in tensors:
            head_tensors[name] = tensors.pop(name)
    outputs = 1
    if names["mlp.3.bias"] in head_tensors:
        outputs = head_tensors[names["mlp.3.bias"]].numel()

    settings = folder.json_settings(CONFIG)
    label_names = settings.get("id2label", dict, {}, items=str)
    labels = []
    if outputs > 1:
        labels = [label_names.get(str(i), f"LABEL_{i}") for i in range(outputs)]
    task = read_task(folder, outputs)

    with reading(folder.path / CONFIG), unfilled():  # the weights are replaced at once
        head = make_classifier_head(folder, classifier, outputs)
    fill(head, head_tensors, path, names)
    bert = load_transformer(folder, (path, tensors))
    # The head reads the hidden state of [CLS]. The encoder's pooling is only used if the encoder is
    # saved by itself.
    encoder = SentenceEncoder(
        read_tokenizer(folder, limit), bert, ModelPooling("cls"), normalize=False
    )
    return encoder, head, task, labels


def make_classifier_head(
    folder: ModelFolder, classifier: Classifier, outputs: int
) -> ClassifierHead:
    """Make the head that config.json describes; its weights are new."""
    _, config = folder.config
    settings = folder.json_settings(CONFIG)
    if isinstance(config, ModernBertConfig):
        return ModernClassifierHead(
            config,
            settings.get("classifier_dropout", float, 0.0),
            outputs,
            activation=settings.choice("classifier_activation", *MODERN_ACTIVATIONS),
            pooling=settings.choice("classifier_pooling", *MODERN_POOLINGS),
            bias=settings.get("classifier_bias", bool, False),
        )
    # DistilBERT has a name of its own for the dropout of the classifier.
    dropout = settings.get("seq_classif_dropout", float, config.hidden_dropout_prob)
    dropout = settings.get("classifier_dropout", float, dropout)
    return ClassifierHead(config.hidden_size, dropout, outputs, classifier.between)


def classifier_of(folder: ModelFolder) -> Classifier:
    """Return the names of the classifier's layers, and the activation between them.

    Raises ``InputError`` for a class that is not in ``CLASSIFIERS``, and for modules beside it.
    """
    supported = {}
    for classifier in CLASSIFIERS.values():
        supported[classifier.architecture] = classifier
    if folder.classifier not in supported:
        raise unsupported(
            folder.path / CONFIG, "architectures", folder.classifier, f"{', '.join(supported)} are"
        )
    if folder.modules not in ([], [("Transformer", ".")]):
        raise unsupported(
            folder.path / MODULES_FILE,
            "modules",
            folder.modules,
            "a CrossEncoder has one Transformer",
        )
    return supported[folder.classifier]


def head_names(classifier: Classifier) -> dict[str, str]:
    """Map the head's parameters to their names in a file.

    ``mlp`` is the dense layer, its activation, dropout and the linear layer. A bias that the head
    does not have is never looked up.
    """
    names = {
        "mlp.0.weight": f"{classifier.dense}.weight",
        "mlp.0.bias": f"{classifier.dense}.bias",
        "mlp.3.weight": f"{classifier.out}.weight",
        "mlp.3.bias": f"{classifier.out}.bias",
    }
    if classifier.norm:  # it stands after the activation, in one module with it
        names["mlp.1.1.weight"] = f"{classifier.norm}.weight"
        names["mlp.1.1.bias"] = f"{classifier.norm}.bias"
    return names


def read_task(folder: ModelFolder, outputs: int) -> str:
    """Return the task that the activation after the classifier means.

    Raises ``InputError`` for another activation, and for a default prompt.
    """
    config = folder.json_settings(CONFIG)
    path = folder.path / SENTENCE
    activation = None
    if folder.described:
        settings = folder.json_settings(SENTENCE)
        activation = settings.get("activation_fn", str)
        prompt = settings.get("default_prompt_name", str)
        if prompt is not None:
            raise unsupported(
                path, "default_prompt_name", prompt, "a CrossEncoder's prompts are not"
            )
    # Older versions of sentence-transformers wrote it into config.json, under one of two names.
    if activation is None:
        path = folder.path / CONFIG
        activation = config.get("sentence_transformers", dict, {}).get("activation_fn")
        if not activation:
            activation = config.get("sbert_ce_default_activation_function", str)

    tasks = PAIR_TASKS
    default = SIGMOID_PATH
    if outputs > 1:
        tasks = LABEL_TASKS
        default = IDENTITY_PATH
    if activation is None:
        activation = default
    if activation not in tasks:
        raise unsupported(path, "activation_fn", activation, f"{', '.join(tasks)} are")
    task = tasks[activation]
    # sentence-transformers has no word for a regression; ``write_cross_encoder`` adds ours.
    if task == "logit" and config.get("minisbert", dict, {}).get("task") == "regression":
        return "regression"
    return task


def check_writable(encoder: SentenceEncoder, head: ClassifierHead) -> None:
    """Raise ``InputError`` if a CrossEncoder's files cannot hold encoder and head."""
    kind = encoder.bert.config.model_type
    if kind not in CLASSIFIERS:
        raise InputError(f"a CrossEncoder of {kind} is not supported; {', '.join(CLASSIFIERS)} are")
    between = CLASSIFIERS[kind].between
    activation = head.mlp[1]
    if kind == "modernbert":
        if not isinstance(head, ModernClassifierHead):
            raise InputError("a CrossEncoder of modernbert has a ModernClassifierHead")
    elif not isinstance(activation, between):
        raise InputError(
            f"a CrossEncoder of {kind} has {between.__name__} in its head, not "
            f"{type(activation).__name__}"
        )
    source = encoder.tokenizer.source
    if source and source.text_settings.get("do_lower_case"):
        raise InputError(
            "do_lower_case of sentence_bert_config.json has no place in a CrossEncoder's files"
        )


def write_cross_encoder(
    encoder: SentenceEncoder, head: ClassifierHead, task: str, labels: Sequence[str], folder: Path
) -> None:
    """Write the files of a CrossEncoder into an empty folder, float32."""
    family = ENCODER_FAMILIES[encoder.bert.config.model_type]
    classifier = CLASSIFIERS[family.model_type]
    labels = labels or ["LABEL_0"]
    dropout_key = "classifier_dropout"
    if family.model_type == "distilbert":
        dropout_key = "seq_classif_dropout"
    activation = IDENTITY_PATH
    if task in ("binary", "labels"):
        activation = SIGMOID_PATH
    description = {
        "architectures": [classifier.architecture],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        dropout_key: head_settings(head)["dropout"],
        "sentence_transformers": {"activation_fn": activation},
        # sentence-transformers has no word for a regression: its activation is none, as a logit's.
        "minisbert": {"task": task},
    }
    if isinstance(head, ModernClassifierHead):
        description["classifier_activation"] = head.activation
        description["classifier_pooling"] = head.pooling
        description["classifier_bias"] = head.mlp[0].bias is not None
    write_json(folder / CONFIG, stored_config(encoder.bert.config) | description)
    tensors = {}
    for name, tensor in named_tensors(encoder.bert).items():
        if not name.startswith("pooler."):  # the head has its own
            tensors[family.prefix + name] = tensor
    parameters = dict(head.named_parameters())
    for ours, name in head_names(classifier).items():
        if ours in parameters:
            tensors[name] = parameters[ours].float()
    write_safetensors(tensors, folder / WEIGHTS)
    write_tokenizer(encoder.tokenizer, folder)
    # The maximum length of a CrossEncoder is in its tokenizer's settings.
    settings = read_folder(folder).json(TOKENIZER_CONFIG)
    limit = {"model_max_length": encoder.tokenizer.limit}
    write_json(folder / TOKENIZER_CONFIG, settings | limit)
