"""What the JSON files of a model's folder may state: one dataclass per file, filled by ``parse_settings``.

A setting that changes vectors is honoured or refused by name: the annotation gives its type, and a ``Literal`` the only
values supported. docs/models.md lists every setting.
"""

from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import RULES
from minisbert.core.weights import Size
from minisbert.system.files import write_json

Parsed = TypeVar("Parsed")

MAX_SCORE = 5.0  # of a head that scores pairs: 0 nothing in common, 5 the same meaning, as in STS

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"  # which tensor is in which shard
SPECIAL_TOKENS = "special_tokens_map.json"  # of older tokenizers
VOCABULARY_FILES = ("vocab.txt", "vocab.json", "merges.txt")  # what tokenizer.json holds as well
SENTENCE, MODULES_FILE, HEAD_FILE = "config_sentence_transformers.json", "modules.json", "head.json"
# older versions of sentence-transformers named this file after the model; the first one that has settings is read
ENCODERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TEXT_FILES = tuple(f"sentence_{name}_config.json" for name in ENCODERS)
# of settings whose older name wins if a file has both
OLDER_NAMES = {"processor_kwargs": "tokenizer_args", "model_kwargs": "model_args", "config_kwargs": "config_args"}


def parse_settings(kind: type[Parsed], *files: tuple[Path, dict[str, Any]]) -> Parsed:
    """A dataclass from the contents of JSON files; a later file overrides those before it.

    A setting that is missing or null keeps its default; unknown settings are ignored. A float without a fraction counts
    as an integer: some authors write the limit as ``1e30``. Raises ``InputError`` with the file, the key and the value
    if the type is not that of the annotation, or the value is not supported.
    """
    stated = {}
    for path, content in files:
        for key, value in content.items():
            if value is not None:
                stated[key] = path, value
    values = {}
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        key = OLDER_NAMES.get(name, name)
        if key not in stated:
            key = name
        if key not in stated:
            continue
        path, value = stated[key]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not fits(value, annotation):
            raise InputError(f"{path}: {key} must be {expected(annotation)}, not {one_line(value)}")
        values[name] = value
    with reading(files[-1][0]):
        return kind(**values)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value from a JSON file has the type of an annotation: ``fits(["a"], list[str] | None)``."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Annotated:
        return fits(value, inner[0]) and RULES[inner[1]](value)
    if kind is Literal:
        return value in inner and type(value) is type(inner[0])
    if kind in (Union, UnionType):
        return any(fits(value, option) for option in inner)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float)
    if not isinstance(value, kind):
        return False
    items = value.values() if kind is dict else value
    return not inner or all(fits(item, inner[-1]) for item in items)


def expected(annotation: Any) -> str:
    """An annotation for a message: ``left or right`` of ``Literal["left", "right"] | None``."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return inner[1]
    if kind is Literal:
        return " or ".join(map(str, inner))
    if kind in (Union, UnionType):
        return " or ".join(expected(option) for option in inner if option is not type(None))
    return str(annotation) if inner else annotation.__name__


def unsupported(path: Path, key: str, value: Any, reason: str) -> InputError:
    """The error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


@dataclass(frozen=True)
class EncoderSettings:
    """``config_sentence_transformers.json``: how vectors are cut and compared, and prompts to put before each text.

    ``encode`` keeps the first ``truncate_dim`` columns and takes the prompt ``default_prompt_name`` unless it is given
    another; None keeps all columns, and takes no prompt.
    """

    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    truncate_dim: Size | None = None
    prompts: dict[str, str | None] = field(default_factory=dict)  # null is an empty prompt
    default_prompt_name: str | None = None
    model_type: Literal["SentenceTransformer", "SparseEncoder", "MultiVectorEncoder"] = "SentenceTransformer"
    include_prompt: bool = True  # pool over a prompt's tokens too; in the pooling's file
    others: dict[str, Any] = field(default_factory=dict)  # as read, for ``save``

    @property
    def similarity(self) -> str:
        """``cosine``, ``dot``, ``euclidean`` or ``manhattan``."""
        return self.similarity_fn_name

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", {name: text or "" for name, text in self.prompts.items()})
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            name = one_line(self.default_prompt_name)
            raise ValueError(f"default_prompt_name {name} is not one of the prompts, {[*self.prompts]}")


