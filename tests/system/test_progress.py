"""When a bar is shown, and how it counts."""

import sys

import pytest
from tqdm import std

from minisbert.system.progress import Bar, bar_of


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


def test_a_few_slow_steps_are_counted_in_full(monkeypatch, capsys):
    """Steps are read one by one: "2/3", not "2.00/3.00", and seconds for each of them."""
    now = [100.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    for _ in Bar(range(3), unit=" steps"):
        now[0] += 20
    assert "2/3 [00:40<00:20, 20.00s/steps]" in capsys.readouterr().err


def test_many_texts_are_counted_in_thousands(monkeypatch, capsys):
    """A corpus has millions of texts, of which nobody reads the last digit."""
    now = [100.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    with bar_of(True, 20_000) as bar:
        now[0] += 20
        bar.update(10_000)
    assert "10.0k/20.0k [00:20<00:20, 500 texts/s]" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "lines"), [("1", 0), ("0", 10)])
def test_the_environment_turns_bars_off(value, lines, monkeypatch, capsys):
    """As those of every other program that uses tqdm, and after the import, too."""
    monkeypatch.setenv("TQDM_DISABLE", value)
    now = [100.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    for _ in Bar(range(100)):
        now[0] += 1
    assert capsys.readouterr().err.count("%|") == lines
