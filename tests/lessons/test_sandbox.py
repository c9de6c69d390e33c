"""The learner's code in a separate process: an endless loop, a crash or a cheat is reported and
does no harm.
"""

import json
import time
from pathlib import Path

import pytest
import torch

from lessons.grader import sandbox
from lessons.grader.pieces import PIECES, mine, pieces_of
from lessons.grader.result import Result
from lessons.grader.stubs import lesson_stubs

RIGHT = """
import math
import torch

def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))

class FeedForward:
    def forward(self, x):
        return self.down(gelu(self.up(x)))

class Layer:
    def forward(self, x, mask):
        attended, shares = self.attention(x, mask)
        x = self.attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), shares
"""


def here(lesson: int, text: str, *masters: str) -> dict[str, Result]:
    """What the child process would report, without a process."""
    mine(lesson).write_text(text, encoding="utf-8")
    told: list[dict] = []
    chosen = masters or [piece.master for piece in pieces_of(lesson)]
    sandbox.grade_here(
        lesson, chosen, lambda **message: told.append(json.loads(json.dumps(message)))
    )
    return {
        message["result"]["master"]: Result(**message["result"])
        for message in told
        if "result" in message
    }


def test_a_lesson_in_a_process(folder, capfd):
    """Two are right, the third asks for 80 GB, the others are not written."""
    greedy = RIGHT.replace(
        "attended, shares =", "torch.ones(10**10, dtype=torch.float64)\n        attended, shares ="
    )
    mine(6).write_text("print('hello')\n" + greedy)
    results = {result.master: result for result in sandbox.grade(6)}
    assert results["bert.gelu"].status == results["bert.FeedForward.forward"].status == "passed"
    assert results["bert.Layer.forward"].status == "failed"
    assert "allocate memory" in results["bert.Layer.forward"].rungs[0][2]
    assert results["bert.gelu"].line == 6
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n"), "what the learner's code prints goes to stderr"


@pytest.mark.slow
def test_after_an_endless_loop_and_a_crash_the_next_piece_is_graded(folder):
    """A loop in the first piece, a segmentation fault in the second; the third is graded."""
    # the C stack overflows
    crash = "y = iter([1])\n        for _ in range(300_000): y = map(abs, y)\n        next(y)"
    text = RIGHT.replace("return x * 0.5", "\n    while True: pass\n    return x * 0.5")
    text = text.replace("return self.down(gelu", f"{crash}\n        return self.down(gelu")
    mine(6).write_text(text)
    results = {result.master: result for result in sandbox.grade(6, seconds=3.0)}
    loop = results["bert.gelu"]
    crashed = results["bert.FeedForward.forward"]
    fine = results["bert.Layer.forward"]
    assert (loop.status, crashed.status, fine.status) == ("failed", "failed", "passed")
    assert "lesson_06.py, line 7: still running after 3 seconds" in loop.rungs[0][2]
    assert "it ended the process (signal SIGSEGV)" in crashed.rungs[0][2]


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        ("def gelu(x:\n", "failed", "line 1: not Python"),
        ("class FeedForward(:\n" + RIGHT, "failed", "lesson_06.py, line 1: not Python"),
        ("import transformers\n" + RIGHT, "refused", "line 1: transformers may not be imported"),
        (
            "import torch\ngetattr(torch.nn.functional, 'ge' 'lu')(torch.ones(1))",
            "refused",
            "gelu is ready-made",
        ),
        (
            "import torch\ntorch.set_default_dtype(torch.float64)\n1 / 0\n",
            "failed",
            "defines no gelu",
        ),
    ],
)
def test_a_file_that_cannot_be_graded(folder, text, status, says):
    results = here(6, text)
    assert {result.status for result in results.values()} == {status}
    assert says in results["bert.gelu"].rungs[0][2]
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))",
            "",
            5,
        ),  # the stub's line deleted
        ("math.sqrt(2.0)))", "math.sqrt(2.0)", 6),
        ("return x * 0.5", "if x return x * 0.5", 6),
    ],
)
def test_a_half_written_function_costs_only_itself(folder, old, new, line):
    """A learner works at one piece, and the others of the file are still graded."""
    assert old in RIGHT
    results = here(6, RIGHT.replace(old, new))
    seen = results["bert.gelu"].rungs[0][2]
    assert f"lesson_06.py, line {line}: not Python" in seen
    assert results["bert.FeedForward.forward"].status == "passed"
    assert (
        results["bert.FeedForward.forward"].line
        == RIGHT.splitlines().index("    def forward(self, x):") + 1
    )


