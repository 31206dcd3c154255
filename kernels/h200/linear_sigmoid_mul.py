"""A linear layer that ends in bias, sigmoid and the gated operand: persistent, warp-specialized, in Gluon for Hopper.

Tiles of 128 x BLOCK_N: two consumer warpgroups of 64 rows, three copying warps, a ring for either one's rows of x and
one for the weight. The gated tile of a warpgroup comes through the weight's ring behind the last k-block, is turned
into the result where it lies and leaves by TMA. Warpgroup 1 stays LEAD k-blocks behind, so that one ends a tile while
the other multiplies. Up to 16 rows: a program asks for all it will read, 32 columns of the weight, before it
multiplies, by one warp. One feature: a program takes a row and asks for all of it before it adds.
Bound by the tensor cores (power) and the last wave; few rows by memory.
Sweeps on an H200: 45 us a wave of 64 k-blocks and 14 us beside; 6717 rows: 306 us, S 0.74, 320 us without halves; 4001
rows: 189 us, S 0.72; 90 rows: 14.5 us, 16 us with 32 columns a tile, 17.5 us with 128; 13 rows: 10.9 us, 16 us with
tiles instead.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

UNITS = 132  # multiprocessors
BLOCK_K = 64
WIDE_K = 256  # of few rows
HALF = {"BLOCK_N": 128, "X_SLOTS": 6, "W_SLOTS": 6, "LEAD": 0}  # of a tile of the last wave


def config(m: int, n: int, k: int) -> dict[str, int]:
    """BLOCK_N columns, slots of the rings, LEAD k-blocks, BAND rows of tiles."""
    # Shared memory holds 32 columns of the weight and 16 rows of x.
    if m <= 16 and k <= 9 * WIDE_K:
        return {"ROWS": 16, "BLOCK_N": 32}
    if triton.cdiv(m, 128) * triton.cdiv(n, 32) <= UNITS:
        return {"BLOCK_N": 64, "X_SLOTS": 8, "W_SLOTS": 10, "LEAD": 0, "BAND": 1}
    if triton.cdiv(m, 128) * triton.cdiv(n, 128) <= UNITS:
        return {"BLOCK_N": 128, "X_SLOTS": 6, "W_SLOTS": 6, "LEAD": 0, "BAND": 8}
    return {"BLOCK_N": 256, "X_SLOTS": 4, "W_SLOTS": 5, "LEAD": 2 if k >= 1024 else 0, "BAND": 16}


@gluon.jit
def tile_place(part, first, tiles_m, tiles_n, BAND: gl.constexpr, SPLIT: gl.constexpr):
    """Programs that run together take BAND rows of tiles, so that both operands stay in the L2 cache.

    From tile `first` on, each in SPLIT parts side by side.
    """
    tile = first + part // SPLIT
    band = tile // (BAND * tiles_n)
    height = gl.minimum(tiles_m - band * BAND, BAND)
    inside = tile % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height * SPLIT + part % SPLIT


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy_x(desc, ring, full, empty, lead, first, parts, tiles_m, tiles_n, PART: gl.constexpr, LEAD: gl.constexpr,
           BAND: gl.constexpr, SPLIT: gl.constexpr, BLOCKS: gl.constexpr):
    SLOTS: gl.constexpr = ring.shape[0]
    BK: gl.constexpr = ring.shape[2]
    slot = 0
    phase = 1
    count = 0
    for part in range(gl.program_id(0), parts, gl.num_programs(0)):
        tile_m, tile_n = tile_place(part, first, tiles_m, tiles_n, BAND, SPLIT)
        for block in range(BLOCKS):
            mbarrier.wait(empty.index(slot), phase)
            if LEAD > 0 and PART == 0:
                # This slot held block LEAD - 1, which warpgroup 0 is now through with: warpgroup 1 may start.
                mbarrier.arrive(lead, pred=count == LEAD - 1 + SLOTS)
                count += 1
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            place = [tile_m * 128 + PART * 64, block * BK]
            tma.async_copy_global_to_shared(desc, place, full.index(slot), ring.index(slot))
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def copy_w(desc, gated_desc, ring, full, empty, first, parts, tiles_m, tiles_n, BAND: gl.constexpr,
           SPLIT: gl.constexpr, BLOCKS: gl.constexpr):
    SLOTS: gl.constexpr = ring.shape[0]
    BN: gl.constexpr = ring.shape[1]
    BK: gl.constexpr = ring.shape[2]
    slot = 0
    phase = 1
    for part in range(gl.program_id(0), parts, gl.num_programs(0)):
        tile_m, tile_n = tile_place(part, first, tiles_m, tiles_n, BAND, SPLIT)
        for block in range(BLOCKS):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            tma.async_copy_global_to_shared(desc, [tile_n * BN, block * BK], full.index(slot), ring.index(slot))
            slot, phase = advance(slot, phase, SLOTS)
        for half in gl.static_range(2):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), gated_desc.block_type.nbytes)
            gated = ring.index(slot)._reinterpret(gated_desc.dtype, [64, BN], gated_desc.layout)
            place = [tile_m * 128 + half * 64, tile_n * BN]
            tma.async_copy_global_to_shared(gated_desc, place, full.index(slot), gated)
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def sigmoid(x):
    """1 / (1 + 2 ** (-x / ln 2)), with an infinite power a zero."""
    power = gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], dtype=gl.float32,
                                      is_pure=True, pack=1)  # fmt: skip
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + power], dtype=gl.float32,
                                     is_pure=True, pack=1)  # fmt: skip


@gluon.jit
def multiply(x_ring, w_ring, x_full, x_empty, w_full, w_empty, lead, bias_ptr, out_desc, first, parts, tiles_m,
             tiles_n, PART: gl.constexpr, LEAD: gl.constexpr, BAND: gl.constexpr, SPLIT: gl.constexpr, N: gl.constexpr,
             BLOCKS: gl.constexpr):
    X_SLOTS: gl.constexpr = x_ring.shape[0]
    W_SLOTS: gl.constexpr = w_ring.shape[0]
    BN: gl.constexpr = w_ring.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    zero = gl.zeros([64, BN], gl.float32, layout=layout)
    inside = gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    x_slot = 0
    x_phase = 0
    w_slot = 0
    w_phase = 0
    if LEAD > 0 and PART == 1:
        mbarrier.wait(lead, 0)
    for part in range(gl.program_id(0), parts, gl.num_programs(0)):
        tile_m, tile_n = tile_place(part, first, tiles_m, tiles_n, BAND, SPLIT)
        # The sums start at the bias.
        col = tile_n * BN + inside
        bias = gl.load(bias_ptr + col, mask=col < N, other=0.0)
        mbarrier.wait(w_full.index(w_slot), w_phase)
        mbarrier.wait(x_full.index(x_slot), x_phase)
        start = zero + bias.to(gl.float32)[None, :]
        product = warpgroup_mma(x_ring.index(x_slot), w_ring.index(w_slot).permute((1, 0)), start, is_async=True)
        for _ in range(1, BLOCKS):
            x_done = x_slot
            w_done = w_slot
            x_slot, x_phase = advance(x_slot, x_phase, X_SLOTS)
            w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)
            mbarrier.wait(w_full.index(w_slot), w_phase)
            mbarrier.wait(x_full.index(x_slot), x_phase)
            product = warpgroup_mma(x_ring.index(x_slot), w_ring.index(w_slot).permute((1, 0)), product, is_async=True)
            product = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[product]))
            mbarrier.arrive(x_empty.index(x_done))
            mbarrier.arrive(w_empty.index(w_done))
        acc = warpgroup_mma_wait(0, deps=[product])
        mbarrier.arrive(x_empty.index(x_slot))
        mbarrier.arrive(w_empty.index(w_slot))
        x_slot, x_phase = advance(x_slot, x_phase, X_SLOTS)
        w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)
        for half in gl.static_range(2):
            mbarrier.wait(w_full.index(w_slot), w_phase)
            if half == PART:
                gated = w_ring.index(w_slot)._reinterpret(out_desc.dtype, [64, BN], out_desc.layout)
                result = gated.load(layout).to(gl.float32) * sigmoid(acc)
                gated.store(result.to(out_desc.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out_desc, [tile_m * 128 + PART * 64, tile_n * BN], gated)
                tma.store_wait(0)
            mbarrier.arrive(w_empty.index(w_slot))
            w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)


# Counts change from call to call: they must not make another specialization.
@gluon.jit(do_not_specialize=["first", "parts", "tiles_m"])
def linear_sigmoid_mul_kernel(x_desc, w_desc, bias_ptr, gated_desc, out_desc, first, parts, tiles_m, N: gl.constexpr,
                              BLOCKS: gl.constexpr, X_SLOTS: gl.constexpr, W_SLOTS: gl.constexpr, LEAD: gl.constexpr,
                              BAND: gl.constexpr, SPLIT: gl.constexpr):
    BN: gl.constexpr = w_desc.block_type.shape[0]
    BK: gl.constexpr = w_desc.block_type.shape[1]
    tiles_n = gl.cdiv(N, BN * SPLIT)
    x_ring0 = gl.allocate_shared_memory(x_desc.dtype, [X_SLOTS, 64, BK], x_desc.layout)
    x_ring1 = gl.allocate_shared_memory(x_desc.dtype, [X_SLOTS, 64, BK], x_desc.layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [W_SLOTS, BN, BK], w_desc.layout)
    x_full0 = gl.allocate_shared_memory(gl.int64, [X_SLOTS, 1], mbarrier.MBarrierLayout())
    x_full1 = gl.allocate_shared_memory(gl.int64, [X_SLOTS, 1], mbarrier.MBarrierLayout())
    x_empty0 = gl.allocate_shared_memory(gl.int64, [X_SLOTS, 1], mbarrier.MBarrierLayout())
    x_empty1 = gl.allocate_shared_memory(gl.int64, [X_SLOTS, 1], mbarrier.MBarrierLayout())
    w_full = gl.allocate_shared_memory(gl.int64, [W_SLOTS, 1], mbarrier.MBarrierLayout())
    w_empty = gl.allocate_shared_memory(gl.int64, [W_SLOTS, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(X_SLOTS):
        mbarrier.init(x_full0.index(slot), count=1)
        mbarrier.init(x_full1.index(slot), count=1)
        mbarrier.init(x_empty0.index(slot), count=1)
        mbarrier.init(x_empty1.index(slot), count=1)
    for slot in gl.static_range(W_SLOTS):
        mbarrier.init(w_full.index(slot), count=1)
        mbarrier.init(w_empty.index(slot), count=2)
    mbarrier.init(lead, count=1)
    gl.warp_specialize(
        [
            (multiply, (x_ring0, w_ring, x_full0, x_empty0, w_full, w_empty, lead, bias_ptr, out_desc, first, parts,
                        tiles_m, tiles_n, 0, LEAD, BAND, SPLIT, N, BLOCKS)),
            (multiply, (x_ring1, w_ring, x_full1, x_empty1, w_full, w_empty, lead, bias_ptr, out_desc, first, parts,
                        tiles_m, tiles_n, 1, LEAD, BAND, SPLIT, N, BLOCKS)),
            (copy_x, (x_desc, x_ring0, x_full0, x_empty0, lead, first, parts, tiles_m, tiles_n, 0, LEAD, BAND, SPLIT,
                      BLOCKS)),
            (copy_x, (x_desc, x_ring1, x_full1, x_empty1, lead, first, parts, tiles_m, tiles_n, 1, LEAD, BAND, SPLIT,
                      BLOCKS)),
            (copy_w, (w_desc, gated_desc, w_ring, w_full, w_empty, first, parts, tiles_m, tiles_n, BAND, SPLIT,
                      BLOCKS)),
        ],
        [4, 1, 1, 1],
        [240, 24, 24, 24],
    )  # fmt: skip


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["m"])
def few_rows_kernel(x_desc, w_desc, bias_ptr, gated_ptr, out_ptr, m, N: gl.constexpr, BLOCKS: gl.constexpr):
    ROWS: gl.constexpr = x_desc.block_type.shape[0]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    BK: gl.constexpr = w_desc.block_type.shape[1]
    first_col = gl.program_id(0) * BN
    first_row = gl.program_id(1) * ROWS
    x_all = gl.allocate_shared_memory(x_desc.dtype, [BLOCKS, ROWS, BK], x_desc.layout)
    w_all = gl.allocate_shared_memory(w_desc.dtype, [BLOCKS, BN, BK], w_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], mbarrier.MBarrierLayout())
    for block in gl.static_range(BLOCKS):
        mbarrier.init(full.index(block), count=1)
    for block in gl.static_range(BLOCKS):
        mbarrier.expect(full.index(block), x_desc.block_type.nbytes + w_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(w_desc, [first_col, block * BK], full.index(block), w_all.index(block))
        tma.async_copy_global_to_shared(x_desc, [first_row, block * BK], full.index(block), x_all.index(block))
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = first_col + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    place = row.to(gl.int64)[:, None] * N + col[None, :]
    live = (row < m)[:, None] & (col < N)[None, :]
    bias = gl.load(bias_ptr + col, mask=col < N, other=0.0).to(gl.float32)
    gated = gl.load(gated_ptr + place, mask=live, other=0.0).to(gl.float32)
    acc = gl.zeros([ROWS, BN], gl.float32, layout=layout)
    for block in range(BLOCKS):
        mbarrier.wait(full.index(block), 0)
        x = x_all.index(block).load(gl.DotOperandLayout(0, layout, 2))
        w = w_all.index(block).permute((1, 0)).load(gl.DotOperandLayout(1, layout, 2))
        acc = mma_v2(x, w, acc)
    result = gated * sigmoid(acc + bias[None, :])
    gl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=live)


@gluon.jit
def one_feature_kernel(x_ptr, w_ptr, bias_ptr, gated_ptr, out_ptr, COLS: gl.constexpr, K: gl.constexpr,
                       WIDTH: gl.constexpr, SPAN: gl.constexpr):
    row = gl.program_id(0).to(gl.int64)
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [8], [0])
    col = gl.arange(0, SPAN, layout=layout)
    gated = gl.load(gated_ptr + row * COLS + col, mask=col < COLS, other=0.0)
    lane = gl.arange(0, WIDTH, layout=layout)
    x = gl.load(x_ptr + row * K + lane, mask=lane < K, other=0.0).to(gl.float32)
    w = gl.load(w_ptr + lane, mask=lane < K, other=0.0).to(gl.float32)
    logit = gl.sum(x * w, axis=0) + gl.load(bias_ptr).to(gl.float32)
    gate = 1.0 / (1.0 + gl.exp(-logit))
    gl.store(out_ptr + row * COLS + col, (gate * gated.to(gl.float32)).to(out_ptr.dtype.element_ty), mask=col < COLS)


def descriptor(x: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * cols), element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(x, [rows, cols], layout)


class Model(torch.nn.Module):
    def forward(self, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
                post_mul_mat: torch.Tensor) -> torch.Tensor:
        (m, k), n, cols = hidden_states.shape, weight.shape[0], post_mul_mat.shape[1]
        out = torch.empty(post_mul_mat.shape, dtype=hidden_states.dtype, device=hidden_states.device)
        if n == 1:
            width, span = (max(2048, triton.next_power_of_2(size)) for size in (k, cols))
            one_feature_kernel[(m,)](
                hidden_states, weight, bias, post_mul_mat, out, COLS=cols, K=k, WIDTH=width, SPAN=span, num_warps=8
            )
            return out
        c = config(m, n, k)
        if "ROWS" in c:
            rows, cols = c["ROWS"], c["BLOCK_N"]
            few_rows_kernel[(triton.cdiv(n, cols), triton.cdiv(m, rows))](
                descriptor(hidden_states, rows, WIDE_K), descriptor(weight, cols, WIDE_K), bias, post_mul_mat, out, m,
                N=n, BLOCKS=triton.cdiv(k, WIDE_K), num_warps=1,
            )  # fmt: skip
            return out
        tiles_m = triton.cdiv(m, 128)
        tiles = tiles_m * triton.cdiv(n, c["BLOCK_N"])
        # A last wave that would leave half of the multiprocessors idle is done in halves of tiles.
        rest = tiles % UNITS if c["BLOCK_N"] == 256 and tiles > UNITS and 0 < tiles % UNITS <= UNITS // 2 else 0
        self.launch(hidden_states, weight, bias, post_mul_mat, out, 0, tiles - rest, 1, c)
        if rest:
            self.launch(hidden_states, weight, bias, post_mul_mat, out, tiles - rest, rest, 2, {**c, **HALF})
        return out

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gated: torch.Tensor, out: torch.Tensor,
               first: int, tiles: int, split: int, c: dict[str, int]) -> None:
        block_n = c["BLOCK_N"]
        linear_sigmoid_mul_kernel[(min(tiles * split, UNITS),)](
            descriptor(x, 64, BLOCK_K), descriptor(weight, block_n, BLOCK_K), bias, descriptor(gated, 64, block_n),
            descriptor(out, 64, block_n), first, tiles * split, triton.cdiv(x.shape[0], 128), N=weight.shape[0],
            BLOCKS=triton.cdiv(x.shape[1], BLOCK_K), X_SLOTS=c["X_SLOTS"], W_SLOTS=c["W_SLOTS"], LEAD=c["LEAD"],
            BAND=c["BAND"], SPLIT=split, num_warps=4, maxnreg=168,
        )  # fmt: skip
