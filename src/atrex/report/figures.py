"""How figures print in a terminal. What was not measured prints as a dash, never as zero."""

from __future__ import annotations

from collections.abc import Mapping

from atrex.scoring.baselines import PRODUCTION
from atrex.scoring.operators import OperatorScore
from atrex.scoring.readiness import Shown
from atrex.scoring.records import Status, UnitRecord, Verdict

DASH = "-"


def us(value: float | None) -> str:
    """A time in microseconds, with about four digits; only 0 reads as 0."""
    if value is None:
        return DASH
    if 0 < value < 0.005:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def score(value: float | None) -> str:
    """A fraction of the roofline; one too small for three decimals keeps two digits, so that only 0 reads as 0."""
    if value is None:
        return DASH
    return f"{value:.1e}" if 0 < value < 0.0005 else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A share in 0..1; 100.0 and 0.0 are only printed when they are exact."""
    if value is None:
        return DASH
    shown = round(100 * value, 1)
    if (shown == 100 and value < 1) or (shown == 0 and value > 0):
        return ">99.9 %" if shown else "<0.1 %"
    return f"{shown:.1f} %"


def ratio(value: float | None) -> str:
    """How many times faster than a baseline."""
    return DASH if value is None else f"{value:.2f}x"


def compared(score: OperatorScore, name: str) -> str:
    """An operator's ratio to a baseline; to production with whose times these are."""
    found = ratio(score.ratios.get(name))
    return f"{found} ({', '.join(score.production)})" if name == PRODUCTION and score.production else found


def counts(value: Mapping[str, int]) -> str:
    """Counts by name: `3 torch, 1 vendor`; 0 when there are none."""
    return ", ".join(f"{n} {name}" for name, n in value.items()) or "0"


def passed(value: bool | None) -> str:
    """Whether a unit passes a rule."""
    return DASH if value is None else "yes" if value else "no"


def shown(value: Shown | None) -> str:
    """A property's count over the units where it was tried."""
    return f"{value.yes} of {value.tried}" if value else DASH


def verdict(value: Verdict) -> str:
    """`passed`, `runtime: numeric_mismatch`, `error: unstable`, with the shortcut of a unit that is no DSL kernel."""
    text = str(value.status)
    if value.status == Status.FAILED:
        text = f"{value.stage}: {value.category}"
    elif value.category:
        text = f"{value.status}: {value.category}"
    return f"{text} ({value.shortcut} fallback)" if value.shortcut else text


def shape(record: UnitRecord) -> str:
    """The shape id, marked when it is no published shape."""
    mark = "held-out" if record.held_out else "" if record.origin == "published" else record.origin
    return f"{record.shape} ({mark})" if mark else record.shape


MARKS = {
    "h": "host-bound",
    "t": "throttled",
    "u": "clocks not known to be locked",
    "r": "a first measurement was in doubt",
    "c": "confirmed in a second worker, which is what S is of",
}


def marks(record: UnitRecord) -> str:
    """What limits the trust in a measured time, as letters of `MARKS`."""
    timed = record.performance
    if timed is None:
        return ""
    snapshots = [c for c in (timed.clocks or {}).values() if isinstance(c, dict)]
    return (
        "h" * bool(timed.host_bound)
        + "t" * any(c.get("throttled") for c in snapshots)
        + "u" * (bool(snapshots) and not all(c.get("locked") for c in snapshots))
        + "r" * bool(timed.remeasured)
        + "c" * bool(record.confirm)
    )


def unit_line(record: UnitRecord) -> str:
    """One unit in one line, for progress: operator, shape, verdict, and time and S when there are any."""
    parts = [record.operator, shape(record), verdict(record.verdict)]
    if record.performance:
        parts.append(f"{us(record.performance.median_us)} us")
    if record.roofline and record.roofline.S is not None:
        parts.append(f"S {score(record.roofline.S)}")
    if record.verdict.reason:
        parts.append(record.verdict.reason)
    return "  ".join(parts)