def test_a_half_written_method_costs_only_itself(folder):
    """The other methods of its class, and the lines' numbers, stay."""
    results = here(6, RIGHT.replace("attended, shares = self.attention(x, mask)", "attended = ("))
    assert "lesson_06.py, line 14: not Python" in results["bert.Layer.forward"].rungs[0][2]
    assert results["bert.gelu"].status == "passed"


DECORATED = """
class SentenceEncoder:
    def a(self):
        return 1

    @property
    @torch.no_grad()
    def encode(self, texts):
        return = 2

    @torch.no_grad()
    def b(self):
        return 3
"""


def test_a_half_written_function_goes_with_its_decorators():
    """A decorator that stayed would be a mistake of its own, and the function above would pay."""
    text, broken = sandbox.without_broken_blocks(DECORATED, "file.py")
    assert broken == {"encode": "file.py, line 9: not Python: invalid syntax"}
    assert "return 1" in text
    assert text.count("@torch.no_grad()\n    def b(self):\n        return 3") == 1


def test_a_half_written_decorator_costs_the_function_below_it():
    """Not the one above it, which is right."""
    text = DECORATED.replace("@property", "@property(").replace("return = 2", "return 2")
    text, broken = sandbox.without_broken_blocks(text, "file.py")
    assert list(broken) == ["encode"]
    assert "line 6" in broken["encode"]


def test_a_half_written_function_may_be_indented_by_tabs():
    """Many editors indent by tabs."""
    text = DECORATED.replace("    ", "\t")
    text, broken = sandbox.without_broken_blocks(text, "file.py")
    assert list(broken) == ["encode"]
    assert "\tdef a(self):\n\t\treturn 1\n" in text


def test_a_try_without_except_costs_only_its_function():
    """Python notices it at the class below, which is right."""
    text = "def gelu(x):\n    try:\n        return x\nclass Layer:\n    size = 1\n"
    text, broken = sandbox.without_broken_blocks(text, "file.py")
    assert list(broken) == ["gelu"]
    assert text == "pass\n\n\nclass Layer:\n    size = 1\n"


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("X = = 3", 5),
        ("X = [\n    1,\n    2 3,\n]", 7),
        ("X = = [\n    1,\n]", 5),
        ("if __name__ == '__main__':\n    x = 1\n    print(gelu(x)", 7),
    ],
)
def test_a_wrong_statement_costs_no_function_above_it(capsys, statement, line):
    """A learner tries a function out below it."""
    above = "def gelu(x):\n    return x\n\n\n"
    below = "\n\nclass Layer:\n    size = 1\n"
    text, broken = sandbox.without_broken_blocks(above + statement + below, "file.py")
    assert not broken
    assert text == above + "\n" * statement.count("\n") + below
    assert f"line {line}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        "    y = 1\nprint(y)\n    return y",
        "    try:\n        return x\n\nX = 3",
        "    y = (\nx = 3)\n    return y",
        "    y = 1\n# a note\n    return = y",
    ],
)
def test_a_line_at_the_margin_does_not_hide_a_broken_function(body):
    """The learner is sent to the function, not told that it returns None."""
    _, broken = sandbox.without_broken_blocks(f"def gelu(x):\n{body}\n", "file.py")
    assert list(broken) == ["gelu"]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("from torch import nope", "line 1: ImportError"),
        ("1 / 0", "line 1: ZeroDivisionError"),
        ("assert 1 == 2", "line 1: AssertionError"),
        ("raise SystemExit", "line 1: SystemExit"),
        ("while True: pass", "line 1: still running after 0.3 seconds"),
        ("break", "line 1: not Python: 'break' outside loop"),
        ("x = (", "line 1: not Python"),
    ],
)
def test_a_statement_that_fails_is_said_and_costs_who_needs_it(folder, capsys, statement, says):
    """A learner's own test at the top or the end of the file must not fail the pieces in it."""
    mine(6).write_text(f"{statement}\n{RIGHT}", encoding="utf-8")
    written = sandbox.read_file(mine(6), pieces_of(6), seconds=0.3)
    assert {"gelu", "FeedForward", "Layer"} <= written.namespace.keys()
    assert not written.reason
    assert f"lesson_06.py, {says}" in capsys.readouterr().out


