"""Causal attention over a paged cache in Gluon, a kernel for each kind of batch.

`batch_kernel`, sequences of up to 256 tokens: programs stay; a warp brings keys and values in boxes of 16 tokens by
TMA, one the queries; two consumer warpgroups take 64 queries of a head in turn, so that one's products run beside the
other's softmax, and the next sequence arrives meanwhile. `prompt_kernel`, long sequences: the same roles, tiles of keys
stream past 64 queries of two heads. `attend_kernel`, few rows: the query heads of a key head fill the rows, cp.async
gathers, contexts are cut in pieces that `join_kernel` adds; contexts that differ much, or that lie among prompts, are
cut in pieces counted up (`join_pieces_kernel`). `short_kernel` and `attend_kernel` take pages that boxes do not fit.
Bounds: 256-token batches HBM, long prompts tensor cores, decode HBM. Expected: shape 1 120 us (S 0.73), 13 2200 us
(0.77), 20 510 us (0.64), 24 230 us (0.63), 26 80 us (0.72), 30 240 us (0.48).
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = 1.4426950408889634
SMS = 132
SHORT = 256  # tokens of a sequence that stay in shared memory


def config(dim: int, rows: int, sequences: int, kv_heads: int) -> tuple[int, int, int, int]:
    """ROWS, TILE (keys), STAGES and warps of attend_kernel; `rows` are those of all sequences for one key head."""
    if rows <= 64 * sequences:
        return 64, (32 if dim > 192 else 64), (2 if dim > 128 else 3), 4  # two programs fit a multiprocessor
    if rows * kv_heads <= 64 * SMS:
        return 64, 64, (2 if dim > 128 else 3), 4
    if dim > 128:
        return 128, 64, (2 if dim > 192 else 3), 8
    return 128, (128 if rows * kv_heads > 128 * SMS * 4 else 64), (2 if dim > 80 else 3), 8


def short_config(sequences: int, kv_heads: int, group: int) -> int:
    """Chunks of rows into which short_kernel cuts a sequence's head: several waves even out, whole ones load least."""
    items = sequences * kv_heads
    best, cost = 1, float("inf")
    for chunks in range(1, 7):
        waves = -(-items * chunks // SMS) if items * chunks < 8 * SMS else items * chunks / SMS
        time = waves * (4.0 + 5.5 * group / chunks)  # microseconds: start and loads, then tiles
        if time < cost * 0.98:
            best, cost = chunks, time
    return best


TMA = True  # batch_kernel and prompt_kernel; else short_kernel and attend_kernel alone


def batch_config(sequences: int, kv_heads: int, group: int) -> tuple[int, int, int, int]:
    """CHUNKS of an item that programs share out, EXTRA tiles that a block costs, slots for queries (even, at least 4),
    registers of a consumer."""
    items = sequences * kv_heads
    waves = -(-items // SMS)
    chunks = 1 if waves * SMS <= 1.04 * items else 16
    return chunks, 2, 6, 232


def prompt_config(dim: int, group: int) -> tuple[int, int, bool, bool, int]:
    """TILE keys, SLOTS of either ring, whether programs take PAIRs of heads, TURNS at the tensor cores, registers."""
    tile, slots = (64, 2) if dim > 192 else (64, 3) if dim > 128 else (128, 3)
    return tile, slots, group % 2 == 0, True, 232


def halves(size: int) -> tuple[int, int]:
    """The largest power of two in `size` and what a second block takes for the rest, at least 16 or nothing."""
    head = 1 << (size.bit_length() - 1)
    return head, max(16, triton.next_power_of_2(size - head)) if size > head else 0


@gluon.constexpr_function
def copy_layout(width, warps):
    """16 bytes a lane, whole rows side by side."""
    lanes = width // 8
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.constexpr_function
def product_layout(width, warps):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, width, 16])


@gluon.constexpr_function
def shared_layout(rows, width):
    return gl.NVMMASharedLayout.get_default_for([rows, width], gl.bfloat16)


@gluon.constexpr_function
def power_of_2(size):
    return triton.next_power_of_2(size)


