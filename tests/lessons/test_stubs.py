"""Stubs have the master's parameters, its docstring or the card's, and nothing of its body."""

import ast
import inspect
import re
import types

import pytest

from lessons.grader.guard import look
from lessons.grader.pieces import LESSONS, PIECES, lesson_file, pieces_of
from lessons.grader.stubs import lesson_stubs, stub

WITH_PIECES = sorted({piece.lesson for piece in PIECES.values()})


def defined(piece) -> types.FunctionType:
    """The stub as a function."""
    space: dict = {}
    exec(compile(lesson_stubs(piece.lesson), "stubs", "exec"), space)
    found = space[piece.path[0]]
    return found if len(piece.path) == 1 else vars(found)[piece.path[1]]


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_a_stub_has_the_arguments_and_docstring_of_its_master_and_raises(piece):
    function = defined(piece)
    # defaults by their text: two lambdas are equal if nothing but their address differs
    ours, masters = (
        [
            (each.name, re.sub(r" at 0x\w+", "", str(each.default)))
            for each in inspect.signature(f).parameters.values()
        ]
        for f in (function, piece.original)
    )
    assert ours == masters
    if not piece.stub:
        assert inspect.cleandoc(function.__doc__ or "") == inspect.cleandoc(
            piece.original.__doc__ or ""
        )
    assert f"# lessons/{lesson_file(piece.lesson).name}, line " in stub(piece)
    written = ast.parse(stub(piece)).body[0]
    rest = written.body[1:] if ast.get_docstring(written) else written.body
    assert [ast.unparse(node) for node in rest] == [f"raise NotImplementedError({piece.master!r})"]


def helpers_of(lesson):
    return [line for line in lesson_stubs(lesson).splitlines() if line.startswith("from minisbert")]


@pytest.mark.parametrize("lesson", WITH_PIECES)
def test_a_lessons_file_is_python_that_the_guard_lets_pass(lesson):
    text = lesson_stubs(lesson)
    assert look(text, pieces_of(lesson)) == {}
    assert f"{lesson:02}: {LESSONS[lesson]}" in text
    assert "check_" not in "".join(helpers_of(lesson))  # a check of arguments is no helper


def test_helpers_are_functions_that_are_not_pieces_of_the_same_lesson():
    assert helpers_of(10) == [
        "from minisbert.core.encoder import cosine_matrix"
    ]  # defined in another chapter
    assert helpers_of(15) == [
        "from minisbert.core.bert import attention",
        "from minisbert.core.heads import difference",
        "from minisbert.core.pooling import mean_pool",  # cls_pool would be a piece's answer
    ]
    # FeedForward and gelu are pieces of this lesson; the card needs the two classes
    assert helpers_of(6) == ["from minisbert.core.bert import Attention, LayerNorm"]
    assert (
        helpers_of(1) == helpers_of(16) == []
    )  # normalize would be half the answer; the card has the stub of top_k
    assert "import logsigmoid" in lesson_stubs(15)


def test_tables_that_a_card_names_are_imported():
    """The tables of names are data, not what a learner is to write."""
    assert helpers_of(3) == ["from minisbert.core.weights import IN_LAYER, NORMS, POOLER, TABLES"]


def test_pytorchs_operation_for_a_formula_does_not_show():
    """The master asks for ``FUSED``; what it then calls would be the answer."""
    assert "FUSED" not in lesson_stubs(6)
    assert "functional" not in lesson_stubs(6)


def test_a_class_says_what_its_objects_have_and_inherit():
    text = lesson_stubs(8)
    assert "    #   self.pooling = pooling\n" in text
    assert "    #   self.forward(ids, mask)\n" not in text  # a piece of this lesson
    assert text.count("class SentenceEncoder:") == 1
    text = lesson_stubs(15).split("class CrossAttention:")[1].split("def forward")[0]
    for line in ("self.query = nn.Linear(width, width)", "self.split(x)", "self.merge(x)"):
        assert f"    #   {line}\n" in text
    assert "self.forward" not in text


def test_a_class_whose_init_is_a_piece_says_nothing_of_its_parts():
    """They are what the learner writes."""
    text = lesson_stubs(5)
    assert "class Attention(nn.Module):\n" in text
    assert "self.query" not in text
    assert "from torch import nn\n" in text
