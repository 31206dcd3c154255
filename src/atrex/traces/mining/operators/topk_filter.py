"""topk_filter: rows of logits and the vocabulary. How many are kept no trace says: what engines do by default."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims, last, rows
from atrex.traces.phases import DECODE

OPS = r"flashinfer::\w*top_?[kp]\w*|(common_ops|sgl_kernel)::top_[kp]\w*|sglang_profiler::\w*top_[kp]\w*|_C::top_?k\w*"


def dims(call: Call) -> Dims:
    logits = call.matrix(OPS)
    known = rows(logits)
    return {
        "rows": call.tokens(known) if known is not None else call.requests(None, DECODE),
        "vocab_size": call.fixed("vocab_size", last(logits)),
        "top_k": call.setting("sampled_top_k", None, 50),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"top_k": d["top_k"]}, {"seq_len": d["rows"], "hidden_size": d["vocab_size"]}