@gluon.jit
def slots(table_row, spare, width, start, length, PAGE: gl.constexpr, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    """Cache slots of the tokens from start on, `spare` for those past the end. No load depends on the length, which is
    on its way itself when the first tile asks."""
    token = start + gl.arange(0, TILE, layout=gl.SliceLayout(1, LAYOUT))
    page = gl.load(table_row + gl.minimum(token // PAGE, width - 1))
    return gl.where(token < length, page * PAGE + token % PAGE, spare)


@gluon.jit
def gather(buffer, head_ptr, slot, FIRST: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, STRIDE: gl.constexpr,
           LAYOUT: gl.constexpr):
    """Start copying columns FIRST to FIRST + WIDTH of some rows; columns from D on become zero."""
    dim = FIRST + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    place = head_ptr + slot.to(gl.int64)[:, None] * STRIDE + dim[None, :]
    if FIRST + WIDTH > D:
        async_copy.async_copy_global_to_shared(buffer, place, mask=(dim < D)[None, :])
    else:
        async_copy.async_copy_global_to_shared(buffer, place)


@gluon.jit
def zero_leftover(out_ptr, held, queries, ROW: gl.constexpr, warps: gl.constexpr):
    """Queries of no sequence give zeros: every program takes some."""
    query = held + gl.program_id(0)
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [warps], [0])
    dim = gl.arange(0, power_of_2(ROW), layout=LAYOUT)
    zero = gl.zeros([power_of_2(ROW)], out_ptr.dtype.element_ty, layout=LAYOUT)
    while query < queries:
        gl.store(out_ptr + query.to(gl.int64) * ROW + dim, zero, mask=dim < ROW)
        query += gl.num_programs(0)


@gluon.jit
def find_sequence(bounds_ptr, sequences, block, GROUP: gl.constexpr, ROWS: gl.constexpr, warps: gl.constexpr):
    """The last sequence that starts at or before this block; sequence s starts at bounds[s] * GROUP // ROWS + s."""
    low = 0
    span = sequences
    lane = gl.arange(0, 32 * warps, layout=gl.BlockedLayout([1], [32], [warps], [0]))
    while span > 1:
        step = gl.cdiv(span, 32 * warps)
        offset = lane * step
        index = low + gl.minimum(offset, span - 1)
        start = gl.load(bounds_ptr + index) * GROUP // ROWS + index
        steps = gl.sum(((offset < span) & (start <= block)).to(gl.int32), axis=0) - 1
        low += steps * step
        span = gl.minimum(step, span - steps * step)
    return low


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def piece_size(bounds_ptr, used_ptr, sequences, target, GROUP: gl.constexpr, ROWS: gl.constexpr, warps: gl.constexpr):
    """Tokens of a piece, if all contexts of sequences with few rows shall give about `target` of them."""
    lane = gl.arange(0, 32 * warps, layout=gl.BlockedLayout([1], [32], [warps], [0]))
    total = 0
    for start in range(0, sequences, 32 * warps):
        there = start + lane < sequences
        seq = gl.minimum(start + lane, sequences - 1)
        rows = (gl.load(bounds_ptr + seq + 1) - gl.load(bounds_ptr + seq)) * GROUP
        length = gl.load(used_ptr + seq)
        total += gl.sum(gl.where(there & (rows > 0) & (rows <= ROWS), length, 0), axis=0)
    return gl.maximum(256, gl.cdiv(total, target * 64) * 64)


@gluon.jit
def find_piece(bounds_ptr, used_ptr, sequences, unit, target, MANY: gl.constexpr, GROUP: gl.constexpr,
               ROWS: gl.constexpr, warps: gl.constexpr):
    """The sequence of the unit-th piece, which of that sequence's it is, and how long pieces are. MANY: sequences with
    more rows count, too, a piece for each ROWS of them."""
    piece = piece_size(bounds_ptr, used_ptr, sequences, target, GROUP, ROWS, warps)
    lane = gl.arange(0, 32 * warps, layout=gl.BlockedLayout([1], [32], [warps], [0]))
    found = 0
    before = 0
    base = 0
    for start in range(0, sequences, 32 * warps):
        there = start + lane < sequences
        seq = gl.minimum(start + lane, sequences - 1)
        rows = (gl.load(bounds_ptr + seq + 1) - gl.load(bounds_ptr + seq)) * GROUP
        count = gl.where(there & (rows > 0) & (rows <= ROWS), gl.cdiv(gl.load(used_ptr + seq), piece), 0)
        if MANY:
            count += gl.where(there & (rows > ROWS), gl.cdiv(rows, ROWS), 0)
        past = there & (base + gl.associative_scan(count, 0, add) <= unit)
        found += gl.sum(past.to(gl.int32), axis=0)
        before += gl.sum(gl.where(past, count, 0), axis=0)
        base += gl.sum(count, axis=0)
    return found, unit - before, piece


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def issue(m, LATER: gl.constexpr, tiles, k0, v0, k1, v1, k_head, v_head, here0, past0, here1, past1, D: gl.constexpr,
          D0: gl.constexpr, D1: gl.constexpr, STRIDE: gl.constexpr, STAGES: gl.constexpr, C0: gl.constexpr,
          C1: gl.constexpr):
    """Group m of copies: the keys of tile m and the values of tile m - 1."""
    if m < tiles:
        gather(k0.index(m % STAGES), k_head, here0, 0, D0, D, STRIDE, C0)
        if D1 > 0:
            gather(k1.index(m % STAGES), k_head, here1, D0, D1, D, STRIDE, C1)
    if LATER:  # noqa: SIM102
        if m <= tiles:
            gather(v0.index((m - 1) % STAGES), v_head, past0, 0, D0, D, STRIDE, C0)
            if D1 > 0:
                gather(v1.index((m - 1) % STAGES), v_head, past1, D0, D1, D, STRIDE, C1)
    async_copy.commit_group()


@gluon.jit
def softmax(score, top, total, scale):
    """One step of the online softmax: weights, the new maximum and sum, and what old sums shrink by."""
    peak = gl.maximum(top, gl.max(score, axis=1) * scale)
    p = gl.exp2(score * scale - peak[:, None])
    decay = gl.exp2(top - peak)
    return p, peak, total * decay + gl.sum(p, axis=1), decay


# Counts change from batch to batch: they must not make another specialization.
@gluon.jit(
    do_not_specialize=["queries", "sequences", "width", "table_stride", "blocks", "chunks", "piece", "part_stride"]
)
def attend_kernel(q_ptr, k_ptr, v_ptr, bounds_ptr, used_ptr, table_ptr, out_ptr, parts_ptr, sums_ptr, scale, queries,
                  sequences, width, table_stride, blocks, chunks, piece, part_stride, HEADS: gl.constexpr,
                  KV_HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr,
                  ROWS: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, DIRECT: gl.constexpr,
                  SPLIT: gl.constexpr, num_warps: gl.constexpr):
    """SPLIT 1: pieces of keys on the grid's second axis. 2: pieces counted up, about `piece` of them, of sequences with
    at most ROWS rows. 3: others' blocks are counted with them and need no join."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    STRIDE: gl.constexpr = KV_HEADS * D
    E1: gl.constexpr = D1 if D1 > 0 else 16  # the second block of columns, if there is one
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    if SPLIT > 0:
        gdc_launch_dependents()
    held = gl.load(bounds_ptr + sequences)

    # Later blocks of a sequence see more keys: they start first.
    kv_head = gl.program_id(0) % KV_HEADS
    block = blocks - 1 - gl.program_id(0) // KV_HEADS
    part = gl.program_id(1)
    if SPLIT >= 2:
        block = gl.program_id(0) // KV_HEADS
        seq, part, piece = find_piece(bounds_ptr, used_ptr, sequences, block, piece, SPLIT == 3, GROUP, ROWS, num_warps)
        if seq >= sequences:
            zero_leftover(out_ptr, held, queries, HEADS * D, num_warps)
            return
        begin = 0
        if SPLIT == 3:
            many = (gl.load(bounds_ptr + seq + 1) - gl.load(bounds_ptr + seq)) * GROUP > ROWS
            begin = gl.where(many, part * ROWS, 0)
            part = gl.where(many, 0, part)
            piece = gl.where(many, width * PAGE, piece)
    elif DIRECT:
        seq = block // chunks
        begin = block % chunks * ROWS
    else:
        seq = find_sequence(bounds_ptr, sequences, block, GROUP, ROWS, num_warps)
        begin = (block - gl.load(bounds_ptr + seq) * GROUP // ROWS - seq) * ROWS
    first = gl.load(bounds_ptr + seq)
    last = gl.load(bounds_ptr + seq + 1)
    length = gl.load(used_ptr + seq)
    table_row = table_ptr + table_stride.to(gl.int64) * seq
    low = 0
    if SPLIT > 0:
        low = part * piece
    spare = gl.load(table_row) * PAGE  # the sequence's first token, which may always be read
    # Page numbers are read a tile ahead of the copies, the first before anything depends on what was loaded.
    C0: gl.constexpr = copy_layout(D0, num_warps)
    C1: gl.constexpr = copy_layout(E1, num_warps)
    here0 = slots(table_row, spare, width, low, length, PAGE, TILE, C0)
    past0 = here0
    here1 = here0
    past1 = here0
    if D1 > 0:
        here1 = slots(table_row, spare, width, low, length, PAGE, TILE, C1)
        past1 = here1
    zero_leftover(out_ptr, held, queries, HEADS * D, num_warps)
    rows = (last - first) * GROUP
    if begin >= rows:
        return
    context = length - (last - first)
    end = gl.minimum(context + (begin + ROWS - 1) // GROUP + 1, length)  # keys that the block's last row sees
    every = context + begin // GROUP + 1  # and those that its first one does
    if SPLIT == 1:  # noqa: SIM102
        if low >= length:  # the others still look for this piece's sums
            LINE: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
            row = begin + gl.arange(0, ROWS, layout=LINE)
            index = (first + row // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row % GROUP
            index += gl.program_id(1).to(gl.int64) * part_stride
            never = gl.full([ROWS], -float("inf"), gl.float32, layout=LINE)
            gl.store(sums_ptr + index, never, mask=row < rows)
            return
    if SPLIT > 0:
        end = gl.maximum(gl.minimum(low + piece, end), low + 1)
    tiles = gl.cdiv(end - low, TILE)

    SCORE: gl.constexpr = product_layout(TILE, num_warps)
    ACC0: gl.constexpr = product_layout(D0, num_warps)
    ACC1: gl.constexpr = product_layout(E1, num_warps)
    q0 = gl.allocate_shared_memory(dtype, [ROWS, D0], shared_layout(ROWS, D0))
    k0 = gl.allocate_shared_memory(dtype, [STAGES, TILE, D0], shared_layout(TILE, D0))
    v0 = gl.allocate_shared_memory(dtype, [STAGES, TILE, D0], shared_layout(TILE, D0))
    k_head = k_ptr + kv_head * D
    v_head = v_ptr + kv_head * D
    q_head = q_ptr + kv_head * GROUP * D
    row0 = gl.minimum(begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C0)), rows - 1)
    gather(q0, q_head, (first + row0 // GROUP).to(gl.int64) * HEADS + row0 % GROUP, 0, D0, D, D, C0)
    q1, k1, v1 = q0, k0, v0
    if D1 > 0:
        q1 = gl.allocate_shared_memory(dtype, [ROWS, E1], shared_layout(ROWS, E1))
        k1 = gl.allocate_shared_memory(dtype, [STAGES, TILE, E1], shared_layout(TILE, E1))
        v1 = gl.allocate_shared_memory(dtype, [STAGES, TILE, E1], shared_layout(TILE, E1))
        row1 = gl.minimum(begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C1)), rows - 1)
        gather(q1, q_head, (first + row1 // GROUP).to(gl.int64) * HEADS + row1 % GROUP, D0, E1, D, D, C1)

    for m in gl.static_range(STAGES):
        if m == STAGES - 1:
            async_copy.wait_group(STAGES - 2)
            fence_async_shared()
        issue(m, m > 0, tiles, k0, v0, k1, v1, k_head, v_head, here0, past0, here1, past1, D, D0, D1, STRIDE, STAGES,
              C0, C1)  # fmt: skip
        past0 = here0
        here0 = slots(table_row, spare, width, low + (m + 1) * TILE, length, PAGE, TILE, C0)
        if D1 > 0:
            past1 = here1
            here1 = slots(table_row, spare, width, low + (m + 1) * TILE, length, PAGE, TILE, C1)

    row = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORE))
    position = context + row // GROUP
    token = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORE))
    top = gl.full([ROWS], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
    total = gl.full([ROWS], 0.0, gl.float32, layout=gl.SliceLayout(1, SCORE))
    nothing = gl.zeros([ROWS, TILE], gl.float32, layout=SCORE)
    acc0 = gl.zeros([ROWS, D0], gl.float32, layout=ACC0)
    acc1 = acc0
    if D1 > 0:
        acc1 = gl.zeros([ROWS, D1], gl.float32, layout=ACC1)

    score = warpgroup_mma(q0, k0.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
    if D1 > 0:
        score = warpgroup_mma(q1, k1.index(0).permute((1, 0)), score, is_async=True)
    score = warpgroup_mma_wait(0, deps=[score])
    if low + TILE > every:
        score = gl.where((low + token)[None, :] <= position[:, None], score, -float("inf"))
    p, top, total, decay = softmax(score, top, total, scale)
    weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, ACC0, 2))
    for j in range(1, tiles):
        async_copy.wait_group(STAGES - 2)
        fence_async_shared()
        score = warpgroup_mma(q0, k0.index(j % STAGES).permute((1, 0)), nothing, use_acc=False, is_async=True)
        if D1 > 0:
            score = warpgroup_mma(q1, k1.index(j % STAGES).permute((1, 0)), score, is_async=True)
        moving0 = warpgroup_mma(weights, v0.index((j - 1) % STAGES), acc0, is_async=True)
        if D1 > 0:
            more = gl.convert_layout(weights, gl.DotOperandLayout(0, ACC1, 2))
            moving1 = warpgroup_mma(more, v1.index((j - 1) % STAGES), acc1, is_async=True)
        # All warps are past the products of the last round: its buffers take the tiles STAGES - 1 ahead.
        # (The compiler sees that buffers are read above and adds a barrier to each branch, unless here is one.)
        gl.thread_barrier()
        ahead = j + STAGES - 1
        issue(ahead, True, tiles, k0, v0, k1, v1, k_head, v_head, here0, past0, here1, past1, D, D0, D1, STRIDE,
              STAGES, C0, C1)  # fmt: skip
        past0 = here0
        here0 = slots(table_row, spare, width, low + (ahead + 1) * TILE, length, PAGE, TILE, C0)
        if D1 > 0:
            past1 = here1
            here1 = slots(table_row, spare, width, low + (ahead + 1) * TILE, length, PAGE, TILE, C1)

        score = warpgroup_mma_wait(2 if D1 > 0 else 1, deps=[score])
        if low + (j + 1) * TILE > every:
            score = gl.where((low + j * TILE + token)[None, :] <= position[:, None], score, -float("inf"))
        p, top, total, decay = softmax(score, top, total, scale)
        if D1 > 0:
            acc0, acc1, weights, more = warpgroup_mma_wait(0, deps=[moving0, moving1, weights, more])
            acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, ACC1))[:, None]
        else:
            acc0, weights = warpgroup_mma_wait(0, deps=[moving0, weights])
        acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, ACC0))[:, None]
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, ACC0, 2))
    async_copy.wait_group(0)
    fence_async_shared()
    moving0 = warpgroup_mma(weights, v0.index((tiles - 1) % STAGES), acc0, is_async=True)
    if D1 > 0:
        more = gl.convert_layout(weights, gl.DotOperandLayout(0, ACC1, 2))
        moving1 = warpgroup_mma(more, v1.index((tiles - 1) % STAGES), acc1, is_async=True)
        acc0, acc1 = warpgroup_mma_wait(0, deps=[moving0, moving1])
    else:
        acc0 = warpgroup_mma_wait(0, deps=[moving0])

    share = 1.0 / gl.where(total > 0, total, 1.0)
    acc0 = acc0 * gl.convert_layout(share, gl.SliceLayout(1, ACC0))[:, None]
    live0 = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C0)) < rows
    place0 = (first + row0 // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row0 % GROUP
    if SPLIT > 0:
        # Parts in float32; dead rows repeat the last one.
        if SPLIT >= 2:
            index = (gl.program_id(0).to(gl.int64) * ROWS) + row
        else:
            index = (first + row // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row % GROUP
            index += gl.program_id(1).to(gl.int64) * part_stride
        mass = gl.where(total > 0, top + gl.log2(gl.where(total > 0, total, 1.0)), -float("inf"))
        stored = row < rows
        if SPLIT == 3:
            stored = stored & (rows <= ROWS)
            live0 = live0 & (rows > ROWS)
        gl.store(sums_ptr + index, mass, mask=stored)
        at0 = gl.convert_layout(index, gl.SliceLayout(1, ACC0))
        there0 = gl.convert_layout(stored.to(gl.int32), gl.SliceLayout(1, ACC0)) > 0
        dim = gl.arange(0, D0, layout=gl.SliceLayout(0, ACC0))
        gl.store(parts_ptr + at0[:, None] * D + dim[None, :], acc0, mask=there0[:, None])
    if SPLIT == 0 or SPLIT == 3:
        # Rows take 16 bytes a lane on their way out: the queries' buffer, which is read, turns them around.
        q0.store(acc0.to(dtype))
        dim = gl.arange(0, D0, layout=gl.SliceLayout(0, C0))
        gl.store(out_ptr + place0[:, None] * D + dim[None, :], q0.load(C0), mask=live0[:, None])
    if D1 > 0:
        acc1 = acc1 * gl.convert_layout(share, gl.SliceLayout(1, ACC1))[:, None]
        if SPLIT > 0:
            at1 = gl.convert_layout(index, gl.SliceLayout(1, ACC1))
            there1 = gl.convert_layout(stored.to(gl.int32), gl.SliceLayout(1, ACC1)) > 0
            dim = D0 + gl.arange(0, D1, layout=gl.SliceLayout(0, ACC1))
            gl.store(parts_ptr + at1[:, None] * D + dim[None, :], acc1, mask=there1[:, None] & (dim < D)[None, :])
        if SPLIT == 0 or SPLIT == 3:
            q1.store(acc1.to(dtype))
            live1 = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C1)) < rows
            if SPLIT == 3:
                live1 = live1 & (rows > ROWS)
            place1 = (first + row1 // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row1 % GROUP
            dim = D0 + gl.arange(0, D1, layout=gl.SliceLayout(0, C1))
            gl.store(out_ptr + place1[:, None] * D + dim[None, :], q1.load(C1),
                     mask=live1[:, None] & (dim < D)[None, :])


@gluon.jit(do_not_specialize=["part_stride", "pieces", "sequences"])
def join_kernel(parts_ptr, sums_ptr, bounds_ptr, out_ptr, part_stride, pieces, sequences, HEADS: gl.constexpr,
                D: gl.constexpr, WIDTH: gl.constexpr, DEPTH: gl.constexpr, num_warps: gl.constexpr):
    """The parts of one query's head, weighed by their sums, DEPTH parts at a time."""
    place = gl.program_id(0)
    if place >= gl.load(bounds_ptr + sequences) * HEADS:
        return
    gdc_wait()  # bounds are an input: only what attend_kernel writes lies behind
    BY_ROW: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
    dim = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, BY_ROW))
    top = -1e30
    total = 0.0
    acc = gl.zeros([WIDTH], gl.float32, layout=gl.SliceLayout(0, BY_ROW))
    for start in range(0, pieces, DEPTH):
        part = start + gl.arange(0, DEPTH, layout=gl.SliceLayout(1, BY_ROW))
        there = place + part.to(gl.int64) * part_stride
        mass = gl.load(sums_ptr + there, mask=part < pieces, other=-float("inf"))
        peak = gl.maximum(top, gl.max(mass, axis=0))
        weight = gl.exp2(mass - peak)
        decay = gl.exp2(top - peak)
        filled = (mass > -float("inf"))[:, None] & (dim < D)[None, :]
        values = gl.load(parts_ptr + there[:, None] * D + dim[None, :], mask=filled, other=0.0)
        total = total * decay + gl.sum(weight, axis=0)
        acc = acc * decay + gl.sum(values * weight[:, None], axis=0)
        top = peak
    gl.store(out_ptr + place.to(gl.int64) * D + dim, (acc / total).to(out_ptr.dtype.element_ty), mask=dim < D)