WRITTEN = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__")  # others are kept


def write_settings(folder: Path, settings: EncoderSettings, text_settings: dict[str, Any], **more: str) -> None:
    """Write ``sentence_bert_config.json`` with ``text_settings``, and the encoder's settings and ``more``."""
    write_json(folder / TEXT_FILES[0], text_settings)
    content = settings.others | {
        "prompts": settings.prompts,
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity,
    }
    if settings.truncate_dim is not None:
        content["truncate_dim"] = settings.truncate_dim
    write_json(folder / SENTENCE, content | more)


@dataclass(frozen=True)
class PoolingSettings:
    """``1_Pooling/config.json``, without its flags, one for each pooling, in older files."""

    pooling_mode: str | list[str] = ""
    include_prompt: bool = True  # pool over a prompt's tokens too


@dataclass(frozen=True)
class VectorModule:
    """The input and output of a Dense or Normalize module."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] = "sentence_embedding"


@dataclass(frozen=True, kw_only=True)
class DenseSettings(VectorModule):
    """``2_Dense/config.json``."""

    in_features: Size
    out_features: Size
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: Literal[False] = False


@dataclass(frozen=True)
class ModelSettings:
    """``config.json``, without what only ``BertConfig`` needs."""

    model_type: str = ""
    architectures: list[str] = field(default_factory=list)  # classes of transformers, the first one counts
    tokenizer_class: str | None = None
    pad_token_id: Annotated[int, "an integer from 0"] | None = None
    classifier_dropout: float | None = None  # of a CrossEncoder
    seq_classif_dropout: float | None = None  # the same of DistilBERT
    id2label: dict[str, str] = field(default_factory=dict)  # of a CrossEncoder with several labels
    sentence_transformers: dict = field(default_factory=dict)
    sbert_ce_default_activation_function: str | None = None  # the same in older files
    minisbert: dict = field(default_factory=dict)  # of a CrossEncoder that was saved here: its task

    @property
    def classifier(self) -> str:
        """The class of a model with a classifier for pairs; an empty string for any other."""
        name = self.architectures[0] if self.architectures else ""
        return name if name.endswith("ForSequenceClassification") else ""


@dataclass(frozen=True)
class CrossEncoderSettings:
    """``config_sentence_transformers.json`` of a CrossEncoder."""

    model_type: Literal["CrossEncoder"] = "CrossEncoder"
    activation_fn: str | None = None
    default_prompt_name: str | None = None


@dataclass(frozen=True)
class PairHeadSettings:
    """``head.json``: the head of a ``PairModel``, and what its outputs are."""

    head: str
    task: str
    labels: list[str] = field(default_factory=list)
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class TokenizerSettings:
    """``tokenizer_config.json``, and over it what ``sentence_bert_config.json`` has for the tokenizer."""

    tokenizer_class: str | None = None
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    add_prefix_space: bool | None = None
    legacy: bool = False  # of LlamaTokenizer
    split_special_tokens: bool = False
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    model_max_length: int | None = None
    max_len: int | None = None  # the same in older files
    added_tokens_decoder: dict[str, dict] | None = None
    model_input_names: list[str] | None = None  # what the encoder gets of a text; None for the class's own


@dataclass(frozen=True)
class TextSettings:
    """``sentence_bert_config.json``."""

    max_seq_length: int | None = None
    do_lower_case: bool = False  # before the tokenizer's own normalizer
    processor_kwargs: dict = field(default_factory=dict)  # override ``tokenizer_config.json``
    model_kwargs: dict = field(default_factory=dict)
    config_kwargs: dict = field(default_factory=dict)
    processing_kwargs: dict[str, dict] = field(default_factory=dict)


@dataclass(frozen=True)
class LimitSettings:
    """The limits among the arguments of a tokenizer, and of its calls in ``processing_kwargs``."""

    model_max_length: int | None = None
    max_length: int | None = None
