"""The gated delta rule's inputs as the functions of other libraries take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from benchmarks.references.cases import SEED
from benchmarks.references.registry import Case, Unsupported
from torch.nn import functional as F

from atrex.problems.modules import load_module


@dataclass(frozen=True)
class Gated:
    """log decays and steps [batch, tokens, heads], queries and keys by value head, states [batch, heads, K, V]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor


def gated(case: Case) -> Gated:
    """The inputs of gated_delta_rule_update in float32, gates computed as Qwen3-Next's layer does."""
    given = case.inputs
    if case.init["softplus_beta"] != 1.0 or case.init["softplus_threshold"] != 20.0:
        raise Unsupported("softplus with its default beta and threshold only")
    group = given["v"].shape[2] // given["q"].shape[2]
    q, k = (given[n].float().repeat_interleave(group, 2) for n in ("q", "k"))
    g = -given["A_log"].float().exp() * F.softplus(given["a"].float() + given["dt_bias"].float())
    rows = given["initial_state_indices"].long()
    state = given["initial_state"][rows.clamp(min=0)].float()
    state[rows < 0] = 0
    return Gated(q, k, given["v"].float(), g, given["b"].float().sigmoid(), state)


def with_pool(case: Case, out: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
    """The operator's outputs: the states go back to the rows of the pool that they came from."""
    rows = case.inputs["initial_state_indices"].long()
    pool = case.inputs["initial_state"].clone()
    pool[rows[rows >= 0]] = state[rows >= 0].to(pool.dtype)
    return {"out": out.to(case.inputs["v"].dtype).contiguous(), "initial_state": pool}


def steps(g: torch.Tensor, chunk: int) -> torch.Tensor:
    """Cumulative log decays inside chunks, [batch, tokens, heads], as the decay of each token alone."""
    before = F.pad(g, (0, 0, 1, 0))[:, :-1]
    first = torch.arange(g.shape[1], device=g.device) % chunk == 0
    return g - before.masked_fill(first[None, :, None], 0.0)


def origin(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """v and beta [batch, tokens, heads, V] and [batch, tokens, heads] from which a case's w and u were made.

    chunk_gated_delta_rule_state takes w and u, which its input function computes from these: the case is drawn again,
    under the same seed, and what it was made of is kept. The token-by-token rule of others needs no w and u.
    """
    seen = _drawn_again(case)
    return seen["v"].float(), seen["beta"].float()


def unrounded(case: Case) -> dict[str, torch.Tensor]:
    """The case's operands with w and u as they were before they were rounded to bf16."""
    seen = _drawn_again(case)
    return case.inputs | {"w": seen["w"], "u": seen["u"]}


def _drawn_again(case: Case) -> dict[str, torch.Tensor]:
    problem, seen = case.problem, {}
    module = load_module(problem.folder / "input.py")
    real = module.corrected

    def corrected(k, v, beta, g, chunk):
        w, u = real(k.float(), v, beta, g, chunk)
        seen.update(v=v, beta=beta, w=w, u=u)
        return real(k, v, beta, g, chunk)

    module.corrected = corrected
    try:
        corner = case.name.partition("/")[2]
        if corner:
            again = problem.corner_cases(case.shape, SEED, case.device)[corner]()
        else:
            again = problem.make_inputs(case.shape, SEED, case.device)
    finally:
        module.corrected = real
    if not torch.equal(again["u"], case.inputs["u"]):
        raise Unsupported("inputs that were not drawn here")
    return seen


def states(case: Case, rule) -> dict[str, torch.Tensor]:
    """Outputs of chunk_gated_delta_rule_state from a token-by-token `rule(q, k, v, g, beta, state) -> state`.

    The state after each token tells what was written: state - decay * before = k v_new^T, and k has length one nearly.
    """
    given, chunk = case.inputs, case.init["chunk_size"]
    v, beta = origin(case)
    group = v.shape[2] // given["k"].shape[2]
    k = given["k"].float().repeat_interleave(group, 2)
    g = steps(given["g"].float(), chunk)
    rows = given["initial_state_indices"].long()
    state = given["initial_state"][rows].float()
    h, new = [], torch.empty_like(v)
    for t in range(v.shape[1]):
        if t % chunk == 0:
            h.append(state)
        one = slice(t, t + 1)
        after = rule(k[:, one], k[:, one], v[:, one], g[:, one], beta[:, one], state)
        written = after - g[:, t, :, None, None].exp() * state
        key = k[:, t]
        new[:, t] = (key[..., None] * written).sum(-2) / key.square().sum(-1, keepdim=True)
        state = after
    dtype = given["k"].dtype
    pool = given["initial_state"].index_copy(0, rows, state.to(given["initial_state"].dtype))
    return {"h": torch.stack(h, 1).to(dtype), "v_new": new.to(dtype), "initial_state": pool}
