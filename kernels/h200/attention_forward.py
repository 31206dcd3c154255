"""Attention over whole sequences laid one after the other: warp-specialized, in Gluon for Hopper.

A program takes 64 queries a consumer warpgroup of one head; one warp brings keys and values by TMA, each in a ring.
Three warpgroups take turns: one multiplies while the others take exponentials (attend_three, head sizes to 72). Two,
with more registers: a warpgroup starts the scores of the next tile and the sums of this one together (attend); without
turns they hung on an H200 at head size 128, not in the emulator. The ragged tile of keys comes first, the others need
no mask. Head size 72 is 64 and 16, of which TMA fills 8 with zeros; three warpgroups add the 8 columns past 64 by
products of a warp, and start the scores while half of the sums is under way.
One sequence with three warpgroups: a program a multiprocessor takes blocks of queries one after the other, and where
the last wave would not fill the multiprocessors, its tiles of keys are shared evenly; `merge` adds the pieces up.
A step of 64 x 128 at head size 72, a multiprocessor's cycles: products 640, of which 576 are useful; exponentials 512;
instructions 450.
Sweeps on an H200: 16742 x 32 x 128: 7.0 ms, S 0.67; 17296 x 16 x 72: 2.50 ms, S 0.56 (2.71 ms without sharing, 2.78 ms
with a program a block); 8136 x 16 x 72: 581 us, S 0.53 (654 us); 3844 x 16 x 72: 166 us, S 0.41 (176 us); 15476 x 4 x
72: 517 us, S 0.54 (612 us); 4100 x 4 x 72: 52.9 us, S 0.37, by two warpgroups (three that share 55.5 us). A quarter of
the exponentials by multiplications: 8 % slower.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

UNITS = 132  # multiprocessors


# Microseconds, from times on an H200: a step by warpgroups of a program, and with two programs of one warpgroup on a
# multiprocessor; what a wave of programs takes besides its steps, and shared blocks of queries besides theirs.
STEP, STEP_TWO, START, SHARE = {1: 0.8, 2: 1.36, 3: 1.62}, 1.75, 6.0, 14.0


def shared(blocks: int, tiles: int) -> int:
    """How many blocks of queries the programs share: those of the last wave, unless that is almost full."""
    rest = blocks % UNITS
    return rest if rest and (1 - rest / UNITS) * tiles * STEP[3] > SHARE else 0


def halves(size: int) -> tuple[int, int]:
    """The largest power of two in `size` and what a second block takes for the rest, at least 16 or nothing."""
    head = 1 << (size.bit_length() - 1)
    return head, max(16, triton.next_power_of_2(size - head)) if size > head else 0


def config(queries: int, sequences: int, heads: int, dim: int) -> dict[str, int]:
    """GROUPS consumer warpgroups of 64 queries, TILE keys a step, SLOTS of the ring; SPLIT, a program a multiprocessor,
    of which several take the keys of some queries."""
    tiles = triton.cdiv(queries, sequences * 128)
    # Three warpgroups have registers for sums of 64 and 8 columns.
    counts = (3, 2, 1) if dim <= 72 and dim - halves(dim)[0] <= 8 else (2, 1) if dim <= 80 else (2,)
    best, groups = None, 2
    for count in counts:
        programs = (triton.cdiv(queries, 64 * count) + sequences - 1) * heads
        waves = triton.cdiv(programs, UNITS)
        time = waves * (tiles * STEP[count] + START)
        if count == 3 and sequences == 1 and (cut := shared(programs, tiles)):
            steps = programs // UNITS * tiles + triton.cdiv(cut * tiles, UNITS)
            time = steps * STEP[3] + waves * START + SHARE
        if count == 1 and programs > UNITS:
            time = triton.cdiv(programs, 2 * UNITS) * (tiles * STEP_TWO + START)
        if best is None or time < best:
            best, groups = time, count
    if groups == 3:
        return {"GROUPS": 3, "TILE": 128, "SLOTS": 4, "SPLIT": sequences == 1}
    return {"GROUPS": groups, "TILE": 128, "SLOTS": 3 if groups == 2 and dim <= 80 else 2, "SPLIT": False}


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def share(program, steps, PROGRAMS: gl.constexpr):
    """The steps of a program, from and to, of `steps` that the programs share evenly."""
    each = steps // PROGRAMS
    more = steps - each * PROGRAMS
    begin = program * each + gl.minimum(program, more)
    return begin, begin + each + gl.where(program < more, 1, 0)


@gluon.jit
def piece(i, query, head, tiles, pieces, begin, end, cut, blocks, ROWS: gl.constexpr, SPLIT: gl.constexpr):
    """The i-th work of a program: query, head, and tiles of keys from and to."""
    low = 0
    high = tiles
    if SPLIT:
        first = begin // tiles + i
        part = i < pieces
        low = gl.where(part, gl.maximum(begin - first * tiles, 0), 0)
        high = gl.where(part, gl.minimum(end - first * tiles, tiles), tiles)
        block = gl.where(part, first, cut + (i - pieces) * gl.num_programs(0) + gl.program_id(0))
        head = block // blocks
        query = (block - head * blocks) * ROWS
    return query, head, low, high


@gluon.jit
def copy(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full,
         empty, query, head, start, tiles, count, pieces, begin, end, cut, blocks, D1: gl.constexpr,
         SPLIT: gl.constexpr):
    ROOMS: gl.constexpr = q_full.shape[0]
    GROUPS: gl.constexpr = q0.shape[0] // ROOMS
    SLOTS: gl.constexpr = k0.shape[0]
    TILE: gl.constexpr = k0.shape[1]
    SIZE: gl.constexpr = k_desc0.block_type.nbytes + (k_desc1.block_type.nbytes if D1 > 0 else 0)
    V_SIZE: gl.constexpr = v_desc0.block_type.nbytes + (v_desc1.block_type.nbytes if D1 > 0 else 0)
    Q_SIZE: gl.constexpr = q_desc0.block_type.nbytes + (q_desc1.block_type.nbytes if D1 > 0 else 0)
    D0: gl.constexpr = k0.shape[3]
    slot = 0
    phase = 1
    for i in range(count):
        query, head, low, high = piece(i, query, head, tiles, pieces, begin, end, cut, blocks, GROUPS * 64, SPLIT)
        # A slot holds the keys of a step and the values of the step before: they are used, and given back, together.
        for step in range(high - low + 1):
            mbarrier.wait(empty.index(slot), phase)
            # The last tile first.
            token = start + gl.where(step == 0, high - 1, low + step - 1) * TILE
            more = step < high - low
            mbarrier.arrive(k_full.index(slot), pred=step == high - low)
            mbarrier.expect(k_full.index(slot), SIZE, pred=more)
            tma.async_copy_global_to_shared(k_desc0, [token, head, 0], k_full.index(slot), k0.index(slot), pred=more)
            if D1 > 0:
                tma.async_copy_global_to_shared(k_desc1, [token, head, D0], k_full.index(slot), k1.index(slot),
                                                pred=more)
            if step == 0:
                room = i % ROOMS
                full = q_full.index(room)
                mbarrier.wait(q_empty.index(room), (i // ROOMS & 1) ^ 1)
                mbarrier.expect(full, GROUPS * Q_SIZE)
                for group in gl.static_range(GROUPS):
                    row = query + group * 64
                    place = room * GROUPS + group
                    tma.async_copy_global_to_shared(q_desc0, [row, head, 0], full, q0.index(place))
                    if D1 > 0:
                        tma.async_copy_global_to_shared(q_desc1, [row, head, D0], full, q1.index(place))
            token = start + gl.where(step <= 1, high - 1, low + step - 2) * TILE
            late = step > 0
            mbarrier.arrive(v_full.index(slot), pred=step == 0)
            mbarrier.expect(v_full.index(slot), V_SIZE, pred=late)
            tma.async_copy_global_to_shared(v_desc0, [token, head, 0], v_full.index(slot), v0.index(slot), pred=late)
            if D1 > 0:
                tma.async_copy_global_to_shared(v_desc1, [token, head, D0], v_full.index(slot), v1.index(slot),
                                                pred=late)
            slot, phase = advance(slot, phase, SLOTS)


@gluon.jit
def exp2(x):
    """Where it is written: as plain arithmetic it would be put off until the sums of the last tile have ended."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def start_scores(q0, q1, k0, k1, zero, D1: gl.constexpr):
    TILE: gl.constexpr = k0.shape[0]
    D0: gl.constexpr = k0.shape[2]
    score = warpgroup_mma(q0, k0.reshape([TILE, D0]).permute((1, 0)), zero, use_acc=False, is_async=True)
    if D1 > 0:
        score = warpgroup_mma(q1, k1.reshape([TILE, D1]).permute((1, 0)), score, is_async=True)
    return score


