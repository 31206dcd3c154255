"""States of the gated delta rule before each chunk, in Gluon for Hopper: a program carries some value columns of one
head's state in fp32 registers through all chunks. A ring of TMA tiles runs several chunks ahead, for a chunk takes less
than memory's latency. The rounded state is written to shared memory once: wgmma reads it, TMA stores it as h.
Bound: few heads by the chain of two products a chunk (about 0.4 us for 32 columns, 0.5 for 64), many by bandwidth; each
block of columns reads w and k again from L2, so blocks are wide where there are many heads. Expected: 2048 tokens of 2
heads 16 us (S 0.08), of 14 heads 17 us (0.5), of 32 heads 28 us (0.7), 11027 tokens of 32 heads 135 us (0.78)."""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def config(sequences: int, value: int) -> dict:
    """Columns a program and stages; `sequences` counts heads of all sequences."""
    cols, stages = (16, 5) if sequences <= 6 else (32, 5) if sequences <= 16 else (64, 4)
    return {"cols": min(cols, value), "stages": stages}


@gluon.jit
def start_copies(w_desc, u_desc, k_desc, w_ring, u_ring, k_ring, full, batch, token, w_col, u_col, k_col, chunk, chunks,
                 STAGES: gl.constexpr):
    """Ask for the tiles of a chunk; nothing happens past the last one."""
    slot = chunk % STAGES
    wanted = chunk < chunks
    bar = full.index(slot)
    size: gl.constexpr = w_desc.block_type.nbytes + u_desc.block_type.nbytes + k_desc.block_type.nbytes
    mbarrier.expect(bar, size, pred=wanted)
    tma.async_copy_global_to_shared(w_desc, [batch, token, w_col], bar, w_ring.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(u_desc, [batch, token, u_col], bar, u_ring.index(slot), pred=wanted)
    tma.async_copy_global_to_shared(k_desc, [batch, token, k_col], bar, k_ring.index(slot), pred=wanted)


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens", "chunks"])
def chunk_states(k_desc, w_desc, u_desc, h_desc, v_desc, g_ptr, pool_ptr, rows_ptr, tokens, chunks,
                 KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, K: gl.constexpr, V: gl.constexpr, CHUNK: gl.constexpr,
                 COLS: gl.constexpr, STAGES: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLS, 16])
    dtype: gl.constexpr = h_desc.dtype
    first = gl.program_id(0) * COLS
    head = gl.program_id(1)
    batch = gl.program_id(2)
    w_col, u_col, k_col = head * K, head * V + first, head // (HEADS // KEY_HEADS) * K

    w_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, K], w_desc.layout)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, K], k_desc.layout)
    u_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, COLS], u_desc.layout)
    h_ring = gl.allocate_shared_memory(dtype, [2, K, COLS], h_desc.layout)
    v_ring = gl.allocate_shared_memory(dtype, [2, 1, CHUNK, COLS], v_desc.layout)
    added_tile = gl.allocate_shared_memory(dtype, [CHUNK, COLS], h_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
    fence_async_shared()
    for early in gl.static_range(STAGES - 1):
        start_copies(w_desc, u_desc, k_desc, w_ring, u_ring, k_ring, full, batch, early * CHUNK, w_col, u_col, k_col,
                     early, chunks, STAGES)  # fmt: skip

    index = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, layout))
    dim = gl.arange(0, K, layout=gl.SliceLayout(1, layout))[:, None]
    col = first + gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))[None, :]
    gate_ptr = g_ptr + batch.to(gl.int64) * tokens * HEADS + head
    # Past the last token stands that one's gate: its value there is zero.
    next_gate = gl.load(gate_ptr + gl.minimum(index, tokens - 1) * HEADS)
    next_last = gl.load(gate_ptr + (gl.minimum(CHUNK, tokens) - 1) * HEADS)
    row = gl.load(rows_ptr + batch).to(gl.int64)
    state_ptr = pool_ptr + ((row * HEADS + head) * K + dim) * V + col
    state = gl.load(state_ptr)
    zero = gl.zeros([CHUNK, COLS], gl.float32, layout=layout)
    for chunk in range(chunks):
        start = chunk * CHUNK
        here = chunk % STAGES
        rounded = h_ring.index(chunk & 1)
        fresh = v_ring.index(chunk & 1)
        # What is overwritten now, the slot of the chunk before and the results of two chunks ago, all are through with.
        tma.store_wait(2)
        gl.thread_barrier()
        gate, last = next_gate, next_last
        next_gate = gl.load(gate_ptr + gl.minimum(start + CHUNK + index, tokens - 1) * HEADS)
        next_last = gl.load(gate_ptr + (gl.minimum(start + 2 * CHUNK, tokens) - 1) * HEADS)

        rounded.store(state.to(dtype))
        fence_async_shared()
        mbarrier.wait(full.index(here), (chunk // STAGES) & 1)
        tma.async_copy_shared_to_global(h_desc, [((batch * chunks + chunk) * HEADS + head) * K, first], rounded)
        read = warpgroup_mma(w_ring.index(here).reshape([CHUNK, K]), rounded, zero, use_acc=False, is_async=True)
        start_copies(w_desc, u_desc, k_desc, w_ring, u_ring, k_ring, full, batch, start + (STAGES - 1) * CHUNK, w_col,
                     u_col, k_col, chunk + STAGES - 1, chunks, STAGES)  # fmt: skip
        u = u_ring.index(here).reshape([CHUNK, COLS]).load(layout).to(gl.float32)
        since = gl.exp(last - gate)
        state = state * gl.exp(last)
        read = warpgroup_mma_wait(num_outstanding=0, deps=[read])

        v = u - read
        added_tile.store((v * since[:, None]).to(dtype))
        fresh.reshape([CHUNK, COLS]).store(v.to(dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(v_desc, [batch, start, u_col], fresh)
        keys = k_ring.index(here).reshape([CHUNK, K]).permute((1, 0))
        state = warpgroup_mma(keys, added_tile, state, is_async=True)
        state = warpgroup_mma_wait(num_outstanding=0, deps=[state])
    tma.store_wait(0)
    for slot in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(slot))
    gl.store(state_ptr, state)


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
            layout = gl.NVMMASharedLayout(min(128, 2 * width), 16, rank=3)
            return TensorDescriptor(x, [batch, tokens, wide], [tokens * wide, wide, 1], [1, size, width], layout)

        states = TensorDescriptor.from_tensor(
            h.view(-1, value), [key, cols], gl.NVMMASharedLayout(min(128, 2 * cols), 16, rank=2)
        )
        chunk_states[(value // cols, heads, batch)](
            tokenwise(k, key), tokenwise(w, key), tokenwise(u, cols), states, tokenwise(v_new, cols), g, initial_state,
            initial_state_indices, tokens, chunks, KEY_HEADS=key_heads, HEADS=heads, K=key, V=value, CHUNK=size,
            COLS=cols, STAGES=how["stages"], num_warps=4,
        )  # fmt: skip
        return {"h": h, "v_new": v_new}
