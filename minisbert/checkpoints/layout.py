"""A model's folder in the layout of sentence-transformers: which modules it has, and what they are set to.

Files are read as plain values (names, sizes, flags); nothing here builds a model. Imports ``core``, ``system``,
``architectures`` and the settings.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minisbert.architectures.relatives import ENCODER_FAMILIES, read_family
from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    HEAD_FILE,
    MODULES_FILE,
    SENTENCE,
    WRITTEN,
    EncoderSettings,
    JsonSettings,
    ModelSettings,
    check_module_names,
    unsupported,
)
from minisbert.core import InputError, one_line, read_json, reading
from minisbert.core.encoder import OWN, pooling_modes
from minisbert.core.weights import BERT, BertConfig, Family
from minisbert.system.assets import assets, ensure
from minisbert.system.console import check_usage
from minisbert.system.files import MOST_BYTES, write_json
from minisbert.system.hub import download_model, is_hub_name

POOLING_NAMES = tuple("mean cls max mean_sqrt_len_tokens weightedmean lasttoken attention first-last pooler".split())
# flags of older files after ``core.POOLING_FLAGS``, in the order in which sentence-transformers concatenates
MORE_POOLING_FLAGS = {
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class ModelClass:
    """How a folder of this class is recognised, and the order of its modules as a regular expression.

    One of ``marks`` is enough: a ``model_type`` in config_sentence_transformers.json or config.json, a key of the
    former, an architecture in the latter, or a class in modules.json.
    """

    marks: tuple[str, ...]
    order: str


SENTENCE_ENCODER = "SentenceEncoder"  # opens any folder that no other class claims
MODEL_CLASSES = {
    "SparseEncoder": ModelClass(
        marks=("SparseEncoder", "SpladePooling", "SparseStaticEmbedding", "IDF", "SparseAutoEncoder"),
        order="Transformer SpladePooling",
    ),
    "MultiVectorEncoder": ModelClass(
        # the last three are refused
        marks=("MultiVectorEncoder", "MultiVectorMask", "ColBERT", "query_prefix", "HF_ColBERT"),
        order="Transformer Dense( Normalize)? MultiVectorMask( Normalize)?",
    ),
    "StaticEncoder": ModelClass(marks=("StaticEmbedding", "model2vec"), order="StaticEmbedding( Normalize)?"),
    SENTENCE_ENCODER: ModelClass(marks=(), order="Transformer Pooling( Dense)*( Normalize)?"),
}


def write_modules(folder: Path, classes: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json``, create one subfolder per module and return their names; the first module's is ``folder``.

    ``package`` is the one of sentence-transformers that has the classes.
    """
    places, modules = [], []
    for i, name in enumerate(classes):
        place = f"{i}_{name}" if i else ""
        home = "multi_vector_encoder.modules" if name == "MultiVectorMask" else package
        places.append(place)
        modules.append({"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{home}.{name}"})
        (folder / place).mkdir(exist_ok=True)
    write_json(folder / MODULES_FILE, modules)
    return places


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
        """Return whether there is such a file. ``InputError`` for what is not a regular file, or is far too large."""
        path = self.path / name
        # not Path.exists, which raises OSError for a name that is too long
        if not os.path.lexists(path):
            return False
        if not path.is_file():
            raise InputError(f"{path} is a folder, device or broken link, not a file")
        if path.suffix != ".safetensors" and path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES:,} bytes")
        return True

    def read(self, name: str) -> bytes:
        """Read the bytes of a file, once."""
        if name not in self.files:
            self.has(name)
            with reading(self.path / name):
                self.files[name] = (self.path / name).read_bytes()
        return self.files[name]

    def json(self, name: str, kind: type = dict, needed: bool = False) -> Any:
        """Read the contents of a JSON file; an empty object (or list) if there is none and it is not ``needed``."""
        if name not in self.contents:
            if self.has(name) or needed:
                self.contents[name] = read_json(self.path / name, kind)
            else:
                self.contents[name] = kind()
        return self.contents[name]

    def json_settings(self, name: str, needed: bool = False) -> JsonSettings:
        """Read the settings in a JSON file."""
        return JsonSettings((self.path / name, self.json(name, needed=needed)))

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
        """True where sentence-transformers reads its own settings; elsewhere they are leftovers.

        It does beside modules.json, and in a CrossEncoder's folder only if they call it one.
        """
        if self.is_module or not self.has(MODULES_FILE):
            return self.is_module
        return not self.model.classifier or self.json(SENTENCE).get("model_type") == "CrossEncoder"

    @property
    def holds_pair_model(self) -> bool:
        """True for a folder with a head for pairs, a ``PairModel``'s or a CrossEncoder's."""
        return self.has(HEAD_FILE) or bool(self.model.classifier)

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """``classes`` in an order that the folder's class computes; ``InputError`` for others."""
        names = [name for name, _ in self.classes]
        # newer CrossEncoders have a modules.json too, whose one Transformer includes the classifier
        if not self.has(MODULES_FILE) or (self.model.classifier and names == ["Transformer"]):
            return self.classes
        if self.json(SENTENCE).get("model_type", "") is None:
            reason = "sentence-transformers ignores modules.json then; leave the key out"
            raise unsupported(self.path / SENTENCE, "model_type", None, reason)
        order = MODEL_CLASSES[self.model_class].order
        if not re.fullmatch(order, " ".join(names)):
            # the regular expression as a list for people: Transformer, Pooling, Dense ..., Normalize
            readable = order.replace("( Dense)*", " Dense ...").replace("(", "").replace(")?", "").replace(" ", ", ")
            unread = f"modules {', '.join(names)} are not supported, only {readable}"
            raise InputError(f"{self.path / MODULES_FILE}: {unread}")
        return self.classes

    def opened_by(self, name: str) -> "ModelFolder":
        """Return the folder; ``InputError`` if another class than ``name`` opens it. Without modules any does."""
        if self.model_class != name and (self.classes or name == SENTENCE_ENCODER):
            raise InputError(f"{self.path} is not a {name}'s folder: {self.model_class}.load opens it")
        return self

    def places(self, module: str) -> list[str]:
        """List the subfolders of the modules of one class."""
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
            path = f"{place}/{CONFIG}"
            content = self.json(path, needed=True)
            names = pooling_modes(content)
            if not names and "pooling_mode" not in content:
                names = ["mean"]  # the default of sentence-transformers
            # the book knows three flags and returns others as they are, in the order in which the file has them;
            # sentence-transformers concatenates in an order of its code
            modes = [name for name in names if name not in MORE_POOLING_FLAGS]
            modes += [mode for flag, mode in MORE_POOLING_FLAGS.items() if flag in names]
            if not modes or not set(modes).issubset(POOLING_NAMES):
                raise unsupported(self.path / path, "pooling_mode", modes, f"supported: {', '.join(POOLING_NAMES)}")
            return "+".join(modes)
        return None

    @cached_property
    def normalize(self) -> bool:
        """True if vectors are scaled to length 1."""
        places = self.places("Normalize")
        for place in places:
            check_module_names(self.json_settings(f"{place}/{CONFIG}"))
        return bool(places)

    @cached_property
    def settings(self) -> EncoderSettings:
        """The settings that say how vectors are cut and compared, and the prompts."""
        include_prompt = True
        for place in self.places("Pooling"):
            name = f"{place}/{CONFIG}"
            include_prompt = self.json_settings(name).get("include_prompt", bool, True)
            if not include_prompt and "weightedmean" in (self.pooling or ""):
                raise unsupported(self.path / name, "include_prompt", False, "with weightedmean it must be true")
        if not self.described:
            return EncoderSettings(include_prompt=include_prompt)
        others = {key: value for key, value in self.json(SENTENCE).items() if key not in WRITTEN}
        return EncoderSettings.read(self.json_settings(SENTENCE), include_prompt=include_prompt, others=others)

    @cached_property
    def model(self) -> ModelSettings:
        """The settings in ``config.json`` other than the encoder's sizes."""
        return ModelSettings.read(self.json_settings(CONFIG))

    @cached_property
    def config(self) -> tuple[Family, BertConfig]:
        """The family and the sizes of the encoder in this folder. An error names the keys of the family's own file."""
        if not self.has(CONFIG):
            raise InputError(f"{self.path} holds no model: it has no {CONFIG}")
        path, content = self.path / CONFIG, dict(self.json(CONFIG, needed=True))
        # ``read_encoder`` refuses weights that are quantized
        content.pop("quantization_config", None)
        for key, value in content.items():
            if value == "gelu_python":  # the exact GELU under the name of its first code
                content[key] = "gelu"
        # the config's class complains of our names: say those of the file
        try:
            return read_family(self.path, content)
        except InputError as error:
            message = str(error).removeprefix(str(path))
            for ours, stored in ENCODER_FAMILIES.get(self.model.model_type, BERT).settings.items():
                message = message.replace(ours, stored)
            raise InputError(f"{path}{message}") from error


