"""FP8 matrix product with scales per 128-wide block of k, in FlyDSL for CDNA 3: MFMA from registers, a wave 16 x 64.

A workgroup of four waves makes a tile of 64 x 64. Lanes read their operands straight from memory, 16 bytes each, in the
order that the instruction wants up to a permutation of k, which is the same for both operands and so leaves the sum as
it is. Each block of k is summed by itself and then scaled into the fp32 total. A first kernel: no LDS.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch
from flydsl.expr import rocdl
from flydsl.expr.typing import T

WAVE, WAVES = 64, 4
TILE_M, TILE_N, BLOCK_K = 16 * WAVES, 64, 128
PIECES = TILE_N // 16  # 16 x 16 results of a wave


@flyc.kernel
def block_scaled_mm_kernel(
    a: fx.Pointer, b: fx.Pointer, a_scales: fx.Pointer, b_scales: fx.Pointer, out: fx.Pointer, m: fx.Int32,
    n: fx.Constexpr[int], blocks: fx.Constexpr[int], group_n: fx.Constexpr[int],
):  # fmt: skip
    lane = fx.thread_idx.x % WAVE
    wave = fx.thread_idx.x // WAVE
    part, quarter = lane % 16, lane // 16
    first_row = fx.block_idx.x * TILE_M + wave * 16
    first_col = fx.block_idx.y * TILE_N
    last = m - fx.Int32(1)

    # Rows past the end repeat the last one: they are computed and not stored. Pointers count 8-byte words.
    words = blocks * BLOCK_K // 8
    row = first_row + part
    row = (row < m).select(row, last)
    a_row = a + (fx.Int64(row) * fx.Int64(words) + fx.Int64(quarter * 2))
    b_col = b + (fx.Int64(first_col + part) * fx.Int64(words) + fx.Int64(quarter * 2))
    pair = fx.Vector[fx.Int64, 2]

    scale_rows = []
    for i in fx.range_constexpr(4):
        at = first_row + quarter * 4 + i
        scale_rows.append(a_scales + fx.Int64((at < m).select(at, last)) * fx.Int64(blocks))
    b_scale = b_scales + fx.Int64(first_col // group_n) * fx.Int64(blocks)

    totals = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in fx.range_constexpr(PIECES)]
    for block, carried in range(0, blocks, 1, init=totals):
        sums = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in fx.range_constexpr(PIECES)]
        for half in fx.range_constexpr(BLOCK_K // 64):
            word = fx.Int64(fx.Int32(block) * (BLOCK_K // 8) + half * 8)
            x = (a_row + word).load(pair)
            for piece in fx.range_constexpr(PIECES):
                y = (b_col + (word + fx.Int64(piece * 16 * words))).load(pair)
                for step in fx.range_constexpr(2):
                    operands = [x[step], y[step], sums[piece], 0, 0, 0]
                    sums[piece] = fx.Vector(rocdl.mfma_f32_16x16x32_fp8_fp8(T.f32x4, operands))
        shared = (b_scale + fx.Int32(block)).load(fx.Float32)
        scales = fx.Vector.from_elements(
            [(scale_rows[i] + fx.Int32(block)).load(fx.Float32) * shared for i in fx.range_constexpr(4)], fx.Float32
        )
        results = yield [fx.Vector(carried[p]) + sums[p] * scales for p in fx.range_constexpr(PIECES)]

    for i in fx.range_constexpr(4):
        at = first_row + quarter * 4 + i
        if at < m:
            place = out + (fx.Int64(at) * fx.Int64(n) + fx.Int64(first_col + part))
            for piece in fx.range_constexpr(PIECES):
                (place + piece * 16).store(fx.Vector(results[piece])[i])


@flyc.jit
def launch(
    a: fx.Pointer, b: fx.Pointer, a_scales: fx.Pointer, b_scales: fx.Pointer, out: fx.Pointer, m: fx.Int32,
    tiles_m: fx.Int32, n: fx.Constexpr[int], blocks: fx.Constexpr[int], group_n: fx.Constexpr[int], stream: fx.Stream,
):  # fmt: skip
    block_scaled_mm_kernel(a, b, a_scales, b_scales, out, m, n, blocks, group_n).launch(
        grid=(tiles_m, n // TILE_N, 1), block=(WAVE * WAVES, 1, 1), stream=stream
    )


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

        def pointer(kind, tensor, align):
            return flyc.from_c_void_p(kind, tensor.data_ptr(), assumed_align=align)

        args = (
            pointer(fx.Int64, a, 16), pointer(fx.Int64, b, 16), pointer(fx.Float32, a_scales, 4),
            pointer(fx.Float32, b_scales, 4), pointer(fx.Float32, out, 4), m, -(-m // TILE_M), n, k // BLOCK_K,
            self.group_n, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        key = n, k, self.group_n
        if key in COMPILED:
            COMPILED[key](*args)
        else:
            COMPILED[key] = flyc.compile(launch, *args)  # compiles and launches
        return out
