"""Residual addition, RMS normalisation and dynamic quantization to fp8 with one scale a token."""

import torch
from torch import nn


class Model(nn.Module):
    """residual_out = round(x + residual); n = round(rms_norm(residual_out) * weight); n quantized by rows.

    scale = max(max|n| of the row, 1e-12) / M, quantized = n / scale to the nearest fp8, M the largest fp8.
    x, residual [tokens, hidden], weight [hidden] bf16 -> {"quantized" [tokens, hidden] in the chip's e4m3 encoding (M
    is 448 in e4m3fn, 240 in e4m3fnuz), "scale" [tokens, 1] fp32, "residual_out" [tokens, hidden] bf16}. A kernel may
    leave n unrounded. Of float64 operands nothing is rounded, and quantized stays in float64.
    """

    fp8_dtype = torch.float8_e4m3fn

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(x.dtype, torch.float32)
        total = (x.to(acc) + residual.to(acc)).to(x.dtype)
        wide = total.to(acc)
        inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed = (wide * inverse_rms * weight.to(acc)).to(x.dtype).to(acc)
        largest = torch.finfo(self.fp8_dtype).max
        scale = normed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
        quantized = (normed / scale).clamp_(-largest, largest)
        if acc != torch.float64:
            quantized = quantized.to(self.fp8_dtype)
        return {"quantized": quantized, "scale": scale, "residual_out": total}
