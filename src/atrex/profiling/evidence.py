"""Evidence: what a profiler said about one kernel, in one form for every vendor.

Counters keep the profiler's own names and base units. Figures derived from them and from the problem's W and Q begin
with ``atrex.``. What was not measured is absent, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atrex.errors import UserError, first_fault


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProfiledKernel(_Model):
    """One launch inside the profiled forward, the `index`-th from 0; `us` is its time under the profiler."""

    name: str
    index: int
    us: float | None
    grid: str = ""
    block: str = ""


class Ceiling(_Model):
    """The unit's semantic work and its roofline on this chip; `card` is the sheet that the ceilings stand on."""

    roofline_us: float
    bound: str
    bytes_read: float
    bytes_written: float
    flops: float
    card: str


class Evidence(_Model):
    """A profile of one kernel of one forward, after warm-up and with cold caches.

    `host_us` is how long a forward keeps the host busy on an idle device, taken without the profiler.
    """

    format: int = 1
    tool: str
    tool_version: str
    command: str
    date: str
    device: str
    chip: str | None
    arch: str
    dsl: str | None = None
    candidate: str
    candidate_sha256: str
    operator: str
    shape: str
    kernel: ProfiledKernel
    kernels: list[ProfiledKernel] = Field(default_factory=list)
    counters: dict[str, float]
    missing: list[str] = Field(default_factory=list)
    ceiling: Ceiling | None = None
    host_us: float | None = None
    synthetic: bool = False
    note: str = ""

    def figures(self) -> dict[str, float]:
        """Counters and what follows from them; ``atrex.host_over_device`` is over all kernels of the forward."""
        found = {**self.counters, **derived(self.counters, self.ceiling)}
        device = sum(kernel.us or 0.0 for kernel in self.kernels)
        if self.host_us is not None and device:
            found |= {"atrex.host_us": self.host_us, "atrex.host_over_device": self.host_us / device}
        return found


def derived(counters: Mapping[str, float], ceiling: Ceiling | None) -> dict[str, float]:
    """Figures of the kernel that no single counter gives. Each is there only if all that it needs was measured.

    ``atrex.duration_us``; ``atrex.dram_bytes``; ``atrex.spill_share``, bytes of local memory over those of local and
    global; ``atrex.bank_conflict_share``, passes of shared memory that conflicts caused; ``atrex.stall_*``, share of a
    warp's time that it waited so; ``atrex.roofline_us``, ``atrex.roofline_share`` and ``atrex.bytes_over_q``, against
    the W and Q of the forward.
    """
    found: dict[str, float] = {}

    def have(*names: str) -> bool:
        return all(name in counters for name in names)

    if have("gpu__time_duration.sum"):
        found["atrex.duration_us"] = counters["gpu__time_duration.sum"] / 1e3
    if have("dram__bytes_read.sum", "dram__bytes_write.sum"):
        found["atrex.dram_bytes"] = counters["dram__bytes_read.sum"] + counters["dram__bytes_write.sum"]
    local = [f"l1tex__t_bytes_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")]
    sectors = [f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")]
    if have(*local, *sectors):
        spilled, moved = sum(counters[n] for n in local), 32 * sum(counters[n] for n in sectors)
        if spilled + moved:
            found["atrex.spill_share"] = spilled / (spilled + moved)
    conflicts = [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")]
    passes = [f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st")]
    if have(*conflicts, *passes):
        total = sum(counters[n] for n in passes)
        found["atrex.bank_conflict_share"] = min(1.0, sum(counters[n] for n in conflicts) / total) if total else 0.0
    latency = counters.get("smsp__average_warp_latency_per_inst_issued.ratio")
    prefix, suffix = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
    if latency:
        found |= {
            f"atrex.stall_{name[len(prefix) : -len(suffix)]}": value / latency
            for name, value in counters.items()
            if name.startswith(prefix) and name.endswith(suffix)
        }
    if ceiling is not None and found.get("atrex.duration_us"):
        found["atrex.roofline_us"] = ceiling.roofline_us
        found["atrex.roofline_share"] = ceiling.roofline_us / found["atrex.duration_us"]
    q = ceiling.bytes_read + ceiling.bytes_written if ceiling else 0
    if q and "atrex.dram_bytes" in found:
        found["atrex.bytes_over_q"] = found["atrex.dram_bytes"] / q
    return found


def read_evidence(path: Path) -> Evidence:
    """Evidence from a file of `atrex profile`. Raises UserError naming the file, the field and what was expected."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path}: no JSON; expected a file that `atrex profile` wrote") from None
    try:
        return Evidence.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}; expected a file that `atrex profile` wrote") from None
