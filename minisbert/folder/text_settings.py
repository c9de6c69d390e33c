"""``sentence_bert_config.json``: the token limit, and what it may state of the encoder's module and its arguments."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import TEXT_FILES, LimitSettings, TextSettings, parse_settings, unsupported

T = TypeVar("T")


def transformer_module(task: str, result: str, output: str) -> dict[str, Any]:
    """What a Transformer module may state about itself: for each key the only value supported."""
    return {
        "transformer_task": task,
        "modality_config": {"text": {"method": "forward", "method_output_name": result}},
        "module_output_name": output,
        "tokenizer_name_or_path": None,
    }


ENCODER_MODULE = transformer_module("feature-extraction", "last_hidden_state", "token_embeddings")
CLASSIFIER_MODULE = transformer_module("sequence-classification", "logits", "scores")  # of a CrossEncoder
MASKED_MODULE = transformer_module("fill-mask", "logits", "token_embeddings")  # of SPLADE
HUB = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code", "use_auth_token"}
# arguments that change no vector, and for others the values supported
HARMLESS = HUB | {
    *("add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype"),
    *("max_length", "padding", "pad_to_multiple_of", "return_tensors", "verbose"),
}
ARGUMENT_VALUES = {"truncation": (True, "longest_first", "only_first"), "return_attention_mask": (True,)}


def read_text_settings(folder: ModelFolder, module: dict[str, Any]) -> tuple[Path, TextSettings]:
    """The first of ``TEXT_FILES`` that has settings, and its limit as ``max_seq_length``, whatever its name there.

    Raises ``InputError`` for an encoder's module other than ``module``, and for arguments that may change vectors.
    """
    if not folder.described:
        return folder.path / TEXT_FILES[0], TextSettings()
    name = next((name for name in TEXT_FILES if folder.json(name)), TEXT_FILES[0])
    path, content, texts = folder.path / name, folder.json(name), folder.parse(name, TextSettings)
    for key, only in module.items():
        if content.get(key, only) != only:
            raise unsupported(path, key, content[key], "it may change the vectors")
    calls = texts.processing_kwargs.get("common", {}) | texts.processing_kwargs.get("text", {})
    groups = {"model_kwargs": texts.model_kwargs, "config_kwargs": texts.config_kwargs, "processing_kwargs": calls}
    for group, arguments in groups.items():
        for key, value in arguments.items():
            if key not in HARMLESS and value not in ARGUMENT_VALUES.get(key, ()):
                raise unsupported(path, f"{key} in {group}", value, "it may change the vectors")
    limits = parse_settings(LimitSettings, (path, texts.processor_kwargs), (path, calls))
    limit = first_given(limits.max_length, limits.model_max_length, texts.max_seq_length)
    return path, replace(texts, max_seq_length=limit)


def first_given(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)
