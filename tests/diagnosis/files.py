"""Files for ``inspect``: lines, one of them replaced, written."""

from pathlib import Path

from tests import toys

SCORED = [
    "score\tsentence1\tsentence2",
    *(f"{i % 6}\ta cat is {i}\ta dog is {i}" for i in range(60)),
]
TRIPLETS = [
    "anchor\tpositive\tnegative",
    *(f"a cat is {i}\tthe cat is {i}\ta dog is {i}" for i in range(60)),
]
NLI_ROW = '{{"gold_label": "{}", "sentence1": "a cat {}", "sentence2": "a dog {}"}}'
NLI = [NLI_ROW.format(toys.NLI_LABELS[i % 3], i, i) for i in range(60)]


def put(lines: list[str], number: int, line: str) -> bytes:
    """The lines with another one in the place of the ``number``-th, counted from 1."""
    return joined([*lines[: number - 1], line, *lines[number:]])


def joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
