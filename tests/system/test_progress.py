"""Progress in tokens, and when a bar is shown."""

import sys

import pytest
from tqdm import std

from minisbert.system.progress import Bar, Progress, as_progress


def test_progress_estimates_the_tokens_of_texts_to_come():
    """Half of 10 texts have been tokenized, 100 tokens: 200 in all."""
    with Progress(texts=10) as line:
        line.expect(texts=5, tokens=100)
        line.update(50)
        assert (line.bar.n, line.bar.total) == (50, 200)
        with as_progress(line, 5) as same:
            same.expect(texts=5, tokens=20)
        line.update(50)
        assert (line.bar.n, line.bar.total) == (100, 120)
    with Progress(texts=None) as line:
        line.expect(texts=1, tokens=2000)
        assert line.bar.total is None


@pytest.mark.parametrize(("shown", "second", "lines"), [(False, 1, 0), (True, 0.0009, 0), (True, 1, 10)])
def test_a_file_gets_a_line_every_ten_seconds(shown, second, lines, monkeypatch, capsys):
    """A hundred turns of a second, on a clock that only they turn."""
    now = [100.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    for _ in Bar(range(100), desc="comparing", unit=" blocks", shown=shown):
        now[0] += second
    assert capsys.readouterr().err.count("%|") == lines
    assert not sys.stderr.isatty()
