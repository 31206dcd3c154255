"""Which interval encloses which, in compiled code: one sort, then rounds of pointer jumping over whole arrays.

Intervals of one thread nest as a call stack does, but recorded ends may overlap by a few nanoseconds and asynchronous
ranges may cross. The stack of a moment is therefore defined by what is open then: the innermost interval around t is
the one that began last among those with start <= t < end.
"""

from __future__ import annotations

import numpy as np


class Stack:
    """Intervals of several threads, sorted by (thread, start, -end), ready to be asked who is open when.

    `threads`, `starts`, `ends`: int64 arrays in that order; of intervals with equal bounds the outer one stands first.
    """

    def __init__(self, threads: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        self.threads, self.starts, self.ends = threads, starts, ends
        n = len(starts)
        self.first = np.flatnonzero(np.r_[True, threads[1:] != threads[:-1]]) if n else np.empty(0, dtype=np.int64)
        self._holder = self._holders()

    def _holders(self) -> np.ndarray:
        """For each interval, the nearest one before it in its thread that ends no earlier; -1 if there is none.

        A candidate that fails is replaced by its own candidate: everything between the two ends before the failed one
        does, so nothing is passed over. All intervals jump at once.
        """
        n = len(self.starts)
        holder = np.arange(-1, n - 1, dtype=np.int64)
        holder[self.first] = -1
        ends = self.ends
        active = np.flatnonzero(holder >= 0)
        while active.size:
            candidate = holder[active]
            failing = ends[candidate] < ends[active]
            active, candidate = active[failing], candidate[failing]
            holder[active] = holder[candidate]
            active = active[holder[active] >= 0]
        return holder

    def _climb(self, position: np.ndarray, times: np.ndarray) -> np.ndarray:
        """From `position` (-1: none) outwards to the nearest interval that is still open at `times`."""
        found = position.copy()
        active = np.flatnonzero(found >= 0)
        while active.size:
            active = active[self.ends[found[active]] <= times[active]]
            found[active] = self._holder[found[active]]
            active = active[found[active] >= 0]
        return found

    def parents(self) -> np.ndarray:
        """For each interval, the position of the innermost one open when it begins, itself apart; -1 for none."""
        before = np.arange(-1, len(self.starts) - 1, dtype=np.int64)
        before[self.first] = -1
        return self._climb(before, self.starts)

    def innermost(self, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """For each (thread, time), the position of the innermost interval open then; -1 for none."""
        found = np.full(len(times), -1, dtype=np.int64)
        bounds = np.r_[self.first, len(self.starts)]
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            asked = np.flatnonzero(threads == self.threads[low])
            if asked.size:
                position = np.searchsorted(self.starts[low:high], times[asked], side="right") + low - 1
                position[position < low] = -1
                found[asked] = position
        return self._climb(found, times)
