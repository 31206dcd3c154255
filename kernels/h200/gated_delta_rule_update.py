"""Gated delta rule, in Gluon for Hopper. Few tokens: step_by_step goes token by token; a warp has 8 columns of a head's
state in registers, whole, so that nothing passes through shared memory, and all loads go out before the first is used.
More: two kernels over chunks of 64 tokens. `prepare`, parallel over chunks and heads, inverts a chunk's triangular
system and leaves matrices T and P, keys and queries in scratch. `walk` holds 64 columns of a head's state, transposed,
in registers: the register operand of wgmma, it never passes through shared memory. One warp brings tiles by TMA:
R = v - e (S k), [w, o] = R [T, P], S = keep S + w k, out = o + e (S q); what is not on the way to S hides behind it.
Operands of the products are fp16, for bf16 ones miss the state's bound of 2e-3 (so |state|, |v| < 65504); keys are
scaled by powers of two, thus exact. Sums, gates and the state are fp32. Bound: decode by memory, prompts by the chain
of chunks: 1024 cycles of products each (64 programs on 132 multiprocessors), before 1.4 us, now expected 0.75 us.
Expected: 256 sequences of 1 token 275 us (S 0.82), 32 of them 34 us (0.75), 512 tokens 23 us (0.15), 1029 tokens 38 us
(0.16), 8192 tokens 185 us (0.23)."""

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

CHUNK = 64


def config(tokens: int, sequences: int) -> dict:
    """How to run: `sequences` counts heads of all sequences."""
    if tokens <= 12:
        # 8 columns a warp; more warps a program where there are enough of them.
        return {"chunked": False, "cols": 8, "warps": 1 if sequences <= 256 else 4, "registers": 96}
    # 168 registers let three programs of `prepare` share a multiprocessor; two are enough for one wave of few. Where
    # there are more, one takes two heads that share keys. Beside one program of few registers a `walk` of two stages
    # finds room: it has then been launched, and has its state, when the last chunk is prepared.
    chunks = sequences * triton.cdiv(tokens, CHUNK)
    return {"chunked": True, "stages": 2 if chunks <= 160 else 3, "pdl": True,
            "registers": 232 if chunks <= 264 else 168, "share": 2 if chunks > 396 else 1}


@gluon.jit
def _log_decay(a, bias, rate, softplus_beta, threshold):
    x = a + bias
    e = gl.exp(x * softplus_beta)
    # The logarithm of one plus something small loses that: two terms of its series do not.
    soft = gl.where(e < 1e-3, e - 0.5 * e * e, gl.log(1.0 + e)) / softplus_beta
    return rate * gl.where(x * softplus_beta > threshold, x, soft)


@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _add(x, y):
    return x + y


