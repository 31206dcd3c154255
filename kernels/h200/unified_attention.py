"""Causal attention over a paged cache in Gluon: cp.async gathers pages into rings that wgmma reads.

Query heads of a key head fill the rows. `attend_kernel` streams tiles of keys: the product with the next keys and that
with the last values run beside each other and the softmax (FlashAttention-3's order in a warpgroup), one or two tiles
are in flight, page numbers are read a tile ahead. Few rows over long contexts are split in equal pieces of keys, which
`join_kernel` adds. `short_kernel` takes batches whose sequences fit 256 tokens: keys and values of a sequence's head
stay in shared memory while all its rows pass, so that they cross the L2 once.
Bounds: 256-token batches HBM and tensor cores alike, long prompts tensor cores, decode HBM. Expected: shape 0 58 us
(S 0.67), 13 2300 us (0.73), 20 650 us (0.5), 24 300 us (0.48), 26 80 us (0.72).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = 1.4426950408889634
SMS = 132
SHORT = 256  # tokens of a sequence that stay in shared memory


def config(dim: int, rows: int, sequences: int, kv_heads: int) -> tuple[int, int, int, int]:
    """ROWS, TILE (keys), STAGES and warps of attend_kernel; `rows` are those of all sequences for one key head."""
    if rows <= 64 * sequences:
        return 64, 64, (2 if dim > 128 else 3), 4
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
    GROUP: gl.constexpr = HEADS // KV_HEADS
    STRIDE: gl.constexpr = KV_HEADS * D
    E1: gl.constexpr = D1 if D1 > 0 else 16  # the second block of columns, if there is one
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    if SPLIT:
        gdc_launch_dependents()
    held = gl.load(bounds_ptr + sequences)

    # Later blocks of a sequence see more keys: they start first.
    kv_head = gl.program_id(0) % KV_HEADS
    block = blocks - 1 - gl.program_id(0) // KV_HEADS
    if DIRECT:
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
    if SPLIT:
        low = gl.program_id(1) * piece
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
    if SPLIT:
        if low >= length:  # the others still look for this piece's sums
            LINE: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
            row = begin + gl.arange(0, ROWS, layout=LINE)
            index = (first + row // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row % GROUP
            index += gl.program_id(1).to(gl.int64) * part_stride
            never = gl.full([ROWS], -float("inf"), gl.float32, layout=LINE)
            gl.store(sums_ptr + index, never, mask=row < rows)
            return
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
    if SPLIT:
        # Parts in float32; dead rows repeat the last one.
        index = (first + row // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row % GROUP
        index += gl.program_id(1).to(gl.int64) * part_stride
        mass = gl.where(total > 0, top + gl.log2(gl.where(total > 0, total, 1.0)), -float("inf"))
        gl.store(sums_ptr + index, mass, mask=row < rows)
        at0 = gl.convert_layout(index, gl.SliceLayout(1, ACC0))
        there0 = gl.convert_layout((row < rows).to(gl.int32), gl.SliceLayout(1, ACC0)) > 0
        dim = gl.arange(0, D0, layout=gl.SliceLayout(0, ACC0))
        gl.store(parts_ptr + at0[:, None] * D + dim[None, :], acc0, mask=there0[:, None])
    else:
        # Rows take 16 bytes a lane on their way out: the queries' buffer, which is read, turns them around.
        q0.store(acc0.to(dtype))
        dim = gl.arange(0, D0, layout=gl.SliceLayout(0, C0))
        gl.store(out_ptr + place0[:, None] * D + dim[None, :], q0.load(C0), mask=live0[:, None])
    if D1 > 0:
        acc1 = acc1 * gl.convert_layout(share, gl.SliceLayout(1, ACC1))[:, None]
        if SPLIT:
            at1 = gl.convert_layout(index, gl.SliceLayout(1, ACC1))
            there1 = gl.convert_layout((row < rows).to(gl.int32), gl.SliceLayout(1, ACC1)) > 0
            dim = D0 + gl.arange(0, D1, layout=gl.SliceLayout(0, ACC1))
            gl.store(parts_ptr + at1[:, None] * D + dim[None, :], acc1, mask=there1[:, None] & (dim < D)[None, :])
        else:
            q1.store(acc1.to(dtype))
            live1 = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(1, C1)) < rows
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


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, cu_seqlens_q: torch.Tensor,
                seqused_k: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        pages, page, kv_heads = k_cache.shape[:3]
        sequences, width = block_table.shape
        group = heads // kv_heads
        longest = width * page  # no sequence has more tokens
        out = torch.empty_like(q)
        if queries * heads == 0:
            return out
        scale = dim**-0.5 * LOG2E
        operands = (q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table)
        stride = block_table.stride(0)
        if longest <= SHORT and dim == 128 and queries * heads >= 2 * 128 * SMS and queries >= 32 * sequences:
            chunks = short_config(sequences, kv_heads, group)
            short_kernel[(sequences * kv_heads * chunks,)](
                *operands, out, scale, queries, sequences, width, stride, chunks, HEADS=heads, KV_HEADS=kv_heads,
                D=dim, PAGE=page, ROWS=128, TILE=64, num_warps=8,
            )  # fmt: skip
            return out

        d0, d1 = halves(dim)
        rows, tile, stages, warps = config(dim, queries * group, sequences, kv_heads)
        # Blocks by sequence where that leaves few without rows: no sequence has to be searched.
        chunks = triton.cdiv(longest * group, rows)
        blocks = queries * group // rows + sequences
        direct = sequences * chunks <= 1.3 * blocks
        if direct:
            blocks = sequences * chunks
        piece, pieces = longest, 1
        if blocks * kv_heads <= 4 * SMS and queries * group <= rows * sequences:
            tokens = min(sequences * longest, pages * page)
            piece = max(256, triton.cdiv(tokens * kv_heads, 5 * SMS * 64) * 64)
            pieces = triton.cdiv(longest, piece)
        parts, sums = out, out
        if pieces > 1:
            parts = torch.empty((pieces, queries, heads, dim), dtype=torch.float32, device=q.device)
            sums = torch.empty((pieces, queries, heads), dtype=torch.float32, device=q.device)
        attend_kernel[(blocks * kv_heads, pieces)](
            *operands, out, parts, sums, scale, queries, sequences, width, stride, blocks, chunks, piece,
            queries * heads, HEADS=heads, KV_HEADS=kv_heads, D=dim, D0=d0, D1=d1, PAGE=page, ROWS=rows, TILE=tile,
            STAGES=stages, DIRECT=direct, SPLIT=pieces > 1, num_warps=warps,
        )  # fmt: skip
        if pieces > 1:
            join_kernel[(queries * heads,)](
                parts, sums, cu_seqlens_q, out, queries * heads, pieces, sequences, HEADS=heads, D=dim,
                WIDTH=max(128, triton.next_power_of_2(dim)), DEPTH=16, num_warps=4, launch_pdl=True,
            )  # fmt: skip
        return out
