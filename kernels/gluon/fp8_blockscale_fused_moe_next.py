"""Mixture of experts over fp8 blocks: two grouped products over slots sorted by expert, and a sum; 4 to 6 launches.

Slots are sorted into blocks of `rows` of one expert (histogram and sort of chunks, deterministic; one token is not
sorted). Few rows an expert: the weights are the M side, and streaming them bounds the time; a product over 128 of the
depth is scaled into fp32 sums by scales that were loaded an iteration ahead. More: rows are copied to where their slots
were sorted to, and a program a multiprocessor goes from tile to tile of 128 rows by two groups of 128 weight rows (gate
and up; or neighbours of w2), warp-specialized as in block_scaled_mm: two warpgroups multiply and scale pieces of 64
columns (one of them alone where a block has at most 64 rows), three warps copy, results leave by TMA. The first product
ends in SiLU and fp8 in groups of 128. Launches depend programmatically.
Measured on an H200 before the products were warp-specialized: shape 0 3070 us, 4 62, 5 1770, 7 613.
Predicted since: shape 0 2750 us, S 0.43; 1 3600 us, 0.66; 5 1000 us, 0.50; 4 (1 token) 58 us, 0.54.
Needs hidden and intermediate sizes that are multiples of 128.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

PDL = True  # programmatic dependent launch; off for Triton's interpreter
PROGRAMS = 132  # of the persistent kernels: one a multiprocessor
TAIL = True  # tiles that would leave most programs idle in a last round are done in halves
MAP = 64  # blocks of rows that a program of the routing kernels describes at a time
BLOCK = 128  # of the scales


class Config(NamedTuple):
    rows: int  # of a block
    swap: bool  # weights are the M side
    band: int  # blocks of rows that share the columns' weights in L2
    warps: int
    stages: int
    long: bool = False  # persistent, warp-specialized
    lead: int = 0  # k-blocks of the one warpgroup before the other


def config(slots: int, experts: int) -> Config:
    average = slots / min(slots, experts)
    if average <= 12:
        return Config(16, True, 8, 4, 3)
    if average <= 24:
        return Config(32, True, 8, 4, 3)
    if average <= 48:
        return Config(64, True, 8, 8, 4)
    return Config(128, False, 16, 4, 4, long=True, lead=2)


@triton.jit
def _after(PDL: tl.constexpr):
    """Waits for the kernel before, and lets the one after be launched: it waits in its turn."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _describe(map_ptr, used_ptr, counts, first, max_blocks, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
              MAP: tl.constexpr):
    """Expert (-1: none) and number of rows of the blocks from `first` on, of all experts' counts; blocks in use."""
    blocks = (counts + ROWS - 1) // ROWS
    if first == 0:
        tl.store(used_ptr, tl.sum(blocks, axis=0))
    ends = tl.cumsum(blocks, 0)
    block = first + tl.arange(0, MAP)
    expert = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), axis=1)
    own = expert[:, None] == tl.arange(0, EXPERTS)[None, :]
    left = tl.sum(tl.where(own, (counts + (blocks - ends) * -ROWS)[None, :], 0), axis=1) - block * ROWS
    tl.store(map_ptr + 2 * block, tl.where(expert < EXPERTS, expert, -1), mask=block < max_blocks)
    tl.store(map_ptr + 2 * block + 1, tl.minimum(left, ROWS), mask=block < max_blocks)


@triton.jit(do_not_specialize=["slots"])
def count_kernel(ids_ptr, counts_ptr, slots, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """counts [chunks, EXPERTS]: how many slots of each chunk go to each expert."""
    if PDL:
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    slot = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + slot, mask=slot < slots, other=0)
    tl.store(counts_ptr + chunk * EXPERTS + tl.arange(0, EXPERTS), tl.histogram(ids, EXPERTS, mask=slot < slots))


