"""causal_conv1d: tokens, channels (of queries, keys and values together), taps."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dim, Dims, Unknown

OPS = r"_C::causal_conv1d\w*|(common_ops|sgl_kernel)::causal_conv1d\w*|sglang_profiler::\w*causal_conv1d\w*"


def dims(call: Call) -> Dims:
    x, weight = call.operand(OPS, 0), call.operand(OPS, 1)
    if x is not None and weight is not None and len(weight) == 2:
        channels, width = weight
        tokens = next((n for n in x[-2:] if n != channels), x[-1])
        return {
            "tokens": call.tokens(tokens),
            "dim": call.fixed("dim", channels),
            "width": call.fixed("width", width),
        }
    parts = [call.fixed(n, None).value for n in ("linear_k_heads", "linear_k_dim", "linear_v_heads", "linear_v_dim")]
    if not all(parts):
        raise Unknown("dim: no operand gives it, and its model_config has no linear attention")
    channels = 2 * parts[0] * parts[1] + parts[2] * parts[3]
    return {
        "tokens": call.tokens(None),
        "dim": Dim(channels, "configured"),
        "width": call.fixed("width", None, "conv_width"),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"activation": "silu"}, {"token_count": d["tokens"], "dim": d["dim"], "width": d["width"]}
