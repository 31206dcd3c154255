"""What a run shows while it runs."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from atrex.report.live import LINE_FOR_EACH, Board, Progress

sys.path.insert(0, str(Path(__file__).parents[1] / "scoring"))
from synthetic import failed, unit  # noqa: E402


@pytest.fixture
def board():
    now = [100.0]
    made = Board(clock=lambda: now[0])
    made.now = now
    return made


def name(operator, shape):
    return SimpleNamespace(operator=operator, shape=shape)


def test_pace_and_time_left_are_of_this_session(board):
    board.begin("cuda:0", name("a", "0"))
    board.now[0] += 30
    board.end(11, 20, unit("a", "0", 0.5))  # ten were there already
    assert (board.done, board.per_minute, board.seconds_left) == (11, 2.0, 270.0)
    assert board.line() == "11 of 20 units, 1 passed, 2 a minute, 4:30 left"


def test_each_device_shows_what_it_is_at(board):
    board.begin("cuda:0", name("a", "0"))
    board.begin("cuda:1", name("b", "0"))
    board.end(1, 2, unit("a", "0", 0.5))
    assert board.devices == {"cuda:0": [], "cuda:1": ["b/0"]}


def test_failures_are_counted_apart(board):
    board.end(1, 2, failed("runtime", "numeric_mismatch", "a", "0"))
    assert "0 passed, 1 failed" in board.line()


def shown(planned, records, board):
    stream = io.StringIO()
    with Progress(stream, board) as progress:
        for i, record in enumerate(records):
            progress.unit(i + 1, planned, record)
            board.now[0] += 1
    return stream.getvalue().splitlines()


def test_without_a_terminal_a_short_run_has_a_line_per_unit(board):
    assert len(shown(3, [unit("a", str(i), 0.5) for i in range(3)], board)) == 3


def test_without_a_terminal_a_long_run_has_a_line_now_and_then_and_one_per_failure(board):
    records = [unit("a", str(i), 0.5) for i in range(40)] + [failed("runtime", "exception", "a", "40")]
    lines = shown(LINE_FOR_EACH + 40, records, board)
    assert 2 <= len(lines) <= 6
    assert "runtime: exception" in lines[-1]
