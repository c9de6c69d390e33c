"""A golden file: texts, a model's vectors of them and its settings, to check an engine later without the weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minisbert.core import InputError, read_json, reading
from minisbert.core.checks import check_texts
from minisbert.diagnosis.certify.certificate import Case, check_count
from minisbert.diagnosis.certify.comparison import ROUNDED, Certificate, quantization
from minisbert.diagnosis.certify.vector_files import checked
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.files import atomic_file, write_json

MARK = "golden vectors"
LINE = "Line {} of the log tells of a ship, its crew and the weather."
# one word, capitals, accents, numbers, another script, and lengths on both sides of the usual limits
TEXTS = (
    "rain",
    "A cat sits on the mat.",
    "NASA and the BBC are in the U.S. and the U.K.",
    "Zoë's café serves crème brûlée.",
    "It costs $3.50, or 4,99 €; that's 20 % off!",
    "кошка сидит на коврике",
    "猫が座っている。",
    "unbelievably, antidisestablishmentarianism",
    "Is this a question?",
    "white   space \t everywhere",
    "def mean(x): return sum(x) / len(x)",
    "An older man with a grey hat plays the guitar in front of a house while two children dance.",
    "[CLS] and [SEP] are special, [MASK] is, too",
    "query: how does photosynthesis work",
)
LINES = (3, 8, 11, 20, 30, 45)  # of the log, about 45 to 700 tokens


def golden_texts() -> list[str]:
    """Twenty texts that most mistakes of an engine show in."""
    return [*TEXTS, *(" ".join(LINE.format(100 * count + i) for i in range(count)) for count in LINES)]


@dataclass(frozen=True)
class Golden:
    """What a golden file holds; ``about`` says in words what the vectors (N, D) are."""

    model: str
    about: str
    texts: list[str]
    vectors: np.ndarray


def write_golden(
    encoder: SentenceEncoder, texts: Sequence[str], path: Path, prompt: str | None, model: str, about: str
) -> None:
    """Encode the texts and write the golden file of a model of this name."""
    vectors = encoder.encode(texts, prompt=prompt)  # (N, D)
    prompt = choose_prompt(encoder.settings, prompt)
    if prompt:
        about += f", prompt {prompt!r}"
    # nine digits are enough for every float32
    rows = [[float(f"{value:.9g}") for value in row] for row in vectors.tolist()]
    content = {"minisbert": MARK, "model": model, "about": about, "texts": list(texts), "vectors": rows}
    with atomic_file(path) as partial:
        write_json(partial, content)


def read_golden(path: Path) -> Golden:
    """The contents of a golden file; ``InputError`` for any other file."""
    content = read_json(path)
    if content.get("minisbert") != MARK:
        raise InputError(f"{path} is not a golden file: minisbert certify --write-golden writes one")
    with reading(path):
        texts, vectors = check_texts(content["texts"]), checked(np.array(content["vectors"]))
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts and {len(vectors)} vectors")
        return Golden(str(content["model"]), str(content["about"]), texts, vectors)


def certify_golden(golden: Golden, values: np.ndarray, name: object = "the vectors") -> Certificate:
    """Compare ``values`` (N, W), which errors call ``name``, with the file's. Only the model itself can name a cause.

    Raises ``InputError`` for another number of rows or columns.
    """
    check_count(golden.texts, values, name)
    code = quantization(golden.vectors, values)
    if code is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    if golden.vectors.shape != values.shape:
        widths = f"{values.shape[1]} columns, the golden file's vectors have {golden.vectors.shape[1]}"
        raise InputError(f"{name}: {widths}")
    case = Case(None, golden.texts, golden.vectors, values, "")
    return case.zeros() or case.rounded() or case.order() or case.lengths() or case.unexplained()
