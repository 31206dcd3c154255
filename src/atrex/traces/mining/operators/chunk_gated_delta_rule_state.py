"""chunk_gated_delta_rule_state: prompts, heads and sizes of the configuration, states of the pool."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _delta


def dims(call: Call) -> Dims:
    return {**_delta.prompts(call), **_delta.heads(call)}


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"chunk_size": 64}, {
        "batch_size": d["requests"], "token_count": d["length"], "num_k_heads": d["k_heads"],
        "num_v_heads": d["v_heads"], "key_dim": d["k_dim"], "value_dim": d["v_dim"], "state_count": d["requests"] + 1,
    }  # fmt: skip
