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
    scale, finite = _whole(want, base, got.dtype)
    floor = _TENSOR_FLOOR * scale
    worst = Worst()
    broken = torch.zeros((), dtype=torch.bool, device=got.device)
    for part in row_chunks(rows, cols, got.device):
        r = want[part].to(torch.float64)
        if finite:
            error = (_wide(have[part]) - r).abs_().nan_to_num_(nan=torch.inf, posinf=torch.inf)
            rms, base_rms, row_error = (_row_rms(values) for values in (r, _wide(base[part]) - r, error))
            bound = r.abs().mul_(rule.element_rtol).add_(rule.element_rms * rms + floor).clamp_(min=smallest)
        else:
            b, o = (t[part].to(torch.float64) for t in (base, have))
            rounded = want[part].to(got.dtype).to(torch.float64)
            regular = rounded.isfinite()
            broken |= (regular & ~b.isfinite()).any()
            count = regular.sum(-1, keepdim=True).clamp_(min=1)
            error = (o - r).abs_()
            error = torch.where(regular, error, _unequal(o, rounded)).nan_to_num_(nan=torch.inf, posinf=torch.inf)
            rms, base_rms, row_error = (
                _row_rms(values.masked_fill(~regular, 0), count) for values in (r, b - r, error)
            )
            bound = rule.element_rtol * r.abs() + (rule.element_rms * rms + floor)
            bound = torch.where(regular, bound, 1.0).clamp_(min=smallest)
        worst.add("element", error / bound, error, bound, part.start * cols)

        # Of every element at most eps of its size: were it one at the row's RMS, a kernel one unit off in the element
        # that rules a row would fail.
        ulp = info.eps * rms
        row_bound = rule.rms_factor * base_rms + rule.ulps * ulp + rule.rms_floor * rms + floor
        row_bound.clamp_(min=smallest)
        # A row's verdict is shown at its worst element, with the row's own figures as error and bound.
        at = error.argmax(-1, keepdim=True) + torch.arange(part.start, part.stop, device=got.device)[:, None] * cols
        worst.add("row RMS", row_error / row_bound, row_error, row_bound, at)
    if not finite and bool(broken):
        raise UserError("the reference is not finite at declared precision where its float64 result is")
    return worst


def published_agrees(want: torch.Tensor, got: torch.Tensor, rule: PublishedCompare) -> bool:
    """Whether no element is over 1 in `published_ratio`, in fewer passes where all is finite and well."""
    if got.is_floating_point():
        target, have = rows_of(want), rows_of(got)
        close = []
        for part in row_chunks(*target.shape, got.device):
            b = target[part].to(torch.float64)
            within = b.abs().mul_(rule.rtol).add_(rule.atol)
            close.append(within.sub_(b.sub_(_wide(have[part])).abs_()).min() >= 0)  # NaN where it is not finite
        if bool(torch.stack(close).all()):
            return True
    return published_ratio(want, got, rule).read()[0] <= 1


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


def _wide(values: torch.Tensor) -> torch.Tensor:
    """What float64 takes as an operand: all but fp8, which torch promotes to nothing."""
    return values.to(torch.float64) if values.element_size() == 1 else values


def _finite(values: torch.Tensor) -> torch.Tensor:
    return _wide(values).isfinite()


def _unequal(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    same = (got == want) | (got.isnan() & want.isnan())
    return torch.where(same, 0.0, torch.inf).to(got.dtype)


def _row_rms(values: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
    """RMS of each row, over `count` elements or all. Squares of float32 values are well inside float64."""
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    return norm / (values.shape[-1] ** 0.5 if count is None else count.to(torch.float64).sqrt())


def _whole(rows: torch.Tensor, base: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
    """RMS of the whole tensor's elements that are finite in `dtype`, and whether all are, and all of `base`.

    The second one is what allows the short way, with a third of the passes over memory. Synchronizes with the device.
    """
    chunks = list(row_chunks(*rows.shape, rows.device))
    regular = torch.stack([_finite(rows[part].to(dtype)).all() & _finite(base[part]).all() for part in chunks])
    finite = bool(regular.all())
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    count = torch.full_like(total, rows.numel() if finite else 0)
    for part in chunks:
        values = rows[part].to(torch.float64)
        if not finite:
            kept = _finite(rows[part].to(dtype))
            values = values.masked_fill(~kept, 0)
            count += kept.sum()
        total += torch.linalg.vector_norm(values).square()
    return (total / count.clamp(min=1)).sqrt(), finite
