"""rms_norm: rows and width of what is normalized."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, Unknown, last, rows

OPS = (
    r"_C::rms_norm|vllm_ir::rms_norm|vllm::rocm_aiter_rms_norm|aiter::rms_?norm(2d_fwd)?(_ck)?|sgl_kernel::rmsnorm"
    r"|sglang_profiler::(rmsnorm|norm)_\w+|flashinfer::rmsnorm|aten::(_fused_rms_norm|rms_norm|pow|_to_copy|mean)"
)


def dims(call: Call) -> Dims:
    x = call.matrix(OPS)
    if x is None and _heads_among(call):
        raise Unknown("hidden_size: no operand gives it, and these are more calls than a model's norms over its full "
                      "width: norms of heads are among them")  # fmt: skip
    return {
        "tokens": call.tokens(rows(x)),
        "hidden_size": call.fixed("hidden_size", last(x)),
        "eps": call.setting("eps", call.number(r"_C::rms_norm|aiter::rmsnorm", 3), 1e-6),
    }


def _heads_among(call: Call) -> bool:
    """Whether a trace's norms without operands are too many to be all of full width.

    A decoder has two of these a layer and one at its end. With fused residual additions only the very first is left as
    a plain one; without them they are compared with the layers' activations or experts.
    """
    calls = call.peers.get("rms_norm", 0)
    if fused := call.peers.get("fused_add_rms_norm", 0):
        return calls > 0.25 * fused + 1
    layers = sum(call.peers.get(n, 0) for n in ("silu_and_mul", "fused_moe", "fp8_blockscale_fused_moe"))
    return bool(layers) and calls > 2.5 * layers + 1


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"eps": d["eps"]}, {"token_count": d["tokens"], "hidden_size": d["hidden_size"]}
