"""Enclosing intervals, against the definition applied pair by pair."""

import numpy as np
import pytest

from atrex.traces.nesting import Stack


def sorted_stack(threads, starts, ends):
    order = np.lexsort((-ends, starts, threads))
    return Stack(threads[order], starts[order], ends[order])


def open_at(stack, thread, time, before=None):
    """The last interval of a thread with start <= time < end; positions from `before` on do not count."""
    rows = range(len(stack.starts) if before is None else before)
    inside = [i for i in rows if stack.threads[i] == thread and stack.starts[i] <= time < stack.ends[i]]
    return max(inside, default=-1)


@pytest.mark.parametrize("seed", range(40))
def test_parents_and_innermost_follow_the_definition(seed):
    """Crossing, touching, empty and equal intervals on three threads."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    starts = rng.integers(0, 40, n)
    stack = sorted_stack(rng.integers(0, 3, n), starts, starts + rng.integers(0, 15, n))
    parents = [open_at(stack, stack.threads[i], stack.starts[i], before=i) for i in range(n)]
    assert stack.parents().tolist() == parents
    threads, times = rng.integers(0, 4, 50), rng.integers(-2, 60, 50)
    assert stack.innermost(threads, times).tolist() == [
        open_at(stack, t, at) for t, at in zip(threads, times, strict=True)
    ]


def test_a_long_run_of_siblings_finds_its_parent():
    starts = np.r_[0, np.arange(1, 50_001) * 10]
    stack = sorted_stack(np.zeros(50_001, dtype=np.int64), starts, np.r_[10**9, starts[1:] + 5])
    assert (stack.parents()[1:] == 0).all()


def test_no_intervals():
    nothing = np.empty(0, dtype=np.int64)
    stack = Stack(nothing, nothing, nothing)
    assert stack.parents().size == 0
    assert stack.innermost(np.array([0]), np.array([5])).tolist() == [-1]
