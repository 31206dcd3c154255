"""`run --budget-s`: the hard end of a run."""

from __future__ import annotations

import signal
import time

import pytest

from atrex.cli.optimize import _ended_after


@pytest.mark.parametrize("interrupts", [signal.default_int_handler, signal.SIG_IGN])
def test_what_is_on_its_way_when_the_time_is_over_is_cut_off_and_it_says_so(capsys, interrupts):
    before = signal.signal(signal.SIGINT, interrupts)
    began = time.monotonic()
    try:
        with _ended_after(0.2):
            time.sleep(20)
        assert signal.getsignal(signal.SIGINT) is interrupts
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 10 and "the time for this run is over" in capsys.readouterr().out


def test_an_interrupt_before_that_is_one():
    with pytest.raises(KeyboardInterrupt), _ended_after(60):
        raise KeyboardInterrupt
