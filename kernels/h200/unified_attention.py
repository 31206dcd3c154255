"""Causal attention over a paged cache in Gluon: warp-specialized kernels that TMA feeds, one for each kind of batch.

Caches come in boxes of 16 tokens, page numbers ahead. `batch_kernel`, sequences of up to 256 tokens: programs stay and
share out all heads of keys; three consumer warpgroups take 64 queries of a head in turn, so that products of one run
beside the softmax of others, while the next queries, keys and values arrive. `prompt_kernel`, long prompts: tiles of
keys stream past 64 queries of two heads. `decode_kernel`, few rows over long contexts: the query heads of a key head
fill the rows, programs take equal shares of all tiles, `join_kernel` adds what several had of a head. Prompts and
decoding in one batch: both kernels side by side. `plain_kernel` takes pages and heads that boxes do not fit.
Bounds: HBM for batches and decoding, tensor cores (and power) for prompts. Measured on an H200, with two warpgroups in
`batch_kernel` and a program for each block of a prompt: shape 0 79 us (S 0.50), 9 277 us (0.64), 16 42 us (0.38),
20 529 us (0.62), 5 775 us (0.42), 7 25 us (0.22). Predicted for what is here: 0 58 us (0.67), 9 225 us (0.79), 16 27 us
(0.58), 20 505 us (0.65), 25 42 us (0.68), 28 41 us (0.68), 29 80 us (0.78), 30 240 us (0.48).
"""

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = 1.4426950408889634
SMS = 132
SHORT = 256  # tokens of a sequence that stay in shared memory


def config(dim: int, longest: int) -> tuple[int, int, int, int, int]:
    """Programs of decode_kernel, the least tiles that one takes, SLOTS, registers in the mean and of the copier."""
    least = min(4, triton.cdiv(longest, 64))
    if dim > 128:
        return SMS, least, 3, 168, 104  # 168 to 224 KB of shared memory
    return 2 * SMS, least, 3, 128, 40