@triton.jit(do_not_specialize=["slots", "chunks", "max_blocks"])
def place_kernel(ids_ptr, counts_ptr, sorted_ptr, place_ptr, map_ptr, used_ptr, slots, chunks, max_blocks,
                 EXPERTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
                 MAP: tl.constexpr, PDL: tl.constexpr):
    """Program p places the slots of chunk p where their experts' blocks are, and describes its part of the blocks."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    slot = program * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + slot, mask=slot < slots, other=EXPERTS)
    if CHUNKS == 1:
        if PDL:
            gdc_launch_dependents()
        own = tl.histogram(tl.minimum(ids, EXPERTS - 1), EXPERTS, mask=slot < slots)
        total = own
        before = tl.zeros([EXPERTS], tl.int32)
    else:
        _after(PDL)
        chunk = tl.arange(0, CHUNKS)[:, None]
        counts = tl.load(counts_ptr + chunk * EXPERTS + tl.arange(0, EXPERTS)[None, :], mask=chunk < chunks, other=0)
        total = tl.sum(counts, axis=0)
        before = tl.sum(tl.where(chunk < program, counts, 0), axis=0)
        own = tl.sum(tl.where(chunk == program, counts, 0), axis=0)
    for first in range(program * MAP, max_blocks, programs * MAP):
        _describe(map_ptr, used_ptr, total, first, max_blocks, ROWS, EXPERTS, MAP)
    if program < chunks:
        # Sorted by expert and then by slot, a chunk's slots of one expert follow one another into the expert's blocks.
        key = tl.sort(ids * CHUNK + tl.arange(0, CHUNK))
        owner = key // CHUNK
        blocks = (total + ROWS - 1) // ROWS
        shift = (tl.cumsum(blocks, 0) - blocks) * ROWS + before - (tl.cumsum(own, 0) - own)
        place = tl.gather(shift, tl.minimum(owner, EXPERTS - 1), axis=0) + tl.arange(0, CHUNK)
        tl.store(sorted_ptr + place, program * CHUNK + key % CHUNK, mask=owner < EXPERTS)
        tl.store(place_ptr + program * CHUNK + key % CHUNK, place, mask=owner < EXPERTS)


@triton.jit
def _tile(max_blocks, tiles_n, BAND: tl.constexpr):
    """Block of rows and tile of columns: programs that run together share a band of rows and the weights."""
    pid = tl.program_id(0)
    band = pid // (BAND * tiles_n)
    height = tl.minimum(max_blocks - band * BAND, BAND)
    inside = pid % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height


@triton.jit
def _scaled(acc, a, b, factor, SWAP: tl.constexpr):
    """acc + a @ b.T with a factor for each row of a; transposed if SWAP."""
    if SWAP:
        acc += tl.dot(b, a.T, out_dtype=tl.float32) * factor[None, :]
    else:
        acc += tl.dot(a, b.T, out_dtype=tl.float32) * factor[:, None]
    return acc


@triton.jit
def _block(map_ptr, block, DIRECT: tl.constexpr):
    """Expert and rows of a block. DIRECT: nothing was sorted, each slot is a block, and map_ptr is topk_ids."""
    if DIRECT:
        return tl.load(map_ptr + block), 1
    else:
        return tl.load(map_ptr + 2 * block), tl.load(map_ptr + 2 * block + 1)


@triton.jit
def _slots(sorted_ptr, first, row, live, ROWS: tl.constexpr, DIRECT: tl.constexpr):
    if DIRECT:
        return first // ROWS + row * 0
    else:
        return tl.load(sorted_ptr + first + row, mask=live, other=0)


@triton.jit
def _gate_up(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, mid_ptr, mid_scales_ptr, expert, rows, first, tile,
             largest, HIDDEN: tl.constexpr, INTER: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr,
             BLOCK: tl.constexpr, SWAP: tl.constexpr, DIRECT: tl.constexpr):
    DEPTHS: tl.constexpr = HIDDEN // BLOCK
    row = tl.arange(0, ROWS)
    live = row < rows
    token = (_slots(sorted_ptr, first, row, live, ROWS, DIRECT) // TOP_K).to(tl.int64)
    k = tl.arange(0, BLOCK)
    x = x_ptr + token[:, None] * HIDDEN + k[None, :]
    x_scales = x_scales_ptr + token * DEPTHS
    gate_scales = w1_scales_ptr + (expert * (2 * INTER // BLOCK) + tile) * DEPTHS
    up_scales = gate_scales + INTER // BLOCK * DEPTHS
    gate = tl.zeros([BLOCK, ROWS] if SWAP else [ROWS, BLOCK], tl.float32)
    up = tl.zeros([BLOCK, ROWS] if SWAP else [ROWS, BLOCK], tl.float32)
    scale = tl.load(x_scales)
    gate_scale = tl.load(gate_scales)
    up_scale = tl.load(up_scales)
    for depth in range(0, DEPTHS):
        gate_factor = scale * gate_scale
        up_factor = scale * up_scale
        ahead = tl.minimum(depth + 1, DEPTHS - 1)
        scale = tl.load(x_scales + ahead)
        gate_scale = tl.load(gate_scales + ahead)
        up_scale = tl.load(up_scales + ahead)
        a = tl.load(x + depth * BLOCK, mask=live[:, None], other=0.0)
        b = tl.reshape(w1.load([2 * expert, tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
        c = tl.reshape(w1.load([2 * expert + 1, tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
        gate = _scaled(gate, a, b, gate_factor, SWAP)
        up = _scaled(up, a, c, up_factor, SWAP)
    mid = gate / (1.0 + tl.exp(-gate)) * up
    # A tile of columns is a group: its scale takes the group's largest value to the largest of fp8.
    group = tl.maximum(tl.max(tl.abs(mid), axis=0 if SWAP else 1), 1e-30) / largest
    mid = mid / (group[None, :] if SWAP else group[:, None])
    codes = mid.to(mid_ptr.dtype.element_ty)
    if SWAP:
        codes = codes.T
    place = first + row
    tl.store(mid_ptr + place.to(tl.int64)[:, None] * INTER + (tile * BLOCK + k)[None, :], codes, mask=live[:, None])
    tl.store(mid_scales_ptr + place * (INTER // BLOCK) + tile, group, mask=live)


@triton.jit(do_not_specialize=["max_blocks"])
def gate_up_kernel(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, map_ptr, mid_ptr, mid_scales_ptr, max_blocks,
                   largest, HIDDEN: tl.constexpr, INTER: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr,
                   BLOCK: tl.constexpr, BAND: tl.constexpr, SWAP: tl.constexpr, DIRECT: tl.constexpr,
                   PDL: tl.constexpr):
    """w1 is a descriptor of [2 * experts, INTER, HIDDEN] with boxes [1, BLOCK, BLOCK]."""
    block, tile = _tile(max_blocks, INTER // BLOCK, BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        _gate_up(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, mid_ptr, mid_scales_ptr, expert, rows,
                 block * ROWS, tile, largest, HIDDEN, INTER, TOP_K, ROWS, BLOCK, SWAP, DIRECT)


@triton.jit
def _store(part_ptr, acc, slot, live, col, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, SWAP: tl.constexpr):
    part = acc.to(part_ptr.dtype.element_ty)
    if SWAP:
        part = part.T
    cols = col + tl.arange(0, BLOCK)
    there = part_ptr + slot.to(tl.int64)[:, None] * HIDDEN + cols[None, :]
    tl.store(there, part, mask=live[:, None] & (cols < HIDDEN)[None, :])


@triton.jit
def _down(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, part_ptr, expert, rows, first, tile, HIDDEN: tl.constexpr,
          INTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SWAP: tl.constexpr, DIRECT: tl.constexpr):
    DEPTHS: tl.constexpr = INTER // BLOCK
    row = tl.arange(0, ROWS)
    live = row < rows
    mid_scales = mid_scales_ptr + (first + row) * DEPTHS
    left_scales = w2_scales_ptr + (expert * (HIDDEN // BLOCK) + 2 * tile) * DEPTHS
    right_scales = left_scales + tl.where((2 * tile + 1) * BLOCK < HIDDEN, DEPTHS, 0)
    left = tl.zeros([BLOCK, ROWS] if SWAP else [ROWS, BLOCK], tl.float32)
    right = tl.zeros([BLOCK, ROWS] if SWAP else [ROWS, BLOCK], tl.float32)
    # Rows past the block's own, and their scales, hold anything; their products are not stored.
    scale = tl.load(mid_scales)
    left_scale = tl.load(left_scales)
    right_scale = tl.load(right_scales)
    for depth in range(0, DEPTHS):
        left_factor = scale * left_scale
        right_factor = scale * right_scale
        ahead = tl.minimum(depth + 1, DEPTHS - 1)
        scale = tl.load(mid_scales + ahead)
        left_scale = tl.load(left_scales + ahead)
        right_scale = tl.load(right_scales + ahead)
        a = mid.load([first, depth * BLOCK])
        b = tl.reshape(w2.load([expert, 2 * tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
        c = tl.reshape(w2.load([expert, (2 * tile + 1) * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
        left = _scaled(left, a, b, left_factor, SWAP)
        right = _scaled(right, a, c, right_factor, SWAP)
    slot = _slots(sorted_ptr, first, row, live, ROWS, DIRECT)
    _store(part_ptr, left, slot, live, 2 * tile * BLOCK, HIDDEN, BLOCK, SWAP)
    _store(part_ptr, right, slot, live, (2 * tile + 1) * BLOCK, HIDDEN, BLOCK, SWAP)


@triton.jit(do_not_specialize=["max_blocks"])
def down_kernel(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, map_ptr, part_ptr, max_blocks,
                HIDDEN: tl.constexpr, INTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BAND: tl.constexpr,
                SWAP: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr):
    """mid is a descriptor of [places, INTER] with boxes of ROWS rows, w2 one of
    [experts, HIDDEN, INTER] with boxes [1, BLOCK, BLOCK]."""
    block, tile = _tile(max_blocks, tl.cdiv(HIDDEN, 2 * BLOCK), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        _down(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile,
              HIDDEN, INTER, ROWS, BLOCK, SWAP, DIRECT)


@triton.jit
def spread_kernel(x_ptr, place_ptr, sorted_ptr, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, COLS: tl.constexpr,
                  PDL: tl.constexpr):
    """Each token's row to the places of its slots."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, COLS)
    x = tl.load(x_ptr + token * HIDDEN + cols, mask=cols < HIDDEN, other=0.0)
    _after(PDL)
    for j in tl.static_range(TOP_K):
        place = tl.load(place_ptr + token * TOP_K + j).to(tl.int64)
        tl.store(sorted_ptr + place * HIDDEN + cols, x, mask=cols < HIDDEN)


