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
    found = [mutant.change.partition(" -> ") for mutant in mutants(SOURCE)]
    changed = [after for before, _, after in found if before.startswith("if")]
    assert changed == [
        "if False:",
        "if (x > 2):",
        "if not (x >= 2):",
        "if not x > 3:",
        "if not x > 1:",
    ]
    changed = {
        after.removeprefix("return ") for before, _, after in found if before.startswith("return")
    }
    assert changed == {
        "g(x)",
        "g(x, dim=x)",
        "g(x, dim=4)",
        "g(x, dim=(x + 4))",
        "g(x, dim=x - 5)",
        "g(x, dim=x - 3)",
    }
    assert len(found) == 14  # and three of the defaults: 2, 0, False


def test_a_module_is_tested_by_its_own_file_and_then_by_those_that_import_it():
    own, *rest = files_for(find("tokenizer"))
    assert own == "tests/core/test_tokenizer.py"
    assert {"tests/lessons/test_ladder.py::test_every_master_passes", "tests/test_parity.py"} <= {
        *rest
    }
    assert "tests/core/test_data.py" in rest
