"""Output of the gated delta rule in chunks: what the state before a chunk gives, and the chunk's own earlier tokens.
Persistent programs walk over tiles (chunk, head, half of the value columns). TMA brings tiles two rounds ahead, gates
are loaded a round ahead: a round waits for bandwidth alone; q and k of a head's second half, and of the head beside
it, come from L2. Bound by memory (80 KiB a chunk and head): expected 4.1 TB/s plus 4 us of launch, first latency and
tail: 512 tokens of 32 heads 10 us (S 0.43), 2048 tokens 26 us (0.67), 8192 tokens 88 us (0.8)."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

PROCESSORS = 132


def config(sequence_chunks: int, value: int) -> dict:
    """Columns of a tile, stages and warps; `sequence_chunks` counts chunks of all heads and sequences."""
    cols = min(64, value)
    while cols > 32 and sequence_chunks * (value // cols) < PROCESSORS:
        cols //= 2
    return {"cols": cols, "stages": 3, "warps": 4}


@triton.jit
def _place(tile, chunks, HEADS: tl.constexpr, BLOCKS: tl.constexpr):
    """Column block, head, chunk and sequence of a tile: neighbours share queries and keys."""
    return tile % BLOCKS, tile // BLOCKS % HEADS, tile // (BLOCKS * HEADS) % chunks, tile // (BLOCKS * HEADS) // chunks


@triton.jit
def _gates(g_ptr, tile, index, tokens, chunks, HEADS: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr):
    block, head, chunk, batch = _place(tile, chunks, HEADS, BLOCKS)
    token = tl.minimum(chunk * CHUNK + index, tokens - 1)
    return tl.load(g_ptr + (batch.to(tl.int64) * tokens + token) * HEADS + head)


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens", "chunks", "tiles"])
def chunk_output(q_desc, k_desc, v_desc, h_desc, out_desc, g_ptr, scale, tokens, chunks, tiles,
                 KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr,
                 COLS: tl.constexpr, STAGES: tl.constexpr):
    BLOCKS: tl.constexpr = V // COLS
    dtype: tl.constexpr = v_desc.dtype
    index = tl.arange(0, CHUNK)
    begin, step = tl.program_id(0), tl.num_programs(0)
    next_gate = _gates(g_ptr, begin, index, tokens, chunks, HEADS, BLOCKS, CHUNK)
    for tile in tl.range(begin, tiles, step, num_stages=STAGES):
        block, head, chunk, batch = _place(tile, chunks, HEADS, BLOCKS)
        key = head // (HEADS // KEY_HEADS) * K
        col = head * V + block * COLS
        q = q_desc.load([batch, chunk * CHUNK, key]).reshape(CHUNK, K)
        k = k_desc.load([batch, chunk * CHUNK, key]).reshape(CHUNK, K)
        h = h_desc.load([((batch * chunks + chunk) * HEADS + head) * K, block * COLS])
        v = v_desc.load([batch, chunk * CHUNK, col]).reshape(CHUNK, COLS)
        g = next_gate
        next_gate = _gates(g_ptr, tl.minimum(tile + step, tiles - 1), index, tokens, chunks, HEADS, BLOCKS, CHUNK)

        # Later tokens are cut off before the exponential, which could overflow.
        since = tl.exp(tl.where(index[:, None] >= index[None, :], g[:, None] - g[None, :], -float("inf")))
        scores = (tl.dot(q, tl.trans(k), out_dtype=tl.float32) * since).to(dtype)
        out = tl.dot(q, h, out_dtype=tl.float32) * tl.exp(g)[:, None]
        out = tl.dot(scores, v, acc=out, out_dtype=tl.float32) * scale
        out_desc.store([batch, chunk * CHUNK, col], out.to(dtype).reshape(1, CHUNK, COLS))


class Model(torch.nn.Module):
    def __init__(self, chunk_size: int):
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor,
                g: torch.Tensor) -> torch.Tensor:
        (batch, tokens, heads, value), (key_heads, key) = v.shape, k.shape[2:]
        size = self.chunk_size
        chunks = triton.cdiv(tokens, size)
        out = torch.empty_like(v)
        how = config(batch * heads * chunks, value)
        cols = how["cols"]
        tiles = batch * heads * chunks * (value // cols)

        def tokenwise(x: torch.Tensor, width: int) -> TensorDescriptor:
            wide = x.shape[2] * x.shape[3]
            return TensorDescriptor(x, [batch, tokens, wide], [tokens * wide, wide, 1], [1, size, width])

        chunk_output[(min(tiles, PROCESSORS),)](
            tokenwise(q, key), tokenwise(k, key), tokenwise(v, cols),
            TensorDescriptor.from_tensor(h.view(-1, value), [key, cols]), tokenwise(out, cols), g, key**-0.5, tokens,
            chunks, tiles, KEY_HEADS=key_heads, HEADS=heads, K=key, V=value, CHUNK=size, COLS=cols,
            STAGES=how["stages"], num_warps=how["warps"],
        )  # fmt: skip
        return out