@gluon.jit
def tasks_of(blocks, tiles_n, TAIL: gl.constexpr):
    """How many whole tiles there are, and tasks: what a last round would leave few programs for is done in halves."""
    tiles = blocks * tiles_n
    rest = tiles % gl.num_programs(0)
    if not TAIL:
        rest = 0
    rest = gl.where(2 * rest <= gl.num_programs(0), rest, 0)
    return tiles - rest, tiles + rest


@gluon.jit
def tile_at(task, whole, tasks, blocks, tiles_n, BAND: gl.constexpr):
    """Block of rows, tile of columns and, of a half, which (else 2) of a task, or of the last one. Tiles that run
    together share a band of rows and the weights."""
    task = gl.minimum(task, tasks - 1)
    half = gl.where(task < whole, 2, (task - whole) % 2)
    index = gl.where(task < whole, task, whole + (task - whole) // 2)
    band = index // (BAND * tiles_n)
    height = gl.minimum(blocks - band * BAND, BAND)
    inside = index % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height, half


@gluon.jit
def groups_at(expert, tile, GROUPS: gl.constexpr, UP: gl.constexpr):
    """The two groups of 128 weight rows of a tile, counted over all experts: gate and up, or neighbours."""
    if UP:
        left = expert * GROUPS + tile
        right = left + GROUPS // 2
    else:
        left = expert * GROUPS + 2 * tile
        right = expert * GROUPS + gl.minimum(2 * tile + 1, GROUPS - 1)
    return left, right


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy_rows(desc, map_ptr, used_ptr, ring, full, done, lead, tiles_n, PART: gl.constexpr, LEAD: gl.constexpr,
              TAIL: gl.constexpr, BAND: gl.constexpr, BLOCKS: gl.constexpr):
    """64 rows of a block. Rows past the block's own hold anything; nobody takes what they give."""
    SLOTS: gl.constexpr = ring.shape[0]
    BK: gl.constexpr = ring.shape[2]
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    block, tile, half = tile_at(gl.program_id(0), whole, tasks, blocks, tiles_n, BAND)
    rows = gl.load(map_ptr + 2 * block + 1)
    slot = 0
    phase = 1
    count = 0
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        live = (rows > PART * 64) & (half != 1 - PART)
        place = block * 128 + PART * 64
        block, tile, half = tile_at(task + gl.num_programs(0), whole, tasks, blocks, tiles_n, BAND)
        rows = gl.load(map_ptr + 2 * block + 1)
        for step in range(BLOCKS):
            mbarrier.wait(done.index(slot), phase)
            if LEAD > 0 and PART == 0:
                # Warpgroup 0 is through with block LEAD - 1: warpgroup 1 may start.
                mbarrier.arrive(lead, pred=count == LEAD - 1 + SLOTS)
                count += 1
            if live:
                mbarrier.expect(full.index(slot), desc.block_type.nbytes)
                tma.async_copy_global_to_shared(desc, [place, step * BK], full.index(slot), ring.index(slot))
            else:
                mbarrier.arrive(full.index(slot))
            slot, phase = advance(slot, phase, SLOTS)
    if LEAD > 0 and PART == 0:
        mbarrier.arrive(lead, pred=count < LEAD + SLOTS)


@gluon.jit
def copy_w(desc, map_ptr, used_ptr, ring, full, done0, done1, tiles_n, GROUPS: gl.constexpr, UP: gl.constexpr,
           TAIL: gl.constexpr, BAND: gl.constexpr, BLOCKS: gl.constexpr):
    SLOTS: gl.constexpr = ring.shape[0]
    BK: gl.constexpr = ring.shape[2]
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    block, tile, half = tile_at(gl.program_id(0), whole, tasks, blocks, tiles_n, BAND)
    expert = gl.load(map_ptr + 2 * block)
    slot = 0
    phase = 1
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        left, right = groups_at(expert, tile, GROUPS, UP)
        block, tile, half = tile_at(task + gl.num_programs(0), whole, tasks, blocks, tiles_n, BAND)
        expert = gl.load(map_ptr + 2 * block)
        for step in range(BLOCKS):
            mbarrier.wait(done0.index(slot), phase)
            mbarrier.wait(done1.index(slot), phase)
            mbarrier.expect(full.index(slot), 2 * desc.block_type.nbytes)
            w = ring.index(slot)
            tma.async_copy_global_to_shared(desc, [left * 128, step * BK], full.index(slot), w.slice(0, 128))
            tma.async_copy_global_to_shared(desc, [right * 128, step * BK], full.index(slot), w.slice(128, 128))
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def add_scaled(acc, product, scale):
    """acc + product * scale, where it is written: as plain arithmetic it would be put off behind the next product,
    which then needs registers of its own."""
    return gl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [product, scale[:, None], acc],
                                     dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def sigmoid(x):
    """1 / (1 + 2 ** (-x / ln 2)), with an infinite power a zero."""
    power = gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], dtype=gl.float32,
                                      is_pure=True, pack=1)  # fmt: skip
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + power], dtype=gl.float32,
                                     is_pure=True, pack=1)  # fmt: skip