def test_a_class_that_fails_says_so_in_its_pieces(folder):
    """The learner is sent to the line, not told that the class is missing."""
    results = here(6, RIGHT.replace("class FeedForward:", "class FeedForward:\n    size = nope"))
    assert "line 9: NameError" in results["bert.FeedForward.forward"].rungs[0][2]
    assert results["bert.gelu"].status == "passed"


@pytest.mark.parametrize(
    ("gelu", "status", "says"),
    [
        ("gelu = torch.erf", "failed", "gelu is not a function that is written in lesson_06.py"),
        ("", "failed", "lesson_06.py defines no gelu"),
        ("def gelu(x): return torch.nn.functional.gelu(x)", "refused", "gelu is ready-made"),
        ("def gelu(x): raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        (
            "def gelu(x): return gelu(x)",
            "failed",
            "RecursionError, line 6: it calls itself without end",
        ),
        ("def gelu(x): raise NotImplementedError", "unwritten", "NotImplementedError"),
    ],
)
def test_a_piece_that_is_not_an_answer(folder, gelu, status, says):
    before, rest = RIGHT.split("class FeedForward")
    text = f"{before.split('def gelu')[0]}\n{gelu}\n\nclass FeedForward{rest}"
    results = here(6, text, "bert.gelu", "bert.FeedForward.forward")
    assert results["bert.gelu"].status == status
    assert says in results["bert.gelu"].rungs[-1][2]
    # the others are graded alone, with the package's gelu
    assert results["bert.FeedForward.forward"].status == "passed"


def test_stubs_are_unwritten_in_every_lesson(folder):
    for lesson in dict.fromkeys(piece.lesson for piece in PIECES.values()):
        results = here(lesson, lesson_stubs(lesson))
        assert {result.status for result in results.values()} == {"unwritten"}, results


def test_a_child_that_reports_nothing_is_an_error_and_not_a_pass(folder, monkeypatch):
    mine(6).write_text(RIGHT)
    monkeypatch.setattr(
        sandbox, "_run_child", lambda *_: ("", "it ended the process (exit code 1)")
    )
    with pytest.raises(RuntimeError, match=r"ended before it graded bert\.gelu"):
        sandbox.grade(6)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_process_left_behind_ends_with_the_grader(folder, tmp_path, monkeypatch):
    """The child is a shell script that starts another process and then says nothing more."""
    (tmp_path / "said").write_text(json.dumps({"busy": "bert.gelu"}) + "\n")
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/said\nsleep 60 &\necho $! > {tmp_path}/pid\n")
    script.chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "executable", str(script))
    monkeypatch.setattr(sandbox, "pieces_of", lambda lesson: pieces_of(lesson)[:1])
    (late,) = sandbox.grade(6, seconds=0.3)
    assert "still running after 0.3 seconds" in late.rungs[0][2]
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    for _ in range(100):  # it has been told to end, and may take a moment
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the process that was started is still running")
