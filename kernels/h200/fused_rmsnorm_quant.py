"""Residual add, RMSNorm and fp8 quantization in one pass: `threads` lanes hold a row from its load to its store.

Bound by memory bandwidth from about 10 MB on and by one trip to memory below that. One reduction serves both: the
scale of a row is its largest |sum * weight| times the inverse RMS, so that the largest is taken beside the squares,
and codes do not depend on the inverse RMS at all. The weight comes with the row and the new residual leaves before
the reduction.
A row has the most threads with which all rows are under way at once; a second wave of a few rows costs most.
A sweep on an H200, where a launch alone takes 3 us: 650x4096 9.1 us (S 0.43), 1769x2048 10.7 us (0.50), 1013x4096
11.6 us (0.52; 11.9 in 1.9 waves, 12.3 in 1.3), 3260x2048 16.2 us (0.60), 2058x4096 19.5 us (0.63), 11399x2048 43.3 us
(0.79).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(rows: int, hidden: int) -> tuple[int, int, int]:
    """Threads that share a row, rows a program, warps a program."""
    # The most threads a row that let all rows be under way at once; if none do, that let 60 KB a multiprocessor be.
    threads = min(512, max(1, triton.next_power_of_2(hidden) // 8))
    choice = 0
    while True:
        passes = triton.cdiv(hidden, 8 * threads)
        resident = min(2048, 65536 // (16 + 12 * passes)) // threads
        if resident * 132 >= rows:
            choice = threads
            break
        if not choice and (resident * hidden * 4 >= 60000 or passes > 3 or threads <= 32):
            choice = threads
        if threads <= 32 or passes > 4:
            break
        threads //= 2
    threads = choice
    warps = max(threads // 32, 4 if rows > 528 else 1)
    return threads, 32 * warps // threads, warps


@gluon.jit
def _wide(x, w, zero):
    """x in fp32, once w is there too: ptxas would load it where it is used, behind the sum, a trip to memory later."""
    if x.dtype == gl.bfloat16:
        x, w = gl.broadcast(x, w)
        return gl.inline_asm_elementwise(
            "{ .reg .b32 t; lop3.b32 t, $2, $3, $4, 0xF8; shl.b32 $0, t, 16; and.b32 $1, t, 0xFFFF0000; }",
            "=r,=r,r,r,r", [x, w, zero], dtype=gl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return x.to(gl.float32)


@gluon.jit
def _rounded(x, dtype: gl.constexpr):
    """x in `dtype`, of bfloat16 two at a time: where the halves are used again, the compiler converts one by one."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16,
                                         is_pure=True, pack=2)
    else:
        return x.to(dtype)


@gluon.jit
def _reciprocal(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _combine(sum_a, top_a, sum_b, top_b):
    return sum_a + sum_b, gl.maximum(top_a, top_b)


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["rows"])
def fused_rmsnorm_quant_kernel(x_ptr, residual_ptr, weight_ptr, q_ptr, scale_ptr, sum_ptr, rows, x_stride,
                               residual_stride, eps, per_largest, H: gl.constexpr, COLS: gl.constexpr,
                               VECTOR: gl.constexpr, LANES: gl.constexpr, ACROSS: gl.constexpr, ROWS: gl.constexpr,
                               WHOLE: gl.constexpr, WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0])
    PASSES: gl.constexpr = (H + COLS - 1) // COLS
    dtype = sum_ptr.dtype.element_ty
    first = gl.program_id(0) * ROWS
    if ROWS > 1 and WHOLE:
        first = gl.minimum(first, rows - ROWS)  # the last tile moves back to be whole
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))
    wide = first.to(gl.int64)
    x_tile = x_ptr + wide * x_stride + (row * x_stride)[:, None] + col[None, :]
    residual_tile = residual_ptr + wide * residual_stride + (row * residual_stride)[:, None] + col[None, :]
    place = wide * H + (row * H)[:, None] + col[None, :]
    live = row >= 0 if WHOLE else row + first < rows

    xs = ()
    rs = ()
    ws = ()
    for i in gl.static_range(PASSES):
        if WHOLE and (i + 1) * COLS <= H:
            xs = xs + (gl.load(x_tile + i * COLS),)
            rs = rs + (gl.load(residual_tile + i * COLS),)
            ws = ws + (gl.load(weight_ptr + i * COLS + col),)
        else:
            inside = col < H - i * COLS
            xs = xs + (gl.load(x_tile + i * COLS, mask=inside[None, :] & live[:, None], other=0.0),)
            rs = rs + (gl.load(residual_tile + i * COLS, mask=inside[None, :] & live[:, None], other=0.0),)
            ws = ws + (gl.load(weight_ptr + i * COLS + col, mask=inside, other=0.0),)

    zero = (rows >> 31).to(gl.int16)
    squares = gl.zeros([ROWS, COLS], gl.float32, layout=layout)
    tops = gl.zeros([ROWS, COLS], gl.int32, layout=layout)
    products = ()
    for i in gl.static_range(PASSES):
        x = _wide(xs[i], ws[i][None, :], zero) if ACROSS > 1 or PASSES > 1 else xs[i].to(gl.float32)
        total = _rounded(x + rs[i].to(gl.float32), dtype)
        if WHOLE and (i + 1) * COLS <= H:
            gl.store(sum_ptr + place + i * COLS, total)
        else:
            inside = col < H - i * COLS
            gl.store(sum_ptr + place + i * COLS, total, mask=inside[None, :] & live[:, None])
        total = total.to(gl.float32)
        product = total * ws[i].to(gl.float32)[None, :]
        products = products + (product,)
        squares += total * total
        # Magnitudes order like their bits, a NaN above all: it reaches the scale.
        tops = gl.maximum(tops, product.to(gl.int32, bitcast=True) & 0x7FFFFFFF)
    square, top = gl.reduce((squares, tops), 1, _combine)
    inverse_rms = gl.rsqrt(square * (1.0 / H) + eps)
    top = top.to(gl.float32, bitcast=True) * inverse_rms
    top = gl.where(top < 1e-12, 1e-12, top)
    scale = top * per_largest
    factor = (inverse_rms * _reciprocal(scale))[:, None]

    for i in gl.static_range(PASSES):
        q = (products[i] * factor).to(q_ptr.dtype.element_ty)
        if WHOLE and (i + 1) * COLS <= H:
            gl.store(q_ptr + place + i * COLS, q)
        else:
            inside = col < H - i * COLS
            gl.store(q_ptr + place + i * COLS, q, mask=inside[None, :] & live[:, None])
    gl.store(scale_ptr + first + row, scale, mask=live)


class Model(torch.nn.Module):
    fp8_dtype = torch.float8_e4m3fn

    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, hidden = x.shape
        q = torch.empty(x.shape, dtype=self.fp8_dtype, device=x.device)
        scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
        summed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        threads, tile, warps = config(rows, hidden)
        vector = min(8, hidden & -hidden)
        fused_rmsnorm_quant_kernel[(triton.cdiv(rows, tile),)](
            x, residual, weight, q, scale, summed, rows, x.stride(0), residual.stride(0), self.eps,
            1.0 / torch.finfo(self.fp8_dtype).max, H=hidden, COLS=vector * threads, VECTOR=vector,
            LANES=min(32, threads), ACROSS=max(1, threads // 32), ROWS=tile, WHOLE=rows >= tile, WARPS=warps,
            num_warps=warps,
        )  # fmt: skip
        return {"quantized": q, "scale": scale, "residual_out": summed}
