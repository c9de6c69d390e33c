"""Replacing a model's folder atomically, and never a folder that holds anything else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.checkpoints.encoder_settings import TEXT_FILES, VOCABULARY_FILES
from minisbert.core import InputError
from minisbert.system.files import atomic_folder, foreign_entries, listed

# every file that ``save``, sentence-transformers or transformers' tokenizers write for such a model
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "unigram.json")
ONNX_FILES = ("onnx/model.onnx", "onnx/model_int8.onnx")  # of minisbert export-onnx
MODEL_FILES = (
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    "head.json",
    "head.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-[0-9]*-of-[0-9]*.safetensors",
    "modules.json",
)
MODULE_FILES = tuple(
    f"[0-9]_{module}/{name}"
    for module in ("Pooling", "SpladePooling", "Dense", "Normalize", "MultiVectorMask")
    for name in ("config.json", "model.safetensors")
)
WEIGHT_FILES = MODEL_FILES + MODULE_FILES + ONNX_FILES
SAVED = WEIGHT_FILES + TOKENIZER_FILES + VOCABULARY_FILES + SENTENCEPIECE_FILES + TEXT_FILES
NEEDED = (("modules.json", "config.json"), ("model.safetensors.index.json", "model.safetensors"))  # one of each pair


@contextmanager
def model_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to write a model to; on success it replaces ``folder`` (new, empty or a model) atomically.

    Raises ``InputError`` if ``folder`` holds anything that a saved model does not have.
    """
    check_replaceable(Path(folder))
    with atomic_folder(folder) as partial:
        yield partial
        check_replaceable(Path(folder))  # writing takes a while


def check_replaceable(folder: Path) -> None:
    """Raise ``InputError`` unless a folder is missing, empty, or a model and nothing else."""
    advice = "and is not replaced; choose another folder"
    foreign = foreign_entries(folder, SAVED)
    if foreign:
        raise InputError(f"{folder} holds what is not a model's ({listed(foreign)}) {advice}")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    for names in NEEDED:
        if not any((folder / name).is_file() for name in names):
            raise InputError(f"{folder} is not a model (no {names[-1]}) {advice}")
