"""Gated delta rule, in Gluon for Hopper. Few tokens: one kernel goes token by token, some columns of a head's state in
registers. More: two kernels over chunks of 64 tokens. `prepare`, parallel over chunks and heads, inverts a chunk's
triangular system and leaves matrices T and P, keys and queries in scratch. `walk` holds 64 columns of a head's state,
transposed, in registers: the register operand of wgmma, it never passes through shared memory. A ring of TMA tiles
runs two chunks ahead: R = v - e (S k), [w, o] = R [T, P], S = keep S + w k, out = o + e (S q); S q
runs while R is made, and out is made while S is updated.
Operands of the products are fp16, for bf16 ones miss the state's bound of 2e-3 (so |state|, |v| < 65504); keys are
scaled by powers of two, thus exact. Sums, gates and the state are fp32. Expected: 0.7 us a chunk behind 9 us: 1 token,
32 heads 5.2 us (S 0.17), 512 tokens 15.5 us (0.22), 1029 tokens 21 us (0.29), 8192 tokens 130 us (0.33)."""

import torch
import triton
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

CHUNK = 64


def config(tokens: int, sequences: int) -> dict:
    """How to run: `sequences` counts heads of all sequences."""
    if tokens <= 12:
        cols, warps = (8, 1) if sequences * 16 <= 4096 else (32, 4)
        return {"chunked": False, "cols": cols, "warps": warps}
    # 168 registers let three programs of `prepare` share a multiprocessor; two are enough for one wave of few.
    chunks = sequences * triton.cdiv(tokens, CHUNK)
    return {"chunked": True, "stages": 3, "pdl": True, "registers": 255 if chunks <= 264 else 168}


@gluon.jit
def log_decay(a, rate, bias, softplus_beta, threshold):
    x = a.to(gl.float32) + bias
    e = gl.exp(x * softplus_beta)
    # The logarithm of one plus something small loses that: two terms of its series do not.
    soft = gl.where(e < 1e-3, e - 0.5 * e * e, gl.log(1.0 + e)) / softplus_beta
    return rate * gl.where(x * softplus_beta > threshold, x, soft)


