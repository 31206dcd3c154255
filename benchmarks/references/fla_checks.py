"""flash-linear-attention: its plain PyTorch forms on any device, its Triton kernels on a GPU."""

from __future__ import annotations

import torch
from benchmarks.references.baseline_checks import from_baseline
from benchmarks.references.delta_rule import gated, states, steps, unrounded, with_pool
from benchmarks.references.registry import OTHER, PYTORCH, Case, Unsupported, check

from atrex.baselines import get


def plain(operator: str, name: str, **kwargs):
    return check(operator, f"fla {name}", "fla-core", PYTORCH, **kwargs)


# ---- plain PyTorch


@plain("gated_delta_rule_update", "naive_recurrent_gated_delta_rule")
def naive_update(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    x = gated(case)
    q, k = (_unit(t) if case.init["use_qk_l2norm"] else t for t in (x.q, x.k))
    found = naive_recurrent_gated_delta_rule(q, k, x.v, x.beta, x.g, initial_state=x.state, output_final_state=True)
    return with_pool(case, *found)


@plain("chunk_gated_delta_rule_state", "naive_recurrent_gated_delta_rule", exact=unrounded)
def naive_states(case: Case) -> dict[str, torch.Tensor]:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    if case.inputs["u"].shape[1] > 256:
        raise Unsupported("more than 256 tokens")

    def after(q, k, v, g, beta, state):
        return naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=state, output_final_state=True)[1]

    return states(case, after)


@plain("chunk_delta_rule_output", "naive_recurrent_simple_gla, a chunk as a sequence")
def naive_output(case: Case) -> torch.Tensor:
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    given, chunk = case.inputs, case.init["chunk_size"]
    group = given["v"].shape[2] // given["q"].shape[2]
    q, k = (given[n].float().repeat_interleave(group, 2) for n in ("q", "k"))
    g, v = steps(given["g"].float(), chunk), given["v"].float()
    outs = []
    for c, start in enumerate(range(0, v.shape[1], chunk)):
        part = slice(start, start + chunk)
        state = given["h"][:, c].float()
        outs.append(naive_recurrent_simple_gla(*(x[:, part] for x in (q, k, v, g)), initial_state=state)[0])
    return torch.cat(outs, 1).to(given["v"].dtype)


def _unit(x: torch.Tensor) -> torch.Tensor:
    from benchmarks.references import transformers_norms

    return transformers_norms.plain(transformers_norms.model("qwen3_next").l2norm)(x)


# ---- Triton

CHUNKS = "its kernels for chunks hand each other w, u and what is written in bf16, and multiply by the state in bf16"
from_baseline(get("fla"), OTHER, "fla ", coarser={"gated_delta_rule_update": CHUNKS})
