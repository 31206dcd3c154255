"""Production and traced times that lie under the roofline: a shape, a trace or a ceiling must be wrong there."""

from __future__ import annotations

from dataclasses import dataclass

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.problems.model import Problem
from atrex.roofline.bound import roofline


@dataclass(frozen=True)
class UnderRoofline:
    """A time in microseconds that is less than the roofline of the chip where it was measured.

    `source`: "production", a benchmark of the deployed kernel on this shape, or "traced", the mean over the calls that
    a serving trace lists under it. `explained`: why, where metadata says so.
    """

    shape: str
    source: str
    chip: str
    us: float
    roofline_us: float
    origin: str
    explained: str | None

    @property
    def told(self) -> str:
        """One line without the explanation."""
        return (
            f"shape {self.shape} ({self.origin}): {self.source} {self.us:.4g} us on {self.chip}, "
            f"roofline {self.roofline_us:.4g} us"
        )


def under_roofline(problem: Problem) -> list[UnderRoofline]:
    """Every such time of a problem's metadata. Raises UserError for a chip that no chip file describes."""
    found = []
    for shape_id, meta in problem.metadata.shapes.items():
        if shape_id not in problem.shapes:
            continue
        times = [("production", chip, each.us) for chip, each in meta.production.items()]
        times += [("traced", chip, us) for chip, us in meta.traced_us.items()]
        for source, chip, us in times:
            try:
                bound = roofline(problem.work(problem.shapes[shape_id]), load_chip(chip)).us
            except UserError as error:
                raise UserError(f"{problem.folder.name}/metadata.json: shapes.{shape_id}.{source}: {error}") from None
            if us < bound:
                found.append(UnderRoofline(shape_id, source, chip, us, bound, meta.origin, meta.under_roofline or None))
    return found
