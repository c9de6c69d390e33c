"""What a model's folder says, in the layout of sentence-transformers: its modules and settings.

Who writes which file, and what it says:

    modules.json                       sentence-transformers: the modules and their subfolders
    config.json                        transformers: class, family and sizes of the encoder
    config_sentence_transformers.json  sentence-transformers: prompts, similarity, truncate_dim
    model.safetensors                  transformers: the weights (``weights.py``)
    tokenizer.json,                    transformers and sentence-transformers: how a text becomes
    tokenizer_config.json,               tokens (``tokenizer_files.py``)
    special_tokens_map.json,
    sentence_bert_config.json
    1_Pooling/config.json              sentence-transformers: which pooling, or several at once
    1_Pooling/model.safetensors        minisbert: the parameters of a learned pooling
    2_Dense/                           sentence-transformers: a dense layer on the pooled vector
    3_Normalize/                       sentence-transformers: vectors are scaled to length 1;
                                         usually an empty folder
    head.json, head.safetensors        minisbert: the head of a ``PairModel``

A plain encoder has no modules.json. The encoder with its tokenizer may be in a subfolder, as
modules.json says. ``find_model`` finds the folder, ``read_folder`` describes it; nothing here
builds a model. Each setting that changes vectors is read by its name, and honoured or refused;
docs/models.md lists them all. Imports ``core``, ``system`` and ``architectures``.
"""

import os
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from minisbert.architectures.families import Family
from minisbert.architectures.relatives import ENCODER_FAMILIES, read_config
from minisbert.checkpoints.module_names import MODULE_PREFIX, pooling_modes
from minisbert.core import InputError, one_line
from minisbert.system.assets import Asset, assets, download_model, ensure, is_hub_name
from minisbert.system.console import warn
from minisbert.system.files import MOST_BYTES, listed, write_json
from minisbert.system.reading import printable, read_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"  # which tensor is in which shard
MODULES_FILE = "modules.json"
SENTENCE = "config_sentence_transformers.json"
HEAD_FILE = "head.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"  # older tokenizers have it
ADAPTER = "adapter_config.json"  # peft's: a folder with it has weights to add to an encoder's
TEXT_SETTINGS = "sentence_bert_config.json"  # it is called "bert" whatever the encoder is
OLD_TEXT_SETTINGS = "sentence_*_config.json"  # versions before 2020 named the file after the model

NO_PROMPTS = {"query": "", "document": ""}  # every model has these two, as in sentence-transformers
LARGEST_SIZE = 2**31 - 1
# Settings of published models take some kilobytes; their lists in Python take 20 times the file's
# bytes.
MOST_JSON_BYTES = 2**24
MOST_MODULES = 100  # in modules.json; published models have at most about ten
# The types of values in JSON, as messages call them.
JSON_TYPES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}

POOLING_NAMES = (
    "mean",
    "cls",
    "max",
    "mean_sqrt_len_tokens",
    "weightedmean",
    "lasttoken",
    "attention",
    "pooler",
)

SENTENCE_ENCODER = "SentenceEncoder"  # opens any folder that no other class claims
# The marks by which the folders of other classes are recognised. A mark is a ``model_type`` in
# config.json or config_sentence_transformers.json, any key of the latter, one of the
# ``architectures`` in config.json, or the class of a module.
CLASS_MARKS = {
    "SparseEncoder": {
        "SparseEncoder",
        "SpladePooling",
        "SparseStaticEmbedding",
        "IDF",
        "SparseAutoEncoder",
    },
    # The last three mark folders of PyLate and of Stanford's ColBERT: ``MultiVectorEncoder`` is
    # chosen for them so that it can refuse them in its own words.
    "MultiVectorEncoder": {
        "MultiVectorEncoder",
        "MultiVectorMask",
        "ColBERT",
        "query_prefix",
        "HF_ColBERT",
    },
    "StaticEncoder": {"StaticEmbedding", "model2vec"},
}


class ModuleOrder(NamedTuple):
    """The modules that a class computes, in order."""

    pattern: str  # a regular expression for their names, separated by spaces
    readable: str  # the same for people


