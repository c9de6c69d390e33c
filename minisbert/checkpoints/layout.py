"""A model's folder in the layout of sentence-transformers: which modules it has, and what they are
set to.

Who writes which file, and what it says:

    modules.json                         sentence-transformers: the modules, in order, and the subfolder of each
    config.json                          transformers: the class of the encoder, its family and its sizes
    config_sentence_transformers.json    sentence-transformers: prompts, similarity, ``truncate_dim``
    model.safetensors                    transformers: the weights (``weights.py``)
    tokenizer.json,                      transformers and sentence-transformers (``tokenizer_files.py``)
    tokenizer_config.json,
    special_tokens_map.json,
    sentence_bert_config.json
    1_Pooling/config.json                sentence-transformers: which pooling, or several at once
    1_Pooling/model.safetensors          minisbert: the parameters of a learned pooling
    2_Dense/                             sentence-transformers: a dense layer on the pooled vector, in some models
    3_Normalize/                         sentence-transformers: vectors are scaled to length 1; usually an empty folder
    head.json, head.safetensors          minisbert: the head of a ``PairModel``

A plain encoder has no modules.json. The encoder with its tokenizer may be in a subfolder, as
modules.json says. Files are read as plain values; nothing here builds a model. Each setting that
changes vectors is read by its name, and honoured or refused; docs/models.md lists them all. Imports
``core``, ``system`` and ``architectures``.
"""

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from minisbert.architectures.families import Family
from minisbert.architectures.relatives import BERT, ENCODER_FAMILIES, read_config
from minisbert.checkpoints.module_names import OWN, pooling_modes
from minisbert.core import InputError, one_line
from minisbert.system.assets import assets, download_model, ensure, is_hub_name
from minisbert.system.console import say
from minisbert.system.files import MOST_BYTES, write_json
from minisbert.system.reading import read_json

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"  # which tensor is in which shard
SPECIAL_TOKENS = "special_tokens_map.json"  # of older tokenizers
SENTENCE, MODULES_FILE, HEAD_FILE = "config_sentence_transformers.json", "modules.json", "head.json"
TEXT_SETTINGS = "sentence_bert_config.json"  # "bert" whatever the encoder is
OLD_TEXT_SETTINGS = "sentence_*_config.json"  # versions before 2020 named the file after the model

NO_PROMPTS = {"query": "", "document": ""}  # every model has these two, as in sentence-transformers
LARGEST_SIZE = 2**31 - 1
JSON = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class JsonSettings:
    """The contents of JSON files, read key by key: ``JsonSettings((path, content)).get("bias",
    bool, True)``.

    A key that is missing or null has its default, and keys that nobody reads are ignored. If
    several files have a key, the last one counts. Raises ``InputError`` with the file, the key and
    the value for a value that is not supported.
    """

    def __init__(self, *files: tuple[Path, dict[str, Any]]):
        self.path = files[0][0]  # for errors about keys that no file has
        self.values: dict[str, tuple[Path, Any]] = {}
        for path, content in files:
            for key, value in content.items():
                if value is not None:
                    self.values[key] = path, value

    def get(self, key: str, kind: type, default: Any = None, items: type | None = None) -> Any:
        """Return the value of a key, of a type in ``JSON``; ``items`` is the type of a list's or
        object's items.
        """
        if key not in self.values:
            return default
        value = self.values[key][1]
        # some authors write "no limit" as 1e30, and JSON has one type for all numbers
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        # subtle: not isinstance, to which True is an integer
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise self.error(key, JSON[kind])
        inside: Any = value.values() if isinstance(value, dict) else value
        if items is not None and any(type(item) is not items for item in inside):
            raise self.error(key, f"{JSON[kind]}, each item {JSON[items]}")
        return value

    def size(self, key: str, needed: bool = False) -> Any:
        """Return a number of columns or tokens; None if the file states none and it is not
        ``needed``.
        """
        value = self.get(key, int)
        if (value is None and needed) or (value is not None and not 0 < value <= LARGEST_SIZE):
            raise self.error(key, "an integer from 1")
        return value

    def choice(self, key: str, *choices: Any) -> Any:
        """Return one of the supported values, of which the first is the default."""
        value = self.values[key][1] if key in self.values else choices[0]
        if value not in choices:
            raise self.error(
                key, " or ".join(str(choice) for choice in choices if choice is not None)
            )
        return value

    def place(self, key: str) -> Path:
        """Return the file that states a key."""
        return self.values.get(key, (self.path, None))[0]

    def error(self, key: str, expected: str) -> InputError:
        """Make the error for the value of a key."""
        path, value = self.values.get(key, (self.path, None))
        return InputError(f"{path}: {key} must be {expected}, not {one_line(value)}")