@gluon.jit
def leave(desc, place, col, staged, left, right):
    """Two pieces of 64 columns on their way to memory by TMA, once those before have left."""
    tma.store_wait(0)
    staged.index(0).store(left.to(desc.dtype))
    staged.index(1).store(right.to(desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [place, col], staged.index(0))
    tma.async_copy_shared_to_global(desc, [place, col + 64], staged.index(1))


@gluon.jit
def multiply(x_ring, w_ring, x_full, w_full, done, lead, staged, out_desc, x_scales_ptr, w_scales_ptr, mid_scales_ptr,
             sorted_ptr, map_ptr, used_ptr, tiles_n, largest, PART: gl.constexpr, LEAD: gl.constexpr,
             GROUPS: gl.constexpr, UP: gl.constexpr, TOP_K: gl.constexpr, TAIL: gl.constexpr, BAND: gl.constexpr,
             BLOCKS: gl.constexpr):
    """64 x 256 sums in four pieces: a piece is multiplied while the one before is scaled into its sums. Rows come from
    registers, so that a piece of 64 columns reads the weights alone from shared memory."""
    SLOTS: gl.constexpr = w_ring.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 32])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    zero = gl.zeros([64, 64], gl.float32, layout=layout)
    inside = PART * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    slot = 0
    phase = 0
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        block, tile, half = tile_at(task, whole, tasks, blocks, tiles_n, BAND)
        expert = gl.load(map_ptr + 2 * block)
        rows = gl.load(map_ptr + 2 * block + 1)
        if LEAD > 0 and PART == 1:
            mbarrier.wait(lead, 0)
        if (rows > PART * 64) & (half != 1 - PART):
            row = block * 128 + gl.minimum(inside, rows - 1)
            if UP:
                row = gl.load(sorted_ptr + row) // TOP_K
            x_scale_ptr = x_scales_ptr + row.to(gl.int64) * BLOCKS
            left, right = groups_at(expert, tile, GROUPS, UP)
            w_scale_ptr0 = w_scales_ptr + left * BLOCKS
            w_scale_ptr1 = w_scales_ptr + right * BLOCKS
            x_scale = gl.load(x_scale_ptr)
            w_scale0 = gl.load(w_scale_ptr0)
            w_scale1 = gl.load(w_scale_ptr1)
            acc0 = zero
            acc1 = zero
            acc2 = zero
            acc3 = zero
            for step in range(BLOCKS):
                mbarrier.wait(x_full.index(slot), phase)
                x = x_ring.index(slot).load(operand)
                mbarrier.wait(w_full.index(slot), phase)
                w = w_ring.index(slot)
                product0 = warpgroup_mma(x, w.slice(0, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
                product1 = warpgroup_mma(x, w.slice(64, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
                # The scales of the next block arrive while this one is multiplied.
                ahead = gl.minimum(step + 1, BLOCKS - 1)
                scale0 = x_scale * w_scale0
                scale1 = x_scale * w_scale1
                x_scale = gl.load(x_scale_ptr + ahead)
                w_scale0 = gl.load(w_scale_ptr0 + ahead)
                w_scale1 = gl.load(w_scale_ptr1 + ahead)
                product0 = warpgroup_mma_wait(1, deps=[product0])
                acc0 = add_scaled(acc0, product0, scale0)
                # Long since here: a loop that the sums above are not moved across.
                mbarrier.wait(x_full.index(slot), phase)
                product2 = warpgroup_mma(x, w.slice(128, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
                product1 = warpgroup_mma_wait(1, deps=[product1])
                acc1 = add_scaled(acc1, product1, scale0)
                # Long since here: a loop that the sums above are not moved across.
                mbarrier.wait(x_full.index(slot), phase)
                product3 = warpgroup_mma(x, w.slice(192, 64).permute((1, 0)), zero, use_acc=False, is_async=True)
                product2 = warpgroup_mma_wait(1, deps=[product2])
                acc2 = add_scaled(acc2, product2, scale1)
                product3 = warpgroup_mma_wait(0, deps=[product3])
                mbarrier.arrive(done.index(slot))
                acc3 = add_scaled(acc3, product3, scale1)
                slot, phase = advance(slot, phase, SLOTS)
            place = block * 128 + PART * 64
            if UP:
                acc0 = acc0 * sigmoid(acc0) * acc2
                acc1 = acc1 * sigmoid(acc1) * acc3
                # A tile of columns is a group: its scale takes the group's largest value to the largest of fp8.
                top = gl.maximum(gl.max(gl.abs(acc0), axis=1), gl.max(gl.abs(acc1), axis=1))
                top = gl.maximum(top, 1e-30)
                factor = largest / top
                leave(out_desc, place, tile * 128, staged, acc0 * factor[:, None], acc1 * factor[:, None])
                gl.store(mid_scales_ptr + (block * 128 + inside) * (GROUPS // 2) + tile, top / largest)
            else:
                leave(out_desc, place, tile * 256, staged, acc0, acc1)
                leave(out_desc, place, tile * 256 + 128, staged, acc2, acc3)
        else:
            for _ in range(BLOCKS):
                mbarrier.wait(x_full.index(slot), phase)
                mbarrier.wait(w_full.index(slot), phase)
                mbarrier.arrive(done.index(slot))
                slot, phase = advance(slot, phase, SLOTS)
    tma.store_wait(0)


@gluon.jit
def product_kernel(x_desc, w_desc, out_desc, x_scales_ptr, w_scales_ptr, mid_scales_ptr, sorted_ptr, map_ptr, used_ptr,
                   largest, UP: gl.constexpr, GROUPS: gl.constexpr, BLOCKS: gl.constexpr, TOP_K: gl.constexpr,
                   SLOTS: gl.constexpr, LEAD: gl.constexpr, TAIL: gl.constexpr, BAND: gl.constexpr,
                   PDL: gl.constexpr):
    """128 rows of a block by two groups of 128 weight rows: two consumer warpgroups, a copying warp for either one's
    rows, one for the weights. UP: the end is SiLU and fp8."""
    tiles_n: gl.constexpr = (GROUPS + 1) // 2
    x_ring0 = gl.allocate_shared_memory(x_desc.dtype, [SLOTS, 64, 128], x_desc.layout)
    x_ring1 = gl.allocate_shared_memory(x_desc.dtype, [SLOTS, 64, 128], x_desc.layout)
    w_ring = gl.allocate_shared_memory(w_desc.dtype, [SLOTS, 256, 128], w_desc.layout)
    staged0 = gl.allocate_shared_memory(out_desc.dtype, [2, 64, 64], out_desc.layout)
    staged1 = gl.allocate_shared_memory(out_desc.dtype, [2, 64, 64], out_desc.layout)
    x_full0 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    x_full1 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    w_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    done0 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    done1 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(x_full0.index(slot), count=1)
        mbarrier.init(x_full1.index(slot), count=1)
        mbarrier.init(w_full.index(slot), count=1)
        mbarrier.init(done0.index(slot), count=1)
        mbarrier.init(done1.index(slot), count=1)
    mbarrier.init(lead, count=1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    gl.warp_specialize(
        [
            (multiply, (x_ring0, w_ring, x_full0, w_full, done0, lead, staged0, out_desc, x_scales_ptr, w_scales_ptr,
                        mid_scales_ptr, sorted_ptr, map_ptr, used_ptr, tiles_n, largest, 0, LEAD, GROUPS, UP, TOP_K,
                        TAIL, BAND, BLOCKS)),
            (multiply, (x_ring1, w_ring, x_full1, w_full, done1, lead, staged1, out_desc, x_scales_ptr, w_scales_ptr,
                        mid_scales_ptr, sorted_ptr, map_ptr, used_ptr, tiles_n, largest, 1, LEAD, GROUPS, UP, TOP_K,
                        TAIL, BAND, BLOCKS)),
            (copy_rows, (x_desc, map_ptr, used_ptr, x_ring0, x_full0, done0, lead, tiles_n, 0, LEAD, TAIL, BAND,
                         BLOCKS)),
            (copy_rows, (x_desc, map_ptr, used_ptr, x_ring1, x_full1, done1, lead, tiles_n, 1, LEAD, TAIL, BAND,
                         BLOCKS)),
            (copy_w, (w_desc, map_ptr, used_ptr, w_ring, w_full, done0, done1, tiles_n, GROUPS, UP, TAIL, BAND,
                      BLOCKS)),
        ],
        [4, 1, 1, 1],
        [240, 24, 24, 24],
    )  # fmt: skip


@gluon.jit
def sum_kernel(part_ptr, place_ptr, weights_ptr, out_ptr, HIDDEN: gl.constexpr, TOP_K: gl.constexpr,
               COLS: gl.constexpr, SORTED: gl.constexpr, PDL: gl.constexpr):
    """A slot's part is in its own row, or, if SORTED, in its place."""
    token = gl.program_id(0).to(gl.int64)
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    cols = gl.program_id(1) * COLS + gl.arange(0, COLS, layout=LAYOUT)
    acc = gl.zeros([COLS], gl.float32, layout=LAYOUT)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for j in gl.static_range(TOP_K):
        row = token * TOP_K + j
        if SORTED:
            row = gl.load(place_ptr + row).to(gl.int64)
        part = gl.load(part_ptr + row * HIDDEN + cols, mask=cols < HIDDEN, other=0.0, eviction_policy="evict_first")
        acc += part.to(gl.float32) * gl.load(weights_ptr + token * TOP_K + j)
    gl.store(out_ptr + token * HIDDEN + cols, acc.to(out_ptr.dtype.element_ty), mask=cols < HIDDEN)


def route(topk_ids: torch.Tensor, experts: int,
          rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Slots in blocks of `rows` of one expert, where each slot went, [expert, rows] of each block, how many blocks are
    used, and at most."""
    slots, device = topk_ids.numel(), topk_ids.device
    blocks = min(slots, slots // rows + experts)
    order = torch.empty(blocks * rows, dtype=torch.int32, device=device)
    places = torch.empty(slots, dtype=torch.int32, device=device)
    described = torch.empty((blocks, 2), dtype=torch.int32, device=device)
    used = torch.empty((1,), dtype=torch.int32, device=device)
    pad = max(32, triton.next_power_of_2(experts))
    if slots <= 2048:
        chunk, chunks, counts = max(128, triton.next_power_of_2(slots)), 1, order
    else:
        chunk = 512
        while chunk < 4096 and triton.cdiv(slots, chunk) > 128:
            chunk *= 2
        chunks = triton.cdiv(slots, chunk)
        counts = torch.empty((chunks, pad), dtype=torch.int32, device=device)
        count_kernel[(chunks,)](topk_ids, counts, slots, EXPERTS=pad, CHUNK=chunk, PDL=PDL, num_warps=4)
    place_kernel[(chunks,)](
        topk_ids, counts, order, places, described, used, slots, chunks, blocks, EXPERTS=pad, CHUNK=chunk,
        CHUNKS=triton.next_power_of_2(chunks), ROWS=rows, MAP=MAP, PDL=PDL, num_warps=8, launch_pdl=PDL and chunks > 1,
    )  # fmt: skip
    return order, places, described, used, blocks


def depth_of(programs: int, config: Config) -> int:
    """Stages: where programs are fewer than multiprocessors, each holds more in flight."""
    return 4 if config.swap and config.rows <= 32 and programs <= 132 else config.stages


def box(x: torch.Tensor, rows: int, cols: int = BLOCK) -> GluonDescriptor:
    layout = gl.NVMMASharedLayout(min(128, cols * x.element_size()), 8 * x.element_size(), rank=2)
    return GluonDescriptor(x, list(x.shape), list(x.stride()), [rows, cols], layout)


class Model(torch.nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int):
        super().__init__()
        self.experts, self.inter, self.top_k = num_experts, intermediate_size, top_k

    def forward(self, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
                topk_ids: torch.Tensor, a_scale: torch.Tensor, fc1_scale: torch.Tensor,
                fc2_scale: torch.Tensor) -> torch.Tensor:
        (tokens, hidden), experts, inter, top_k = hidden_states.shape, self.experts, self.inter, self.top_k
        slots, device, dtype = tokens * top_k, hidden_states.device, hidden_states.dtype
        choice = config(slots, experts)
        rows, swap, band, warps, stages, long, lead = choice
        direct = tokens == 1 and not long  # its experts are distinct: each slot is a block, and nothing is to be sorted
        if direct:
            order, places, described, used, blocks = topk_ids, topk_ids, topk_ids, topk_ids, slots
        else:
            order, places, described, used, blocks = route(topk_ids, experts, rows)
        mid = torch.empty((blocks * rows, inter), dtype=dtype, device=device)
        mid_scales = torch.empty((blocks * rows, inter // BLOCK), dtype=torch.float32, device=device)
        part = torch.empty((blocks * rows if long else slots, hidden), dtype=torch.bfloat16, device=device)
        out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
        largest = torch.finfo(dtype).max
        if long:
            spread = torch.empty((blocks * rows, hidden), dtype=dtype, device=device)
            spread_kernel[(tokens,)](
                hidden_states, places, spread, HIDDEN=hidden, TOP_K=top_k, COLS=triton.next_power_of_2(hidden),
                PDL=PDL, num_warps=4, launch_pdl=PDL,
            )  # fmt: skip
            common = {"TOP_K": top_k, "SLOTS": stages, "TAIL": TAIL, "BAND": band, "PDL": PDL, "num_warps": 4,
                      "maxnreg": 168, "launch_pdl": PDL}  # fmt: skip
            product_kernel[(min(PROGRAMS, blocks * (inter // BLOCK)),)](
                box(spread, 64), box(w1.view(-1, hidden), BLOCK), box(mid, 64, 64), a_scale, fc1_scale, mid_scales,
                order, described, used, largest, UP=True, GROUPS=2 * inter // BLOCK, BLOCKS=hidden // BLOCK,
                LEAD=min(lead, hidden // BLOCK - 1), **common,
            )  # fmt: skip
            product_kernel[(min(PROGRAMS, blocks * triton.cdiv(hidden, 2 * BLOCK)),)](
                box(mid, 64), box(w2.view(-1, inter), BLOCK), box(part, 64, 64), mid_scales, fc2_scale, mid_scales,
                order, described, used, largest, UP=False, GROUPS=hidden // BLOCK, BLOCKS=inter // BLOCK,
                LEAD=min(lead, inter // BLOCK - 1), **common,
            )  # fmt: skip
        else:
            ups = TensorDescriptor(w1, [2 * experts, inter, hidden], [inter * hidden, hidden, 1], [1, BLOCK, BLOCK])
            downs = TensorDescriptor(w2, [experts, hidden, inter], [hidden * inter, inter, 1], [1, BLOCK, BLOCK])
            mids = TensorDescriptor(mid, [blocks * rows, inter], [inter, 1], [rows, BLOCK])
            common = {"HIDDEN": hidden, "INTER": inter, "ROWS": rows, "BLOCK": BLOCK, "BAND": band, "PDL": PDL,
                      "num_warps": warps}  # fmt: skip
            programs = blocks * (inter // BLOCK)
            gate_up_kernel[(programs,)](
                hidden_states, ups, a_scale, fc1_scale, order, described, mid, mid_scales, blocks, largest,
                TOP_K=top_k, SWAP=swap, DIRECT=direct, num_stages=depth_of(programs, choice),
                launch_pdl=PDL and not direct, **common,
            )  # fmt: skip
            programs = blocks * triton.cdiv(hidden, 2 * BLOCK)
            down_kernel[(programs,)](
                mids, downs, mid_scales, fc2_scale, order, described, part, blocks, SWAP=swap, DIRECT=direct,
                num_stages=depth_of(programs, choice), launch_pdl=PDL, **common,
            )  # fmt: skip
        width = min(1024, triton.next_power_of_2(hidden))
        sum_kernel[(tokens, triton.cdiv(hidden, width))](
            part, places, topk_weights, out, HIDDEN=hidden, TOP_K=top_k, COLS=width, SORTED=long, PDL=PDL, num_warps=4,
            launch_pdl=PDL,
        )  # fmt: skip
        return out
