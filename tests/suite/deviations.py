"""Where our W or Q differs from the published figure: what ours has more, as (FLOPs, bytes read, bytes written).

Each entry takes the published input_kwargs of a unit. An operator that is not listed equals the published figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Delta = tuple[int, int, int]


def _unread_pages(kwargs: Mapping[str, Any]) -> Delta:
    """The published cache has 16 pages that no sequence owns, and its Q counts them."""
    page = kwargs["block_size"] * kwargs["num_kv_heads"] * kwargs["head_size"]
    return 0, -16 * 2 * 2 * page, 0


def _convolution_state(kwargs: Mapping[str, Any]) -> Delta:
    """Production writes the new state; the published output and its Q leave it out."""
    return 0, 0, 2 * kwargs["dim"] * (kwargs["width"] - 1)


DEVIATIONS: dict[str, Callable[[Mapping[str, Any]], Delta]] = {
    "causal_conv1d": _convolution_state,
    "paged_attention_decode": _unread_pages,
}