def unsupported(path: Path, key: str, value: Any, reason: str) -> InputError:
    """Make the error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


@dataclass(frozen=True)
class EncoderSettings:
    """``config_sentence_transformers.json``: how vectors are cut and compared, and prompts to put
    before each text.

    ``encode`` keeps the first ``truncate_dim`` columns and takes the prompt ``default_prompt_name``
    unless it is given another; None keeps all columns, and takes no prompt.
    """

    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=NO_PROMPTS.copy)
    default_prompt_name: str | None = None
    model_type: str = "SentenceTransformer"
    include_prompt: bool = True  # pool over a prompt's tokens too; in the pooling's file
    others: dict[str, Any] = field(default_factory=dict)  # as read, for ``save``

    similarities: ClassVar[tuple[str, ...]] = ("cosine", "dot", "euclidean", "manhattan")
    model_types: ClassVar[tuple[str, ...]] = (
        "SentenceTransformer",
        "SparseEncoder",
        "MultiVectorEncoder",
    )

    @classmethod
    def read(cls, folder: "ModelFolder", **more: Any) -> Self:
        """Read the settings in a folder. ``more`` are the values of a subclass's fields."""
        include_prompt = True
        for place in folder.places["Pooling"]:
            name = f"{place}/{CONFIG}"
            include_prompt = folder.json_settings(name).get("include_prompt", bool, True)
            if not include_prompt and "weightedmean" in (folder.pooling or ""):
                raise unsupported(
                    folder.path / name, "include_prompt", False, "with weightedmean it must be true"
                )
        if (
            not folder.described and folder.model_class != "MultiVectorEncoder"
        ):  # which always has these settings
            return cls(include_prompt=include_prompt, **more)

        settings, prompts = folder.json_settings(SENTENCE), NO_PROMPTS.copy()
        for name, text in settings.get("prompts", dict, {}).items():
            if text is not None and not isinstance(text, str):
                raise settings.error("prompts", "an object, each item a string")
            # sentence-transformers puts nothing before a text for null
            prompts[name] = text or ""
        default_prompt_name = settings.get("default_prompt_name", str)
        if default_prompt_name is not None and default_prompt_name not in prompts:
            raise settings.error("default_prompt_name", f"one of the prompts, {[*prompts]}")
        return cls(
            similarity_fn_name=settings.choice("similarity_fn_name", *cls.similarities),
            truncate_dim=settings.size("truncate_dim"),
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            model_type=settings.choice("model_type", *cls.model_types),
            include_prompt=include_prompt,
            others={
                key: value for key, value in folder.json(SENTENCE).items() if key not in WRITTEN
            },
            **more,
        )


# the keys that ``write_settings`` writes itself; others are copied from the folder that was read
WRITTEN = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__")


