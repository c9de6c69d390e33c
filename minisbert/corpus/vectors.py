"""Vector files: encode texts and write the results to ``.npy`` or ``.safetensors``."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.corpus.codes import write_codes
from minisbert.corpus.hashes import model_hash
from minisbert.folder.weights import write_safetensors
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.files import atomic_file


def encode_to_file(
    encoder: SentenceEncoder,
    texts: list[str] | Iterator[str],
    total: int,
    out: Path,
    quantize: str | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Encode ``total`` texts with the ``options`` of ``encode`` and write them to ``out``; the shape, (N, D).

    To ``.npy`` they are streamed: neither the vectors nor the texts of an iterator are ever all in memory. To
    ``.safetensors`` also, with ``output="token"``, each text's states (T, D), concatenated, as ``states``, and each
    text's T as ``lengths``; and with ``quantize`` the codes of ``corpus/codes.py``.
    """
    with atomic_file(out) as partial:
        if out.suffix == ".npy":
            return write_npy(encoder.encode_stream(texts, total=total, **options), total, partial)
        if options.get("output") == "token":
            states = encoder.encode(texts, **options)
            lengths = torch.tensor([len(rows) for rows in states])  # (N,)
            write_safetensors({"states": torch.from_numpy(np.concatenate(states)), "lengths": lengths}, partial)
            return total, states[0].shape[1]
        if quantize and encoder.searched:
            raise InputError(f"--quantize is for arrays of vectors, not for those of a {type(encoder).__name__}")
        vectors = encoder.encode(texts, **options, **encoder.searched)
        if quantize:
            prompt = choose_prompt(encoder.settings, options.get("prompt"), options.get("prompt_name"))
            write_codes(vectors, texts, quantize, model_hash(encoder, prompt), partial)
        else:
            write_safetensors(encoder.to_tensors(vectors), partial)
        return vectors.shape


def write_npy(chunks: Iterator[np.ndarray], total: int, path: Path) -> tuple[int, int]:
    """Concatenate chunks (n, D) in a ``.npy`` file with one of them in memory at a time; the shape, (total, D).

    The header comes first and contains the shape, so the number of rows must be known.
    """
    with open(path, "wb") as file:
        written = 0
        for chunk in chunks:
            if not isinstance(chunk, np.ndarray):
                raise InputError("these vectors are no single array (N, D): write them to F.safetensors")
            if not written:
                write_header(file, chunk.dtype, (total, chunk.shape[1]))
            file.write(np.ascontiguousarray(chunk).data)
            written += len(chunk)
    if written != total:
        raise InputError(f"{total:,} texts were counted, but {written:,} encoded: has the file changed in between?")
    return total, chunk.shape[1]


def write_header(file: IO[bytes], dtype: np.dtype, shape: tuple[int, int]) -> None:
    """The header of a ``.npy`` file: what is in it, before the numbers themselves."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
