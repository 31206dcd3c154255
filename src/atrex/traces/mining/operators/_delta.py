"""Heads and sizes of gated delta rule attention, and how its tokens are laid out in sequences."""

from __future__ import annotations

from atrex.traces.mining.dims import Call, Dim, Dims
from atrex.traces.phases import PREFILL


def heads(call: Call) -> Dims:
    return {
        "k_heads": call.fixed("linear_k_heads", None),
        "v_heads": call.fixed("linear_v_heads", None),
        "k_dim": call.fixed("linear_k_dim", None),
        "v_dim": call.fixed("linear_v_dim", None),
    }


def prompts(call: Call) -> Dims:
    """Sequences and the tokens of each: engines lay prompts one after the other, here they are of one length."""
    tokens = call.tokens(None)
    requests = call.requests(None, PREFILL) if "context_requests" in call.group.step else Dim(1, "typical", "requests")
    return {"requests": requests, "length": Dim(max(1, tokens.value // requests.value), tokens.source, "length")}
