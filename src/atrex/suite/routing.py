"""Routing of tokens to experts that the MoE operators share. How many slots an expert gets never depends on a seed."""

from __future__ import annotations

import math

import torch

SKEW = 5  # of the busiest expert's share to the least busy one's, before the limit of one slot a token and expert


def active_experts(tokens: int, experts: int, top_k: int) -> int:
    """How many experts get any slot: E (1 - (1 - k/E)^T), what uniform routing expects, rounded up."""
    if top_k >= experts:
        return experts
    expected = experts * -math.expm1(tokens * math.log1p(-top_k / experts))
    return min(experts, tokens * top_k, math.ceil(expected))


def expert_counts(tokens: int, experts: int, top_k: int) -> list[int]:
    """Slots of each active expert, descending: they sum to tokens * top_k, none is over `tokens` or under 1.

    Shares fall off as 1/(i + a/4) over the a active experts: the first gets five times what the last gets.
    """
    active = active_experts(tokens, experts, top_k)
    shares = [2**30 // ((SKEW - 1) * i + active) for i in range(active)]
    counts = [1] * active
    left = tokens * top_k - active
    while left:
        open_ones = [i for i in range(active) if counts[i] < tokens]
        total = sum(shares[i] for i in open_ones)
        given = [min(tokens - counts[i], left * shares[i] // total) for i in open_ones]
        if not any(given):
            given = [1] * min(left, len(open_ones))
        for i, more in zip(open_ones, given, strict=False):
            counts[i] += more
        left -= sum(given)
    return counts


def draw_topk_ids(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """[tokens, top_k] int32, distinct in a row, with the counts of `expert_counts`; the seed says whose they are.

    Runs of one expert, none longer than `tokens`, are dealt to the tokens in turn, so no token gets an expert twice.
    """
    counts = torch.tensor(expert_counts(tokens, experts, top_k))
    order = torch.randperm(len(counts))
    labels = torch.randperm(experts)[: len(counts)]
    dealt = labels.repeat_interleave(counts[order], output_size=tokens * top_k).view(top_k, tokens).T
    rows = dealt[torch.randperm(tokens)]
    return rows.gather(1, torch.rand(tokens, top_k).argsort(dim=1)).to(torch.int32)


def crowded_topk_ids(tokens: int, experts: int, top_k: int) -> torch.Tensor:
    """[tokens, top_k] int32: every token goes to the same k experts, and the others stay empty."""
    return torch.randperm(experts)[:top_k].to(torch.int32).repeat(tokens, 1)


def draw_topk_weights(tokens: int, top_k: int) -> torch.Tensor:
    """[tokens, top_k] fp32 that sum to one in a row, none under a quarter of another: no slot can be left out."""
    weights = torch.empty(tokens, top_k).uniform_(0.25, 1.0)
    return weights.div_(weights.sum(1, keepdim=True))
