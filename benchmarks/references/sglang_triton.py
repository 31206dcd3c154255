"""SGLang's Triton kernels, each module loaded by itself."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from benchmarks.references import shim
from benchmarks.references.registry import PRODUCTION, Case, check

ATTENTION = "sglang.srt.layers.attention"
REAL = (
    *(
        f"{ATTENTION}.fla.{name}"
        for name in ("chunk_delta_h", "chunk_o", "l2norm", "layernorm_gated", "utils", "op", "index")
    ),
    f"{ATTENTION}.fla.fused_sigmoid_gating_recurrent",
    f"{ATTENTION}.triton_ops.decode_attention",
    f"{ATTENTION}.triton_ops.prefill_attention",
    f"{ATTENTION}.mamba.causal_conv1d_triton",
    "sglang.jit_kernel.diffusion.triton.norm",
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels",
)


class Platform:
    """What SGLang's kernels ask about the machine."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *_: name in ("is_cuda", "is_cuda_alike")
        raise AttributeError(name)


def facts() -> dict[str, dict[str, Any]]:
    import triton

    def decorator(*args: Any, **_: Any) -> Any:
        return args[0] if args and callable(args[0]) else lambda function: function

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    answers = {
        name: (lambda *_: False) for name in ("is_hip", "is_npu", "is_cpu", "is_xpu", "is_musa", "cpu_has_amx_support")
    }
    answers |= {"is_cuda": lambda: True, "is_sm90_supported": lambda *_: hopper, "get_bool_env_var": lambda *_: False}
    answers |= {"device_context": torch.cuda.device, "cdiv": triton.cdiv, "ceil_div": triton.cdiv}
    answers |= {"next_power_of_2": triton.next_power_of_2}
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdigit())
    return {
        "sglang.srt.utils": answers,
        "sglang.srt.utils.common": {"torch_release": release},
        "sglang.srt.utils.custom_op": {"register_custom_op": decorator},
        "sglang.srt.server_args": {
            "get_global_server_args": lambda: SimpleNamespace(disable_piecewise_cuda_graph=True)
        },
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": lambda: False},
        "sglang.srt.layers.moe.utils": {"get_moe_padding_size": lambda *_: 0},
        "sglang.multimodal_gen.runtime.platforms": {"current_platform": Platform()},
    }


def load(name: str) -> ModuleType:
    """A kernel module of SGLang by its full name."""
    return shim.modules("sglang", REAL, facts())(name)


def sglang(operator: str, name: str, **kwargs):
    return check(operator, f"SGLang {name} (Triton)", "sglang", PRODUCTION, devices=("cuda",), **kwargs)