@gluon.jit(do_not_specialize=["sequences", "target"])
def join_pieces_kernel(parts_ptr, sums_ptr, bounds_ptr, used_ptr, out_ptr, sequences, target, MANY: gl.constexpr,
                       HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, WIDTH: gl.constexpr,
                       DEPTH: gl.constexpr, ROWS: gl.constexpr, num_warps: gl.constexpr):
    """The parts that attend_kernel counted up (MANY: SPLIT 3): one head of a sequence."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    head = gl.program_id(0) % HEADS
    seq = gl.program_id(0) // HEADS
    first = gl.load(bounds_ptr + seq)
    new = gl.load(bounds_ptr + seq + 1) - first
    if (new == 0) | (new * GROUP > ROWS):
        return
    piece = piece_size(bounds_ptr, used_ptr, sequences, target, GROUP, ROWS, num_warps)
    pieces = gl.cdiv(gl.load(used_ptr + seq), piece)
    lane = gl.arange(0, 32 * num_warps, layout=gl.BlockedLayout([1], [32], [num_warps], [0]))
    before = 0
    for start in range(0, seq, 32 * num_warps):
        other = gl.minimum(start + lane, seq)
        rows = (gl.load(bounds_ptr + other + 1) - gl.load(bounds_ptr + other)) * GROUP
        count = gl.where((rows > 0) & (rows <= ROWS), gl.cdiv(gl.load(used_ptr + other), piece), 0)
        if MANY:
            count += gl.where(rows > ROWS, gl.cdiv(rows, ROWS), 0)
        before += gl.sum(gl.where(start + lane < seq, count, 0), axis=0)
    gdc_wait()  # what lies before are inputs
    BY_ROW: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
    dim = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, BY_ROW))
    for query in range(new):
        row = query * GROUP + head % GROUP
        top = -1e30
        total = 0.0
        acc = gl.zeros([WIDTH], gl.float32, layout=gl.SliceLayout(0, BY_ROW))
        for start in range(0, pieces, DEPTH):
            part = start + gl.arange(0, DEPTH, layout=gl.SliceLayout(1, BY_ROW))
            there = ((before + part).to(gl.int64) * KV_HEADS + head // GROUP) * ROWS + row
            mass = gl.load(sums_ptr + there, mask=part < pieces, other=-float("inf"))
            peak = gl.maximum(top, gl.max(mass, axis=0))
            weight = gl.exp2(mass - peak)
            decay = gl.exp2(top - peak)
            filled = (mass > -float("inf"))[:, None] & (dim < D)[None, :]
            values = gl.load(parts_ptr + there[:, None] * D + dim[None, :], mask=filled, other=0.0)
            total = total * decay + gl.sum(weight, axis=0)
            acc = acc * decay + gl.sum(values * weight[:, None], axis=0)
            top = peak
        place = ((first + query).to(gl.int64) * HEADS + head) * D
        gl.store(out_ptr + place + dim, (acc / total).to(out_ptr.dtype.element_ty), mask=dim < D)


@gluon.jit
def rows_of(u, c1, c2, c3, b1, b2, b3, rows, ROWS: gl.constexpr):
    """Where the u-th block of rows starts and where the phase that it belongs to ends."""
    start = gl.where(u < c1, 0, gl.where(u < c2, b1, gl.where(u < c3, b2, b3)))
    stop = gl.where(u < c1, b1, gl.where(u < c2, b2, gl.where(u < c3, b3, rows)))
    before = gl.where(u < c1, 0, gl.where(u < c2, c1, gl.where(u < c3, c2, c3)))
    return start + (u - before) * ROWS, stop


@gluon.jit
def starts_below(weight, before, count, N: gl.constexpr):
    """Of `count` blocks of weight N, after such of weight `before`, those that start below `weight`."""
    return gl.minimum(gl.maximum(weight - before + N - 1, 0) // N, count)


@gluon.jit(do_not_specialize=["queries", "sequences", "width", "table_stride", "chunks"])
def short_kernel(q_ptr, k_ptr, v_ptr, bounds_ptr, used_ptr, table_ptr, out_ptr, scale, queries, sequences, width,
                 table_stride, chunks, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr,
                 PAGE: gl.constexpr, ROWS: gl.constexpr, TILE: gl.constexpr, num_warps: gl.constexpr):
    """Sequences of at most four tiles. Phase n are the rows that see n of them; chunks of equal work share a head."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    STRIDE: gl.constexpr = KV_HEADS * D
    C: gl.constexpr = copy_layout(D, num_warps)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    kv_head = gl.program_id(0) % KV_HEADS
    chunk = gl.program_id(0) // KV_HEADS % chunks
    seq = gl.program_id(0) // KV_HEADS // chunks
    held = gl.load(bounds_ptr + sequences)
    first = gl.load(bounds_ptr + seq)
    last = gl.load(bounds_ptr + seq + 1)
    length = gl.load(used_ptr + seq)
    table_row = table_ptr + table_stride.to(gl.int64) * seq
    spare = gl.load(table_row) * PAGE  # the sequence's first token, which may always be read
    slot0 = slots(table_row, spare, width, 0, length, PAGE, TILE, C)
    slot1 = slots(table_row, spare, width, TILE, length, PAGE, TILE, C)
    slot2 = slots(table_row, spare, width, 2 * TILE, length, PAGE, TILE, C)
    slot3 = slots(table_row, spare, width, 3 * TILE, length, PAGE, TILE, C)
    zero_leftover(out_ptr, held, queries, HEADS * D, num_warps)

    rows = (last - first) * GROUP
    context = length - (last - first)
    b1 = gl.minimum(gl.maximum(TILE - context, 0) * GROUP, rows)
    b2 = gl.minimum(gl.maximum(2 * TILE - context, 0) * GROUP, rows)
    b3 = gl.minimum(gl.maximum(3 * TILE - context, 0) * GROUP, rows)
    t1, t2 = gl.cdiv(b1, ROWS), gl.cdiv(b2 - b1, ROWS)
    t3, t4 = gl.cdiv(b3 - b2, ROWS), gl.cdiv(rows - b3, ROWS)
    c1, c2, c3 = t1, t1 + t2, t1 + t2 + t3
    w1, w2, w3 = t1, t1 + 2 * t2, t1 + 2 * t2 + 3 * t3
    w4 = w3 + 4 * t4
    low, high = w4 * chunk // chunks, w4 * (chunk + 1) // chunks
    u_low = (starts_below(low, 0, t1, 1) + starts_below(low, w1, t2, 2) + starts_below(low, w2, t3, 3)
             + starts_below(low, w3, t4, 4))  # fmt: skip
    u_high = (starts_below(high, 0, t1, 1) + starts_below(high, w1, t2, 2) + starts_below(high, w2, t3, 3)
              + starts_below(high, w3, t4, 4))  # fmt: skip
    if u_low >= u_high:
        return

    q_ring = gl.allocate_shared_memory(dtype, [2, ROWS, D], shared_layout(ROWS, D))
    k_held = gl.allocate_shared_memory(dtype, [4, TILE, D], shared_layout(TILE, D))
    v_held = gl.allocate_shared_memory(dtype, [4, TILE, D], shared_layout(TILE, D))
    q_head = q_ptr + kv_head * GROUP * D
    k_head = k_ptr + kv_head * D
    v_head = v_ptr + kv_head * D
    begin, stop = rows_of(u_low, c1, c2, c3, b1, b2, b3, rows, ROWS)
    row = gl.minimum(begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C)), stop - 1)
    gather(q_ring.index(u_low % 2), q_head, (first + row // GROUP) * HEADS + row % GROUP, 0, D, D, D, C)
    gather(k_held.index(0), k_head, slot0, 0, D, D, STRIDE, C)
    gather(v_held.index(0), v_head, slot0, 0, D, D, STRIDE, C)
    async_copy.commit_group()
    if u_high > c1:
        gather(k_held.index(1), k_head, slot1, 0, D, D, STRIDE, C)
        gather(v_held.index(1), v_head, slot1, 0, D, D, STRIDE, C)
    async_copy.commit_group()
    if u_high > c2:
        gather(k_held.index(2), k_head, slot2, 0, D, D, STRIDE, C)
        gather(v_held.index(2), v_head, slot2, 0, D, D, STRIDE, C)
    async_copy.commit_group()
    if u_high > c3:
        gather(k_held.index(3), k_head, slot3, 0, D, D, STRIDE, C)
        gather(v_held.index(3), v_head, slot3, 0, D, D, STRIDE, C)
    async_copy.commit_group()

    SCORE: gl.constexpr = product_layout(TILE, num_warps)
    ACC: gl.constexpr = product_layout(D, num_warps)
    out_head = out_ptr + kv_head * GROUP * D
    for u in range(u_low, u_high):
        tiles = 1 + (u >= c1).to(gl.int32) + (u >= c2).to(gl.int32) + (u >= c3).to(gl.int32)
        # The first block's queries came with the first of four groups of keys and values, it waits for those it needs.
        if u > u_low:
            async_copy.wait_group(0)
        elif tiles == 1:
            async_copy.wait_group(3)
        elif tiles == 2:
            async_copy.wait_group(2)
        else:
            async_copy.wait_group(0)
        fence_async_shared()
        q = q_ring.index(u % 2)
        nothing = gl.zeros([ROWS, TILE], gl.float32, layout=SCORE)
        score = warpgroup_mma(q, k_held.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
        if u + 1 < u_high:
            begin, stop = rows_of(u + 1, c1, c2, c3, b1, b2, b3, rows, ROWS)
            row = gl.minimum(begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C)), stop - 1)
            gather(q_ring.index((u + 1) % 2), q_head, (first + row // GROUP) * HEADS + row % GROUP, 0, D, D, D, C)
        async_copy.commit_group()
        gl.thread_barrier()  # for the compiler, which sees one ring filled and read: else it adds one to every tile

        begin, stop = rows_of(u, c1, c2, c3, b1, b2, b3, rows, ROWS)
        position = context + (begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORE))) // GROUP
        token = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORE))
        top = gl.full([ROWS], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
        total = gl.full([ROWS], 0.0, gl.float32, layout=gl.SliceLayout(1, SCORE))
        acc = gl.zeros([ROWS, D], gl.float32, layout=ACC)
        score = warpgroup_mma_wait(0, deps=[score])
        if tiles == 1:
            score = gl.where(token[None, :] <= position[:, None], score, -float("inf"))
        p, top, total, decay = softmax(score, top, total, scale)
        weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, ACC, 2))
        for j in range(1, tiles):
            score = warpgroup_mma(q, k_held.index(j).permute((1, 0)), nothing, use_acc=False, is_async=True)
            moving = warpgroup_mma(weights, v_held.index(j - 1), acc, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            if j == tiles - 1:
                score = gl.where((j * TILE + token)[None, :] <= position[:, None], score, -float("inf"))
            p, top, total, decay = softmax(score, top, total, scale)
            acc, weights = warpgroup_mma_wait(0, deps=[moving, weights])
            acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, ACC))[:, None]
            weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, ACC, 2))
        moving = warpgroup_mma(weights, v_held.index(tiles - 1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[moving])
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, ACC))[:, None]
        # Rows take 16 bytes a lane on their way out: the queries' buffer, which is read, turns them around.
        q.store(acc.to(dtype))
        row = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C))
        place = ((first + row // GROUP).to(gl.int64) * HEADS + row % GROUP) * D
        dim = gl.arange(0, D, layout=gl.SliceLayout(0, C))
        gl.store(out_head + place[:, None] + dim[None, :], q.load(C), mask=(row < stop)[:, None])


@gluon.jit
def exp2(x):
    """Where it is written: as plain arithmetic it would be put off until the sums of the last tile have ended."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def blocks_below(weight, first, GROUP: gl.constexpr, EXTRA: gl.constexpr):
    """How many of a sequence's blocks of 64 queries of a head start below a weight: at most four of a head, the first
    sees `first` tiles, each later one more."""
    count = 0
    before = 0
    for b in gl.static_range(4):
        each = first + (b + EXTRA)
        count += gl.minimum(gl.maximum(weight - before + each - 1, 0) // each, GROUP)
        before += each * GROUP
    return count


@gluon.jit
def part_of(item, low, high, chunks, new, length, GROUP: gl.constexpr, EXTRA: gl.constexpr):
    """The blocks that chunks `low` to `high` of all take of an item, and how many tiles of keys they see. A block's
    weight is its tiles and EXTRA."""
    context = length - new
    blocks = gl.cdiv(new, 64)
    first = gl.cdiv(context + 64, 64)
    weight = GROUP * (blocks * (first + EXTRA) + blocks * (blocks - 1) // 2)
    begin = weight * gl.maximum(low - item * chunks, 0) // chunks
    end = weight * gl.minimum(high - item * chunks, chunks) // chunks
    u_low = blocks_below(begin, first, GROUP, EXTRA)
    u_high = blocks_below(end, first, GROUP, EXTRA)
    seen = gl.minimum(context + (u_high + GROUP - 1) // GROUP * 64, length)
    return u_low, u_high, gl.where(u_high > u_low, gl.cdiv(seen, 64), 0)


@gluon.jit
def bring_box(desc, ring, full, box, place, kv_head, FIRST: gl.constexpr, WIDTH: gl.constexpr, BOX: gl.constexpr,
              PARTS: gl.constexpr):
    """Columns FIRST to FIRST + WIDTH of 16 tokens of one head, BOX at a time. Each BOX columns of a tile, PARTS boxes,
    lie together, as the products want them."""
    for part in gl.static_range(WIDTH // BOX):
        place_there = [place, kv_head, FIRST + part * BOX]
        tma.async_copy_global_to_shared(desc, place_there, full, ring.index(box + part * PARTS))


@gluon.jit
def bring_tile(desc, ring, full, box, s0, s1, s2, s3, kv_head, WIDTH: gl.constexpr, PARTS: gl.constexpr):
    bring_box(desc, ring, full, box, s0, kv_head, 0, WIDTH, 64, PARTS)
    bring_box(desc, ring, full, box + 1, s1, kv_head, 0, WIDTH, 64, PARTS)
    bring_box(desc, ring, full, box + 2, s2, kv_head, 0, WIDTH, 64, PARTS)
    bring_box(desc, ring, full, box + 3, s3, kv_head, 0, WIDTH, 64, PARTS)


@gluon.jit
def box_place(table_row, width, token, length, tokens, PAGE: gl.constexpr):
    """Where in the cache 16 tokens lie; past the end where TMA finds nothing and writes zeros."""
    page = gl.load(table_row + gl.minimum(token // PAGE, width - 1))
    return gl.where(token < length, page * PAGE + token % PAGE, tokens)


@gluon.jit
def clear_tail(ring, box, valid, WIDTH: gl.constexpr, BOX: gl.constexpr, PARTS: gl.constexpr):
    """Zeros in place of a box's rows from `valid` on: weights of zero do not erase a NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 8], [256 // BOX, 1, BOX // 8], [1, 1, 1], [2, 1, 0])
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    keep = (row < valid)[:, None, None]
    for part in gl.static_range(WIDTH // BOX):
        there = ring.index(box + part * PARTS)
        there.store(gl.where(keep, there.load(LAYOUT), 0.0))


@gluon.jit
def store_rows(out_ptr, buffer, query, live, head, FIRST: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr,
               WIDTH: gl.constexpr):
    """The first `live` rows of a buffer to columns from FIRST on, 16 bytes a lane."""
    ROWWISE: gl.constexpr = copy_layout(WIDTH, 4)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, ROWWISE))
    dim = FIRST + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, ROWWISE))
    place = ((query + row).to(gl.int64) * HEADS + head) * D
    mask = (row < live)[:, None] & (dim < D)[None, :]
    gl.store(out_ptr + place[:, None] + dim[None, :], buffer.load(ROWWISE), mask=mask)


