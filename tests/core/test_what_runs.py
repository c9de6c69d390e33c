"""Each chapter says which of its functions the library does not run, and what proves them equal.

A chapter's docstring ends with a paragraph that begins with "What the library runs:". What is not
run stands in a list below it, a line that begins with "-" for each::

    - ``adamw_step``: PyTorch's AdamW in one fused kernel. Equal by ``test_twenty_steps``.

Before the colon stand functions, methods (``Tokenizer.encode``) or whole classes of the chapter,
after it what runs in their place and at least one test or parity check. These tests run the library
and hold the paragraphs to the truth.
"""

import ast
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from minisbert import PairModel, SentenceEncoder
from minisbert.core import InputError
from minisbert.core.heads import ConcatHead, CrossHead, JointHead, siamese
from minisbert.train import train
from tests.conftest import ROOT

CORE = ROOT / "minisbert" / "core"
MARKER = "What the library runs:"
CHAPTERS = [
    "checks",
    "tokenizer",
    "weights",
    "bert",
    "pooling",
    "encoder",
    "metrics",
    "heads",
    "losses",
    "data",
    "loop",
]

# Four rows make two batches of two, and so two steps.
TEXTS = ["a cat", "the dog is happy", "the moon is over the park", "snow"]
OTHERS = ["the cat", "a dog", "the sun", "the music"]
FURTHER = ["a ball", "the red ball", "a small dog", "the park"]
SCORED = list(zip(TEXTS, OTHERS, [0.9, 0.7, 0.5, 0.0], strict=True))
ROWS = {
    "cosine": SCORED,
    "ranking": list(zip(TEXTS, OTHERS, FURTHER, strict=True)),
    "triplet": list(zip(TEXTS, OTHERS, FURTHER, strict=True)),
    "softmax": list(zip(TEXTS, OTHERS, [0, 1, 2, 0], strict=True)),
    "simcse": [(text,) for text in TEXTS],
}


def use_the_library(folder: Path) -> None:
    """What users do: load, encode, compare, score pairs, train two steps with each loss."""
    for pooling in ("mean", "cls", "max", "attention"):
        SentenceEncoder.load(folder, pooling=pooling).encode(TEXTS)
    encoder = SentenceEncoder.load(folder)
    vectors = encoder.encode(TEXTS)
    encoder.similarity(vectors, vectors)
    encoder.similarity_pairwise(vectors, vectors)
    for make_head in (JointHead, ConcatHead, siamese, CrossHead):
        model = PairModel(encoder, make_head(encoder.width))
        model.predict(list(zip(TEXTS, OTHERS, strict=True)))
    with pytest.raises(InputError):
        encoder.encode(["a cat", 3])
    for loss, rows in ROWS.items():
        train(encoder, rows, dev=SCORED, loss=loss, batch_size=2, max_steps=2)


@pytest.fixture(scope="module")
def executed() -> set[tuple[str, str]]:
    """The chapter and the name of each function of the book that the library enters."""
    codes = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        use_the_library(ROOT / "weights" / "tiny")
    finally:
        sys.setprofile(None)

    entered = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.parent == CORE:
            entered.add((path.stem, code.co_qualname))
    return entered


def functions_of(chapter: str) -> set[str]:
    """The functions and methods of a chapter.

    Without special methods, such as ``__len__``, and those that have no body, as in a Protocol.
    """
    functions = set()
    for node in ast.parse((CORE / f"{chapter}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or method.name.startswith("__"):
                    continue
                if ast.unparse(method.body[-1]) != "...":
                    functions.add(f"{node.name}.{method.name}")
    return functions


def replaced(chapter: str) -> dict[str, set[str]]:
    """Each name in the chapter's list, with the names in backquotes after the colon."""
    docstring = ast.get_docstring(ast.parse((CORE / f"{chapter}.py").read_text(encoding="utf-8")))
    assert MARKER in docstring, f"{chapter} does not say what the library runs"
    paragraph = docstring.split(MARKER)[1]
    names = {}
    for entry in re.findall(r"^- (.+?)(?=^- |\n\n|\Z)", paragraph, re.MULTILINE | re.DOTALL):
        functions, _, place = entry.partition(":")
        for name in re.findall(r"``([\w.]+)``", functions):
            names[name] = set(re.findall(r"``(\w+)``", place))
    return names


def is_named(function: str, names: dict[str, set[str]]) -> bool:
    """Whether a function stands in the list, or its class does."""
    return function in names or function.partition(".")[0] in names


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_the_library_does_not_run_is_named(chapter, executed):
    """A reader who steps through the library must not wait for a line that it never enters."""
    names = replaced(chapter)
    for function in functions_of(chapter):
        if (chapter, function) not in executed:
            assert is_named(function, names), f"{chapter}.{function} is not run and not named"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_is_named_exists_and_is_not_run(chapter, executed):
    """A list that names too much would hide that a formula is the one that runs."""
    names = replaced(chapter)
    functions = functions_of(chapter)
    classes = {function.partition(".")[0] for function in functions}
    assert names.keys() <= functions | classes
    for function in functions:
        if is_named(function, names):
            assert (chapter, function) not in executed, f"{chapter}.{function} is run"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_test_proves_it_equal(chapter):
    """The name of a test or of a parity check, wherever it stands."""
    tests = set()
    for path in (ROOT / "tests").rglob("*.py"):
        tests |= set(re.findall(r"^def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    for function, names in replaced(chapter).items():
        assert names & tests, f"{chapter}.{function}: {names} are no tests"
