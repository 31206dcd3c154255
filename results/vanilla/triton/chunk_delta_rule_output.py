"""Output of the gated delta rule in chunks: what the state before a chunk gives, and the chunk's own earlier tokens."""

import torch
import triton
import triton.language as tl


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens", "chunks"])
def chunk_output_kernel(q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, out_ptr, scale, tokens, chunks, KEY_HEADS: tl.constexpr,
                        HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr,
                        COLS: tl.constexpr):
    chunk = tl.program_id(1)
    batch = (tl.program_id(2) // HEADS).to(tl.int64)
    head = tl.program_id(2) % HEADS
    key_head = head // (HEADS // KEY_HEADS)
    dim = tl.arange(0, K)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    index = tl.arange(0, CHUNK)
    token = chunk * CHUNK + index
    live = token < tokens
    place = (batch * tokens + token) * HEADS + head
    key = ((batch * tokens + token) * KEY_HEADS + key_head)[:, None] * K + dim[None, :]

    q = tl.load(q_ptr + key, mask=live[:, None], other=0.0)
    k = tl.load(k_ptr + key, mask=live[:, None], other=0.0)
    v = tl.load(v_ptr + place[:, None] * V + col[None, :], mask=live[:, None], other=0.0)
    h = tl.load(h_ptr + (((batch * chunks + chunk) * HEADS + head) * K + dim[:, None]) * V + col[None, :])
    g = tl.load(g_ptr + place, mask=live, other=0.0)
    # Later tokens, and those past the end, are cut off before the exponential, which could overflow.
    seen = (index[:, None] >= index[None, :]) & live[:, None]
    since = tl.exp(tl.where(seen, g[:, None] - g[None, :], -float("inf")))
    scores = (tl.dot(q, tl.trans(k), out_dtype=tl.float32) * since).to(v.dtype)
    out = tl.dot(q, h, out_dtype=tl.float32) * tl.exp(g)[:, None]
    out = tl.dot(scores, v, acc=out, out_dtype=tl.float32) * scale
    tl.store(out_ptr + place[:, None] * V + col[None, :], out.to(out_ptr.dtype.element_ty), mask=live[:, None])


class Model(torch.nn.Module):
    def __init__(self, chunk_size: int):
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor,
                g: torch.Tensor) -> torch.Tensor:
        (batch, tokens, heads, value), (key_heads, key) = v.shape, k.shape[2:]
        chunks = triton.cdiv(tokens, self.chunk_size)
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        # All columns at once compute the scores once; fewer while the grid would leave multiprocessors idle.
        cols = value
        while cols > 32 and batch * heads * chunks * (value // cols) < 132:
            cols //= 2
        chunk_output_kernel[(value // cols, chunks, batch * heads)](
            q, k, v, h, g, out, key**-0.5, tokens, chunks, KEY_HEADS=key_heads, HEADS=heads, K=key, V=value,
            CHUNK=self.chunk_size, COLS=cols, num_warps=4, num_stages=1,
        )  # fmt: skip
        return out
