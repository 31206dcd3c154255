"""attention_forward: heads, a head's size, how many sequences of which length. Causal attention is served elsewhere."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dim, Dims, Unknown
from atrex.traces.mining.operators import _attention
from atrex.traces.mining.operators._attention import divided
from atrex.traces.mining.operators._attention import serves as serves


def dims(call: Call) -> Dims:
    found = _attention.dense(call)
    if found is not None:
        return {
            "requests": Dim(found.batch, "traced", "requests"),
            "tokens": Dim(found.batch * found.queries, "traced", "tokens"),
            "num_heads": Dim(found.heads, "traced"),
            "head_dim": Dim(found.size, "traced"),
        }
    tokens, heads, _, size = _attention.packed(call)
    bounds = [d[0] for op in call.ops(_attention.PACKED) for d in op.dims if isinstance(d, list) and len(d) == 1]
    if tokens is None or not bounds:
        raise Unknown("sequence lengths: only operands give those of bidirectional attention, record with shapes")
    return {
        "requests": Dim(max(1, bounds[0] - 1), "traced", "requests"),
        "tokens": Dim(tokens, "traced", "tokens"),
        "num_heads": call.fixed("num_heads", heads),
        "head_dim": call.fixed("head_dim", size),
    }


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"num_heads": d["num_heads"], "head_dim": d["head_dim"], "seq_lens": divided(d["tokens"], d["requests"])}
