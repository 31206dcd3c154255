"""Cold-cache memory as measured: bandwidth by bytes moved and by the mix of reads and writes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BandwidthCurve:
    """Best bandwidths `bandwidths` (B/s) measured at `sizes` (total bytes read and written, ascending).

    The curve is an upper envelope: no measured point lies above it, and the time it implies never falls as bytes grow
    (whoever can move more bytes in a time can move fewer in it). Build it with `BandwidthCurve.envelope`.
    """

    sizes: tuple[float, ...]
    bandwidths: tuple[float, ...]

    @classmethod
    def envelope(cls, points: Sequence[tuple[float, float]]) -> BandwidthCurve:
        """The envelope of (total bytes, B/s) points. Raises ValueError when there are none."""
        if not points:
            raise ValueError("a bandwidth curve needs at least one point")
        best: dict[float, float] = {}
        for size, bandwidth in points:
            best[size] = max(best.get(size, 0.0), bandwidth)
        sizes = sorted(best)
        for i in range(len(sizes) - 2, -1, -1):
            size, larger = sizes[i], sizes[i + 1]
            best[size] = max(best[size], best[larger] * size / larger)
        return cls(tuple(sizes), tuple(best[size] for size in sizes))

    def bandwidth_at(self, total_bytes: float) -> float:
        """B/s at `total_bytes`: log-log between the measured sizes (so time stays monotone), the ends outside."""
        if total_bytes <= self.sizes[0]:
            return self.bandwidths[0]
        if total_bytes >= self.sizes[-1]:
            return self.bandwidths[-1]
        i = bisect_right(self.sizes, total_bytes) - 1
        low, high = self.sizes[i], self.sizes[i + 1]
        share = math.log(total_bytes / low) / math.log(high / low)
        return self.bandwidths[i] * (self.bandwidths[i + 1] / self.bandwidths[i]) ** share


@dataclass(frozen=True)
class ColdMemory:
    """A curve for each measured mix, keyed by (parts read, parts written): (1, 0), (2, 1), (1, 1), (0, 1)."""

    curves: Mapping[tuple[int, int], BandwidthCurve]

    def bandwidth_at(self, total_bytes: float) -> float:
        """The best B/s of any mix at `total_bytes`."""
        return max(curve.bandwidth_at(total_bytes) for curve in self.curves.values())

    def seconds(self, bytes_read: float, bytes_written: float) -> float:
        """The least time to read and write so many bytes.

        Whoever moves (R, W) also moves the part of it that has a measured mix, so each mix gives a lower bound and the
        largest holds: exact at the measured mixes, a few percent low between them, never too high.
        """
        least = 0.0
        for mix, curve in self.curves.items():
            total = _fitting(mix, bytes_read, bytes_written)
            if total:
                least = max(least, total / curve.bandwidth_at(total))
        return least

    def raised_to(self, transfers: Iterable[tuple[float, float, float]]) -> ColdMemory:
        """This model with every curve raised until none of the (bytes read, bytes written, seconds) beats it.

        Each curve is measured on its own, so a transfer of one mix can turn out faster than the part of it that another
        mix had been measured to need.
        """
        raised = dict(self.curves)
        for bytes_read, bytes_written, seconds in transfers:
            for mix, curve in raised.items():
                total = _fitting(mix, bytes_read, bytes_written)
                if total and total / seconds > curve.bandwidth_at(total):
                    points = zip(curve.sizes, curve.bandwidths, strict=True)
                    raised[mix] = BandwidthCurve.envelope([*points, (total, total / seconds)])
        return ColdMemory(raised)


def _fitting(mix: tuple[int, int], bytes_read: float, bytes_written: float) -> float:
    """Total bytes of the largest transfer of this mix inside (bytes_read, bytes_written)."""
    fits = [moved / part for moved, part in ((bytes_read, mix[0]), (bytes_written, mix[1])) if part]
    return min(fits) * sum(mix)
