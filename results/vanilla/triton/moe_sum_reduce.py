"""Sum of a token's expert rows in registers: a program takes some columns of one token, all slots of it."""

import torch
import triton
import triton.language as tl


# The number of tokens is the grid's business alone.
@triton.jit
def moe_sum_reduce_kernel(x_ptr, out_ptr, token_stride, slot_stride, factor, H: tl.constexpr, K: tl.constexpr,
                          COLS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = col < H
    total = tl.zeros([COLS], tl.float32)
    for slot in tl.static_range(K):
        if H % COLS == 0:
            part = tl.load(x_ptr + token * token_stride + slot * slot_stride + col)
        else:
            part = tl.load(x_ptr + token * token_stride + slot * slot_stride + col, mask=inside, other=0.0)
        total += part.to(tl.float32)
    out = (total * factor).to(out_ptr.dtype.element_ty)
    if H % COLS == 0:
        tl.store(out_ptr + token * H + col, out)
    else:
        tl.store(out_ptr + token * H + col, out, mask=inside)


class Model(torch.nn.Module):
    def __init__(self, routed_scaling_factor: float):
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        tokens, slots, hidden = expert_outputs.shape
        out = torch.empty((tokens, hidden), dtype=expert_outputs.dtype, device=expert_outputs.device)
        # The widest power of two that divides the row, so that no lane is masked off; ragged widths are padded.
        cols = min(1024, hidden & -hidden)
        if cols < 128:
            cols = min(1024, triton.next_power_of_2(hidden))
        while cols > 256 and tokens * triton.cdiv(hidden, cols) < 264:
            cols //= 2
        moe_sum_reduce_kernel[(tokens, triton.cdiv(hidden, cols))](
            expert_outputs, out, expert_outputs.stride(0), expert_outputs.stride(1), self.routed_scaling_factor,
            H=hidden, K=slots, COLS=cols, num_warps=max(1, cols // 256),
        )  # fmt: skip
        return out
