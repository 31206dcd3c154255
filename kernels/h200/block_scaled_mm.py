"""FP8 matrix product with a scale per block of either operand: persistent and warp-specialized, in Gluon for Hopper.

Two consumer warpgroups hold 64 x 256 sums each (a tile is 128 x 256); a k-block is four products of 64 x 64 x 128, one
of which is scaled into the sums while the next is multiplied (multiply_wide). Three warps copy: one for each
warpgroup's rows of a, one for b, each with a ring of its own. Behind a tile's last k-block either warpgroup gets a slot
of b's ring, through which its sums leave by TMA, 64 columns at a time. Warpgroup 1 starts LEAD k-blocks behind
warpgroup 0, so that one sends while the other multiplies. Fewer rows: 128 x 128 or 64, one product a k-block.
A k-block, in cycles of a multiprocessor: tensor cores 1024, shared memory 1024 (80 KB read by products, 48 KB written),
instructions 510.
Sweeps on an H200: m = 51200, n = k = 2048: 401 us, S 0.54, 420 us with stores of registers instead of TMA; m = 16384,
n = k = 4096: 485 us, S 0.57 (490 us); m = 98304: 2.88 ms, S 0.58 (2.97 ms); m = 4533, n = k = 2048: 52.6 us, S 0.37.
Without LEAD 0.5 % slower; rings of other depths made no difference.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

UNITS = 132  # multiprocessors
BLOCK_K = 128


def config(m: int, n: int, k: int) -> dict[str, int]:
    """WAVES products of 64 rows a warpgroup, BLOCK_N columns, slots of the rings, LEAD k-blocks, BAND rows of tiles."""
    large = triton.cdiv(m, 256) * triton.cdiv(n, 128)
    small = triton.cdiv(m, 128) * triton.cdiv(n, 128)
    if small < 100:
        return {"WAVES": 1, "BLOCK_N": 64, "A_SLOTS": 6, "B_SLOTS": 6, "LEAD": 0, "BAND": 8}
    # A tile of half the rows takes rather more than half the time.
    if triton.cdiv(large, UNITS) > 0.55 * triton.cdiv(small, UNITS):
        lead = 2 if small > 2 * UNITS and k >= 1024 else 0
        return {"WAVES": 1, "BLOCK_N": 128, "A_SLOTS": 4, "B_SLOTS": 6, "LEAD": lead, "BAND": 16}
    # BLOCK_N 256: 64 x 256 sums a warpgroup. WAVES 2: 128 x 128, which it replaced (0.50 to 0.54 where measured).
    lead = large > UNITS and k >= 1024
    if n % 256 == 0:
        return {"WAVES": 1, "BLOCK_N": 256, "A_SLOTS": 4, "B_SLOTS": 5, "LEAD": 2 if lead else 0,
                "BAND": 16 if n <= 2048 else 8}
    return {"WAVES": 2, "BLOCK_N": 128, "A_SLOTS": 3, "B_SLOTS": 8, "LEAD": 4 if lead else 0, "BAND": 8}


@gluon.jit
def tile_place(tile, tiles_m, tiles_n, BAND: gl.constexpr):
    """Programs that run together take BAND rows of tiles, so that both operands stay in the L2 cache."""
    band = tile // (BAND * tiles_n)
    height = gl.minimum(tiles_m - band * BAND, BAND)
    inside = tile % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy_a(desc, ring, full, done, lead, tiles_m, tiles_n, PART: gl.constexpr, LEAD: gl.constexpr, BAND: gl.constexpr,
           BLOCKS: gl.constexpr):
    SLOTS: gl.constexpr = ring.shape[0]
    ROWS: gl.constexpr = ring.shape[1]
    BK: gl.constexpr = ring.shape[2]
    slot = 0
    phase = 1
    count = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_place(tile, tiles_m, tiles_n, BAND)
        row = tile_m * (2 * ROWS) + PART * ROWS
        for block in range(BLOCKS):
            mbarrier.wait(done.index(slot), phase)
            if LEAD > 0 and PART == 0:
                # This slot held block LEAD - 1, which warpgroup 0 is now through with: warpgroup 1 may start.
                mbarrier.arrive(lead, pred=count == LEAD - 1 + SLOTS)
                count += 1
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            tma.async_copy_global_to_shared(desc, [row, block * BK], full.index(slot), ring.index(slot))
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def copy_b(desc, ring, full, done0, done1, tiles_m, tiles_n, BAND: gl.constexpr, BLOCKS: gl.constexpr):
    SLOTS: gl.constexpr = ring.shape[0]
    BN: gl.constexpr = ring.shape[1]
    BK: gl.constexpr = ring.shape[2]
    slot = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_place(tile, tiles_m, tiles_n, BAND)
        for block in range(BLOCKS):
            mbarrier.wait(done0.index(slot), phase)
            mbarrier.wait(done1.index(slot), phase)
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            tma.async_copy_global_to_shared(desc, [tile_n * BN, block * BK], full.index(slot), ring.index(slot))
            slot, phase = advance(slot, phase, SLOTS)
        if BN == 256:
            # A slot for the sums of either warpgroup on their way out.
            for _ in gl.static_range(2):
                mbarrier.wait(done0.index(slot), phase)
                mbarrier.wait(done1.index(slot), phase)
                mbarrier.arrive(full.index(slot))
                slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def store_rows(acc, out_ptr, row, col, m, N: gl.constexpr, WIDTH: gl.constexpr):
    """One 64-row piece of a tile WIDTH wide; a quad of threads writes whole sectors, which nobody reads again here."""
    ROWS: gl.constexpr = acc.shape[0]
    COLS: gl.constexpr = acc.shape[1]
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, acc.type.layout))
    cols = gl.arange(0, COLS, layout=gl.SliceLayout(0, acc.type.layout))
    live = (rows < m - row)[:, None]
    if N % WIDTH != 0:
        live = live & (cols < N - col)[None, :]
    out = out_ptr + row.to(gl.int64) * N + col
    gl.store(out + rows[:, None] * N + cols[None, :], acc, mask=live, cache_modifier=".cs")


@gluon.jit
def add_scaled(acc, product, scale):
    """acc + product * scale, where it is written: as plain arithmetic it would be put off behind the next product,
    which then needs registers of its own."""
    return gl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [product, scale[:, None], acc],
                                     dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def multiply(a_ring, b_ring, a_full, b_full, a_done, done, lead, a_scales_ptr, b_scales_ptr, out_ptr, m, tiles_m,
             tiles_n, PART: gl.constexpr, LEAD: gl.constexpr, BAND: gl.constexpr, SPREAD: gl.constexpr, N: gl.constexpr,
             BLOCKS: gl.constexpr):
    A_SLOTS: gl.constexpr = a_ring.shape[0]
    ROWS: gl.constexpr = a_ring.shape[1]
    B_SLOTS: gl.constexpr = b_ring.shape[0]
    BN: gl.constexpr = b_ring.shape[1]
    WAVES: gl.constexpr = ROWS // 64
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 32])
    zero = gl.zeros([64, BN], gl.float32, layout=layout)
    inside = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    a_slot = 0
    a_phase = 0
    b_slot = 0
    b_phase = 0
    if LEAD > 0 and PART == 1:
        mbarrier.wait(lead, 0)
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_place(tile, tiles_m, tiles_n, BAND)
        row = tile_m * (2 * ROWS) + PART * ROWS
        b_scale_ptr = b_scales_ptr + (tile_n // SPREAD) * BLOCKS
        b_scale = gl.load(b_scale_ptr)
        a_scale_ptr = a_scales_ptr + row.to(gl.int64) * BLOCKS + inside * BLOCKS
        live0 = inside < m - row
        a_scale0 = gl.load(a_scale_ptr, mask=live0, other=0.0)
        acc0 = zero
        if WAVES == 2:
            live1 = inside < m - row - 64
            a_scale1 = gl.load(a_scale_ptr + 64 * BLOCKS, mask=live1, other=0.0)
            acc1 = zero
        for block in range(BLOCKS):
            mbarrier.wait(b_full.index(b_slot), b_phase)
            mbarrier.wait(a_full.index(a_slot), a_phase)
            a = a_ring.index(a_slot)
            b = b_ring.index(b_slot).permute((1, 0))
            product = warpgroup_mma(a.slice(0, 64), b, zero, use_acc=False, is_async=True)
            # The scales of the next block arrive while this one is multiplied.
            ahead = gl.minimum(block + 1, BLOCKS - 1)
            scale0 = a_scale0 * b_scale
            a_scale0 = gl.load(a_scale_ptr + ahead, mask=live0, other=0.0)
            if WAVES == 2:
                scale1 = a_scale1 * b_scale
                a_scale1 = gl.load(a_scale_ptr + 64 * BLOCKS + ahead, mask=live1, other=0.0)
            b_scale = gl.load(b_scale_ptr + ahead)
            product = warpgroup_mma_wait(0, deps=[product])
            if WAVES == 1:
                mbarrier.arrive(a_done.index(a_slot))
                mbarrier.arrive(done.index(b_slot))
            acc0 = add_scaled(acc0, product, scale0)
            if WAVES == 2:
                # Long since here: a loop that the sums above are not moved across.
                mbarrier.wait(a_full.index(a_slot), a_phase)
                product = warpgroup_mma(a.slice(64, 64), b, zero, use_acc=False, is_async=True)
                product = warpgroup_mma_wait(0, deps=[product])
                mbarrier.arrive(a_done.index(a_slot))
                mbarrier.arrive(done.index(b_slot))
                acc1 = add_scaled(acc1, product, scale1)
            a_slot, a_phase = advance(a_slot, a_phase, A_SLOTS)
            b_slot, b_phase = advance(b_slot, b_phase, B_SLOTS)
        store_rows(acc0, out_ptr, row, tile_n * BN, m, N, BN)
        if WAVES == 2:
            store_rows(acc1, out_ptr, row + 64, tile_n * BN, m, N, BN)


@gluon.jit
def send(acc, stage, out_desc, row, col):
    """A piece of the sums leaves by TMA, once the piece before the last has left the same place."""
    tma.store_wait(1)
    stage.store(acc)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [row, col], stage)


@gluon.jit
def first_scales(tile, inside, a_scales_ptr, b_scales_ptr, m, tiles_m, tiles_n, PART: gl.constexpr, BN: gl.constexpr,
                 BAND: gl.constexpr, GROUP: gl.constexpr, N: gl.constexpr, BLOCKS: gl.constexpr):
    """Where a tile lies, and the scales of its first k-block."""
    tile_m, tile_n = tile_place(tile, tiles_m, tiles_n, BAND)
    row = tile_m * 128 + PART * 64
    a_scale_ptr = a_scales_ptr + row.to(gl.int64) * BLOCKS
    b_scale_ptr0 = b_scales_ptr + (tile_n * BN // GROUP) * BLOCKS
    b_scale_ptr1 = b_scales_ptr + gl.minimum((tile_n * BN + 128) // GROUP, N // GROUP - 1) * BLOCKS
    a_scale = gl.load(a_scale_ptr + inside * BLOCKS, mask=inside < m - row, other=0.0)
    b_scale0 = gl.load(b_scale_ptr0)
    b_scale1 = gl.load(b_scale_ptr1)
    return row, tile_n * BN, a_scale_ptr, b_scale_ptr0, b_scale_ptr1, a_scale, b_scale0, b_scale1


@gluon.jit
def multiply_wide(a_ring, b_ring, a_full, b_full, a_done, done, lead, a_scales_ptr, b_scales_ptr, out_desc, m, tiles_m,
                  tiles_n, PART: gl.constexpr, LEAD: gl.constexpr, BAND: gl.constexpr, GROUP: gl.constexpr,
                  N: gl.constexpr, BLOCKS: gl.constexpr):
    """64 x 256 sums in four pieces: a piece is multiplied while the one before is scaled into its sums. Rows of a come
    from registers, so that a piece of 64 columns reads b alone from shared memory."""
    A_SLOTS: gl.constexpr = a_ring.shape[0]
    B_SLOTS: gl.constexpr = b_ring.shape[0]
    BN: gl.constexpr = b_ring.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 32])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    zero = gl.zeros([64, 64], gl.float32, layout=layout)
    inside = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    place = inside * BLOCKS
    a_slot = 0
    a_phase = 0
    b_slot = 0
    b_phase = 0
    if LEAD > 0 and PART == 1:
        mbarrier.wait(lead, 0)
    tiles = tiles_m * tiles_n
    row, col, a_scale_ptr, b_scale_ptr0, b_scale_ptr1, a_scale, b_scale0, b_scale1 = first_scales(
        gl.program_id(0), inside, a_scales_ptr, b_scales_ptr, m, tiles_m, tiles_n, PART, BN, BAND, GROUP, N, BLOCKS
    )
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        live = inside < m - row
        acc0 = zero
        acc1 = zero
        acc2 = zero
        acc3 = zero
        for block in range(BLOCKS):
            mbarrier.wait(a_full.index(a_slot), a_phase)
            a = a_ring.index(a_slot).load(operand)
            mbarrier.wait(b_full.index(b_slot), b_phase)
            b = b_ring.index(b_slot)
            product0 = warpgroup_mma(a, b.slice(0, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
            product1 = warpgroup_mma(a, b.slice(64, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
            # The scales of the next block arrive while this one is multiplied.
            ahead = gl.minimum(block + 1, BLOCKS - 1)
            scale0 = a_scale * b_scale0
            scale1 = a_scale * b_scale1
            a_scale = gl.load(a_scale_ptr + place + ahead, mask=live, other=0.0)
            b_scale0 = gl.load(b_scale_ptr0 + ahead)
            b_scale1 = gl.load(b_scale_ptr1 + ahead)
            product0 = warpgroup_mma_wait(1, deps=[product0])
            acc0 = add_scaled(acc0, product0, scale0)
            # Long since here: a loop that the sums above are not moved across.
            mbarrier.wait(a_full.index(a_slot), a_phase)
            product2 = warpgroup_mma(a, b.slice(128, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
            product1 = warpgroup_mma_wait(1, deps=[product1])
            acc1 = add_scaled(acc1, product1, scale0)
            # Long since here: a loop that the sums above are not moved across.
            mbarrier.wait(a_full.index(a_slot), a_phase)
            product3 = warpgroup_mma(a, b.slice(192, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
            product2 = warpgroup_mma_wait(1, deps=[product2])
            acc2 = add_scaled(acc2, product2, scale1)
            product3 = warpgroup_mma_wait(0, deps=[product3])
            mbarrier.arrive(a_done.index(a_slot))
            mbarrier.arrive(done.index(b_slot))
            acc3 = add_scaled(acc3, product3, scale1)
            a_slot, a_phase = advance(a_slot, a_phase, A_SLOTS)
            b_slot, b_phase = advance(b_slot, b_phase, B_SLOTS)
        # Those of the next tile arrive while this one leaves.
        out_row = row
        out_col = col
        following = gl.minimum(tile + gl.num_programs(0), tiles - 1)
        row, col, a_scale_ptr, b_scale_ptr0, b_scale_ptr1, a_scale, b_scale0, b_scale1 = first_scales(
            following, inside, a_scales_ptr, b_scales_ptr, m, tiles_m, tiles_n, PART, BN, BAND, GROUP, N, BLOCKS
        )
        for part in gl.static_range(2):
            mbarrier.wait(b_full.index(b_slot), b_phase)
            if part == PART:
                places = b_ring.index(b_slot)._reinterpret(out_desc.dtype, [2, 64, 64], out_desc.layout)
                send(acc0, places.index(0), out_desc, out_row, out_col)
                send(acc1, places.index(1), out_desc, out_row, out_col + 64)
                send(acc2, places.index(0), out_desc, out_row, out_col + 128)
                send(acc3, places.index(1), out_desc, out_row, out_col + 192)
                tma.store_wait(0)
            mbarrier.arrive(done.index(b_slot))
            b_slot, b_phase = advance(b_slot, b_phase, B_SLOTS)


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["m"])
def block_scaled_mm_kernel(a_desc, b_desc, out_desc, a_scales_ptr, b_scales_ptr, out_ptr, m, N: gl.constexpr,
                           BLOCKS: gl.constexpr, A_SLOTS: gl.constexpr, B_SLOTS: gl.constexpr, LEAD: gl.constexpr,
                           BAND: gl.constexpr, GROUP: gl.constexpr):
    ROWS: gl.constexpr = a_desc.block_type.shape[0]
    BN: gl.constexpr = b_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    tiles_m = gl.cdiv(m, 2 * ROWS)
    tiles_n = gl.cdiv(N, BN)
    a_ring0 = gl.allocate_shared_memory(a_desc.dtype, [A_SLOTS, ROWS, BK], a_desc.layout)
    a_ring1 = gl.allocate_shared_memory(a_desc.dtype, [A_SLOTS, ROWS, BK], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [B_SLOTS, BN, BK], b_desc.layout)
    a_full0 = gl.allocate_shared_memory(gl.int64, [A_SLOTS, 1], mbarrier.MBarrierLayout())
    a_full1 = gl.allocate_shared_memory(gl.int64, [A_SLOTS, 1], mbarrier.MBarrierLayout())
    b_full = gl.allocate_shared_memory(gl.int64, [B_SLOTS, 1], mbarrier.MBarrierLayout())
    # A warpgroup says here which k-blocks it is through with.
    a_done0 = gl.allocate_shared_memory(gl.int64, [A_SLOTS, 1], mbarrier.MBarrierLayout())
    a_done1 = gl.allocate_shared_memory(gl.int64, [A_SLOTS, 1], mbarrier.MBarrierLayout())
    done0 = gl.allocate_shared_memory(gl.int64, [B_SLOTS, 1], mbarrier.MBarrierLayout())
    done1 = gl.allocate_shared_memory(gl.int64, [B_SLOTS, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(A_SLOTS):
        mbarrier.init(a_full0.index(slot), count=1)
        mbarrier.init(a_full1.index(slot), count=1)
        mbarrier.init(a_done0.index(slot), count=1)
        mbarrier.init(a_done1.index(slot), count=1)
    for slot in gl.static_range(B_SLOTS):
        mbarrier.init(b_full.index(slot), count=1)
        mbarrier.init(done0.index(slot), count=1)
        mbarrier.init(done1.index(slot), count=1)
    mbarrier.init(lead, count=1)
    if BN == 256:
        gl.warp_specialize(
            [
                (multiply_wide, (a_ring0, b_ring, a_full0, b_full, a_done0, done0, lead, a_scales_ptr, b_scales_ptr,
                                 out_desc, m, tiles_m, tiles_n, 0, LEAD, BAND, GROUP, N, BLOCKS)),
                (multiply_wide, (a_ring1, b_ring, a_full1, b_full, a_done1, done1, lead, a_scales_ptr, b_scales_ptr,
                                 out_desc, m, tiles_m, tiles_n, 1, LEAD, BAND, GROUP, N, BLOCKS)),
                (copy_a, (a_desc, a_ring0, a_full0, a_done0, lead, tiles_m, tiles_n, 0, LEAD, BAND, BLOCKS)),
                (copy_a, (a_desc, a_ring1, a_full1, a_done1, lead, tiles_m, tiles_n, 1, LEAD, BAND, BLOCKS)),
                (copy_b, (b_desc, b_ring, b_full, done0, done1, tiles_m, tiles_n, BAND, BLOCKS)),
            ],
            [4, 1, 1, 1],
            [240, 24, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (a_ring0, b_ring, a_full0, b_full, a_done0, done0, lead, a_scales_ptr, b_scales_ptr, out_ptr,
                            m, tiles_m, tiles_n, 0, LEAD, BAND, GROUP // BN, N, BLOCKS)),
                (multiply, (a_ring1, b_ring, a_full1, b_full, a_done1, done1, lead, a_scales_ptr, b_scales_ptr, out_ptr,
                            m, tiles_m, tiles_n, 1, LEAD, BAND, GROUP // BN, N, BLOCKS)),
                (copy_a, (a_desc, a_ring0, a_full0, a_done0, lead, tiles_m, tiles_n, 0, LEAD, BAND, BLOCKS)),
                (copy_a, (a_desc, a_ring1, a_full1, a_done1, lead, tiles_m, tiles_n, 1, LEAD, BAND, BLOCKS)),
                (copy_b, (b_desc, b_ring, b_full, done0, done1, tiles_m, tiles_n, BAND, BLOCKS)),
            ],
            [4, 1, 1, 1],
            [240, 24, 24, 24],
        )  # fmt: skip


class Model(torch.nn.Module):
    def __init__(self, group_n: int, group_k: int):
        super().__init__()
        if group_n % 128 or group_k != BLOCK_K:
            raise ValueError(f"groups of {group_n} x {group_k}: multiples of 128 and 128 are what this kernel knows")
        self.group_n = group_n

    def forward(self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[0]
        out = torch.empty((m, n), dtype=torch.float32, device=a.device)
        c = config(m, n, k)
        rows, cols = 64 * c["WAVES"], c["BLOCK_N"]
        tiles = triton.cdiv(m, 2 * rows) * triton.cdiv(n, cols)
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
        block_scaled_mm_kernel[(min(tiles, UNITS),)](
            TensorDescriptor.from_tensor(a, [rows, BLOCK_K], layout),
            TensorDescriptor.from_tensor(b, [cols, BLOCK_K], layout),
            TensorDescriptor.from_tensor(out, [64, 64], gl.NVMMASharedLayout(128, 32, rank=2)),
            a_scales, b_scales, out, m, N=n, BLOCKS=k // BLOCK_K, A_SLOTS=c["A_SLOTS"], B_SLOTS=c["B_SLOTS"],
            LEAD=c["LEAD"], BAND=c["BAND"], GROUP=self.group_n, num_warps=4, maxnreg=168,
        )  # fmt: skip
        return out
