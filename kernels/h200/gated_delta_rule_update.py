"""Gated delta rule. Few tokens: one kernel goes token by token, some columns of a head's state in registers. More: two
kernels over chunks of 64 tokens. `prepare`, parallel over chunks and heads, inverts a chunk's triangular system and
leaves matrices T and P, keys and queries in scratch. `walk` holds 64 columns of a head's state, transposed, in
registers: the register operand of wgmma, it never passes through shared memory. TMA brings tiles two chunks ahead:
R = v - e (S k), [w, o] = R [T, P], S = keep S + w k, out = o + e (S q).
Operands of the products are fp16, for bf16 ones miss the state's bound of 2e-3 (so |state|, |v| < 65504); keys are
scaled by powers of two, thus exact. Sums, gates and the state are fp32. Bound: decode by two dependent loads from
memory, prompts by the chain of chunks, 0.8 to 0.95 us each, behind 9 us of launches, preparation and state. Expected:
1 token, 32 heads 5.2 us (S 0.17), 512 tokens 17 us (0.20), 1029 tokens 25 us (0.25), 8192 tokens 150 us (0.29)."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CHUNK = 64


def config(tokens: int, sequences: int) -> dict:
    """How to run: `sequences` counts heads of all sequences."""
    if tokens <= 12:
        cols, warps = (8, 1) if sequences * 16 <= 4096 else (32, 4)
        return {"chunked": False, "cols": cols, "warps": warps}
    # 168 registers let three programs of `prepare` share a multiprocessor; two are enough for one wave of few.
    chunks = sequences * triton.cdiv(tokens, CHUNK)
    return {"chunked": True, "stages": 3, "pdl": True, "registers": 255 if chunks <= 264 else 168}


@triton.jit
def _log_decay(a_ptr, place, live, rate, bias, softplus_beta, threshold):
    x = tl.load(a_ptr + place, mask=live, other=0.0).to(tl.float32) + bias
    e = tl.exp(x * softplus_beta)
    # The logarithm of one plus something small loses that: two terms of its series do not.
    soft = tl.where(e < 1e-3, e - 0.5 * e * e, tl.log(1.0 + e)) / softplus_beta
    return rate * tl.where(x * softplus_beta > threshold, x, soft)


@triton.jit
def _merge(x, a, row, col, SIZE: tl.constexpr):
    """The inverse of diagonal blocks of twice SIZE, from those of SIZE (x) and the matrix (a, below the diagonal)."""
    below = (row // (2 * SIZE) == col // (2 * SIZE)) & (row // SIZE > col // SIZE)
    half = x.to(tl.float16)
    z = tl.where(below, tl.dot(half, a, out_dtype=tl.float32), 0.0)
    return x - tl.dot(z.to(tl.float16), half, out_dtype=tl.float32)


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens", "chunks"])
def prepare(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, b_ptr, k2_ptr, q2_ptr, tp_ptr, grow_ptr, keep_ptr, scale,
            softplus_beta, threshold, tokens, chunks, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr,
            CHUNK: tl.constexpr, UNIT: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    key_head = head // GROUP
    dim = tl.arange(0, K)
    index = tl.arange(0, CHUNK)
    row, col = index[:, None], index[None, :]
    token = chunk * CHUNK + index
    live = token < tokens
    key = ((batch * tokens + token) * KEY_HEADS + key_head)[:, None] * K + dim[None, :]
    place = (batch * tokens + token) * HEADS + head
    k = tl.load(k_ptr + key, mask=live[:, None], other=0.0).to(tl.float32)
    q = tl.load(q_ptr + key, mask=live[:, None], other=0.0).to(tl.float32)
    b = tl.load(b_ptr + place, mask=live, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(rate_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)
    step = _log_decay(a_ptr, place, live, rate, bias, softplus_beta, threshold)
    g = tl.cumsum(tl.where(live, step, 0.0), 0)
    last = tl.sum(tl.where(live, step, 0.0), 0)

    # Keys are scaled by a power of two, which is exact; `rest` is what is missing from length one. Queries and `grow`
    # are negative: both of walk's uses are then multiply-adds.
    if UNIT:
        norm = tl.rsqrt(tl.sum(k * k, axis=1) + 1e-6)
        power = (norm.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        rest = norm / power
        k2 = (k * power[:, None]).to(tl.float16)
        q2 = (q * (tl.rsqrt(tl.sum(q * q, axis=1) + 1e-6) * -scale / rest)[:, None]).to(tl.float16)
    else:
        rest = tl.full([CHUNK], 1.0, tl.float32)
        k2 = k.to(tl.float16)
        q2 = (q * -scale).to(tl.float16)
    tile = (batch * chunks + chunk) * KEY_HEADS + key_head
    if head % GROUP == 0:
        at = (tile * CHUNK + row) * K + dim[None, :]
        tl.store(k2_ptr + at, k2)
        tl.store(q2_ptr + at, q2)

    # Later tokens are cut off before the exponential, which could overflow.
    since = tl.exp(tl.where(row >= col, g[:, None] - g[None, :], -float("inf"))) * rest[:, None] * rest[None, :]
    beta = 1.0 / (1.0 + tl.exp(-b))
    k2t = tl.trans(k2)
    p = tl.dot(q2, k2t, out_dtype=tl.float32) * since
    a = tl.dot(k2, k2t, out_dtype=tl.float32) * since * beta[:, None]
    a = tl.where(row > col, a, 0.0)
    x = tl.where(row == col, 1.0, tl.where((row // 2 == col // 2), -a, 0.0))
    a = a.to(tl.float16)
    x = _merge(x, a, row, col, 2)
    x = _merge(x, a, row, col, 4)
    x = _merge(x, a, row, col, 8)
    x = _merge(x, a, row, col, 16)
    x = _merge(x, a, row, col, 32) * beta[None, :]
    p = tl.dot(p.to(tl.float16), x.to(tl.float16), out_dtype=tl.float32)
    tile = (batch * chunks + chunk) * HEADS + head
    at = (tile * 2 * CHUNK + row) * CHUNK + col
    tl.store(tp_ptr + at, (x * (tl.exp(last - g) * rest)[:, None]).to(tl.float16))
    tl.store(tp_ptr + at + CHUNK * CHUNK, (-p).to(tl.float16))
    tl.store(grow_ptr + tile * CHUNK + index, -tl.exp(g) * rest)
    tl.store(keep_ptr + tile, tl.exp(last))


@triton.jit(do_not_specialize=["chunks"])
def walk(v_desc, k_desc, q_desc, tp_desc, out_desc, grow_ptr, keep_ptr, pool_ptr, rows_ptr, chunks,
         KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr,
         COLS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):
    head = tl.program_id(1)
    batch = tl.program_id(2)
    dim = tl.arange(0, K)
    index = tl.arange(0, CHUNK)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)

    # A negative row: the sequence starts from zero and its state is kept nowhere.
    row = tl.load(rows_ptr + batch).to(tl.int64)
    state_ptr = pool_ptr + ((tl.maximum(row, 0) * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    state = tl.trans(tl.load(state_ptr, mask=(dim[:, None] >= 0) & (row >= 0), other=0.0))
    if PDL:
        tl.extra.cuda.gdc_wait()

    tile = batch * chunks * HEADS + head
    key_tile = batch * chunks * KEY_HEADS + head // (HEADS // KEY_HEADS)
    first = head * V + tl.program_id(0) * COLS
    next_grow = tl.load(grow_ptr + tile * CHUNK + index)
    next_keep = tl.load(keep_ptr + tile)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        k = k_desc.load([(key_tile + chunk * KEY_HEADS) * CHUNK, 0])
        v = v_desc.load([batch, chunk * CHUNK, first]).reshape(CHUNK, COLS)
        tp = tp_desc.load([(tile + chunk * HEADS) * (2 * CHUNK), 0])
        q = q_desc.load([(key_tile + chunk * KEY_HEADS) * CHUNK, 0])
        grow, keep = next_grow, next_keep
        there = tl.minimum(chunk + 1, chunks - 1) * HEADS + tile
        next_grow = tl.load(grow_ptr + there * CHUNK + index)
        next_keep = tl.load(keep_ptr + there)

        half = state.to(tl.float16)
        x = tl.dot(half, tl.trans(k), out_dtype=tl.float32)
        r = (tl.trans(v).to(tl.float32) + x * grow[None, :]).to(tl.float16)
        both = tl.dot(r, tl.trans(tp), out_dtype=tl.float32)
        w, out = tl.split(tl.permute(tl.reshape(both, (COLS, 2, CHUNK)), (0, 2, 1)))
        state = tl.dot(w.to(tl.float16), k, acc=state * keep, out_dtype=tl.float32)
        out += tl.dot(half, tl.trans(q), out_dtype=tl.float32) * grow[None, :]
        out = tl.trans(out.to(v.dtype)).reshape(1, CHUNK, COLS)
        out_desc.store([batch, chunk * CHUNK, first], out)
    tl.store(state_ptr, tl.trans(state), mask=(dim[:, None] >= 0) & (row >= 0))


@triton.jit(do_not_specialize=["tokens"])
def step_by_step(rate_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, rows_ptr, out_ptr, scale,
                 softplus_beta, threshold, tokens, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr,
                 V: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr):
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    dim = tl.arange(0, K)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    row = tl.load(rows_ptr + batch).to(tl.int64)
    state_ptr = pool_ptr + ((tl.maximum(row, 0) * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    state = tl.load(state_ptr, mask=(dim[:, None] >= 0) & (row >= 0), other=0.0)
    rate = -tl.exp(tl.load(rate_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)
    for token in range(0, tokens):
        key = (batch * tokens + token) * KEY_HEADS + head // (HEADS // KEY_HEADS)
        place = (batch * tokens + token) * HEADS + head
        q = tl.load(q_ptr + key * K + dim).to(tl.float32)
        k = tl.load(k_ptr + key * K + dim).to(tl.float32)
        v = tl.load(v_ptr + place * V + col).to(tl.float32)
        b = tl.load(b_ptr + place).to(tl.float32)
        step = _log_decay(a_ptr, place, True, rate, bias, softplus_beta, threshold)
        # All sums at once: out is read from the state before this token's key, which adds its part.
        both = tl.sum(q * k, axis=0)
        if UNIT:
            norm = tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
            unit = tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6)
        else:
            norm = 1.0
            unit = 1.0
        keep = tl.exp(step)
        recalled = tl.sum(state * k[:, None], axis=0) * (norm * keep)
        seen = tl.sum(state * q[:, None], axis=0) * keep
        v = (v - recalled) / (1.0 + tl.exp(-b))
        state = state * keep + k[:, None] * (v * norm)[None, :]
        out = (seen + v * (both * norm)) * (unit * scale)
        tl.store(out_ptr + place * V + col, out.to(out_ptr.dtype.element_ty))
    tl.store(state_ptr, state, mask=(dim[:, None] >= 0) & (row >= 0))


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
        walk[(value // 64, heads, batch)](
            TensorDescriptor(v, tokenwise, strides, [1, CHUNK, 64]),
            TensorDescriptor.from_tensor(wide[0].view(-1, key), [CHUNK, key]),
            TensorDescriptor.from_tensor(wide[1].view(-1, key), [CHUNK, key]),
            TensorDescriptor.from_tensor(pair.view(-1, CHUNK), [2 * CHUNK, CHUNK]),
            TensorDescriptor(out, tokenwise, strides, [1, CHUNK, 64]), grow, keep, initial_state,
            initial_state_indices, chunks, V=value, CHUNK=CHUNK, COLS=64, STAGES=how["stages"], PDL=pdl, num_warps=4,
            launch_pdl=pdl, **sizes,
        )  # fmt: skip
        return {"out": out}