@gluon.jit
def merge(x, a_tile, x_tile, row, col, SIZE: gl.constexpr, square: gl.constexpr, operand: gl.constexpr):
    """The inverse of diagonal blocks of twice SIZE, from those of SIZE (x) and the matrix (a, below the diagonal)."""
    below = (row // (2 * SIZE) == col // (2 * SIZE)) & (row // SIZE > col // SIZE)
    half = x.to(gl.float16)
    x_tile.store(half)
    fence_async_shared()
    zero = gl.zeros([row.shape[0], row.shape[0]], gl.float32, layout=square)
    z = warpgroup_mma(gl.convert_layout(half, operand), a_tile, zero, use_acc=False, is_async=True)
    z = warpgroup_mma_wait(num_outstanding=0, deps=[z])
    z = gl.convert_layout(gl.where(below, -z, 0.0).to(gl.float16), operand)
    x = warpgroup_mma(z, x_tile, x, is_async=True)
    return warpgroup_mma_wait(num_outstanding=0, deps=[x])


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens", "chunks"])
def prepare(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, b_ptr, k2_ptr, q2_ptr, tp_ptr, grow_ptr, keep_ptr, scale,
            softplus_beta, threshold, tokens, chunks, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr,
            CHUNK: gl.constexpr, UNIT: gl.constexpr, PDL: gl.constexpr):
    if PDL:
        gdc_launch_dependents()
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, square, 2)
    rows: gl.constexpr = gl.SliceLayout(1, square)
    cols: gl.constexpr = gl.SliceLayout(0, square)
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    k_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, K], swizzled)
    q_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, K], swizzled)
    a_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, CHUNK], swizzled)
    x_tile = gl.allocate_shared_memory(gl.float16, [CHUNK, CHUNK], swizzled)

    head = gl.program_id(0)
    chunk = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    GROUP: gl.constexpr = HEADS // KEY_HEADS
    key_head = head // GROUP
    first = chunk * CHUNK
    index = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, wide))
    dim = gl.arange(0, K, layout=gl.SliceLayout(0, wide))
    inside = (first + index < tokens)[:, None]
    key = ((batch * tokens + first + index) * KEY_HEADS + key_head)[:, None] * K + dim[None, :]
    k = gl.load(k_ptr + key, mask=inside, other=0.0).to(gl.float32)
    q = gl.load(q_ptr + key, mask=inside, other=0.0).to(gl.float32)
    row = gl.arange(0, CHUNK, layout=rows)
    col = gl.arange(0, CHUNK, layout=cols)
    place = batch * tokens * HEADS + head + (first + col) * HEADS
    live = first + col < tokens
    a = gl.load(a_ptr + place, mask=live, other=0.0)
    b = gl.load(b_ptr + place, mask=live, other=0.0).to(gl.float32)
    b_row = gl.load(b_ptr + batch * tokens * HEADS + head + (first + row) * HEADS, mask=first + row < tokens, other=0.0)
    rate = -gl.exp(gl.load(rate_ptr + head).to(gl.float32))
    bias = gl.load(bias_ptr + head).to(gl.float32)
    step = gl.where(live, log_decay(a, rate, bias, softplus_beta, threshold), 0.0)
    row2, col2 = row[:, None], col[None, :]
    g = gl.sum(gl.where(row2 >= col2, step[None, :], 0.0), axis=1)
    last = gl.sum(step, axis=0)
    g_col = gl.convert_layout(g, cols)

    # Keys are scaled by a power of two, which is exact; `rest` is what is missing from length one. Queries and `grow`
    # are negative: both of walk's uses are then multiply-adds.
    if UNIT:
        norm = gl.rsqrt(gl.sum(k * k, axis=1) + 1e-6)
        power = (norm.to(gl.int32, bitcast=True) & 0x7F800000).to(gl.float32, bitcast=True)
        rest = norm / power
        k2 = (k * power[:, None]).to(gl.float16)
        q2 = (q * (gl.rsqrt(gl.sum(q * q, axis=1) + 1e-6) * -scale / rest)[:, None]).to(gl.float16)
    else:
        rest = gl.full([CHUNK], 1.0, gl.float32, layout=gl.SliceLayout(1, wide))
        k2 = k.to(gl.float16)
        q2 = (q * -scale).to(gl.float16)
    k_tile.store(k2)
    q_tile.store(q2)
    fence_async_shared()
    zero = gl.zeros([CHUNK, CHUNK], gl.float32, layout=square)
    overlap = warpgroup_mma(k_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    scores = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    tile = (batch * chunks + chunk) * KEY_HEADS + key_head
    if head % GROUP == 0:
        at = (tile * CHUNK + index[:, None]) * K + dim[None, :]
        gl.store(k2_ptr + at, k2)
        gl.store(q2_ptr + at, q2)
    # Later tokens are cut off before the exponential, which could overflow.
    rest_row = gl.convert_layout(rest, rows)
    since = gl.exp(gl.where(row2 >= col2, g[:, None] - g_col[None, :], -float("inf")))
    since = since * rest_row[:, None] * gl.convert_layout(rest, cols)[None, :]
    overlap = warpgroup_mma_wait(num_outstanding=1, deps=[overlap])
    beta = 1.0 / (1.0 + gl.exp(-b))
    beta_row = 1.0 / (1.0 + gl.exp(-b_row.to(gl.float32)))
    overlap = gl.where(row2 > col2, overlap * since * beta_row[:, None], 0.0)
    a_tile.store(overlap.to(gl.float16))
    x = gl.where(row2 == col2, 1.0, gl.where(row2 // 2 == col2 // 2, -overlap, 0.0))
    scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores])
    scores = (scores * -since).to(gl.float16)
    x = merge(x, a_tile, x_tile, row2, col2, 2, square, operand)
    x = merge(x, a_tile, x_tile, row2, col2, 4, square, operand)
    x = merge(x, a_tile, x_tile, row2, col2, 8, square, operand)
    x = merge(x, a_tile, x_tile, row2, col2, 16, square, operand)
    x = merge(x, a_tile, x_tile, row2, col2, 32, square, operand) * beta[None, :]
    x_tile.store(x.to(gl.float16))
    fence_async_shared()
    p = warpgroup_mma(gl.convert_layout(scores, operand), x_tile, zero, use_acc=False, is_async=True)
    tile = (batch * chunks + chunk) * HEADS + head
    at_row = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, flat))[:, None]
    at = (tile * 2 * CHUNK + at_row) * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, flat))[None, :]
    x = (x * (gl.exp(last - g) * rest_row)[:, None]).to(gl.float16)
    gl.store(tp_ptr + at, gl.convert_layout(x, flat))
    gl.store(grow_ptr + tile * CHUNK + row, -gl.exp(g) * rest_row)
    gl.store(keep_ptr + tile, gl.exp(last))
    p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
    gl.store(tp_ptr + at + CHUNK * CHUNK, gl.convert_layout(p.to(gl.float16), flat))


