"""Ctrl-C and SIGTERM: deferred to the end of a block, never lost, and handled as before afterwards."""

import signal
from threading import Thread

import pytest

from minisbert.system.console import Interrupts

numbers = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def listening():
    """As in a terminal: a shell's background jobs and their children ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@numbers
@pytest.mark.parametrize("nested", [False, True])
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
def test_an_interrupt_is_immediate_outside_a_block(number):
    with Interrupts() as interrupts:
        with interrupts.defer():
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_second_interrupt_does_not_wait():
    with Interrupts() as interrupts, pytest.raises(SystemExit, match="130"), interrupts.defer():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_an_error_in_the_block_replaces_the_interrupt():
    with Interrupts() as interrupts:
        with pytest.raises(ZeroDivisionError), interrupts.defer():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            1 / 0  # noqa: B018
        with interrupts.defer():
            pass  # the interrupt is not raised later


def test_previous_handlers_are_restored_and_an_ignored_signal_stays_ignored():
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) != before
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == before
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_another_thread_leaves_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupts() as interrupts, interrupts.defer():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
