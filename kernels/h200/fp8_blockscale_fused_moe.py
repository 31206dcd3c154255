"""Mixture of experts over fp8 blocks: two grouped products over slots sorted by expert, and a sum; 4 launches (5 from
2049 slots on).

Slots are sorted into blocks of `rows` of one expert (histogram and sort of chunks; one token needs none). A program
multiplies its rows with two boxes of 128 weight rows (gate and up; or neighbours of w2) that TMA brings; a product over
128 of the depth is scaled into fp32 sums by scales that were loaded an iteration ahead. The first product ends in SiLU
and fp8 in groups of 128. Few rows an expert: the weights are the M side, and streaming them bounds the time; many: 128
rows, bound by wgmma and the scaling; very many: a program a multiprocessor goes from tile to tile. Launches depend
programmatically, so that one starts while the other ends.
Measured on an H200: shape 0 (30821 tokens) 3070 us, S 0.38; 4 (1 token) 62 us, 0.51; 5 (2560 tokens) 1868 us, 0.27;
7 (128 tokens) 613 us, 0.82. Needs hidden and intermediate sizes that are multiples of 128.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

PDL = True  # programmatic dependent launch; off for Triton's interpreter
PROGRAMS = 132  # of the long kernels: one a multiprocessor
FLATTEN = False  # whether their two loops become one: then sums move between registers in every step
MAP = 64  # blocks of rows that a program of the routing kernels describes at a time
BLOCK = 128  # of the scales


class Config(NamedTuple):
    rows: int  # of a block
    swap: bool  # weights are the M side
    split: bool  # a block with no more than half its rows takes half a tile
    band: int  # blocks of rows that share the columns' weights in L2
    warps: int
    stages: int
    long: bool = False  # a program a multiprocessor, which goes from tile to tile


def config(slots: int, experts: int) -> Config:
    average = slots / min(slots, experts)
    if average <= 12:
        return Config(16, True, False, 8, 4, 3)
    if average <= 24:
        return Config(32, True, False, 8, 4, 3)
    if average <= 48:
        return Config(64, True, False, 8, 8, 4)
    if average <= 640:
        return Config(128, False, True, 16, 8, 4)
    return Config(128, False, False, 16, 8, 4, long=True)


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
def place_kernel(ids_ptr, counts_ptr, sorted_ptr, map_ptr, used_ptr, slots, chunks, max_blocks, EXPERTS: tl.constexpr,
                 CHUNK: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, MAP: tl.constexpr, PDL: tl.constexpr):
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
             BLOCK: tl.constexpr, SWAP: tl.constexpr,
             DIRECT: tl.constexpr):
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
                   BLOCK: tl.constexpr, BAND: tl.constexpr, SWAP: tl.constexpr, SPLIT: tl.constexpr,
                   DIRECT: tl.constexpr, PDL: tl.constexpr):
    """w1 is a descriptor of [2 * experts, INTER, HIDDEN] with boxes [1, BLOCK, BLOCK]."""
    block, tile = _tile(max_blocks, INTER // BLOCK, BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        if SPLIT:
            if rows <= ROWS // 2:
                _gate_up(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, mid_ptr, mid_scales_ptr, expert, rows,
                         block * ROWS, tile, largest, HIDDEN, INTER, TOP_K, ROWS // 2, BLOCK, SWAP, DIRECT)
            else:
                _gate_up(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, mid_ptr, mid_scales_ptr, expert, rows,
                         block * ROWS, tile, largest, HIDDEN, INTER, TOP_K, ROWS, BLOCK, SWAP, DIRECT)
        else:
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
          INTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SWAP: tl.constexpr,
          DIRECT: tl.constexpr):
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
def down_kernel(mid, mid_half, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, map_ptr, part_ptr, max_blocks,
                HIDDEN: tl.constexpr, INTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BAND: tl.constexpr,
                SWAP: tl.constexpr, SPLIT: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr):
    """mid and mid_half are descriptors of [places, INTER] with boxes of ROWS and half as many rows, w2 one of
    [experts, HIDDEN, INTER] with boxes [1, BLOCK, BLOCK]."""
    block, tile = _tile(max_blocks, tl.cdiv(HIDDEN, 2 * BLOCK), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        if SPLIT:
            if rows <= ROWS // 2:
                _down(mid_half, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, part_ptr, expert, rows, block * ROWS,
                      tile, HIDDEN, INTER, ROWS // 2, BLOCK, SWAP, DIRECT)
            else:
                _down(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile,
                      HIDDEN, INTER, ROWS, BLOCK, SWAP, DIRECT)
        else:
            _down(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile,
                  HIDDEN, INTER, ROWS, BLOCK, SWAP, DIRECT)


@triton.jit
def _tile_at(index, blocks, tiles_n, BAND: tl.constexpr):
    """Block of rows and tile of columns: tiles that run together share a band of rows and the weights."""
    band = index // (BAND * tiles_n)
    height = tl.minimum(blocks - band * BAND, BAND)
    inside = index % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height


@triton.jit
def gate_up_long_kernel(x_ptr, w1, x_scales_ptr, w1_scales_ptr, sorted_ptr, map_ptr, used_ptr, mid_ptr, mid_scales_ptr,
                        largest, HIDDEN: tl.constexpr, INTER: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr,
                        BLOCK: tl.constexpr, BAND: tl.constexpr, PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr,
                        PDL: tl.constexpr):
    """A program on each multiprocessor takes every so many-th tile, and loads the next while it stores one."""
    DEPTHS: tl.constexpr = HIDDEN // BLOCK
    row = tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    _after(PDL)
    blocks = tl.load(used_ptr)
    for index in tl.range(tl.program_id(0), blocks * (INTER // BLOCK), PROGRAMS, flatten=FLATTEN):
        block, tile = _tile_at(index, blocks, INTER // BLOCK, BAND)
        expert = tl.load(map_ptr + 2 * block)
        rows = tl.load(map_ptr + 2 * block + 1)
        # Rows past the block's own repeat a token and are not stored.
        token = (tl.load(sorted_ptr + block * ROWS + row, mask=row < rows, other=0) // TOP_K).to(tl.int64)
        x = x_ptr + token[:, None] * HIDDEN + k[None, :]
        x_scales = x_scales_ptr + token * DEPTHS
        gate_scales = w1_scales_ptr + (expert * (2 * INTER // BLOCK) + tile) * DEPTHS
        up_scales = gate_scales + INTER // BLOCK * DEPTHS
        gate = tl.zeros([ROWS, BLOCK], tl.float32)
        up = tl.zeros([ROWS, BLOCK], tl.float32)
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
            a = tl.load(x + depth * BLOCK)
            b = tl.reshape(w1.load([2 * expert, tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
            c = tl.reshape(w1.load([2 * expert + 1, tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
            gate = _scaled(gate, a, b, gate_factor, False)
            up = _scaled(up, a, c, up_factor, False)
        mid = gate / (1.0 + tl.exp(-gate)) * up
        group = tl.maximum(tl.max(tl.abs(mid), axis=1), 1e-30) / largest
        codes = (mid / group[:, None]).to(mid_ptr.dtype.element_ty)
        place = block * ROWS + row
        live = row < rows
        tl.store(mid_ptr + place.to(tl.int64)[:, None] * INTER + (tile * BLOCK + k)[None, :], codes, mask=live[:, None])
        tl.store(mid_scales_ptr + place * (INTER // BLOCK) + tile, group, mask=live)


@triton.jit
def down_long_kernel(mid, w2, mid_scales_ptr, w2_scales_ptr, sorted_ptr, map_ptr, used_ptr, part_ptr,
                     HIDDEN: tl.constexpr, INTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                     BAND: tl.constexpr, PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr, PDL: tl.constexpr):
    DEPTHS: tl.constexpr = INTER // BLOCK
    tiles_n = tl.cdiv(HIDDEN, 2 * BLOCK)
    row = tl.arange(0, ROWS)
    _after(PDL)
    blocks = tl.load(used_ptr)
    for index in tl.range(tl.program_id(0), blocks * tiles_n, PROGRAMS, flatten=FLATTEN):
        block, tile = _tile_at(index, blocks, tiles_n, BAND)
        expert = tl.load(map_ptr + 2 * block)
        mid_scales = mid_scales_ptr + block * (ROWS * DEPTHS)
        left_scales = w2_scales_ptr + (expert * (HIDDEN // BLOCK) + 2 * tile) * DEPTHS
        if HIDDEN % (2 * BLOCK) == 0:
            right_scales = left_scales + DEPTHS
        else:
            right_scales = left_scales + tl.where((2 * tile + 1) * BLOCK < HIDDEN, DEPTHS, 0)
        left = tl.zeros([ROWS, BLOCK], tl.float32)
        right = tl.zeros([ROWS, BLOCK], tl.float32)
        scale = tl.load(mid_scales + row * DEPTHS)
        left_scale = tl.load(left_scales)
        right_scale = tl.load(right_scales)
        for depth in range(0, DEPTHS):
            left_factor = scale * left_scale
            right_factor = scale * right_scale
            ahead = tl.minimum(depth + 1, DEPTHS - 1)
            scale = tl.load(mid_scales + row * DEPTHS + ahead)
            left_scale = tl.load(left_scales + ahead)
            right_scale = tl.load(right_scales + ahead)
            a = mid.load([block * ROWS, depth * BLOCK])
            b = tl.reshape(w2.load([expert, 2 * tile * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
            c = tl.reshape(w2.load([expert, (2 * tile + 1) * BLOCK, depth * BLOCK]), [BLOCK, BLOCK])
            left = _scaled(left, a, b, left_factor, False)
            right = _scaled(right, a, c, right_factor, False)
        live = row < tl.load(map_ptr + 2 * block + 1)
        slot = tl.load(sorted_ptr + block * ROWS + row, mask=live, other=0)
        _store(part_ptr, left, slot, live, 2 * tile * BLOCK, HIDDEN, BLOCK, False)
        _store(part_ptr, right, slot, live, (2 * tile + 1) * BLOCK, HIDDEN, BLOCK, False)


@triton.jit
def sum_kernel(part_ptr, weights_ptr, out_ptr, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, COLS: tl.constexpr,
               PDL: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    acc = tl.zeros([COLS], tl.float32)
    _after(PDL)
    for j in tl.static_range(TOP_K):
        part = tl.load(part_ptr + (token * TOP_K + j) * HIDDEN + cols, mask=cols < HIDDEN, other=0.0,
                       eviction_policy="evict_first")  # fmt: skip
        acc += part.to(tl.float32) * tl.load(weights_ptr + token * TOP_K + j)
    tl.store(out_ptr + token * HIDDEN + cols, acc.to(out_ptr.dtype.element_ty), mask=cols < HIDDEN)


def route(topk_ids: torch.Tensor, experts: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Slots in blocks of `rows` of one expert, [expert, rows] of each block, how many blocks are used, and at most."""
    slots, device = topk_ids.numel(), topk_ids.device
    blocks = min(slots, slots // rows + experts)
    order = torch.empty(blocks * rows, dtype=torch.int32, device=device)
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
        topk_ids, counts, order, described, used, slots, chunks, blocks, EXPERTS=pad, CHUNK=chunk,
        CHUNKS=triton.next_power_of_2(chunks), ROWS=rows, MAP=MAP, PDL=PDL, num_warps=8, launch_pdl=PDL and chunks > 1,
    )  # fmt: skip
    return order, described, used, blocks


