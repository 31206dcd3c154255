"""block_scaled_mm in Triton, a tile a program; `kept` is the dtype that sums over the blocks are kept in."""

import torch
import triton
import triton.language as tl


@triton.jit
def block_scaled_mm_kernel(
    a_ptr, b_ptr, a_scales_ptr, b_scales_ptr, out_ptr, m, n, K: tl.constexpr, GROUP_N: tl.constexpr,
    GROUP_K: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    deep = tl.arange(0, GROUP_K)
    live = row < m
    total = tl.zeros((BLOCK, BLOCK), dtype=KEPT)
    for block in range(0, K // GROUP_K):
        at = block * GROUP_K + deep
        a = tl.load(a_ptr + row[:, None] * K + at[None, :], mask=live[:, None], other=0.0)
        b = tl.load(b_ptr + col[None, :] * K + at[:, None])
        scale = tl.load(a_scales_ptr + row * (K // GROUP_K) + block, mask=live, other=0.0)[:, None]
        scale = scale * tl.load(b_scales_ptr + (col // GROUP_N) * (K // GROUP_K) + block)[None, :]
        total = (total + tl.dot(a, b, out_dtype=tl.float32) * scale).to(KEPT)
    tl.store(out_ptr + row[:, None] * n + col[None, :], total.to(tl.float32), mask=live[:, None])


def block_scaled_mm(a, b, a_scales, b_scales, group_n, kept=tl.float32):
    """For n a multiple of 64."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty(m, n, dtype=torch.float32, device=a.device)
    block_scaled_mm_kernel[(triton.cdiv(m, 64), n // 64)](
        a, b, a_scales, b_scales, out, m, n, K=k, GROUP_N=group_n, GROUP_K=k // a_scales.shape[1], KEPT=kept, BLOCK=64
    )
    return out


class Model(torch.nn.Module):
    def __init__(self, group_n: int, group_k: int):
        super().__init__()
        self.group_n = group_n

    def forward(self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        return block_scaled_mm(a, b, a_scales, b_scales, self.group_n)
