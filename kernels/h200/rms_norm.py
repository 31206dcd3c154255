"""RMSNorm in one pass: `threads` lanes hold a row, 16 bytes an access, all of row and weight asked for before any use.

Bound by memory bandwidth from about 10 MB on and by one trip to memory below that. Layouts are given, not inferred:
all passes over a row share one, so that their squares add up in registers, and rows of at most a warp need no
barrier. The weight is loaded once a thread, with the row and not after its sum. The last tile is moved back to be
whole: no masks.
A sweep on an H200, where a launch alone takes 3 us: 16384x128 5.9 us (S 0.30; 6.1 not evict-first), 2500x1024 6.4 us
(0.33), 3844x1152 8.2 us (0.45), 5000x1536 11.5 us (0.56), 8290x2048 20.4 us (0.70). Evict-first gained nothing for
wider rows, and cost 1.5 % of 247680x128.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(rows: int, hidden: int) -> tuple[int, int, int]:
    """Threads that share a row, rows a program, warps a program."""
    if hidden <= 128:
        threads = max(1, triton.next_power_of_2(hidden) // 8)
        each = 1 if rows * hidden < 1 << 22 else 2  # rows a thread
        warps = 4 if rows * hidden < 1 << 20 else 8
        while warps > 1 and rows * threads < 132 * 32 * warps:
            warps //= 2
        return threads, each * 32 * warps // threads, warps
    # As many threads a row as let all rows, or 48 KB a multiprocessor, be under way at once.
    threads = min(512, max(32, triton.next_power_of_2(hidden) // 8))
    while threads > 32:
        passes = triton.cdiv(hidden, 8 * threads)
        resident = min(2048, 65536 // (20 + 10 * passes)) // threads
        if resident * 132 >= rows or resident * hidden * 2 >= 48000 or passes > 3:
            break
        threads //= 2
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


# The number of rows changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["rows"])
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, rows, stride, eps, H: gl.constexpr, COLS: gl.constexpr,
                    VECTOR: gl.constexpr, LANES: gl.constexpr, ACROSS: gl.constexpr, ROWS: gl.constexpr,
                    WHOLE: gl.constexpr, EVICT: gl.constexpr, WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0])
    PASSES: gl.constexpr = (H + COLS - 1) // COLS
    first = gl.program_id(0) * ROWS
    if ROWS > 1 and WHOLE:
        first = gl.minimum(first, rows - ROWS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))
    x_tile = x_ptr + first.to(gl.int64) * stride + (row * stride)[:, None] + col[None, :]
    out_tile = out_ptr + first.to(gl.int64) * H + (row * H)[:, None] + col[None, :]
    live = row >= 0 if WHOLE else row + first < rows

    xs = ()
    ws = ()
    for i in gl.static_range(PASSES):
        if WHOLE and (i + 1) * COLS <= H:
            xs = xs + (gl.load(x_tile + i * COLS, eviction_policy=EVICT),)
            ws = ws + (gl.load(weight_ptr + i * COLS + col),)
        else:
            inside = col < H - i * COLS
            xs = xs + (gl.load(x_tile + i * COLS, mask=inside[None, :] & live[:, None], other=0.0),)
            ws = ws + (gl.load(weight_ptr + i * COLS + col, mask=inside, other=0.0),)
    zero = (rows >> 31).to(gl.int16)
    squares = gl.zeros([ROWS, COLS], gl.float32, layout=layout)
    for i in gl.static_range(PASSES):
        x = _wide(xs[i], ws[i][None, :], zero) if ACROSS > 1 or PASSES > 1 else xs[i].to(gl.float32)
        squares += x * x
    scale = gl.rsqrt(gl.sum(squares, axis=1) * (1.0 / H) + eps)[:, None]

    for i in gl.static_range(PASSES):
        y = (xs[i].to(gl.float32) * scale * ws[i].to(gl.float32)[None, :]).to(out_ptr.dtype.element_ty)
        if WHOLE and (i + 1) * COLS <= H:
            gl.store(out_tile + i * COLS, y)
        else:
            inside = col < H - i * COLS
            gl.store(out_tile + i * COLS, y, mask=inside[None, :] & live[:, None])


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        threads, tile, warps = config(rows, hidden)
        vector = min(8, hidden & -hidden)
        rms_norm_kernel[(triton.cdiv(rows, tile),)](
            x, weight, out, rows, x.stride(0), self.eps, H=hidden, COLS=vector * threads, VECTOR=vector,
            LANES=min(32, threads), ACROSS=max(1, threads // 32), ROWS=tile, WHOLE=rows >= tile,
            EVICT="evict_first" if hidden <= 128 and rows * hidden < 1 << 23 else "", WARPS=warps, num_warps=warps,
        )  # fmt: skip
        return out