def write_settings(
    folder: Path, settings: EncoderSettings, text_settings: dict[str, Any], **more: str
) -> None:
    """Write ``sentence_bert_config.json`` with ``text_settings``, and the encoder's settings and
    ``more``.
    """
    write_json(folder / TEXT_SETTINGS, text_settings)
    content = settings.others | {
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity_fn_name,
    }
    if settings.truncate_dim is not None:
        content["truncate_dim"] = settings.truncate_dim
    write_json(folder / SENTENCE, content | more)


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
# What marks the folder of another class: a ``model_type`` in config.json or
# config_sentence_transformers.json, a key of the latter, an architecture, or a module.
MARKS = {
    "SparseEncoder": {
        "SparseEncoder",
        "SpladePooling",
        "SparseStaticEmbedding",
        "IDF",
        "SparseAutoEncoder",
    },
    # the last three, of PyLate and Stanford, are refused
    "MultiVectorEncoder": {
        "MultiVectorEncoder",
        "MultiVectorMask",
        "ColBERT",
        "query_prefix",
        "HF_ColBERT",
    },
    "StaticEncoder": {"StaticEmbedding", "model2vec"},
}
# the modules that each class computes, in order: a regular expression
ORDERS = {
    "SparseEncoder": "Transformer SpladePooling",
    "MultiVectorEncoder": "Transformer Dense( Normalize)? MultiVectorMask( Normalize)?",
    "StaticEncoder": "StaticEmbedding( Normalize)?",
    SENTENCE_ENCODER: "Transformer Pooling( Dense)*( Normalize)?",
}


def has_file(path: Path) -> bool:
    """Return whether there is such a file. ``InputError`` for what is not a regular file, or is far
    too large.
    """
    # not Path.exists, which raises OSError for a name that is too long
    if not os.path.lexists(path):
        return False
    if not path.is_file():
        raise InputError(f"{path} is a folder, device or broken link, not a file")
    if path.suffix != ".safetensors" and path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes")
    return True


