"""FP8 matrix product with scales per 128-wide block of k: one tensor-core product a block, scaled into an fp32 sum."""

from typing import Literal

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_M: Literal[64, 128, 256] = 128
BLOCK_N: Literal[32, 64, 128] = 128  # no more than a block of scales
NUM_WARPS: Literal[4, 8] = 8
NUM_STAGES: Literal[2, 3, 4, 5] = 4
BAND: Literal[4, 8, 16, 32] = 16  # rows of tiles that run together
FEW_TILES: Literal[0, 66, 132, 264] = 132  # with fewer tiles than this, tiles are 64 rows


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["m"])
def block_scaled_mm_kernel(
    a_desc, b_desc, a_scales_ptr, b_scales_ptr, out_ptr, m, n, blocks,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, GROUP_N: tl.constexpr, BANDS: tl.constexpr,
):  # fmt: skip
    # Programs that run together take BANDS rows of tiles by all columns, so that both operands stay in the L2 cache.
    tiles_m, tiles_n = tl.cdiv(m, TALL), tl.cdiv(n, WIDE)
    pid = tl.program_id(0)
    band = pid // (BANDS * tiles_n)
    first = band * BANDS
    height = tl.minimum(tiles_m - first, BANDS)
    inside = pid % (BANDS * tiles_n)
    tile_m = first + inside % height
    tile_n = inside // height

    row = tile_m * TALL + tl.arange(0, TALL)
    col = tile_n * WIDE + tl.arange(0, WIDE)
    a_scale = a_scales_ptr + tl.minimum(row, m - 1).to(tl.int64) * blocks
    b_scale = b_scales_ptr + (tile_n * WIDE // GROUP_N) * blocks
    acc = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for block in range(0, blocks):
        a = a_desc.load([tile_m * TALL, block * DEEP])
        b = b_desc.load([tile_n * WIDE, block * DEEP])
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
        tall, wide, deep = BLOCK_M, min(BLOCK_N, self.group_n), self.group_k
        if triton.cdiv(m, tall) * triton.cdiv(n, wide) < FEW_TILES:
            tall = 64
        grid = (triton.cdiv(m, tall) * triton.cdiv(n, wide),)
        block_scaled_mm_kernel[grid](
            TensorDescriptor.from_tensor(a, [tall, deep]), TensorDescriptor.from_tensor(b, [wide, deep]),
            a_scales, b_scales, out, m, n, triton.cdiv(k, deep), TALL=tall, WIDE=wide, DEEP=deep,
            GROUP_N=self.group_n, BANDS=BAND, num_warps=NUM_WARPS if tall > 64 else 4, num_stages=NUM_STAGES,
        )  # fmt: skip
        return out
