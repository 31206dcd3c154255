"""Rows scaled to unit length in one pass: a program takes a tile of whole rows, held in registers between both uses."""

import torch
import triton
import triton.language as tl

EPS = tl.constexpr(1e-6)


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["rows"])
def l2_norm_kernel(x_ptr, out_ptr, rows, stride, H: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)[None, :]
    live = (row < rows)[:, None]
    if COLS > H:
        live = live & (col < H)
    row = row.to(tl.int64)[:, None]
    x = tl.load(x_ptr + row * stride + col, mask=live, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) + EPS)[:, None]
    tl.store(out_ptr + row * H + col, (x * scale).to(out_ptr.dtype.element_ty), mask=live)


class Model(torch.nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        cols = triton.next_power_of_2(hidden)
        # About 4096 elements a program, fewer rows while the grid would leave multiprocessors idle.
        tile = max(1, 4096 // cols)
        while tile > 1 and rows < 264 * tile:
            tile //= 2
        l2_norm_kernel[(triton.cdiv(rows, tile),)](
            x, out, rows, x.stride(0), H=hidden, COLS=cols, ROWS=tile, num_warps=min(16, max(1, tile * cols // 1024))
        )
        return out
