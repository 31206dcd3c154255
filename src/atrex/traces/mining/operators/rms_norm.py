"""rms_norm: rows and width of what is normalized."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows

OPS = (
    r"_C::rms_norm|vllm_ir::rms_norm|vllm::rocm_aiter_rms_norm|aiter::rms_?norm(2d_fwd)?(_ck)?|sgl_kernel::rmsnorm"
    r"|sglang_profiler::(rmsnorm|norm)_\w+|flashinfer::rmsnorm|aten::(_fused_rms_norm|rms_norm|pow|_to_copy|mean)"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    return {
        "tokens": call.tokens(rows(x)),
        "hidden_size": call.fixed("hidden_size", last(x)),
        "eps": call.setting("eps", call.number(r"_C::rms_norm|aiter::rmsnorm", 3), 1e-6),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"eps": d["eps"]}, {"token_count": d["tokens"], "hidden_size": d["hidden_size"]}
