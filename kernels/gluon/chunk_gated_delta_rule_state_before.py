"""States of the gated delta rule before each chunk: a program carries some value columns of one head's state in fp32
registers through all chunks. TMA brings w, k and u several chunks ahead, for a chunk takes less than memory's latency;
states and corrected values leave by TMA, too. What stays in the chain are two wgmma and two trips of a small operand
through shared memory.
Bound: few heads by that chain (0.45 us a chunk of 32 columns, 0.6 of 64), many by bandwidth; each block of columns
reads w and k again from L2, so blocks are wide where there are many heads. Expected: 2048 tokens of 2 heads 18 us
(S 0.07), of 14 heads 20 us (0.44), of 32 heads 28 us (0.7), 11027 tokens of 32 heads 135 us (0.78)."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def config(sequences: int, value: int) -> dict:
    """Columns a program and stages; `sequences` counts heads of all sequences."""
    cols, stages = (16, 5) if sequences <= 16 else (32, 5) if sequences <= 33 else (64, 4)
    cols = min(cols, value)
    if sequences * value // cols > 132:
        stages = 3  # two programs share a multiprocessor
    return {"cols": cols, "stages": stages, "warps": 4}


# The number of chunks changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens", "chunks"])
def chunk_states(k_desc, w_desc, u_desc, h_desc, v_desc, g_ptr, pool_ptr, rows_ptr, tokens, chunks,
                 KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr,
                 COLS: tl.constexpr, STAGES: tl.constexpr):
    first = tl.program_id(0) * COLS
    head = tl.program_id(1)
    batch = tl.program_id(2)
    key_head = head // (HEADS // KEY_HEADS)
    index = tl.arange(0, CHUNK)
    dim = tl.arange(0, K)[:, None]
    col = first + tl.arange(0, COLS)[None, :]
    dtype: tl.constexpr = h_desc.dtype

    row = tl.load(rows_ptr + batch).to(tl.int64)
    state_ptr = pool_ptr + ((row * HEADS + head) * K + dim) * V + col
    state = tl.load(state_ptr)
    gate_ptr = g_ptr + batch.to(tl.int64) * tokens * HEADS + head
    # Past the last token stands that one's gate: its value there is zero.
    next_gate = tl.load(gate_ptr + tl.minimum(index, tokens - 1) * HEADS)
    next_last = tl.load(gate_ptr + (tl.minimum(CHUNK, tokens) - 1) * HEADS)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        start = chunk * CHUNK
        w = w_desc.load([batch, start, head * K]).reshape(CHUNK, K)
        u = u_desc.load([batch, start, head * V + first]).reshape(CHUNK, COLS)
        k = k_desc.load([batch, start, key_head * K]).reshape(CHUNK, K)
        gate, last = next_gate, next_last
        next_gate = tl.load(gate_ptr + tl.minimum(start + CHUNK + index, tokens - 1) * HEADS)
        next_last = tl.load(gate_ptr + (tl.minimum(start + 2 * CHUNK, tokens) - 1) * HEADS)
        since = tl.exp(last - gate)

        # Each store waits until the one before has left shared memory: a product stands between them.
        rounded = state.to(dtype)
        h_desc.store([((batch * chunks + chunk) * HEADS + head) * K, first], rounded)
        v = u.to(tl.float32) - tl.dot(w, rounded, out_dtype=tl.float32)
        v_desc.store([batch, start, head * V + first], v.to(dtype).reshape(1, CHUNK, COLS))
        added = (v * since[:, None]).to(dtype)
        state = tl.dot(tl.trans(k), added, acc=state * tl.exp(last), out_dtype=tl.float32)
    tl.store(state_ptr, state)


class Model(torch.nn.Module):
    def __init__(self, chunk_size: int):
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, k: torch.Tensor, w: torch.Tensor, u: torch.Tensor, g: torch.Tensor, initial_state: torch.Tensor,
                initial_state_indices: torch.Tensor) -> dict[str, torch.Tensor]:
        (batch, tokens, heads, value), (key_heads, key) = u.shape, k.shape[2:]
        size = self.chunk_size
        chunks = triton.cdiv(tokens, size)
        h = torch.empty((batch, chunks, heads, key, value), dtype=k.dtype, device=k.device)
        v_new = torch.empty(u.shape, dtype=k.dtype, device=k.device)
        how = config(batch * heads, value)
        cols = how["cols"]

        def tokenwise(x: torch.Tensor, width: int) -> TensorDescriptor:
            wide = x.shape[2] * x.shape[3]
            return TensorDescriptor(x, [batch, tokens, wide], [tokens * wide, wide, 1], [1, size, width])

        chunk_states[(value // cols, heads, batch)](
            tokenwise(k, key), tokenwise(w, key), tokenwise(u, cols),
            TensorDescriptor.from_tensor(h.view(-1, value), [key, cols]), tokenwise(v_new, cols), g, initial_state,
            initial_state_indices, tokens, chunks, KEY_HEADS=key_heads, HEADS=heads, K=key, V=value, CHUNK=size,
            COLS=cols, STAGES=how["stages"], num_warps=how["warps"],
        )  # fmt: skip
        return {"h": h, "v_new": v_new}
