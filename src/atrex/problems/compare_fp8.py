"""Quantized outputs: fp8 codes, judged at the candidate's own scale, and the scales."""

from __future__ import annotations

import torch

from atrex.problems.metadata import Fp8Compare, ScaleCompare
from atrex.problems.worst import Worst, row_chunks, rows_of

# Two codes are both right for a value this close (relative) to the middle between them: a few float32 roundings.
_TIE_RTOL = 1e-6


def fp8_ratio(values: torch.Tensor, scales: torch.Tensor, got: torch.Tensor, rule: Fp8Compare) -> Worst:
    """Distance in codes from the nearest fp8 of `values` / `scales`, and the share of elements that are a code off.

    Up to one code, the ratio is that share over `off_share`; from two codes on, it is the distance, a failure.

    values [..., n] holds what was quantized, in any floating dtype; scales are the candidate's, one a row or one a
    group of equally many elements along the last dimension; got [..., n] is float8_e4m3fn or float8_e4m3fnuz.
    Taking the candidate's scale keeps one rounding of a scale from counting once an element; `scale_ratio` judges it.
    """
    table, have = rows_of(values), rows_of(got)
    rows, cols = have.shape
    steps = scales.reshape(rows, -1)
    groups = steps.shape[1]
    limit = torch.finfo(got.dtype).max
    worst = Worst()
    none = torch.zeros(1, dtype=torch.float64, device=got.device)
    worst.add("codes off", none, none, none + 1)
    off, first = 0, 0
    for part in row_chunks(rows, cols, got.device):
        wide = table[part].to(torch.float32).reshape(-1, groups, cols // groups)
        scaled = (wide / steps[part].to(torch.float32)[..., None]).clamp_(-limit, limit).reshape(-1, cols)
        # What float32 gives is right, by rounding or as one of a tie: only where the codes differ is there more to ask.
        at = (_bytes(scaled.to(got.dtype)) != _bytes(have[part])).reshape(-1).nonzero()[:, 0]
        if at.numel() == 0:
            continue
        step = steps[part].reshape(-1)[at // (cols // groups)].to(torch.float64)
        exact = (table[part].reshape(-1)[at].to(torch.float64) / step).clamp_(-limit, limit)
        nearest, given = exact.to(torch.float32).to(got.dtype), have[part].reshape(-1)[at]
        distance = (_ordinal(given) - _ordinal(nearest)).abs()
        middle = (given.to(torch.float64) + nearest.to(torch.float64)) / 2
        tied = (exact - middle).abs() <= _TIE_RTOL * exact.abs()
        error = distance.masked_fill((distance == 1) & tied, 0).to(torch.float64)
        error.masked_fill_(given.to(torch.float32).isnan() | exact.isnan(), torch.inf)
        at += part.start * cols
        # One code off is no failure, however often it is seen: how many may be is the share's to say.
        worst.add("codes off", error.masked_fill(error <= 1, 0), error, torch.ones_like(error), at)
        first = first if off else int(at[error.argmax()])
        off += int((error > 0).sum())
    share = none + off / (rows * cols)
    bound = none + max(rule.off_share, torch.finfo(torch.float64).tiny)
    worst.add("share of codes that are one off", share / bound, share, bound, first)
    return worst


def scale_ratio(want: torch.Tensor, got: torch.Tensor, rule: ScaleCompare) -> Worst:
    """|got - want| over rtol |want|, elementwise; a scale that is not finite or not positive is infinitely wrong."""
    r, o = rows_of(want).to(torch.float64), rows_of(got).to(torch.float64)
    error = (o - r).abs().masked_fill_(~(o.isfinite() & (o > 0)), torch.inf)
    bound = rule.rtol * r.abs()
    worst = Worst()
    worst.add("scale", error / bound, error, bound)
    return worst


def _bytes(codes: torch.Tensor) -> torch.Tensor:
    return codes.contiguous().view(torch.uint8)


def _ordinal(codes: torch.Tensor) -> torch.Tensor:
    """int16 positions of fp8 values in ascending order, both zeros at 0: neighbours differ by one."""
    raw = _bytes(codes).to(torch.int16)
    magnitude = raw & 0x7F
    return torch.where(raw > 0x7F, -magnitude, magnitude)