def batch_config(sequences: int, kv_heads: int, group: int) -> tuple[int, int, int, int]:
    """CHUNKS of an item that programs share out, EXTRA tiles that a block costs, registers of a consumer, of a copier:
    three and one times these are 512."""
    items = sequences * kv_heads
    waves = -(-items // SMS)
    chunks = 1 if waves * SMS <= 1.04 * items else min(16, 4 * group)
    return chunks, 2, 152, 56


def prompt_config(dim: int, group: int) -> tuple[int, int, bool, bool, int]:
    """TILE keys, SLOTS of either ring, whether programs take PAIRs of heads, TURNS at the tensor cores, registers."""
    tile, slots = (64, 2) if dim > 192 else (64, 3) if dim > 128 else (128, 3)
    return tile, slots, group % 2 == 0, dim > 80, 232


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
def fetch(ptr, row, live, FIRST: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, STRIDE: gl.constexpr,
          LAYOUT: gl.constexpr):
    """Columns FIRST to FIRST + WIDTH of some rows; zeros where a row does not live and from column D on."""
    dim = FIRST + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    place = ptr + row.to(gl.int64)[:, None] * STRIDE + dim[None, :]
    return gl.load(place, mask=live[:, None] & (dim < D)[None, :], other=0.0)


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
def tiles_of(new, length, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, FEW: gl.constexpr):
    """Tiles of 64 keys that decode_kernel has for a sequence: all for each head of keys and each block of 64 rows. FEW:
    none where there is more than one block."""
    blocks = gl.cdiv(new * GROUP, 64)
    if FEW:
        blocks = gl.where(blocks > 1, 0, blocks)
    return blocks * KV_HEADS * gl.cdiv(length, 64)


@gluon.jit
def tiles_before(bounds_ptr, used_ptr, sequences, end, place, GROUP: gl.constexpr, KV_HEADS: gl.constexpr,
                 FEW: gl.constexpr, warps: gl.constexpr):
    """Of the sequences before `end`: all tiles; how many sequences end at or before tile `place`, and their tiles."""
    lane = gl.arange(0, 32 * warps, layout=gl.BlockedLayout([1], [32], [warps], [0]))
    total = 0
    found = 0
    before = 0
    for start in range(0, end, 32 * warps):
        seq = gl.minimum(start + lane, sequences - 1)
        new = gl.load(bounds_ptr + seq + 1) - gl.load(bounds_ptr + seq)
        count = tiles_of(new, gl.load(used_ptr + seq), GROUP, KV_HEADS, FEW)
        count = gl.where(start + lane < end, count, 0)
        past = (start + lane < end) & (total + gl.associative_scan(count, 0, add) <= place)
        found += gl.sum(past.to(gl.int32), axis=0)
        before += gl.sum(gl.where(past, count, 0), axis=0)
        total += gl.sum(count, axis=0)
    return total, found, before


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def softmax(score, top, total, scale):
    """One step of the online softmax: weights, the new maximum and sum, and what old sums shrink by."""
    peak = gl.maximum(top, gl.max(score, axis=1) * scale)
    p = gl.exp2(score * scale - peak[:, None])
    decay = gl.exp2(top - peak)
    return p, peak, total * decay + gl.sum(p, axis=1), decay


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
def bring(desc0, desc1, ring0, ring1, full, slot, part, s0, s1, s2, s3, kv_head, TILE: gl.constexpr, D0: gl.constexpr,
          D1: gl.constexpr):
    """64 tokens, four boxes from box `part` of a tile on."""
    PARTS: gl.constexpr = TILE // 16
    W0: gl.constexpr = desc0.block_type.shape[2]
    box = slot * (PARTS * D0 // W0) + part
    bring_box(desc0, ring0, full, box, s0, kv_head, 0, D0, W0, PARTS)
    bring_box(desc0, ring0, full, box + 1, s1, kv_head, 0, D0, W0, PARTS)
    bring_box(desc0, ring0, full, box + 2, s2, kv_head, 0, D0, W0, PARTS)
    bring_box(desc0, ring0, full, box + 3, s3, kv_head, 0, D0, W0, PARTS)
    if D1 > 0:
        W1: gl.constexpr = desc1.block_type.shape[2]
        box = slot * (PARTS * D1 // W1) + part
        bring_box(desc1, ring1, full, box, s0, kv_head, D0, D1, W1, PARTS)
        bring_box(desc1, ring1, full, box + 1, s1, kv_head, D0, D1, W1, PARTS)
        bring_box(desc1, ring1, full, box + 2, s2, kv_head, D0, D1, W1, PARTS)
        bring_box(desc1, ring1, full, box + 3, s3, kv_head, D0, D1, W1, PARTS)


@gluon.jit
def box_place(table_row, width, token, length, tokens, PAGE: gl.constexpr):
    """Where in the cache 16 tokens lie; past the end where TMA finds nothing and writes zeros."""
    page = gl.load(table_row + gl.minimum(token // PAGE, width - 1))
    return gl.where(token < length, page * PAGE + token % PAGE, tokens)


@gluon.jit
def box_places(table_row, width, token, length, tokens, PAGE: gl.constexpr):
    s0 = box_place(table_row, width, token, length, tokens, PAGE)
    s1 = box_place(table_row, width, token + 16, length, tokens, PAGE)
    s2 = box_place(table_row, width, token + 32, length, tokens, PAGE)
    s3 = box_place(table_row, width, token + 48, length, tokens, PAGE)
    return s0, s1, s2, s3


@gluon.jit
def brought_near(bounds_ptr, used_ptr, table_ptr, seq, width, table_stride, tokens):
    """`tokens`, or more, which is as good for places where TMA finds nothing: what a sequence is looked up in is on its
    way all at once."""
    table_row = table_ptr + table_stride.to(gl.int64) * seq
    tokens = gl.maximum(tokens, gl.maximum(gl.load(bounds_ptr + seq + 1), gl.load(used_ptr + seq)))
    return gl.maximum(tokens, gl.maximum(gl.load(table_row), gl.load(table_row + gl.minimum(8, width - 1))))


@gluon.jit
def clear_tail(ring, box, valid, WIDTH: gl.constexpr, BOX: gl.constexpr, PARTS: gl.constexpr, warps: gl.constexpr):
    """Zeros in place of a box's rows from `valid` on: weights of zero do not erase a NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 8], [256 // BOX, 1, BOX // 8], [warps, 1, 1], [2, 1, 0])
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
            s0, s1, s2, s3 = box_places(table_row, width, t * 64, length, tokens, PAGE)
            slot = t ^ turn
            mbarrier.wait(kv_empty.index(slot), ((used >> slot) & 1) ^ 1)
            used ^= 1 << slot
            mbarrier.expect(k_full.index(slot), 128 * D)
            bring(k_desc, k_desc, k_ring, k_ring, k_full.index(slot), slot, 0, s0, s1, s2, s3, kv_head, 64, D, 0)
            rest = length - t * 64
            if (rest < 64) & (rest % 16 != 0):
                mbarrier.expect(patch, 128 * D)
                bring(v_desc, v_desc, v_ring, v_ring, patch, slot, 0, s0, s1, s2, s3, kv_head, 64, D, 0)
                mbarrier.wait(patch, mended)
                mended ^= 1
                clear_tail(v_ring, slot * (D // 16) + rest // 16, rest % 16, D, 64, 4, 1)
                fence_async_shared()
                gl.thread_barrier()
                mbarrier.arrive(v_full.index(slot))
            else:
                mbarrier.expect(v_full.index(slot), 128 * D)
                bring(v_desc, v_desc, v_ring, v_ring, v_full.index(slot), slot, 0, s0, s1, s2, s3, kv_head, 64, D, 0)
        turn ^= 3


@gluon.jit
def batch_queries(q_desc, q_ring, q_full, q_empty, bounds_ptr, used_ptr, low, high, chunks, GROUP: gl.constexpr,
                  KV_HEADS: gl.constexpr, D: gl.constexpr, EXTRA: gl.constexpr):
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
            slot, phase = advance(slot, phase, 6)


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
                 KV_HEADS: gl.constexpr, D: gl.constexpr, EXTRA: gl.constexpr):
    """Every third block of a head's 64 queries, from those that see most keys on. Of the six slots of queries three are
    in hand, and those of the blocks before go out and fill again meanwhile."""
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
        for back in range((ME + 3 - blocks % 3) % 3, u_high - u_low, 3):
            u = u_high - 1 - back
            k = blocks + back
            slot = k % 6
            begin = u // GROUP * 64
            head = kv_head * GROUP + u % GROUP
            count = gl.cdiv(gl.minimum(context + begin + 64, length), 64)
            every = context + begin + 1  # keys that the first row sees
            position = context + begin + row
            left = leave_tiles(k_full, v_full, kv_empty, left, count, turn, used)
            top = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
            acc = gl.zeros([64, D], gl.float32, layout=ACC)
            q = q_ring.index(slot).reshape([64, D])
            mbarrier.wait(q_full.index(slot), k // 6 & 1)
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
                 PAGE: gl.constexpr, EXTRA: gl.constexpr, REGISTERS: gl.constexpr, FEW: gl.constexpr):
    """Sequences of at most 256 tokens. Programs stay and take equal shares of all items, which are the heads of keys of
    all sequences, each cut in `chunks`; what a program takes of an item shares its keys and values in shared memory."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    work = sequences * KV_HEADS * chunks
    low = gl.program_id(0) * work // gl.num_programs(0)
    high = (gl.program_id(0) + 1) * work // gl.num_programs(0)
    seq = low // chunks // KV_HEADS
    tokens = brought_near(bounds_ptr, used_ptr, table_ptr, seq, width, table_stride, tokens)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [6, 64, 1, D], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [4 * (D // 16), 16, 1, 64], k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [4 * (D // 16), 16, 1, 64], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    kv_empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    patch = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(6):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=1)
    for slot in gl.static_range(4):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(kv_empty.index(slot), count=3)
    mbarrier.init(patch, count=1)
    gl.warp_specialize([
        (batch_attend, (out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty,
                        bounds_ptr, used_ptr, scale, queries, sequences, low, high, chunks, 0, GROUP, KV_HEADS, D,
                        EXTRA)),
        (batch_attend, (out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty,
                        bounds_ptr, used_ptr, scale, queries, sequences, low, high, chunks, 1, GROUP, KV_HEADS, D,
                        EXTRA)),
        (batch_attend, (out_desc, out_ptr, q_ring, k_ring, v_ring, q_full, q_empty, k_full, v_full, kv_empty,
                        bounds_ptr, used_ptr, scale, queries, sequences, low, high, chunks, 2, GROUP, KV_HEADS, D,
                        EXTRA)),
        (batch_keys, (k_desc, v_desc, k_ring, v_ring, k_full, v_full, kv_empty, patch, bounds_ptr, used_ptr, table_ptr,
                      width, table_stride, tokens, low, high, chunks, GROUP, KV_HEADS, D, PAGE, EXTRA)),
        (batch_queries, (q_desc, q_ring, q_full, q_empty, bounds_ptr, used_ptr, low, high, chunks, GROUP, KV_HEADS, D,
                         EXTRA)),
    ], [4, 4, 1, 1], [REGISTERS, REGISTERS, FEW, FEW])  # fmt: skip


@gluon.jit
def find_block(bounds_ptr, used_ptr, sequences, blocks, few, turn, TOKENS: gl.constexpr, UNITS: gl.constexpr,
               warps: gl.constexpr):
    """What a program has in its `turn`: one of UNITS, and of its blocks of TOKENS queries, later ones first, the
    sequence, where the block begins and how many keys it sees; none where the sequence has no more queries, or so few
    that another kernel takes them. Every second turn goes backwards through the programs, which evens out."""
    programs = gl.num_programs(0)
    item = turn * programs + gl.where(turn % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    block = gl.maximum(blocks - 1 - item // UNITS, 0)
    low = find_sequence(bounds_ptr, sequences, block, 1, TOKENS, warps)
    first = gl.load(bounds_ptr + low)
    new = gl.load(bounds_ptr + low + 1) - first
    length = gl.load(used_ptr + low)
    begin = (block - (first // TOKENS + low)) * TOKENS
    seen = gl.minimum(length - new + begin + TOKENS, length)
    there = (item < blocks * UNITS) & (begin < new) & (new > few)
    return item % UNITS, low, first, new, length, begin, gl.where(there, seen, 0)


@gluon.jit
def bring_rows(desc0, desc1, ring0, ring1, full, slot, table_row, width, token, length, tokens, kv_head,
               TILE: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr):
    """A tile; page numbers first, for they take a while."""
    for half in gl.static_range(TILE // 64):
        s0, s1, s2, s3 = box_places(table_row, width, token + 64 * half, length, tokens, PAGE)
        bring(desc0, desc1, ring0, ring1, full, slot, 4 * half, s0, s1, s2, s3, kv_head, TILE, D0, D1)


@gluon.jit
def bring_whole(desc0, desc1, ring0, ring1, full, empty, slot, phase, table_row, width, tokens, kv_head, length, tiles,
                TILE: gl.constexpr, SLOTS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr):
    for t in range(tiles):
        mbarrier.wait(empty.index(slot), phase)
        mbarrier.expect(full.index(slot), 2 * TILE * (D0 + D1))
        bring_rows(desc0, desc1, ring0, ring1, full.index(slot), slot, table_row, width, t * TILE, length, tokens,
                   kv_head, TILE, D0, D1, PAGE)
        slot, phase = advance(slot, phase, SLOTS)
    return slot, phase


@gluon.jit
def prompt_values(v_desc0, v_desc1, v0, v1, v_full, v_empty, patch, bounds_ptr, used_ptr, table_ptr, sequences, width,
                  table_stride, tokens, blocks, few, turns, GROUP: gl.constexpr, UNITS: gl.constexpr,
                  TOKENS: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr,
                  PAGE: gl.constexpr):
    PARTS: gl.constexpr = TILE // 16
    W0: gl.constexpr = v_desc0.block_type.shape[2]
    W1: gl.constexpr = v_desc1.block_type.shape[2]
    slot = 0
    phase = 1
    mended = 0
    for turn in range(turns):
        unit, seq, _, _, length, _, seen = find_block(bounds_ptr, used_ptr, sequences, blocks, few, turn, TOKENS, UNITS,
                                                      1)  # fmt: skip
        kv_head = unit * (128 // TOKENS) // GROUP
        table_row = table_ptr + table_stride.to(gl.int64) * seq
        tiles = gl.cdiv(seen, TILE)
        # But for the tile of the last token, if a box of 16 ends in slots that belong to nobody.
        whole = gl.where((length < tiles * TILE) & (length % 16 != 0), tiles - 1, tiles)
        slot, phase = bring_whole(v_desc0, v_desc1, v0, v1, v_full, v_empty, slot, phase, table_row, width, tokens,
                                  kv_head, length, whole, TILE, SLOTS, D0, D1, PAGE)  # fmt: skip
        if whole < tiles:
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(patch, 2 * TILE * (D0 + D1))
            bring_rows(v_desc0, v_desc1, v0, v1, patch, slot, table_row, width, whole * TILE, length, tokens, kv_head,
                       TILE, D0, D1, PAGE)
            mbarrier.wait(patch, mended)
            mended ^= 1
            rest = length - whole * TILE
            clear_tail(v0, slot * (PARTS * D0 // W0) + rest // 16, rest % 16, D0, W0, PARTS, 1)
            if D1 > 0:
                clear_tail(v1, slot * (PARTS * D1 // W1) + rest // 16, rest % 16, D1, W1, PARTS, 1)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(v_full.index(slot))
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def prompt_keys(q_desc0, q_desc1, k_desc0, k_desc1, q0, q1, k0, k1, q_full, q_empty, k_full, k_empty, bounds_ptr,
                used_ptr, table_ptr, sequences, width, table_stride, tokens, blocks, few, turns, GROUP: gl.constexpr,
                UNITS: gl.constexpr, TOKENS: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, D0: gl.constexpr,
                D1: gl.constexpr, PAGE: gl.constexpr):
    slot = 0
    phase = 1
    q_phase = 1
    for turn in range(turns):
        unit, seq, first, _, length, begin, seen = find_block(bounds_ptr, used_ptr, sequences, blocks, few, turn,
                                                              TOKENS, UNITS, 1)  # fmt: skip
        head = unit * (128 // TOKENS)
        table_row = table_ptr + table_stride.to(gl.int64) * seq
        if seen > 0:
            for me in gl.static_range(2):
                mbarrier.wait(q_empty.index(me), q_phase)
                mbarrier.expect(q_full.index(me), 2 * 64 * (D0 + D1))
                place = first + begin + (0 if TOKENS == 64 else 64 * me)
                which = head + (me if TOKENS == 64 else 0)
                tma.async_copy_global_to_shared(q_desc0, [place, which, 0], q_full.index(me), q0.index(me))
                if D1 > 0:
                    tma.async_copy_global_to_shared(q_desc1, [place, which, D0], q_full.index(me), q1.index(me))
            q_phase ^= 1
        slot, phase = bring_whole(k_desc0, k_desc1, k0, k1, k_full, k_empty, slot, phase, table_row, width, tokens,
                                  head // GROUP, length, gl.cdiv(seen, TILE), TILE, SLOTS, D0, D1, PAGE)  # fmt: skip


@gluon.jit
def prompt_attend(out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, k_empty, v_full,
                  v_empty, turn_of, bounds_ptr, used_ptr, scale, sequences, blocks, few, turns, ME: gl.constexpr,
                  TURNS: gl.constexpr, HEADS: gl.constexpr, UNITS: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr,
                  D0: gl.constexpr, D1: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, AFTER: gl.constexpr):
    """64 queries of a head: the scores of a tile and the sums of the last one run side by side and the softmax beside
    the sums; the two warpgroups take turns at the tensor cores."""
    E1: gl.constexpr = D1 if D1 > 0 else 16
    SCORE: gl.constexpr = product_layout(TILE, 4)
    ACC0: gl.constexpr = product_layout(D0, 4)
    ACC1: gl.constexpr = product_layout(E1, 4)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
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
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, SCORE))
    token = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORE))
    nothing = gl.zeros([64, TILE], gl.float32, layout=SCORE)
    slot = 0
    phase = 0
    q_phase = 0
    turn_phase = 1 if ME == 0 else 0
    for turn in range(turns):
        unit, _, first, new, length, begin, seen = find_block(bounds_ptr, used_ptr, sequences, blocks, few, turn,
                                                              TOKENS, UNITS, 4)  # fmt: skip
        tiles = gl.cdiv(seen, TILE)
        begin = begin + (0 if TOKENS == 64 else 64 * ME)
        head = unit * (128 // TOKENS) + (ME if TOKENS == 64 else 0)
        every = length - new + begin + 1  # keys that the first row sees
        if tiles > 0:
            top = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
            acc0 = gl.zeros([64, D0], gl.float32, layout=ACC0)
            acc1 = gl.zeros([64, E1], gl.float32, layout=ACC1)
            mbarrier.wait(q_full.index(ME), q_phase)
            q_phase ^= 1
            mbarrier.wait(k_full.index(slot), phase)
            score = warpgroup_mma(mine0, keys0.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            if D1 > 0:
                score = warpgroup_mma(mine1, keys1.index(slot).permute((1, 0)), score, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            mbarrier.arrive(k_empty.index(slot))
            if every < TILE:
                score = gl.where(token[None, :] < (every + row)[:, None], score, -float("inf"))
            top = gl.maximum(top, gl.max(score, axis=1) * scale)
            p = exp2(score * scale - top[:, None])
            total = gl.sum(p, axis=1)
            p = p.to(dtype)
            past = slot
            past_phase = phase
            slot, phase = advance(slot, phase, SLOTS)
            for j in range(1, tiles):
                mbarrier.wait(k_full.index(slot), phase)
                if TURNS:
                    mbarrier.wait(turn_of.index(ME), turn_phase)
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
                    mbarrier.arrive(turn_of.index(1 - ME))
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
            mbarrier.arrive(v_empty.index(past))
            if AFTER:
                gdc_wait()  # decode_kernel runs beside, and writes other rows
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
            mbarrier.arrive(q_empty.index(ME))


@gluon.jit(do_not_specialize=["queries", "sequences", "width", "table_stride", "tokens", "blocks", "few", "turns"])
def prompt_kernel(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, out_desc0, out_desc1, bounds_ptr, used_ptr,
                  table_ptr, out_ptr, scale, queries, sequences, width, table_stride, tokens, blocks, few,
                  turns, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr,
                  D1: gl.constexpr, PAGE: gl.constexpr, TILE: gl.constexpr, SLOTS: gl.constexpr, PAIR: gl.constexpr,
                  TURNS: gl.constexpr, AFTER: gl.constexpr, REGISTERS: gl.constexpr):
    """Long sequences. A program has 64 queries of two heads that share keys (PAIR), else 128 of one head."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    UNITS: gl.constexpr = HEADS // 2 if PAIR else HEADS
    TOKENS: gl.constexpr = 64 if PAIR else 128
    E1: gl.constexpr = D1 if D1 > 0 else 16
    W0: gl.constexpr = k_desc0.block_type.shape[2]
    W1: gl.constexpr = k_desc1.block_type.shape[2]
    held = gl.load(bounds_ptr + sequences)
    tokens = brought_near(bounds_ptr, used_ptr, table_ptr, 0, width, table_stride, tokens)
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
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    patch = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    turn_of = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(patch, count=1)
    for me in gl.static_range(2):
        mbarrier.init(q_full.index(me), count=1)
        mbarrier.init(q_empty.index(me), count=1)
        mbarrier.init(turn_of.index(me), count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=2)
        mbarrier.init(v_empty.index(slot), count=2)
    gl.warp_specialize([
        (prompt_attend, (out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, k_empty,
                         v_full, v_empty, turn_of, bounds_ptr, used_ptr, scale, sequences, blocks, few, turns, 0,
                         TURNS, HEADS, UNITS, TOKENS, D, D0, D1, TILE, SLOTS, AFTER)),
        (prompt_attend, (out_desc0, out_desc1, out_ptr, q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, k_empty,
                         v_full, v_empty, turn_of, bounds_ptr, used_ptr, scale, sequences, blocks, few, turns, 1,
                         TURNS, HEADS, UNITS, TOKENS, D, D0, D1, TILE, SLOTS, AFTER)),
        (prompt_keys, (q_desc0, q_desc1, k_desc0, k_desc1, q0, q1, k0, k1, q_full, q_empty, k_full, k_empty, bounds_ptr,
                       used_ptr, table_ptr, sequences, width, table_stride, tokens, blocks, few, turns, GROUP, UNITS,
                       TOKENS, TILE, SLOTS, D0, D1, PAGE)),
        (prompt_values, (v_desc0, v_desc1, v0, v1, v_full, v_empty, patch, bounds_ptr, used_ptr, table_ptr, sequences,
                         width, table_stride, tokens, blocks, few, turns, GROUP, UNITS, TOKENS, TILE, SLOTS, D0, D1,
                         PAGE)),
    ], [4, 1, 1], [REGISTERS, 40, 40])  # fmt: skip
    if AFTER:
        gdc_wait()  # join_kernel follows both
    zero_leftover(out_ptr, held, queries, HEADS * D, 4)


@gluon.jit
def segment(bounds_ptr, used_ptr, seq, inside, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, FEW: gl.constexpr):
    """The sequence that has tile `inside` of those from sequence `seq` on, and which of its own that is."""
    first = gl.load(bounds_ptr + seq)
    end = gl.load(bounds_ptr + seq + 1)
    length = gl.load(used_ptr + seq)
    size = tiles_of(end - first, length, GROUP, KV_HEADS, FEW)
    while inside >= size:
        inside -= size
        seq += 1
        first = end
        end = gl.load(bounds_ptr + seq + 1)
        length = gl.load(used_ptr + seq)
        size = tiles_of(end - first, length, GROUP, KV_HEADS, FEW)
    return seq, inside, first, end - first, length


@gluon.jit
def decode_copy(k_desc0, k_desc1, v_desc0, v_desc1, k0, k1, v0, v1, k_full, k_empty, v_full, v_empty, bounds_ptr,
                used_ptr, table_ptr, width, table_stride, tokens, seq, inside, count, GROUP: gl.constexpr,
                KV_HEADS: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr, SLOTS: gl.constexpr,
                FEW: gl.constexpr):
    slot = 0
    phase = 1
    left = count
    while left > 0:
        seq, inside, _, _, length = segment(bounds_ptr, used_ptr, seq, inside, GROUP, KV_HEADS, FEW)
        tiles = gl.cdiv(length, 64)
        begin = inside % tiles
        kv_head = inside // tiles % KV_HEADS
        n = gl.minimum(left, tiles - begin)
        table_row = table_ptr + table_stride.to(gl.int64) * seq
        s0, s1, s2, s3 = box_places(table_row, width, begin * 64, length, tokens, PAGE)
        for t in range(begin, begin + n):
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_full.index(slot), 128 * (D0 + D1))
            bring(k_desc0, k_desc1, k0, k1, k_full.index(slot), slot, 0, s0, s1, s2, s3, kv_head, 64, D0, D1)
            # The next tile's page numbers are on their way a tile ahead.
            n0, n1, n2, n3 = box_places(table_row, width, (t + 1) * 64, length, tokens, PAGE)
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_full.index(slot), 128 * (D0 + D1))
            bring(v_desc0, v_desc1, v0, v1, v_full.index(slot), slot, 0, s0, s1, s2, s3, kv_head, 64, D0, D1)
            s0, s1, s2, s3 = n0, n1, n2, n3
            slot, phase = advance(slot, phase, SLOTS)
        inside += n
        left -= n


@gluon.jit
def store_part(ptr, place, live, acc, FIRST: gl.constexpr, WIDTH: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr):
    """Rows of `acc` to places of D columns each."""
    there = gl.convert_layout(place, gl.SliceLayout(1, LAYOUT))
    stored = gl.convert_layout(live.to(gl.int32), gl.SliceLayout(1, LAYOUT)) > 0
    dim = FIRST + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(ptr + there[:, None] * D + dim[None, :], acc.to(ptr.dtype.element_ty),
             mask=stored[:, None] & (dim < D)[None, :])


@gluon.jit
def decode_attend(q_ptr, out_ptr, parts_ptr, sums_ptr, q0, q1, k0, k1, v0, v1, k_full, k_empty, v_full, v_empty,
                  bounds_ptr, used_ptr, scale, seq, inside, count, HEADS: gl.constexpr, KV_HEADS: gl.constexpr,
                  D: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, SLOTS: gl.constexpr, FEW: gl.constexpr):
    """Up to 64 rows: the query heads of a key head, query by query."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    W0: gl.constexpr = v0.shape[3]
    W1: gl.constexpr = v1.shape[3]
    E1: gl.constexpr = D1 if D1 > 0 else 16
    SCORE: gl.constexpr = product_layout(64, 4)
    ACC0: gl.constexpr = product_layout(D0, 4)
    ACC1: gl.constexpr = product_layout(E1, 4)
    COPY0: gl.constexpr = copy_layout(D0, 4)
    COPY1: gl.constexpr = copy_layout(E1, 4)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    keys0 = k0._reinterpret(dtype, [SLOTS, 64, D0], shared_layout(64, D0))
    values0 = v0._reinterpret(dtype, [SLOTS, 64, D0], shared_layout(64, D0))
    keys1 = keys0
    values1 = values0
    if D1 > 0:
        keys1 = k1._reinterpret(dtype, [SLOTS, 64, D1], shared_layout(64, D1))
        values1 = v1._reinterpret(dtype, [SLOTS, 64, D1], shared_layout(64, D1))
    nothing = gl.zeros([64, 64], gl.float32, layout=SCORE)
    token = gl.arange(0, 64, layout=gl.SliceLayout(0, SCORE))
    slot = 0
    phase = 0
    left = count
    while left > 0:
        seq, inside, first, new, length = segment(bounds_ptr, used_ptr, seq, inside, GROUP, KV_HEADS, FEW)
        tiles = gl.cdiv(length, 64)
        begin = inside % tiles
        kv_head = inside // tiles % KV_HEADS
        block = inside // tiles // KV_HEADS * 64
        n = gl.minimum(left, tiles - begin)
        rows = new * GROUP
        row0 = block + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY0))
        place0 = (first + row0 // GROUP) * HEADS + kv_head * GROUP + row0 % GROUP
        q0.store(fetch(q_ptr, place0, row0 < rows, 0, D0, D, D, COPY0))
        if D1 > 0:
            row1 = block + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY1))
            place1 = (first + row1 // GROUP) * HEADS + kv_head * GROUP + row1 % GROUP
            q1.store(fetch(q_ptr, place1, row1 < rows, D0, D1, D, D, COPY1))
        fence_async_shared()
        row = block + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORE))
        position = length - new + row // GROUP
        every = length - new + block // GROUP + 1  # keys that the first row sees
        top = gl.full([64], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORE))
        total = gl.full([64], 0.0, gl.float32, layout=gl.SliceLayout(1, SCORE))
        acc0 = gl.zeros([64, D0], gl.float32, layout=ACC0)
        acc1 = gl.zeros([64, E1], gl.float32, layout=ACC1)
        for t in range(begin, begin + n):
            mbarrier.wait(k_full.index(slot), phase)
            score = warpgroup_mma(q0, keys0.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            if D1 > 0:
                score = warpgroup_mma(q1, keys1.index(slot).permute((1, 0)), score, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            mbarrier.arrive(k_empty.index(slot))
            if (t + 1) * 64 > every:
                score = gl.where((t * 64 + token)[None, :] <= position[:, None], score, -float("inf"))
            p, top, total, decay = softmax(score, top, total, scale)
            p = p.to(dtype)
            acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, ACC0))[:, None]
            mbarrier.wait(v_full.index(slot), phase)
            rest = length - t * 64
            if (rest < 64) & (rest % 16 != 0):
                clear_tail(v0, slot * (4 * D0 // W0) + rest // 16, rest % 16, D0, W0, 4, 4)
                if D1 > 0:
                    clear_tail(v1, slot * (4 * D1 // W1) + rest // 16, rest % 16, D1, W1, 4, 4)
                fence_async_shared()
                gl.thread_barrier()
            p0 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC0, 2))
            acc0 = warpgroup_mma(p0, values0.index(slot), acc0, is_async=True)
            if D1 > 0:
                acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, ACC1))[:, None]
                p1 = gl.convert_layout(p, gl.DotOperandLayout(0, ACC1, 2))
                acc1 = warpgroup_mma(p1, values1.index(slot), acc1, is_async=True)
                acc0, acc1, p0, p1 = warpgroup_mma_wait(0, deps=[acc0, acc1, p0, p1])
            else:
                acc0, p0 = warpgroup_mma_wait(0, deps=[acc0, p0])
            mbarrier.arrive(v_empty.index(slot))
            slot, phase = advance(slot, phase, SLOTS)
        share = 1.0 / gl.where(total > 0, total, 1.0)
        acc0 = acc0 * gl.convert_layout(share, gl.SliceLayout(1, ACC0))[:, None]
        if D1 > 0:
            acc1 = acc1 * gl.convert_layout(share, gl.SliceLayout(1, ACC1))[:, None]
        if n == tiles:
            place = (first + row // GROUP).to(gl.int64) * HEADS + kv_head * GROUP + row % GROUP
            store_part(out_ptr, place, row < rows, acc0, 0, D0, D, ACC0)
            if D1 > 0:
                store_part(out_ptr, place, row < rows, acc1, D0, D1, D, ACC1)
        else:
            # A program has at most one part that goes on from another's and one that another goes on from.
            place = (2 * gl.program_id(0) + (begin == 0).to(gl.int32)).to(gl.int64) * 64 + row - block
            mass = gl.where(total > 0, top + gl.log2(gl.where(total > 0, total, 1.0)), -float("inf"))
            gl.store(sums_ptr + place, mass, mask=row < rows)
            store_part(parts_ptr, place, row < rows, acc0, 0, D0, D, ACC0)
            if D1 > 0:
                store_part(parts_ptr, place, row < rows, acc1, D0, D1, D, ACC1)
        inside += n
        left -= n


# Counts change from batch to batch: they must not make another specialization.
@gluon.jit(do_not_specialize=["queries", "sequences", "width", "table_stride", "tokens", "least"])
def decode_kernel(k_desc0, k_desc1, v_desc0, v_desc1, q_ptr, bounds_ptr, used_ptr, table_ptr, out_ptr, parts_ptr,
                  sums_ptr, scale, queries, sequences, width, table_stride, tokens, least, HEADS: gl.constexpr,
                  KV_HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr, D1: gl.constexpr, PAGE: gl.constexpr,
                  SLOTS: gl.constexpr, FEW: gl.constexpr, COPIER: gl.constexpr):
    """Few rows, long contexts: programs take equal shares of all tiles of keys, sequence by sequence, and copies go on
    from one to the next. FEW: sequences of more than 64 rows are another kernel's."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    E1: gl.constexpr = D1 if D1 > 0 else 16
    W0: gl.constexpr = k_desc0.block_type.shape[2]
    W1: gl.constexpr = k_desc1.block_type.shape[2]
    gdc_launch_dependents()
    held = gl.load(bounds_ptr + sequences)
    total, _, _ = tiles_before(bounds_ptr, used_ptr, sequences, sequences, 0, GROUP, KV_HEADS, FEW, 4)
    size = gl.maximum(least, gl.cdiv(total, gl.num_programs(0)))
    low = gl.program_id(0) * size
    _, seq, before = tiles_before(bounds_ptr, used_ptr, sequences, sequences, low, GROUP, KV_HEADS, FEW, 4)
    count = gl.minimum(size, total - low)
    q0 = gl.allocate_shared_memory(k_desc0.dtype, [64, D0], shared_layout(64, D0))
    k0 = gl.allocate_shared_memory(k_desc0.dtype, [SLOTS * 4 * (D0 // W0), 16, 1, W0], k_desc0.layout)
    v0 = gl.allocate_shared_memory(v_desc0.dtype, [SLOTS * 4 * (D0 // W0), 16, 1, W0], v_desc0.layout)
    q1 = q0
    k1 = k0
    v1 = v0
    if D1 > 0:
        q1 = gl.allocate_shared_memory(k_desc1.dtype, [64, E1], shared_layout(64, E1))
        k1 = gl.allocate_shared_memory(k_desc1.dtype, [SLOTS * 4 * (E1 // W1), 16, 1, W1], k_desc1.layout)
        v1 = gl.allocate_shared_memory(v_desc1.dtype, [SLOTS * 4 * (E1 // W1), 16, 1, W1], v_desc1.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=1)
        mbarrier.init(v_empty.index(slot), count=1)
    gl.warp_specialize([
        (decode_attend, (q_ptr, out_ptr, parts_ptr, sums_ptr, q0, q1, k0, k1, v0, v1, k_full, k_empty, v_full, v_empty,
                         bounds_ptr, used_ptr, scale, seq, low - before, count, HEADS, KV_HEADS, D, D0, D1, SLOTS,
                         FEW)),
        (decode_copy, (k_desc0, k_desc1, v_desc0, v_desc1, k0, k1, v0, v1, k_full, k_empty, v_full, v_empty, bounds_ptr,
                       used_ptr, table_ptr, width, table_stride, tokens, seq, low - before, count, GROUP, KV_HEADS, D0,
                       D1, PAGE, SLOTS, FEW)),
    ], [1], [COPIER])  # fmt: skip
    zero_leftover(out_ptr, held, queries, HEADS * D, 4)


@gluon.jit(do_not_specialize=["sequences", "programs", "least"])
def join_kernel(parts_ptr, sums_ptr, bounds_ptr, used_ptr, out_ptr, sequences, programs, least, HEADS: gl.constexpr,
                KV_HEADS: gl.constexpr, D: gl.constexpr, WIDTH: gl.constexpr, DEPTH: gl.constexpr, FEW: gl.constexpr,
                num_warps: gl.constexpr):
    """The parts of a head of a sequence that several programs of decode_kernel had, weighed by their sums."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    head = gl.program_id(0) % HEADS
    seq = gl.program_id(0) // HEADS
    first = gl.load(bounds_ptr + seq)
    new = gl.load(bounds_ptr + seq + 1) - first
    length = gl.load(used_ptr + seq)
    total, _, _ = tiles_before(bounds_ptr, used_ptr, sequences, sequences, 0, GROUP, KV_HEADS, FEW, num_warps)
    before, _, _ = tiles_before(bounds_ptr, used_ptr, sequences, seq, 0, GROUP, KV_HEADS, FEW, num_warps)
    size = gl.maximum(least, gl.cdiv(total, programs))
    tiles = gl.cdiv(length, 64)
    queries = gl.where(tiles_of(new, length, GROUP, KV_HEADS, FEW) > 0, new, 0)
    BY_ROW: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [num_warps, 1], [1, 0])
    dim = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, BY_ROW))
    gdc_wait()  # what lies before are inputs
    for query in range(queries):
        row = query * GROUP + head % GROUP
        begin = before + (row // 64 * KV_HEADS + head // GROUP) * tiles
        low = begin // size
        pieces = (begin + tiles - 1) // size - low + 1
        if pieces > 1:
            top = -1e30
            sums = 0.0
            acc = gl.zeros([WIDTH], gl.float32, layout=gl.SliceLayout(0, BY_ROW))
            for start in range(0, pieces, DEPTH):
                part = start + gl.arange(0, DEPTH, layout=gl.SliceLayout(1, BY_ROW))
                there = (2 * (low + part) + (part == 0).to(gl.int32)).to(gl.int64) * 64 + row % 64
                mass = gl.load(sums_ptr + there, mask=part < pieces, other=-float("inf"))
                filled = (part < pieces)[:, None] & (dim < D)[None, :]
                values = gl.load(parts_ptr + there[:, None] * D + dim[None, :], mask=filled, other=0.0)
                peak = gl.maximum(top, gl.max(mass, axis=0))
                weight = gl.exp2(mass - peak)
                decay = gl.exp2(top - peak)
                sums = sums * decay + gl.sum(weight, axis=0)
                acc = acc * decay + gl.sum(values * weight[:, None], axis=0)
                top = peak
            place = ((first + query).to(gl.int64) * HEADS + head) * D
            gl.store(out_ptr + place + dim, (acc / sums).to(out_ptr.dtype.element_ty), mask=dim < D)


@triton.jit(do_not_specialize=["sequences", "table_stride"])
def plain_kernel(q_ptr, k_ptr, v_ptr, bounds_ptr, used_ptr, table_ptr, out_ptr, scale, sequences, table_stride,
                 HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr):
    """Pages or heads that boxes do not fit, without matrix units: a head of one query."""
    query = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    seq = 0
    for start in range(0, sequences, 128):
        other = start + tl.arange(0, 128)
        end = tl.load(bounds_ptr + tl.minimum(other, sequences - 1) + 1)
        seq += tl.sum(((other < sequences) & (end <= query)).to(tl.int32), axis=0)
    dim = tl.arange(0, WIDTH)
    place = tl.program_id(0).to(tl.int64) * D + dim
    acc = tl.zeros([WIDTH], tl.float32)
    top = -1e30
    total = 0.0
    if seq < sequences:
        table_row = table_ptr + seq.to(tl.int64) * table_stride
        seen = tl.load(used_ptr + seq) - tl.load(bounds_ptr + seq + 1) + query + 1
        q = tl.load(q_ptr + place, mask=dim < D, other=0.0).to(tl.float32) * scale
        for start in range(0, seen, 32):
            token = start + tl.arange(0, 32)
            page = tl.load(table_row + token // PAGE, mask=token < seen, other=0).to(tl.int64)
            there = ((page * PAGE + token % PAGE) * KV_HEADS + head // (HEADS // KV_HEADS))[:, None] * D + dim[None, :]
            mask = (token < seen)[:, None] & (dim < D)[None, :]
            score = tl.sum(tl.load(k_ptr + there, mask=mask, other=0.0).to(tl.float32) * q[None, :], axis=1)
            score = tl.where(token < seen, score, -float("inf"))
            peak = tl.maximum(top, tl.max(score, axis=0))
            p = tl.exp2(score - peak)
            decay = tl.exp2(top - peak)
            values = tl.load(v_ptr + there, mask=mask, other=0.0).to(tl.float32)
            acc = acc * decay + tl.sum(values * p[:, None], axis=0)
            total = total * decay + tl.sum(p, axis=0)
            top = peak
    tl.store(out_ptr + place, (acc / tl.where(total > 0, total, 1.0)).to(out_ptr.dtype.element_ty), mask=dim < D)


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
        stride = block_table.stride(0)
        d0, d1 = halves(dim)
        if page % 16 or dim % 8 or not 64 <= dim <= 256:
            plain_kernel[(queries * heads,)](
                q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, out, scale, sequences, stride, HEADS=heads,
                KV_HEADS=kv_heads, D=dim, WIDTH=triton.next_power_of_2(dim), PAGE=page, num_warps=4,
            )  # fmt: skip
            return out
        k_flat, v_flat = k_cache.view(tokens, kv_heads, dim), v_cache.view(tokens, kv_heads, dim)

        if longest <= SHORT and dim == 128 and queries >= max(2 * 128 * SMS / heads, 32 * sequences):
            chunks, extra, registers, few = batch_config(sequences, kv_heads, group)
            batch_kernel[(min(SMS, sequences * kv_heads * chunks),)](
                descriptor(q, 64, 128), descriptor(k_flat, 16, 64), descriptor(v_flat, 16, 64),
                descriptor(out, 64, 128), cu_seqlens_q, seqused_k, block_table, out, scale, queries, sequences, width,
                stride, tokens, chunks, HEADS=heads, KV_HEADS=kv_heads, D=dim, PAGE=page, EXTRA=extra,
                REGISTERS=registers, FEW=few, num_warps=4, maxnreg=128,
            )  # fmt: skip
            return out

        w0, w1 = min(64, d0), min(64, d1 or 16)
        caches = [descriptor(x, 16, w) for x in (k_flat, v_flat) for w in (w0, w1)]
        # Sequences of few rows among others with many have kernels of their own.
        mixed = 1 < sequences <= 256 and longest > 2 * SHORT and queries * group > 64 * sequences and group <= 64
        prompts = mixed or queries >= 48 * sequences
        programs, least, decode_slots, registers, copier = config(dim, longest)
        if mixed or not prompts:
            joined = longest > 64
            parts = sums = out
            if joined:
                parts = torch.empty((2 * programs, 64, dim), dtype=torch.float32, device=q.device)
                sums = torch.empty((2 * programs, 64), dtype=torch.float32, device=q.device)
            decode_kernel[(programs,)](
                *caches, q, cu_seqlens_q, seqused_k, block_table, out, parts, sums, scale, queries, sequences, width,
                stride, tokens, least, HEADS=heads, KV_HEADS=kv_heads, D=dim, D0=d0, D1=d1, PAGE=page,
                SLOTS=decode_slots, FEW=mixed, COPIER=copier, num_warps=4, maxnreg=registers,
            )  # fmt: skip
        if prompts:
            tile, slots, pair, turns, registers = prompt_config(dim, group)
            blocks = queries // (64 if pair else 128) + sequences
            items = blocks * (heads // 2 if pair else heads)
            # One prompt's blocks are as long as their place says: programs stay, and each has as much.
            staying = min(items, SMS) if sequences == 1 else items
            prompt_kernel[(staying,)](
                descriptor(q, 64, d0), descriptor(q, 64, d1 or 16), *caches, descriptor(out, 64, d0),
                descriptor(out, 64, d1 or 16), cu_seqlens_q, seqused_k, block_table, out, scale, queries, sequences,
                width, stride, tokens, blocks, 64 // group if mixed else 0, triton.cdiv(items, staying), HEADS=heads,
                KV_HEADS=kv_heads, D=dim, D0=d0, D1=d1, PAGE=page, TILE=tile, SLOTS=slots, PAIR=pair, TURNS=turns,
                AFTER=mixed, REGISTERS=registers, num_warps=4, maxnreg=168, launch_pdl=mixed,
            )  # fmt: skip
        if (mixed or not prompts) and joined:
            join_kernel[(sequences * heads,)](
                parts, sums, cu_seqlens_q, seqused_k, out, sequences, programs, least, HEADS=heads, KV_HEADS=kv_heads,
                D=dim, WIDTH=max(128, triton.next_power_of_2(dim)), DEPTH=16, FEW=mixed, num_warps=4,
                launch_pdl=not mixed,
            )  # fmt: skip
        return out
