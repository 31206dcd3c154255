"""The unit record: one JSON line per judged (candidate, operator, shape).

Times are microseconds. A field that was not measured is `None`, never zero.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"  # the candidate's fault
    ERROR = "error"  # not shown to be the candidate's fault: beyond_roofline, unstable, folder
    SKIPPED = "skipped"


class Stage(StrEnum):
    COMPILE = "compile"
    RUNTIME = "runtime"
    PERFORMANCE = "performance"


CATEGORIES: dict[Stage, tuple[str, ...]] = {
    Stage.COMPILE: ("exception", "timeout_or_oom", "not_a_module", "no_artifact"),
    Stage.RUNTIME: ("numeric_mismatch", "interface", "timeout", "exception", "integrity"),
    Stage.PERFORMANCE: ("over_budget",),
}
ERROR_CATEGORIES = ("beyond_roofline", "unstable", "folder")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Verdict(_Record):
    """What a unit ends with. `stage` and `category` are None when it passed."""

    status: Status
    stage: Stage | None = None
    category: str | None = None
    reason: str | None = None
    shortcut: Literal["torch", "vendor", "substitution"] | None = None


class Artifact(_Record):
    """One completed compile artifact: a Triton cubin per launched specialization, a cpp shared library, ..."""

    name: str
    kind: str
    sha256: str
    bytes: int


class Compile(_Record):
    seconds: float
    artifacts: list[Artifact] = Field(default_factory=list)


class Where(_Record):
    """The worst element: its case, output and index, what was expected and what came."""

    case: str
    output: str
    index: list[int] | None = None
    expected: float | None = None
    got: float | None = None
    error: float | None = None
    bound: float | None = None
    detail: str | None = None


class Correctness(_Record):
    """`cases`: case name -> passed; `worst`: largest error / bound over all elements (passes at <= 1)."""

    passed: bool
    cases: dict[str, bool] = Field(default_factory=dict)
    worst: float | None = None
    where: Where | None = None
    published_check: bool | None = None


class Performance(_Record):
    median_us: float
    p10_us: float
    p90_us: float
    ci_us: tuple[float, float]
    n: int
    kernel_us: float | None = None
    host_us: float | None = None
    host_bound: bool | None = None
    method: Literal["events", "monotonic"]
    clocks: dict[str, Any] | None = None
    sentinel: dict[str, Any] | None = None
    slope_us: float | None = None
    remeasured: str | None = None  # why a first measurement was not taken; this one is a fresh worker's


class RooflineScore(_Record):
    """`S` = roofline_us / median_us; `attainable_S` uses max(roofline_us, floor_us). None when there is no S_j."""

    roofline_us: float
    bound: str
    floor_us: float | None = None
    S: float | None = None
    attainable_S: float | None = None
    calibrated_us: float | None = None
    calibrated_S: float | None = None
    published_us: float | None = None  # equation 1 with the published W and Q; may be no lower bound, so S may pass 1
    published_S: float | None = None
    uncertainty: float | None = None


Owner = Literal["target", "dsl", "vendor", "torch", "copy", "unknown"]


class KernelShare(_Record):
    name: str
    us: float
    owner: Owner


class Adoption(_Record):
    """Share of the device time of sampled timed calls spent in kernels of the target DSL (0..1)."""

    share: float
    kernels: list[KernelShare] = Field(default_factory=list)


NO_DSL = "none"
"""The `dsl` of a baseline: it is asked for no language, so adoption, artifacts and shortcuts are nothing to it."""


class Origin(_Record):
    """Where a baseline comes from: `library` and its `version`, the functions that it `calls`, a `note` on what else.

    `production` says that engines serve models with just that: not so where layouts had to be converted for it.
    `kernels` are those that it launched on a GPU; on the CPU, looking for them would keep compiled code from running.
    """

    name: str
    library: str
    version: str | None = None
    calls: str
    note: str | None = None
    production: bool = False
    kernels: list[KernelShare] = Field(default_factory=list)


class UnitRecord(_Record):
    """One judged unit. `seconds` is what it took in all, `phases` where that went, `node` which one of a cluster.

    `held_out` units count in no figure but `generalizes`, those with a `baseline` in none at all: that is the origin of
    a kernel that was judged to be compared with. `baselines` are such kernels' times by name on the same chip, and the
    published production time as "production", with `production` saying whose time that is.
    """

    candidate: str
    candidate_sha256: str
    operator: str
    shape: str
    origin: str = "published"
    held_out: bool = False
    device: str
    node: str | None = None
    chip: str
    dsl: str
    verdict: Verdict
    confinement: dict[str, Any] | None = None
    compile: Compile | None = None
    correctness: Correctness | None = None
    performance: Performance | None = None
    readiness: dict[str, Any] | None = None
    confirm: dict[str, Any] | None = None
    baseline: Origin | None = None
    baselines: dict[str, float] | None = None
    production: str | None = None
    roofline: RooflineScore | None = None
    adoption: Adoption | None = None
    seconds: float = 0.0
    phases: dict[str, float] | None = None
    log: str | None = None

    @property
    def compiled(self) -> bool:
        """Whether the compile gate was passed."""
        return self.compile is not None and self.verdict.stage != Stage.COMPILE

    @property
    def correct(self) -> bool:
        """Whether every seed and corner case passed; a correct unit may still be over budget or in error."""
        return self.correctness is not None and self.correctness.passed and self.verdict.stage != Stage.COMPILE and (
            self.verdict.category not in CATEGORIES[Stage.RUNTIME]
        )
