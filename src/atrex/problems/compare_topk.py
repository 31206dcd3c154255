"""Top-k indices and their weights: any right choice among ties is right."""

from __future__ import annotations

import torch

from atrex.problems.metadata import TopkIdsCompare, TopkWeightsCompare
from atrex.problems.worst import Worst, rows_of


def ids_ratio(scores: torch.Tensor, got: torch.Tensor, rule: TopkIdsCompare) -> Worst:
    """Error over bound of each chosen index, by the reference's own `scores` [rows, candidates] in float64.

    An index must be in range, stand once in its row, score within the tie tolerance of the k-th largest, and not
    under its successor by more than that; no index that scores above the k-th by more than that may be missing.
    """
    table, ids = rows_of(scores), rows_of(got).to(torch.int64)
    k = ids.shape[1]
    inside = (ids >= 0) & (ids < table.shape[1])
    safe = ids.clamp(0, table.shape[1] - 1)
    chosen = table.gather(1, safe)
    kth = table.topk(k, dim=-1).values[:, -1:]
    slack = (rule.tie_rtol * kth.abs()).clamp_(min=torch.finfo(torch.float64).tiny)
    bound = (rule.tie_rtol * chosen.abs()).maximum(slack)

    seen = torch.zeros_like(table, dtype=torch.int64).scatter_add_(1, safe, torch.ones_like(safe))
    repeated = seen.gather(1, safe) > 1
    missing = ((table > kth + slack) & (seen == 0)).any(-1, keepdim=True).expand_as(ids)
    following = torch.cat([chosen[:, 1:], chosen[:, -1:]], dim=1)

    short = (kth - chosen).clamp(min=0)
    disorder = (following - chosen).clamp(min=0)
    worst = Worst()
    for detail, error in (
        ("index out of range", _flag(~inside)),
        ("index repeated in its row", _flag(repeated)),
        ("a larger score is missing from the row", _flag(missing)),
        ("score of the chosen index under the k-th largest", short),
        ("not in descending order", disorder),
    ):
        worst.add(detail, error / bound, error, bound)
    return worst


def weights_ratio(scores: torch.Tensor, ids: torch.Tensor, got: torch.Tensor, rule: TopkWeightsCompare) -> Worst:
    """|weight - score at the chosen index| over atol + rtol |score|; an index out of range is `ids_ratio`'s finding."""
    table, chosen = rows_of(scores), rows_of(ids).to(torch.int64)
    want = table.gather(1, chosen.clamp(0, table.shape[1] - 1))
    error = (rows_of(got).to(torch.float64) - want).abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    bound = rule.atol + rule.rtol * want.abs()
    worst = Worst()
    worst.add("weight at the chosen index", error / bound, error, bound)
    return worst


def _flag(wrong: torch.Tensor) -> torch.Tensor:
    return torch.where(wrong, torch.inf, 0.0).to(torch.float64)
