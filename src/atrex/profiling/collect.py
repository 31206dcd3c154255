"""From a candidate or any bracketed command to evidence about one of its kernels."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.hardware.detect import DeviceInfo
from atrex.profiling import ncu
from atrex.profiling.evidence import Ceiling, Evidence, ProfiledKernel
from atrex.roofline.bound import roofline
from atrex.roofline.work import Work


def ceiling_of(work: Work, chip: str) -> Ceiling:
    """The roofline of semantic work on a listed chip."""
    bound = roofline(work, load_chip(chip))
    return Ceiling(
        roofline_us=bound.us, bound=bound.bound, bytes_read=work.bytes_read, bytes_written=work.bytes_written,
        flops=work.total_flops, card=f"chip-{chip.lower()}",
    )  # fmt: skip


def choose(launches: Sequence[ncu.Launch], pattern: str | None, launch: int | None) -> int:
    """Which launch is meant: the `launch`-th (from 0) whose name matches `pattern`, else the longest of those.

    Raises UserError that names the kernels when none matches, or there are not so many.
    """
    try:
        matching = [i for i, one in enumerate(launches) if pattern is None or re.search(pattern, one.name)]
    except re.error as error:
        raise UserError(f"--kernel {pattern!r}: no regular expression ({error})") from None
    if not matching:
        names = sorted({one.name[:80] for one in launches})
        raise UserError(f"--kernel {pattern!r}: no such kernel among {', '.join(names)}")
    if launch is not None:
        if launch >= len(matching):
            raise UserError(f"--launch {launch}: forward launches {len(matching)} kernels of that name, counted from 0")
        return matching[launch]
    return max(matching, key=lambda i: (launches[i].us or 0.0, -i))


def host_us(command: Sequence[str], timeout: float = 300.0) -> float | None:
    """Microseconds that the forward of `forward_command` keeps the host busy, without a profiler; None if unknown."""
    try:
        done = subprocess.run([*command, "--time"], capture_output=True, text=True, timeout=timeout)
        return float(json.loads(done.stdout.splitlines()[-1])["host_us"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return None


def evidence_of(
    launches: Sequence[ncu.Launch],
    chosen: int,
    missing: Sequence[str],
    *,
    tool_version: str,
    command: Sequence[str],
    device: DeviceInfo,
    candidate: str,
    source: bytes,
    operator: str,
    shape: str,
    dsl: str | None,
    work: Work | None,
    host: float | None = None,
    note: str = "",
) -> Evidence:
    """Evidence about the chosen launch; `host` is what `host_us` gave.

    W and Q are the whole forward's: they are compared only if the launch is all there is. A forward of several kernels
    shares its work among them, and no counter says how; the ceiling is left out then.
    """
    kernels = [
        ProfiledKernel(name=one.name, index=i, us=one.us, grid=one.grid, block=one.block)
        for i, one in enumerate(launches)
    ]
    total = sum(one.us or 0.0 for one in launches)
    alone = total > 0 and (launches[chosen].us or 0.0) >= 0.95 * total
    if not alone:
        share = (launches[chosen].us or 0.0) / total if total else 0.0
        note = f"{note} one of {len(kernels)} kernels, {share:.0%} of the device time: no ceiling of its own".strip()
    return Evidence(
        tool="ncu", tool_version=tool_version, command=shlex.join(command),
        date=datetime.now(UTC).isoformat(timespec="seconds"), device=device.name, chip=device.chip, arch=device.arch,
        dsl=dsl, candidate=candidate, candidate_sha256=hashlib.sha256(source).hexdigest(), operator=operator,
        shape=shape, kernel=kernels[chosen], kernels=kernels, counters=launches[chosen].counters,
        missing=sorted(missing), ceiling=ceiling_of(work, device.chip) if work and device.chip and alone else None,
        host_us=host,
        note=note,
    )  # fmt: skip


def forward_command(
    candidate: Path, operator: str, shape: str, device: str, warmup: int, suite: Path | None
) -> list[str]:
    """The command that runs one bracketed forward of a candidate."""
    command = [sys.executable, "-m", "atrex.profiling.forward", str(candidate), operator, shape]
    command += ["--device", device, "--warmup", str(warmup)]
    return command + (["--suite", str(suite)] if suite else [])
