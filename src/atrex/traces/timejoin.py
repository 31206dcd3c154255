"""Records without ids joined by time: a device trace with the host ranges of another recorder, their clocks aligned.

Asynchronous launches mean that a kernel runs later than the code that launched it, so a join by time is good for
steps and phases and only roughly for operators. The offset between the clocks and what it may be off by are stated
with the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from atrex.errors import UserError
from atrex.traces import raw

MAX_BINS = 1 << 15
MIN_PEAK = 0.3  # correlation below which two activities have nothing to do with each other
BY_TIME = "(by time)"
_ID_COLUMNS = ("name", "thread", "dims", "dtypes", "concrete")


@dataclass(frozen=True)
class Alignment:
    """`offset`: nanoseconds to add to host times to get device times; `error`: what it may be off by, None if unknown.

    `ambiguous`: nanoseconds after which the activity repeats, so that the offset may be off by multiples of it.
    """

    offset: int
    error: int | None
    method: str
    ambiguous: int | None = None

    def sentence(self) -> str:
        error = "error unknown" if self.error is None else f"error {self.error / 1e6:.3f} ms"
        again = f", or multiples of {self.ambiguous / 1e6:.1f} ms more" if self.ambiguous else ""
        return f"clocks aligned by {self.method}: offset {self.offset / 1e6:.3f} ms, {error}{again}"


def align(device: raw.RawTrace, host: raw.RawTrace, offset: int | None = None) -> Alignment:
    """How far a host trace's clock is from a device trace's.

    By the given offset, by the wall clocks that both files state, or by the shift at which the host's activity fits the
    device's best. Raises UserError where no shift fits.
    """
    if offset is not None:
        return Alignment(offset, None, "the given offset")
    if device.meta.base_ns is not None and host.meta.base_ns is not None:
        return Alignment(host.meta.base_ns - device.meta.base_ns, 1_000_000, "the wall clocks of both files")
    return _by_activity(device, host)


def _by_activity(device: raw.RawTrace, host: raw.RawTrace) -> Alignment:
    start, dur = device.device["start"].to_numpy(), device.device["dur"].to_numpy()
    low, ranges = host.host["start"].to_numpy(), host.host
    if not len(low):
        raise UserError(f"{host.path}: no range of the host in it: nothing to join by time")
    high = low + ranges["dur"].to_numpy()
    span = max(int((start + dur).max() - start.min()), int(high.max() - low.min()), 1)
    width = max(1_000, -(-2 * span // MAX_BINS))
    bins = 1 << int(np.ceil(np.log2(2 * span / width + 2)))
    busy = _filled(start - start.min(), start + dur - start.min(), width, bins)
    spectrum = np.fft.rfft(busy - busy.mean())
    best: tuple[float, int, np.ndarray] | None = None
    names = ranges["name"].to_numpy()
    for name in np.unique(names):
        rows = names == name
        if not 0.02 < (high[rows] - low[rows]).sum() / span < 0.98:  # a range that is always or never open says nothing
            continue
        activity = _filled(low[rows] - low.min(), high[rows] - low.min(), width, bins)
        other = activity - activity.mean()
        scale = np.linalg.norm(busy - busy.mean()) * np.linalg.norm(other)
        if not scale:
            continue
        fit = np.fft.irfft(spectrum * np.conj(np.fft.rfft(other)), bins) / scale
        peak = int(np.argmax(fit))
        if best is None or fit[peak] > best[0]:
            best = (float(fit[peak]), peak, fit)
    if best is None or best[0] < MIN_PEAK:
        raise UserError(
            f"{host.path}: no range in it comes and goes with the device's activity; give --clock-offset in nanoseconds"
        )
    quality, peak, fit = best
    near = np.flatnonzero(fit >= 0.95 * quality)
    circular = (near - peak + bins // 2) % bins - bins // 2
    together = circular[np.abs(circular) <= _run(circular)]
    apart = circular[np.abs(circular) > _run(circular)]
    shift = peak if peak < bins // 2 else peak - bins
    return Alignment(
        offset=int(shift * width + start.min() - low.min()), error=int((np.abs(together).max() + 1) * width),
        method=f"activity (correlation {quality:.2f})",
        ambiguous=int(np.abs(apart).min() * width) if apart.size else None,
    )  # fmt: skip


def _run(offsets: np.ndarray) -> int:
    """How far the offsets around 0 go without a gap."""
    reach, known = 0, set(offsets.tolist())
    while reach + 1 in known or -(reach + 1) in known:
        reach += 1
    return reach


def _filled(start: np.ndarray, end: np.ndarray, width: int, bins: int) -> np.ndarray:
    """How much of each bin the intervals cover, counted once per interval and at most 1."""
    first, last = start // width, np.minimum(end // width, bins - 2)
    change = np.zeros(bins)
    np.add.at(change, first, 1.0)
    np.add.at(change, last + 1, -1.0)
    return np.minimum(np.cumsum(change), 1.0)


def join(device: raw.RawTrace, host: raw.RawTrace, offset: int | None = None) -> raw.RawTrace:
    """The device trace with the host trace's ranges: each record without a launch gets one at its own middle.

    Raises UserError as `align` does.
    """
    alignment = align(device, host, offset)
    strings = device.strings
    to_ours = np.array([*(strings.id(text) for text in host.strings.values), -1], dtype=np.int32)
    ranges = host.host.with_columns(
        *[pl.Series(c, to_ours[host.host[c].to_numpy()]) for c in _ID_COLUMNS], start=pl.col("start") + alignment.offset
    )
    meta = replace(
        device.meta,
        notes=[*device.meta.notes, f"joined to {host.path.name} by time; {alignment.sentence()}"],
        processes=device.meta.processes | host.meta.processes,
        has_stacks=device.meta.has_stacks or host.meta.has_stacks,
    )
    return by_own_clock(replace(device, meta=meta, host=pl.concat([device.host, ranges])), said=True)


def by_own_clock(trace: raw.RawTrace, said: bool = False) -> raw.RawTrace:
    """A trace whose records have no launch, each given one at its middle on the thread that is busiest with it.

    `said`: the trace's notes say already how it was joined.
    """
    known = trace.launches.select("process", "correlation").unique()
    rows = trace.device.with_row_index("row").join(known, on=["process", "correlation"], how="anti")["row"].to_numpy()
    if not len(rows) or not len(trace.host):
        return trace
    thread = _busiest(trace)
    first = max(int(trace.device["correlation"].max() or 0), int(trace.launches["correlation"].max() or 0), 0) + 1
    ids = first + np.arange(len(rows))
    correlation = trace.device["correlation"].to_numpy().copy()
    correlation[rows] = ids
    process = trace.device["process"].to_numpy()[rows]
    middle = (trace.device["start"] + trace.device["dur"] // 2).to_numpy()[rows]
    launches = raw.frame(raw.LAUNCHES, {
        "name": np.full(len(rows), trace.strings.id(BY_TIME)), "thread": np.full(len(rows), thread), "process": process,
        "start": middle, "correlation": ids,
    }, len(rows))  # fmt: skip
    notes = trace.meta.notes
    if not said:
        notes = [
            *notes,
            "records have no launches: joined by time to the ranges open when they run, on the file's own clock",
        ]
    return replace(
        trace, meta=replace(trace.meta, notes=notes), launches=pl.concat([trace.launches, launches]),
        device=trace.device.with_columns(pl.Series("correlation", correlation)),
    )  # fmt: skip


def _busiest(trace: raw.RawTrace) -> int:
    """The thread whose ranges are open during most of the device's records."""
    start = np.sort(trace.device["start"].to_numpy())
    covered: dict[int, int] = {}
    for (thread,), ranges in trace.host.group_by("thread"):
        low = ranges["start"].to_numpy()
        inside = np.searchsorted(start, low + ranges["dur"].to_numpy()) - np.searchsorted(start, low)
        covered[thread] = int(inside.sum())
    return max(covered, key=lambda t: (covered[t], -t))
