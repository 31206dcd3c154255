"""Mixture of experts as two grouped products over slots sorted by expert, and a sum: 4 launches (5 from 2049 slots on).

Slots are sorted into blocks of `rows` of one expert (histogram and sort of chunks, deterministic; one token is not
sorted). Few rows an expert: the weights are the M side of the product, and streaming them bounds the time. More: a
program a multiprocessor goes from tile to tile of 128 rows by 256 columns, warp-specialized: two warpgroups multiply
(one of them alone where a block has at most 64 rows), a warp for either one's rows (tokens gathered by cp.async; mid by
TMA), one for the weights ([gate, up] in one box), and results leave by TMA, the second product's where its slots were
sorted to. The last kernel sums the slots of a token with their weights. Launches depend programmatically.
Measured on an H200 before the products were warp-specialized: shape 2 114 us, 4 209, 5 380, 9 470, 17 484, 18 733.
Predicted since: shape 4 (1979 tokens) 165 us, S 0.61; 5 340 us, 0.63; 9 (2400 tokens) 340 us, 0.76; 18 600 us, 0.50.
Needs hidden and intermediate sizes that are multiples of 8; other than multiples of 64 are slow.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

PDL = True  # programmatic dependent launch; off for Triton's interpreter
PROGRAMS = 132  # of the persistent kernels: one a multiprocessor
LAG = 2  # copies of gathered rows under way when one is waited for: two slots fewer than a ring has, at most
TAIL = True  # tiles that would leave most programs idle in a last round are done in halves
MAP = 64  # blocks of rows that a program of the routing kernels describes at a time


class Tile(NamedTuple):
    cols: int  # columns of a program: of gate and of up each, or of the output
    depth: int
    warps: int
    stages: int


class Config(NamedTuple):
    rows: int  # of a block
    swap: bool  # weights are the M side
    band: int  # blocks of rows that share the columns' weights in L2
    up: Tile
    down: Tile
    long: bool = False  # persistent, warp-specialized
    lead: int = 0  # k-blocks of the one warpgroup before the other


def config(slots: int, experts: int, hidden: int, inter: int) -> Config:
    average = slots / min(slots, experts)
    if slots <= 16:  # fewer programs than multiprocessors: more of them in flight
        return Config(16, True, 8, Tile(64, 128, 4, 6), Tile(64, 128, 4, 5))
    if average <= 8:
        return Config(16, True, 8, Tile(64, 128, 4, 3), Tile(64, 128, 4, 5))
    if average <= 40 and experts < 64:
        return Config(32, True, 8, Tile(64, 64, 4, 3), Tile(64, 64, 4, 4))
    if average <= 80:
        return Config(64, True, 8, Tile(64, 64, 4, 3), Tile(64, 64, 4, 4))
    if hidden % 64 or inter % 64 or hidden < 128:
        return Config(128, False, 8, Tile(128, 64, 8, 4), Tile(128, 64, 4, 3))
    return Config(128, False, 16, Tile(128, 64, 4, 4), Tile(256, 64, 4, 4), long=True, lead=2)


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
def _gate_up(x_ptr, w1, sorted_ptr, mid_ptr, expert, rows, first, col, HIDDEN: tl.constexpr, INTER: tl.constexpr,
             TOP_K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, SWAP: tl.constexpr,
             DIRECT: tl.constexpr):
    row = tl.arange(0, ROWS)
    live = row < rows
    token = _slots(sorted_ptr, first, row, live, ROWS, DIRECT) // TOP_K
    k = tl.arange(0, DEPTH)
    x = x_ptr + token.to(tl.int64)[:, None] * HIDDEN + k[None, :]
    if SWAP:
        gate = tl.zeros([COLS, ROWS], tl.float32)
        up = tl.zeros([COLS, ROWS], tl.float32)
    else:
        both = tl.zeros([ROWS, 2 * COLS], tl.float32)
    for start in range(0, HIDDEN, DEPTH):
        if HIDDEN % DEPTH == 0:
            a = tl.load(x + start, mask=live[:, None], other=0.0)
        else:
            a = tl.load(x + start, mask=live[:, None] & (start + k < HIDDEN)[None, :], other=0.0)
        if SWAP:
            gate = tl.dot(tl.reshape(w1.load([2 * expert, col, start]), [COLS, DEPTH]), a.T, gate)
            up = tl.dot(tl.reshape(w1.load([2 * expert + 1, col, start]), [COLS, DEPTH]), a.T, up)
        else:
            b = tl.reshape(w1.load([2 * expert, col, start]), [2 * COLS, DEPTH])
            both = tl.dot(a, b.T, both)
    if not SWAP:
        gate, up = tl.split(tl.permute(tl.reshape(both, [ROWS, 2, COLS]), [0, 2, 1]))
    mid = (gate / (1.0 + tl.exp(-gate)) * up).to(mid_ptr.dtype.element_ty)
    if SWAP:
        mid = mid.T
    cols = col + tl.arange(0, COLS)
    there = mid_ptr + (first + row).to(tl.int64)[:, None] * INTER + cols[None, :]
    tl.store(there, mid, mask=live[:, None] & (cols < INTER)[None, :])


@triton.jit(do_not_specialize=["max_blocks"])
def gate_up_kernel(x_ptr, w1, sorted_ptr, map_ptr, mid_ptr, max_blocks, HIDDEN: tl.constexpr, INTER: tl.constexpr,
                   TOP_K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
                   BAND: tl.constexpr, SWAP: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr):
    """w1 is a descriptor of [2 * experts, INTER, HIDDEN] with boxes of COLS by DEPTH, of gate and up if not SWAP."""
    block, tile = _tile(max_blocks, tl.cdiv(INTER, COLS), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        _gate_up(x_ptr, w1, sorted_ptr, mid_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, TOP_K,
                 ROWS, COLS, DEPTH, SWAP, DIRECT)


@triton.jit
def _down(mid, w2, sorted_ptr, part_ptr, expert, rows, first, col, HIDDEN: tl.constexpr, INTER: tl.constexpr,
          ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, SWAP: tl.constexpr,
             DIRECT: tl.constexpr):
    acc = tl.zeros([COLS, ROWS] if SWAP else [ROWS, COLS], tl.float32)
    for start in range(0, INTER, DEPTH):
        # Rows past the block's own hold anything; their products are not stored.
        a = mid.load([first, start])
        b = tl.reshape(w2.load([expert, col, start]), [COLS, DEPTH])
        acc = tl.dot(b, a.T, acc) if SWAP else tl.dot(a, b.T, acc)
    part = acc.to(part_ptr.dtype.element_ty)
    if SWAP:
        part = part.T
    row = tl.arange(0, ROWS)
    slot = _slots(sorted_ptr, first, row, row < rows, ROWS, DIRECT)
    cols = col + tl.arange(0, COLS)
    there = part_ptr + slot.to(tl.int64)[:, None] * HIDDEN + cols[None, :]
    tl.store(there, part, mask=(row < rows)[:, None] & (cols < HIDDEN)[None, :])


@triton.jit(do_not_specialize=["max_blocks"])
def down_kernel(mid, w2, sorted_ptr, map_ptr, part_ptr, max_blocks, HIDDEN: tl.constexpr,
                INTER: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
                SWAP: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr):
    """mid is a descriptor of [places, INTER] with boxes of ROWS rows, w2 one of
    [experts, HIDDEN, INTER] with boxes [1, COLS, DEPTH]."""
    block, tile = _tile(max_blocks, tl.cdiv(HIDDEN, COLS), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        _down(mid, w2, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, ROWS, COLS,
              DEPTH, SWAP, DIRECT)


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
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy_rows(x_ptr, sorted_ptr, map_ptr, used_ptr, ring, full, empty, lead, tiles_n, PART: gl.constexpr,
              LEAD: gl.constexpr, TAIL: gl.constexpr, BAND: gl.constexpr, TOP_K: gl.constexpr, LAG: gl.constexpr,
              BLOCKS: gl.constexpr):
    """One warp: 64 rows of a block, of the tokens whose slots they are. What is asked for is waited for LAG copies
    later, so that some are always under way."""
    SLOTS: gl.constexpr = ring.shape[0]
    BK: gl.constexpr = ring.shape[2]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    row = PART * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    k = gl.arange(0, BK, layout=gl.SliceLayout(0, LAYOUT))
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    block, tile, half = tile_at(gl.program_id(0), whole, tasks, blocks, tiles_n, BAND)
    rows = gl.load(map_ptr + 2 * block + 1)
    # Rows past the block's own repeat its last.
    token = gl.load(sorted_ptr + block * 128 + gl.minimum(row, rows - 1)) // TOP_K
    slot = 0
    phase = 1
    behind = 0
    count = 0
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        live = (rows > PART * 64) & (half != 1 - PART)
        x = x_ptr + token.to(gl.int64)[:, None] * (BLOCKS * BK) + k[None, :]
        # The next tile's tokens arrive meanwhile.
        block, tile, half = tile_at(task + gl.num_programs(0), whole, tasks, blocks, tiles_n, BAND)
        rows = gl.load(map_ptr + 2 * block + 1)
        token = gl.load(sorted_ptr + block * 128 + gl.minimum(row, rows - 1)) // TOP_K
        if live:
            for step in range(BLOCKS):
                mbarrier.wait(empty.index(slot), phase)
                if LEAD > 0 and PART == 0:
                    # Warpgroup 0 is through with block LEAD - 1: warpgroup 1 may start.
                    mbarrier.arrive(lead, pred=count == LEAD - 1 + SLOTS)
                async_copy.async_copy_global_to_shared(ring.index(slot), x + step * BK)
                async_copy.commit_group()
                slot, phase = advance(slot, phase, SLOTS)
                async_copy.wait_group(LAG)
                fence_async_shared()
                gl.thread_barrier()
                mbarrier.arrive(full.index(behind), pred=count >= LAG)
                behind = gl.where(count < LAG, 0, gl.where(behind == SLOTS - 1, 0, behind + 1))
                count += 1
    if LEAD > 0 and PART == 0:
        mbarrier.arrive(lead, pred=count < LEAD + SLOTS)
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    for _ in gl.static_range(LAG):
        mbarrier.arrive(full.index(behind), pred=count > 0)
        behind = gl.where(behind == SLOTS - 1, 0, behind + 1)


@gluon.jit
def copy_mid(desc, map_ptr, used_ptr, ring, full, empty, lead, tiles_n, PART: gl.constexpr, LEAD: gl.constexpr,
             TAIL: gl.constexpr, BAND: gl.constexpr, BLOCKS: gl.constexpr):
    """64 rows of a block, which lie together. Rows past the block's own hold anything; nobody takes what they give."""
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
        if live:
            for step in range(BLOCKS):
                mbarrier.wait(empty.index(slot), phase)
                if LEAD > 0 and PART == 0:
                    # Warpgroup 0 is through with block LEAD - 1: warpgroup 1 may start.
                    mbarrier.arrive(lead, pred=count == LEAD - 1 + SLOTS)
                    count += 1
                mbarrier.expect(full.index(slot), desc.block_type.nbytes)
                tma.async_copy_global_to_shared(desc, [place, step * BK], full.index(slot), ring.index(slot))
                slot, phase = advance(slot, phase, SLOTS)
    if LEAD > 0 and PART == 0:
        mbarrier.arrive(lead, pred=count < LEAD + SLOTS)


