"""What the user sees: one-line errors, exit codes, and Ctrl-C that waits for a step to end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Thread

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.system import files
from minisbert.system.console import Interrupts, bounded, command_parser, run_command
from tests.conftest import ROOT


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINISBERT_TRACEBACK", raising=False)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("no split is called 'tset'"), 2, "error: no split is called 'tset'\n"),
        (
            PermissionError(13, "Permission denied", "a.csv"),
            2,
            "error: a.csv: Permission denied; check its permissions, or name another place (--out, "
            "MINISBERT_HOME)\n",
        ),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (
            OSError(28, "No space left", "F"),
            2,
            "error: F: No space left; free some space, or name another disk\n",
        ),
        (OSError("cut short"), 2, "error: cut short\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
    ],
)
def test_what_the_user_can_fix_is_one_line_and_an_exit_code(error, code, message, capsys):
    """A traceback would hide what to do."""
    with pytest.raises(SystemExit) as stopped:
        run_command(raising(error))
    assert stopped.value.code == code
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("error", [ValueError("ours"), KeyError("ours"), AssertionError("ours")])
def test_programming_errors_have_a_traceback(error):
    """``InputError`` is a ``ValueError``; any other ValueError is a bug."""
    with pytest.raises(type(error)) as raised:
        run_command(raising(error))
    assert raised.value is error


@pytest.mark.parametrize("error", [InputError("bad"), OSError("bad")])
def test_other_errors_have_a_traceback_on_request(error, monkeypatch):
    """For whoever looks for a bug in our message."""
    monkeypatch.setenv("MINISBERT_TRACEBACK", "1")
    with pytest.raises(type(error)) as raised:
        run_command(raising(error))
    assert raised.value is error


def handler_of_the_imports(*_: object) -> None:
    pytest.fail("the handler that was set before the command must not run")


@pytest.fixture
def handled(number: int, before: object) -> Iterator[None]:
    """The signal ``number`` has the handler ``before``."""
    default = signal.signal(number, before)
    yield
    signal.signal(number, default)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [handler_of_the_imports])
def test_a_command_can_be_interrupted_and_leaves_nothing_half_written(before, number, tmp_path):
    def main() -> None:
        with files.atomic_file(tmp_path / "vectors.npy"):
            signal.raise_signal(number)

    with pytest.raises(SystemExit, match="130"):
        run_command(main)
    assert signal.getsignal(number) is before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before", [signal.SIG_IGN])
def test_a_command_goes_on_ignoring_what_it_ignored_before(before, number, tmp_path):
    """A shell's background job ignores Ctrl-C."""

    def main() -> None:
        with files.atomic_file(tmp_path / "vectors.npy"):
            signal.raise_signal(number)

    run_command(main)
    assert signal.getsignal(number) is signal.SIG_IGN
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npy"]


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"


@pytest.mark.parametrize(
    ("error", "asked"), [(MemoryError(), ""), (RuntimeError(CUDA), ": 2.00 GiB more were needed")]
)
def test_too_little_memory_is_one_line_that_says_how_much_was_asked_for(error, asked, capsys):
    """The amount tells whether half a batch would do."""
    with pytest.raises(SystemExit, match="2"):
        run_command(raising(error))
    message = f"error: not enough memory{asked}; use less data or a smaller batch\n"
    assert capsys.readouterr() == ("", message)


def allocate_in_torch() -> None:
    torch.empty(10**14)


def allocate_in_numpy() -> None:
    np.empty(10**14)


@pytest.mark.parametrize("allocate", [allocate_in_torch, allocate_in_numpy])
def test_the_real_errors_of_torch_and_numpy_are_recognised(allocate, capsys):
    """Their texts are no interface, and change."""
    with pytest.raises(SystemExit, match="2"):
        run_command(allocate)
    amount = r"(400000000000000 bytes|728\. TiB) more were needed"
    assert re.fullmatch(rf"error: not enough memory: {amount}; .*\n", capsys.readouterr().err)


def test_ctrl_c_that_native_code_reports_as_another_error_is_ctrl_c(capsys):
    """As in the import of an extension module."""

    def main() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit, match="130"):
        run_command(main)
    signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "stopped\n")


