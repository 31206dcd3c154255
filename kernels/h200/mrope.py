"""Multimodal rotary embedding: heads of q and k are numbered through all tokens, a run of them a program, one a thread.

Bound by memory bandwidth (all published shapes are prompts). A thread turns 8 pairs of one head: both halves of the
pairs, cosines and sines are asked for at once, 16 bytes an access; the heads of a token share its angles by the
first-level cache. Sections cut at multiples of 8 leave vectors whole; interleaved axes are loaded all three, and the
right one taken.
A sweep on an H200, where a launch alone takes 3 us: 838 tokens of 16/4 heads 6.5 us (S 0.29), 3592 of 16/1 13.0 us
(0.53), 8373 of 16/1 23.9 us (0.67), 16530 of 16/1 42.0 us (0.76). A warp for all heads of a token, which loads its
angles once, was no faster.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(rows: int, half: int) -> tuple[int, int]:
    """Pairs a thread, warps a program; `rows` are heads of all tokens."""
    vector = min(8, half & -half)
    warps = 4
    while warps > 1 and rows * half // vector < 132 * 32 * warps:
        warps //= 2
    return vector, warps


@gluon.jit
def _angles(ptr, axis_stride, j, inside, S0: gl.constexpr, S1: gl.constexpr, S2: gl.constexpr,
            INTERLEAVED: gl.constexpr, MASK: gl.constexpr):
    """The cosines or sines of a token's frequencies j, each of its axis; ptr points to the first axis'."""
    if INTERLEAVED:
        if MASK:
            time = gl.load(ptr, mask=inside, other=0.0)
            height = gl.load(ptr + axis_stride, mask=inside, other=0.0)
            width = gl.load(ptr + 2 * axis_stride, mask=inside, other=0.0)
        else:
            time = gl.load(ptr)
            height = gl.load(ptr + axis_stride)
            width = gl.load(ptr + 2 * axis_stride)
        turn = j % 3
        return gl.where((turn == 1) & (j < 3 * S1), height, gl.where((turn == 2) & (j < 3 * S2), width, time))
    else:
        axis = gl.where(j < S0, 0, gl.where(j < S0 + S1, 1, 2))
        if MASK:
            return gl.load(ptr + axis * axis_stride, mask=inside, other=0.0)
        else:
            return gl.load(ptr + axis * axis_stride)


# The number of heads of all tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["rows"])
def mrope_kernel(q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, rows, q_stride, k_stride, cos_axis, cos_token,
                 sin_axis, sin_token, S0: gl.constexpr, S1: gl.constexpr, S2: gl.constexpr, INTERLEAVED: gl.constexpr,
                 HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, HALF: gl.constexpr,
                 HALF_PAD: gl.constexpr, REST_PAD: gl.constexpr, NEOX: gl.constexpr, ROWS: gl.constexpr,
                 WHOLE: gl.constexpr, VECTOR: gl.constexpr, LANES: gl.constexpr, WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    pairs: gl.constexpr = gl.BlockedLayout([1, 2 * VECTOR], [32 // LANES, LANES], [WARPS, 1], [1, 0])
    rest_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    TOTAL: gl.constexpr = HEADS + KV_HEADS
    MASK: gl.constexpr = HALF_PAD > HALF or not WHOLE
    dtype = q_out_ptr.dtype.element_ty

    first = gl.program_id(0) * ROWS
    if ROWS > 1 and WHOLE:
        first = gl.minimum(first, rows - ROWS)  # the last tile moves back to be whole
    row = (first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout)))[:, None]
    j = gl.arange(0, HALF_PAD, layout=gl.SliceLayout(0, layout))[None, :]
    token, head = (row // TOTAL).to(gl.int64), row % TOTAL
    is_q = head < HEADS
    inside = (row < rows) & (j < HALF)
    source = gl.where(is_q, q_ptr, k_ptr) + token * gl.where(is_q, q_stride, k_stride)
    source = source + gl.where(is_q, head, head - HEADS) * D
    target = gl.where(is_q, q_out_ptr, k_out_ptr) + token * gl.where(is_q, HEADS * D, KV_HEADS * D)
    target = target + gl.where(is_q, head, head - HEADS) * D

    cos = _angles(cos_ptr + token * cos_token + j, cos_axis, j, inside, S0, S1, S2, INTERLEAVED, MASK)
    sin = _angles(sin_ptr + token * sin_token + j, sin_axis, j, inside, S0, S1, S2, INTERLEAVED, MASK)
    if NEOX:
        if MASK:
            a = gl.load(source + j, mask=inside, other=0.0).to(gl.float32)
            b = gl.load(source + HALF + j, mask=inside, other=0.0).to(gl.float32)
            gl.store(target + j, (a * cos - b * sin).to(dtype), mask=inside)
            gl.store(target + HALF + j, (b * cos + a * sin).to(dtype), mask=inside)
        else:
            a = gl.load(source + j).to(gl.float32)
            b = gl.load(source + HALF + j).to(gl.float32)
            gl.store(target + j, (a * cos - b * sin).to(dtype))
            gl.store(target + HALF + j, (b * cos + a * sin).to(dtype))
    else:
        # The same threads hold a head and its pairs, so that neither conversion moves anything.
        i = gl.arange(0, 2 * HALF_PAD, layout=gl.SliceLayout(0, pairs))[None, :]
        live = gl.convert_layout((row < rows) & (row >= 0), pairs) & (i < 2 * HALF)
        x = gl.load(gl.convert_layout(source, pairs) + i, mask=live, other=0.0).to(gl.float32)
        a, b = gl.split(gl.reshape(x, [ROWS, HALF_PAD, 2]))
        a, b = gl.convert_layout(a, layout), gl.convert_layout(b, layout)
        turned = gl.reshape(gl.join(a * cos - b * sin, b * cos + a * sin), [ROWS, 2 * HALF_PAD])
        gl.store(gl.convert_layout(target, pairs) + i, gl.convert_layout(turned.to(dtype), pairs), mask=live)

    if REST_PAD > 0:
        rest = 2 * HALF + gl.arange(0, REST_PAD, layout=gl.SliceLayout(0, rest_layout))[None, :]
        line = (first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, rest_layout)))[:, None]
        token, head = (line // TOTAL).to(gl.int64), line % TOTAL
        is_q = head < HEADS
        place = gl.where(is_q, head, head - HEADS) * D + rest
        source = gl.where(is_q, q_ptr, k_ptr) + token * gl.where(is_q, q_stride, k_stride) + place
        target = gl.where(is_q, q_out_ptr, k_out_ptr) + token * gl.where(is_q, HEADS * D, KV_HEADS * D) + place
        live = (line < rows) & (rest < D)
        gl.store(target, gl.load(source, mask=live), mask=live)


class Model(torch.nn.Module):
    def __init__(self, head_size: int, rotary_dim: int, mrope_section: list[int], mrope_interleaved: bool,
                 is_neox_style: bool):
        super().__init__()
        self.size, self.half, self.section = head_size, rotary_dim // 2, mrope_section
        self.interleaved, self.neox = mrope_interleaved, is_neox_style

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor,
                sin: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens, heads, kv_heads = q.shape[0], q.shape[1] // self.size, k.shape[1] // self.size
        q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        rest = self.size - 2 * self.half
        rows = tokens * (heads + kv_heads)
        vector, warps = config(rows, self.half)
        half_pad = triton.next_power_of_2(self.half)
        lanes = min(32, half_pad // vector)
        tile = 32 * warps // lanes
        mrope_kernel[(triton.cdiv(rows, tile),)](
            q, k, cos, sin, q_out, k_out, rows, q.stride(0), k.stride(0), cos.stride(0), cos.stride(1), sin.stride(0),
            sin.stride(1), S0=self.section[0], S1=self.section[1], S2=self.section[2], INTERLEAVED=self.interleaved,
            HEADS=heads, KV_HEADS=kv_heads, D=self.size, HALF=self.half, HALF_PAD=half_pad,
            REST_PAD=triton.next_power_of_2(rest) if rest else 0, NEOX=self.neox, ROWS=tile, WHOLE=rows >= tile,
            VECTOR=vector, LANES=lanes, WARPS=warps, num_warps=warps,
        )  # fmt: skip
        return {"q": q_out, "k": k_out}