@sglang("chunk_gated_delta_rule_state", "chunk_gated_delta_rule_fwd_h", note="states with their axes exchanged")
def chunk_gated_delta_rule_state(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{ATTENTION}.fla.chunk_delta_h").chunk_gated_delta_rule_fwd_h
    k, w, u, g, pool, rows = (case.inputs[n] for n in ("k", "w", "u", "g", "initial_state", "initial_state_indices"))
    pool = pool.transpose(-1, -2).contiguous()
    h, new = kernel(k=k, w=w, u=u, g=g, initial_state=pool, initial_state_indices=rows)[:2]
    return {
        "h": h.transpose(-1, -2).contiguous(),
        "v_new": new,
        "initial_state": pool.transpose(-1, -2).contiguous(),
    }


@sglang("chunk_delta_rule_output", "chunk_fwd_o", note="states with their axes exchanged")
def chunk_delta_rule_output(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.fla.chunk_o").chunk_fwd_o
    q, k, v, h, g = (case.inputs[n] for n in ("q", "k", "v", "h", "g"))
    return kernel(q=q, k=k, v=v, h=h.transpose(-1, -2).contiguous(), g=g, scale=q.shape[-1] ** -0.5)


@sglang("gated_delta_rule_update", "fused_sigmoid_gating_delta_rule_update", note="states with their axes exchanged")
def gated_delta_rule_update(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{ATTENTION}.fla.fused_sigmoid_gating_recurrent").fused_sigmoid_gating_delta_rule_update
    names = ("A_log", "a", "dt_bias", "q", "k", "v", "b", "initial_state", "initial_state_indices")
    gates, a, bias, q, k, v, b, pool, rows = (case.inputs[n] for n in names)
    pool = pool.transpose(-1, -2).contiguous()
    out = kernel(
        gates, a, bias, case.init["softplus_beta"], case.init["softplus_threshold"], q, k, v, b, pool, rows,
        use_qk_l2norm_in_kernel=case.init["use_qk_l2norm"],
    )  # fmt: skip
    return {"out": out, "initial_state": pool.transpose(-1, -2).contiguous()}


@sglang("l2_norm", "l2norm_fwd")
def l2_norm(case: Case) -> torch.Tensor:
    return load(f"{ATTENTION}.fla.l2norm").l2norm_fwd(case.inputs["x"], eps=1e-6)


@sglang("gated_rms_norm", "_layer_norm_fwd")
def gated_rms_norm(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.fla.layernorm_gated")._layer_norm_fwd
    x, weight, z = (case.inputs[n] for n in ("x", "weight", "z"))
    found = kernel(
        x, weight, None, case.init["eps"], z=z, norm_before_gate=case.init["norm_before_gate"], is_rms_norm=True
    )
    return found[0]


@sglang("layer_norm", "norm_infer")
def layer_norm(case: Case) -> torch.Tensor:
    x = case.inputs["x"]
    kernel = load("sglang.jit_kernel.diffusion.triton.norm").norm_infer
    return kernel(x.view(-1, x.shape[-1]), case.inputs["weight"], case.inputs["bias"], 1e-5).view(x.shape)


@sglang("attention_forward", "context_attention_fwd, not causal")
def attention_forward(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.triton_ops.prefill_attention").context_attention_fwd
    q, k, v, bounds = (case.inputs[n] for n in ("q", "k", "v", "cu_seqlens_q"))
    out, lengths = torch.zeros_like(q), bounds.diff()
    kernel(q, k, v, out, bounds[:-1].contiguous(), lengths, int(lengths.max()), is_causal=False)
    return out


@sglang("mla_decode_attention", "decode_attention_fwd")
def mla_decode_attention(case: Case) -> torch.Tensor:
    kernel = load(f"{ATTENTION}.triton_ops.decode_attention").decode_attention_fwd
    q, cache, lengths = (case.inputs[n] for n in ("q", "kv_cache", "seq_lens"))
    rank, most, device = case.init["kv_lora_rank"], 4, q.device
    bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])
    rows = torch.arange(int(bounds[-1]), dtype=torch.int64, device=device)
    out = q.new_empty(*q.shape[:2], rank)
    logits = torch.empty(*q.shape[:2], most, rank, dtype=torch.float32, device=device)
    lse = torch.empty(*q.shape[:2], most, dtype=torch.float32, device=device)
    splits = torch.full((len(q),), most, dtype=torch.int32, device=device)
    kernel(
        q,
        cache,
        cache[..., :rank],
        out,
        bounds,
        rows,
        logits,
        lse,
        splits,
        most,
        q.shape[-1] ** -0.5,
        1.0,
        1.0,
        has_mla=True,
    )
    return out


@sglang("causal_conv1d", "causal_conv1d_fn")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    kernel = load(f"{ATTENTION}.mamba.causal_conv1d_triton").causal_conv1d_fn
    x, weight, bias, state = (case.inputs[n] for n in ("x", "weight", "bias", "initial_state"))
    device = x.device
    states = state.transpose(1, 2).contiguous().transpose(1, 2)  # channels lie together
    bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=device)
    row, has = torch.zeros(1, dtype=torch.int32, device=device), torch.ones(1, dtype=torch.bool, device=device)
    columns = x.t().contiguous().t()
    out = kernel(columns, weight, bias, states, bounds, [x.shape[1]], row, has, activation=case.init["activation"])
    return {"out": out.contiguous(), "initial_state": states.contiguous()}


@sglang("moe_sum_reduce", "moe_sum_reduce_triton")
def moe_sum_reduce(case: Case) -> torch.Tensor:
    module = load("sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels")
    x = case.inputs["expert_outputs"]
    out = x.new_empty(x.shape[0], x.shape[2])
    module.moe_sum_reduce_triton(x, out, case.init["routed_scaling_factor"])
    return out
