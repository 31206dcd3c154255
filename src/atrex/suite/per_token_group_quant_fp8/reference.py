"""Quantization to fp8 with one scale for each group of a token's elements."""

import torch
from torch import nn

ROWS_AT_ONCE = 16384  # bounds the fp32 copy of x


class Model(nn.Module):
    """scale = max(max|x| of the group, 1e-10) / M, quantized = x / scale to the nearest fp8, M the largest fp8.

    x [tokens, hidden] bf16 -> {"quantized" [tokens, hidden] in the chip's e4m3 encoding (M is 448 in e4m3fn, 240 in
    e4m3fnuz), "scales" [tokens, hidden / group_size] fp32}. Of float64 operands, quantized stays in float64 unrounded.
    """

    fp8_dtype = torch.float8_e4m3fn

    def __init__(self, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(x.dtype, torch.float32)
        largest = torch.finfo(self.fp8_dtype).max
        tokens, hidden = x.shape
        groups = hidden // self.group_size
        quantized = torch.empty(x.shape, dtype=acc if acc == torch.float64 else self.fp8_dtype, device=x.device)
        scales = torch.empty(tokens, groups, dtype=acc, device=x.device)
        for start in range(0, tokens, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            wide = x[rows].to(acc).view(-1, groups, self.group_size)
            scales[rows] = wide.abs().amax(-1).clamp_(min=1e-10) / largest
            scaled = (wide / scales[rows, :, None]).clamp_(-largest, largest)
            quantized[rows] = scaled.view(-1, hidden).to(quantized.dtype)
        return {"quantized": quantized, "scales": scales}
