"""`metadata.json` as a model: dtypes, mutability, comparison and provenance. Evaluator-only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atrex.problems.dtypes import NAMES


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Operand(_Strict):
    """One tensor. `dtype` is a short name, or alternatives "bf16/fp16" from which `input_kwargs["dtype"]` chooses.

    An `optional` input is there in some shapes only; `forward` takes it last, with a default of None. The elements of a
    `structured` input hang together, as those of a running sum do: no two of them may trade places.
    """

    dtype: str
    optional: bool = False
    structured: bool = False

    @field_validator("dtype")
    @classmethod
    def _known(cls, value: str) -> str:
        for name in value.split("/"):
            if name not in NAMES:
                raise ValueError(f"unknown dtype {name!r}")
        return value


class FloatCompare(_Strict):
    """Scale-aware comparison with a float64 oracle; docs/decisions/0001-comparison.md argues the constants.

    Per element: |o - r| <= element_rms * RMS_row(r) + element_rtol * |r|.
    Per row: RMS(o - r) <= rms_factor * RMS(b - r) + ulps * eps * RMS_row(r) + rms_floor * RMS_row(r).
    """

    kind: Literal["float"]
    element_rms: float = Field(2e-2, ge=0)
    element_rtol: float = Field(5e-2, ge=0)
    rms_factor: float = Field(3.0, ge=1)
    ulps: float = Field(1.0, ge=0)
    rms_floor: float = Field(0.0, ge=0)


class ExactCompare(_Strict):
    """Every element equal: integers, booleans, and values that are moved as they are."""

    kind: Literal["exact"]


class TopkIdsCompare(_Strict):
    """Indices of the k largest `Model.scores(**inputs)` of a row, descending; scores within `tie_rtol` are tied."""

    kind: Literal["topk_ids"]
    weights: str
    tie_rtol: float = Field(1e-5, ge=0)


class TopkWeightsCompare(_Strict):
    """The reference score at the ids that the candidate chose."""

    kind: Literal["topk_weights"]
    ids: str
    rtol: float = Field(1e-3, ge=0)
    atol: float = Field(1e-7, ge=0)


class Fp8Compare(_Strict):
    """Quantized codes, each at most one off the nearest fp8 to (what was quantized) / (the candidate's `scale`).

    `off_share` of the elements may be one off; values in the middle between two codes take either and do not count.
    What was quantized is the input `of`, or, without it, the oracle's own output times its scale. `wider` names dtypes
    that a kernel may return instead; what it returns is rounded to fp8 first.
    """

    kind: Literal["fp8"]
    scale: str
    of: str | None = None
    off_share: float = Field(5e-3, ge=0)
    wider: tuple[str, ...] = ()


class ScaleCompare(_Strict):
    """Quantization scales: |o - r| <= rtol * |r|, finite and positive."""

    kind: Literal["scale"]
    rtol: float = Field(1e-6, ge=0)


class SortedSlotsCompare(_Strict):
    """Slots of the input `keys` (an expert each) grouped by ascending expert, padding at the end of a group.

    Order inside a group is free. Entries past the output `count`, where one is named, are not looked at.
    """

    kind: Literal["sorted_slots"]
    keys: str
    count: str | None = None


class PrefixCompare(_Strict):
    """The first n integers equal, the others not looked at: n is the output `count` over init_kwargs[`per`]."""

    kind: Literal["prefix"]
    count: str
    per: str | None = None


class PublishedCompare(_Strict):
    """The published rule, |o - b| <= atol + rtol * |b| against the reference itself: for folders made by others."""

    kind: Literal["published"]
    atol: float = Field(1e-2, ge=0)
    rtol: float = Field(5e-2, ge=0)


Compare = Annotated[
    FloatCompare
    | ExactCompare
    | TopkIdsCompare
    | TopkWeightsCompare
    | Fp8Compare
    | ScaleCompare
    | SortedSlotsCompare
    | PrefixCompare
    | PublishedCompare,
    Field(discriminator="kind"),
]


class Provenance(_Strict):
    """Where the operator was traced: framework, symbol and module of the production kernel, number of profiles."""

    framework: str | None = None
    symbol: str | None = None
    module: str | None = None
    profiles: int | None = None


class Production(_Strict):
    us: float = Field(gt=0)
    backend: str | None = None


class MinedDim(_Strict):
    """A dimension or setting of a mined shape: `source` says how it is known, `bucket` its bucket's upper edge."""

    value: Any
    source: Literal["traced", "configured", "typical"]
    bucket: int | None = None


class Mining(_Strict):
    """What serving traces say of a mined shape and of its bucket, whose heaviest member the shape is.

    `frameworks`, `symbols`: of the kernels that ran. `profiles`: traces with a call in the bucket. `calls`: in the
    bucket, `applications` and `phases` by name. `families`: other families whose kernels these calls were.
    `dtypes`: of the floating operands that were seen, whatever the problem's own. `share`: of the operator's device
    time, by the applications' card-hours. `members`: distinct shapes in the bucket.
    """

    frameworks: list[str] = Field(default_factory=list)
    symbols: list[str] = Field(default_factory=list)
    profiles: int
    calls: int
    applications: dict[str, int] = Field(default_factory=dict)
    phases: dict[str, int] = Field(default_factory=dict)
    families: list[str] = Field(default_factory=list)
    dtypes: list[str] = Field(default_factory=list)
    share: float
    members: int = 1
    dims: dict[str, MinedDim] = Field(default_factory=dict)


class ShapeMeta(_Strict):
    """Provenance of one shape; `production` is the deployed kernel's time by chip id.

    `traced_total_us` is what the `call_count` calls took together that a serving trace lists under this shape, by chip
    id. `under_roofline` says why one of these times is less than the chip's roofline.
    `trivial` says why drawn inputs of this shape cannot tell every wrong output from the right one. What passes there
    must then fail in a corner case, which every unit runs beside its seeds.
    """

    origin: Literal["published", "inferred", "atrex", "mined"]
    mined: Mining | None = None
    published_id: str | None = None
    description: str | None = None
    call_count: int | None = None
    production: dict[str, Production] = Field(default_factory=dict)
    traced_total_us: dict[str, float] = Field(default_factory=dict)
    under_roofline: str | None = None
    trivial: str | None = None

    @property
    def traced_us(self) -> dict[str, float]:
        """The mean traced call in microseconds, by chip id."""
        return {chip: total / (self.call_count or 1) for chip, total in self.traced_total_us.items()}

    @model_validator(mode="after")
    def _calls_are_counted(self) -> ShapeMeta:
        if self.traced_total_us and not self.call_count:
            raise ValueError("traced_total_us: expected call_count beside it, the calls that took it")
        return self


class Metadata(_Strict):
    """The whole file. A single output is named "out"; the reference returns the tensor itself then, else a dict."""

    operator: str
    phase: str = "unknown"
    dtype: str | None = None
    inputs: dict[str, Operand] = Field(default_factory=dict)
    outputs: dict[str, Operand] = Field(default_factory=dict)
    mutates: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    compare: dict[str, Compare] = Field(default_factory=dict)
    oracle: Literal["float64", "declared"] = "float64"
    """With "declared" the reference is not run in float64: the comparison redoes in float64, chunk by chunk, what
    matters. For operators whose largest shapes do not fit a device in float64."""
    provenance: Provenance = Provenance()
    shapes: dict[str, ShapeMeta] = Field(default_factory=dict)

    @property
    def structured(self) -> frozenset[str]:
        """Inputs whose elements hang together."""
        return frozenset(name for name, operand in self.inputs.items() if operand.structured)

    @model_validator(mode="after")
    def _names_agree(self) -> Metadata:
        for field in ("mutates", "constant"):
            for name in getattr(self, field):
                if self.inputs and name not in self.inputs:
                    raise ValueError(f"{field}: {name!r} is not an input")
        for name, rule in self.compare.items():
            count, keys = getattr(rule, "count", None), getattr(rule, "keys", None)
            if isinstance(count, str) and count not in self.outputs:
                raise ValueError(f"compare.{name}: {count!r} is not an output")
            if isinstance(keys, str) and keys not in self.inputs:
                raise ValueError(f"compare.{name}: {keys!r} is not an input")
        if self.outputs and set(self.compare) != set(self.outputs):
            raise ValueError("compare: expected one entry for each output")
        for name, rule in self.compare.items():
            other = next((getattr(rule, key) for key in ("weights", "ids", "scale") if hasattr(rule, key)), None)
            if other is not None and other not in self.compare:
                raise ValueError(f"compare.{name}: {other!r} is not an output")
            source = getattr(rule, "of", None)
            if source is not None and source not in self.inputs:
                raise ValueError(f"compare.{name}: {source!r} is not an input")
        return self
