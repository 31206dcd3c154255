"""RMSNorm of query and key heads of packed QKV, values copied: a program takes a run of heads, whosever they are."""

import torch
import triton
import triton.language as tl


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["rows"])
def fused_qk_rmsnorm_kernel(x_ptr, q_weight_ptr, k_weight_ptr, out_ptr, rows, stride, eps, HEADS: tl.constexpr,
                            KV_HEADS: tl.constexpr, D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    TOTAL: tl.constexpr = HEADS + 2 * KV_HEADS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)[None, :]
    live = (row < rows)[:, None]
    if COLS > D:
        live = live & (col < D)
    token, head = (row // TOTAL).to(tl.int64)[:, None], (row % TOTAL)[:, None]
    raw = tl.load(x_ptr + token * stride + head * D + col, mask=live, other=0.0)
    q_weight = tl.load(q_weight_ptr + col, mask=col < D, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + col, mask=col < D, other=0.0).to(tl.float32)

    x = raw.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    # Rounded to the storage type before the weight, and the product rounded again.
    normed = (x * scale).to(raw.dtype).to(tl.float32) * tl.where(head < HEADS, q_weight, k_weight)
    out = tl.where(head < HEADS + KV_HEADS, normed, x).to(raw.dtype)
    tl.store(out_ptr + row.to(tl.int64)[:, None] * D + col, out, mask=live)


class Model(torch.nn.Module):
    def __init__(self, head_num: int, kv_head_num: int, size_per_head: int, eps: float = 1e-6):
        super().__init__()
        self.heads, self.kv_heads, self.size, self.eps = head_num, kv_head_num, size_per_head, eps

    def forward(self, hidden_states: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty(hidden_states.shape, dtype=hidden_states.dtype, device=hidden_states.device)
        rows = hidden_states.shape[0] * (self.heads + 2 * self.kv_heads)
        cols = triton.next_power_of_2(self.size)
        # About 4096 elements a program, fewer heads while the grid would leave multiprocessors idle.
        tile = max(1, 4096 // cols)
        while tile > 2 and rows < 264 * tile:
            tile //= 2
        fused_qk_rmsnorm_kernel[(triton.cdiv(rows, tile),)](
            hidden_states, q_weight, k_weight, out, rows, hidden_states.stride(0), self.eps, HEADS=self.heads,
            KV_HEADS=self.kv_heads, D=self.size, COLS=cols, ROWS=tile, num_warps=min(16, max(1, tile * cols // 1024)),
        )  # fmt: skip
        return out