class ModelFolder:
    """The files of a model. Each JSON file is read once.

    Raises ``InputError`` for a file that cannot be read, and for a module or setting that is not
    supported and would change the vectors.
    """

    modules: list[
        tuple[str, str]
    ]  # class and subfolder: ``("Transformer", "."), ("Pooling", "1_Pooling")``
    places: dict[str, list[str]]  # the same by class, no subfolder for a class that is not there
    model_type: str  # of the encoder, such as "bert"
    architectures: list[str]  # classes of transformers, the first one counts
    classifier: str  # the class of a model with transformers' classifier for pairs, or ""
    holds_pair_model: bool  # there is a head for pairs, a ``PairModel``'s or a CrossEncoder's
    described: (
        bool  # sentence-transformers reads its own settings here; elsewhere they are leftovers
    )
    model_class: str  # the class that opens the folder, a key of ``ORDERS``
    task: str  # what the encoder computes: ``transformer_task`` of sentence-transformers
    encoder: "ModelFolder"  # the folder of the encoder and its tokenizer

    def __init__(self, path: str | Path, opened_by: str | None = None, is_module: bool = False):
        self.path = Path(path)
        self.contents: dict[str, Any] = {}  # of JSON files

        # modules.json. A module's folder has none of its own.
        self.modules, self.places = [], defaultdict(list)
        has_modules = not is_module and has_file(self.path / MODULES_FILE)
        for module in self.json(MODULES_FILE, list) if has_modules else []:
            kind, stated = (
                (module.get("type"), module.get("path"))
                if isinstance(module, dict)
                else (None, None)
            )
            if not isinstance(kind, str) or not isinstance(stated, str):
                needed = f"each module must state 'type' and 'path', not {one_line(module)}"
                raise InputError(f"{self.path / MODULES_FILE}: {needed}")
            # MLMTransformer is a Transformer with another head
            name, place = OWN.sub("", kind).removeprefix("MLM"), Path(stated)
            if place.is_absolute() or ".." in place.parts:
                raise InputError(
                    f"{self.path / MODULES_FILE}: path {one_line(stated)} leads out of the folder"
                )
            if name != "Dropout":  # changes no vector
                self.modules.append((name, place.as_posix()))
                self.places[name].append(place.as_posix())
        names = [name for name, _ in self.modules]

        # config.json
        config = self.json_settings(CONFIG)
        self.model_type = config.get("model_type", str, "")
        self.architectures = config.get("architectures", list, [], items=str)
        self.classifier = self.architectures[0] if self.architectures else ""
        if not self.classifier.endswith("ForSequenceClassification"):
            self.classifier = ""
        self.holds_pair_model = bool(self.classifier) or has_file(self.path / HEAD_FILE)

        # config_sentence_transformers.json counts beside modules.json, in a CrossEncoder's folder
        # only if it says so
        sentence = self.json(SENTENCE)
        calls_itself_cross_encoder = sentence.get("model_type") == "CrossEncoder"
        self.described = is_module or (
            has_modules and (not self.classifier or calls_itself_cross_encoder)
        )

        # which class opens the folder
        marks = {self.model_type, *self.architectures, *names}
        if self.described:
            marks |= {str(sentence.get("model_type")), *sentence}
        claims = [name for name, those in MARKS.items() if marks & those]
        self.model_class = claims[0] if claims else SENTENCE_ENCODER

        # and whether it computes these modules; newer CrossEncoders have one Transformer,
        # classifier included
        if has_modules and not (self.classifier and names == ["Transformer"]):
            order = ORDERS[self.model_class]
            if not re.fullmatch(order, " ".join(names)):
                # the regular expression as a list for people: Transformer, Pooling, Dense ...,
                # Normalize
                readable = (
                    order.replace("( Dense)*", " Dense ...").replace("(", "").replace(")?", "")
                )
                unread = f"modules {', '.join(names)} are not supported, only {readable.replace(' ', ', ')}"
                raise InputError(f"{self.path / MODULES_FILE}: {unread}")

        if opened_by not in (None, self.model_class) and (
            self.modules or opened_by == SENTENCE_ENCODER
        ):
            raise InputError(
                f"{self.path} is not a {opened_by}'s folder: {self.model_class}.load opens it"
            )

        self.encoder, self.task = (
            self,
            "sequence-classification" if self.classifier else "feature-extraction",
        )
        for place in self.places["Transformer"]:
            if place != ".":
                self.encoder = ModelFolder(self.path / place, is_module=True)
        if self.model_class == "SparseEncoder":
            self.encoder.task = "fill-mask"

    def json(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """Read the contents of a JSON file; an empty object (or list) if there is none and it is
        not ``needed``.
        """
        if name not in self.contents:
            path = self.path / name
            self.contents[name] = read_json(path, kind) if has_file(path) or needed else kind()
        return self.contents[name]

    def json_settings(self, name: str, needed: bool = False) -> JsonSettings:
        """Read the settings in a JSON file."""
        return JsonSettings((self.path / name, self.json(name, needed=needed)))

    @cached_property
    def config(self) -> tuple[Family, Any]:
        """The family and the sizes of the encoder in this folder. An error names the keys of the
        family's own file.
        """
        path = self.path / CONFIG
        if not has_file(path):
            raise InputError(f"{self.path} holds no model: it has no {CONFIG}")
        settings, content = self.json_settings(CONFIG), dict(self.json(CONFIG))
        if (
            not 0 <= settings.get("pad_token_id", int, 0) <= LARGEST_SIZE
        ):  # the sizes' own class does not check it
            raise settings.error("pad_token_id", "an integer from 0")
        # ``read_encoder`` refuses weights that are quantized
        content.pop("quantization_config", None)
        for key, value in content.items():
            if value == "gelu_python":  # the exact GELU under the name of its first code
                content[key] = "gelu"
        kind = content.get("model_type")
        family = ENCODER_FAMILIES.get(str(kind))
        if family is None and content.get("auto_map"):
            reason = "needs code from its author (auto_map), which is never run here"
            raise InputError(f"{path}: model_type {one_line(kind)} {reason}")
        try:
            return read_config(self.path, ENCODER_FAMILIES, content)
        except InputError as error:
            # the config's class complains of our names: say those of the file
            message = str(error).removeprefix(str(path))
            for ours, stored in (family or BERT).settings.items():
                message = message.replace(ours, stored)
            raise InputError(f"{path}{message}") from error

    @cached_property
    def pooling(self) -> str | None:
        """The pooling; several are joined by a plus, in the order of their columns. None if the
        folder states none.
        """
        for place in self.places["Pooling"]:
            path = f"{place}/{CONFIG}"
            content = self.json(path, needed=True)
            modes = pooling_modes(content)
            if not modes and "pooling_mode" not in content:
                modes = ["mean"]  # the default of sentence-transformers
            if not modes or not set(modes).issubset(POOLING_NAMES):
                raise unsupported(
                    self.path / path,
                    "pooling_mode",
                    modes,
                    f"supported: {', '.join(POOLING_NAMES)}",
                )
            return "+".join(modes)
        return None

    def choose_pooling(self, mode: str | None) -> str:
        """Return ``mode``, or the folder's pooling, or the mean if it states none, as
        sentence-transformers does.
        """
        if mode is None:
            mode = self.pooling
        if mode is None:
            say(
                f"{self.path} states no pooling (1_Pooling/config.json): the mean is taken, unless "
                f"you choose another"
            )
            mode = "mean"
        return mode

    @property
    def normalize(self) -> bool:
        """True if vectors are scaled to length 1."""
        for place in self.places["Normalize"]:
            settings = self.json_settings(f"{place}/{CONFIG}")
            settings.choice("module_input_name", "sentence_embedding")
            settings.choice("module_output_name", "sentence_embedding")
        return bool(self.places["Normalize"])


def write_modules(folder: Path, classes: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json``, create one subfolder per module and return their names; the first
    module's is ``folder``.

    ``package`` is the one of sentence-transformers that has the classes.
    """
    places, modules = [], []
    for i, name in enumerate(classes):
        place = f"{i}_{name}" if i else ""
        home = "multi_vector_encoder.modules" if name == "MultiVectorMask" else package
        places.append(place)
        modules.append(
            {
                "idx": i,
                "name": str(i),
                "path": place,
                "type": f"sentence_transformers.{home}.{name}",
            }
        )
        (folder / place).mkdir(exist_ok=True)
    write_json(folder / MODULES_FILE, modules)
    return places


def find_model(model: str | Path) -> Path:
    """Find the folder of a model: a path, a name of the manifest, or ``owner/name[@revision]`` on
    the Hugging Face Hub.

    A ``Path`` is always a path. A string that is both a folder and a name is the folder, as in
    sentence-transformers. A named model is downloaded if it is missing. Raises ``InputError`` for
    anything else.
    """
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a name or the path of a folder, not {one_line(model)}")
    # not Path.is_dir, which raises OSError for a name that is too long
    if os.path.isdir(model):
        folder = Path(model)
        if (folder / "metrics.jsonl").is_file() and (folder / "model").is_dir():
            raise InputError(f"{folder} is the folder of a run: its model is {folder / 'model'}")
        return folder
    weights = {name: asset for name, asset in assets().items() if asset.kind == "weights"}
    if model in weights:
        return ensure(weights[model])
    shown = one_line(str(model))
    if os.path.lexists(model):
        raise InputError(f"no model {shown}: a file or a broken link")
    if isinstance(model, Path):
        raise InputError(
            f"no model {shown}: there is no such folder, and a Path is not looked up as a name"
        )
    # a repository of the manifest is that asset, at its fixed revision, unless another revision is
    # named
    for asset in weights.values():
        if model in [source.get("hub") for source in asset.sources]:
            return ensure(asset)
    if is_hub_name(model):
        return download_model(model)
    raise InputError(
        f"no model {shown}: neither a folder nor one of {', '.join(weights)}; models on the "
        f"Hugging "
        "Face Hub have an owner in their name, such as sentence-transformers/all-mpnet-base-v2"
    )
