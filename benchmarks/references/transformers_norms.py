"""Norms, gates, rotary embeddings, the convolution and the logits filter as Hugging Face's transformers writes them."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import torch
from benchmarks.references.registry import PYTORCH, Case, Unsupported, check


def hf(operator: str, name: str, **kwargs):
    return check(operator, f"transformers {name}", "transformers", PYTORCH, **kwargs)


def model(name: str) -> Any:
    """transformers.models.NAME.modeling_NAME"""
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def plain(function: Any) -> Any:
    """A function as transformers wrote it, not the kernel of another package that it would hand over to."""
    return inspect.unwrap(function)


def loaded(module: torch.nn.Module, **weights: torch.Tensor) -> torch.nn.Module:
    """The module with these parameters, whatever their dtype."""
    for name, value in weights.items():
        setattr(module, name, torch.nn.Parameter(value, requires_grad=False))
    return module


@hf("rms_norm", "Qwen3RMSNorm")
def rms_norm(case: Case) -> torch.Tensor:
    norm = model("qwen3").Qwen3RMSNorm(case.inputs["x"].shape[-1], case.init["eps"])
    return loaded(norm, weight=case.inputs["weight"])(case.inputs["x"])


@hf("fused_add_rms_norm", "Qwen3RMSNorm after the residual addition")
def fused_add_rms_norm(case: Case) -> dict[str, torch.Tensor]:
    total = case.inputs["residual"] + case.inputs["x"]
    norm = model("qwen3").Qwen3RMSNorm(total.shape[-1], case.init["eps"])
    return {"out": loaded(norm, weight=case.inputs["weight"])(total), "residual": total}


@hf("fused_qk_rmsnorm", "Qwen3RMSNorm as q_norm and k_norm of Qwen3Attention")
def fused_qk_rmsnorm(case: Case) -> torch.Tensor:
    size, eps = case.init["size_per_head"], case.init.get("eps", 1e-6)
    q_size, kv_size = case.init["head_num"] * size, case.init["kv_head_num"] * size
    parts = list(case.inputs["hidden_states"].split([q_size, kv_size, kv_size], dim=-1))
    for i, weight in enumerate(("q_weight", "k_weight")):
        norm = loaded(model("qwen3").Qwen3RMSNorm(size, eps), weight=case.inputs[weight])
        parts[i] = norm(parts[i].unflatten(-1, (-1, size))).flatten(1)
    return torch.cat(parts, dim=-1)


@hf("gated_rms_norm", "Qwen3NextRMSNormGated and MambaRMSNormGated")
def gated_rms_norm(case: Case) -> torch.Tensor:
    kind = model("qwen3_next").Qwen3NextRMSNormGated
    if not case.init["norm_before_gate"]:
        kind = model("mamba2").MambaRMSNormGated
    norm = loaded(kind(case.inputs["x"].shape[-1], eps=case.init["eps"]), weight=case.inputs["weight"])
    return norm(case.inputs["x"], case.inputs["z"])


@hf("l2_norm", "l2norm of Qwen3-Next", note="called in float32, as its own callers do")
def l2_norm(case: Case) -> torch.Tensor:
    x = case.inputs["x"]
    return plain(model("qwen3_next").l2norm)(x.float()).to(x.dtype)


@hf("silu_and_mul", "Qwen3MLP between its projections")
def silu_and_mul(case: Case) -> torch.Tensor:
    x = case.inputs["x"]
    parts = model("qwen3")
    halves = iter(x.chunk(2, dim=-1))
    layer = SimpleNamespace(
        gate_proj=lambda _: next(halves),
        up_proj=lambda _: next(halves),
        down_proj=lambda y: y,
        act_fn=parts.ACT2FN["silu"],
    )
    return parts.Qwen3MLP.forward(layer, x)


@hf("causal_conv1d", "causal_conv1d_update of Qwen3-Next")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    x, weight, bias = (case.inputs[n].float() for n in ("x", "weight", "bias"))
    state = case.inputs["initial_state"].float()
    update = plain(model("qwen3_next").causal_conv1d_update)
    out = update(x[None], state, weight, bias, case.init["activation"])[0]
    dtype = case.inputs["x"].dtype
    return {"out": out.to(dtype), "initial_state": state.to(dtype)}


@hf("topk_filter", "TopKLogitsWarper")
def topk_filter(case: Case) -> torch.Tensor:
    from transformers import TopKLogitsWarper

    return TopKLogitsWarper(case.init.get("top_k", 50))(None, case.inputs["logits"])


@hf("fused_qkv_rope", "LlamaRotaryEmbedding and apply_rotary_pos_emb of Qwen3-Next")
def fused_qkv_rope(case: Case) -> dict[str, torch.Tensor]:
    size, rotated = case.init["head_dim"], case.init["rope_dim"]
    sizes = [case.init[n] for n in ("num_heads", "num_kv_heads", "num_kv_heads")]
    packed = case.inputs["qkv"].float()
    if "qkv_bias" in case.inputs:
        packed = packed + case.inputs["qkv_bias"].float()
    q, k, v = packed.unflatten(-1, (-1, size)).split(sizes, dim=1)
    cos, sin = _llama_tables(rotated, case.inputs["positions"], case.device)
    q, k = plain(model("qwen3_next").apply_rotary_pos_emb)(q, k, cos, sin)
    dtype = case.inputs["qkv"].dtype
    return {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype).contiguous()}


def _llama_tables(rotated: int, positions: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    from transformers import LlamaConfig

    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = LlamaConfig(hidden_size=rotated, num_attention_heads=1, head_dim=rotated, rope_parameters=rope)
    tables = model("llama").LlamaRotaryEmbedding(config).to(device)
    cos, sin = tables(torch.empty(1, dtype=torch.float32, device=device), positions[None].long())
    return cos[0], sin[0]


@hf("mrope", "recomposed frequencies and rotation of Qwen2-VL, Qwen3-VL and GLM-4V")
def mrope(case: Case) -> dict[str, torch.Tensor]:
    interleaved, neox = case.init["mrope_interleaved"], case.init["is_neox_style"]
    if interleaved and not neox:
        raise Unsupported("no model interleaves both the axes and the pairs")
    if interleaved:
        parts, embedding = model("qwen3_vl"), "Qwen3VLTextRotaryEmbedding"
    elif neox:
        parts, embedding = model("qwen2_vl"), "Qwen2VLRotaryEmbedding"
    else:
        parts, embedding = model("glm4v"), "Glm4vTextRotaryEmbedding"
    recompose = getattr(parts, embedding).recomposition_frequencies
    owner = SimpleNamespace(mrope_section=case.init["mrope_section"])
    cos, sin = (recompose(owner, case.inputs[n].clone()) for n in ("cos", "sin"))
    size, rotated = case.init["head_size"], case.init["rotary_dim"]
    q, k = (case.inputs[n].float().unflatten(-1, (-1, size)) for n in ("q", "k"))
    turned = plain(parts.apply_rotary_pos_emb)(q[..., :rotated], k[..., :rotated], cos, sin)
    return {
        name: torch.cat([part, whole[..., rotated:]], -1).flatten(1).to(case.inputs[name].dtype)
        for name, part, whole in zip(("q", "k"), turned, (q, k), strict=True)
    }
