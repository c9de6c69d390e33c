"""Read the JSON files of a model's folder: their names, and a dataclass for the settings in each of them.

Each setting that changes vectors is read by its name, and honoured or refused; docs/models.md lists them all.
Imports ``core`` and ``system``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from minisbert.core import InputError, one_line
from minisbert.system.files import write_json

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"  # which tensor is in which shard
SPECIAL_TOKENS = "special_tokens_map.json"  # of older tokenizers
VOCABULARY_FILES = ("vocab.txt", "vocab.json", "merges.txt")  # tokenizer.json holds their contents as well
SENTENCE, MODULES_FILE, HEAD_FILE = "config_sentence_transformers.json", "modules.json", "head.json"
TEXT_SETTINGS = "sentence_bert_config.json"  # "bert" whatever the encoder is
OLD_TEXT_SETTINGS = "sentence_*_config.json"  # versions before 2020 named the file after the model

LARGEST_SIZE = 2**31 - 1
EXPECTED = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class JsonSettings:
    """The contents of JSON files, read key by key: ``JsonSettings((path, content)).get("bias", bool, True)``.

    A key that is missing or null has its default, and keys that nobody reads are ignored. If several files have a key,
    the last one counts. Raises ``InputError`` with the file, the key and the value for a value that is not supported.
    """

    def __init__(self, *files: tuple[Path, dict[str, Any]]):
        self.path = files[0][0]  # for errors about keys that no file has
        self.values: dict[str, tuple[Path, Any]] = {}
        for path, content in files:
            for key, value in content.items():
                if value is not None:
                    self.values[key] = path, value

    def get(self, key: str, kind: type, default: Any = None, items: type | None = None) -> Any:
        """Return the value of a key, of a type in ``EXPECTED``; ``items`` is the type of a list's or object's items."""
        if key not in self.values:
            return default
        value = self.values[key][1]
        # some authors write "no limit" as 1e30, and JSON has one type for all numbers
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        expected = EXPECTED[kind]
        # subtle: not isinstance, to which True is an integer
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise self.error(key, expected)
        if items is not None:
            contents: Any = value.values() if isinstance(value, dict) else value
            for item in contents:
                if type(item) is not items:
                    raise self.error(key, f"{expected}, each item {EXPECTED[items]}")
        return value

    def size(self, key: str) -> int | None:
        """Return a number of columns or tokens."""
        value = self.get(key, int)
        if value is not None and not 0 < value <= LARGEST_SIZE:
            raise self.error(key, "an integer from 1")
        return value

    def needed_size(self, key: str) -> int:
        """Return a number of columns or tokens that the file must state."""
        value = self.size(key)
        if value is None:
            raise self.error(key, "an integer from 1")
        return value

    def choice(self, key: str, *choices: Any) -> Any:
        """Return one of the supported values, of which the first is the default."""
        value = self.values[key][1] if key in self.values else choices[0]
        if value not in choices:
            raise self.error(key, " or ".join(str(choice) for choice in choices if choice is not None))
        return value

    def place(self, key: str) -> Path:
        """Return the file that states a key."""
        return self.values.get(key, (self.path, None))[0]

    def error(self, key: str, expected: str) -> InputError:
        """Make the error for the value of a key."""
        value = self.values.get(key, (self.path, None))[1]
        return InputError(f"{self.place(key)}: {key} must be {expected}, not {one_line(value)}")


def unsupported(path: Path, key: str, value: Any, reason: str) -> InputError:
    """Make the error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


@dataclass(frozen=True)
class EncoderSettings:
    """``config_sentence_transformers.json``: how vectors are cut and compared, and prompts to put before each text.

    ``encode`` keeps the first ``truncate_dim`` columns and takes the prompt ``default_prompt_name`` unless it is given
    another; None keeps all columns, and takes no prompt.
    """

    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    model_type: str = "SentenceTransformer"
    include_prompt: bool = True  # pool over a prompt's tokens too; in the pooling's file
    others: dict[str, Any] = field(default_factory=dict)  # as read, for ``save``

    similarities: ClassVar[tuple[str, ...]] = ("cosine", "dot", "euclidean", "manhattan")
    model_types: ClassVar[tuple[str, ...]] = ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder")

    @classmethod
    def read(cls, settings: JsonSettings, **more: Any) -> "EncoderSettings":
        """Read the settings in a file. ``more`` are the values of a subclass's fields."""
        prompts = {}
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
            **more,
        )


# the keys that ``write_settings`` writes itself; others are copied from the folder that was read
WRITTEN = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__")


def write_settings(folder: Path, settings: EncoderSettings, text_settings: dict[str, Any], **more: str) -> None:
    """Write ``sentence_bert_config.json`` with ``text_settings``, and the encoder's settings and ``more``."""
    write_json(folder / TEXT_SETTINGS, text_settings)
    content = settings.others | {
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity_fn_name,
    }
    if settings.truncate_dim is not None:
        content["truncate_dim"] = settings.truncate_dim
    write_json(folder / SENTENCE, content | more)


def check_module_names(settings: JsonSettings, name: str = "sentence_embedding") -> None:
    """Raise ``InputError`` if a Dense or Normalize module reads or writes another result than the one named."""
    settings.choice("module_input_name", name)
    settings.choice("module_output_name", name)
