"""Where our W or Q differs from the published figure: what ours has more, as (FLOPs, bytes read, bytes written).

Each entry takes the published input_kwargs of a unit. An operator that is not listed equals the published figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atrex.problems.load import SHIPPED
from atrex.problems.modules import load_module
from atrex.suite.experts import active_experts

Delta = tuple[int, int, int]


def _unread_pages(kwargs: Mapping[str, Any]) -> Delta:
    """The published cache has 16 pages that no sequence owns, and its Q counts them."""
    page = kwargs["block_size"] * kwargs["num_kv_heads"] * kwargs["head_size"]
    return 0, -16 * 2 * 2 * page, 0


def _untouched_states(kwargs: Mapping[str, Any]) -> Delta:
    """The published Q reads and writes the whole pool of states, ours the rows that the sequences name; the published W
    decays a state at every token, ours once.
    """
    state = kwargs["num_v_heads"] * kwargs["key_dim"] * kwargs["value_dim"]
    untouched = 4 * state * (kwargs["batch_size"] - kwargs["state_count"])
    return kwargs["batch_size"] * state * (1 - kwargs["token_count"]), untouched, untouched


def _upper_triangle(kwargs: Mapping[str, Any]) -> Delta:
    """The published W counts whole squares of scores, in every chunk as if it were full; ours the pairs j <= i."""
    key, value, chunk = kwargs["key_dim"], kwargs["value_dim"], kwargs["chunk_size"]
    tokens, missing = kwargs["token_count"], -kwargs["token_count"] % kwargs["chunk_size"]
    squares = (tokens + missing) * chunk
    pairs = sum(i % chunk + 1 for i in range(tokens))
    fewer = 2 * (key + value + 1) * (squares - pairs) + missing * (2 * key * value + 3 * value)
    return -kwargs["batch_size"] * kwargs["num_v_heads"] * fewer, 0, 0


def _repeated_experts(kwargs: Mapping[str, Any]) -> Delta:
    """The published W is that of one draw with repetitions, merged; our experts are distinct in a row."""
    tokens, hidden, inner, experts, top_k = (
        kwargs[name] for name in ("token_count", "hidden_size", "intermediate_size", "num_experts", "top_k")
    )
    drawn = load_module(SHIPPED / "fused_moe" / "work.py").DRAWN[tokens, hidden, inner]
    merging = tokens * active_experts(tokens, experts, top_k) * (2 * top_k - 1)
    return (tokens * top_k - drawn) * (6 * hidden * inner + 5 * inner + hidden) - merging, 0, 0


def _drawn_blocks(kwargs: Mapping[str, Any]) -> Delta:
    """The published Q counts the blocks of one uniform draw, ours those of fixed, skewed counts."""
    ours = {1: 8, 520: 128, 1019: 136, 2044: 183, 3936: 317, 8192: 582}[kwargs["token_count"]]
    drawn = load_module(SHIPPED / "moe_align_block_size" / "work.py").DRAWN[kwargs["token_count"]]
    return 0, 0, 4 * 129 * (ours - drawn)


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
    "chunk_delta_rule_output": _upper_triangle,
    "fp8_blockscale_fused_moe": _bf16_output,
    "fused_moe": _repeated_experts,
    "gated_delta_rule_update": _untouched_states,
    "mla_decode_attention": _scaled_operands,
    "moe_align_block_size": _drawn_blocks,
    "mrope": _unused_axes,
    "paged_attention_decode": _unread_pages,
    "reshape_and_cache": _whole_caches,
}
