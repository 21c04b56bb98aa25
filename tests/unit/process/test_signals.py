"""Signals that come at the wrong moment wait for the right one."""

from __future__ import annotations

import signal
import threading

import pytest

from tuner.process.child import held_back


def test_an_interrupt_in_the_block_is_raised_after_it() -> None:
    finished = False
    with pytest.raises(KeyboardInterrupt):
        with held_back():
            signal.raise_signal(signal.SIGINT)
            finished = True
        raise AssertionError("the interrupt was lost")
    assert finished


def test_an_error_in_the_block_passes_and_the_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="own"), held_back():
        raise ValueError("own")
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_may_use_it_too() -> None:
    reached = threading.Event()

    def work() -> None:
        with held_back():
            reached.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reached.is_set()
