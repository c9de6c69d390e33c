"""A folder of parts (``corpus/shards.py``) in place of an index: vectors read from disk, never encoded here.

It must be complete and belong to the text and the model in use. The hashes of the parts' files are not computed again:
that would read every byte before each search. ``encode`` and ``merge`` do it.
"""

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from minisbert.core import InputError, one_line
from minisbert.corpus.manifest import MANIFEST, Manifest, differences, noted_hashes, read_manifest, text_hash
from minisbert.fast.matrices import Stacked
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder


def find_parts(folder: Path, file: str, count: int) -> Manifest:
    """The manifest of a complete folder of parts of ``file``, in which ``count`` texts were found.

    Raises ``InputError`` for a folder of something else, parts of another text, and parts that are missing or do not
    have the form that the manifest says. The model is not needed, so this comes before it is loaded.
    """
    if not (folder / MANIFEST).exists():
        raise InputError(
            f"--index {folder} is a folder without {MANIFEST}: give one that python -m minisbert.encode --part-rows "
            "wrote, or the name of a file that ends in .safetensors"
        )
    if not Path(file).is_file():
        raise InputError(f"{file} can be read only once: with the parts in {folder}, a file is needed")
    manifest = read_manifest(folder)
    name, rows = manifest.input["name"], manifest.input["rows"]
    if text_hash(file) != manifest.input["sha256"]:
        raise InputError(
            f"{folder} was made from {one_line(name)} with {rows:,} texts, and {file} is another text: give that one, "
            f"or {remedy(file, manifest)}"
        )
    if count != rows:
        raise InputError(f"{file} had {count:,} texts when it was read, {folder} has {rows:,}: did it change since?")
    noted_hashes(folder, manifest)
    for part in range(len(manifest.parts)):
        open_part(folder, manifest, part)
    return manifest


def check_fit(folder: Path, manifest: Manifest, file: str, encoder: SentenceEncoder, model: str, prompt: str | None):
    """Raise ``InputError`` for parts that this model, with this hash, would not have made with this prompt.

    They may be normalized or not, as a cosine ignores lengths, and of any precision, as that only rounds them.
    """
    prompt = choose_prompt(encoder.settings, prompt)
    options = {"pooling": encoder.pooling_mode, "max_length": encoder.tokenizer.limit, "prompt": prompt}
    changed = differences(manifest, model, options)
    width = min(encoder.settings.truncate_dim or encoder.width, encoder.width)
    if manifest.width != width:
        changed.append(f"width {manifest.width}, not {width}")
    if changed:
        raise InputError(
            f"{folder} was made with {'; '.join(changed)}: give what it was made with, or {remedy(file, manifest)}"
        )


def remedy(file: str, manifest: Manifest) -> str:
    """Parts that do not fit are neither encoded nor replaced by a search."""
    rows = manifest.options["part_rows"]
    return (
        f"encode to another folder: python -m minisbert.encode --file {file} --out FOLDER --part-rows {rows}, "
        "with the model and the options of this search"
    )


def part_vectors(folder: Path, manifest: Manifest) -> Stacked:
    """All vectors (N, D), by memory map."""
    counts = [manifest.shape(part)[0] for part in range(len(manifest.parts))]
    return Stacked(lambda part: open_part(folder, manifest, part), counts, manifest.width, manifest.dtype)


def open_part(folder: Path, manifest: Manifest, part: int) -> np.ndarray:
    """A part's vectors (n, D), not read yet; ``InputError`` if its file has another shape, type or size."""
    path, expected = manifest.path(folder, part), (manifest.shape(part), np.dtype(manifest.dtype))
    try:
        vectors = open_memmap(path, mode="r")
        size = vectors.offset + vectors.nbytes  # a longer file could be mapped, too
        fits = (vectors.shape, vectors.dtype) == expected and path.stat().st_size == size
    except OSError:
        raise
    except Exception:  # ValueError for a short file; for a damaged header also what its parser raises
        fits = False
    if not fits:
        raise InputError(f"{path} is damaged or cut short: start encoding again, which writes it anew")
    return vectors
