"""The settings for texts in ``sentence_bert_config.json``: the length limit, lower-casing, arguments of the tokenizer.

Older versions of sentence-transformers named the file after the model: ``sentence_roberta_config.json``. Arguments for
the model, the tokenizer and each of its calls may be nested in it. What would change the vectors and is not honoured
is refused by name.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisbert.core import one_line, read_json
from minisbert.models.settings import architecture, stated, unsupported

NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TEXT_FILES = tuple(f"sentence_{name}_config.json" for name in NAMES)  # the first one there is read

# what the encoder module of sentence-transformers may state about itself, and the only value supported
TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
ONLY = {
    "transformer_task": "feature-extraction",
    "modality_config": TEXT_MODALITY,
    "module_output_name": "token_embeddings",
    "tokenizer_name_or_path": None,
}
CLASSIFIER = {  # the same in a CrossEncoder
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
KEPT = ("query_length", "document_length", "query_expansion")  # for encode_query and encode_document, not for encode
HARMLESS = {  # arguments that change no vector: where files come from, and how the work is done
    "model_kwargs": {
        "add_pooling_layer",
        "attn_implementation",
        "device_map",
        "dtype",
        "low_cpu_mem_usage",
        "torch_dtype",
    },
    "config_kwargs": set(),
    "processing_kwargs": {"padding", "pad_to_multiple_of", "return_attention_mask", "return_tensors", "verbose"},
}
HUB = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code", "use_auth_token"}


@dataclass(frozen=True)
class TextSettings:
    """What the encoder's module states about its texts."""

    limit: int | None = None  # tokens
    lowercase: bool = False  # before the tokenizer's own normalizer
    tokenizer: dict[str, Any] = field(default_factory=dict)  # over those of tokenizer_config.json
    kept: dict[str, Any] = field(default_factory=dict)  # for ``save``
    path: Path | None = None


def read_text_settings(folder: Path) -> TextSettings:
    """The first of ``TEXT_FILES`` in an encoder's folder. Raises ``InputError`` for what is not supported."""
    contents = ((folder / name, read_json(folder / name)) for name in TEXT_FILES if (folder / name).is_file())
    path, raw = next((pair for pair in contents if pair[1]), (None, {}))
    if path is None:
        return TextSettings()
    only = ONLY | (CLASSIFIER if architecture(folder).endswith("ForSequenceClassification") else {})
    for key, supported in only.items():
        if raw.get(key, supported) != supported:
            raise unsupported(path, key, raw[key], f"only {one_line(supported)} is")
    tokenizer = arguments(raw, "processor_kwargs", "tokenizer_args", path)
    for new, old in (("model_kwargs", "model_args"), ("config_kwargs", "config_args")):
        for key, value in arguments(raw, new, old, path).items():
            if key not in HARMLESS[new] | HUB:
                raise unsupported(path, f"{key} in {new}", value, "it may change the vectors")
    limits = [stated(call, "max_length", int, path) for call in call_arguments(raw, path)]
    limits += [stated(tokenizer, "model_max_length", int, path), stated(raw, "max_seq_length", int, path)]
    lowercase = stated(raw, "do_lower_case", bool, path, False)
    kept = {"do_lower_case": True} if lowercase else {}
    kept |= {key: raw[key] for key in KEPT if raw.get(key) is not None}
    tokenizer = {key: value for key, value in tokenizer.items() if key not in HUB | {"model_max_length"}}
    return TextSettings(next((n for n in limits if n is not None), None), lowercase, tokenizer, kept, path)


def arguments(raw: dict[str, Any], new: str, old: str, path: Path) -> dict[str, Any]:
    """The arguments under one of two names, of which the older one wins, as in sentence-transformers."""
    return stated(raw, old if old in raw else new, dict, path, {})


def call_arguments(raw: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """What ``processing_kwargs`` adds to every call of the tokenizer, without what changes no vector."""
    groups = stated(raw, "processing_kwargs", dict, path, {})
    calls = [stated(groups, name, dict, path, {}) for name in ("text", "common")]
    for key, value in ((key, value) for call in calls for key, value in call.items()):
        usual = key == "truncation" and value in (True, "longest_first", "only_first")
        if not usual and key not in HARMLESS["processing_kwargs"] | {"max_length"}:
            raise unsupported(path, f"{key} in processing_kwargs", value, "it may change the vectors")
    return calls