START = """
import sys
from minisbert.core import InputError
from minisbert.system.console import run_command, say
def main():
    """
# Less, and more, than Python and the pipe buffer.
SMALL = "print('x' * 10)"
LARGE = "print('x' * 1_000_000)"
full_disk = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="this system has no /dev/full"
)


def python(main: str, **streams) -> tuple[int, str, str]:
    """The exit code and the output of another Python that runs a command.

    Its output is buffered, as for any user.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(
        [sys.executable, "-c", f"{START}{main}\nrun_command(main)"],
        env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""},
        text=True,
        timeout=60,
        **(pipes | streams),
    )
    return done.returncode, done.stdout or "", done.stderr or ""


@pytest.mark.parametrize("main", [SMALL, LARGE])
def test_a_closed_pipe_is_not_an_error(main):
    """``minisbert ... | head`` ends quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    assert python(main, stdout=writer) == (0, "", "")
    os.close(writer)


@full_disk
@pytest.mark.parametrize("main", [SMALL, LARGE])
def test_a_full_disk_under_stdout_is_one_line(main):
    with open("/dev/full", "w") as full:
        assert python(main, stdout=full) == (2, "", "error: No space left on device\n")


@full_disk
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_help_is_one_line(unbuffered, monkeypatch):
    """argparse says nothing of an error that it sees itself, as with an unbuffered stdout."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "minisbert", "plot", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@full_disk
@pytest.mark.parametrize("terminal", [True, False])
def test_messages_and_progress_that_cannot_be_written_do_not_end_the_work(terminal):
    bar = "from minisbert.system.progress import Bar; Bar(total=5).refresh()"
    main = f"say('a'); sys.stderr.isatty = lambda: {terminal}; {bar}; print('found')"
    with open("/dev/full", "w") as full:
        assert python(main, stderr=full) == (0, "found\n", "")


def test_a_number_in_a_range():
    """argparse shows the name in its error."""
    to_integer = bounded(int, 1, 1025)
    assert to_integer("1") == 1
    assert to_integer("1024") == 1024
    assert to_integer.__name__ == "integer from 1, below 1025"


@pytest.mark.parametrize("text", ["0", "1.5", "two", "", "1025"])
def test_what_is_no_integer_of_the_range(text):
    with pytest.raises(ValueError):  # noqa: PT011
        bounded(int, 1, 1025)(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-1"])
def test_what_is_no_number_of_the_range(text):
    with pytest.raises(ValueError):  # noqa: PT011
        bounded(float, 0)(text)


@pytest.fixture
def parser():
    parser = command_parser("paint", "Paint a wall.")
    parser.add_argument("--colour", choices=["red", "blue"])
    parser.add_argument("--coats", type=int)
    return parser


@pytest.mark.parametrize("arguments", [["--votes"], ["--colour", "blu"], ["--coats", "two"]])
def test_a_mistake_is_one_line_that_names_the_option(parser, arguments):
    """argparse would print the usage of all options before it."""
    with pytest.raises(InputError, match=arguments[0]) as error:
        parser.parse_args(arguments)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------- Ctrl-C and SIGTERM

numbers = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture
def listening():
    """As in a terminal: a shell's background jobs and their children ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@numbers
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.usefixtures("listening")
def test_an_interrupt_waits_for_the_end_of_the_outermost_block(number, nested):
    done = []

    def work(interrupts: Interrupts) -> None:
        with interrupts.defer():
            if nested:
                with interrupts.defer():
                    signal.raise_signal(number)
            else:
                signal.raise_signal(number)
            done.append("the rest of the step")
        done.append("more")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        work(interrupts)
    assert done == ["the rest of the step"]


@numbers
@pytest.mark.usefixtures("listening")
def test_an_interrupt_is_immediate_outside_a_block(number):
    with Interrupts() as interrupts:
        with interrupts.defer():
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.usefixtures("listening")
def test_a_second_interrupt_does_not_wait():
    with Interrupts() as interrupts, pytest.raises(SystemExit, match="130"), interrupts.defer():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("listening")
def test_previous_handlers_are_restored():
    """A program that calls us goes on with its own."""
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_leaves_the_handlers_alone():
    """Only the main thread may set them."""
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def work() -> None:
        with Interrupts() as interrupts, interrupts.defer():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
