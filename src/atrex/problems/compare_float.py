"""Floating outputs against a float64 oracle, and the published tolerance."""

from __future__ import annotations

import torch

from atrex.errors import UserError
from atrex.problems.metadata import FloatCompare, PublishedCompare
from atrex.problems.worst import Worst, row_chunks, rows_of

# Of the whole tensor's RMS: keeps the bound of an all-zero row positive, far under what any dtype resolves.
_TENSOR_FLOOR = 1e-6


def float_ratio(oracle: torch.Tensor, declared: torch.Tensor, got: torch.Tensor, rule: FloatCompare) -> Worst:
    """Error over bound by element and by row, a row being the last dimension; see `FloatCompare`.

    The three tensors have one shape. Elements that are not finite in the oracle, rounded to the output's dtype, must
    be the same in the output, and count in neither RMS. Raises UserError when `declared` is not finite elsewhere.
    """
    want, base, have = rows_of(oracle), rows_of(declared), rows_of(got)
    rows, cols = want.shape
    info = torch.finfo(got.dtype)
    smallest = info.smallest_normal * info.eps
    floor = _TENSOR_FLOOR * _tensor_rms(want, got.dtype)
    worst = Worst()
    broken = torch.zeros((), dtype=torch.bool, device=got.device)
    for part in row_chunks(rows, cols, got.device):
        r, b, o = (t[part].to(torch.float64) for t in (want, base, have))
        rounded = want[part].to(got.dtype).to(torch.float64)
        regular = rounded.isfinite()
        broken |= (regular & ~b.isfinite()).any()
        count = regular.sum(-1, keepdim=True).clamp_(min=1)
        rms = _rms(r.masked_fill(~regular, 0), count)
        base_rms = _rms((b - r).masked_fill_(~regular, 0), count)
        error = (o - r).abs_()
        error = torch.where(regular, error, _unequal(o, rounded)).nan_to_num_(nan=torch.inf, posinf=torch.inf)

        bound = rule.element_rtol * r.abs() + (rule.element_rms * rms + floor)
        bound = torch.where(regular, bound, 1.0).clamp_(min=smallest)
        worst.add("element", error / bound, error, bound, part.start * cols)

        row_error = _rms(error.masked_fill(~regular, 0), count)
        # Of every element at most eps of its size: were it one at the row's RMS, a kernel one unit off in the element
        # that rules a row would fail.
        ulp = info.eps * rms
        row_bound = rule.rms_factor * base_rms + rule.ulps * ulp + rule.rms_floor * rms + floor
        row_bound.clamp_(min=smallest)
        # A row's verdict is shown at its worst element, with the row's own figures as error and bound.
        at = error.argmax(-1, keepdim=True) + torch.arange(part.start, part.stop, device=got.device)[:, None] * cols
        worst.add("row RMS", row_error / row_bound, row_error, row_bound, at)
    if bool(broken):
        raise UserError("the reference is not finite at declared precision where its float64 result is")
    return worst


def published_ratio(want: torch.Tensor, got: torch.Tensor, rule: PublishedCompare) -> Worst:
    """|got - want| over atol + rtol |want|, not-finite elements equal; exact where both tolerances are zero."""
    target, have = rows_of(want), rows_of(got)
    rows, cols = target.shape
    worst = Worst()
    for part in row_chunks(rows, cols, got.device):
        if got.is_floating_point():
            b, o = target[part].to(torch.float64), have[part].to(torch.float64)
            error = torch.where(b.isfinite(), (o - b).abs(), _unequal(o, b)).nan_to_num_(
                nan=torch.inf, posinf=torch.inf
            )
            bound = torch.where(b.isfinite(), rule.atol + rule.rtol * b.abs(), 1.0)
        else:
            # Integers past 2**53 would not survive float64.
            b, o = target[part].to(torch.int64), have[part].to(torch.int64)
            error = (o != b).to(torch.float64)
            bound = torch.zeros_like(error)
        ratio = torch.where(error == 0, 0.0, error / bound)
        worst.add("element", ratio, error, bound, part.start * cols)
    return worst


def _unequal(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    same = (got == want) | (got.isnan() & want.isnan())
    return torch.where(same, 0.0, torch.inf).to(got.dtype)


def _rms(values: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """RMS of each row over `count` elements; consumes `values`. Squares of float32 values are well inside float64."""
    return (values.square_().sum(-1, keepdim=True) / count).sqrt_()


def _tensor_rms(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    count = torch.zeros((), dtype=torch.float64, device=rows.device)
    for part in row_chunks(*rows.shape, rows.device):
        regular = rows[part].to(dtype).isfinite()
        values = rows[part].to(torch.float64).masked_fill(~regular, 0)
        total += values.square_().sum()
        count += regular.sum()
    return (total / count.clamp(min=1)).sqrt()