MODULE_ORDERS = {
    "SparseEncoder": ModuleOrder("Transformer SpladePooling", "Transformer, SpladePooling"),
    "MultiVectorEncoder": ModuleOrder(
        "Transformer Dense( Normalize)? MultiVectorMask( Normalize)?",
        "Transformer, Dense, Normalize, MultiVectorMask, Normalize",
    ),
    "StaticEncoder": ModuleOrder("StaticEmbedding( Normalize)?", "StaticEmbedding, Normalize"),
    SENTENCE_ENCODER: ModuleOrder(
        "Transformer Pooling( Dense)*( Normalize)?", "Transformer, Pooling, Dense, ..., Normalize"
    ),
}


# ------------------------------------------------------------------------------------ JSON files


def has_file(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Return whether there is such a file.

    Raises ``InputError`` for what is not a regular file, or is far too large.
    """
    # Path.exists would raise OSError for a name that is too long.
    if not os.path.lexists(path):
        return False
    if not path.is_file():
        raise InputError(f"{path} is a folder, device or broken link, not a file")
    if path.suffix != ".safetensors" and path.stat().st_size > most_bytes:
        raise InputError(f"{path} is larger than {most_bytes:,} bytes")
    return True


class JsonSettings:
    """The contents of JSON files, read key by key.

    ``JsonSettings((path, content)).get("bias", bool, True)`` is the value of the key ``bias``. A
    key that is missing or null has its default, and keys that nobody reads are ignored. If several
    files have a key, the last one counts. Raises ``InputError`` with the file, the key and the
    value for a value that is not supported.
    """

    def __init__(self, *files: tuple[Path, dict[str, Any]]):
        self.path = files[0][0]  # for errors about keys that no file has
        self.values: dict[str, tuple[Path, Any]] = {}
        for path, content in files:
            for key, value in content.items():
                if value is not None:
                    self.values[key] = path, value

    def get(self, key: str, kind: type, default: Any = None, items: type | None = None) -> Any:
        """Return the value of a key, of a type in ``JSON_TYPES``.

        ``items`` is the type of the items of a list, or of the values of an object.
        """
        if key not in self.values:
            return default
        _, value = self.values[key]
        # Some authors write "no limit" as 1e30, and JSON has one type for all numbers.
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        allowed_types = [kind]
        if kind is float:
            allowed_types = [float, int]
        # subtle: not isinstance, to which True is an integer
        if type(value) not in allowed_types:
            raise self.error(key, JSON_TYPES[kind])

        if items is not None:
            contents: Any = value
            if isinstance(value, dict):
                contents = value.values()
            for item in contents:
                if type(item) is not items:
                    raise self.error(key, f"{JSON_TYPES[kind]}, each item {JSON_TYPES[items]}")
        return value

    def size(self, key: str, needed: bool = False) -> Any:
        """Return a number of columns or tokens, or None if the file states none.

        Raises ``InputError`` for a size below 1, and for none at all if it is ``needed``.
        """
        value = self.get(key, int)
        if value is None and not needed:
            return None
        if value is None or not 0 < value <= LARGEST_SIZE:
            raise self.error(key, "an integer from 1")
        return value

    def choice(self, key: str, *choices: Any) -> Any:
        """Return one of the supported values, of which the first is the default."""
        if key not in self.values:
            return choices[0]
        _, value = self.values[key]
        if value not in choices:
            # None as the default says that the key may be missing; nobody writes it.
            expected = [str(choice) for choice in choices if choice is not None]
            raise self.error(key, " or ".join(expected))
        return value

    def file_of(self, key: str) -> Path:
        """Return the file that has a key."""
        if key not in self.values:
            return self.path
        path, _ = self.values[key]
        return path

    def error(self, key: str, expected: str) -> InputError:
        """Make the error for the value of a key."""
        _, value = self.values.get(key, (self.path, None))
        return InputError(f"{self.file_of(key)}: {key} must be {expected}, not {one_line(value)}")


class JsonFiles:
    """The JSON files of one folder. Each is read once, when it is first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.contents: dict[Path, Any] = {}

    def read(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """Return the contents of a file, of the type ``kind``.

        They are empty if there is no such file; it is an ``InputError`` if it is ``needed``.
        """
        path = self.folder / name
        if path not in self.contents:
            if has_file(path, MOST_JSON_BYTES) or needed:
                self.contents[path] = read_json(path, kind)
            else:
                self.contents[path] = kind()  # an empty dictionary or list
        return self.contents[path]

    def settings(self, name: str, needed: bool = False) -> JsonSettings:
        """Return the contents of a file to be read key by key."""
        return JsonSettings((self.folder / name, self.read(name, needed=needed)))


def unsupported(path: Path, key: str, value: Any, reason: str) -> InputError:
    """Make the error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


# ------------------------------------------------------------------------- a folder's description


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """What the files in a folder say about the model there. ``read_folder`` makes it."""

    files: JsonFiles
    # The class and the place of each module, which is its subfolder: ("Transformer", "."),
    # ("Pooling", "1_Pooling").
    modules: list[tuple[str, str]]
    model_type: str  # the encoder's, such as "bert"
    architectures: list[str]  # the encoder's classes in transformers, of which the first counts
    holds_pair_model: bool  # there is a head for pairs, a ``PairModel``'s or a CrossEncoder's
    # The folder is one of sentence-transformers, whose settings files describe the model. In other
    # folders such files are leftovers, and are not read.
    described: bool
    model_class: str  # the class that opens the model, a key of ``MODULE_ORDERS``
    encoder_folder: "ModelFolder | None" = None  # the encoder's, if it is in a subfolder

    @property
    def path(self) -> Path:
        return self.files.folder

    @property
    def encoder(self) -> "ModelFolder":
        """The folder of the encoder and its tokenizer, most often this one."""
        if self.encoder_folder is None:
            return self
        return self.encoder_folder

    @property
    def classifier(self) -> str:
        """The class of transformers that scores pairs with this encoder and a head, or ""."""
        return classifier_of(self.architectures)

    @property
    def task(self) -> str:
        """What the encoder computes: ``transformer_task`` of sentence-transformers."""
        if self.model_class == "SparseEncoder":
            return "fill-mask"
        if self.classifier:
            return "sequence-classification"
        return "feature-extraction"

    @cached_property
    def places(self) -> defaultdict[str, list[str]]:
        """The subfolders of each class of modules: an empty list for a class that is not there."""
        by_class: defaultdict[str, list[str]] = defaultdict(list)
        for name, place in self.modules:
            by_class[name].append(place)
        return by_class

    def json(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """Return the contents of a JSON file, as ``JsonFiles.read`` does."""
        return self.files.read(name, kind, needed)

    def json_settings(self, name: str, needed: bool = False) -> JsonSettings:
        """Return the contents of a JSON file to be read key by key."""
        return self.files.settings(name, needed)

    @cached_property
    def config(self) -> tuple[Family, Any]:
        """The family and the sizes of the encoder in this folder."""
        return read_family_and_sizes(self.files)

    @cached_property
    def pooling(self) -> str | None:
        """The pooling, or None if the folder states none.

        Several are joined by a plus, in the order of their columns.
        """
        places = self.places["Pooling"]
        if not places:
            return None
        name = f"{places[0]}/{CONFIG}"
        content = self.json(name, needed=True)
        modes = pooling_modes(content)
        if not modes and "pooling_mode" not in content:
            modes = ["mean"]  # the default of sentence-transformers
        if not modes or not set(modes).issubset(POOLING_NAMES):
            reason = f"supported: {', '.join(POOLING_NAMES)}"
            raise unsupported(self.path / name, "pooling_mode", modes, reason)
        return "+".join(modes)

    def choose_pooling(self, mode: str | None) -> str:
        """Return ``mode``, or the folder's pooling if it is None.

        A folder that states none gets the mean, as in sentence-transformers, and a line says so.
        """
        if mode is not None:
            return mode
        if self.pooling is not None:
            return self.pooling
        reason = "states no pooling (1_Pooling/config.json)"
        left_over = self.left_over_pooling()
        if left_over:
            reason = (
                f"has no {MODULES_FILE}, so its 1_Pooling/config.json ({left_over}) is not read"
            )
        warn(f"{self.path} {reason}: the mean is taken, unless you choose another")
        return "mean"

    def left_over_pooling(self) -> str:
        """Return the pooling in a 1_Pooling that no modules.json names, or ""."""
        with suppress(InputError):  # nobody reads the file, so it may be damaged
            return printable("+".join(pooling_modes(self.json(f"1_Pooling/{CONFIG}"))))
        return ""

    @property
    def normalize(self) -> bool:
        """True if vectors are scaled to length 1."""
        for place in self.places["Normalize"]:
            # A module that scales anything but the text's vector is an ``InputError``.
            settings = self.json_settings(f"{place}/{CONFIG}")
            settings.choice("module_input_name", "sentence_embedding")
            settings.choice("module_output_name", "sentence_embedding")
        return bool(self.places["Normalize"])


def read_folder(path: str | Path) -> ModelFolder:
    """Describe the model in a folder.

    Raises ``InputError`` for a file that cannot be read, and for a module or setting that is not
    supported and would change the vectors.
    """
    files = JsonFiles(Path(path))

    # A plain encoder, as transformers saves it, has no modules.json.
    has_modules = has_file(files.folder / MODULES_FILE)
    modules: list[tuple[str, str]] = []
    if has_modules:
        modules = read_modules(files)
    names = [name for name, _ in modules]

    model_type, architectures = read_classes(files)
    classifier = classifier_of(architectures)
    holds_pair_model = bool(classifier) or has_file(files.folder / HEAD_FILE)

    # config_sentence_transformers.json counts beside modules.json; in a CrossEncoder's folder only
    # if it says that it is a CrossEncoder's.
    sentence_settings = files.read(SENTENCE)
    calls_itself_cross_encoder = sentence_settings.get("model_type") == "CrossEncoder"
    described = has_modules and (not classifier or calls_itself_cross_encoder)

    marks = {model_type, *architectures, *names}
    if described:
        marks.add(str(sentence_settings.get("model_type")))
        marks.update(sentence_settings.keys())
    model_class = choose_class(marks)

    # A newer CrossEncoder has one Transformer, which includes the classifier.
    is_cross_encoder = bool(classifier) and names == ["Transformer"]
    if has_modules and not is_cross_encoder:
        check_order(files.folder / MODULES_FILE, names, model_class)

    encoder_folder = None
    for name, place in modules:
        if name == "Transformer" and place != ".":
            encoder_folder = read_encoder_folder(files.folder / place, model_class)
    return ModelFolder(
        files=files,
        modules=modules,
        model_type=model_type,
        architectures=architectures,
        holds_pair_model=holds_pair_model,
        described=described,
        model_class=model_class,
        encoder_folder=encoder_folder,
    )


def read_encoder_folder(path: Path, model_class: str) -> ModelFolder:
    """Describe the subfolder of a Transformer: an encoder and its tokenizer, without modules."""
    files = JsonFiles(path)
    model_type, architectures = read_classes(files)
    return ModelFolder(
        files=files,
        modules=[],
        model_type=model_type,
        architectures=architectures,
        holds_pair_model=False,
        described=True,
        model_class=model_class,
    )


def read_modules(files: JsonFiles) -> list[tuple[str, str]]:
    """Read ``modules.json``: the class and the subfolder of each module that changes vectors."""
    path = files.folder / MODULES_FILE
    entries = files.read(MODULES_FILE, list)
    if len(entries) > MOST_MODULES:
        raise InputError(
            f"{path} lists {len(entries):,} modules; at most {MOST_MODULES} are supported"
        )
    modules = []
    for module in entries:
        kind = None
        place = None
        if isinstance(module, dict):
            kind = module.get("type")
            place = module.get("path")
        if not isinstance(kind, str) or not isinstance(place, str):
            raise InputError(
                f"{path}: each module must state 'type' and 'path', not {one_line(module)}"
            )
        subfolder = Path(place)
        if subfolder.is_absolute() or ".." in subfolder.parts:
            raise InputError(f"{path}: path {one_line(place)} leads out of the folder")

        # MLMTransformer is a Transformer with another head.
        name = MODULE_PREFIX.sub("", kind).removeprefix("MLM")
        if name != "Dropout":  # it changes no vector
            modules.append((name, subfolder.as_posix()))
    return modules


def read_classes(files: JsonFiles) -> tuple[str, list[str]]:
    """Read ``model_type`` and ``architectures`` in config.json, each empty if it is missing."""
    config = files.settings(CONFIG)
    model_type = config.get("model_type", str, "")
    architectures = config.get("architectures", list, [], items=str)
    return model_type, architectures


def classifier_of(architectures: list[str]) -> str:
    """Return the class of transformers that classifies pairs, if a folder states one, or ""."""
    if architectures and architectures[0].endswith("ForSequenceClassification"):
        return architectures[0]
    return ""


def choose_class(marks: set[str]) -> str:
    """Return the first class that has one of these marks."""
    for name, class_marks in CLASS_MARKS.items():
        if marks & class_marks:
            return name
    return SENTENCE_ENCODER


def check_order(path: Path, names: list[str], model_class: str) -> None:
    """Raise ``InputError`` unless the class computes these modules in this order."""
    order = MODULE_ORDERS[model_class]
    if not re.fullmatch(order.pattern, " ".join(names)):
        modules = printable(", ".join(names))
        raise InputError(f"{path}: modules {modules} are not supported, only {order.readable}")


def check_opened_by(folder: ModelFolder, name: str) -> None:
    """Raise ``InputError`` unless the class ``name`` opens a folder.

    A folder without modules has no mark of its class: only ``SentenceEncoder`` refuses it here.
    """
    if name == folder.model_class:
        return
    if folder.modules or name == SENTENCE_ENCODER:
        raise InputError(
            f"{folder.path} is not a {name}'s folder: {folder.model_class}.load opens it"
        )


def read_family_and_sizes(files: JsonFiles) -> tuple[Family, Any]:
    """Read ``config.json``. An error names the keys of the family's own file."""
    path = files.folder / CONFIG
    if not has_file(path) and has_file(files.folder / ADAPTER):
        raise InputError(
            f"{files.folder} holds an adapter ({ADAPTER}) without the model that it changes: merge "
            f"it into that model's weights (peft: merge_and_unload) and save those"
        )
    if not has_file(path):
        raise InputError(f"{files.folder} holds no model: it has no {CONFIG}")
    settings = files.settings(CONFIG)
    # The families' configs check the sizes; most of them do not check this id.
    if not 0 <= settings.get("pad_token_id", int, 0) <= LARGEST_SIZE:
        raise settings.error("pad_token_id", "an integer from 0")

    content = dict(files.read(CONFIG))
    content.pop("quantization_config", None)  # ``read_encoder`` refuses weights that are quantized
    for key, value in content.items():
        if value == "gelu_python":  # the exact GELU, under the name of its first code
            content[key] = "gelu"

    model_type = content.get("model_type")
    family = ENCODER_FAMILIES.get(str(model_type))
    if family is None and content.get("auto_map"):
        raise InputError(
            f"{path}: model_type {one_line(model_type)} needs code from its author (auto_map), "
            f"which is never run here"
        )
    try:
        return read_config(files.folder, ENCODER_FAMILIES, content)
    except InputError as error:
        # The config's class complains of our names; the user knows those of the file.
        message = str(error).removeprefix(str(path))
        if family is not None:
            for ours, stored in family.settings.items():
                message = message.replace(ours, stored)
        raise InputError(f"{path}{message}") from error


# --------------------------------------------------------------- config_sentence_transformers.json

# The keys that ``write_settings`` writes itself; others are copied from the folder that was read.
WRITTEN_KEYS = (
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
    "truncate_dim",
    "__version__",
)


@dataclass(frozen=True)
class EncoderSettings:
    """``config_sentence_transformers.json``: how vectors are cut and compared, and the prompts.

    ``encode`` keeps the first ``truncate_dim`` columns and puts the prompt ``default_prompt_name``
    before each text unless it is given another; None keeps all columns, and puts no prompt.
    """

    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=NO_PROMPTS.copy)
    default_prompt_name: str | None = None
    model_type: str = "SentenceTransformer"
    # True if a prompt's tokens are pooled too; the pooling's own file states it.
    include_prompt: bool = True
    others: dict[str, Any] = field(default_factory=dict)  # other keys of the file, for ``save``

    similarities: ClassVar[tuple[str, ...]] = ("cosine", "dot", "euclidean", "manhattan")
    model_types: ClassVar[tuple[str, ...]] = (
        "SentenceTransformer",
        "SparseEncoder",
        "MultiVectorEncoder",
    )

    @classmethod
    def read(cls, folder: ModelFolder, **more: Any) -> Self:
        """Read the settings in a folder. ``more`` are the values of a subclass's fields."""
        include_prompt = read_include_prompt(folder)
        # A MultiVectorEncoder has these settings even if its config.json names a classifier.
        if not folder.described and folder.model_class != "MultiVectorEncoder":
            return cls(include_prompt=include_prompt, **more)

        settings = folder.json_settings(SENTENCE)
        prompts = read_prompts(settings)
        default_prompt_name = settings.get("default_prompt_name", str)
        if default_prompt_name is not None and default_prompt_name not in prompts:
            raise settings.error(
                "default_prompt_name", f"one of the prompts, {listed(list(prompts))}"
            )
        others = {}
        for key, value in folder.json(SENTENCE).items():
            if key not in WRITTEN_KEYS:
                others[key] = value
        return cls(
            similarity_fn_name=settings.choice("similarity_fn_name", *cls.similarities),
            truncate_dim=settings.size("truncate_dim"),
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            model_type=settings.choice("model_type", *cls.model_types),
            include_prompt=include_prompt,
            others=others,
            **more,
        )


def read_include_prompt(folder: ModelFolder) -> bool:
    """Read whether the tokens of a prompt are pooled too."""
    for place in folder.places["Pooling"]:
        name = f"{place}/{CONFIG}"
        include_prompt = folder.json_settings(name).get("include_prompt", bool, True)
        if include_prompt:
            continue
        if folder.pooling is not None and "weightedmean" in folder.pooling:
            reason = "with weightedmean it must be true"
            raise unsupported(folder.path / name, "include_prompt", False, reason)
        return False
    return True


def read_prompts(settings: JsonSettings) -> dict[str, str]:
    """Read the prompts by their names; every model has the two in ``NO_PROMPTS``."""
    prompts = dict(NO_PROMPTS)
    for name, text in settings.get("prompts", dict, {}).items():
        if text is not None and not isinstance(text, str):
            raise settings.error("prompts", "an object, each item a string")
        if text is None:
            text = ""  # sentence-transformers puts nothing before a text for null
        prompts[name] = text
    return prompts


def write_settings(
    folder: Path, settings: EncoderSettings, text_settings: dict[str, Any], **more: str
) -> None:
    """Write the encoder's settings and ``more``, and ``text_settings`` in their own file."""
    write_json(folder / TEXT_SETTINGS, text_settings)
    content = settings.others | {
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity_fn_name,
    }
    if settings.truncate_dim is not None:
        content["truncate_dim"] = settings.truncate_dim
    write_json(folder / SENTENCE, content | more)


def write_modules(folder: Path, classes: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json`` and create a subfolder for each module; return the subfolders' names.

    The first module has the folder itself, whose name is "". ``package`` is the package in
    sentence-transformers that has the classes.
    """
    places = []
    modules = []
    for i, name in enumerate(classes):
        place = ""
        if i > 0:
            place = f"{i}_{name}"
        (folder / place).mkdir(exist_ok=True)
        places.append(place)

        full_name = f"sentence_transformers.{package}.{name}"
        if name == "MultiVectorMask":  # in a package of its own
            full_name = f"sentence_transformers.multi_vector_encoder.modules.{name}"
        modules.append({"idx": i, "name": str(i), "path": place, "type": full_name})
    write_json(folder / MODULES_FILE, modules)
    return places


# ----------------------------------------------------------------------------------- finding it


def find_model(model: str | Path) -> Path:
    """Find the folder of a model: a path, a name of the manifest, or ``owner/name[@revision]``.

    The last is a name on the Hugging Face Hub. A ``Path`` is always a path. A string that is both a
    folder and a name is the folder, as in sentence-transformers. A named model is downloaded if it
    is missing. Raises ``InputError`` for anything else.
    """
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a name or the path of a folder, not {one_line(model)}")

    # Path.is_dir would raise OSError for a name that is too long.
    if os.path.isdir(model):
        folder = Path(model)
        if (folder / "metrics.jsonl").is_file() and (folder / "model").is_dir():
            raise InputError(f"{folder} is the folder of a run: its model is {folder / 'model'}")
        return folder

    models = {name: asset for name, asset in assets().items() if asset.kind == "weights"}
    if model in models:
        return ensure(models[model])
    quoted = one_line(str(model))
    if os.path.lexists(model):
        raise InputError(f"no model {quoted}: a file or a broken link")
    if isinstance(model, Path):
        raise InputError(
            f"no model {quoted}: there is no such folder, and a Path is not looked up as a name"
        )

    # A repository of the manifest is that asset, at its fixed revision, unless another revision is
    # named.
    for asset in models.values():
        if model in repositories_of(asset):
            return ensure(asset)
    if is_hub_name(model):
        return download_model(model)
    raise InputError(
        f"no model {quoted}: neither a folder nor one of {', '.join(models)}; models on the "
        "Hugging Face Hub have an owner in their name, such as "
        "sentence-transformers/all-mpnet-base-v2"
    )


def repositories_of(asset: Asset) -> list[str | None]:
    """Return the repositories on the Hub from which an asset is downloaded."""
    return [source.get("hub") for source in asset.sources]