@gluon.jit
def copy_w(desc, map_ptr, used_ptr, ring, full, empty, tiles_n, TAIL: gl.constexpr, BAND: gl.constexpr,
           BLOCKS: gl.constexpr):
    """Boxes of an expert's weights: [2, columns, depth] of gate and up, or [1, columns, depth]."""
    SLOTS: gl.constexpr = ring.shape[0]
    PLANES: gl.constexpr = ring.shape[1]
    COLS: gl.constexpr = ring.shape[2]
    BK: gl.constexpr = ring.shape[3]
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    block, tile, half = tile_at(gl.program_id(0), whole, tasks, blocks, tiles_n, BAND)
    expert = gl.load(map_ptr + 2 * block)
    slot = 0
    phase = 1
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        plane = expert * PLANES
        col = tile * COLS
        block, tile, half = tile_at(task + gl.num_programs(0), whole, tasks, blocks, tiles_n, BAND)
        expert = gl.load(map_ptr + 2 * block)
        for step in range(BLOCKS):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), desc.block_type.nbytes)
            tma.async_copy_global_to_shared(desc, [plane, col, step * BK], full.index(slot), ring.index(slot))
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def sigmoid(x):
    """1 / (1 + 2 ** (-x / ln 2)), with an infinite power a zero."""
    power = gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], dtype=gl.float32,
                                      is_pure=True, pack=1)  # fmt: skip
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + power], dtype=gl.float32,
                                     is_pure=True, pack=1)  # fmt: skip


