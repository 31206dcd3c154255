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


def _untouched_states(kwargs: Mapping[str, Any]) -> Delta:
    """The published Q reads and writes the whole pool of states; ours the rows that the sequences name."""
    row = 4 * kwargs["num_v_heads"] * kwargs["key_dim"] * kwargs["value_dim"]
    untouched = row * (kwargs["batch_size"] - kwargs["state_count"])
    return 0, untouched, untouched


def _convolution_state(kwargs: Mapping[str, Any]) -> Delta:
    """Production writes the new state; the published output and its Q leave it out."""
    return 0, 0, 2 * kwargs["dim"] * (kwargs["width"] - 1)


def _whole_caches(kwargs: Mapping[str, Any]) -> Delta:
    """The published Q reads and writes both caches whole; ours the rows written, of which one in 16 is padding."""
    tokens, heads, size = kwargs["shape"]
    row, cached = 2 * 2 * heads * size, -(-tokens // kwargs["block_size"]) * kwargs["block_size"]
    written = tokens - tokens // 16
    return 0, row * (written - tokens - cached), row * (written - cached)


def _unused_axes(kwargs: Mapping[str, Any]) -> Delta:
    """The published Q reads the cosine and sine of all three axes, of which each frequency uses one."""
    return 0, -2 * 2 * 4 * kwargs["token_count"] * (kwargs["rotary_dim"] // 2), 0


def _scaled_operands(kwargs: Mapping[str, Any]) -> Delta:
    """The published W scales queries and keys apart for every head; the scale is free inside the exponential."""
    width = kwargs["kv_lora_rank"] + kwargs["qk_rope_head_dim"]
    return -kwargs["batch_size"] * kwargs["nhead"] * (1 + kwargs["ctx_len"]) * width, 0, 0


def _bf16_output(kwargs: Mapping[str, Any]) -> Delta:
    """The published output is fp8 and overflows to NaN; ours is bf16, as the production kernel's is."""
    return 0, 0, kwargs["token_count"] * kwargs["hidden_size"]


DEVIATIONS: dict[str, Callable[[Mapping[str, Any]], Delta]] = {
    "causal_conv1d": _convolution_state,
    "fp8_blockscale_fused_moe": _bf16_output,
    "gated_delta_rule_update": _untouched_states,
    "mla_decode_attention": _scaled_operands,
    "mrope": _unused_axes,
    "paged_attention_decode": _unread_pages,
    "reshape_and_cache": _whole_caches,
}
