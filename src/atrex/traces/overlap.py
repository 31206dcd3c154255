"""Exclusive device time: every instant of a device counted once.

On one stream kernels run one after the other, except that a kernel launched with programmatic dependent launch starts
early and waits: the overlap belongs to the earlier one, whose end the later one waits for. AMD has no such launch;
there an overlap on one stream is a recorded end that runs into the next kernel (TraceLens #669 saw kernels of 1.6 s),
so the earlier one is cut. Across streams, kernels that run at the same time share it equally.
"""

from __future__ import annotations

import numpy as np


def exclusive(
    device: np.ndarray, stream: np.ndarray, start: np.ndarray, dur: np.ndarray, cut_earlier: bool
) -> tuple[np.ndarray, int]:
    """(exclusive nanoseconds of each record as float64, how many records overlapped another on their own stream).

    All arguments are int64 arrays of one length, in any order; `cut_earlier` says to whom an overlap on one stream
    belongs: to the later record if true. The sum per device is the time in which the device was busy.
    """
    n = len(start)
    share = np.zeros(n, dtype=np.float64)
    if not n:
        return share, 0
    order = np.lexsort((start + dur, start, stream, device))
    dev, low = device[order], start[order].copy()
    high = low + np.maximum(dur[order], 0)
    new = np.r_[True, (dev[1:] != dev[:-1]) | (stream[order][1:] != stream[order][:-1])]
    overlapping = 0
    group_starts = np.flatnonzero(new)
    bounds = np.r_[group_starts, n]
    for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if cut_earlier:
            following = np.r_[low[a + 1 : b], np.iinfo(np.int64).max]
            overlapping += int((high[a:b] > following).sum())
            high[a:b] = np.minimum(high[a:b], following)
        else:
            reached = np.maximum.accumulate(np.r_[low[a], high[a : b - 1]])
            overlapping += int((low[a:b] < reached).sum())
            low[a:b] = np.maximum(low[a:b], np.minimum(reached, high[a:b]))
    for d in np.unique(dev):
        rows = np.flatnonzero(dev == d)
        share[order[rows]] = _shared(low[rows], high[rows])
    return share, overlapping


def _shared(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Each interval's part of the time line when the intervals open at an instant share it equally."""
    times = np.concatenate([low, high])
    steps = np.concatenate([np.ones(len(low), dtype=np.int64), -np.ones(len(high), dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, open_now = times[order], np.cumsum(steps[order])
    gaps = np.diff(times)
    parts = np.where(open_now[:-1] > 0, gaps / np.maximum(open_now[:-1], 1), 0.0)
    passed = np.r_[0.0, np.cumsum(parts)]
    return passed[np.searchsorted(times, high)] - passed[np.searchsorted(times, low)]
