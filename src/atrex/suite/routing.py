"""Routing of tokens to experts that the MoE operators share. How many slots an expert gets never depends on a seed."""

from __future__ import annotations

import torch

from atrex.suite.experts import expert_counts


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
    """[tokens, top_k] fp32 that sum to one in a row, none under 0.4 of another: no slot can be left out."""
    weights = torch.empty(tokens, top_k).uniform_(0.4, 1.0)
    return weights.div_(weights.sum(1, keepdim=True))
