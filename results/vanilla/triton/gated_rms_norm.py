"""RMSNorm with a SiLU gate before or after it, in one pass: a program takes a tile of whole rows of both operands."""

import torch
import triton
import triton.language as tl


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["rows"])
def gated_rms_norm_kernel(x_ptr, weight_ptr, z_ptr, out_ptr, rows, x_stride, z_stride, eps, H: tl.constexpr,
                          COLS: tl.constexpr, ROWS: tl.constexpr, NORM_FIRST: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)[None, :]
    live = (row < rows)[:, None]
    if COLS > H:
        live = live & (col < H)
    row = row.to(tl.int64)[:, None]
    x = tl.load(x_ptr + row * x_stride + col, mask=live, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + row * z_stride + col, mask=live, other=0.0).to(tl.float32)
    w = tl.load(weight_ptr + col, mask=col < H, other=0.0).to(tl.float32)
    gate = z / (1.0 + tl.exp(-z))
    if not NORM_FIRST:
        x = x * gate
    out = x * tl.rsqrt(tl.sum(x * x, axis=1) / H + eps)[:, None] * w
    if NORM_FIRST:
        out = out * gate
    tl.store(out_ptr + row * H + col, out.to(out_ptr.dtype.element_ty), mask=live)


class Model(torch.nn.Module):
    def __init__(self, eps: float, norm_before_gate: bool, activation: str):
        super().__init__()
        if activation != "silu":
            raise ValueError(f"activation {activation!r}: expected 'silu'")
        self.eps = eps
        self.norm_before_gate = norm_before_gate

    def forward(self, x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        cols = triton.next_power_of_2(hidden)
        # About 2048 elements of each operand a program, fewer rows while multiprocessors would be left idle.
        tile = max(1, 2048 // cols)
        while tile > 1 and rows < 264 * tile:
            tile //= 2
        gated_rms_norm_kernel[(triton.cdiv(rows, tile),)](
            x, weight, z, out, rows, x.stride(0), z.stride(0), self.eps, H=hidden, COLS=cols, ROWS=tile,
            NORM_FIRST=self.norm_before_gate, num_warps=min(16, max(1, tile * cols // 512)),
        )  # fmt: skip
        return out
