"""Quantized outputs: fp8 codes, judged at the candidate's own scale, and the scales."""

from __future__ import annotations

import torch

from atrex.problems.metadata import Fp8Compare, ScaleCompare
from atrex.problems.worst import Worst, row_chunks, rows_of

# Two codes are both right for a value this close (relative) to the middle between them: a few float32 roundings.
_TIE_RTOL = 1e-6


def fp8_ratio(values: torch.Tensor, scales: torch.Tensor, got: torch.Tensor, rule: Fp8Compare) -> Worst:
    """Distance in codes from the nearest fp8 of `values` / `scales`, and the share of elements that are a code off.

    values [..., n] holds what was quantized, in any floating dtype; scales are the candidate's, one a row or one a
    group of equally many elements along the last dimension; got [..., n] is float8_e4m3fn or float8_e4m3fnuz.
    Taking the candidate's scale keeps one rounding of a scale from counting once an element; `scale_ratio` judges it.
    """
    table, have = rows_of(values), rows_of(got)
    rows, cols = have.shape
    steps = scales.reshape(rows, -1)
    group = cols // steps.shape[1]
    limit = torch.finfo(got.dtype).max
    worst = Worst()
    off = torch.zeros((), dtype=torch.int64, device=got.device)
    first = torch.full((), rows * cols, dtype=torch.int64, device=got.device)
    for part in row_chunks(rows, cols, got.device):
        wide = table[part].to(torch.float64).reshape(-1, steps.shape[1], group)
        scaled = (wide / steps[part].to(torch.float64)[..., None]).reshape(-1, cols).nan_to_num_(nan=torch.inf)
        scaled = scaled.clamp_(-limit, limit)
        nearest = scaled.to(torch.float32).to(got.dtype)
        have_part = have[part]
        distance = (_ordinal(have_part) - _ordinal(nearest)).abs()
        given = have_part.to(torch.float64)
        middle = (given + nearest.to(torch.float64)) / 2
        tied = (scaled - middle).abs() <= _TIE_RTOL * scaled.abs()
        error = distance.masked_fill((distance == 1) & tied, 0).to(torch.float64)
        error.masked_fill_(given.isnan(), torch.inf)
        bound = torch.ones_like(error)
        worst.add("codes off", error / bound, error, bound, part.start * cols)
        wrong = (error > 0).reshape(-1)
        off += wrong.sum()
        at = wrong.to(torch.uint8).argmax() + part.start * cols
        first = torch.where(wrong.any(), torch.minimum(first, at), first)
    share = off.to(torch.float64) / (rows * cols)
    bound = torch.full_like(share, rule.off_share)
    where = first.clamp(max=rows * cols - 1)
    worst.add("share of codes that are one off", share / bound, share, bound, where)
    return worst


def scale_ratio(want: torch.Tensor, got: torch.Tensor, rule: ScaleCompare) -> Worst:
    """|got - want| over rtol |want|, elementwise; a scale that is not finite or not positive is infinitely wrong."""
    r, o = rows_of(want).to(torch.float64), rows_of(got).to(torch.float64)
    error = (o - r).abs().masked_fill_(~(o.isfinite() & (o > 0)), torch.inf)
    bound = rule.rtol * r.abs()
    worst = Worst()
    worst.add("scale", error / bound, error, bound)
    return worst


def _ordinal(codes: torch.Tensor) -> torch.Tensor:
    """int16 positions of fp8 values in ascending order, both zeros at 0: neighbours differ by one."""
    raw = codes.contiguous().view(torch.uint8).to(torch.int16)
    magnitude = raw & 0x7F
    return torch.where(raw > 0x7F, -magnitude, magnitude)
