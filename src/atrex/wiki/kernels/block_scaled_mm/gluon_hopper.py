"""FP8 matrix product with scales per 128-wide block of k, in Gluon for Hopper: a ring of TMA tiles, one wgmma a block.

Each block of k is one asynchronous product into a fresh accumulator, which is scaled into an fp32 sum in registers.
Tiles of the blocks ahead are on their way meanwhile. There is no warp specialization: every warp waits, multiplies and
adds.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

STAGES = 4


@gluon.jit
def start_copies(a_desc, b_desc, a_ring, b_ring, full, row, col, block, blocks, BK: gl.constexpr, STAGES: gl.constexpr):
    """Ask for the tiles of a block of k; nothing happens past the last one."""
    slot = block % STAGES
    wanted = block < blocks
    mbarrier.expect(full.index(slot), a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=wanted)
    tma.async_copy_global_to_shared(a_desc, [row, block * BK], full.index(slot), a_ring.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(b_desc, [col, block * BK], full.index(slot), b_ring.index(slot), pred=wanted)


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["m"])
def block_scaled_mm_kernel(
    a_desc,
    b_desc,
    a_scales_ptr,
    b_scales_ptr,
    out_ptr,
    m,
    n,
    blocks,
    GROUP_N: gl.constexpr,
    BAND: gl.constexpr,
    STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    # Programs that run together take BAND rows of tiles by all columns, so that both operands stay in the L2 cache.
    tiles_m, tiles_n = gl.cdiv(m, BM), gl.cdiv(n, BN)
    pid = gl.program_id(0)
    first = pid // (BAND * tiles_n) * BAND
    height = gl.minimum(tiles_m - first, BAND)
    inside = pid % (BAND * tiles_n)
    row = (first + inside % height) * BM
    col = inside // height * BN

    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BN, BK], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    for early in gl.static_range(STAGES - 1):
        start_copies(a_desc, b_desc, a_ring, b_ring, full, row, col, early, blocks, BK, STAGES)

    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BN, 32]
    )
    rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    a_scale = a_scales_ptr + gl.minimum(rows, m - 1).to(gl.int64) * blocks
    b_scale = b_scales_ptr + (col // GROUP_N) * blocks
    total = gl.zeros([BM, BN], gl.float32, layout=layout)
    for block in range(blocks):
        scale = gl.load(a_scale + block) * gl.load(b_scale + block)
        # The slot that is filled now was read by the product of the last round: every warp must be through with it.
        gl.thread_barrier()
        start_copies(a_desc, b_desc, a_ring, b_ring, full, row, col, block + STAGES - 1, blocks, BK, STAGES)
        here = block % STAGES
        mbarrier.wait(full.index(here), (block // STAGES) & 1)
        fresh = gl.zeros([BM, BN], gl.float32, layout=layout)
        product = warpgroup_mma(
            a_ring.index(here), b_ring.index(here).permute((1, 0)), fresh, use_acc=False, is_async=True
        )
        product = warpgroup_mma_wait(num_outstanding=0, deps=[product])
        total += product * scale[:, None]
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))

    cols = col + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    gl.store(out_ptr + rows.to(gl.int64)[:, None] * n + cols[None, :], total, mask=(rows < m)[:, None])


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
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
        block_scaled_mm_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            TensorDescriptor.from_tensor(a, [block_m, block_k], layout),
            TensorDescriptor.from_tensor(b, [block_n, block_k], layout),
            a_scales, b_scales, out, m, n, k // block_k, GROUP_N=self.group_n, BAND=16, STAGES=STAGES,
            num_warps=8 if block_m == 128 else 4,
        )  # fmt: skip
        return out
