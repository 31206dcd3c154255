"""The gated delta rule as transformers writes it for Qwen3-Next, token by token and in chunks."""

from __future__ import annotations

import torch
from benchmarks.references.delta_rule import gated, states, unrounded, with_pool
from benchmarks.references.registry import Case, Unsupported
from benchmarks.references.transformers_norms import hf, model, plain

TOKENS = 256  # more would take the token-by-token rule long


@hf("gated_delta_rule_update", "torch_recurrent_gated_delta_rule")
def recurrent(case: Case) -> dict[str, torch.Tensor]:
    return _update(case, "torch_recurrent_gated_delta_rule")


@hf("gated_delta_rule_update", "torch_chunk_gated_delta_rule")
def chunked(case: Case) -> dict[str, torch.Tensor]:
    return _update(case, "torch_chunk_gated_delta_rule")


def _update(case: Case, name: str) -> dict[str, torch.Tensor]:
    x = gated(case)
    rule = plain(getattr(model("qwen3_next"), name))
    unit = case.init["use_qk_l2norm"]
    found = rule(
        x.q, x.k, x.v, x.g, x.beta, initial_state=x.state, output_final_state=True, use_qk_l2norm_in_kernel=unit
    )
    return with_pool(case, *found)


@hf("chunk_gated_delta_rule_state", "torch_recurrent_gated_delta_rule", exact=unrounded)
def chunk_states(case: Case) -> dict[str, torch.Tensor]:
    if case.inputs["u"].shape[1] > TOKENS:
        raise Unsupported(f"more than {TOKENS} tokens")
    rule = plain(model("qwen3_next").torch_recurrent_gated_delta_rule)

    def after(q, k, v, g, beta, state):
        return rule(q, k, v, g, beta, initial_state=state, output_final_state=True)[1]

    return states(case, after)
