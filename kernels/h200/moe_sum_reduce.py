"""Sum of a token's expert rows in registers: a program takes some columns of one token, all slots of it.

All loads of a thread are in flight at once: 4 bytes a slot, by up to 32 warps. Nobody reads the inputs again, so they
leave the L2 first and what was dirty there before stays, except where they are several times the L2. Bound by HBM.
A sweep on an H200, 8 slots of 2048: 4195 tokens 40.8 us (S 0.79; 42.4 by half the warps, 42.8 by a quarter), 6030
tokens 57.1 us (0.81), 11027 tokens 99.3 us (0.85; evict-first or not was worth 2 % there by half the warps).
"""

import torch
import triton
import triton.language as tl


def config(tokens: int, hidden: int) -> tuple[int, int]:
    """Columns and warps of a program."""
    cols = min(2048, triton.next_power_of_2(hidden))
    while cols > 256 and (hidden % cols or tokens * triton.cdiv(hidden, cols) < 528):
        cols //= 2
    return cols, max(1, cols // 64)


# The number of tokens is the grid's business alone.
@triton.jit
def moe_sum_reduce_kernel(x_ptr, out_ptr, token_stride, slot_stride, factor, H: tl.constexpr, K: tl.constexpr,
                          COLS: tl.constexpr, EVICT: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    x = x_ptr + token * token_stride + col
    total = tl.zeros([COLS], tl.float32)
    for slot in tl.static_range(K):
        if H % COLS == 0:
            part = tl.load(x + slot * slot_stride, eviction_policy=EVICT)
        else:
            part = tl.load(x + slot * slot_stride, mask=col < H, other=0.0, eviction_policy=EVICT)
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
            H=hidden, K=slots, COLS=cols, EVICT="evict_first" if expert_outputs.numel() < 1 << 27 else "",
            num_warps=warps,
        )  # fmt: skip
        return out
