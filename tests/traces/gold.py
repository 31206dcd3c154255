"""A published table of two decode traces: per device kernel the operator that launched it, found by its author with a
capture.

The table ships with TraceLens (MIT). What is here says which of our families each of its operators is.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

# Where an operator encloses several families its kernels are told apart by a part of their names.
OPERATORS: dict[str, str | dict[str, str]] = {
    "aten::mm": "gemm", "aten::copy_": "copy", "aten::argmax": "sampling",
    "aiter::rmsnorm": "rms_norm", "sglang_profiler::rmsnorm_rmsnorm_cute": "rms_norm",
    "aiter::add_rmsnorm": "fused_add_rms_norm",
    "sglang_profiler::fused_add_rmsnorm_fused_add_rmsnorm_cute": "fused_add_rms_norm",
    "sglang::fused_inplace_qknorm": "fused_qk_rmsnorm", "sglang::apply_rope_inplace_with_kvcache": "fused_qkv_rope",
    "sglang_profiler::utils_fused_qk_rope_reshape_and_cache": "fused_qkv_rope",
    "sglang_profiler::attention_paged_attention_ragged": "paged_attention_decode",
    "sglang_profiler::decode_trtllm_batch_decode_with_kv_cache": "paged_attention_decode",
    "aiter::topk_softmax_asm": "moe_topk_gating_softmax", "aiter::moe_sorting_fwd": "moe_count_and_sort",
    "aiter::ck_moe_stage1": "fused_moe", "aiter::ck_moe_stage2": "fused_moe",
    "sglang_profiler::core_trtllm_bf16_moe": {
        "bmm_": "fused_moe", "routing": "moe_topk_gating_softmax", "finalize": "moe_sum_reduce",
    },
}  # fmt: skip


def expected(row: dict[str, str]) -> str | None:
    """The family of a row's operator; None for operators that this table does not speak of."""
    found = OPERATORS.get(row["cpu_op_name"])
    if isinstance(found, dict):
        return next((family for part, family in found.items() if part in row["name"]), None)
    return found


def agreement(path: Path, family: Callable[[dict[str, str]], str]) -> tuple[float, int]:
    """(share of the table's kernel time whose family is the operator's, number of its rows)."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    time = [float(row["kernel_time"]) for row in rows]
    right = sum(t for t, row in zip(time, rows, strict=True) if family(row) == expected(row))
    return right / sum(time), len(rows)