@gluon.jit
def _merge(x, a_tile, x_tile, row, col, SIZE: gl.constexpr):
    """The inverse of diagonal blocks of twice SIZE, from those of SIZE (x) and the matrix (a, below the diagonal)."""
    layout: gl.constexpr = x.type.layout
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    half = x.to(gl.float16)
    x_tile.store(half)
    fence_async_shared()
    zero = gl.zeros([x.shape[0], x.shape[1]], gl.float32, layout=layout)
    z = warpgroup_mma(gl.convert_layout(half, operand), a_tile, zero, use_acc=False)
    below = (row // (2 * SIZE) == col // (2 * SIZE)) & (row // SIZE > col // SIZE)
    z = gl.where(below, 0.0 - z, 0.0)
    return warpgroup_mma(gl.convert_layout(z.to(gl.float16), operand), x_tile, x)


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens", "chunks", "share"])
def prepare(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, b_ptr, k_desc, q_desc, tp_desc, grow_ptr, keep_ptr, scale,
            softplus_beta, threshold, tokens, chunks, share, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr,
            K: gl.constexpr, UNIT: gl.constexpr, PDL: gl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    CHUNK: gl.constexpr = tp_desc.block_type.shape[0]
    GROUP: gl.constexpr = HEADS // KEY_HEADS
    LOG2E: gl.constexpr = 1.4426950408889634
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // K, K // 8], [4, 1], [1, 0])
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    cols: gl.constexpr = gl.SliceLayout(0, layout)
    # Every warp has all tokens: sums over them pass through no shared memory.
    flat: gl.constexpr = gl.BlockedLayout([CHUNK // 32], [32], [4], [0])
    k_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, K], k_desc.layout)
    q_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, K], q_desc.layout)
    a_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, CHUNK], tp_desc.layout)
    x_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, CHUNK], tp_desc.layout)
    vectors = gl.allocate_shared_memory(gl.float32, [4, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))

    first = gl.program_id(0) * share
    key_head = first // GROUP
    chunk = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    token = chunk * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(1, wide))
    dim = gl.arange(0, K, layout=gl.SliceLayout(0, wide))
    live = (token < tokens)[:, None] & (dim >= 0)[None, :]
    key = ((batch * tokens + token) * KEY_HEADS + key_head)[:, None] * K + dim[None, :]
    k = gl.load(k_ptr + key, mask=live, other=0.0).to(gl.float32)
    q = gl.load(q_ptr + key, mask=live, other=0.0).to(gl.float32)

    # Keys are scaled by a power of two, which is exact; `rest` is what is missing from length one. Queries and `grow`
    # are negative: both of walk's uses are then multiply-adds.
    if UNIT:
        norm = gl.rsqrt(gl.sum(k * k, axis=1) + 1e-6)
        power = (norm.to(gl.int32, bitcast=True) & 0x7F800000).to(gl.float32, bitcast=True)
        rest = norm / power
        k2 = (k * power[:, None]).to(gl.float16)
        q2 = (q * (gl.rsqrt(gl.sum(q * q, axis=1) + 1e-6) * (0.0 - scale) / rest)[:, None]).to(gl.float16)
    else:
        rest = gl.full([CHUNK], 1.0, gl.float32, layout=gl.SliceLayout(1, wide))
        k2 = k.to(gl.float16)
        q2 = (q * (0.0 - scale)).to(gl.float16)
    k_tile.store(k2)
    q_tile.store(q2)
    fence_async_shared()
    rest = gl.convert_layout(rest, flat)
    zero = gl.zeros([CHUNK, CHUNK], gl.float32, layout=layout)
    if first % GROUP == 0:
        at = ((batch * chunks + chunk).to(gl.int32) * KEY_HEADS + key_head) * CHUNK
        tma.async_copy_shared_to_global(k_desc, [at, 0], k_tile)
        tma.async_copy_shared_to_global(q_desc, [at, 0], q_tile)

    index = gl.arange(0, CHUNK, layout=flat)
    row = gl.arange(0, CHUNK, layout=rows)[:, None]
    col = gl.arange(0, CHUNK, layout=cols)[None, :]
    for part in range(share):
        kk = warpgroup_mma(k_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
        qk = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
        kk, qk = warpgroup_mma_wait(0, deps=[kk, qk])
        head = first + part
        place = (batch * tokens + chunk * CHUNK + index) * HEADS + head
        there = chunk * CHUNK + index < tokens
        a = gl.load(a_ptr + place, mask=there, other=0.0).to(gl.float32)
        b = gl.load(b_ptr + place, mask=there, other=0.0).to(gl.float32)
        rate = (0.0 - LOG2E) * gl.exp(gl.load(rate_ptr + head).to(gl.float32))
        bias = gl.load(bias_ptr + head).to(gl.float32)
        step = gl.where(there, _log_decay(a, bias, rate, softplus_beta, threshold), 0.0)
        g = gl.associative_scan(step, 0, _add)
        last = gl.sum(step, axis=0)
        beta = 1.0 / (1.0 + gl.exp(0.0 - b))
        missing = gl.log2(rest)
        tile = (batch * chunks + chunk) * HEADS + head
        gl.store(grow_ptr + tile * CHUNK + index, (0.0 - _exp2(g)) * rest)
        gl.store(keep_ptr + tile, gl.exp2(last))
        vectors.index(0).store(g + missing)
        vectors.index(1).store(g - missing)
        vectors.index(2).store(beta)
        vectors.index(3).store(_exp2(last - g) * rest)

        # Later tokens are cut off before the exponential, which could overflow.
        since = vectors.index(0).load(rows)[:, None] - vectors.index(1).load(cols)[None, :]
        since = _exp2(gl.where(row >= col, since, -float("inf")))
        p = gl.convert_layout((qk * since).to(gl.float16), operand)
        a = gl.where(row > col, kk * since * vectors.index(2).load(rows)[:, None], 0.0)
        x = gl.where(row == col, 1.0, gl.where(row // 2 == col // 2, 0.0 - a, 0.0))
        tma.store_wait(0)
        a_tile.store(a.to(gl.float16))
        x = _merge(x, a_tile, x_tile, row, col, 2)
        x = _merge(x, a_tile, x_tile, row, col, 4)
        x = _merge(x, a_tile, x_tile, row, col, 8)
        x = _merge(x, a_tile, x_tile, row, col, 16)
        x = _merge(x, a_tile, x_tile, row, col, 32) * vectors.index(2).load(cols)[None, :]
        x_tile.store(x.to(gl.float16))
        a_tile.store((x * vectors.index(3).load(rows)[:, None]).to(gl.float16))
        fence_async_shared()
        at = tile.to(gl.int32) * (2 * CHUNK)
        tma.async_copy_shared_to_global(tp_desc, [at, 0], a_tile)
        p = warpgroup_mma(p, x_tile, zero, use_acc=False)
        x_tile.store((0.0 - p).to(gl.float16))
        fence_async_shared()
        tma.async_copy_shared_to_global(tp_desc, [at + CHUNK, 0], x_tile)
    tma.store_wait(0)


@gluon.jit
def _copy_in(k_desc, q_desc, tp_desc, v_desc, k_ring, q_ring, tp_ring, v_ring, full, empty, tile, key_tile, batch,
             first, chunks, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, PDL: gl.constexpr):
    STAGES: gl.constexpr = k_ring.shape[0]
    CHUNK: gl.constexpr = k_ring.shape[1]
    if PDL:
        tl.extra.cuda.gdc_wait()
    slot = 0
    phase = 1
    for chunk in range(chunks):
        mbarrier.wait(empty.index(slot), phase)
        bar = full.index(slot)
        mbarrier.expect(bar, k_desc.block_type.nbytes * 2 + tp_desc.block_type.nbytes + v_desc.block_type.nbytes)
        row = (key_tile + chunk * KEY_HEADS) * CHUNK
        tma.async_copy_global_to_shared(k_desc, [row, 0], bar, k_ring.index(slot))
        tma.async_copy_global_to_shared(v_desc, [batch, chunk * CHUNK, first], bar, v_ring.index(slot))
        tma.async_copy_global_to_shared(q_desc, [row, 0], bar, q_ring.index(slot))
        tma.async_copy_global_to_shared(tp_desc, [(tile + chunk * HEADS) * (2 * CHUNK), 0], bar, tp_ring.index(slot))
        last = slot == STAGES - 1
        phase = gl.where(last, phase ^ 1, phase)
        slot = gl.where(last, 0, slot + 1)


@gluon.jit
def _walk(k_ring, q_ring, tp_ring, v_ring, out_pair, full, empty, out_desc, grow_ptr, keep_ptr, state_ptr, kept, tile,
          batch, first, chunks, HEADS: gl.constexpr, V: gl.constexpr, PDL: gl.constexpr):
    STAGES: gl.constexpr = k_ring.shape[0]
    CHUNK: gl.constexpr = k_ring.shape[1]
    K: gl.constexpr = k_ring.shape[2]
    COLS: gl.constexpr = v_ring.shape[3]
    wide: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, K, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16])
    narrow: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    # The state is transposed: its columns are the rows of every product.
    col = gl.arange(0, COLS, layout=gl.SliceLayout(1, wide))
    dim = gl.arange(0, K, layout=gl.SliceLayout(0, wide))
    place = state_ptr + dim[None, :] * V + col[:, None]
    live = (dim[None, :] >= 0) & (col[:, None] >= 0) & kept
    state = gl.load(place, mask=live, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    index = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))
    next_grow = gl.load(grow_ptr + tile * CHUNK + index)
    next_keep = gl.load(keep_ptr + tile)
    zero = gl.zeros([COLS, CHUNK], gl.float32, layout=layout)
    half = gl.convert_layout(state.to(gl.float16), gl.DotOperandLayout(0, layout, 2))
    slot = 0
    phase = 0
    for chunk in range(chunks):
        grow, keep = next_grow, next_keep
        there = tile + gl.minimum(chunk + 1, chunks - 1) * HEADS
        mbarrier.wait(full.index(slot), phase)
        k = k_ring.index(slot)
        tp = tp_ring.index(slot)
        x = warpgroup_mma(half, k.permute((1, 0)), zero, use_acc=False, is_async=True)
        seen = warpgroup_mma(half, q_ring.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
        v = v_ring.index(slot).reshape([CHUNK, COLS]).permute((1, 0)).load(layout).to(gl.float32)
        next_grow = gl.load(grow_ptr + there * CHUNK + index)
        next_keep = gl.load(keep_ptr + there)
        x = warpgroup_mma_wait(1, deps=[x])
        r = gl.convert_layout((v + x * grow[None, :]).to(gl.float16), narrow)
        w = warpgroup_mma(r, tp.slice(0, CHUNK).permute((1, 0)), zero, use_acc=False, is_async=True)
        new = warpgroup_mma(r, tp.slice(CHUNK, CHUNK).permute((1, 0)), zero, use_acc=False, is_async=True)
        # Long since here: two loops between which the multiplications stay, behind products that they hide behind.
        mbarrier.wait(full.index(slot), phase)
        state = state * keep
        mbarrier.wait(full.index(slot), phase)
        w, seen, half = warpgroup_mma_wait(1, deps=[w, seen, half])
        w = gl.convert_layout(w.to(gl.float16), gl.DotOperandLayout(0, wide, 2))
        state = warpgroup_mma(w, k, state, is_async=True)
        new, r = warpgroup_mma_wait(1, deps=[new, r])
        # The tokens' output leaves while the state is updated.
        out = (new + seen * grow[None, :]).to(v_ring.dtype)
        tma.store_wait(1)
        staged = out_pair.index(chunk % 2)
        staged.reshape([CHUNK, COLS]).permute((1, 0)).store(out)
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [batch, chunk * CHUNK, first], staged)
        state, w = warpgroup_mma_wait(0, deps=[state, w])
        mbarrier.arrive(empty.index(slot))
        half = gl.convert_layout(state.to(gl.float16), gl.DotOperandLayout(0, layout, 2))
        last = slot == STAGES - 1
        phase = gl.where(last, phase ^ 1, phase)
        slot = gl.where(last, 0, slot + 1)
    gl.store(place, state, mask=live)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["chunks"])
