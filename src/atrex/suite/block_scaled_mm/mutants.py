"""Wrong and right block_scaled_mm kernels for mutation testing."""

import torch

_LEFT = "left = a[rows].to(acc) * a_scales[rows].to(acc).repeat_interleave(self.group_k, 1)"
WRONG = {
    "a_scales left out": (_LEFT, "left = a[rows].to(acc)"),
    "b_scales left out": ("(b.to(acc) * spread).T", "b.to(acc).T"),
    "a_scales of the block before": (_LEFT, _LEFT.replace("a_scales[rows]", "a_scales.roll(1, 1)[rows]")),
    "b_scales transposed": ("spread = b_scales.to(acc)", "spread = b_scales.to(acc).T.reshape(b_scales.shape)"),
    "a_scales averaged over a row": (
        _LEFT,
        "left = a[rows].to(acc) * a_scales[rows].to(acc).mean(1, keepdim=True)",
    ),
    "last block of k dropped": (_LEFT, _LEFT + "\n            left[:, -self.group_k :] = 0"),
    "last column of k dropped": (_LEFT, _LEFT + "\n            left[:, -1:] = 0"),
    "b not transposed within a block": (
        "(b.to(acc) * spread).T",
        "(b.to(acc).unflatten(1, (-1, 2)).flip(2).flatten(1) * spread).T",
    ),
    "scales 10 % off": ("right = (b.to(acc) * spread)", "right = (b.to(acc) * spread * 1.1)"),
}
LOW_PRECISION = torch.float16


class _BlockByBlock(torch.nn.Module):
    """The sum over blocks with the scales applied to each block's product, as the operator is defined."""

    def __init__(self, group_n, group_k):
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def product(self, a, b):
        return a.float() @ b.float().T

    def forward(self, a, b, a_scales, b_scales):
        out = torch.zeros(a.shape[0], b.shape[0], device=a.device)
        for first in range(0, len(a), 2**15):
            rows = slice(first, first + 2**15)
            for block in range(a.shape[1] // self.group_k):
                columns = slice(block * self.group_k, (block + 1) * self.group_k)
                right = b_scales[:, block].repeat_interleave(self.group_n)
                out[rows] += self.product(a[rows, columns], b[:, columns]) * a_scales[rows, block, None] * right
        return out


class _InBfloat16(_BlockByBlock):
    """Products in bfloat16, which holds fp8 exactly, accumulated in float32 within a block and across blocks."""

    def product(self, a, b):
        return a.to(torch.bfloat16).float() @ b.to(torch.bfloat16).float().T


RIGHT = {"block by block": _BlockByBlock, "operands widened to bfloat16": _InBfloat16}
