"""Signals that are noted: by a training, and by a process whose children do the work."""

from __future__ import annotations

import logging
import math
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from graphgps_kmip.common import signals
from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.common.signals import ScreenLog, Stopped, StopSignals


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """A shell that starts the tests in the background has SIGINT ignored."""
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGINT, signal.SIGHUP)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_training_stops_at_its_next_check() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.check()
    assert stop.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_is_passed_on_as_a_kill_unless_it_is_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ECHO_SECONDS", math.inf)
    with StopSignals(forward=True) as stop:
        signal.raise_signal(signal.SIGHUP)
        assert [stop.order(), stop.order()] == [signal.SIGTERM, 0]
        signal.raise_signal(signal.SIGINT)
        assert stop.order() == 0
        monkeypatch.setattr(signals, "ECHO_SECONDS", -1.0)
        signal.raise_signal(signal.SIGINT)
        assert stop.order() == signal.SIGKILL
    assert stop.signum == signal.SIGHUP


def test_a_signal_that_is_ignored_stays_ignored_where_children_do_the_work() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals(forward=True) as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.signum == 0


def test_a_bar_moves_below_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal_bar(total=3, delay=0):
        ScreenLog().emit(logging.makeLogRecord({"msg": "a line"}))
        out, err = capsys.readouterr()
    assert out == "a line\n"
    assert re.fullmatch(r"\r?.*0/3.*\r +\r.*0/3.*", err), "drawn, cleared for the line, drawn again"
