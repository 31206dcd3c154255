"""torch.compile: every reference, compiled by Inductor with its defaults."""

from __future__ import annotations

from atrex.baselines.base import Baseline
from atrex.baselines.reference_text import reference_text
from atrex.problems.model import Problem
from atrex.scoring.records import Origin


class Compiled(Baseline):
    """Has every operator, also those of a suite of one's own."""

    def has(self, operator: str) -> bool:
        return True

    def origin(self, operator: str) -> Origin:
        calls = "torch.compile(reference, dynamic=False)"
        return Origin(name=self.name, library=self.distribution, version=self.version, calls=calls)

    def text(self, problem: Problem) -> str:
        return reference_text(problem, f"The reference of {problem.operator}, compiled.", compiled=True)


BASELINE = Compiled("torch.compile", __file__, "torch", "pip install torch", ("2.11", "2.13"), devices=("cpu", "cuda"))
