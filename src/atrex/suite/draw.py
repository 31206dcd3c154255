"""Distributions that the shipped input functions share. Changing one changes the suite: it is hashed with it."""

from __future__ import annotations

import torch


def row_scales(rows: int, octaves: float = 3.0) -> torch.Tensor:
    """[rows, 1] float32 factors, log-uniform in 2**-octaves .. 2**octaves, so that no constant fits all rows."""
    return torch.empty(rows, 1).uniform_(-octaves, octaves).exp2_()


def mixed_rows(rows: int, cols: int, dtype: torch.dtype, octaves: float = 3.0) -> torch.Tensor:
    """[rows, cols] values whose rows take turns among four distributions, each row at a scale of its own.

    Gaussian; heavy-tailed (x|x|); Gaussian with one column in 64 eight times larger, as activation outliers are;
    Gaussian around one half. Which row starts is drawn, so that a single row may be of any kind.
    """
    x = torch.randn(rows, cols, dtype=dtype)
    start = int(torch.randint(4, (), device="cpu"))
    heavy, outliers, shifted = (x[(kind - start) % 4 :: 4] for kind in (1, 2, 3))
    heavy.mul_(heavy.abs())
    columns = torch.rand(cols) < 1 / 64
    outliers.mul_(torch.where(columns, 8.0, 1.0).to(dtype))
    shifted.add_(0.5)
    return x.mul_(row_scales(rows, octaves).to(dtype))


def heavy_ends(x: torch.Tensor) -> None:
    """Let the last column of every second row of x [rows, cols], and the first of the others, outweigh its row."""
    x[0::2, -1] = 3 * x.shape[1] ** 0.5
    x[1::2, 0] = -3 * x.shape[1] ** 0.5


def norm_weight(size: int, dtype: torch.dtype) -> torch.Tensor:
    """[size] factors around one, far enough from it that leaving the weight out is noticed in every column block."""
    return (1 + 0.4 * torch.randn(size)).to(dtype)
