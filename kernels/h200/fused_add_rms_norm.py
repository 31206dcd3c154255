"""Residual add and RMSNorm in one pass: `threads` lanes hold a row, 16 bytes an access, all loads first.

Bound by memory bandwidth from about 10 MB on and by one trip to memory below that. All passes over a row share a
layout, so that their squares add up in registers; rows of at most a warp need no barrier. The weight comes with the
row, not after its sum, and the new residual leaves before the sum. It is rounded to the storage type before it is
normalized.
A row has the most threads with which all rows are under way at once; a second wave of a few rows costs most.
A sweep on an H200, where a launch alone takes 3 us: 1024x2048 8.0 us (S 0.44), 558x5120 9.6 us (0.50; 10.1 in 1.4
waves), 2032x2048 11.8 us (0.59; 12.4 in 1.3 waves, 12.6 in 1.9), 1024x5120 14.5 us (0.60), 917x7168 17.5 us (0.63),
1720x5120 21.5 us (0.68). 632x7168 took 13.3 us (0.57) in 1.2 waves: predicted 12.8 in the one that it has now.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(rows: int, hidden: int) -> tuple[int, int, int]:
    """Threads that share a row, rows a program, warps a program."""
    # The most threads a row that let all rows be under way at once; if none do, that let 60 KB a multiprocessor (90 KB
    # of wide rows) be.
    enough = 90000 if hidden > 4096 else 60000
    threads = min(512, max(1, triton.next_power_of_2(hidden) // 8))
    choice = 0
    while True:
        passes = triton.cdiv(hidden, 8 * threads)
        resident = min(2048, 65536 // (16 + 12 * passes)) // threads
        if resident * 132 >= rows:
            choice = threads
            break
        if not choice and (resident * hidden * 4 >= enough or passes > 3 or threads <= 32):
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


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["rows"])
def fused_add_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rows, x_stride, residual_stride, eps,
                              H: gl.constexpr, COLS: gl.constexpr, VECTOR: gl.constexpr, LANES: gl.constexpr,
                              ACROSS: gl.constexpr, ROWS: gl.constexpr, WHOLE: gl.constexpr, WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0])
    PASSES: gl.constexpr = (H + COLS - 1) // COLS
    dtype = out_ptr.dtype.element_ty
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
    sums = ()
    for i in gl.static_range(PASSES):
        x = _wide(xs[i], ws[i][None, :], zero) if ACROSS > 1 or PASSES > 1 else xs[i].to(gl.float32)
        total = _rounded(x + rs[i].to(gl.float32), dtype)
        if WHOLE and (i + 1) * COLS <= H:
            gl.store(sum_ptr + place + i * COLS, total)
        else:
            inside = col < H - i * COLS
            gl.store(sum_ptr + place + i * COLS, total, mask=inside[None, :] & live[:, None])
        sums = sums + (total,)
        squares += total.to(gl.float32) * total.to(gl.float32)
    scale = gl.rsqrt(gl.sum(squares, axis=1) * (1.0 / H) + eps)[:, None]

    for i in gl.static_range(PASSES):
        y = (sums[i].to(gl.float32) * scale * ws[i].to(gl.float32)[None, :]).to(dtype)
        if WHOLE and (i + 1) * COLS <= H:
            gl.store(out_ptr + place + i * COLS, y)
        else:
            inside = col < H - i * COLS
            gl.store(out_ptr + place + i * COLS, y, mask=inside[None, :] & live[:, None])


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        summed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        threads, tile, warps = config(rows, hidden)
        vector = min(8, hidden & -hidden)
        fused_add_rms_norm_kernel[(triton.cdiv(rows, tile),)](
            x, residual, weight, out, summed, rows, x.stride(0), residual.stride(0), self.eps, H=hidden,
            COLS=vector * threads, VECTOR=vector, LANES=min(32, threads), ACROSS=max(1, threads // 32), ROWS=tile,
            WHOLE=rows >= tile, WARPS=warps, num_warps=warps,
        )  # fmt: skip
        return {"out": out, "residual": summed}
