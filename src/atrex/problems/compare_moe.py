"""Index outputs of MoE routing: slots grouped by expert in any order inside a group, and buffers filled in part."""

from __future__ import annotations

import torch

from atrex.problems.compare_float import published_ratio
from atrex.problems.metadata import PrefixCompare, PublishedCompare, SortedSlotsCompare
from atrex.problems.worst import Worst


def sorted_slots_ratio(expected: torch.Tensor, keys: torch.Tensor, got: torch.Tensor, live: int | None) -> Worst:
    """Zero or infinite error of each of the first `live` entries of `got`, compared as sets within an expert's run.

    expected, got [capacity] integers: slots, ordered by their expert keys.flatten()[slot], then, up to the end of the
    expert's run, entries that are no slot (padding). A run's entries must be those expected, in any order. An entry
    that is not shows at the place that it has among its run's entries in ascending order.
    """
    want, have = (t.reshape(-1)[:live].to(torch.int64) for t in (expected, got))
    experts = keys.reshape(-1).to(torch.int64)
    slots = experts.numel()
    # Runs stand in ascending order of their experts, so padding belongs to the largest expert seen before it.
    owner = torch.where(want < slots, experts[want.clamp(max=slots - 1)], -1).cummax(0).values
    span = slots + 3  # slots, the padding value slots, and one value for all that is below or above them
    ranked = [(owner * span + t.clamp(-1, slots + 1) + 1).sort().values for t in (want, have)]
    wrong = torch.where(ranked[0] == ranked[1], 0.0, torch.inf).to(torch.float64)
    worst = Worst()
    worst.add("slots of an expert's run", wrong, wrong, torch.zeros_like(wrong))
    return worst


def prefix_ratio(expected: torch.Tensor, got: torch.Tensor, live: int) -> Worst:
    """Zero or infinite error of each of the first `live` integers of `got`; the rest is not looked at."""
    rule = PublishedCompare(kind="published", atol=0, rtol=0)
    return published_ratio(expected.reshape(-1)[:live], got.reshape(-1)[:live], rule)


def live_entries(rule: object, init_kwargs: dict, outputs: dict[str, torch.Tensor]) -> int | None:
    """How many leading entries of an output under `rule` mean anything, by the expected `outputs`; None: all do.

    Synchronizes with the device.
    """
    if not isinstance(rule, (SortedSlotsCompare, PrefixCompare)) or rule.count is None:
        return None
    count = int(outputs[rule.count].reshape(()))
    return count // init_kwargs[rule.per] if isinstance(rule, PrefixCompare) and rule.per else count