@gluon.jit
def write(acc0, acc1, total, out_ptr, first, last, head, HEADS: gl.constexpr, D: gl.constexpr, D0: gl.constexpr,
          D1: gl.constexpr):
    layout0: gl.constexpr = acc0.type.layout
    scale = 1.0 / total
    out = out_ptr + (first.to(gl.int64) * HEADS + head) * D
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout0))[:, None]
    cols = gl.arange(0, D0, layout=gl.SliceLayout(0, layout0))[None, :]
    acc0 = acc0 * gl.convert_layout(scale, gl.SliceLayout(1, layout0))[:, None]
    gl.store(out + rows * (HEADS * D) + cols, acc0.to(out_ptr.dtype.element_ty),
             mask=(rows < last - first) & (cols < D))
    if D1 > 0:
        layout1: gl.constexpr = acc1.type.layout
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout1))[:, None]
        cols = D0 + gl.arange(0, acc1.shape[1], layout=gl.SliceLayout(0, layout1))[None, :]
        acc1 = acc1 * gl.convert_layout(scale, gl.SliceLayout(1, layout1))[:, None]
        gl.store(out + rows * (HEADS * D) + cols, acc1.to(out_ptr.dtype.element_ty),
                 mask=(rows < last - first) & (cols < D))


@gluon.jit
def keep(acc0, acc1, top, total, part_ptr, place, GROUP: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr,
         D0: gl.constexpr, D1: gl.constexpr):
    """Leave the sums of some tiles of keys for `merge`, with their maximum and total of weights behind them."""
    layout0: gl.constexpr = acc0.type.layout
    layout: gl.constexpr = top.type.layout
    part = part_ptr + place * (ROWS * (D + 2))
    rows = GROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout0))[:, None]
    cols = gl.arange(0, D0, layout=gl.SliceLayout(0, layout0))[None, :]
    gl.store(part + rows * D + cols, acc0, mask=cols < D)
    if D1 > 0:
        layout1: gl.constexpr = acc1.type.layout
        rows = GROUP * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout1))[:, None]
        cols = D0 + gl.arange(0, acc1.shape[1], layout=gl.SliceLayout(0, layout1))[None, :]
        gl.store(part + rows * D + cols, acc1, mask=cols < D)
    rows = ROWS * D + GROUP * 64 + gl.arange(0, 64, layout=layout)
    gl.store(part + rows, top)
    gl.store(part + ROWS + rows, total)


