"""Attention over whole sequences laid one after the other: warp-specialized, in Gluon for Hopper.

A program takes 64 queries a consumer warpgroup of one head; one warp brings keys and values by TMA, each in a ring.
Three warpgroups take turns: one multiplies while the others take exponentials (attend_plain, head sizes to 80). Two,
with more registers: a warpgroup starts the scores of the next tile and the sums of this one together (attend). The
ragged tile of keys comes first, the others need no mask. Head size 72 is 64 and 16, of which TMA fills 8 with zeros.
A step of 64 x 128 at head size 72, a multiprocessor's cycles: products 704 (320 + 256 + 128 for the 16 wide), of which
576 are useful; exponentials 512; instructions 450. Keys and values from the L2: 45 KB for 2 or 3 warpgroups' steps.
Measured: head size 128 S 0.72 (power). Predicted: 49596 x 16 x 72: 18 ms, S 0.64; 8184 x 4 x 72: 135 us, S 0.57;
1352 x 30 sequences: 145 us, S 0.44.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

UNITS = 132  # multiprocessors


def config(queries: int, sequences: int, heads: int, dim: int) -> dict[str, int]:
    """GROUPS consumer warpgroups of 64 queries, TILE keys a step, SLOTS of the ring; queries KEPT in registers, TURNS
    at the tensor cores; PLAIN: a warpgroup's products do not overlap its softmax; POLY: a quarter of the exponentials
    by multiplications."""
    # Time of a wave of programs, in units of what one warpgroup's share takes on a full multiprocessor; a program's
    # start, hidden where two are resident, takes as long as about four tiles of keys.
    start = 4 / triton.cdiv(queries, sequences * 128)
    best, groups = None, 2
    for count, wave, resident in ((3, 3.0, 1), (2, 2.1, 1), (1, 2.4, 2)):
        if count == 3 and dim > 80 or resident == 2 and dim > 80:
            continue
        programs = (triton.cdiv(queries, 64 * count) + sequences - 1) * heads
        time = triton.cdiv(programs, UNITS * resident) * (wave + (start if resident == 1 else 0))
        if resident == 2 and programs <= UNITS:
            time = 1.5 + start
        if best is None or time < best:
            best, groups = time, count
    if groups == 3:
        # Other structures: {"GROUPS": 3, "TILE": 64, "SLOTS": 4, "KEPT": True, "TURNS": True} (S 0.46 on shapes 7, 8),
        # and two warpgroups as below.
        return {"GROUPS": 3, "TILE": 128, "SLOTS": 4, "KEPT": False, "TURNS": True, "PLAIN": True, "POLY": False}
    return {"GROUPS": groups, "TILE": 128, "SLOTS": 3 if groups == 2 else 2, "KEPT": False,
            "TURNS": groups == 2}


@gluon.jit
def advance(slot, phase, SLOTS: gl.constexpr):
    last = slot == SLOTS - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty,
         query, head, begin, tiles, D1: gl.constexpr):
    GROUPS: gl.constexpr = q0.shape[0]
    SLOTS: gl.constexpr = k0.shape[0]
    TILE: gl.constexpr = k0.shape[1]
    SIZE: gl.constexpr = k_desc0.block_type.nbytes + (k_desc1.block_type.nbytes if D1 > 0 else 0)
    Q_SIZE: gl.constexpr = q_desc0.block_type.nbytes + (q_desc1.block_type.nbytes if D1 > 0 else 0)
    D0: gl.constexpr = k0.shape[3]
    if tiles > 0:
        mbarrier.expect(q_full, GROUPS * Q_SIZE)
        for group in gl.static_range(GROUPS):
            tma.async_copy_global_to_shared(q_desc0, [query + group * 64, head, 0], q_full, q0.index(group))
            if D1 > 0:
                tma.async_copy_global_to_shared(q_desc1, [query + group * 64, head, D0], q_full, q1.index(group))
    slot = 0
    phase = 1
    # A slot holds the keys of a step and the values of the step before: they are used, and given back, together.
    for step in range(tiles + 1):
        mbarrier.wait(empty.index(slot), phase)
        # The last tile first.
        token = begin + gl.where(step == 0, tiles - 1, step - 1) * TILE
        more = step < tiles
        mbarrier.expect(k_full.index(slot), SIZE, pred=more)
        tma.async_copy_global_to_shared(k_desc0, [token, head, 0], k_full.index(slot), k0.index(slot), pred=more)
        if D1 > 0:
            tma.async_copy_global_to_shared(k_desc1, [token, head, D0], k_full.index(slot), k1.index(slot), pred=more)
        token = begin + gl.where(step <= 1, tiles - 1, step - 2) * TILE
        late = step > 0
        mbarrier.arrive(v_full.index(slot), pred=step == 0)
        mbarrier.expect(v_full.index(slot), SIZE, pred=late)
        tma.async_copy_global_to_shared(v_desc0, [token, head, 0], v_full.index(slot), v0.index(slot), pred=late)
        if D1 > 0:
            tma.async_copy_global_to_shared(v_desc1, [token, head, D0], v_full.index(slot), v1.index(slot), pred=late)
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
    share = 1.0 / total
    out = out_ptr + (first.to(gl.int64) * HEADS + head) * D
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout0))[:, None]
    cols = gl.arange(0, D0, layout=gl.SliceLayout(0, layout0))[None, :]
    acc0 = acc0 * gl.convert_layout(share, gl.SliceLayout(1, layout0))[:, None]
    gl.store(out + rows * (HEADS * D) + cols, acc0.to(out_ptr.dtype.element_ty),
             mask=(rows < last - first) & (cols < D))
    if D1 > 0:
        layout1: gl.constexpr = acc1.type.layout
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout1))[:, None]
        cols = D0 + gl.arange(0, D1, layout=gl.SliceLayout(0, layout1))[None, :]
        acc1 = acc1 * gl.convert_layout(share, gl.SliceLayout(1, layout1))[:, None]
        gl.store(out + rows * (HEADS * D) + cols, acc1.to(out_ptr.dtype.element_ty),
                 mask=(rows < last - first) & (cols < D))


@gluon.jit
def attend(q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale, query, last, head,
           keys, tiles, GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, D1: gl.constexpr, KEPT: gl.constexpr,
           TURNS: gl.constexpr):
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
        mbarrier.wait(q_full, 0)
        if KEPT:
            mine0 = q0.index(GROUP).reshape([64, D0]).load(gl.DotOperandLayout(0, layout, 2))
        else:
            mine0 = q0.index(GROUP).reshape([64, D0])
        if D1 == 0:
            mine1 = mine0
        elif KEPT:
            mine1 = q1.index(GROUP).reshape([64, D1]).load(gl.DotOperandLayout(0, layout, 2))
        else:
            mine1 = q1.index(GROUP).reshape([64, D1])
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
            if TURNS:
                mbarrier.wait(turn.index(GROUP), turn_phase)
                turn_phase ^= 1
            score = start_scores(mine0, mine1, k0.index(slot), k1.index(slot), zero, D1)
            mbarrier.wait(v_full.index(slot), phase)
            p0 = gl.convert_layout(p, weights0)
            acc0 = warpgroup_mma(p0, v0.index(slot).reshape([TILE, D0]), acc0, is_async=True)
            if D1 > 0:
                p1 = gl.convert_layout(p, weights1)
                acc1 = warpgroup_mma(p1, v1.index(slot).reshape([TILE, D1]), acc1, is_async=True)
            if TURNS:
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
def weights(score, peak, scale, POLY: gl.constexpr):
    """2 ** (score * scale - peak). With POLY a quarter comes from a cubic, not from the unit for exponentials,
    with an error of 7.5e-5."""
    x = score * scale - peak[:, None]
    if not POLY:
        return exp2(x)
    else:
        return gl.inline_asm_elementwise(
            """{ .reg .f32 t, n, f; .reg .b32 i, j;
            ex2.approx.ftz.f32 $0, $4; ex2.approx.ftz.f32 $1, $5; ex2.approx.ftz.f32 $2, $6;
            max.f32 f, $7, 0fC2FC0000; add.rn.f32 t, f, 0f4B400000; sub.rn.f32 n, t, 0f4B400000; sub.rn.f32 f, f, n;
            fma.rn.f32 n, f, 0f3D61FBB0, 0f3E786F0D; fma.rn.f32 n, n, f, 0f3F31798D; fma.rn.f32 n, n, f, 0f3F7FFB49;
            mov.b32 i, t; mov.b32 j, n; shl.b32 i, i, 23; add.s32 i, i, j; mov.b32 $3, i; }""",
            "=f,=f,=f,=f,f,f,f,f", [x], dtype=gl.float32, is_pure=False, pack=4)


@gluon.jit
def soften(score, top, total, acc0, acc1, scale, dtype: gl.constexpr, D1: gl.constexpr, POLY: gl.constexpr):
    """The weights of a tile, and the sums so far as its maximum has them."""
    peak = gl.maximum(top, gl.max(score, axis=1) * scale)
    decay = exp2(top - peak)
    acc0 = acc0 * gl.convert_layout(decay, gl.SliceLayout(1, acc0.type.layout))[:, None]
    if D1 > 0:
        acc1 = acc1 * gl.convert_layout(decay, gl.SliceLayout(1, acc1.type.layout))[:, None]
    p = weights(score, peak, scale, POLY)
    return p.to(dtype), peak, total * decay + gl.sum(p, axis=1), acc0, acc1


@gluon.jit
def start_sums(p, v0, v1, acc0, acc1, D1: gl.constexpr):
    TILE: gl.constexpr = v0.shape[0]
    D0: gl.constexpr = v0.shape[2]
    p0 = gl.convert_layout(p, gl.DotOperandLayout(0, acc0.type.layout, 2))
    next0 = warpgroup_mma(p0, v0.reshape([TILE, D0]), acc0, is_async=True)
    next1 = acc1
    if D1 > 0:
        p1 = gl.convert_layout(p, gl.DotOperandLayout(0, acc1.type.layout, 2))
        next1 = warpgroup_mma(p1, v1.reshape([TILE, D1]), acc1, is_async=True)
    return p0, next0, next1


@gluon.jit
def attend_plain(q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale, query, last, head,
                 keys, tiles, GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr, D1: gl.constexpr,
                 POLY: gl.constexpr, TURNS: gl.constexpr):
    """A warpgroup adds the values of a tile and starts the scores of the next; while it takes their softmax, the other
    two have the tensor cores. Scores take the registers that weights have left: three warpgroups find room."""
    GROUPS: gl.constexpr = q0.shape[0]
    SLOTS: gl.constexpr = k0.shape[0]
    TILE: gl.constexpr = k0.shape[1]
    D0: gl.constexpr = k0.shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    layout0: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D0, 16])
    layout1: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    if tiles > 0:
        zero = gl.zeros([64, TILE], gl.float32, layout=layout)
        acc0 = gl.zeros([64, D0], gl.float32, layout=layout0)
        acc1 = gl.zeros([64, 16], gl.float32, layout=layout1)
        top = gl.full([64], -float("inf"), gl.float32, layout=gl.SliceLayout(1, layout))
        total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, layout))
        mbarrier.wait(q_full, 0)
        mine0 = q0.index(GROUP).reshape([64, D0])
        mine1 = q1.index(GROUP).reshape([64, D1 if D1 > 0 else D0])
        mbarrier.wait(k_full.index(0), 0)
        score = start_scores(mine0, mine1, k0.index(0), k1.index(0), zero, D1)
        score = warpgroup_mma_wait(0, deps=[score])
        mbarrier.arrive(empty.index(0))
        token = (tiles - 1) * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
        # Every tile has a key, so the maximum is finite.
        score = gl.where((token < keys)[None, :], score, -float("inf"))
        slot, phase = advance(0, 0, SLOTS)
        turn_phase = 1 if GROUP == 0 else 0
        for _ in range(1, tiles):
            p, top, total, acc0, acc1 = soften(score, top, total, acc0, acc1, scale, dtype, D1, POLY)
            mbarrier.wait(v_full.index(slot), phase)
            mbarrier.wait(k_full.index(slot), phase)
            if TURNS:
                mbarrier.wait(turn.index(GROUP), turn_phase)
                turn_phase ^= 1
            p0, next0, next1 = start_sums(p, v0.index(slot), v1.index(slot), acc0, acc1, D1)
            if D1 > 0:
                acc0, acc1, p0 = warpgroup_mma_wait(0, deps=[next0, next1, p0])
            else:
                acc0, p0 = warpgroup_mma_wait(0, deps=[next0, p0])
            score = start_scores(mine0, mine1, k0.index(slot), k1.index(slot), zero, D1)
            if TURNS:
                mbarrier.arrive(turn.index((GROUP + 1) % GROUPS))
            score = warpgroup_mma_wait(0, deps=[score])
            mbarrier.arrive(empty.index(slot))
            slot, phase = advance(slot, phase, SLOTS)
        p, top, total, acc0, acc1 = soften(score, top, total, acc0, acc1, scale, dtype, D1, POLY)
        mbarrier.wait(v_full.index(slot), phase)
        p0, next0, next1 = start_sums(p, v0.index(slot), v1.index(slot), acc0, acc1, D1)
        if D1 > 0:
            acc0, acc1 = warpgroup_mma_wait(0, deps=[next0, next1])
        else:
            acc0 = warpgroup_mma_wait(0, deps=[next0])
        write(acc0, acc1, total, out_ptr, query + GROUP * 64, last, head, HEADS, D, D0, D1)


# Counts change from batch to batch: they must not make another specialization.
@gluon.jit(do_not_specialize=["sequences"])
def attention_forward_kernel(q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, bounds_q_ptr, bounds_k_ptr, out_ptr,
                             scale, sequences, HEADS: gl.constexpr, D: gl.constexpr, D1: gl.constexpr,
                             GROUPS: gl.constexpr, SLOTS: gl.constexpr, KEPT: gl.constexpr,
                             TURNS: gl.constexpr, PLAIN: gl.constexpr, POLY: gl.constexpr, REGISTERS: gl.constexpr):
    ROWS: gl.constexpr = 64 * GROUPS
    TILE: gl.constexpr = k_desc0.block_type.shape[0]
    D0: gl.constexpr = k_desc0.block_type.shape[2]
    block = gl.program_id(0)
    head = gl.program_id(1)
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
    begin = gl.load(bounds_k_ptr + low)
    keys = gl.load(bounds_k_ptr + low + 1) - begin
    query = first + (block - (first // ROWS + low)) * ROWS
    tiles = gl.where(query < last, gl.cdiv(keys, TILE), 0)

    q0 = gl.allocate_shared_memory(q_desc0.dtype, [GROUPS, 64, 1, D0], q_desc0.layout)
    k0 = gl.allocate_shared_memory(k_desc0.dtype, [SLOTS, TILE, 1, D0], k_desc0.layout)
    v0 = gl.allocate_shared_memory(v_desc0.dtype, [SLOTS, TILE, 1, D0], v_desc0.layout)
    if D1 > 0:
        q1 = gl.allocate_shared_memory(q_desc1.dtype, [GROUPS, 64, 1, D1], q_desc1.layout)
        k1 = gl.allocate_shared_memory(k_desc1.dtype, [SLOTS, TILE, 1, D1], k_desc1.layout)
        v1 = gl.allocate_shared_memory(v_desc1.dtype, [SLOTS, TILE, 1, D1], v_desc1.layout)
    else:
        q1 = q0
        k1 = k0
        v1 = v0
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(turn.index(group), count=1)
    mbarrier.init(q_full, count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    if PLAIN:
        gl.warp_specialize([
            (attend_plain, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1, POLY, TURNS)),
            (attend_plain, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 1, HEADS, D, D1, POLY, TURNS)),
            (attend_plain, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 2, HEADS, D, D1, POLY, TURNS)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, k_full,
                    v_full, empty, query, head, begin, tiles, D1)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip
    elif GROUPS == 1:
        gl.warp_specialize([
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1, KEPT, TURNS)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, k_full,
                    v_full, empty, query, head, begin, tiles, D1)),
        ], [1], [24])  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize([
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1, KEPT, TURNS)),
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 1, HEADS, D, D1, KEPT, TURNS)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, k_full,
                    v_full, empty, query, head, begin, tiles, D1)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 0, HEADS, D, D1, KEPT, TURNS)),
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 1, HEADS, D, D1, KEPT, TURNS)),
            (attend, (q0, q1, k0, k1, v0, v1, q_full, k_full, v_full, empty, turn, out_ptr, scale,
                       query, last, head, keys, tiles, 2, HEADS, D, D1, KEPT, TURNS)),
            (copy, (q_desc0, q_desc1, k_desc0, k_desc1, v_desc0, v_desc1, q0, q1, k0, k1, v0, v1, q_full, k_full,
                    v_full, empty, query, head, begin, tiles, D1)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip


def halves(size: int) -> tuple[int, int]:
    """The largest power of two in `size` and what a second block takes for the rest, at least 16 or nothing."""
    head = 1 << (size.bit_length() - 1)
    return head, max(16, triton.next_power_of_2(size - head)) if size > head else 0


def descriptor(x: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * width), element_bitwidth=16, rank=3)
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
        attention_forward_kernel[(queries // (64 * groups) + sequences, heads)](
            descriptor(q, 64, d0), descriptor(q, 64, d1 or d0), descriptor(k, tile, d0), descriptor(k, tile, d1 or d0),
            descriptor(v, tile, d0), descriptor(v, tile, d1 or d0), cu_seqlens_q, cu_seqlens_k, out,
            dim**-0.5 * 1.4426950408889634, sequences, HEADS=heads, D=dim, D1=d1, GROUPS=groups, SLOTS=slots,
            KEPT=c["KEPT"], TURNS=c["TURNS"], PLAIN=c.get("PLAIN", False), POLY=c.get("POLY", False),
            REGISTERS={1: 232, 2: 240, 3: 160}[groups], num_warps=4, maxnreg={1: 128, 2: 168, 3: 128}[groups],
        )  # fmt: skip
        return out
