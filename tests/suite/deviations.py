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


DEVIATIONS: dict[str, Callable[[Mapping[str, Any]], Delta]] = {
    "paged_attention_decode": _unread_pages,
}
