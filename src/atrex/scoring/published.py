"""Shapes per operator of the published Atrex-Bench release: the denominators of every rate.

A run over part of the suite is still counted over all of these: what was not run counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Source: the shapes.json files of the Atrex-Bench release (30 operators, 440 shapes), the column "Shapes" of Table 9 of
# its paper, "Are LLM-Generated GPU Kernels Production-Ready?".
PUBLISHED_SHAPES: Mapping[str, int] = MappingProxyType({
    "attention_forward": 21,
    "block_scaled_mm": 24,
    "causal_conv1d": 9,
    "chunk_delta_rule_output": 16,
    "chunk_gated_delta_rule_state": 25,
    "fp8_blockscale_fused_moe": 6,
    "fp8_dynamic_per_token_quant": 20,
    "fused_add_rms_norm": 19,
    "fused_moe": 23,
    "fused_qk_rmsnorm": 4,
    "fused_qkv_rope": 6,
    "fused_rmsnorm_quant": 11,
    "gated_delta_rule_update": 17,
    "gated_rms_norm": 7,
    "l2_norm": 13,
    "layer_norm": 13,
    "linear_sigmoid_mul": 9,
    "mla_decode_attention": 3,
    "moe_align_block_size": 6,
    "moe_count_and_sort": 5,
    "moe_sum_reduce": 7,
    "moe_topk_gating_softmax": 10,
    "mrope": 5,
    "paged_attention_decode": 8,
    "per_token_group_quant_fp8": 19,
    "reshape_and_cache": 8,
    "rms_norm": 56,
    "silu_and_mul": 37,
    "topk_filter": 8,
    "unified_attention": 25,
})
