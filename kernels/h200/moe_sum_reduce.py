"""Sum of a token's expert rows in registers: a program takes some columns of one token, all slots of it.

All loads of a thread are in flight at once (16 bytes a slot). Nobody reads the inputs again, so they leave the L2 first
and what was dirty there before stays. Bound by HBM. Expected on an H200: 11027 tokens of 2048 101 us (S 0.84),
4195 tokens 40 us (S 0.80), 64 tokens 4.5 us (S 0.11).
"""

import torch
import triton
import triton.language as tl


def config(tokens: int, hidden: int) -> tuple[int, int]:
    """Columns and warps of a program."""
    cols = min(2048, triton.next_power_of_2(hidden))
    while cols > 256 and (hidden % cols or tokens * triton.cdiv(hidden, cols) < 528):
        cols //= 2
    return cols, max(1, cols // 256)


# The number of tokens is the grid's business alone.
@triton.jit
def moe_sum_reduce_kernel(x_ptr, out_ptr, token_stride, slot_stride, factor, H: tl.constexpr, K: tl.constexpr,
                          COLS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    x = x_ptr + token * token_stride + col
    total = tl.zeros([COLS], tl.float32)
    for slot in tl.static_range(K):
        if H % COLS == 0:
            part = tl.load(x + slot * slot_stride, eviction_policy="evict_first")
        else:
            part = tl.load(x + slot * slot_stride, mask=col < H, other=0.0, eviction_policy="evict_first")
        total += part.to(tl.float32)
    out = (total * factor).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + token * H + col, out, mask=col < H)


class Model(torch.nn.Module):
    def __init__(self, routed_scaling_factor: float):
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        tokens, slots, hidden = expert_outputs.shape
        out = torch.empty((tokens, hidden), dtype=expert_outputs.dtype, device=expert_outputs.device)
        cols, warps = config(tokens, hidden)
        moe_sum_reduce_kernel[(tokens, triton.cdiv(hidden, cols))](
            expert_outputs, out, expert_outputs.stride(0), expert_outputs.stride(1), self.routed_scaling_factor,
            H=hidden, K=slots, COLS=cols, num_warps=warps,
        )  # fmt: skip
        return out
