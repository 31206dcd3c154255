"""RMSNorm in Triton, a row a program."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    col = tl.arange(0, BLOCK)
    inside = col < HIDDEN
    x = tl.load(x_ptr + row + col, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + col, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x, weight, eps, out=None):
    """The kernel on dense operands; into `out` where it is given."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    hidden = x.shape[1]
    rms_norm_kernel[(x.shape[0],)](
        x, weight, out, eps, HIDDEN=hidden, BLOCK=triton.next_power_of_2(hidden), num_warps=8
    )
    return out


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.eps)
