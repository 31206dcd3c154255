"""SGLang's kernels as its baseline calls them, and further Triton kernels, each module loaded by itself."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from benchmarks.references import shim
from benchmarks.references.baseline_checks import from_baseline
from benchmarks.references.registry import PRODUCTION, Case, Unsupported, check
from benchmarks.references.sglang_ops import ops
from benchmarks.references.vllm_triton import PRODUCTS  # its kernel came from vLLM's and computes as that one does

from atrex.baselines import get

NO_FLOOR = "it has no smallest scale: a row of zeros gets scale 0 and codes 448, a row under 1e-12 a scale of its own"
SAME_LENGTHS = dict.fromkeys(("more_keys", "fewer_keys"), "it takes as many keys as queries")
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


def prepare(operator: str) -> None:
    """Make what the baseline calls loadable without the rest of SGLang."""
    if get("sglang").functions[operator].calls.startswith("sgl_kernel."):
        ops()
    else:
        load("sglang")


BASELINE = get("sglang")
from_baseline(
    BASELINE, PRODUCTION, "SGLang ",
    [operator for operator in BASELINE.functions if operator != "attention_forward"],  # which needs all of sgl-kernel
    prepare, {"fp8_dynamic_per_token_quant": {"tiny": NO_FLOOR}},
)  # fmt: skip


@sglang("attention_forward", "context_attention_fwd, not causal", differs=SAME_LENGTHS)
def attention_forward(case: Case) -> torch.Tensor:
    if "key_lens" in case.kwargs:
        raise Unsupported("as many keys as queries only")
    kernel = load(f"{ATTENTION}.triton_ops.prefill_attention").context_attention_fwd
    q, k, v, bounds = (case.inputs[n] for n in ("q", "k", "v", "cu_seqlens_q"))
    out, lengths = torch.zeros_like(q), bounds.diff()
    kernel(q, k, v, out, bounds[:-1].contiguous(), lengths, int(lengths.max()), is_causal=False)
    return out


@sglang("causal_conv1d", "causal_conv1d_fn", coarser=PRODUCTS)
def causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    return _convolved(case, case.inputs["x"].dtype)


@sglang("causal_conv1d", "causal_conv1d_fn in float32", note="operands widened, so that its products are exact enough")
def wide_causal_conv1d(case: Case) -> dict[str, torch.Tensor]:
    return _convolved(case, torch.float32)


def _convolved(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    kernel = load(f"{ATTENTION}.mamba.causal_conv1d_triton").causal_conv1d_fn
    given = case.inputs["x"].dtype
    x, weight, bias, state = (case.inputs[n].to(dtype) for n in ("x", "weight", "bias", "initial_state"))
    device = x.device
    states = state.transpose(1, 2).contiguous().transpose(1, 2)  # channels lie together
    bounds = torch.tensor([0, x.shape[1]], dtype=torch.int32, device=device)
    row, has = torch.zeros(1, dtype=torch.int32, device=device), torch.ones(1, dtype=torch.bool, device=device)
    columns = x.t().contiguous().t()
    out = kernel(columns, weight, bias, states, bounds, [x.shape[1]], row, has, activation=case.init["activation"])
    return {"out": out.contiguous().to(given), "initial_state": states.contiguous().to(given)}


@sglang("moe_sum_reduce", "moe_sum_reduce_triton")
def moe_sum_reduce(case: Case) -> torch.Tensor:
    module = load("sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_kernels")
    x = case.inputs["expert_outputs"]
    out = x.new_empty(x.shape[0], x.shape[2])
    module.moe_sum_reduce_triton(x, out, case.init["routed_scaling_factor"])
    return out