def walk(v_desc, k_desc, q_desc, tp_desc, out_desc, grow_ptr, keep_ptr, pool_ptr, rows_ptr, chunks,
         KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
         PDL: gl.constexpr):
    head = gl.program_id(1)
    batch = gl.program_id(2)
    CHUNK: gl.constexpr = k_desc.block_type.shape[0]
    COLS: gl.constexpr = v_desc.block_type.shape[2]
    # A negative row: the sequence starts from zero and its state is kept nowhere.
    row = gl.load(rows_ptr + batch).to(gl.int64)
    state_ptr = pool_ptr + (gl.maximum(row, 0) * HEADS + head) * K * V + gl.program_id(0) * COLS
    tile = batch * chunks * HEADS + head
    key_tile = batch * chunks * KEY_HEADS + head // (HEADS // KEY_HEADS)
    first = head * V + gl.program_id(0) * COLS
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, CHUNK, K], k_desc.layout)
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [STAGES, CHUNK, K], q_desc.layout)
    tp_ring = gl.allocate_shared_memory(tp_desc.dtype, [STAGES, 2 * CHUNK, CHUNK], tp_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, CHUNK, COLS], v_desc.layout)
    out_pair = gl.allocate_shared_memory(out_desc.dtype, [2, 1, CHUNK, COLS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    gl.warp_specialize(
        [
            (_walk, (k_ring, q_ring, tp_ring, v_ring, out_pair, full, empty, out_desc, grow_ptr, keep_ptr, state_ptr,
                     row >= 0, tile, batch, first, chunks, HEADS, V, PDL)),
            (_copy_in, (k_desc, q_desc, tp_desc, v_desc, k_ring, q_ring, tp_ring, v_ring, full, empty, tile, key_tile,
                        batch, first, chunks, KEY_HEADS, HEADS, PDL)),
        ],
        [1],
        [24],
    )  # fmt: skip


@gluon.jit
def _token(q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key, place, dim, col, live, K: gl.constexpr, V: gl.constexpr):
    q = gl.load(q_ptr + key * K + dim, mask=live & (dim >= 0), other=0.0)
    k = gl.load(k_ptr + key * K + dim, mask=live & (dim >= 0), other=0.0)
    v = gl.load(v_ptr + place * V + col, mask=live & (col >= 0), other=0.0)
    return q, k, v, gl.load(a_ptr + place, mask=live, other=0.0), gl.load(b_ptr + place, mask=live, other=0.0)


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens"])
def step_by_step(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, rows_ptr, out_ptr, scale,
                 softplus_beta, threshold, tokens, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr,
                 V: gl.constexpr, COLS: gl.constexpr, UNIT: gl.constexpr):
    # A warp has whole columns, some rows next to each other a thread: nothing passes from warp to warp.
    LANES: gl.constexpr = COLS // 4
    layout: gl.constexpr = gl.BlockedLayout([K * LANES // 32, 4], [32 // LANES, LANES], [1, gl.num_warps()], [1, 0])
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    row = gl.load(rows_ptr + batch).to(gl.int64)
    dim = gl.arange(0, K, layout=gl.SliceLayout(1, layout))
    WIDE: gl.constexpr = COLS * gl.num_warps()
    col = gl.program_id(0) * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(0, layout))
    key = batch * tokens * KEY_HEADS + head // (HEADS // KEY_HEADS)
    place = batch * tokens * HEADS + head
    # All that does not wait for the row goes before the state, and stays there: the loop is not unrolled.
    next_q, next_k, next_v, next_a, next_b = _token(q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key, place, dim, col, tokens > 0,
                                                    K, V)
    rate = gl.load(rate_ptr + head)
    bias = gl.load(bias_ptr + head)
    # A negative row: the sequence starts from zero and its state is kept nowhere.
    state_ptr = pool_ptr + ((gl.maximum(row, 0) * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    kept = (dim[:, None] >= 0) & (col[None, :] >= 0) & (row >= 0)
    state = gl.load(state_ptr, mask=kept, other=0.0)
    rate = -gl.exp(rate.to(gl.float32))
    bias = bias.to(gl.float32)
    for token in range(0, tokens):
        q, k, v = next_q.to(gl.float32), next_k.to(gl.float32), next_v.to(gl.float32)
        a, b = next_a.to(gl.float32), next_b.to(gl.float32)
        key += KEY_HEADS
        next_q, next_k, next_v, next_a, next_b = _token(q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key, place + HEADS, dim, col,
                                                        token + 1 < tokens, K, V)
        keep = gl.exp(_log_decay(a, bias, rate, softplus_beta, threshold))
        # All sums at once: out is read from the state before this token's key, which adds its part.
        both = gl.sum(q * k, axis=0)
        if UNIT:
            norm = gl.rsqrt(gl.sum(k * k, axis=0) + 1e-6)
            unit = gl.rsqrt(gl.sum(q * q, axis=0) + 1e-6)
        else:
            norm = 1.0
            unit = 1.0
        recalled = gl.sum(state * k[:, None], axis=0) * (norm * keep)
        seen = gl.sum(state * q[:, None], axis=0) * keep
        v = (v - recalled) / (1.0 + gl.exp(-b))
        state = state * keep + k[:, None] * (v * norm)[None, :]
        out = (seen + v * (both * norm)) * (unit * scale)
        gl.store(out_ptr + place * V + col, out.to(out_ptr.dtype.element_ty))
        place += HEADS
    gl.store(state_ptr, state, mask=kept)


class Model(torch.nn.Module):
    def __init__(self, softplus_beta: float, softplus_threshold: float, use_qk_l2norm: bool):
        super().__init__()
        self.beta, self.threshold, self.unit = softplus_beta, softplus_threshold, use_qk_l2norm

    def forward(self, A_log: torch.Tensor, a: torch.Tensor, dt_bias: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
                v: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor,
                initial_state_indices: torch.Tensor) -> dict[str, torch.Tensor]:
        (batch, tokens, heads, value), (key_heads, key) = v.shape, k.shape[2:]
        out = torch.empty_like(v)
        how = config(tokens, batch * heads)
        sizes = {"KEY_HEADS": key_heads, "HEADS": heads, "K": key}
        if not how["chunked"]:
            step_by_step[(value // (how["cols"] * how["warps"]), heads, batch)](
                A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, out, key**-0.5, self.beta,
                self.threshold, tokens, V=value, COLS=how["cols"], UNIT=self.unit, num_warps=how["warps"],
                maxnreg=how["registers"], **sizes,
            )  # fmt: skip
            return {"out": out}
        chunks = triton.cdiv(tokens, CHUNK)
        wide = torch.empty((2, batch, chunks, key_heads, CHUNK, key), dtype=torch.float16, device=v.device)
        pair = torch.empty((batch, chunks, heads, 2 * CHUNK, CHUNK), dtype=torch.float16, device=v.device)
        grow = torch.empty((batch, chunks, heads, CHUNK), dtype=torch.float32, device=v.device)
        keep = torch.empty((batch, chunks, heads), dtype=torch.float32, device=v.device)
        pdl = how["pdl"]
        share = how["share"] if heads // key_heads % how["share"] == 0 else 1
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        deep = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
        keys = TensorDescriptor.from_tensor(wide[0].view(-1, key), [CHUNK, key], layout)
        queries = TensorDescriptor.from_tensor(wide[1].view(-1, key), [CHUNK, key], layout)
        prepare[(heads // share, chunks, batch)](
            A_log, a, dt_bias, q, k, b, keys, queries,
            TensorDescriptor.from_tensor(pair.view(-1, CHUNK), [CHUNK, CHUNK], layout), grow, keep, key**-0.5,
            self.beta, self.threshold, tokens, chunks, share, UNIT=self.unit, PDL=pdl, num_warps=4,
            maxnreg=how["registers"], **sizes,
        )  # fmt: skip
        tokenwise = [batch, tokens, heads * value]
        strides = [tokens * heads * value, heads * value, 1]
        walk[(value // 64, heads, batch)](
            TensorDescriptor(v, tokenwise, strides, [1, CHUNK, 64], deep), keys, queries,
            TensorDescriptor.from_tensor(pair.view(-1, CHUNK), [2 * CHUNK, CHUNK], layout),
            TensorDescriptor(out, tokenwise, strides, [1, CHUNK, 64], deep), grow, keep, initial_state,
            initial_state_indices, chunks, V=value, STAGES=how["stages"], PDL=pdl, num_warps=4, maxnreg=136,
            launch_pdl=pdl, **sizes,
        )  # fmt: skip
        return {"out": out}
