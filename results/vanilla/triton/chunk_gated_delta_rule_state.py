"""States of the gated delta rule before each chunk: a program keeps some columns of one head's state in registers and
goes through the chunks in order; nothing crosses columns."""

import torch
import triton
import triton.language as tl


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens", "chunks"])
def chunk_state_kernel(k_ptr, w_ptr, u_ptr, g_ptr, pool_ptr, rows_ptr, h_ptr, v_ptr, tokens, chunks,
                       KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
                       CHUNK: tl.constexpr, COLS: tl.constexpr):
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    key_head = head // (HEADS // KEY_HEADS)
    dim = tl.arange(0, K)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    dtype = h_ptr.dtype.element_ty

    row = tl.load(rows_ptr + batch).to(tl.int64)
    state_ptr = pool_ptr + ((row * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    state = tl.load(state_ptr)
    for chunk in range(0, chunks):
        rounded = state.to(dtype)
        tl.store(h_ptr + (((batch * chunks + chunk) * HEADS + head) * K + dim[:, None]) * V + col[None, :], rounded)
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        live = token < tokens
        place = (batch * tokens + token) * HEADS + head
        w = tl.load(w_ptr + place[:, None] * K + dim[None, :], mask=live[:, None], other=0.0)
        u = tl.load(u_ptr + place[:, None] * V + col[None, :], mask=live[:, None], other=0.0)
        key = ((batch * tokens + token) * KEY_HEADS + key_head)[None, :] * K + dim[:, None]
        k = tl.load(k_ptr + key, mask=live[None, :], other=0.0)
        g = tl.load(g_ptr + place, mask=live, other=0.0)
        last = tl.load(g_ptr + (batch * tokens + tl.minimum((chunk + 1) * CHUNK, tokens) - 1) * HEADS + head)

        v = u.to(tl.float32) - tl.dot(w, rounded, out_dtype=tl.float32)
        tl.store(v_ptr + place[:, None] * V + col[None, :], v.to(dtype), mask=live[:, None])
        # Past the last token g would leave a positive exponent, which may overflow.
        since = tl.exp(tl.where(live, last - g, 0.0))
        state = state * tl.exp(last) + tl.dot(k, (v * since[:, None]).to(dtype), out_dtype=tl.float32)
    tl.store(state_ptr, state)


class Model(torch.nn.Module):
    def __init__(self, chunk_size: int):
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, g: torch.Tensor, initial_state: torch.Tensor,
                initial_state_indices: torch.Tensor) -> dict[str, torch.Tensor]:
        (batch, tokens, heads, value), (key_heads, key) = u.shape, k.shape[2:]
        chunks = triton.cdiv(tokens, self.chunk_size)
        h = torch.empty((batch, chunks, heads, key, value), dtype=k.dtype, device=k.device)
        v_new = torch.empty(u.shape, dtype=k.dtype, device=k.device)
        # One head's chunks follow each other: narrow columns keep more programs at it.
        cols = 32 if batch * heads * (value // 32) >= 132 else 16
        chunk_state_kernel[(value // cols, heads, batch)](
            k, w, u, g, initial_state, initial_state_indices, h, v_new, tokens, chunks, KEY_HEADS=key_heads,
            HEADS=heads, K=key, V=value, CHUNK=self.chunk_size, COLS=cols, num_warps=4, num_stages=2,
        )  # fmt: skip
        return {"h": h, "v_new": v_new}