def depth_of(programs: int, config: Config) -> int:
    """Stages: where programs are fewer than multiprocessors, each holds more in flight."""
    return 4 if config.swap and config.rows <= 32 and programs <= 132 else config.stages


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
        rows, swap, split, band, warps, stages, long = choice
        direct = tokens == 1 and not long  # its experts are distinct: each slot is a block, and nothing is to be sorted
        if direct:
            order, described, used, blocks = topk_ids, topk_ids, topk_ids, slots
        else:
            order, described, used, blocks = route(topk_ids, experts, rows)
        mid = torch.empty((blocks * rows, inter), dtype=dtype, device=device)
        mid_scales = torch.empty((blocks * rows, inter // BLOCK), dtype=torch.float32, device=device)
        part = torch.empty((slots, hidden), dtype=torch.bfloat16, device=device)
        out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)

        largest = torch.finfo(dtype).max
        ups = TensorDescriptor(w1, [2 * experts, inter, hidden], [inter * hidden, hidden, 1], [1, BLOCK, BLOCK])
        downs = TensorDescriptor(w2, [experts, hidden, inter], [hidden * inter, inter, 1], [1, BLOCK, BLOCK])
        mids = [TensorDescriptor(mid, [blocks * rows, inter], [inter, 1], [height, BLOCK])
                for height in (rows, rows // 2)]  # fmt: skip
        common = {"HIDDEN": hidden, "INTER": inter, "ROWS": rows, "BLOCK": BLOCK, "BAND": band, "PDL": PDL,
                  "num_warps": warps}  # fmt: skip
        if long:
            common |= {"PROGRAMS": PROGRAMS, "FLATTEN": FLATTEN, "num_stages": stages, "launch_pdl": PDL}
            gate_up_long_kernel[(PROGRAMS,)](
                hidden_states, ups, a_scale, fc1_scale, order, described, used, mid, mid_scales, largest, TOP_K=top_k,
                **common,
            )  # fmt: skip
            down_long_kernel[(PROGRAMS,)](
                mids[0], downs, mid_scales, fc2_scale, order, described, used, part, **common
            )  # fmt: skip
        else:
            programs = blocks * (inter // BLOCK)
            gate_up_kernel[(programs,)](
                hidden_states, ups, a_scale, fc1_scale, order, described, mid, mid_scales, blocks, largest,
                TOP_K=top_k, SWAP=swap, SPLIT=split, DIRECT=direct, num_stages=depth_of(programs, choice),
                launch_pdl=PDL and not direct, **common,
            )  # fmt: skip
            programs = blocks * triton.cdiv(hidden, 2 * BLOCK)
            down_kernel[(programs,)](
                *mids, downs, mid_scales, fc2_scale, order, described, part, blocks, SWAP=swap, SPLIT=split,
                DIRECT=direct, num_stages=depth_of(programs, choice), launch_pdl=PDL, **common,
            )  # fmt: skip
        width = min(1024, triton.next_power_of_2(hidden))
        sum_kernel[(tokens, triton.cdiv(hidden, width))](
            part, topk_weights, out, HIDDEN=hidden, TOP_K=top_k, COLS=width, PDL=PDL, num_warps=4, launch_pdl=PDL
        )
        return out
