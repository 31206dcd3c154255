"""How many slots each expert gets: what W and Q of the MoE operators and their inputs agree on, without torch."""

from __future__ import annotations

import math

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
