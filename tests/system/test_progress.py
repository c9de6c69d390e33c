"""When a bar is shown."""

import sys

import pytest
from tqdm import std

from minisbert.system.progress import Bar


@pytest.mark.parametrize(
    ("shown", "second", "lines"), [(False, 1, 0), (True, 0.0009, 0), (True, 1, 10)]
)
def test_a_file_gets_a_line_every_ten_seconds(shown, second, lines, monkeypatch, capsys):
    """A hundred turns of a second, on a clock that only they turn."""
    now = [100.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    for _ in Bar(range(100), desc="comparing", unit=" blocks", shown=shown):
        now[0] += second
    assert capsys.readouterr().err.count("%|") == lines
    assert not sys.stderr.isatty()