@gluon.jit
def leave(desc, place, col, staged, x):
    """x on its way to memory by TMA, once the box before has left."""
    tma.store_wait(0)
    staged.store(x.to(desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [place, col], staged)


@gluon.jit
def multiply(x_ring, w_ring, x_full, x_empty, w_full, w_empty, lead, staged, out_desc, map_ptr, used_ptr, tiles_n,
             PART: gl.constexpr, LEAD: gl.constexpr, TAIL: gl.constexpr, BAND: gl.constexpr, BLOCKS: gl.constexpr):
    """64 rows of each tile, if the block has them."""
    X_SLOTS: gl.constexpr = x_ring.shape[0]
    W_SLOTS: gl.constexpr = w_ring.shape[0]
    PLANES: gl.constexpr = w_ring.shape[1]
    BN: gl.constexpr = PLANES * w_ring.shape[2]
    BK: gl.constexpr = w_ring.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    zero = gl.zeros([64, BN], gl.float32, layout=layout)
    blocks = gl.load(used_ptr)
    whole, tasks = tasks_of(blocks, tiles_n, TAIL)
    block, tile, half = tile_at(gl.program_id(0), whole, tasks, blocks, tiles_n, BAND)
    rows = gl.load(map_ptr + 2 * block + 1)
    x_slot = 0
    x_phase = 0
    w_slot = 0
    w_phase = 0
    for task in range(gl.program_id(0), tasks, gl.num_programs(0)):
        live = (rows > PART * 64) & (half != 1 - PART)
        place = block * 128 + PART * 64
        col = tile * (BN // 2 if PLANES == 2 else BN)
        block, tile, half = tile_at(task + gl.num_programs(0), whole, tasks, blocks, tiles_n, BAND)
        rows = gl.load(map_ptr + 2 * block + 1)
        if LEAD > 0 and PART == 1:
            mbarrier.wait(lead, 0)
        if live:
            mbarrier.wait(w_full.index(w_slot), w_phase)
            mbarrier.wait(x_full.index(x_slot), x_phase)
            w = w_ring.index(w_slot).reshape([BN, BK]).permute((1, 0))
            product = warpgroup_mma(x_ring.index(x_slot), w, zero, use_acc=False, is_async=True)
            for _ in range(1, BLOCKS):
                x_done = x_slot
                w_done = w_slot
                x_slot, x_phase = advance(x_slot, x_phase, X_SLOTS)
                w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)
                mbarrier.wait(w_full.index(w_slot), w_phase)
                mbarrier.wait(x_full.index(x_slot), x_phase)
                w = w_ring.index(w_slot).reshape([BN, BK]).permute((1, 0))
                product = warpgroup_mma(x_ring.index(x_slot), w, product, is_async=True)
                product = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[product]))
                mbarrier.arrive(x_empty.index(x_done))
                mbarrier.arrive(w_empty.index(w_done))
            acc = warpgroup_mma_wait(0, deps=[product])
            mbarrier.arrive(x_empty.index(x_slot))
            mbarrier.arrive(w_empty.index(w_slot))
            x_slot, x_phase = advance(x_slot, x_phase, X_SLOTS)
            w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)
            left, right = gl.split(gl.permute(gl.reshape(acc, [64, 2, BN // 2]), (0, 2, 1)))
            if PLANES == 2:
                leave(out_desc, place, col, staged, left * sigmoid(left) * right)
            else:
                leave(out_desc, place, col, staged, left)
                leave(out_desc, place, col + BN // 2, staged, right)
        else:
            for _ in range(BLOCKS):
                mbarrier.wait(w_full.index(w_slot), w_phase)
                mbarrier.arrive(w_empty.index(w_slot))
                w_slot, w_phase = advance(w_slot, w_phase, W_SLOTS)
    tma.store_wait(0)


@gluon.jit
def product_kernel(x_ptr, mid_desc, w_desc, sorted_ptr, map_ptr, used_ptr, out_desc, GATHER: gl.constexpr,
                   N: gl.constexpr, BLOCKS: gl.constexpr, TOP_K: gl.constexpr, SLOTS: gl.constexpr, LEAD: gl.constexpr,
                   TAIL: gl.constexpr, BAND: gl.constexpr, LAG: gl.constexpr, PDL: gl.constexpr):
    """128 rows of a block by BN columns: two consumer warpgroups, a warp for either one's rows, one for the weights.
    Rows are tokens gathered by cp.async, and the end SiLU, if GATHER; else rows of mid by TMA."""
    PLANES: gl.constexpr = w_desc.block_type.shape[0]
    COLS: gl.constexpr = w_desc.block_type.shape[1]
    BK: gl.constexpr = w_desc.block_type.shape[2]
    dtype: gl.constexpr = w_desc.dtype
    tiles_n = gl.cdiv(N, COLS)
    x_ring0 = gl.allocate_shared_memory(dtype, [SLOTS, 64, BK], mid_desc.layout)
    x_ring1 = gl.allocate_shared_memory(dtype, [SLOTS, 64, BK], mid_desc.layout)
    w_ring = gl.allocate_shared_memory(dtype, [SLOTS, PLANES, COLS, BK], w_desc.layout)
    staged0 = gl.allocate_shared_memory(dtype, [64, PLANES * COLS // 2], out_desc.layout)
    staged1 = gl.allocate_shared_memory(dtype, [64, PLANES * COLS // 2], out_desc.layout)
    x_full0 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    x_full1 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    x_empty0 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    x_empty1 = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    w_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    w_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    lead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(x_full0.index(slot), count=1)
        mbarrier.init(x_full1.index(slot), count=1)
        mbarrier.init(x_empty0.index(slot), count=1)
        mbarrier.init(x_empty1.index(slot), count=1)
        mbarrier.init(w_full.index(slot), count=1)
        mbarrier.init(w_empty.index(slot), count=2)
    mbarrier.init(lead, count=1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if GATHER:
        gl.warp_specialize(
            [
                (multiply, (x_ring0, w_ring, x_full0, x_empty0, w_full, w_empty, lead, staged0, out_desc, map_ptr,
                            used_ptr, tiles_n, 0, LEAD, TAIL, BAND, BLOCKS)),
                (multiply, (x_ring1, w_ring, x_full1, x_empty1, w_full, w_empty, lead, staged1, out_desc, map_ptr,
                            used_ptr, tiles_n, 1, LEAD, TAIL, BAND, BLOCKS)),
                (copy_rows, (x_ptr, sorted_ptr, map_ptr, used_ptr, x_ring0, x_full0, x_empty0, lead, tiles_n, 0,
                             LEAD, TAIL, BAND, TOP_K, LAG, BLOCKS)),
                (copy_rows, (x_ptr, sorted_ptr, map_ptr, used_ptr, x_ring1, x_full1, x_empty1, lead, tiles_n, 1,
                             LEAD, TAIL, BAND, TOP_K, LAG, BLOCKS)),
                (copy_w, (w_desc, map_ptr, used_ptr, w_ring, w_full, w_empty, tiles_n, TAIL, BAND, BLOCKS)),
            ],
            [4, 1, 1, 1],
            [208, 88, 88, 88],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (x_ring0, w_ring, x_full0, x_empty0, w_full, w_empty, lead, staged0, out_desc, map_ptr,
                            used_ptr, tiles_n, 0, LEAD, TAIL, BAND, BLOCKS)),
                (multiply, (x_ring1, w_ring, x_full1, x_empty1, w_full, w_empty, lead, staged1, out_desc, map_ptr,
                            used_ptr, tiles_n, 1, LEAD, TAIL, BAND, BLOCKS)),
                (copy_mid, (mid_desc, map_ptr, used_ptr, x_ring0, x_full0, x_empty0, lead, tiles_n, 0, LEAD,
                            TAIL, BAND, BLOCKS)),
                (copy_mid, (mid_desc, map_ptr, used_ptr, x_ring1, x_full1, x_empty1, lead, tiles_n, 1, LEAD,
                            TAIL, BAND, BLOCKS)),
                (copy_w, (w_desc, map_ptr, used_ptr, w_ring, w_full, w_empty, tiles_n, TAIL, BAND, BLOCKS)),
            ],
            [4, 1, 1, 1],
            [232, 40, 40, 40],
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


def rows_box(x: torch.Tensor, rows: int, cols: int) -> GluonDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * cols), element_bitwidth=16, rank=2)
    return GluonDescriptor(x, list(x.shape), list(x.stride()), [rows, cols], layout)


def box(x: torch.Tensor, shape: list[int], strides: list[int], of: list[int]) -> GluonDescriptor:
    return GluonDescriptor(x, shape, strides, of, gl.NVMMASharedLayout(128, 16, rank=3))


class Model(torch.nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int):
        super().__init__()
        self.experts, self.inter, self.top_k = num_experts, intermediate_size, top_k

    def forward(self, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
                topk_ids: torch.Tensor) -> torch.Tensor:
        (tokens, hidden), experts, inter, top_k = hidden_states.shape, self.experts, self.inter, self.top_k
        slots, device, dtype = tokens * top_k, hidden_states.device, hidden_states.dtype
        rows, swap, band, first, second, long, lead = config(slots, experts, hidden, inter)
        direct = tokens == 1 and not long  # its experts are distinct: each slot is a block, and nothing is to be sorted
        if direct:
            order, places, described, used, blocks = topk_ids, topk_ids, topk_ids, topk_ids, slots
        else:
            order, places, described, used, blocks = route(topk_ids, experts, rows)
        mid = torch.empty((blocks * rows, inter), dtype=dtype, device=device)
        part = torch.empty((blocks * rows if long else slots, hidden), dtype=dtype, device=device)
        out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
        pairs = [2 * experts, inter, hidden], [inter * hidden, hidden, 1], [1 if swap else 2, first.cols, first.depth]
        downs = [experts, hidden, inter], [hidden * inter, inter, 1], [1, second.cols, second.depth]
        if long:
            common = {"TOP_K": top_k, "TAIL": TAIL, "BAND": band, "LAG": LAG, "PDL": PDL, "num_warps": 4,
                      "maxnreg": 168, "launch_pdl": PDL}  # fmt: skip
            product_kernel[(min(PROGRAMS, blocks * triton.cdiv(inter, first.cols)),)](
                hidden_states, rows_box(mid, 64, first.depth), box(w1, *pairs), order, described, used,
                rows_box(mid, 64, first.cols), GATHER=True, N=inter, BLOCKS=hidden // first.depth,
                SLOTS=first.stages, LEAD=min(lead, hidden // first.depth - 1), **common,
            )  # fmt: skip
            product_kernel[(min(PROGRAMS, blocks * triton.cdiv(hidden, second.cols)),)](
                hidden_states, rows_box(mid, 64, second.depth), box(w2, *downs), order, described, used,
                rows_box(part, 64, second.cols // 2), GATHER=False, N=hidden, BLOCKS=inter // second.depth,
                SLOTS=second.stages, LEAD=min(lead, inter // second.depth - 1), **common,
            )  # fmt: skip
        else:
            mids = TensorDescriptor(mid, [blocks * rows, inter], [inter, 1], [rows, second.depth])
            common = {"ROWS": rows, "BAND": band, "SWAP": swap, "DIRECT": direct, "PDL": PDL}
            gate_up_kernel[(blocks * triton.cdiv(inter, first.cols),)](
                hidden_states, TensorDescriptor(w1, *pairs), order, described, mid, blocks, HIDDEN=hidden, INTER=inter,
                TOP_K=top_k, COLS=first.cols, DEPTH=first.depth, num_warps=first.warps, num_stages=first.stages,
                launch_pdl=PDL and not direct, **common,
            )  # fmt: skip
            down_kernel[(blocks * triton.cdiv(hidden, second.cols),)](
                mids, TensorDescriptor(w2, *downs), order, described, part, blocks, HIDDEN=hidden, INTER=inter,
                COLS=second.cols, DEPTH=second.depth, num_warps=second.warps, num_stages=second.stages,
                launch_pdl=PDL, **common,
            )  # fmt: skip
        width = min(1024, triton.next_power_of_2(hidden))
        sum_kernel[(tokens, triton.cdiv(hidden, width))](
            part, places, topk_weights, out, HIDDEN=hidden, TOP_K=top_k, COLS=width, SORTED=long, PDL=PDL, num_warps=4,
            launch_pdl=PDL,
        )  # fmt: skip
        return out
