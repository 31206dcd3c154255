"""Dimensions of a shape, each with where it comes from, and the call that the operators' files read them from."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atrex.traces.fleet.spec import Application, Typical
from atrex.traces.mining.calls import CallGroup, HostOp
from atrex.traces.mining.config import ModelConfig
from atrex.traces.phases import DECODE, PREFILL

Source = Literal["traced", "configured", "typical"]
TRACED, CONFIGURED, TYPICAL = "traced", "configured", "typical"
_CAPTURED_SIZE = re.compile(r"^capture_(\d+)")


class Unknown(Exception):
    """A call whose shape cannot be told; the text says which dimension is missing and what would give it."""


@dataclass(frozen=True)
class Dim:
    """One dimension or setting. `bucket`: kind of a dynamic one (a key of buckets.yaml), None for a fixed one."""

    value: Any
    source: Source
    bucket: str | None = None


Dims = dict[str, Dim]


class Call:
    """A group of like calls, its step, and what is configured for its application.

    `dims` of operands are read through `operand` and `matrix`, the first operator that has them counting; operators are
    tried from the outside in.
    """

    def __init__(
        self, group: CallGroup, config: ModelConfig | None, app: Application, learned: Mapping[str, Any] | None = None,
        peers: Mapping[str, int] | None = None, ran: Collection[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        """`learned`: fixed dimensions that operands of other calls in the trace told. `peers`: how many calls without
        operands each operator has in the trace. `ran`: (operator, phase) of all its calls."""
        self.group, self.config, self.app = group, config, app
        self.learned, self.peers, self.ran = learned or {}, peers or {}, ran
        self.typical = app.typical.get(group.phase if group.phase in (PREFILL, DECODE) else PREFILL, Typical())

    def ops(self, pattern: str) -> list[HostOp]:
        """The operators whose whole name matches, outermost first."""
        known = re.compile(pattern)
        return [op for op in self.group.ops if not op.module and known.fullmatch(op.name)]

    def operand(self, pattern: str, index: int) -> list[int] | None:
        """Dimensions of argument `index` of the first matching operator that has them."""
        for op in self.ops(pattern):
            found = op.dims[index] if index < len(op.dims) else None
            if _is_shape(found):
                return found
        return None

    def matrix(self, pattern: str, rank: int = 2) -> list[int] | None:
        """Dimensions of the first operand with at least `rank` of them, over the matching operators."""
        for op in self.ops(pattern):
            for found in op.dims:
                if _is_shape(found) and len(found) >= rank:
                    return found
        return None

    def vector(self, pattern: str) -> int | None:
        """Length of the first operand with one dimension, over the matching operators."""
        for op in self.ops(pattern):
            for found in op.dims:
                if _is_shape(found) and len(found) == 1:
                    return found[0]
        return None

    def dtype(self, pattern: str, index: int = 0) -> str | None:
        """ "bf16", "fp16" or "fp32" of an operand, None where the trace does not say."""
        for op in self.ops(pattern):
            known = op.dtypes[index] if index < len(op.dtypes) else None
            if known in _DTYPES:
                return _DTYPES[known]
        return None

    def dtypes(self) -> tuple[str, ...]:
        """Short names of the floating dtypes of the outermost operator's operands."""
        for op in self.group.ops:
            if not op.module and op.dims:
                return tuple(dict.fromkeys(_DTYPES[t] for t in op.dtypes if t in _DTYPES))
        return ()

    def number(self, pattern: str, index: int) -> float | None:
        """A scalar argument of the first matching operator that has it."""
        for op in self.ops(pattern):
            try:
                return float(op.concrete[index])
            except (IndexError, TypeError, ValueError):
                continue
        return None

    def flag(self, pattern: str, index: int) -> bool | None:
        """A boolean argument of the first matching operator that has it."""
        for op in self.ops(pattern):
            if index < len(op.concrete) and str(op.concrete[index]) in ("True", "False", "true", "false", "1", "0"):
                return str(op.concrete[index]) in ("True", "true", "1")
        return None

    @property
    def quantization(self) -> str | None:
        """Of the application: as fleet.yaml says, else as its model_config does."""
        return self.app.quantization or (self.config.get("quantization") if self.config is not None else None)

    # Dimensions

    def fixed(self, name: str, traced: int | None, configured: str | None = None) -> Dim:
        """A dimension of the architecture: traced, else configured under `configured` (default: its name)."""
        if traced is not None:
            return Dim(int(traced), TRACED)
        found = self.config.get(configured or name) if self.config is not None else None
        if found is None and (configured or name) in self.learned:
            return Dim(self.learned[configured or name], TRACED)
        if found is None:
            raise Unknown(f"{name}: no operand gives it, and {self._missing(configured or name)}")
        return Dim(found, CONFIGURED)

    def _missing(self, name: str) -> str:
        if self.config is None:
            return "the application has no model_config"
        return f"its model_config has no {name}"

    def setting(self, name: str, traced: Any, default: Any) -> Dim:
        """A setting that is no dimension (eps, a flag): traced, else configured, else what engines use by default."""
        if traced is not None:
            return Dim(traced, TRACED)
        found = self.config.get(name) if self.config is not None else None
        return Dim(default, TYPICAL) if found is None else Dim(found, CONFIGURED)

    def block_size(self, traced: int | None) -> Dim:
        """Tokens of a page of the cache: traced, else of fleet.yaml, else 16."""
        if traced is not None:
            return Dim(traced, TRACED)
        return Dim(self.app.block_size, CONFIGURED) if self.app.block_size else Dim(16, TYPICAL)

    @property
    def step_tokens(self) -> int | None:
        """Query tokens of the call's step, where it says them."""
        step = self.group.step
        if step.get("tokens"):
            return step["tokens"]
        known = [step[n] for n in ("context_tokens", "generation_tokens") if n in step]
        return sum(known) or None

    def tokens(self, traced: int | None, each: int = 1) -> Dim:
        """Rows of an operand, `each` of them a token.

        Those of a captured graph are of the padded batch: where the engine's range says its size, the step's own
        tokens take its place. Without operands: the step's tokens, else typical ones.
        """
        if traced is not None:
            return Dim(self._unpadded(int(traced)), TRACED, "tokens")
        known, source = self.step_tokens, TRACED
        if known is None:
            known, source = self._typical_tokens(), TYPICAL
        if known is None:
            raise Unknown(self._nowhere("tokens"))
        return Dim(known * each, source, "tokens")

    def _nowhere(self, name: str) -> str:
        phase = self.group.phase if self.group.phase in (PREFILL, DECODE) else PREFILL
        return f"{name}: no operand and no step annotation says it, and fleet.yaml has no typical.{phase}.{name}"

    def _unpadded(self, rows: int) -> int:
        actual = self.step_tokens
        sizes = [int(m[1]) for a in self.group.annotations if (m := _CAPTURED_SIZE.match(a))]
        if not self.group.captured or not sizes or actual is None or actual >= sizes[-1] or rows % sizes[-1]:
            return rows
        return rows // sizes[-1] * actual

    def _typical_tokens(self) -> int | None:
        if self.typical.tokens is not None:
            return self.typical.tokens
        return self.typical.requests if self.group.phase == DECODE else None

    def requests(self, traced: int | None, phase: str = DECODE) -> Dim:
        """Sequences of a step of `phase`: traced, else of the step, else typical."""
        name = "context_requests" if phase == PREFILL else "generation_requests"
        known = traced or self.group.step.get(name)
        if known:
            return Dim(int(known), TRACED, "requests")
        if self.typical.requests is None:
            raise Unknown(self._nowhere("requests"))
        return Dim(self.typical.requests, TYPICAL, "requests")

    def context(self, traced: int | None, requests: int, least: int = 1) -> Dim:
        """Tokens that the cache of a decoding sequence holds, its own among them: traced, else the step's mean, else
        typical."""
        summed = self.group.step.get("generation_kv")
        if traced is None and summed and self.group.step.get("generation_requests"):
            traced = round(summed / self.group.step["generation_requests"])
        if traced is not None:
            return Dim(max(least, int(traced)), TRACED, "context")
        if self.typical.context is None:
            raise Unknown(self._nowhere("context"))
        return Dim(max(least, self.typical.context), TYPICAL, "context")


_DTYPES = {"c10::Float8_e4m3fn": "fp8_e4m3", "c10::Float8_e4m3fnuz": "fp8_e4m3", "c10::BFloat16": "bf16",
            "c10::Half": "fp16", "float": "fp32", "torch.bfloat16": "bf16",
           "torch.float16": "fp16", "torch.float32": "fp32"}  # fmt: skip


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(n, int) for n in value)


def rows(shape: Sequence[int] | None) -> int | None:
    """Product of all dimensions but the last; None for None."""
    return None if shape is None else math.prod(shape[:-1])


def last(shape: Sequence[int] | None) -> int | None:
    return None if shape is None else shape[-1]


def values(dims: Mapping[str, Dim]) -> dict[str, Any]:
    return {name: dim.value for name, dim in dims.items()}
