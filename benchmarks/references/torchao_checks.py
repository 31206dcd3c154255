"""Quantization to fp8 as torchao's affine primitives do it."""

from __future__ import annotations

import torch
from benchmarks.references.registry import PYTORCH, Case, check


def quantized(x: torch.Tensor, group: int, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, cols] in groups of `group` columns -> fp8 codes, scales [rows, cols / group] of maxima over `floor`."""
    from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

    scales = _choose_scale_float8(x.float(), [1, group], torch.float8_e4m3fn, hp_value_lb=floor)
    return _quantize_affine_float8(x.float(), scales, torch.float8_e4m3fn), scales


@check("fp8_dynamic_per_token_quant", "torchao float8 affine quantization", "torchao", PYTORCH)
def fp8_dynamic_per_token_quant(case: Case) -> dict[str, torch.Tensor]:
    x = case.inputs["x"]
    q, scale = quantized(x, x.shape[1], 1e-12)
    return {"q": q, "scale": scale.reshape(-1)}


@check("per_token_group_quant_fp8", "torchao float8 affine quantization", "torchao", PYTORCH)
def per_token_group_quant_fp8(case: Case) -> dict[str, torch.Tensor]:
    q, scales = quantized(case.inputs["x"], case.init["group_size"], 1e-10)
    return {"quantized": q, "scales": scales}


@check("fused_rmsnorm_quant", "F.rms_norm, then torchao float8 affine quantization", "torchao", PYTORCH)
def fused_rmsnorm_quant(case: Case) -> dict[str, torch.Tensor]:
    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    total = torch.add(x, residual)
    normed = torch.nn.functional.rms_norm(total, x.shape[-1:], weight, case.init.get("eps", 1e-6))
    q, scale = quantized(normed, x.shape[1], 1e-12)
    return {"quantized": q, "scale": scale, "residual_out": total}
