"""Liger-Kernel's Triton kernels."""

from __future__ import annotations

import torch
from benchmarks.references.registry import OTHER, Case, Unsupported, check


def liger(operator: str, name: str, **kwargs):
    return check(operator, f"Liger {name}", "liger-kernel", OTHER, devices=("cuda",), **kwargs)


@liger("rms_norm", "rms_norm_forward")
def rms_norm(case: Case) -> torch.Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # Gemma's way of casting: all in float32, rounded once.
    return LigerRMSNormFunction.apply(case.inputs["x"], case.inputs["weight"], case.init["eps"], 0.0, "gemma", False)


@liger("fused_add_rms_norm", "fused_add_rms_norm_forward")
def fused_add_rms_norm(case: Case) -> dict[str, torch.Tensor]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    out, total = LigerFusedAddRMSNormFunction.apply(x, residual, weight, case.init["eps"], 0.0, "gemma", False)
    return {"out": out, "residual": total}


@liger("layer_norm", "layer_norm_forward")
def layer_norm(case: Case) -> torch.Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(case.inputs["x"], case.inputs["weight"], case.inputs["bias"], 1e-5)


@liger("silu_and_mul", "swiglu_forward")
def silu_and_mul(case: Case) -> torch.Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    gate, up = (half.contiguous() for half in case.inputs["x"].chunk(2, dim=-1))
    return LigerSiLUMulFunction.apply(gate, up)


@liger("mrope", "qwen2vl_mrope_forward")
def mrope(case: Case) -> dict[str, torch.Tensor]:
    from liger_kernel.ops.qwen2vl_mrope import LigerQwen2VLMRopeFunction

    if case.init["mrope_interleaved"] or not case.init["is_neox_style"]:
        raise Unsupported("sections one after the other and neox style only")
    size = case.init["head_size"]
    if case.init["rotary_dim"] != size:
        raise Unsupported("whole heads only")
    q, k = (case.inputs[n].unflatten(-1, (-1, size)).transpose(0, 1)[None].float() for n in ("q", "k"))
    cos, sin = (torch.cat([case.inputs[n]] * 2, -1)[:, None].contiguous() for n in ("cos", "sin"))
    found = LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, case.init["mrope_section"], 1)
    dtype = case.inputs["q"].dtype
    return {n: t[0].transpose(0, 1).flatten(1).to(dtype) for n, t in zip(("q", "k"), found[:2], strict=True)}
