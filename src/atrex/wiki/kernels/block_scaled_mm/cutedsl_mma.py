"""FP8 matrix product with scales per 128-wide block of k, in the CuTe DSL: warp-level MMA on operands from registers.

A block of four warps makes a tile of 64 x 64. A tiled MMA says which elements a thread holds; each thread loads its own
straight from memory. Each block of k is summed by itself and then scaled into the fp32 total. A first kernel, for every
architecture with fp8 in `mma.sync`: no shared memory, no wgmma.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr

WARPS = 4
TILE_M, TILE_N, BLOCK_K = 16 * WARPS, 64, 128


@cute.kernel
def block_scaled_mm_kernel(
    a: cute.Tensor, b: cute.Tensor, a_scales: cute.Tensor, b_scales: cute.Tensor, out: cute.Tensor,
    tiled_mma: cute.TiledMma, m: cutlass.Int32, blocks: cutlass.Constexpr, group_n: cutlass.Constexpr,
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    mma = tiled_mma.get_slice(thread)
    a_mine = mma.partition_A(cute.local_tile(a, (TILE_M, BLOCK_K), (tile_m, None)))
    b_mine = mma.partition_B(cute.local_tile(b, (TILE_N, BLOCK_K), (tile_n, None)))
    out_mine = mma.partition_C(cute.local_tile(out, (TILE_M, TILE_N), (tile_m, tile_n)))
    places = mma.partition_C(cute.make_identity_tensor((TILE_M, TILE_N)))

    a_kept = tiled_mma.make_fragment_A(a_mine[None, None, None, 0])
    b_kept = tiled_mma.make_fragment_B(b_mine[None, None, None, 0])
    sums = tiled_mma.make_fragment_C(out_mine)
    total = tiled_mma.make_fragment_C(out_mine)
    total.fill(0.0)
    # A thread of the instruction holds two rows, of A as of the result: its first, and the one eight below.
    rows = [tile_m * TILE_M + places[((0, 0), 0, 0)][0], tile_m * TILE_M + places[((0, 1), 0, 0)][0]]
    column = tile_n * TILE_N // group_n

    for block in range(blocks):
        for i in cutlass.range_constexpr(2):
            if rows[i] < m:
                cute.autovec_copy(a_mine[(None, i, None), None, None, block], a_kept[(None, i, None), None, None])
            else:
                a_kept[(None, i, None), None, None].fill(0.0)
        cute.autovec_copy(b_mine[None, None, None, block], b_kept)
        sums.fill(0.0)
        cute.gemm(tiled_mma, sums, a_kept, b_kept, sums)
        for i in cutlass.range_constexpr(2):
            scale = cutlass.Float32(0.0)
            if rows[i] < m:
                scale = a_scales[rows[i], block] * b_scales[column, block]
            part = total[(None, i), None, None]
            part.store(part.load() + sums[(None, i), None, None].load() * scale)

    for i in cutlass.range_constexpr(2):
        if rows[i] < m:
            cute.autovec_copy(total[(None, i), None, None], out_mine[(None, i), None, None])


@cute.jit
def launch(
    a: cute.Pointer, b: cute.Pointer, a_scales: cute.Pointer, b_scales: cute.Pointer, out: cute.Pointer,
    m: cutlass.Int32, n: cutlass.Constexpr, k: cutlass.Constexpr, group_n: cutlass.Constexpr, stream: cuda.CUstream,
):  # fmt: skip
    atom = cute.nvgpu.warp.MmaFP8Op(cutlass.Float8E4M3FN, cutlass.Float32, (16, 8, 32))
    tiled_mma = cute.make_tiled_mma(atom, cute.make_layout((WARPS, 1, 1)))
    blocks = k // BLOCK_K

    def matrix(pointer, rows, columns):
        return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))

    block_scaled_mm_kernel(
        matrix(a, m, k), matrix(b, n, k), matrix(a_scales, m, blocks), matrix(b_scales, n // group_n, blocks),
        matrix(out, m, n), tiled_mma, m, blocks, group_n,
    ).launch(grid=(cute.ceil_div(m, TILE_M), n // TILE_N, 1), block=(32 * WARPS, 1, 1), stream=stream)  # fmt: skip


COMPILED = {}


class Model(torch.nn.Module):
    def __init__(self, group_n: int, group_k: int):
        super().__init__()
        if group_k != BLOCK_K or group_n % TILE_N:
            raise ValueError(f"expected blocks of {BLOCK_K} along k and a multiple of {TILE_N} along n")
        self.group_n = group_n

    def forward(self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[0]
        out = torch.empty((m, n), dtype=torch.float32, device=a.device)

        def pointer(kind, tensor):
            return make_ptr(kind, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)

        fp8, fp32 = cutlass.Float8E4M3FN, cutlass.Float32
        operands = ((fp8, a), (fp8, b), (fp32, a_scales), (fp32, b_scales), (fp32, out))
        pointers = [pointer(kind, tensor) for kind, tensor in operands]
        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        key = n, k, self.group_n
        if key not in COMPILED:
            COMPILED[key] = cute.compile(launch, *pointers, m, *key, stream)
        COMPILED[key](*pointers, m, stream)
        return out
