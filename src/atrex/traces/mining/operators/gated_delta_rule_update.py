"""gated_delta_rule_update: sequences of one token each, heads and sizes of the configuration, states of the pool."""

from __future__ import annotations

from typing import Any

from atrex.traces.mining.dims import Call, Dims
from atrex.traces.mining.operators import _delta


def dims(call: Call) -> Dims:
    return {"requests": call.requests(None), **_delta.heads(call)}


def kwargs(d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    init = {"softplus_beta": 1.0, "softplus_threshold": 20.0, "use_qk_l2norm": True}
    return init, {
        "batch_size": d["requests"], "token_count": 1, "num_q_heads": d["k_heads"], "num_v_heads": d["v_heads"],
        "key_dim": d["k_dim"], "value_dim": d["v_dim"], "state_count": d["requests"] + 1,
    }  # fmt: skip
