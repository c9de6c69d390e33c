"""Replace a model's folder atomically, and never a folder that holds anything else. Imports ``core`` and ``system``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.checkpoints.encoder_settings import OLD_TEXT_SETTINGS, VOCABULARY_FILES
from minisbert.core import InputError
from minisbert.system.files import atomic_folder, foreign_entries, listed

# every file that ``save``, sentence-transformers or transformers' tokenizers write for such a model
SAVED_MODULES = ("Pooling", "SpladePooling", "Dense", "Normalize", "MultiVectorMask")
SAVED = (
    "README.md",
    "config.json",
    "config_sentence_transformers.json",
    OLD_TEXT_SETTINGS,  # a pattern, which the file's name of today matches too
    "head.json",
    "head.safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-[0-9]*-of-[0-9]*.safetensors",
    "modules.json",
    "onnx/model.onnx",
    "onnx/model_int8.onnx",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "sentencepiece.bpe.model",
    "unigram.json",
    *VOCABULARY_FILES,
    *(f"[0-9]_{module}/config.json" for module in SAVED_MODULES),
    *(f"[0-9]_{module}/model.safetensors" for module in SAVED_MODULES),
)
# a model has one of each pair; other projects have the first pair's files as well
NEEDED_FILES = (("modules.json", "config.json"), ("model.safetensors.index.json", "model.safetensors"))


@contextmanager
def model_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder for a model; on success it atomically replaces ``folder``, new, empty or a model's.

    Raises ``InputError`` if ``folder`` holds anything that a saved model does not have.
    """
    check_model_replaceable(Path(folder))
    with atomic_folder(folder) as partial:
        yield partial
        # writing takes a while, in which somebody may have put a file there
        check_model_replaceable(Path(folder))


def check_model_replaceable(folder: Path) -> None:
    """Raise ``InputError`` unless a folder is missing, empty, or a model and nothing else."""
    advice = "and is not replaced; choose another folder"
    foreign = foreign_entries(folder, SAVED)
    if foreign:
        raise InputError(f"{folder} holds what is not a model's ({listed(foreign)}) {advice}")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    for names in NEEDED_FILES:
        if not any((folder / name).is_file() for name in names):
            raise InputError(f"{folder} is not a model (no {names[-1]}) {advice}")
