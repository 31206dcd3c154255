"""FP8 matrix product with a scale per block of either operand."""

import torch
from torch import nn

ROWS_AT_ONCE = 16384  # bounds the dequantized copy of a


class Model(nn.Module):
    """out = (a * a_scales) @ (b * b_scales)^T, scales spread over their blocks.

    a [m, k] fp8 with a_scales [m, k / group_k]; b [n, k] fp8 with b_scales [n / group_n, k / group_k];
    -> out [m, n] in the dtype of the scales, at least fp32, in which the products are accumulated.
    """

    def __init__(self, group_n: int, group_k: int) -> None:
        super().__init__()
        self.group_n = group_n
        self.group_k = group_k

    def forward(self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(a_scales.dtype, torch.float32)
        spread = b_scales.to(acc).repeat_interleave(self.group_n, 0).repeat_interleave(self.group_k, 1)
        right = (b.to(acc) * spread).T
        out = torch.empty(a.shape[0], b.shape[0], dtype=acc, device=a.device)
        for start in range(0, a.shape[0], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            left = a[rows].to(acc) * a_scales[rows].to(acc).repeat_interleave(self.group_k, 1)
            torch.mm(left, right, out=out[rows])
        return out
