"""From the kernel rows of adoption calls to a share and a shortcut."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean, median
from typing import Any, get_args

from atrex.dsls.host_time import ELSEWHERE
from atrex.scoring.operators import DOMINANT_SHARE
from atrex.scoring.records import Adoption, KernelShare, Owner

_OWNERS = get_args(Owner)


def adoption(calls: list[list[dict[str, Any]]], host: bool = False) -> Adoption | None:
    """Mean time per call by kernel and owner, and the target DSL's share; None when no call was recorded.

    A call that launched nothing at all counts as a call with adoption 0. Host time that no library claims counts with
    its median over the calls: the interpreter takes hundreds of microseconds more in the first of them. `host`: the
    times are of the host's clock, which runs on while another process has the core; what ran in every call then counts
    with its median too, so that one time slice lost by one call does not decide what did the work.
    """
    if not calls:
        return None
    seen: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(calls))
    for i, rows in enumerate(calls):
        for row in rows:
            owner = row["owner"] if row["owner"] in _OWNERS else "unknown"
            seen[str(row["name"])[:200], owner][i] += float(row["us"])
    mean_us = {key: median(us) if key[0] == ELSEWHERE or (host and all(us)) else mean(us) for key, us in seen.items()}
    kernels = [
        KernelShare(name=name, us=us, owner=owner)
        for (name, owner), us in sorted(mean_us.items(), key=lambda item: -item[1])
        if us > 0
    ]
    whole = sum(k.us for k in kernels)
    target = sum(k.us for k in kernels if k.owner == "target")
    return Adoption(share=target / whole if whole > 0 else 0.0, kernels=kernels[:20])


def shortcut(found: Adoption | None) -> str | None:
    """What took the rest of a unit that is not dominant: "torch", "vendor" or "substitution" (another DSL)."""
    if found is None or found.share > DOMINANT_SHARE:
        return None
    rest = {"torch": 0.0, "vendor": 0.0, "substitution": 0.0}
    group = {"torch": "torch", "copy": "torch", "vendor": "vendor", "dsl": "substitution", "unknown": "substitution"}
    named = [k for k in found.kernels if k.owner != "target" and k.name != ELSEWHERE]
    # Host time that no library claims is also the interpreter's own: it names the rest only where nothing else does.
    for kernel in named or [k for k in found.kernels if k.owner != "target"]:
        rest[group[kernel.owner]] += kernel.us
    return max(rest, key=rest.get)
