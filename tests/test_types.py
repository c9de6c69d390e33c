"""What users write passes ``mypy --strict`` and pyright: ``typed_calls.py`` and the README."""

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import get_args

import pytest

from minisbert.training.table import LOSSES, LossName
from tests.conftest import ROOT

UNSET = ("--ignore-missing-imports", "--config-file=")  # the package's own settings do not count
CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--follow-imports=silent", *UNSET],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


def test_the_losses_that_a_type_checker_knows_are_those_of_the_table():
    """A loss that is missing there would be refused in an editor, and train anyway."""
    assert get_args(LossName) == (*LOSSES,)


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_calls_of_users_have_types(checker, tmp_path):
    if not find_spec(checker):
        pytest.skip(f"{checker} is not installed: pip install '.[dev]'")
    version = subprocess.run(
        [sys.executable, "-m", checker, "--version"], capture_output=True, text=True
    )
    if version.returncode:  # pyright fetches its program at its first start
        pytest.skip(f"{checker} does not start: {version.stderr.strip()[-200:]}")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert readme
    (tmp_path / "readme.py").write_text("\n".join(readme), encoding="utf-8")
    calls = ROOT / "tests" / "typed_calls.py"
    command = [sys.executable, *CHECKERS[checker], str(calls), str(tmp_path / "readme.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
