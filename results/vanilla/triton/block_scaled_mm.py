"""FP8 matrix product with scales per 128-wide block of k: one tensor-core product a block, scaled into an fp32 sum."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["m"])
def block_scaled_mm_kernel(a_desc, b_desc, a_scales_ptr, b_scales_ptr, out_ptr, m, n, blocks, BLOCK_M: tl.constexpr,
                           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_N: tl.constexpr, BAND: tl.constexpr):
    # Programs that run together take BAND rows of tiles by all columns, so that both operands stay in the L2 cache.
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    band = pid // (BAND * tiles_n)
    first = band * BAND
    height = tl.minimum(tiles_m - first, BAND)
    inside = pid % (BAND * tiles_n)
    tile_m = first + inside % height
    tile_n = inside // height

    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a_scale = a_scales_ptr + tl.minimum(row, m - 1).to(tl.int64) * blocks
    b_scale = b_scales_ptr + (tile_n * BLOCK_N // GROUP_N) * blocks
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(0, blocks):
        a = a_desc.load([tile_m * BLOCK_M, block * BLOCK_K])
        b = b_desc.load([tile_n * BLOCK_N, block * BLOCK_K])
        scale = tl.load(a_scale + block) * tl.load(b_scale + block)
        acc += tl.dot(a, b.T, out_dtype=tl.float32) * scale[:, None]
    out = out_ptr + row.to(tl.int64)[:, None] * n + col[None, :]
    tl.store(out, acc, mask=(row[:, None] < m) & (col[None, :] < n))


class Model(torch.nn.Module):
    def __init__(self, group_n: int, group_k: int):
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def forward(self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[0]
        out = torch.empty((m, n), dtype=torch.float32, device=a.device)
        block_m, block_n, block_k = 128, min(128, self.group_n), self.group_k
        if triton.cdiv(m, block_m) * triton.cdiv(n, block_n) < 132:
            block_m = 64
        grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
        block_scaled_mm_kernel[grid](
            TensorDescriptor.from_tensor(a, [block_m, block_k]), TensorDescriptor.from_tensor(b, [block_n, block_k]),
            a_scales, b_scales, out, m, n, triton.cdiv(k, block_k), BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
            GROUP_N=self.group_n, BAND=16, num_warps=8 if block_m == 128 else 4, num_stages=4,
        )  # fmt: skip
        return out
