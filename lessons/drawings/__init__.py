"""The course's drawings, and the code that draws them: ``python -m lessons.drawings`` writes them
all anew.
"""

from . import encoder, memory, vectors
from .course import course
from .encoder import PARTS, model_map

DRAWINGS = {
    "course": course,
    "meaning": vectors.meaning,
    "map": model_map,
    "wordpiece": encoder.wordpiece,
    "safetensors": memory.safetensors,
    "embeddings": encoder.embeddings,
    "qkv": encoder.qkv,
    "split_and_merge": encoder.split_and_merge,
    "mask": encoder.mask,
    "residual": encoder.residual,
    "pooling": vectors.pooling,
    "heads": vectors.heads,
    "triplet": vectors.triplet,
    "negatives": vectors.negatives,
    "loop": memory.loop,
    "packed_rows": memory.packed_rows,
    "packed_bits": memory.packed_bits,
    "gradient_cache": vectors.gradient_cache,
}


def all_drawings() -> dict[str, str]:
    """The SVG text of every drawing by its file's name; the map once more for each lesson that
    lights a part of it.
    """
    drawn = {f"{name}.svg": draw().svg() for name, draw in DRAWINGS.items()}
    return drawn | {f"map_{lesson}.svg": model_map(lesson).svg() for lesson in PARTS}
