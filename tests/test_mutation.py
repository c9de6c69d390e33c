"""The mutation run itself: what it changes, and which tests it runs."""

from tests.mutation import files_for, find, mutants

SOURCE = b'''"""Not this."""
def f(x: int = 1, *, flag: bool = True) -> "str":
    """Not this either: 2."""
    if not x > 2:
        raise ValueError("nor this", 3)
    return g(x, dim=x - 4)  # a comment
'''


def test_the_mutants_of_a_small_function():
    """Every operator and constant, but no docstring, message or annotation."""
    conditions = set()
    results = set()
    found = mutants(SOURCE)
    for mutant in found:
        before, _, after = mutant.change.partition(" -> ")
        if before.startswith("if"):
            conditions.add(after)
        if before.startswith("return"):
            results.add(after)
    assert conditions == {
        "if False:",
        "if (x > 2):",
        "if not (x >= 2):",
        "if not x > 3:",
        "if not x > 1:",
    }
    assert results == {
        "return g(x)",
        "return g(x, dim=x)",
        "return g(x, dim=4)",
        "return g(x, dim=(x + 4))",
        "return g(x, dim=x - 5)",
        "return g(x, dim=x - 3)",
    }
    assert len(found) == 14  # and three of the defaults: 2, 0, False


def test_a_module_is_tested_by_its_own_file_and_then_by_those_that_import_it():
    """The nearest test fails first, so a mutant costs seconds."""
    own, *rest = files_for(find("tokenizer"))
    assert own == "tests/core/test_tokenizer.py"
    assert "tests/lessons/test_ladder.py::test_every_master_passes" in rest
    assert "tests/test_parity.py" in rest
    assert "tests/core/test_data.py" in rest
