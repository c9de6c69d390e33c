"""Finding a model's folder, and reading it.

A loaded model's weights are a copy of the file's: a model may be saved over its own source, or fetched again, or its
files changed in place by another program (``rsync --inplace``), while it is in use.
"""

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from minisbert.architectures.relatives import FAMILIES, read_family
from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.encoder import OWN, pooling_modes
from minisbert.core.weights import BERT, BertConfig, Family
from minisbert.folder.modules import KINDS, POOLING_NAMES, SENTENCE_ENCODER, check_order
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
from minisbert.system.assets import assets, ensure
from minisbert.system.files import MOST_BYTES
from minisbert.system.hub import download_model, is_hub_name

Parsed = TypeVar("Parsed")
INDEX = "model.safetensors.index.json"  # which tensor is in which shard
MORE_FLAGS = {"pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}  # after ``core.POOLING_FLAGS``, in order
MORE_FLAGS |= {"pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken"}
VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt")  # what tokenizer.json holds as well


class ModelFolder:
    """A model's folder in the layout of sentence-transformers. Each JSON file is read once, when it is first needed.

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
        self.path, self.is_module = Path(path), is_module  # a module's folder has no modules.json of its own
        self.files: dict[str, bytes] = {}  # that were read as they are
        self.contents: dict[str, Any] = {}  # of JSON files

    @classmethod
    def of(cls, folder: "str | Path | ModelFolder") -> "ModelFolder":
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    def has(self, name: str) -> bool:
        """Whether there is such a file. ``InputError`` for what is not a regular file, or is far too large."""
        path = self.path / name
        if not os.path.lexists(path):  # not Path.exists, which raises OSError for a name that is too long
            return False
        large = path.suffix != ".safetensors" and path.is_file() and path.stat().st_size > MOST_BYTES
        if large or not path.is_file():
            fault = f"larger than {MOST_BYTES:,} bytes" if large else "a folder, device or broken link, not a file"
            raise InputError(f"{path} is {fault}")
        return True

    def read(self, name: str) -> bytes:
        if name not in self.files:
            self.has(name)
            with reading(self.path / name):
                self.files[name] = (self.path / name).read_bytes()
        return self.files[name]

    def json(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """The contents of a JSON file; an empty object (or list) if there is none and it is not ``needed``."""
        if name not in self.contents:
            there = self.has(name)
            self.contents[name] = read_json(self.path / name, kind) if there or needed else kind()
        return self.contents[name]

    def parse(self, name: str, kind: type[Parsed], needed: bool = False) -> Parsed:
        """The settings in a JSON file, as a dataclass."""
        return parse_settings(kind, (self.path / name, self.json(name, needed=needed)))

    @cached_property
    def classes(self) -> list[tuple[str, str]]:
        """Class and subfolder of each module, in order: ``("Transformer", ""), ("Pooling", "1_Pooling")``."""
        found = []
        with reading(self.path / MODULES_FILE):
            for module in self.json(MODULES_FILE, list):
                kind, path = OWN.sub("", module["type"]), Path(module["path"])
                if path.is_absolute() or ".." in path.parts:
                    raise ValueError(f"path {one_line(str(path))} leads out of the folder")
                # MLMTransformer is a Transformer with another head
                found.append((kind.removeprefix("MLM"), path.as_posix()))
        return [(kind, place) for kind, place in found if kind != "Dropout"]  # changes no vector

    @cached_property
    def kind(self) -> str:
        """The name in ``KINDS`` of the class that opens the folder, by what its files say, supported or not."""
        words = {str(self.json(name).get("model_type")) for name in (SENTENCE, CONFIG)}
        words |= {*self.json(SENTENCE), *self.model.architectures, *(kind for kind, _ in self.classes)}
        return next((name for name, kind in KINDS.items() if words & {*kind.words.split()}), SENTENCE_ENCODER)

    @property
    def described(self) -> bool:
        """Whether sentence-transformers reads its own settings here; elsewhere they are leftovers.

        It does beside modules.json, and in a CrossEncoder's folder if they call it one.
        """
        if self.model.classifier:
            return self.json(SENTENCE).get("model_type") == "CrossEncoder"
        return self.is_module or self.has(MODULES_FILE)

    @property
    def holds_pair_model(self) -> bool:
        """Whether there is a head for pairs: a ``PairModel``'s or a CrossEncoder's."""
        return self.has(HEAD_FILE) or bool(self.model.classifier)

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """``classes`` in an order that the folder's kind computes; ``InputError`` for others."""
        kinds = [kind for kind, _ in self.classes]
        if self.has(MODULES_FILE) and not (self.model.classifier and kinds == ["Transformer"]):
            with reading(self.path / MODULES_FILE):
                check_order(self.kind, kinds)
        return self.classes

    def opened_by(self, name: str) -> "ModelFolder":
        """The folder; ``InputError`` if a class other than ``name`` opens it. Any class opens one without modules."""
        if self.kind != name and (self.classes or name == SENTENCE_ENCODER):
            raise InputError(f"{self.path} is not a {name}'s folder: {self.kind}.load opens it")
        return self

    def places(self, kind: str) -> list[str]:
        """The subfolders of the modules of one kind."""
        return [place for found, place in self.modules if found == kind]

    @cached_property
    def encoder(self) -> "ModelFolder":
        """The folder of the encoder and its tokenizer."""
        place = next(iter(self.places("Transformer")), ".")
        return self if place == "." else ModelFolder(self.path / place, is_module=True)

    @cached_property
    def pooling(self) -> str | None:
        """The pooling; several are joined by a plus, in the order of their columns. None if the folder states none."""
        for place in self.places("Pooling"):
            raw = self.json(f"{place}/{CONFIG}", needed=True)
            found = pooling_modes(raw) or ["mean"] * ("pooling_mode" not in raw)  # the default of sentence-transformers
            modes = [mode for mode in found if mode not in MORE_FLAGS]
            modes += [mode for flag, mode in MORE_FLAGS.items() if flag in found]
            if not modes or not {*modes} <= {*POOLING_NAMES}:
                known = f"{', '.join(POOLING_NAMES)} are"
                raise unsupported(self.path / place / CONFIG, "pooling_mode", modes, known)
            return "+".join(modes)
        return None

    @cached_property
    def normalize(self) -> bool:
        """Whether vectors are scaled to length 1."""
        for place in self.places("Normalize"):
            self.parse(f"{place}/{CONFIG}", VectorModule)
        return bool(self.places("Normalize"))

    @cached_property
    def settings(self) -> EncoderSettings:
        """How vectors are cut and compared, and prompts."""
        return self.settings_as(EncoderSettings)

    def settings_as(self, kind: type[EncoderSettings]) -> Any:
        """``settings`` of a class of models for which other values are right."""
        include = True
        for place in self.places("Pooling"):
            include = self.parse(f"{place}/{CONFIG}", PoolingSettings).include_prompt
            if not include and "weightedmean" in (self.pooling or ""):
                reason = "with weightedmean only true is"
                raise unsupported(self.path / place / CONFIG, "include_prompt", include, reason)
        if not self.described:
            return kind(include_prompt=include)
        others = {key: value for key, value in self.json(SENTENCE).items() if key not in WRITTEN}
        return replace(self.parse(SENTENCE, kind), include_prompt=include, others=others)

    @cached_property
    def model(self) -> ModelSettings:
        """What ``config.json`` states beside the encoder's sizes."""
        return self.parse(CONFIG, ModelSettings)

    @cached_property
    def config(self) -> tuple[Family, BertConfig]:
        """The family and the sizes of the encoder in this folder. An error names the keys of the family's own file."""
        path = self.path / CONFIG
        try:
            raw = self.json(CONFIG, needed=True)  # "gelu_python" is the exact GELU under the name of its first code
            raw = {key: "gelu" if value == "gelu_python" else value for key, value in raw.items()}
            return read_family(self.path, raw)
        except InputError as error:
            message = str(error).removeprefix(str(path))
            for ours, theirs in FAMILIES.get(self.model.model_type, BERT).settings.items():
                message = message.replace(ours, theirs)
            raise InputError(f"{path}{message}") from error


def find_model(model: str | Path) -> Path:
    """The folder of a model: a folder, a name of the manifest, or ``owner/name[@revision]`` on the Hugging Face Hub.

    A named model is downloaded if it is missing. Raises ``InputError`` for anything else, and for a file in the folder
    that cannot be read.
    """
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a name or the path of a folder, not {one_line(model)}")
    name = str(model)
    weights = [asset for asset, entry in assets().items() if entry.kind == "weights"]
    if name in weights:
        return ensure(name)
    if os.path.isdir(model):  # not Path.is_dir, which raises OSError for a name that is too long
        return Path(model)
    if isinstance(model, str) and is_hub_name(model) and not os.path.lexists(model):
        return download_model(name)
    known = f"neither a folder nor one of {', '.join(weights)}; models on the Hugging Face Hub have an owner in "
    known += "their name, such as sentence-transformers/all-mpnet-base-v2"
    raise InputError(f"no model {one_line(name)}: {'a file or a broken link' if os.path.lexists(model) else known}")
