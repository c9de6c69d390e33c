"""Writing a model's folder: a model that is there is replaced atomically, and nothing else ever is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.core import InputError
from minisbert.folder.model_folder import VOCABULARY
from minisbert.folder.settings import TEXT_FILES
from minisbert.system.files import atomic_folder, foreign_entries, listed

SAVED = (  # every file that ``save``, sentence-transformers or transformers' tokenizers write for such a model
    *("config.json", "model.safetensors", "model.safetensors.index.json", "model-[0-9]*-of-[0-9]*.safetensors"),
    *("modules.json", "config_sentence_transformers.json", *TEXT_FILES, "head.json", "head.safetensors", "README.md"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", *VOCABULARY),
    *("sentencepiece.bpe.model", "unigram.json", "onnx/model.onnx", "onnx/model_int8.onnx"),
    *(
        f"[0-9]_{module}/{name}"
        for module in ("Pooling", "SpladePooling", "Dense", "Normalize", "MultiVectorMask")
        for name in ("config.json", "model.safetensors")
    ),
)
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
    foreign, there = foreign_entries(folder, SAVED), folder.is_dir() and any(folder.iterdir())
    missing = [names[-1] for names in NEEDED if there and not any((folder / name).is_file() for name in names)]
    if foreign or missing:
        fault = f"holds what is not a model's ({listed(foreign)})" if foreign else f"is not a model (no {missing[0]})"
        raise InputError(f"{folder} {fault} and is not replaced; choose another folder")
