"""The progress lines: on a terminal and in a file, counted and named."""

import io
import sys

import pytest

from minisbert.core import InputError
from minisbert.system import progress
from minisbert.system.progress import Bar, LiveLine, Progress, duration, naming_bars


class Screen(io.StringIO):
    """stderr, which may be a terminal, and the clock, which tests turn on."""

    def __init__(self, terminal: bool, monkeypatch: pytest.MonkeyPatch):
        super().__init__()
        self.terminal, self.now = terminal, 100.0
        monkeypatch.setattr(sys, "stderr", self)
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_live_line_is_rewritten_on_a_terminal_and_a_line_every_ten_seconds_in_a_file(terminal, monkeypatch):
    screen = Screen(terminal, monkeypatch)
    with pytest.raises(InputError, match="bad"), LiveLine() as line:  # noqa: PT012
        for second in range(25):
            line.show(f"after {second} s")
            screen.now += 1
        raise InputError("bad")
    if terminal:  # in place, and erased even after an error
        assert screen.getvalue().startswith("\rafter 0 s\rafter 1 s")
        assert screen.getvalue().endswith("\rafter 24 s\r          \r")
    else:
        assert screen.getvalue() == "after 10 s\nafter 20 s\n"


def test_progress_estimates_the_tokens_of_texts_to_come():
    """Half of 10 texts have been tokenized, 100 tokens: 200 in all."""
    with Progress(texts=10) as line:
        line.expect(texts=5, tokens=100)
        line.update(50)
        assert (line.n, line.total) == (50, 200)
        line.expect(texts=5, tokens=20)
        line.update(50)
        assert (line.n, line.total) == (100, 120)
    with Progress(texts=None) as line:
        line.expect(texts=1, tokens=2000)
        assert line.total is None


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_rewritten_on_a_terminal_and_a_line_every_ten_seconds_in_a_file(terminal, shown, monkeypatch):
    """A hundred seconds of work."""
    screen = Screen(terminal, monkeypatch)
    for _ in Bar(range(100), desc="comparing", unit=" blocks", shown=shown):
        screen.now += 1
    text = screen.getvalue()
    if not shown:
        assert text == ""
    elif terminal:
        assert text.count("comparing:") == 100
        assert text.endswith(" \r")
        assert "\n" not in text
    else:
        lines = text.splitlines()
        assert len(lines) == 10
        assert lines[0].startswith("comparing:  10%|")
        assert lines[0].endswith("10.0/100 [00:10<01:30, 1.00 blocks/s]")


def test_bars_within_a_purpose_are_named_by_it_unless_they_have_a_name(monkeypatch):
    screen = Screen(True, monkeypatch)
    with naming_bars("scores on dev"):
        bars = [Bar(range(100)), Bar(range(100), desc="comparing")]
    for bar in [*bars, Bar(range(100))]:
        for _ in bar:
            screen.now += 1
    text = screen.getvalue()
    assert text.count("scores on dev:") == text.count("comparing:") == 100
    assert text.count("%|") == 300


def test_short_work_shows_no_bar(monkeypatch):
    screen = Screen(True, monkeypatch)
    for _ in Bar(range(100)):
        screen.now += 0.0009
    assert screen.getvalue() == ""


def test_durations():
    shown = {0: "0:00", 9.4: "0:09", 59.6: "1:00", 75: "1:15", 600: "10:00", 3599: "59:59", 3599.7: "1:00:00"}
    shown |= {4000: "1:06:40", 36_000: "10:00:00", 360_000: "100:00:00"}
    assert {seconds: duration(seconds) for seconds in shown} == shown
