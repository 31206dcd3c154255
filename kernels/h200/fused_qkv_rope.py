"""Split, bias and rotation of packed QKV: a program takes some chunks of heads, of one kind each, of a token or a few.

One token (all published shapes) is bound by one trip to memory: everything is asked for at once, and frequencies are
made meanwhile, as products of powers of the first one in double, in turns: the fraction of position times frequency
is exact enough for the approximate sine and cosine, so that there is no slow path and little code. A prompt is bound
by memory bandwidth: a program then takes up to three chunks of a few tokens, turned by the same sines and cosines.
A sweep on an H200, where a launch alone takes 3 us: one token 3.7 us (5.0 to 5.2 by the first version), 256 tokens of
64/8 heads 7.0 us (S 0.31), 2048 of 40/8 19.6 us (0.62), 8192 of 32/4 46.9 us (0.75).
"""

import math

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(tokens: int, heads: int, kv_heads: int, half: int) -> tuple[int, int, int, int]:
    """Heads in a chunk, chunks a program, tokens a program, pairs a thread and head."""
    common = math.gcd(heads, kv_heads)
    tile = min(8, common & -common)
    if tokens * (heads + 2 * kv_heads) < 2048 * tile:
        return tile, 1, 1, min(2, half & -half)
    tile = min(4, tile)
    chunks = (heads + 2 * kv_heads) // tile
    vector = min(8, half & -half)
    runs = next(run for run in range(3, 0, -1) if chunks % run == 0)
    return tile, runs, max(1, 16 // tile), vector


@gluon.jit
def _cos_sin(turns):
    """Cosine and sine of an angle in turns, from -1/2 to 1/2."""
    angle = turns * 6.283185307179586
    return gl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;", "=&r,=r,r", [angle],
                                     dtype=(gl.float32, gl.float32), is_pure=True, pack=1)


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens"])
def fused_qkv_rope_kernel(qkv_ptr, positions_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, tokens, stride, HEADS: gl.constexpr,
                          KV_HEADS: gl.constexpr, D: gl.constexpr, HALF: gl.constexpr, HALF_PAD: gl.constexpr,
                          REST_PAD: gl.constexpr, TILE: gl.constexpr, RUNS: gl.constexpr, TOKENS: gl.constexpr,
                          VECTOR: gl.constexpr, LANES: gl.constexpr, WARPS: gl.constexpr, BIAS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    rest_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    TURNED: gl.constexpr = HEADS + KV_HEADS
    ROWS: gl.constexpr = TOKENS * TILE
    REST: gl.constexpr = D - 2 * HALF
    MASK: gl.constexpr = HALF_PAD > HALF
    dtype = q_ptr.dtype.element_ty

    first = gl.program_id(0) * TOKENS
    if TOKENS > 1:
        first = gl.minimum(first, tokens - TOKENS)  # the last tile moves back to be whole
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, HALF_PAD, layout=gl.SliceLayout(0, layout))
    token = (first + row // TILE).to(gl.int64)[:, None]
    place = (row % TILE * D)[:, None] + col[None, :]
    inside = (row >= 0)[:, None] & (col < HALF)[None, :]
    chunk = gl.program_id(1) * RUNS

    position = gl.load(positions_ptr + first + row // TILE)
    source = qkv_ptr + token * stride + place + chunk * (TILE * D)
    firsts = ()
    seconds = ()
    for i in gl.static_range(RUNS):
        if MASK:
            firsts = firsts + (gl.load(source + i * TILE * D, mask=inside, other=0.0),)
            seconds = seconds + (gl.load(source + i * TILE * D + HALF, mask=inside, other=0.0),)
        else:
            firsts = firsts + (gl.load(source + i * TILE * D),)
            seconds = seconds + (gl.load(source + i * TILE * D + HALF),)

    frequency = gl.full([HALF_PAD], 0.15915494309189535, gl.float64, layout=gl.SliceLayout(0, layout))
    one = gl.full([HALF_PAD], 1.0, gl.float64, layout=gl.SliceLayout(0, layout))
    for bit in gl.static_range(10):
        if 1 << bit < HALF:
            power = gl.full([HALF_PAD], 10000.0 ** (-(1 << bit) / HALF), gl.float64, layout=gl.SliceLayout(0, layout))
            frequency = frequency * gl.where((col & (1 << bit)) != 0, power, one)
    turns = position.to(gl.float64)[:, None] * frequency[None, :]
    nearest = (turns + 6755399441055744.0) - 6755399441055744.0
    cos, sin = _cos_sin((turns - nearest).to(gl.float32))

    one_more = gl.where(tokens > 0, 1.0, 2.0)  # one, which the compiler does not know
    for i in gl.static_range(RUNS):
        head = (chunk + i) * TILE
        a = firsts[i].to(gl.float32)
        b = seconds[i].to(gl.float32)
        if BIAS:
            bias = bias_ptr + head * D + place
            if MASK:
                a += gl.load(bias, mask=inside, other=0.0).to(gl.float32)
                b += gl.load(bias + HALF, mask=inside, other=0.0).to(gl.float32)
            else:
                a += gl.load(bias).to(gl.float32)
                b += gl.load(bias + HALF).to(gl.float32)
        turned = head < TURNED
        # The products with one keep the selection in fp32: of halves, results would not be rounded in pairs.
        left = gl.where(turned, a * cos - b * sin, a * one_more).to(dtype)
        right = gl.where(turned, b * cos + a * sin, b * one_more).to(dtype)
        is_q = head < HEADS
        target = gl.where(is_q, q_ptr, gl.where(turned, k_ptr, v_ptr))
        heads = gl.where(is_q, HEADS, KV_HEADS)
        before = gl.where(is_q, 0, gl.where(turned, HEADS, TURNED))
        target = target + token * (heads * D) + (head - before) * D + place
        if MASK:
            gl.store(target, left, mask=inside)
            gl.store(target + HALF, right, mask=inside)
        else:
            gl.store(target, left)
            gl.store(target + HALF, right)

        if REST > 0:
            line = gl.arange(0, ROWS, layout=gl.SliceLayout(1, rest_layout))
            rest = 2 * HALF + gl.arange(0, REST_PAD, layout=gl.SliceLayout(0, rest_layout))
            wanted = (line >= 0)[:, None] & (rest < D)[None, :]
            token_of = (first + line // TILE).to(gl.int64)[:, None]
            rest_place = (line % TILE * D)[:, None] + rest[None, :]
            c = gl.load(qkv_ptr + token_of * stride + head * D + rest_place, mask=wanted, other=0.0).to(gl.float32)
            if BIAS:
                c += gl.load(bias_ptr + head * D + rest_place, mask=wanted, other=0.0).to(gl.float32)
            target = gl.where(is_q, q_ptr, gl.where(turned, k_ptr, v_ptr))
            target = target + token_of * (heads * D) + (head - before) * D + rest_place
            gl.store(target, c.to(dtype), mask=wanted)


class Model(torch.nn.Module):
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, rope_dim: int):
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.half = num_heads, num_kv_heads, head_dim, rope_dim // 2

    def forward(self, qkv: torch.Tensor, positions: torch.Tensor,
                qkv_bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        tokens = qkv.shape[0]
        q = torch.empty((tokens, self.heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        k = torch.empty((tokens, self.kv_heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        v = torch.empty((tokens, self.kv_heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        tile, runs, together, vector = config(tokens, self.heads, self.kv_heads, self.half)
        together = together if tokens >= together else 1
        half_pad = triton.next_power_of_2(self.half)
        rest = self.dim - 2 * self.half
        lanes = min(32, half_pad // vector)
        grid = (triton.cdiv(tokens, together), (self.heads + 2 * self.kv_heads) // (tile * runs))
        warps = max(1, min(8, together * tile * lanes // 32))
        fused_qkv_rope_kernel[grid](
            qkv, positions, qkv if qkv_bias is None else qkv_bias, q, k, v, tokens, qkv.stride(0), HEADS=self.heads,
            KV_HEADS=self.kv_heads, D=self.dim, HALF=self.half, HALF_PAD=half_pad,
            REST_PAD=triton.next_power_of_2(rest) if rest else 0, TILE=tile, RUNS=runs, TOKENS=together,
            VECTOR=vector, LANES=lanes, WARPS=warps, BIAS=qkv_bias is not None, num_warps=warps,
        )  # fmt: skip
        return {"q": q, "k": k, "v": v}