@gluon.jit
def attend(q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale, query, last, head,
           keys, tiles, GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, D1: gl.constexpr):
    GROUPS: gl.constexpr = q0.shape[0]
    SLOTS: gl.constexpr = k0.shape[0]
    TILE: gl.constexpr = k0.shape[1]
    D0: gl.constexpr = k0.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    layout0: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D0, 16])
    layout1: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    weights0: gl.constexpr = gl.DotOperandLayout(0, layout0, 2)
    weights1: gl.constexpr = gl.DotOperandLayout(0, layout1, 2)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    if tiles > 0:
        zero = gl.zeros([64, TILE], gl.float32, layout=layout)
        acc0 = gl.zeros([64, D0], gl.float32, layout=layout0)
        acc1 = gl.zeros([64, 16], gl.float32, layout=layout1)
        mbarrier.wait(q_full.index(0), 0)
        mine0 = q0.index(GROUP).reshape([64, D0])
        mine1 = q1.index(GROUP).reshape([64, D1 if D1 > 0 else D0])
        mbarrier.wait(k_full.index(0), 0)
        score = start_scores(mine0, mine1, k0.index(0), k1.index(0), zero, D1)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(empty.index(0))
        token = (tiles - 1) * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
        score = gl.where((token < keys)[None, :], score, -float("inf"))
        # Every tile has a key, so the maximum is finite.
        top = gl.max(score, axis=1) * scale
        p = exp2(score * scale - top[:, None])
        total = gl.sum(p, axis=1)
        p = p.to(dtype)
        slot, phase = advance(0, 0, SLOTS)
        turn_phase = 1 if GROUP == 0 else 0
        for _ in range(1, tiles):
            mbarrier.wait(k_full.index(slot), phase)
            if GROUPS > 1:
                mbarrier.wait(turn.index(GROUP), turn_phase)
                turn_phase ^= 1
            score = start_scores(mine0, mine1, k0.index(slot), k1.index(slot), zero, D1)
            mbarrier.wait(v_full.index(slot), phase)
            p0 = gl.convert_layout(p, weights0)
            acc0 = warpgroup_mma(p0, v0.index(slot).reshape([TILE, D0]), acc0, is_async=True)
            if D1 > 0:
                p1 = gl.convert_layout(p, weights1)
                acc1 = warpgroup_mma(p1, v1.index(slot).reshape([TILE, D1]), acc1, is_async=True)
            if GROUPS > 1:
                mbarrier.arrive(turn.index((GROUP + 1) % GROUPS))
            score = warpgroup_mma_wait(2 if D1 > 0 else 1, deps=[score])
            peak = gl.maximum(top, gl.max(score, axis=1) * scale)
            decay = exp2(top - peak)
            top = peak
            p = exp2(score * scale - peak[:, None])
            total = total * decay + gl.sum(p, axis=1)
            # Long since here: a loop that the exponentials above are not moved across.
            mbarrier.wait(v_full.index(slot), phase)
            if D1 > 0:
                acc0, acc1, p0 = warpgroup_mma_wait(0, deps=[acc0, acc1, p0])
                acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, layout1))[:, None]
            else:
                acc0, p0 = warpgroup_mma_wait(0, deps=[acc0, p0])
            mbarrier.arrive(empty.index(slot))
            acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, layout0))[:, None]
            p = p.to(dtype)
            slot, phase = advance(slot, phase, SLOTS)
        mbarrier.wait(v_full.index(slot), phase)
        acc0 = warpgroup_mma(gl.convert_layout(p, weights0), v0.index(slot).reshape([TILE, D0]), acc0, is_async=True)
        if D1 > 0:
            p1 = gl.convert_layout(p, weights1)
            acc1 = warpgroup_mma(p1, v1.index(slot).reshape([TILE, D1]), acc1, is_async=True)
            acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
        else:
            acc0 = warpgroup_mma_wait(0, deps=[acc0])
        write(acc0, acc1, total, out_ptr, query + GROUP * 64, last, head, HEADS, D, D0, D1)