@gluon.jit
def start_copies(v_desc, k_desc, q_desc, tp_desc, v_ring, k_ring, q_ring, tp_ring, full, batch, tile, key_tile, col,
                 chunk, chunks, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, CHUNK: gl.constexpr,
                 STAGES: gl.constexpr):
    """Ask for the tiles of a chunk; nothing happens past the last one."""
    slot = chunk % STAGES
    wanted = chunk < chunks
    bar = full.index(slot)
    size: gl.constexpr = v_desc.block_type.nbytes + tp_desc.block_type.nbytes
    mbarrier.expect(bar, size + k_desc.block_type.nbytes + q_desc.block_type.nbytes, pred=wanted)
    key = (key_tile + chunk * KEY_HEADS) * CHUNK
    tma.async_copy_global_to_shared(k_desc, [key, 0], bar, k_ring.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(v_desc, [batch, chunk * CHUNK, col], bar, v_ring.index(slot), pred=wanted)
    pair = (tile + chunk * HEADS) * (2 * CHUNK)
    tma.async_copy_global_to_shared(tp_desc, [pair, 0], bar, tp_ring.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(q_desc, [key, 0], bar, q_ring.index(slot), pred=wanted)


@gluon.jit(do_not_specialize=["chunks"])
def walk(v_desc, k_desc, q_desc, tp_desc, out_desc, grow_ptr, keep_ptr, pool_ptr, rows_ptr, chunks,
         KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr, V: gl.constexpr, CHUNK: gl.constexpr,
         COLS: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr):
    square: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], warps_per_cta=[4, 1], instr_shape=[16, 2 * CHUNK, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, square, 2)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, 1, CHUNK, COLS], v_desc.layout)
    k_ring = gl.allocate_shared_memory(gl.float16, [STAGES, CHUNK, K], k_desc.layout)
    q_ring = gl.allocate_shared_memory(gl.float16, [STAGES, CHUNK, K], q_desc.layout)
    tp_ring = gl.allocate_shared_memory(gl.float16, [STAGES, 2 * CHUNK, CHUNK], tp_desc.layout)
    out_tile = gl.allocate_shared_memory(v_desc.dtype, [1, CHUNK, COLS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    fence_async_shared()

    # A negative row: the sequence starts from zero and its state is kept nowhere.
    head = gl.program_id(1)
    batch = gl.program_id(2)
    first = gl.program_id(0) * COLS
    source: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    dim = gl.arange(0, K, layout=gl.SliceLayout(1, source))[:, None]
    col = first + gl.arange(0, COLS, layout=gl.SliceLayout(0, source))[None, :]
    row = gl.load(rows_ptr + batch).to(gl.int64)
    state_ptr = pool_ptr + ((gl.maximum(row, 0) * HEADS + head) * K + dim) * V + col
    state = gl.load(state_ptr, mask=(dim >= 0) & (row >= 0), other=0.0)
    state = gl.convert_layout(gl.permute(state, (1, 0)), wide)
    if PDL:
        gdc_wait()

    tile = batch * chunks * HEADS + head
    key_tile = batch * chunks * KEY_HEADS + head // (HEADS // KEY_HEADS)
    first += head * V
    for early in gl.static_range(STAGES - 1):
        start_copies(v_desc, k_desc, q_desc, tp_desc, v_ring, k_ring, q_ring, tp_ring, full, batch, tile, key_tile,
                     first, early, chunks, KEY_HEADS, HEADS, CHUNK, STAGES)  # fmt: skip
    index = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, square))
    grow = gl.load(grow_ptr + tile * CHUNK + index)
    keep = gl.load(keep_ptr + tile)
    zero = gl.zeros([COLS, CHUNK], gl.float32, layout=square)
    zeros = gl.zeros([COLS, 2 * CHUNK], gl.float32, layout=wide)
    for chunk in range(chunks):
        here = chunk % STAGES
        k = k_ring.index(here)
        half = gl.convert_layout(state.to(gl.float16), operand)
        mbarrier.wait(full.index(here), (chunk // STAGES) & 1)
        x = warpgroup_mma(half, k.permute((1, 0)), zero, use_acc=False, is_async=True)
        y = warpgroup_mma(half, q_ring.index(here).permute((1, 0)), zero, use_acc=False, is_async=True)
        # Every warp is through with the slot of the chunk before.
        gl.thread_barrier()
        start_copies(v_desc, k_desc, q_desc, tp_desc, v_ring, k_ring, q_ring, tp_ring, full, batch, tile, key_tile,
                     first, chunk + STAGES - 1, chunks, KEY_HEADS, HEADS, CHUNK, STAGES)  # fmt: skip
        v = v_ring.index(here).reshape([CHUNK, COLS]).permute((1, 0)).load(square)
        x = warpgroup_mma_wait(num_outstanding=1, deps=[x])
        # Here, beside S q: before the wait ptxas would make it a wait for both products.
        state = state * keep
        r = gl.convert_layout((v.to(gl.float32) + x * grow[None, :]).to(gl.float16), gl.DotOperandLayout(0, wide, 2))
        both = warpgroup_mma(r, tp_ring.index(here).permute((1, 0)), zeros, use_acc=False, is_async=True)
        y = warpgroup_mma_wait(num_outstanding=1, deps=[y])
        both = warpgroup_mma_wait(num_outstanding=0, deps=[both])
        w, out = gl.split(gl.permute(gl.reshape(both, (COLS, 2, CHUNK)), (0, 2, 1)))
        w = gl.convert_layout(w.to(gl.float16), gl.DotOperandLayout(0, wide, 2))
        state = warpgroup_mma(w, k, state, is_async=True)
        out = gl.convert_layout(out, square) + y * grow[None, :]
        there = gl.minimum(chunk + 1, chunks - 1) * HEADS + tile
        grow = gl.load(grow_ptr + there * CHUNK + index)
        keep = gl.load(keep_ptr + there)
        tma.store_wait(0)
        out_tile.reshape([CHUNK, COLS]).permute((1, 0)).store(out.to(v_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [batch, chunk * CHUNK, first], out_tile)
        state = warpgroup_mma_wait(num_outstanding=0, deps=[state])
    tma.store_wait(0)
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))
    gl.store(state_ptr, gl.permute(gl.convert_layout(state, gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])), (1, 0)),
             mask=(dim >= 0) & (row >= 0))  # fmt: skip