def transformer_module(task: str, result: str, output: str) -> dict[str, Any]:
    """Return the only value supported for each key that a Transformer module may state about itself."""
    return {
        "transformer_task": task,
        "modality_config": {"text": {"method": "forward", "method_output_name": result}},
        "module_output_name": output,
        "tokenizer_name_or_path": None,
    }


ENCODER_MODULE = transformer_module("feature-extraction", "last_hidden_state", "token_embeddings")
CLASSIFIER_MODULE = transformer_module("sequence-classification", "logits", "scores")  # of a CrossEncoder
MASKED_MODULE = transformer_module("fill-mask", "logits", "token_embeddings")  # of SPLADE


def find_model(model: str | Path) -> Path:
    """Find the folder of a model: a path, a name of the manifest, or ``owner/name[@revision]`` on the Hugging Face Hub.

    A ``Path`` is always a path. A string that is both a folder and a name is the folder, as in sentence-transformers.
    A named model is downloaded if it is missing. Raises ``InputError`` for anything else.
    """
    if not isinstance(model, str | Path):
        raise InputError(f"a model is a name or the path of a folder, not {one_line(model)}")
    # not Path.is_dir, which raises OSError for a name that is too long
    if os.path.isdir(model):
        folder = Path(model)
        is_run = (folder / "metrics.jsonl").is_file() and (folder / "model").is_dir()
        check_usage((is_run, f"{folder} is the folder of a run: its model is {folder / 'model'}"))
        return folder
    shown = one_line(str(model))
    weights = {name: asset for name, asset in assets().items() if asset.kind == "weights"}
    if model in weights:
        return ensure(model)
    if os.path.lexists(model):
        raise InputError(f"no model {shown}: a file or a broken link")
    if isinstance(model, Path):
        raise InputError(f"no model {shown}: there is no such folder, and a Path is not looked up as a name")
    # a repository of the manifest is that asset, at its fixed revision, unless another revision is named
    for name, asset in weights.items():
        if model in [source.get("hub") for source in asset.sources]:
            return ensure(name)
    if is_hub_name(model):
        return download_model(model)
    raise InputError(
        f"no model {shown}: neither a folder nor one of {', '.join(weights)}; models on the Hugging "
        "Face Hub have an owner in their name, such as sentence-transformers/all-mpnet-base-v2"
    )