@gluon.jit
def batch_keys(k_desc, v_desc, k_ring, v_ring, k_full, v_full, kv_empty, patch, bounds_ptr, used_ptr, table_ptr, width,
               table_stride, tokens, low, high, chunks, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr,
               PAGE: gl.constexpr, EXTRA: gl.constexpr):
    """Four slots, one a tile. An item's later tiles are done with first: the next item begins with their slots."""
    turn = 0  # 3 where tile t is in slot 3 - t
    used = 0  # bit s: how often slot s was, modulo 2
    mended = 0
    for item in range(low // chunks, gl.cdiv(high, chunks)):
        seq = item // KV_HEADS
        kv_head = item % KV_HEADS
        new = gl.load(bounds_ptr + seq + 1) - gl.load(bounds_ptr + seq)
        length = gl.load(used_ptr + seq)
        table_row = table_ptr + table_stride.to(gl.int64) * seq
        _, _, tiles = part_of(item, low, high, chunks, new, length, GROUP, EXTRA)
        for t in range(tiles):
            s0 = box_place(table_row, width, t * 64, length, tokens, PAGE)
            s1 = box_place(table_row, width, t * 64 + 16, length, tokens, PAGE)
            s2 = box_place(table_row, width, t * 64 + 32, length, tokens, PAGE)
            s3 = box_place(table_row, width, t * 64 + 48, length, tokens, PAGE)
            slot = t ^ turn
            mbarrier.wait(kv_empty.index(slot), ((used >> slot) & 1) ^ 1)
            used ^= 1 << slot
            box = slot * (D // 16)
            mbarrier.expect(k_full.index(slot), 128 * D)
            bring_tile(k_desc, k_ring, k_full.index(slot), box, s0, s1, s2, s3, kv_head, D, 4)
            rest = length - t * 64
            if (rest < 64) & (rest % 16 != 0):
                mbarrier.expect(patch, 128 * D)
                bring_tile(v_desc, v_ring, patch, box, s0, s1, s2, s3, kv_head, D, 4)
                mbarrier.wait(patch, mended)
                mended ^= 1
                clear_tail(v_ring, box + rest // 16, rest % 16, D, 64, 4)
                fence_async_shared()
                gl.thread_barrier()
                mbarrier.arrive(v_full.index(slot))
            else:
                mbarrier.expect(v_full.index(slot), 128 * D)
                bring_tile(v_desc, v_ring, v_full.index(slot), box, s0, s1, s2, s3, kv_head, D, 4)
        turn ^= 3


@gluon.jit
def batch_queries(q_desc, q_ring, q_full, q_empty, bounds_ptr, used_ptr, low, high, chunks, GROUP: gl.constexpr,
                  KV_HEADS: gl.constexpr, D: gl.constexpr, EXTRA: gl.constexpr, Q_SLOTS: gl.constexpr):
    slot = 0
    phase = 1
    for item in range(low // chunks, gl.cdiv(high, chunks)):
        seq = item // KV_HEADS
        head = item % KV_HEADS * GROUP
        first = gl.load(bounds_ptr + seq)
        new = gl.load(bounds_ptr + seq + 1) - first
        length = gl.load(used_ptr + seq)
        u_low, u_high, _ = part_of(item, low, high, chunks, new, length, GROUP, EXTRA)
        for back in range(u_high - u_low):
            u = u_high - 1 - back
            mbarrier.wait(q_empty.index(slot), phase)
            mbarrier.expect(q_full.index(slot), 128 * D)
            place = [first + u // GROUP * 64, head + u % GROUP, 0]
            tma.async_copy_global_to_shared(q_desc, place, q_full.index(slot), q_ring.index(slot))
            slot, phase = advance(slot, phase, Q_SLOTS)


@gluon.jit
def leave_tiles(k_full, v_full, kv_empty, left, count, turn, used):
    """Give back all tiles but the first `count`. A warpgroup without blocks waits, too, lest it is a lap ahead."""
    while left > count:
        left = left - 1
        mbarrier.wait(k_full.index(left ^ turn), (used >> (left ^ turn)) & 1)
        mbarrier.wait(v_full.index(left ^ turn), (used >> (left ^ turn)) & 1)
        mbarrier.arrive(kv_empty.index(left ^ turn))
    return left


@gluon.jit
def batch_attend(out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty, bounds_ptr,
                 used_ptr, scale, queries, sequences, low, high, chunks, ME: gl.constexpr, GROUP: gl.constexpr,
                 KV_HEADS: gl.constexpr, D: gl.constexpr, EXTRA: gl.constexpr, Q_SLOTS: gl.constexpr):
    """Every second block of a head's 64 queries, from those that see most keys on."""
    HEADS: gl.constexpr = GROUP * KV_HEADS
    SCORE: gl.constexpr = product_layout(64, 4)
    ACC: gl.constexpr = product_layout(D, 4)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    keys = k_ring._reinterpret(dtype, [4, 64, D], shared_layout(64, D))
    values = v_ring._reinterpret(dtype, [4, 64, D], shared_layout(64, D))
    nothing = gl.zeros([64, 64], gl.float32, layout=SCORE)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, SCORE))
    token = gl.arange(0, 64, layout=gl.SliceLayout(0, SCORE))
    turn = 0
    used = 0
    blocks = 0
    written = 0  # the slot of queries from which the last block goes out
    any_written = 0
    last_item = gl.cdiv(high, chunks)
    ahead = low // chunks // KV_HEADS
    first = gl.load(bounds_ptr + ahead)
    new = gl.load(bounds_ptr + ahead + 1) - first
    length = gl.load(used_ptr + ahead)
    held = gl.load(bounds_ptr + sequences)
    for item in range(low // chunks, last_item):
        ahead = gl.minimum(item + 1, last_item - 1) // KV_HEADS
        first_ahead = gl.load(bounds_ptr + ahead)
        end_ahead = gl.load(bounds_ptr + ahead + 1)
        length_ahead = gl.load(used_ptr + ahead)
        u_low, u_high, tiles = part_of(item, low, high, chunks, new, length, GROUP, EXTRA)
        context = length - new
        kv_head = item % KV_HEADS
        left = tiles
        for back in range((blocks ^ ME) & 1, u_high - u_low, 2):
            u = u_high - 1 - back
            k = blocks + back
            slot = k % Q_SLOTS
            begin = u // GROUP * 64
            head = kv_head * GROUP + u % GROUP
            count = gl.cdiv(gl.minimum(context + begin + 64, length), 64)
            every = context + begin + 1  # keys that the first row sees
            position = context + begin + row
            left = leave_tiles(k_full, v_full, kv_empty, left, count, turn, used)
            top = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
            acc = gl.zeros([64, D], gl.float32, layout=ACC)
            q = q_ring.index(slot).reshape([64, D])
            mbarrier.wait(q_full.index(slot), k // Q_SLOTS & 1)
            mbarrier.wait(k_full.index(turn), (used >> turn) & 1)
            score = warpgroup_mma(q, keys.index(turn).permute((1, 0)), nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(written), pred=any_written > 0)
            if every < 64:
                score = gl.where(token[None, :] <= position[:, None], score, -float("inf"))
            top = gl.maximum(top, gl.max(score, axis=1) * scale)
            p = exp2(score * scale - top[:, None])
            total = gl.sum(p, axis=1)
            p = p.to(dtype)
            for j in range(1, count):
                here = j ^ turn
                past = (j - 1) ^ turn
                mbarrier.wait(k_full.index(here), (used >> here) & 1)
                score = warpgroup_mma(q, keys.index(here).permute((1, 0)), nothing, use_acc=False, is_async=True)
                mbarrier.wait(v_full.index(past), (used >> past) & 1)
                weights = gl.convert_layout(p, WEIGHTS)
                acc = warpgroup_mma(weights, values.index(past), acc, is_async=True)
                score = warpgroup_mma_wait(1, deps=[score])
                if (j + 1) * 64 > every:
                    score = gl.where((j * 64 + token)[None, :] <= position[:, None], score, -float("inf"))
                peak = gl.maximum(top, gl.max(score, axis=1) * scale)
                decay = exp2(top - peak)
                top = peak
                p = exp2(score * scale - peak[:, None])
                total = total * decay + gl.sum(p, axis=1)
                # Long since here: a loop that the exponentials above are not moved across.
                mbarrier.wait(v_full.index(past), (used >> past) & 1)
                acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
                acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, ACC))[:, None]
                p = p.to(dtype)
            past = (count - 1) ^ turn
            mbarrier.wait(v_full.index(past), (used >> past) & 1)
            acc = warpgroup_mma(gl.convert_layout(p, WEIGHTS), values.index(past), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, ACC))[:, None]
            # Out by way of the queries' buffer, which is read.
            q.store(acc.to(dtype))
            fence_async_shared()
            if begin + 64 <= new:
                tma.async_copy_shared_to_global(out_desc, [first + begin, head, 0], q_ring.index(slot))
            else:
                store_rows(out_ptr, q, first + begin, new - begin, head, 0, HEADS, D, D)
            written = slot
            any_written = 1
        blocks += u_high - u_low
        leave_tiles(k_full, v_full, kv_empty, left, 0, turn, used)
        for t in range(tiles):
            used ^= 1 << (t ^ turn)
        turn ^= 3
        first = first_ahead
        new = end_ahead - first_ahead
        length = length_ahead
    tma.store_wait(0)
    if ME == 0:
        zero_leftover(out_ptr, held, queries, HEADS * D, 4)


@gluon.jit(do_not_specialize=["queries", "sequences", "width", "table_stride", "tokens", "chunks"])
def batch_kernel(q_desc, k_desc, v_desc, out_desc, bounds_ptr, used_ptr, table_ptr, out_ptr, scale, queries, sequences,
                 width, table_stride, tokens, chunks, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr,
                 PAGE: gl.constexpr, EXTRA: gl.constexpr, Q_SLOTS: gl.constexpr,
                 REGISTERS: gl.constexpr):
    """Sequences of at most 256 tokens. Programs stay and take equal shares of all items, which are the heads of keys of
    all sequences, each cut in `chunks`; what a program takes of an item shares its keys and values in shared memory."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    work = sequences * KV_HEADS * chunks
    low = gl.program_id(0) * work // gl.num_programs(0)
    high = (gl.program_id(0) + 1) * work // gl.num_programs(0)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [Q_SLOTS, 64, 1, D], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [4 * (D // 16), 16, 1, 64], k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [4 * (D // 16), 16, 1, 64], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    kv_empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    patch = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(Q_SLOTS):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=1)
    for slot in gl.static_range(4):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(kv_empty.index(slot), count=2)
    mbarrier.init(patch, count=1)
    gl.warp_specialize([
        (batch_attend, (out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty,
                        bounds_ptr, used_ptr, scale, queries, sequences, low, high, chunks, 0, GROUP, KV_HEADS, D,
                        EXTRA, Q_SLOTS)),
        (batch_attend, (out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty,
                        bounds_ptr, used_ptr, scale, queries, sequences, low, high, chunks, 1, GROUP, KV_HEADS, D,
                        EXTRA, Q_SLOTS)),
        (batch_keys, (k_desc, v_desc, k_ring, v_ring, k_full, v_full, kv_empty, patch, bounds_ptr, used_ptr, table_ptr,
                      width, table_stride, tokens, low, high, chunks, GROUP, KV_HEADS, D, PAGE, EXTRA)),
        (batch_queries, (q_desc, q_ring, q_full, q_empty, bounds_ptr, used_ptr, low, high, chunks, GROUP, KV_HEADS, D,
                         EXTRA, Q_SLOTS)),
    ], [4, 1, 1], [REGISTERS, 40, 40])  # fmt: skip


@gluon.jit
def find_block(bounds_ptr, used_ptr, sequences, blocks, TOKENS: gl.constexpr, UNITS: gl.constexpr, FEW: gl.constexpr):
    """Of TOKENS queries each, later blocks first: this program's sequence, where its block begins and how many keys it
    sees; none where the sequence has no more queries, or so few that another kernel takes them."""
    block = blocks - 1 - gl.program_id(0) // UNITS
    low = find_sequence(bounds_ptr, sequences, block, 1, TOKENS, 4)
    first = gl.load(bounds_ptr + low)
    new = gl.load(bounds_ptr + low + 1) - first
    length = gl.load(used_ptr + low)
    begin = (block - (first // TOKENS + low)) * TOKENS
    seen = gl.minimum(length - new + begin + TOKENS, length)
    return low, first, new, length, begin, gl.where((begin < new) & (new > FEW), seen, 0)


@gluon.jit
def bring_rows(desc0, desc1, ring0, ring1, full, slot, part, table_row, width, token, length, tokens, kv_head,
               TILE: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr):
    """Half a tile: the boxes `part` to part + TILE // 32 of 16 tokens; page numbers first, for they take a while."""
    PARTS: gl.constexpr = TILE // 16
    W0: gl.constexpr = desc0.block_type.shape[2]
    W1: gl.constexpr = desc1.block_type.shape[2]
    s0 = box_place(table_row, width, token, length, tokens, PAGE)
    s1 = box_place(table_row, width, token + 16, length, tokens, PAGE)
    s2 = s0
    s3 = s0
    if TILE == 128:
        s2 = box_place(table_row, width, token + 32, length, tokens, PAGE)
        s3 = box_place(table_row, width, token + 48, length, tokens, PAGE)
    box = slot * (PARTS * D0 // W0) + part
    bring_box(desc0, ring0, full, box, s0, kv_head, 0, D0, W0, PARTS)
    bring_box(desc0, ring0, full, box + 1, s1, kv_head, 0, D0, W0, PARTS)
    if TILE == 128:
        bring_box(desc0, ring0, full, box + 2, s2, kv_head, 0, D0, W0, PARTS)
        bring_box(desc0, ring0, full, box + 3, s3, kv_head, 0, D0, W0, PARTS)
    if D1 > 0:
        box = slot * (PARTS * D1 // W1) + part
        bring_box(desc1, ring1, full, box, s0, kv_head, D0, D1, W1, PARTS)
        bring_box(desc1, ring1, full, box + 1, s1, kv_head, D0, D1, W1, PARTS)
        if TILE == 128:
            bring_box(desc1, ring1, full, box + 2, s2, kv_head, D0, D1, W1, PARTS)
            bring_box(desc1, ring1, full, box + 3, s3, kv_head, D0, D1, W1, PARTS)


@gluon.jit
def prompt_tiles(desc0, desc1, ring0, ring1, full, empty, patch, table_row, width, tokens, kv_head, length, tiles,
                 VALUES: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr,
                 PAGE: gl.constexpr):
    """Keys or values, tile by tile."""
    PARTS: gl.constexpr = TILE // 16
    BYTES: gl.constexpr = 2 * TILE * (D0 + D1)
    W0: gl.constexpr = desc0.block_type.shape[2]
    W1: gl.constexpr = desc1.block_type.shape[2]
    slot = 0
    phase = 1
    whole = tiles
    if VALUES:
        # The tile of the last token, if a box of 16 ends in slots that belong to nobody.
        whole = gl.where((length < tiles * TILE) & (length % 16 != 0), tiles - 1, tiles)
    for t in range(whole):
        mbarrier.wait(empty.index(slot), phase)
        mbarrier.expect(full.index(slot), BYTES)
        bring_rows(desc0, desc1, ring0, ring1, full.index(slot), slot, 0, table_row, width, t * TILE, length, tokens,
                   kv_head, TILE, D0, D1, PAGE)
        bring_rows(desc0, desc1, ring0, ring1, full.index(slot), slot, PARTS // 2, table_row, width,
                   t * TILE + TILE // 2, length, tokens, kv_head, TILE, D0, D1, PAGE)
        slot, phase = advance(slot, phase, SLOTS)
    if VALUES:  # noqa: SIM102
        if whole < tiles:
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(patch, BYTES)
            bring_rows(desc0, desc1, ring0, ring1, patch, slot, 0, table_row, width, whole * TILE, length, tokens,
                       kv_head, TILE, D0, D1, PAGE)
            bring_rows(desc0, desc1, ring0, ring1, patch, slot, PARTS // 2, table_row, width, whole * TILE + TILE // 2,
                       length, tokens, kv_head, TILE, D0, D1, PAGE)
            mbarrier.wait(patch, 0)
            rest = length - whole * TILE
            clear_tail(ring0, slot * (PARTS * D0 // W0) + rest // 16, rest % 16, D0, W0, PARTS)
            if D1 > 0:
                clear_tail(ring1, slot * (PARTS * D1 // W1) + rest // 16, rest % 16, D1, W1, PARTS)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(full.index(slot))


@gluon.jit
def prompt_keys(q_desc0, q_desc1, k_desc0, k_desc1, q0, q1, k0, k1, q_full, k_full, k_empty, patch, table_row, width,
                tokens, kv_head, head, query, length, tiles, PAIR: gl.constexpr, TILE: gl.constexpr,
                SLOTS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr):
    if tiles > 0:
        mbarrier.expect(q_full, 2 * 2 * 64 * (D0 + D1))
        for me in gl.static_range(2):
            place = query if PAIR else query + 64 * me
            which = head + me if PAIR else head
            tma.async_copy_global_to_shared(q_desc0, [place, which, 0], q_full, q0.index(me))
            if D1 > 0:
                tma.async_copy_global_to_shared(q_desc1, [place, which, D0], q_full, q1.index(me))
    prompt_tiles(k_desc0, k_desc1, k0, k1, k_full, k_empty, patch, table_row, width, tokens, kv_head, length, tiles,
                 False, TILE, SLOTS, D0, D1, PAGE)


@gluon.jit
def prompt_values(v_desc0, v_desc1, v0, v1, v_full, v_empty, patch, table_row, width, tokens, kv_head, length, tiles,
                  TILE: gl.constexpr, SLOTS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr):
    prompt_tiles(v_desc0, v_desc1, v0, v1, v_full, v_empty, patch, table_row, width, tokens, kv_head, length, tiles,
                 True, TILE, SLOTS, D0, D1, PAGE)


@gluon.jit
def prompt_attend(out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full, v_empty, turn,
                  scale, head, first, begin, new, length, tiles, ME: gl.constexpr, PAIR: gl.constexpr,
                  TURNS: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr,
                  TILE: gl.constexpr, SLOTS: gl.constexpr):
    """64 queries of a head: the scores of a tile and the sums of the last one run side by side and the softmax beside
    the sums; the two warpgroups take turns at the tensor cores."""
    E1: gl.constexpr = D1 if D1 > 0 else 16
    SCORE: gl.constexpr = product_layout(TILE, 4)
    ACC0: gl.constexpr = product_layout(D0, 4)
    ACC1: gl.constexpr = product_layout(E1, 4)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    if tiles > 0:
        keys0 = k0._reinterpret(dtype, [SLOTS, TILE, D0], shared_layout(TILE, D0))
        values0 = v0._reinterpret(dtype, [SLOTS, TILE, D0], shared_layout(TILE, D0))
        keys1 = keys0
        values1 = values0
        mine0 = q0.index(ME).reshape([64, D0])
        mine1 = mine0
        if D1 > 0:
            keys1 = k1._reinterpret(dtype, [SLOTS, TILE, D1], shared_layout(TILE, D1))
            values1 = v1._reinterpret(dtype, [SLOTS, TILE, D1], shared_layout(TILE, D1))
            mine1 = q1.index(ME).reshape([64, D1])
        begin = begin + (0 if PAIR else 64 * ME)
        head = head + (ME if PAIR else 0)
        row = gl.arange(0, 64, layout=gl.SliceLayout(1, SCORE))
        token = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORE))
        every = length - new + begin + 1  # keys that the first row sees
        nothing = gl.zeros([64, TILE], gl.float32, layout=SCORE)
        top = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
        acc0 = gl.zeros([64, D0], gl.float32, layout=ACC0)
        acc1 = gl.zeros([64, E1], gl.float32, layout=ACC1)
        mbarrier.wait(q_full, 0)
        mbarrier.wait(k_full.index(0), 0)
        score = warpgroup_mma(mine0, keys0.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
        if D1 > 0:
            score = warpgroup_mma(mine1, keys1.index(0).permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(k_empty.index(0))
        if every < TILE:
            score = gl.where(token[None, :] < (every + row)[:, None], score, -float("inf"))
        top = gl.maximum(top, gl.max(score, axis=1) * scale)
        p = exp2(score * scale - top[:, None])
        total = gl.sum(p, axis=1)
        p = p.to(dtype)
        slot, phase = advance(0, 0, SLOTS)
        past = 0
        past_phase = 0
        turn_phase = 1 if ME == 0 else 0
        for j in range(1, tiles):
            mbarrier.wait(k_full.index(slot), phase)
            if TURNS:
                mbarrier.wait(turn.index(ME), turn_phase)
                turn_phase ^= 1
            score = warpgroup_mma(mine0, keys0.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            if D1 > 0:
                score = warpgroup_mma(mine1, keys1.index(slot).permute((1, 0)), score, is_async=True)
            mbarrier.wait(v_full.index(past), past_phase)
            p0 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC0, 2))
            acc0 = warpgroup_mma(p0, values0.index(past), acc0, is_async=True)
            if D1 > 0:
                p1 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC1, 2))
                acc1 = warpgroup_mma(p1, values1.index(past), acc1, is_async=True)
            if TURNS:
                mbarrier.arrive(turn.index(1 - ME))
            score = warpgroup_mma_wait(2 if D1 > 0 else 1, deps=[score])
            mbarrier.arrive(k_empty.index(slot))
            if (j + 1) * TILE > every:
                score = gl.where((j * TILE + token)[None, :] < (every + row)[:, None], score, -float("inf"))
            peak = gl.maximum(top, gl.max(score, axis=1) * scale)
            decay = exp2(top - peak)
            top = peak
            p = exp2(score * scale - peak[:, None])
            total = total * decay + gl.sum(p, axis=1)
            # Long since here: a loop that the exponentials above are not moved across.
            mbarrier.wait(v_full.index(past), past_phase)
            if D1 > 0:
                acc0, acc1, p0, p1 = warpgroup_mma_wait(0, deps=[acc0, acc1, p0, p1])
                acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, ACC1))[:, None]
            else:
                acc0, p0 = warpgroup_mma_wait(0, deps=[acc0, p0])
            mbarrier.arrive(v_empty.index(past))
            acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, ACC0))[:, None]
            p = p.to(dtype)
            past = slot
            past_phase = phase
            slot, phase = advance(slot, phase, SLOTS)
        mbarrier.wait(v_full.index(past), past_phase)
        p0 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC0, 2))
        acc0 = warpgroup_mma(p0, values0.index(past), acc0, is_async=True)
        share = 1.0 / total
        if D1 > 0:
            p1 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC1, 2))
            acc1 = warpgroup_mma(p1, values1.index(past), acc1, is_async=True)
            acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
        else:
            acc0 = warpgroup_mma_wait(0, deps=[acc0])
        # Out by way of the queries' buffer, which is read.
        mine0.store((acc0 * gl.convert_layout(share, gl.SliceLayout(1, ACC0))[:, None]).to(dtype))
        if D1 > 0:
            mine1.store((acc1 * gl.convert_layout(share, gl.SliceLayout(1, ACC1))[:, None]).to(dtype))
        fence_async_shared()
        if begin + 64 <= new:
            tma.async_copy_shared_to_global(out_desc0, [first + begin, head, 0], q0.index(ME))
            if D1 > 0:
                tma.async_copy_shared_to_global(out_desc1, [first + begin, head, D0], q1.index(ME))
            tma.store_wait(0)
        else:
            store_rows(out_ptr, mine0, first + begin, new - begin, head, 0, HEADS, D, D0)
            if D1 > 0:
                store_rows(out_ptr, mine1, first + begin, new - begin, head, D0, HEADS, D, D1)


