"""Inputs of block_scaled_mm: quantized from mixed rows, each block at a magnitude of its own."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]

LARGEST = 240.0  # of the e4m3fnuz encoding, so that every value exists in e4m3fn and e4m3fnuz alike
ROWS_AT_ONCE = 16384


def make_inputs(m: int, n: int, k: int, group_n: int, group_k: int, same_sign: bool = False) -> Inputs:
    """a [m, k], b [n, k] fp8_e4m3; a_scales [m, k/group_k], b_scales [n/group_n, k/group_k] fp32, positive.

    A block's magnitude is log-uniform over a factor of eight beside its row's, so scales cannot be left out.
    """
    a = torch.empty(m, k, dtype=torch.float8_e4m3fn)
    a_scales = torch.empty(m, k // group_k)
    for start in range(0, m, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, m))
        a[rows], a_scales[rows] = _quantized(rows.stop - start, k, 1, group_k, same_sign)
    b, b_scales = _quantized(n, k, group_n, group_k, same_sign)
    return {"a": a, "b": b, "a_scales": a_scales, "b_scales": b_scales.div_(k**0.5)}


def corner_cases(m: int, n: int, k: int, group_n: int, group_k: int) -> dict[str, Callable[[], Inputs]]:
    """One row, a ragged tail, operands of one sign (sums grow with k), scales far below and above float16's range."""

    def drawn(rows: int, factor: float = 1.0, same_sign: bool = False) -> Inputs:
        inputs = make_inputs(rows, n, k, group_n, group_k, same_sign)
        inputs["a_scales"].mul_(factor)
        return inputs

    return {
        "one_row": lambda: drawn(1),
        "ragged_tail": lambda: drawn(37),
        "same_sign": lambda: drawn(64, same_sign=True),
        "tiny_scales": lambda: drawn(16, 2.0**-40),
        "large_scales": lambda: drawn(16, 2.0**40),
    }


def _quantized(
    rows: int, cols: int, group_rows: int, group_cols: int, same_sign: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    values = mixed_rows(rows, cols, torch.float32, octaves=1.5)
    if same_sign:
        values.abs_()
    blocks = values.view(rows // group_rows, group_rows, cols // group_cols, group_cols)
    scales = blocks.abs().amax(dim=(1, 3)).div_(LARGEST)
    blocks.div_(scales[:, None, :, None])
    spread = torch.empty_like(scales).uniform_(-1.5, 1.5).exp2_()
    return values.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales.mul_(spread)
