"""Mixture of experts as two grouped products over slots sorted by expert, and a sum: 4 launches (5 from 2049 slots on).

Slots are sorted into blocks of `rows` of one expert (histogram and sort of chunks, deterministic; one token needs
none). The first product loads gathered tokens by cp.async and [gate, up] rows of w1 by one TMA box into one wgmma tile,
split in registers for SiLU. Few rows an expert: the weights are the M side of the product, and streaming them bounds
the time; many: 128 rows by 256 columns, bound by wgmma and L2: a block with at most 64 rows left does half the work, or
(very many) a program a multiprocessor goes from tile to tile. The last kernel sums the slots of a token with their
weights. Launches depend programmatically, so that one starts while the other ends.
Measured on an H200: shape 2 (668 tokens) 114 us, S 0.38; 4 209, 0.48; 5 380, 0.56; 9 (2400 tokens) 470, 0.55; 17 484,
0.54; 18 739, 0.41. Needs hidden and intermediate sizes that are multiples of 8.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

PDL = True  # programmatic dependent launch; off for Triton's interpreter
PROGRAMS = 132  # of the long kernels: one a multiprocessor
FLATTEN = True  # their two loops become one, so that loads go on across tiles
MAP = 64  # blocks of rows that a program of the routing kernels describes at a time


class Tile(NamedTuple):
    cols: int  # columns of a program: of gate and of up each, or of the output
    depth: int
    warps: int
    stages: int


class Config(NamedTuple):
    rows: int  # of a block
    swap: bool  # weights are the M side
    split: bool  # a block with no more than half its rows takes half a tile
    band: int  # blocks of rows that share the columns' weights in L2
    up: Tile
    down: Tile
    long: bool = False  # a program a multiprocessor, which goes from tile to tile


def config(slots: int, experts: int, hidden: int, inter: int) -> Config:
    average = slots / min(slots, experts)
    if slots <= 16:  # fewer programs than multiprocessors: more of them in flight
        return Config(16, True, False, 8, Tile(64, 128, 4, 6), Tile(64, 128, 4, 5))
    if average <= 8:
        return Config(16, True, False, 8, Tile(64, 128, 4, 3), Tile(64, 128, 4, 5))
    if average <= 40 and experts < 64:
        return Config(32, True, False, 8, Tile(64, 64, 4, 3), Tile(64, 64, 4, 4))
    if average <= 80:
        return Config(64, True, False, 8, Tile(64, 64, 4, 3), Tile(64, 64, 4, 4))
    if average <= 180:  # bound by the weights and by L2: two programs on a multiprocessor
        return Config(128, False, True, 8, Tile(128, 64, 8, 4), Tile(128, 64, 4, 3))
    if average <= 640 or hidden % 64 or inter % 64:
        down = Tile(256, 64, 8, 4) if inter > 1024 else Tile(128, 64, 4, 3)  # short sums: one's end hides another's
        return Config(128, False, True, 16, Tile(128, 64, 8, 4), down)
    return Config(128, False, False, 16, Tile(128, 64, 8, 3), Tile(256, 64, 8, 3), long=True)


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
                   BAND: tl.constexpr, SWAP: tl.constexpr, SPLIT: tl.constexpr, DIRECT: tl.constexpr,
                   PDL: tl.constexpr):
    """w1 is a descriptor of [2 * experts, INTER, HIDDEN] with boxes of COLS by DEPTH, of gate and up if not SWAP."""
    block, tile = _tile(max_blocks, tl.cdiv(INTER, COLS), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        if SPLIT:
            if rows <= ROWS // 2:
                _gate_up(x_ptr, w1, sorted_ptr, mid_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, TOP_K,
                         ROWS // 2, COLS, DEPTH, SWAP, DIRECT)
            else:
                _gate_up(x_ptr, w1, sorted_ptr, mid_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, TOP_K,
                         ROWS, COLS, DEPTH, SWAP, DIRECT)
        else:
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
def down_kernel(mid, mid_half, w2, sorted_ptr, map_ptr, part_ptr, max_blocks, HIDDEN: tl.constexpr,
                INTER: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
                SWAP: tl.constexpr, SPLIT: tl.constexpr, DIRECT: tl.constexpr, PDL: tl.constexpr):
    """mid and mid_half are descriptors of [places, INTER] with boxes of ROWS and half as many rows, w2 one of
    [experts, HIDDEN, INTER] with boxes [1, COLS, DEPTH]."""
    block, tile = _tile(max_blocks, tl.cdiv(HIDDEN, COLS), BAND)
    _after(PDL)
    expert, rows = _block(map_ptr, block, DIRECT)
    if expert >= 0:
        if SPLIT:
            if rows <= ROWS // 2:
                _down(mid_half, w2, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER,
                      ROWS // 2, COLS, DEPTH, SWAP, DIRECT)
            else:
                _down(mid, w2, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, ROWS,
                      COLS, DEPTH, SWAP, DIRECT)
        else:
            _down(mid, w2, sorted_ptr, part_ptr, expert, rows, block * ROWS, tile * COLS, HIDDEN, INTER, ROWS, COLS,
                  DEPTH, SWAP, DIRECT)


@triton.jit
def _tile_at(index, blocks, tiles_n, BAND: tl.constexpr):
    """Block of rows and tile of columns: tiles that run together share a band of rows and the weights."""
    band = index // (BAND * tiles_n)
    height = tl.minimum(blocks - band * BAND, BAND)
    inside = index % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height


@triton.jit
def gate_up_long_kernel(x_ptr, w1, sorted_ptr, map_ptr, used_ptr, mid_ptr, HIDDEN: tl.constexpr, INTER: tl.constexpr,
                        TOP_K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
                        BAND: tl.constexpr, PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr, PDL: tl.constexpr):
    """A program on each multiprocessor takes every so many-th tile, and loads the next while it stores one."""
    tiles_n = tl.cdiv(INTER, COLS)
    row = tl.arange(0, ROWS)
    k = tl.arange(0, DEPTH)
    _after(PDL)
    blocks = tl.load(used_ptr)
    for index in tl.range(tl.program_id(0), blocks * tiles_n, PROGRAMS, flatten=FLATTEN):
        block, tile = _tile_at(index, blocks, tiles_n, BAND)
        expert = tl.load(map_ptr + 2 * block)
        rows = tl.load(map_ptr + 2 * block + 1)
        # Rows past the block's own repeat a token and are not stored.
        token = tl.load(sorted_ptr + block * ROWS + row, mask=row < rows, other=0) // TOP_K
        x = x_ptr + token.to(tl.int64)[:, None] * HIDDEN + k[None, :]
        acc = tl.zeros([ROWS, 2 * COLS], tl.float32)
        for start in range(0, HIDDEN, DEPTH):
            a = tl.load(x + start)
            b = tl.reshape(w1.load([2 * expert, tile * COLS, start]), [2 * COLS, DEPTH])
            acc = tl.dot(a, b.T, acc)
        gate, up = tl.split(tl.permute(tl.reshape(acc, [ROWS, 2, COLS]), [0, 2, 1]))
        mid = (gate / (1.0 + tl.exp(-gate)) * up).to(mid_ptr.dtype.element_ty)
        cols = tile * COLS + tl.arange(0, COLS)
        there = mid_ptr + (block * ROWS + row).to(tl.int64)[:, None] * INTER + cols[None, :]
        tl.store(there, mid, mask=(row < rows)[:, None] & (cols < INTER)[None, :])


@triton.jit
def down_long_kernel(mid, w2, sorted_ptr, map_ptr, used_ptr, part_ptr, HIDDEN: tl.constexpr, INTER: tl.constexpr,
                     ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
                     PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr, PDL: tl.constexpr):
    tiles_n = tl.cdiv(HIDDEN, COLS)
    row = tl.arange(0, ROWS)
    _after(PDL)
    blocks = tl.load(used_ptr)
    for index in tl.range(tl.program_id(0), blocks * tiles_n, PROGRAMS, flatten=FLATTEN):
        block, tile = _tile_at(index, blocks, tiles_n, BAND)
        expert = tl.load(map_ptr + 2 * block)
        acc = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, INTER, DEPTH):
            a = mid.load([block * ROWS, start])
            b = tl.reshape(w2.load([expert, tile * COLS, start]), [COLS, DEPTH])
            acc = tl.dot(a, b.T, acc)
        rows = tl.load(map_ptr + 2 * block + 1)
        slot = tl.load(sorted_ptr + block * ROWS + row, mask=row < rows, other=0)
        cols = tile * COLS + tl.arange(0, COLS)
        there = part_ptr + slot.to(tl.int64)[:, None] * HIDDEN + cols[None, :]
        tl.store(there, acc.to(part_ptr.dtype.element_ty), mask=(row < rows)[:, None] & (cols < HIDDEN)[None, :])


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


class Model(torch.nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int):
        super().__init__()
        self.experts, self.inter, self.top_k = num_experts, intermediate_size, top_k

    def forward(self, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
                topk_ids: torch.Tensor) -> torch.Tensor:
        (tokens, hidden), experts, inter, top_k = hidden_states.shape, self.experts, self.inter, self.top_k
        slots, device, dtype = tokens * top_k, hidden_states.device, hidden_states.dtype
        rows, swap, split, band, first, second, long = config(slots, experts, hidden, inter)
        direct = tokens == 1 and not long  # its experts are distinct: each slot is a block, and nothing is to be sorted
        if direct:
            order, described, used, blocks = topk_ids, topk_ids, topk_ids, slots
        else:
            order, described, used, blocks = route(topk_ids, experts, rows)
        mid = torch.empty((blocks * rows, inter), dtype=dtype, device=device)
        part = torch.empty((slots, hidden), dtype=dtype, device=device)
        out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)

        pairs = TensorDescriptor(w1, [2 * experts, inter, hidden], [inter * hidden, hidden, 1],
                                 [1 if swap else 2, first.cols, first.depth])
        downs = TensorDescriptor(w2, [experts, hidden, inter], [hidden * inter, inter, 1],
                                 [1, second.cols, second.depth])
        mids = [TensorDescriptor(mid, [blocks * rows, inter], [inter, 1], [height, second.depth])
                for height in (rows, rows // 2)]  # fmt: skip
        up_tile = {"ROWS": rows, "COLS": first.cols, "DEPTH": first.depth, "BAND": band, "PDL": PDL,
                   "num_warps": first.warps, "num_stages": first.stages, "launch_pdl": PDL and not direct}  # fmt: skip
        down_tile = {"ROWS": rows, "COLS": second.cols, "DEPTH": second.depth, "BAND": band, "PDL": PDL,
                     "num_warps": second.warps, "num_stages": second.stages, "launch_pdl": PDL}  # fmt: skip
        if long:
            gate_up_long_kernel[(PROGRAMS,)](
                hidden_states, pairs, order, described, used, mid, HIDDEN=hidden, INTER=inter, TOP_K=top_k,
                PROGRAMS=PROGRAMS, FLATTEN=FLATTEN, **up_tile,
            )  # fmt: skip
            down_long_kernel[(PROGRAMS,)](
                mids[0], downs, order, described, used, part, HIDDEN=hidden, INTER=inter, PROGRAMS=PROGRAMS,
                FLATTEN=FLATTEN, **down_tile,
            )  # fmt: skip
        else:
            gate_up_kernel[(blocks * triton.cdiv(inter, first.cols),)](
                hidden_states, pairs, order, described, mid, blocks, HIDDEN=hidden, INTER=inter, TOP_K=top_k,
                SWAP=swap, SPLIT=split, DIRECT=direct, **up_tile,
            )  # fmt: skip
            down_kernel[(blocks * triton.cdiv(hidden, second.cols),)](
                *mids, downs, order, described, part, blocks, HIDDEN=hidden, INTER=inter, SWAP=swap, SPLIT=split,
                DIRECT=direct, **down_tile,
            )  # fmt: skip
        width = min(1024, triton.next_power_of_2(hidden))
        sum_kernel[(tokens, triton.cdiv(hidden, width))](
            part, topk_weights, out, HIDDEN=hidden, TOP_K=top_k, COLS=width, PDL=PDL, num_warps=4, launch_pdl=PDL
        )
        return out