@gluon.jit(do_not_specialize=["tokens"])
def step_by_step(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, rows_ptr, out_ptr, scale,
                 softplus_beta, threshold, tokens, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr,
                 V: gl.constexpr, COLS: gl.constexpr, UNIT: gl.constexpr, num_warps: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [128 // COLS, COLS // 4], [num_warps, 1], [1, 0])
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    dim = gl.arange(0, K, layout=gl.SliceLayout(1, layout))
    col = gl.program_id(0) * COLS + gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))
    row = gl.load(rows_ptr + batch).to(gl.int64)
    state_ptr = pool_ptr + ((gl.maximum(row, 0) * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    state = gl.load(state_ptr, mask=(dim[:, None] >= 0) & (row >= 0), other=0.0)
    rate = -gl.exp(gl.load(rate_ptr + head).to(gl.float32))
    bias = gl.load(bias_ptr + head).to(gl.float32)
    for token in range(0, tokens):
        key = (batch * tokens + token) * KEY_HEADS + head // (HEADS // KEY_HEADS)
        place = (batch * tokens + token) * HEADS + head
        q = gl.load(q_ptr + key * K + dim).to(gl.float32)
        k = gl.load(k_ptr + key * K + dim).to(gl.float32)
        v = gl.load(v_ptr + place * V + col).to(gl.float32)
        b = gl.load(b_ptr + place).to(gl.float32)
        step = log_decay(gl.load(a_ptr + place), rate, bias, softplus_beta, threshold)
        # All sums at once: out is read from the state before this token's key, which adds its part.
        both = gl.sum(q * k, axis=0)
        if UNIT:
            norm = gl.rsqrt(gl.sum(k * k, axis=0) + 1e-6)
            unit = gl.rsqrt(gl.sum(q * q, axis=0) + 1e-6)
        else:
            norm = 1.0
            unit = 1.0
        keep = gl.exp(step)
        recalled = gl.sum(state * k[:, None], axis=0) * (norm * keep)
        seen = gl.sum(state * q[:, None], axis=0) * keep
        v = (v - recalled) / (1.0 + gl.exp(-b))
        state = state * keep + k[:, None] * (v * norm)[None, :]
        out = (seen + v * (both * norm)) * (unit * scale)
        gl.store(out_ptr + place * V + col, out.to(out_ptr.dtype.element_ty))
    gl.store(state_ptr, state, mask=(dim[:, None] >= 0) & (row >= 0))


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
            step_by_step[(value // how["cols"], heads, batch)](
                A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, out, key**-0.5, self.beta,
                self.threshold, tokens, V=value, COLS=how["cols"], UNIT=self.unit, num_warps=how["warps"], **sizes,
            )  # fmt: skip
            return {"out": out}
        chunks = triton.cdiv(tokens, CHUNK)
        wide = torch.empty((2, batch, chunks, key_heads, CHUNK, key), dtype=torch.float16, device=v.device)
        pair = torch.empty((batch, chunks, heads, 2 * CHUNK, CHUNK), dtype=torch.float16, device=v.device)
        grow = torch.empty((batch, chunks, heads, CHUNK), dtype=torch.float32, device=v.device)
        keep = torch.empty((batch, chunks, heads), dtype=torch.float32, device=v.device)
        pdl = how["pdl"]
        prepare[(heads, chunks, batch)](
            A_log, a, dt_bias, q, k, b, wide[0], wide[1], pair, grow, keep, key**-0.5, self.beta,
            self.threshold, tokens, chunks, CHUNK=CHUNK, UNIT=self.unit, PDL=pdl, num_warps=4,
            maxnreg=how["registers"], **sizes,
        )  # fmt: skip
        tokenwise = [batch, tokens, heads * value]
        strides = [tokens * heads * value, heads * value, 1]
        layout, layout3 = (gl.NVMMASharedLayout(128, 16, rank=rank) for rank in (2, 3))
        walk[(value // 64, heads, batch)](
            TensorDescriptor(v, tokenwise, strides, [1, CHUNK, 64], layout3),
            TensorDescriptor.from_tensor(wide[0].view(-1, key), [CHUNK, key], layout),
            TensorDescriptor.from_tensor(wide[1].view(-1, key), [CHUNK, key], layout),
            TensorDescriptor.from_tensor(pair.view(-1, CHUNK), [2 * CHUNK, CHUNK], layout),
            TensorDescriptor(out, tokenwise, strides, [1, CHUNK, 64], layout3), grow, keep, initial_state,
            initial_state_indices, chunks, V=value, CHUNK=CHUNK, COLS=64, STAGES=how["stages"], PDL=pdl, num_warps=4,
            launch_pdl=pdl, **sizes,
        )  # fmt: skip
        return {"out": out}
