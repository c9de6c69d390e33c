"""Writing a model's folder: a model that is there is replaced atomically, and nothing else ever is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.core import InputError
from minisbert.models.folders import INDEX, SENTENCEPIECE, VOCABULARY
from minisbert.models.settings import CONFIG, HEAD, MODULES, OPTIONS, SENTENCE, SPECIAL, TEXT_FILES, WEIGHTS
from minisbert.system.files import atomic_folder, foreign_entries, listed

SAVED = (  # every file that ``save``, sentence-transformers or transformers' tokenizers write for such a model
    *(CONFIG, WEIGHTS, INDEX, "model-[0-9]*-of-[0-9]*.safetensors", "tokenizer.json", OPTIONS, SPECIAL, *VOCABULARY),
    *(SENTENCEPIECE, "unigram.json", "added_tokens.json", *TEXT_FILES, MODULES, SENTENCE, "README.md"),
    *(HEAD, "head.safetensors"),
    *(
        f"[0-9]_{module}/{name}"
        for module in ("Pooling", "SpladePooling", "Dense", "Normalize", "MultiVectorMask")
        for name in (CONFIG, WEIGHTS)
    ),
)


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
    if foreign := foreign_entries(folder, SAVED):
        advice = "and is not replaced; choose another folder"
        raise InputError(f"{folder} holds what is not a model's ({listed(foreign)}) {advice}")
    required = (MODULES if (folder / MODULES).is_file() else CONFIG, INDEX if (folder / INDEX).is_file() else WEIGHTS)
    missing = [name for name in required if not (folder / name).is_file()]
    if folder.is_dir() and any(folder.iterdir()) and missing:
        raise InputError(f"{folder} is not a model (no {missing[0]}) and is not replaced; choose another folder")
