"""What a campaign is made of: its settings, and the artifact that each stage leaves for the next."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Category = Literal[
    "tiling", "vectorization", "layout", "prefetch", "synchronization", "split_fusion", "instruction", "precision",
    "launch",
]  # fmt: skip
CATEGORIES: tuple[str, ...] = get_args(Category)
BASELINE = 0  # the number of the first record


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Settings(_Form):
    """What a campaign optimizes, and within which bounds. `iterations`, `usd` and `until_s` are external stops.

    `dsl` is one, or several between which a kernel may choose by its imports ("triton,cuda").
    `width` is how many attempts an iteration makes at most, all of them from the same incumbent.
    `error` is the chance of any promotion without a gain over the whole campaign. `informed` says that the agent was
    shown more than it may see in a comparable campaign. `elsewhere`: the device is on another machine, and measurements
    travel in bundles. A contest that would take more than `contest_rounds` or `contest_s` seconds ends undecided.
    """

    format: int = 1
    operator: str
    shapes: list[str] = Field(min_length=1)
    dsl: str
    device: str
    chip: str
    suite: str | None
    suite_hash: str
    agent: str | None
    model: str | None = None
    error: float = Field(0.05, gt=0, lt=1)
    policy: str = "none"
    seed: int = 0
    restarts: int = Field(2, ge=0)
    width: int = Field(1, ge=1, le=16)
    iterations: int | None = Field(None, ge=1)
    usd: float | None = Field(None, gt=0)
    until_s: float | None = Field(None, gt=0)
    contest_rounds: int = Field(56, ge=3)
    contest_s: float = Field(1200.0, gt=0)
    deduplicate: bool = True
    informed: bool = False
    elsewhere: bool = False
    created: str

    @property
    def dsls(self) -> list[str]:
        """The DSLs that a kernel may be written in, the usual one first."""
        return self.dsl.split(",")

    def dsl_of(self, kernel: Path) -> str:
        """The DSL as which this kernel is judged: of several the one that its imports name."""
        from atrex.dsls import infer

        named = infer(kernel.read_text(encoding="utf-8")) if len(self.dsls) > 1 else None
        return named if named in self.dsls else self.dsls[0]

    @property
    def suite_path(self) -> Path | None:
        """The suite's folder, None for the shipped one."""
        return Path(self.suite) if self.suite else None


class ShapeRoofline(_Form):
    """Of one shape: work W (FLOPs), traffic Q (bytes), intensity W/Q, the bound and its time in microseconds."""

    flops: float
    bytes_moved: float
    intensity: float | None
    bound: str
    roofline_us: float


class Roofline(_Form):
    """What the hardware allows, told before any code is written; each ceiling with the card that it comes from."""

    chip: str
    ceilings: dict[str, float]
    cards: dict[str, str]
    estimated: bool = False
    shapes: dict[str, ShapeRoofline]

    @model_validator(mode="after")
    def _sourced(self) -> Roofline:
        missing = sorted(set(self.ceilings) - set(self.cards))
        if missing:
            raise ValueError(f"{missing[0]} has no card; a hardware figure needs one")
        return self


class ShapeEvidence(_Form):
    """What was seen of the incumbent on one shape. `share` is of the roofline; the names of figures give units."""

    median_us: float
    roofline_us: float
    share: float
    bound: str
    figures: dict[str, float] = Field(default_factory=dict)


class Evidence(_Form):
    """One named bottleneck and what it stands on. `tool` says how it was seen; `lost_us` is time over the roofline."""

    tool: str
    incumbent: int
    shapes: dict[str, ShapeEvidence]
    worst_shape: str
    bottleneck: str
    lost_us: float
    notes: list[str] = Field(default_factory=list)


class Knowledge(_Form):
    """Cards that were opened for the evidence, by id; `query` is what was searched for."""

    query: str
    cards: list[str]


class Plan(_Form):
    """One scoped change. `gain` is the predicted time ratio, old over new (1.1 is 10 % faster); cards by id.

    `figures` are hardware figures that the plan relies on, each with the id of its card.
    """

    bottleneck: str = Field(min_length=3)
    category: Category
    change: str = Field(min_length=10)
    cards: list[str]
    gain: float = Field(gt=0)
    risks: str = ""
    figures: dict[str, str] = Field(default_factory=dict)


class Closed(_Form):
    """No more attempts of an iteration are to come than the plans that are there, though its width would allow them."""

    attempts: int = Field(ge=1)
    reason: str


class Width(_Form):
    """From iteration `since` on, up to `width` attempts are made."""

    since: int
    width: int = Field(ge=1, le=16)
    created: str


class Validation(_Form):
    """What the judge and the contest said of one candidate. Times in microseconds, `ratio` incumbent over candidate.

    `outcome`: baseline, promoted, no_gain, slower_shape, failed (a gate), fallback (not dominant), duplicate (the
    source of another one, or compiled to what was measured already), not_selected (another attempt of the iteration
    looked better in the heats; `ratio`, `low` and `high` are of its heat, and no decision), undecided (noise or a limit
    ended it: nothing follows about the candidate).
    `low` to `high` holds the ratios that the test does not reject, with `confidence` in all.
    `seconds` is what it took; of attempts that were measured in one bundle an equal share.
    """

    outcome: Literal[
        "baseline", "promoted", "no_gain", "slower_shape", "undecided", "failed", "fallback", "duplicate",
        "not_selected",
    ]  # fmt: skip
    candidate_sha256: str
    artifact: str | None
    reason: str | None = None
    decision: int | None = None
    error: float | None = None
    rounds: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    median_us: dict[str, float] = Field(default_factory=dict)
    S: dict[str, float] = Field(default_factory=dict)
    S_i: float | None = None
    classified: str | None = None
    seconds: float

    @property
    def accepted(self) -> bool:
        return self.outcome in ("baseline", "promoted")


class Record(_Form):
    """One entry of the memory: what was tried, why, what was expected, and what came of it.

    `incumbent` is the kernel that it set out from.
    """

    number: int
    incumbent: int | None
    plan: Plan | None
    validation: Validation
    session: int
    created: str

    @property
    def category(self) -> str:
        return self.plan.category if self.plan else "baseline"

    @property
    def accepted(self) -> bool:
        return self.validation.accepted

    @property
    def failed(self) -> bool:
        return self.validation.outcome == "failed"


class Stop(_Form):
    """After an iteration: go on, restart with part of the memory hidden, or stop. `external`: not the agent's say."""

    what: Literal["continue", "restart", "stop"]
    reason: str
    external: bool = False


class Mask(_Form):
    """A restart: from session `session` on, the records `hidden` are out of the agent's sight."""

    session: int
    after: int
    policy: str
    seed: str
    hidden: list[int]
    created: str