@gluon.jit(do_not_specialize=["queries", "sequences", "width", "table_stride", "tokens", "blocks", "few"])
def prompt_kernel(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, out_desc0, out_desc1, bounds_ptr, used_ptr,
                  table_ptr, out_ptr, scale, queries, sequences, width, table_stride, tokens, blocks, few,
                  HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr,
                  PAGE: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, PAIR: gl.constexpr, TURNS: gl.constexpr,
                  AFTER: gl.constexpr, REGISTERS: gl.constexpr):
    """Long sequences. A program has 64 queries of two heads that share keys (PAIR), else 128 of one head."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    UNITS: gl.constexpr = HEADS // 2 if PAIR else HEADS
    TOKENS: gl.constexpr = 64 if PAIR else 128
    E1: gl.constexpr = D1 if D1 > 0 else 16
    W0: gl.constexpr = k_desc0.block_type.shape[2]
    W1: gl.constexpr = k_desc1.block_type.shape[2]
    seq, first, new, length, begin, seen = find_block(bounds_ptr, used_ptr, sequences, blocks, TOKENS, UNITS, few)
    head = gl.program_id(0) % UNITS * (2 if PAIR else 1)
    kv_head = head // GROUP
    table_row = table_ptr + table_stride.to(gl.int64) * seq
    # Brings the first page numbers near: a page's number is less than the tokens.
    tokens = gl.maximum(tokens, gl.load(table_row))
    held = gl.load(bounds_ptr + sequences)
    tiles = gl.cdiv(seen, TILE)
    q0 = gl.allocate_shared_memory(q_desc0.dtype, [2, 64, 1, D0], q_desc0.layout)
    k0 = gl.allocate_shared_memory(k_desc0.dtype, [SLOTS * (TILE // 16) * (D0 // W0), 16, 1, W0], k_desc0.layout)
    v0 = gl.allocate_shared_memory(v_desc0.dtype, [SLOTS * (TILE // 16) * (D0 // W0), 16, 1, W0], v_desc0.layout)
    q1 = q0
    k1 = k0
    v1 = v0
    if D1 > 0:
        q1 = gl.allocate_shared_memory(q_desc1.dtype, [2, 64, 1, E1], q_desc1.layout)
        k1 = gl.allocate_shared_memory(k_desc1.dtype, [SLOTS * (TILE // 16) * (E1 // W1), 16, 1, W1], k_desc1.layout)
        v1 = gl.allocate_shared_memory(v_desc1.dtype, [SLOTS * (TILE // 16) * (E1 // W1), 16, 1, W1], v_desc1.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    patch = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(patch, count=1)
    for me in gl.static_range(2):
        mbarrier.init(turn.index(me), count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=2)
        mbarrier.init(v_empty.index(slot), count=2)
    gl.warp_specialize([
        (prompt_attend, (out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full,
                         v_empty, turn, scale, head, first, begin, new, length, tiles, 0, PAIR, TURNS, HEADS, D, D0, D1,
                         TILE, SLOTS)),
        (prompt_attend, (out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, k_full, k_empty, v_full,
                         v_empty, turn, scale, head, first, begin, new, length, tiles, 1, PAIR, TURNS, HEADS, D, D0, D1,
                         TILE, SLOTS)),
        (prompt_keys, (q_desc0, q_desc1, k_desc0, k_desc1, q0, q1, k0, k1, q_full, k_full, k_empty, patch, table_row,
                       width, tokens, kv_head, head, first + begin, length, tiles, PAIR, TILE, SLOTS, D0, D1, PAGE)),
        (prompt_values, (v_desc0, v_desc1, v0, v1, v_full, v_empty, patch, table_row, width, tokens, kv_head, length,
                         tiles, TILE, SLOTS, D0, D1, PAGE)),
    ], [4, 1, 1], [REGISTERS, 40, 40])  # fmt: skip
    zero_leftover(out_ptr, held, queries, HEADS * D, 4)
    if AFTER:
        gdc_wait()  # attend_kernel runs beside; join_pieces_kernel follows both


def descriptor(x: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * width), element_bitwidth=16, rank=3)
    return TensorDescriptor.from_tensor(x, [rows, 1, width], layout)


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, cu_seqlens_q: torch.Tensor,
                seqused_k: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        pages, page, kv_heads = k_cache.shape[:3]
        sequences, width = block_table.shape
        group = heads // kv_heads
        longest = width * page  # no sequence has more tokens
        tokens = pages * page
        out = torch.empty_like(q)
        if queries * heads == 0:
            return out
        scale = dim**-0.5 * LOG2E
        operands = (q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table)
        stride = block_table.stride(0)
        d0, d1 = halves(dim)
        boxes = TMA and page % 16 == 0 and dim % 8 == 0 and 64 <= dim <= 256
        if boxes:
            k_flat, v_flat = k_cache.view(tokens, kv_heads, dim), v_cache.view(tokens, kv_heads, dim)

        if longest <= SHORT and dim == 128 and queries * heads >= 2 * 128 * SMS and queries >= 32 * sequences:
            if boxes:
                chunks, extra, q_slots, registers = batch_config(sequences, kv_heads, group)
                batch_kernel[(min(SMS, sequences * kv_heads * chunks),)](
                    descriptor(q, 64, 128), descriptor(k_flat, 16, 64), descriptor(v_flat, 16, 64),
                    descriptor(out, 64, 128), cu_seqlens_q, seqused_k, block_table, out, scale, queries, sequences,
                    width, stride, tokens, chunks, HEADS=heads, KV_HEADS=kv_heads, D=dim, PAGE=page, EXTRA=extra,
                    Q_SLOTS=q_slots, REGISTERS=registers, num_warps=4, maxnreg=168,
                )  # fmt: skip
                return out
            chunks = short_config(sequences, kv_heads, group)
            short_kernel[(sequences * kv_heads * chunks,)](
                *operands, out, scale, queries, sequences, width, stride, chunks, HEADS=heads, KV_HEADS=kv_heads,
                D=dim, PAGE=page, ROWS=128, TILE=64, num_warps=8,
            )  # fmt: skip
            return out

        # Sequences of few rows among others with many have kernels of their own.
        mixed = 1 < sequences <= 256 and longest > 2 * SHORT and queries * group > 64 * sequences and group <= 64
        if boxes and (mixed or queries >= 48 * sequences):
            few = 0
            if mixed:
                few = 64 // group
                join = self.attend_pieces(operands, out, False)
            tile, slots, pair, turns, registers = prompt_config(dim, group)
            w0, w1 = min(64, d0), min(64, d1 or 16)
            blocks = queries // (64 if pair else 128) + sequences
            prompt_kernel[(blocks * (heads // 2 if pair else heads),)](
                descriptor(q, 64, d0), descriptor(q, 64, d1 or 16), descriptor(k_flat, 16, w0),
                descriptor(k_flat, 16, w1), descriptor(v_flat, 16, w0), descriptor(v_flat, 16, w1),
                descriptor(out, 64, d0), descriptor(out, 64, d1 or 16), cu_seqlens_q, seqused_k, block_table, out,
                scale, queries, sequences, width, stride, tokens, blocks, few, HEADS=heads, KV_HEADS=kv_heads, D=dim,
                D0=d0, D1=d1, PAGE=page, TILE=tile, SLOTS=slots, PAIR=pair, TURNS=turns, AFTER=mixed,
                REGISTERS=registers, num_warps=4, maxnreg=168, launch_pdl=mixed,
            )  # fmt: skip
            if mixed:
                join(launch_pdl=False)
            return out

        rows, tile, stages, warps = config(dim, queries * group, sequences, kv_heads)
        # Blocks by sequence where that leaves few without rows: no sequence has to be searched.
        chunks = triton.cdiv(longest * group, rows)
        blocks = queries * group // rows + sequences
        direct = sequences * chunks <= 1.3 * blocks
        if direct:
            blocks = sequences * chunks
        piece, pieces = longest, 1
        if blocks * kv_heads <= 4 * SMS and queries * group <= rows * sequences:
            most = min(sequences * longest, tokens)
            piece = max(256, triton.cdiv(most * kv_heads, 5 * SMS * 64) * 64)
            pieces = triton.cdiv(longest, piece)
            if pieces > 1 and sequences <= 256 and pieces * sequences > 1.6 * (most // piece + sequences):
                # Contexts differ much: pieces are counted up, lest most programs have none.
                self.attend_pieces(operands, out, True)(launch_pdl=True)
                return out
        parts, sums = out, out
        if pieces > 1:
            parts = torch.empty((pieces, queries, heads, dim), dtype=torch.float32, device=q.device)
            sums = torch.empty((pieces, queries, heads), dtype=torch.float32, device=q.device)
        attend_kernel[(blocks * kv_heads, pieces)](
            *operands, out, parts, sums, scale, queries, sequences, width, stride, blocks, chunks, piece,
            queries * heads, HEADS=heads, KV_HEADS=kv_heads, D=dim, D0=d0, D1=d1, PAGE=page, ROWS=rows, TILE=tile,
            STAGES=stages, DIRECT=direct, SPLIT=int(pieces > 1), num_warps=warps,
        )  # fmt: skip
        if pieces > 1:
            join_kernel[(queries * heads,)](
                parts, sums, cu_seqlens_q, out, queries * heads, pieces, sequences, HEADS=heads, D=dim,
                WIDTH=max(128, triton.next_power_of_2(dim)), DEPTH=16, num_warps=4, launch_pdl=True,
            )  # fmt: skip
        return out

    def attend_pieces(self, operands: tuple[torch.Tensor, ...], out: torch.Tensor, many: bool) -> Callable:
        """Sequences of at most 64 rows (`many`: the others, too), in pieces counted up; returns what joins them."""
        q, k_cache, _, bounds, used, table = operands
        queries, heads, dim = q.shape
        page, kv_heads = k_cache.shape[1:3]
        sequences, width = table.shape
        d0, d1 = halves(dim)
        rows, tile, stages, warps = config(dim, sequences, sequences, kv_heads)
        target = triton.cdiv(5 * SMS, kv_heads)
        units = target + sequences
        if many:
            units += queries * (heads // kv_heads) // rows + sequences
        parts = torch.empty((units * kv_heads, rows, dim), dtype=torch.float32, device=q.device)
        sums = torch.empty((units * kv_heads, rows), dtype=torch.float32, device=q.device)
        attend_kernel[(units * kv_heads, 1)](
            *operands, out, parts, sums, dim**-0.5 * LOG2E, queries, sequences, width, table.stride(0), units, 1,
            target, 0, HEADS=heads, KV_HEADS=kv_heads, D=dim, D0=d0, D1=d1, PAGE=page, ROWS=rows, TILE=tile,
            STAGES=stages, DIRECT=False, SPLIT=3 if many else 2, num_warps=warps,
        )  # fmt: skip
        return partial(
            join_pieces_kernel[(sequences * heads,)], parts, sums, bounds, used, out, sequences, target, MANY=many,
            HEADS=heads, KV_HEADS=kv_heads, D=dim, WIDTH=max(128, triton.next_power_of_2(dim)), DEPTH=16, ROWS=rows,
            num_warps=4,
        )  # fmt: skip
