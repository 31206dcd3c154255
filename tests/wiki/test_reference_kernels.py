"""What reference kernels that cannot run here rest on, replayed on the CPU."""

import torch


def test_the_lanes_of_the_cdna3_gemm_sum_what_the_reference_sums():
    """The index arithmetic of kernels/block_scaled_mm/flydsl_cdna3.py, with the documented layout of MFMA 16x16x32.

    Lane l gives 8 values of row l % 16, from k = 8 * (l // 16); it gets rows 4 * (l // 16) + i of column l % 16. The
    kernel loads 16 bytes a lane for two of them, so that k is permuted, alike in both operands.
    """
    torch.manual_seed(0)
    m, n, k, group_n = 37, 128, 256, 128
    a, b = torch.randn(m, k), torch.randn(n, k)
    a_scales, b_scales = torch.rand(m, k // 128) + 0.5, torch.rand(n // group_n, k // 128) + 0.5
    lane = torch.arange(64)
    part, quarter = lane % 16, lane // 16
    out = torch.full((m, n), float("nan"))
    for first_row in range(0, -(-m // 64) * 64, 16):
        for first_col in range(0, n, 64):
            rows = torch.clamp(first_row + part, max=m - 1)
            totals = torch.zeros(4, 64, 4)
            for block in range(k // 128):
                sums = torch.zeros(4, 64, 4)
                for half in range(2):
                    at = ((block * 16 + half * 8 + quarter * 2) * 8)[:, None] + torch.arange(16)
                    x = a[rows[:, None], at]
                    for piece in range(4):
                        y = b[(first_col + piece * 16 + part)[:, None], at]
                        for step in range(2):
                            eight = slice(8 * step, 8 * step + 8)
                            sums[piece] += _mfma_16x16x32(x[:, eight], y[:, eight])
                wanted = torch.clamp(first_row + (quarter * 4)[:, None] + torch.arange(4), max=m - 1)
                totals += sums * a_scales[wanted, block] * b_scales[first_col // group_n, block]
            for i in range(4):
                row = first_row + quarter * 4 + i
                for piece in range(4):
                    inside = row < m
                    out[row[inside], (first_col + piece * 16 + part)[inside]] = totals[piece, inside, i]
    wide = a * a_scales.repeat_interleave(128, 1)
    expected = wide @ (b * b_scales.repeat_interleave(group_n, 0).repeat_interleave(128, 1)).T
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def _mfma_16x16x32(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What each of 64 lanes gets [64, 4] for the operands that each gives [64, 8]."""
    lane = torch.arange(64)
    left, right = torch.zeros(16, 32), torch.zeros(16, 32)
    place = (lane // 16 * 8)[:, None] + torch.arange(8)
    left[(lane % 16)[:, None], place] = x
    right[(lane % 16)[:, None], place] = y
    product = left @ right.T
    return product[(lane // 16 * 4)[:, None] + torch.arange(4), (lane % 16)[:, None]]