@gluon.jit
def soften(score, top, total, acc0, acc1, scale, dtype: gl.constexpr, D1: gl.constexpr):
    """The weights of a tile, and the sums so far as its maximum has them."""
    peak = gl.maximum(top, gl.max(score, axis=1) * scale)
    decay = exp2(top - peak)
    acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, acc0.type.layout))[:, None]
    if D1 > 0:
        acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, acc1.type.layout))[:, None]
    p = exp2(score * scale - peak[:, None])
    return p.to(dtype), peak, total * decay + gl.sum(p, axis=1), acc0, acc1


@gluon.jit
def halve(p):
    """The weights of the first and of the second half of a tile's keys."""
    return gl.split(gl.permute(p.reshape([64, 2, p.shape[1] // 2]), (0, 2, 1)))


@gluon.jit
def narrow_sums(p, v1, acc1, D1: gl.constexpr):
    """Those of up to eight columns, by the products of a warp: a warpgroup's would take as long as many columns."""
    layout: gl.constexpr = acc1.type.layout
    TILE: gl.constexpr = v1.shape[0]
    if D1 > 0:
        # Two chains, each half as long.
        first, second = halve(p)
        values = v1.reshape([TILE, 8])
        a = values.slice(0, TILE // 2).load(gl.DotOperandLayout(1, layout, 2))
        b = values.slice(TILE // 2, TILE // 2).load(gl.DotOperandLayout(1, layout, 2))
        more = gl.zeros([64, 8], gl.float32, layout=layout)
        acc1 = mma_v2(gl.convert_layout(first, gl.DotOperandLayout(0, layout, 2)), a, acc1)
        acc1 += mma_v2(gl.convert_layout(second, gl.DotOperandLayout(0, layout, 2)), b, more)
    return acc1


@gluon.jit
def attend_piece(q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, scale, keys, low, high, i, slot,
                 phase, turn_phase, dtype: gl.constexpr, GROUP: gl.constexpr, D1: gl.constexpr):
    """Sums, maximum and total of weights of the i-th queries over the tiles of keys from low to high."""
    ROOMS: gl.constexpr = q_full.shape[0]
    GROUPS: gl.constexpr = q0.shape[0] // ROOMS
    SLOTS: gl.constexpr = k0.shape[0]
    TILE: gl.constexpr = k0.shape[1]
    D0: gl.constexpr = k0.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    layout0: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D0, 16])
    layout1: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8])
    weights0: gl.constexpr = gl.DotOperandLayout(0, layout0, 2)
    zero = gl.zeros([64, TILE], gl.float32, layout=layout)
    acc0 = gl.zeros([64, D0], gl.float32, layout=layout0)
    acc1 = gl.zeros([64, 8], gl.float32, layout=layout1)
    top = gl.full([64], -float("inf"), gl.float32, layout=gl.SliceLayout(1, layout))
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, layout))
    room = i % ROOMS
    mbarrier.wait(q_full.index(room), i // ROOMS & 1)
    mine0 = q0.index(room * GROUPS + GROUP).reshape([64, D0])
    mine1 = q1.index(room * GROUPS + GROUP).reshape([64, D1 if D1 > 0 else D0])
    mbarrier.wait(k_full.index(slot), phase)
    score = start_scores(mine0, mine1, k0.index(slot), k1.index(slot), zero, D1)
    score = warpgroup_mma_wait(0, deps=[score])
    mbarrier.arrive(empty.index(slot))
    token = (high - 1) * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    # Every tile has a key, so the maximum is finite.
    score = gl.where((token < keys)[None, :], score, -float("inf"))
    slot, phase = advance(slot, phase, SLOTS)
    for _ in range(low + 1, high):
        p, top, total, acc0, acc1 = soften(score, top, total, acc0, acc1, scale, dtype, D1)
        mbarrier.wait(v_full.index(slot), phase)
        acc1 = narrow_sums(p, v1.index(slot), acc1, D1)
        mbarrier.wait(k_full.index(slot), phase)
        mbarrier.wait(turn.index(GROUP), turn_phase)
        turn_phase ^= 1
        # The scores start while the second half of the sums is under way: the first has left them registers.
        first, second = halve(p)
        first = gl.convert_layout(first, weights0)
        second = gl.convert_layout(second, weights0)
        values = v0.index(slot).reshape([TILE, D0])
        sums = warpgroup_mma(first, values.slice(0, TILE // 2), acc0, is_async=True)
        sums = warpgroup_mma(second, values.slice(TILE // 2, TILE // 2), sums, is_async=True)
        first = warpgroup_mma_wait(1, deps=[first])
        score = start_scores(mine0, mine1, k0.index(slot), k1.index(slot), zero, D1)
        mbarrier.arrive(turn.index((GROUP + 1) % GROUPS))
        score, acc0, second = warpgroup_mma_wait(0, deps=[score, sums, second])
        mbarrier.arrive(empty.index(slot))
        slot, phase = advance(slot, phase, SLOTS)
    mbarrier.arrive(q_empty.index(room))
    p, top, total, acc0, acc1 = soften(score, top, total, acc0, acc1, scale, dtype, D1)
    mbarrier.wait(v_full.index(slot), phase)
    acc1 = narrow_sums(p, v1.index(slot), acc1, D1)
    p0 = gl.convert_layout(p, weights0)
    sums = warpgroup_mma(p0, v0.index(slot).reshape([TILE, D0]), acc0, is_async=True)
    acc0, p0 = warpgroup_mma_wait(0, deps=[sums, p0])
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.arrive(empty.index(slot))
    slot, phase = advance(slot, phase, SLOTS)
    return acc0, acc1, top, total, slot, phase, turn_phase


@gluon.jit
def attend_three(q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, out_ptr, part_ptr, scale, query,
                 last, head, keys, tiles, count, pieces, begin, end, cut, blocks, GROUP: gl.constexpr,
                 HEADS: gl.constexpr, D: gl.constexpr, D1: gl.constexpr, SPLIT: gl.constexpr):
    """A warpgroup adds the values of a tile and starts the scores of the next; while it takes their softmax, the other
    two have the tensor cores. Scores take the registers that weights have left: three warpgroups find room."""
    ROWS: gl.constexpr = q0.shape[0] // q_full.shape[0] * 64
    D0: gl.constexpr = k0.shape[3]
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    slot = 0
    phase = 0
    turn_phase = 1 if GROUP == 0 else 0
    if SPLIT:
        for i in range(count):
            query, head, low, high = piece(i, query, head, tiles, pieces, begin, end, cut, blocks, ROWS, SPLIT)
            acc0, acc1, top, total, slot, phase, turn_phase = attend_piece(
                q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, scale, keys, low, high, i, slot,
                phase, turn_phase, dtype, GROUP, D1)
            if high - low < tiles:
                # A program has at most one piece with the end of a block of queries and one with the start.
                place = 2 * gl.program_id(0) + gl.where(low == 0, 1, 0)
                keep(acc0, acc1, top, total, part_ptr, place, GROUP, ROWS, D, D0, D1)
            else:
                write(acc0, acc1, total, out_ptr, query + GROUP * 64, last, head, HEADS, D, D0, D1)
    elif count > 0:
        acc0, acc1, top, total, slot, phase, turn_phase = attend_piece(
            q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, scale, keys, 0, tiles, 0, slot,
            phase, turn_phase, dtype, GROUP, D1)
        write(acc0, acc1, total, out_ptr, query + GROUP * 64, last, head, HEADS, D, D0, D1)


# Counts change from batch to batch: they must not make another specialization.
COUNTS = ["sequences", "queries", "keys", "cut"]


@gluon.jit(do_not_specialize=COUNTS)
def attention_forward_kernel(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, bounds_q_ptr, bounds_k_ptr, out_ptr,
                             part_ptr, scale, sequences, queries, keys, cut, HEADS: gl.constexpr, D: gl.constexpr,
                             D1: gl.constexpr, GROUPS: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr,
                             ONE: gl.constexpr, REGISTERS: gl.constexpr):
    ROWS: gl.constexpr = 64 * GROUPS
    ROOMS: gl.constexpr = 2 if SPLIT else 1  # for queries
    TILE: gl.constexpr = k_desc0.block_type.shape[0]
    D0: gl.constexpr = k_desc0.block_type.shape[2]
    block = gl.program_id(0)
    head = gl.program_id(1)
    start = 0
    last = queries
    query = block * ROWS
    if not ONE:
        # Sequence s starts at block bounds[s] // ROWS + s, which leaves each of them enough.
        low = 0
        high = sequences - 1
        while low < high:
            middle = (low + high + 1) // 2
            here = gl.load(bounds_q_ptr + middle) // ROWS + middle <= block
            low = gl.where(here, middle, low)
            high = gl.where(here, high, middle - 1)
        first = gl.load(bounds_q_ptr + low)
        last = gl.load(bounds_q_ptr + low + 1)
        start = gl.load(bounds_k_ptr + low)
        keys = gl.load(bounds_k_ptr + low + 1) - start
        query = first + (block - (first // ROWS + low)) * ROWS
    tiles = gl.where(query < last, gl.cdiv(keys, TILE), 0)
    count = gl.where(tiles > 0, 1, 0)
    blocks = 0
    pieces = 0
    begin = 0
    end = 0
    if SPLIT:
        gdc_launch_dependents()
        # Programs share the tiles of the first `cut` blocks of queries evenly, and take the others in turn.
        tiles = gl.cdiv(keys, TILE)
        blocks = gl.cdiv(queries, ROWS)
        begin, end = share(block, cut * tiles, gl.num_programs(0))
        pieces = gl.where(begin < end, (end - 1) // tiles - begin // tiles + 1, 0)
        count = pieces + gl.cdiv(gl.maximum(blocks * HEADS - cut - block, 0), gl.num_programs(0))

    q0 = gl.allocate_shared_memory(q_desc0.dtype, [ROOMS * GROUPS, 64, 1, D0], q_desc0.layout)
    k0 = gl.allocate_shared_memory(k_desc0.dtype, [SLOTS, TILE, 1, D0], k_desc0.layout)
    v0 = gl.allocate_shared_memory(v_desc0.dtype, [SLOTS, TILE, 1, D0], v_desc0.layout)
    if D1 > 0:
        q1 = gl.allocate_shared_memory(q_desc1.dtype, [ROOMS * GROUPS, 64, 1, D1], q_desc1.layout)
        k1 = gl.allocate_shared_memory(k_desc1.dtype, [SLOTS, TILE, 1, D1], k_desc1.layout)
        v1 = gl.allocate_shared_memory(v_desc1.dtype, [SLOTS, TILE, 1, v_desc1.block_type.shape[2]], v_desc1.layout)
    else:
        q1 = q0
        k1 = k0
        v1 = v0
    q_full = gl.allocate_shared_memory(gl.int64, [ROOMS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [ROOMS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(turn.index(group), count=1)
    for room in gl.static_range(ROOMS):
        mbarrier.init(q_full.index(room), count=1)
        mbarrier.init(q_empty.index(room), count=GROUPS)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    if GROUPS == 3:
        gl.warp_specialize([
            (attend_three, (q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, out_ptr, part_ptr,
                            scale, query, last, head, keys, tiles, count, pieces, begin, end, cut, blocks, 0, HEADS, D,
                            D1, SPLIT)),
            (attend_three, (q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, out_ptr, part_ptr,
                            scale, query, last, head, keys, tiles, count, pieces, begin, end, cut, blocks, 1, HEADS, D,
                            D1, SPLIT)),
            (attend_three, (q0, q1, k0, k1, v0, v1, q_full, q_empty, k_full, v_full, empty, turn, out_ptr, part_ptr,
                            scale, query, last, head, keys, tiles, count, pieces, begin, end, cut, blocks, 2, HEADS, D,
                            D1, SPLIT)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, q_empty,
                    k_full, v_full, empty, query, head, start, tiles, count, pieces, begin, end, cut, blocks, D1,
                    SPLIT)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 32])  # fmt: skip
    elif GROUPS == 1:
        gl.warp_specialize([
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, q_empty,
                    k_full, v_full, empty, query, head, start, tiles, count, pieces, begin, end, cut, blocks, D1,
                    SPLIT)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1)),
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 1, HEADS, D, D1)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, q_empty,
                    k_full, v_full, empty, query, head, start, tiles, count, pieces, begin, end, cut, blocks, D1,
                    SPLIT)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip


@triton.jit
def take(part_ptr, program, first, last, rows, cols, ROWS: tl.constexpr, D: tl.constexpr):
    # The piece with which a block starts is the last of its program, the others are the first.
    part = part_ptr + (2 * program + tl.where(program == first, 1, 0)) * (ROWS * (D + 2))
    there = program <= last
    sums = tl.load(part + rows[:, None] * D + cols[None, :], mask=(cols < D)[None, :] & there, other=0.0)
    top = tl.load(part + ROWS * D + rows, mask=there & (rows >= 0), other=-float("inf"))
    return sums, top, tl.load(part + ROWS * D + ROWS + rows, mask=there & (rows >= 0), other=0.0)


@triton.jit
def both(sums, top, total, more, peak, rest):
    high = tl.maximum(top, peak)
    a = tl.exp2(top - high)
    b = tl.exp2(peak - high)
    return sums * a[:, None] + more * b[:, None], high, total * a + rest * b


@triton.jit
def owner(step, each, more):
    """The program that `share` gives the step to."""
    late = more + (step - more * (each + 1)) // tl.maximum(each, 1)
    return tl.where(step < more * (each + 1), step // (each + 1), late)


@triton.jit(do_not_specialize=["queries", "keys", "cut"])
def merge(part_ptr, out_ptr, queries, keys, cut, HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
          TILE: tl.constexpr, PROGRAMS: tl.constexpr, LINES: tl.constexpr, WIDTH: tl.constexpr):
    """Some queries of a block whose tiles of keys several programs had: their sums, each as the maximum has them."""
    block = tl.program_id(0)
    rows = tl.program_id(1) * LINES + tl.arange(0, LINES)
    cols = tl.arange(0, WIDTH)
    tiles = tl.cdiv(keys, TILE)
    each = cut * tiles // PROGRAMS
    more = cut * tiles - each * PROGRAMS
    first = owner(block * tiles, each, more)
    last = owner(block * tiles + tiles - 1, each, more)
    gdc_wait()
    if last > first:
        sums = tl.zeros([LINES, WIDTH], tl.float32)
        top = tl.full([LINES], -float("inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        for program in range(first, last + 1, 4):
            # On their way together. The first is there, so the maximum is finite.
            sums0, top0, total0 = take(part_ptr, program, first, last, rows, cols, ROWS, D)
            sums1, top1, total1 = take(part_ptr, program + 1, first, last, rows, cols, ROWS, D)
            sums2, top2, total2 = take(part_ptr, program + 2, first, last, rows, cols, ROWS, D)
            sums3, top3, total3 = take(part_ptr, program + 3, first, last, rows, cols, ROWS, D)
            sums, top, total = both(sums, top, total, sums0, top0, total0)
            sums, top, total = both(sums, top, total, sums1, top1, total1)
            sums, top, total = both(sums, top, total, sums2, top2, total2)
            sums, top, total = both(sums, top, total, sums3, top3, total3)
        blocks = tl.cdiv(queries, ROWS)
        head = block // blocks
        query = (block - head * blocks) * ROWS + rows
        out = out_ptr + (query.to(tl.int64) * HEADS + head)[:, None] * D + cols[None, :]
        tl.store(out, (sums / total[:, None]).to(out_ptr.dtype.element_ty),
                 mask=(query < queries)[:, None] & (cols < D)[None, :])


def descriptor(x: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * width) if width > 8 else 0, element_bitwidth=16,
                                  rank=3)
    return TensorDescriptor.from_tensor(x, [rows, 1, width], layout)


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                cu_seqlens_k: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        sequences = cu_seqlens_q.shape[0] - 1
        d0, d1 = halves(dim)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        c = config(queries, sequences, heads, dim)
        groups, tile, slots = c["GROUPS"], c["TILE"], c["SLOTS"]
        keys, rows = k.shape[0], 64 * groups
        narrow = 8 if groups == 3 and d1 else 0
        split = c["SPLIT"] and sequences == 1
        grid = (max(1, triton.cdiv(queries, rows)) if sequences == 1 else queries // rows + sequences, heads)
        cut, part = 0, out
        if split:
            cut = shared(grid[0] * heads, triton.cdiv(keys, tile))
            grid = (UNITS, 1)
            part = torch.empty(2 * UNITS * rows * (dim + 2) if cut else 1, dtype=torch.float32, device=q.device)
        attention_forward_kernel[grid](
            descriptor(q, 64, d0), descriptor(q, 64, d1 or d0), descriptor(k, tile, d0), descriptor(k, tile, d1 or d0),
            descriptor(v, tile, d0), descriptor(v, tile, narrow or d1 or d0), cu_seqlens_q, cu_seqlens_k, out, part,
            dim**-0.5 * 1.4426950408889634, sequences, queries, keys, cut, HEADS=heads, D=dim, D1=d1, GROUPS=groups,
            SLOTS=slots, SPLIT=split, ONE=sequences == 1, REGISTERS={1: 232, 2: 240, 3: 160}[groups], num_warps=4,
            maxnreg={1: 128, 2: 168, 3: 128}[groups],
        )  # fmt: skip
        if cut:
            merge[(cut, rows // 16)](
                part, out, queries, keys, cut, HEADS=heads, D=dim, ROWS=rows, TILE=tile, PROGRAMS=UNITS, LINES=16,
                WIDTH=d0 + d0 if d1 else d0, num_warps=4, launch_pdl=True,
            )  # fmt: skip
        return out
