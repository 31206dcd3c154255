"""flash-linear-attention: its plain PyTorch forms on any device, its Triton kernels on a GPU."""

from __future__ import annotations

import math

import torch
from benchmarks.references.delta_rule import gated, states, steps, unrounded, with_pool
from benchmarks.references.registry import OTHER, PYTORCH, Case, Unsupported, check
from torch.nn import functional as F

GPU = ("cuda",)
LOG2_E = math.log2(math.e)  # its kernels of chunks take decays as exponents of two


def fla(operator: str, name: str, kind: str = OTHER, devices: tuple[str, ...] = GPU, **kwargs):
    return check(operator, f"fla {name}", "fla-core", kind, devices=devices, **kwargs)


# ---- plain PyTorch


@fla("gated_delta_rule_update", "naive_recurrent_gated_delta_rule", PYTORCH, ("cpu", "cuda"))
def naive_update(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    x = gated(case)
    q, k = (_unit(t) if case.init["use_qk_l2norm"] else t for t in (x.q, x.k))
    found = naive_recurrent_gated_delta_rule(q, k, x.v, x.beta, x.g, initial_state=x.state, output_final_state=True)
    return with_pool(case, *found)


@fla("chunk_gated_delta_rule_state", "naive_recurrent_gated_delta_rule", PYTORCH, ("cpu", "cuda"), exact=unrounded)
def naive_states(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    if case.inputs["u"].shape[1] > 256:
        raise Unsupported("more than 256 tokens")

    def after(q, k, v, g, beta, state):
        return naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=state, output_final_state=True)[1]

    return states(case, after)


@fla("chunk_delta_rule_output", "naive_recurrent_simple_gla, a chunk as a sequence", PYTORCH, ("cpu", "cuda"))
def naive_output(case: Case) -> torch.Tensor:
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    given, chunk = case.inputs, case.init["chunk_size"]
    group = given["v"].shape[2] // given["q"].shape[2]
    q, k = (given[n].float().repeat_interleave(group, 2) for n in ("q", "k"))
    g, v = steps(given["g"].float(), chunk), given["v"].float()
    outs = []
    for c, start in enumerate(range(0, v.shape[1], chunk)):
        part = slice(start, start + chunk)
        state = given["h"][:, c].float()
        outs.append(naive_recurrent_simple_gla(*(x[:, part] for x in (q, k, v, g)), initial_state=state)[0])
    return torch.cat(outs, 1).to(given["v"].dtype)


def _unit(x: torch.Tensor) -> torch.Tensor:
    from benchmarks.references.transformers_norms import model, plain

    return plain(model("qwen3_next").l2norm)(x)


# ---- Triton


@fla("l2_norm", "l2norm_fwd")
def l2_norm(case: Case) -> torch.Tensor:
    from fla.modules.l2norm import l2norm_fwd

    return l2norm_fwd(case.inputs["x"], eps=1e-6)[0]


@fla("rms_norm", "rms_norm")
def rms_norm(case: Case) -> torch.Tensor:
    from fla.modules.layernorm import rms_norm as kernel

    return kernel(case.inputs["x"], case.inputs["weight"], None, eps=case.init["eps"])


@fla("fused_add_rms_norm", "rms_norm with a residual")
def fused_add_rms_norm(case: Case) -> dict[str, torch.Tensor]:
    from fla.modules.layernorm import rms_norm as kernel

    x, residual, weight = (case.inputs[n] for n in ("x", "residual", "weight"))
    out, total = kernel(x, weight, None, residual=residual, eps=case.init["eps"], prenorm=True)
    return {"out": out, "residual": total}


@fla("layer_norm", "layer_norm")
def layer_norm(case: Case) -> torch.Tensor:
    from fla.modules.layernorm import layer_norm as kernel

    return kernel(case.inputs["x"], case.inputs["weight"], case.inputs["bias"], eps=1e-5)


@fla("gated_rms_norm", "layernorm_gated")
def gated_rms_norm(case: Case) -> torch.Tensor:
    from fla.modules.layernorm_gated import rmsnorm_fn

    x, weight, z = (case.inputs[n] for n in ("x", "weight", "z"))
    return rmsnorm_fn(x, weight, None, z=z, eps=case.init["eps"], norm_before_gate=case.init["norm_before_gate"])


@fla("causal_conv1d", "causal_conv1d")
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    from fla.modules.conv import causal_conv1d as kernel

    x, weight, bias, state = (case.inputs[n] for n in ("x", "weight", "bias", "initial_state"))
    # Its state has as many samples as the kernel has taps; the oldest is never read.
    wide = F.pad(state, (weight.shape[1] - state.shape[2], 0)).contiguous()
    out, after = kernel(
        x.t()[None].contiguous(), weight, bias, initial_state=wide, output_final_state=True,
        activation=case.init["activation"],
    )  # fmt: skip
    return {"out": out[0].t().contiguous(), "initial_state": after[..., -state.shape[2] :].contiguous()}


@fla("chunk_delta_rule_output", "chunk_fwd_o")
def chunk_delta_rule_output(case: Case) -> torch.Tensor:
    from fla.ops.common.chunk_o import chunk_fwd_o

    given, scale = case.inputs, case.inputs["q"].shape[-1] ** -0.5
    q, k, v, h, g = (given[n] for n in ("q", "k", "v", "h", "g"))
    return chunk_fwd_o(q=q, k=k, v=v, h=h, g=g * LOG2_E, scale=scale, chunk_size=case.init["chunk_size"])


@fla("chunk_gated_delta_rule_state", "chunk_gated_delta_rule_fwd_h", note="a row of the pool by sequence")
def chunk_gated_delta_rule_state(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

    given = case.inputs
    rows = given["initial_state_indices"].long()
    h, v_new, state = chunk_gated_delta_rule_fwd_h(
        k=given["k"],
        w=given["w"],
        u=given["u"],
        g=given["g"] * LOG2_E,
        initial_state=given["initial_state"][rows].contiguous(),
        output_final_state=True,
        chunk_size=case.init["chunk_size"],
    )
    pool = given["initial_state"].index_copy(0, rows, state.to(given["initial_state"].dtype))
    return {"h": h, "v_new": v_new, "initial_state": pool}


@fla("gated_delta_rule_update", "fused_recurrent_gated_delta_rule")
def gated_delta_rule_update(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    x, given = gated(case), case.inputs
    group = given["v"].shape[2] // given["q"].shape[2]
    q, k = (given[n].repeat_interleave(group, 2).contiguous() for n in ("q", "k"))
    found = fused_recurrent_gated_delta_rule(
        q, k, given["v"], g=x.g, beta=x.beta, initial_state=x.state, output_final_state=True,
        use_qk_l2norm_in_kernel=case.init["use_qk_l2norm"],
    )  # fmt: skip
    return with_pool(case, *found)


@fla("gated_delta_rule_update", "chunk_gated_delta_rule", note="in bf16 between its products")
def gated_delta_rule_chunked(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    x, given = gated(case), case.inputs
    group = given["v"].shape[2] // given["q"].shape[2]
    q, k = (given[n].repeat_interleave(group, 2).contiguous() for n in ("q", "k"))
    found = chunk_gated_delta_rule(
        q, k, given["v"], g=x.g, beta=x.beta.to(q.dtype), initial_state=x.state, output_final_state=True,
        use_qk_l2norm_in_kernel=case.init["use_qk_l2norm"],
    )  # fmt: skip
    return with_pool(case, *found)
