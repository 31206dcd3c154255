"""The three budgets of a unit, with their defaults, what is too large for a device, and what takes how long."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from atrex.roofline.work import Work


@dataclass(frozen=True)
class SizeLimit:
    """What a unit may cost in a device's reference: bytes of its semantic reads and writes, and FLOPs."""

    bytes: float
    flops: float

    def fits(self, work: Work) -> bool:
        return work.total_bytes <= self.bytes and work.total_flops <= self.flops


# The judge's float64 reference and comparison at this size take a few seconds for all cases on two cores.
CPU_LIMIT = SizeLimit(bytes=32 * 2**20, flops=2e10)


@dataclass(frozen=True)
class Budgets:
    """Seconds. They stand in run.json, and a resumed run keeps them.

    `compile` is for a shape's import and first forward, `execution` for one forward, `performance` for all timed
    forwards of a shape: a correct unit that cannot do 20 calls in it is `over_budget`.
    """

    compile: float = 180.0
    execution: float = 10.0
    performance: float = 10.0

    MIN_CALLS = 20
    MAX_CALLS = 100
    ENOUGH_CALLS = 30
    ENOUGH_US = 300_000.0

    def calls(self, pilot_us: float, at_most: int | None = None) -> int | None:
        """How many calls to time for a forward of `pilot_us`, or None when the performance budget is too small.

        Calls of milliseconds vary by a percent: beyond `ENOUGH_CALLS` they stop when they have added up to `ENOUGH_US`.
        """
        fits = int(self.performance * 1e6 / max(pilot_us, 1e-3))
        if fits < self.MIN_CALLS:
            return None
        enough = max(self.ENOUGH_CALLS, int(self.ENOUGH_US / max(pilot_us, 1e-3)))
        return min(fits, enough, at_most or self.MAX_CALLS, self.MAX_CALLS)

    def as_json(self) -> dict[str, float]:
        return asdict(self)


BYTES_PER_SECOND = 2e9
FLOPS_PER_SECOND = 4e11
UNIT_SECONDS = 1.0


def predicted_seconds(work: Work) -> float:
    """A guess of what judging a unit takes, good enough to put long ones first.

    Process, pilot and timed calls cost about the same for every unit; references and comparisons grow with its size.
    The rates are those of a unit's fifteen to twenty references and comparisons on an H200 that four judges share.
    """
    return UNIT_SECONDS + work.total_bytes / BYTES_PER_SECOND + work.total_flops / FLOPS_PER_SECOND
