"""A model's folder in the layout of sentence-transformers, read as plain values: names, sizes, flags."""

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from minisbert.architectures.relatives import FAMILIES, read_family
from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.encoder import OWN, pooling_modes
from minisbert.core.weights import BERT, BertConfig, Family
from minisbert.folder.modules import MODEL_CLASSES, MORE_POOLING_FLAGS, POOLING_NAMES, SENTENCE_ENCODER, check_order
from minisbert.folder.settings import (
    CONFIG,
    HEAD_FILE,
    MODULES_FILE,
    SENTENCE,
    WRITTEN,
    EncoderSettings,
    ModelSettings,
    PoolingSettings,
    VectorModule,
    parse_settings,
    unsupported,
)
from minisbert.system.files import MOST_BYTES

Parsed = TypeVar("Parsed")


class ModelFolder:
    """The files of a model. Each JSON file is read once, when it is first needed.

        modules.json                         the list of modules, in order
        config.json, model.safetensors, ...  the encoder and its tokenizer (or in a subfolder)
        sentence_bert_config.json            the maximum number of tokens
        1_Pooling/config.json                which pooling, or several at once
        1_Pooling/model.safetensors          the parameters of a learned pooling; other poolings have no such file
        2_Dense/                             a dense layer on the pooled vector, in some models
        3_Normalize                          the vector scaled to length 1; an empty folder
        head.json, head.safetensors          the head of a ``PairModel``

    A plain encoder has no ``modules.json``. Raises ``InputError`` for a file that cannot be read, and for a module or
    setting that is not supported and would change the vectors.
    """

    def __init__(self, path: str | Path, is_module: bool = False):
        self.path = Path(path)
        self.is_module = is_module  # a module's folder has no modules.json of its own
        self.files: dict[str, bytes] = {}
        self.contents: dict[str, Any] = {}  # of JSON files

    @classmethod
    def of(cls, folder: "str | Path | ModelFolder") -> "ModelFolder":
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    def has(self, name: str) -> bool:
        """Whether there is such a file. ``InputError`` for what is not a regular file, or is far too large."""
        path = self.path / name
        if not os.path.lexists(path):  # not Path.exists, which raises OSError for a name that is too long
            return False
        if not path.is_file():
            raise InputError(f"{path} is a folder, device or broken link, not a file")
        if path.suffix != ".safetensors" and path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes")
        return True

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        if name not in self.files:
            self.has(name)
            with reading(self.path / name):
                self.files[name] = (self.path / name).read_bytes()
        return self.files[name]

    def json(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """The contents of a JSON file; an empty object (or list) if there is none and it is not ``needed``."""
        if name not in self.contents:
            if self.has(name) or needed:
                self.contents[name] = read_json(self.path / name, kind)
            else:
                self.contents[name] = kind()
        return self.contents[name]

    def parse(self, name: str, kind: type[Parsed], needed: bool = False) -> Parsed:
        """The settings in a JSON file, as a dataclass."""
        return parse_settings(kind, (self.path / name, self.json(name, needed=needed)))

    @cached_property
    def classes(self) -> list[tuple[str, str]]:
        """Class and subfolder of each module, in order: ``("Transformer", "."), ("Pooling", "1_Pooling")``."""
        classes = []
        with reading(self.path / MODULES_FILE):
            for module in self.json(MODULES_FILE, list):
                # MLMTransformer is a Transformer with another head
                name, place = OWN.sub("", module["type"]).removeprefix("MLM"), Path(module["path"])
                if place.is_absolute() or ".." in place.parts:
                    raise ValueError(f"path {one_line(str(place))} leads out of the folder")
                if name != "Dropout":  # changes no vector
                    classes.append((name, place.as_posix()))
        return classes

    @cached_property
    def model_class(self) -> str:
        """The class that opens the folder, a key of ``MODEL_CLASSES``, whether or not its contents are supported."""
        marks = {str(self.json(CONFIG).get("model_type"))}
        marks.update(self.model.architectures)
        marks.update(name for name, _ in self.classes)
        if self.described:
            marks.add(str(self.json(SENTENCE).get("model_type")))
            marks.update(self.json(SENTENCE))
        for name, model_class in MODEL_CLASSES.items():
            if marks.intersection(model_class.marks):
                return name
        return SENTENCE_ENCODER

    @property
    def described(self) -> bool:
        """Whether sentence-transformers reads its own settings here; elsewhere they are leftovers.

        It does beside modules.json, and in a CrossEncoder's folder only if they call it one.
        """
        if self.is_module or not self.has(MODULES_FILE):
            return self.is_module
        return not self.model.classifier or self.json(SENTENCE).get("model_type") == "CrossEncoder"

    @property
    def holds_pair_model(self) -> bool:
        """Whether there is a head for pairs: a ``PairModel``'s or a CrossEncoder's."""
        return self.has(HEAD_FILE) or bool(self.model.classifier)

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """``classes`` in an order that the folder's class computes; ``InputError`` for others."""
        names = [name for name, _ in self.classes]
        if not self.has(MODULES_FILE) or (self.model.classifier and names == ["Transformer"]):
            return self.classes
        if self.json(SENTENCE).get("model_type", "") is None:
            reason = "sentence-transformers ignores modules.json then; leave the key out"
            raise unsupported(self.path / SENTENCE, "model_type", None, reason)
        with reading(self.path / MODULES_FILE):
            check_order(self.model_class, names)
        return self.classes

    def opened_by(self, name: str) -> "ModelFolder":
        """The folder; ``InputError`` if a class other than ``name`` opens it. Any class opens one without modules."""
        if self.model_class != name and (self.classes or name == SENTENCE_ENCODER):
            raise InputError(f"{self.path} is not a {name}'s folder: {self.model_class}.load opens it")
        return self

    def places(self, module: str) -> list[str]:
        """The subfolders of the modules of one class."""
        return [place for name, place in self.modules if name == module]

    @cached_property
    def encoder(self) -> "ModelFolder":
        """The folder of the encoder and its tokenizer."""
        for place in self.places("Transformer"):
            if place != ".":
                return ModelFolder(self.path / place, is_module=True)
        return self

    @cached_property
    def pooling(self) -> str | None:
        """The pooling; several are joined by a plus, in the order of their columns. None if the folder states none."""
        for place in self.places("Pooling"):
            name = f"{place}/{CONFIG}"
            content = self.json(name, needed=True)
            stated = pooling_modes(content)
            if not stated and "pooling_mode" not in content:
                stated = ["mean"]  # the default of sentence-transformers
            modes = [mode for mode in stated if mode not in MORE_POOLING_FLAGS]
            modes += [mode for flag, mode in MORE_POOLING_FLAGS.items() if flag in stated]
            if not modes or not set(modes).issubset(POOLING_NAMES):
                raise unsupported(self.path / name, "pooling_mode", modes, f"{', '.join(POOLING_NAMES)} are")
            return "+".join(modes)
        return None

    @cached_property
    def normalize(self) -> bool:
        """Whether vectors are scaled to length 1."""
        places = self.places("Normalize")
        for place in places:
            self.parse(f"{place}/{CONFIG}", VectorModule)
        return bool(places)

    @cached_property
    def settings(self) -> EncoderSettings:
        """How vectors are cut and compared, and prompts."""
        include_prompt = True
        for place in self.places("Pooling"):
            name = f"{place}/{CONFIG}"
            include_prompt = self.parse(name, PoolingSettings).include_prompt
            if not include_prompt and "weightedmean" in (self.pooling or ""):
                raise unsupported(self.path / name, "include_prompt", False, "with weightedmean only true is")
        if not self.described:
            return EncoderSettings(include_prompt=include_prompt)
        others = {key: value for key, value in self.json(SENTENCE).items() if key not in WRITTEN}
        return replace(self.parse(SENTENCE, EncoderSettings), include_prompt=include_prompt, others=others)

    @cached_property
    def model(self) -> ModelSettings:
        """What ``config.json`` states beside the encoder's sizes."""
        return self.parse(CONFIG, ModelSettings)

    @cached_property
    def config(self) -> tuple[Family, BertConfig]:
        """The family and the sizes of the encoder in this folder. An error names the keys of the family's own file."""
        path, content = self.path / CONFIG, dict(self.json(CONFIG, needed=True))
        content.pop("quantization_config", None)  # ``read_encoder`` refuses weights that are quantized
        for key, value in content.items():
            if value == "gelu_python":  # the exact GELU under the name of its first code
                content[key] = "gelu"
        try:
            return read_family(self.path, content)
        except InputError as error:
            message = str(error).removeprefix(str(path))
            for ours, stored in FAMILIES.get(self.model.model_type, BERT).settings.items():
                message = message.replace(ours, stored)
            raise InputError(f"{path}{message}") from error
