"""States of the gated delta rule before each chunk, in Gluon for Hopper: a program holds 64 value columns of one head's
state, transposed, in fp32 registers through all chunks. Rounded, it is the register operand of the first product
(state w), what this corrects that of the second (state += v k): nothing in the chain passes through shared memory. One
warp brings tiles by TMA and makes the gates' factors some chunks ahead; states and values leave by TMA, each behind a
product.
Bound: few heads by the chain of two products a chunk (512 cycles of them, expected 0.5 us), many by bandwidth. Before,
with the state's operand in shared memory, measured on an H200: 2048 tokens of 8 heads 29 us (S 0.17), of 16 heads
32 us (0.31), of 32 heads 42 us (0.48), 16384 tokens of 4 heads 166 us (0.12), 11027 tokens of 32 heads 190 us (0.55).
Expected now: 23 us (0.22), 24 us (0.42), 29 us (0.7), 135 us (0.14), 140 us (0.75)."""

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

COLS = 64  # the rows of a product: fewer would leave tensor cores idle


def config(sequences: int, value: int) -> dict:
    """Stages of the ring and tiles for results; `sequences` counts heads of all sequences."""
    # Two programs share a multiprocessor where there are more programs than these.
    return {"stages": 4, "tiles": 2} if sequences * (value // COLS) <= 132 else {"stages": 2, "tiles": 1}


# Conversions that stay where they stand, before or behind a product; those of the compiler move into the chain.
@gluon.jit
def _widened(x):
    return gl.inline_asm_elementwise("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=&r,=r,r", [x],
                                     dtype=gl.float32, is_pure=False, pack=2)  # fmt: skip


@gluon.jit
def _rounded(x):
    return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=False,
                                     pack=2)  # fmt: skip


@gluon.jit
def _gates(gate_ptr, start, index, tokens, HEADS: gl.constexpr, CHUNK: gl.constexpr):
    # Past the last token stands that one's gate: its value there is zero.
    gate = gl.load(gate_ptr + gl.minimum(start + index, tokens - 1) * HEADS)
    return gate, gl.load(gate_ptr + (gl.minimum(start + CHUNK, tokens) - 1) * HEADS)


@gluon.jit
def _copy_in(w_desc, u_desc, k_desc, w_ring, u_ring, k_ring, factors, full, empty, gate_ptr, batch, w_col, u_col, k_col,
             tokens, chunks, HEADS: gl.constexpr):
    STAGES: gl.constexpr = w_ring.shape[0]
    CHUNK: gl.constexpr = w_ring.shape[2]
    index = gl.arange(0, CHUNK, layout=gl.BlockedLayout([CHUNK // 32], [32], [1], [0]))
    size: gl.constexpr = w_desc.block_type.nbytes + u_desc.block_type.nbytes + k_desc.block_type.nbytes
    # Gates are loaded four chunks ahead and four at a time: what is loaded is waited for where it moves on.
    next_gates = ()
    for i in gl.static_range(4):
        next_gates = next_gates + _gates(gate_ptr, i * CHUNK, index, tokens, HEADS, CHUNK)
    for group in range(0, chunks, 4):
        gates = next_gates
        next_gates = ()
        for i in gl.static_range(4):
            next_gates = next_gates + _gates(gate_ptr, (group + 4 + i) * CHUNK, index, tokens, HEADS, CHUNK)
        for i in gl.static_range(4):
            chunk = group + i
            if chunk < chunks:
                start = chunk * CHUNK
                slot = chunk % STAGES
                mbarrier.wait(empty.index(slot), chunk // STAGES & 1 ^ 1)
                bar = full.index(slot)
                mbarrier.expect(bar, size)
                tma.async_copy_global_to_shared(w_desc, [batch, start, w_col], bar, w_ring.index(slot))
                tma.async_copy_global_to_shared(u_desc, [batch, start, u_col], bar, u_ring.index(slot))
                tma.async_copy_global_to_shared(k_desc, [batch, start, k_col], bar, k_ring.index(slot))
                gate, last = gates[2 * i], gates[2 * i + 1]
                factors.index(2 * slot).store(gl.exp(last - gate))
                factors.index(2 * slot + 1).store(gl.exp(last + 0.0 * gate))
                gl.thread_barrier()
                mbarrier.arrive(bar)


@gluon.jit
def _walk(w_ring, u_ring, k_ring, factors, h_tiles, v_tiles, full, empty, h_desc, v_desc, state_ptr, h_row, h_step,
          h_col, batch, u_col, chunks, V: gl.constexpr):
    STAGES: gl.constexpr = w_ring.shape[0]
    CHUNK: gl.constexpr = w_ring.shape[2]
    K: gl.constexpr = w_ring.shape[3]
    COLS: gl.constexpr = u_ring.shape[3]
    TILES: gl.constexpr = h_tiles.shape[0]
    dtype: gl.constexpr = h_desc.dtype
    wide: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, K, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16])
    # The state is transposed: its columns are the rows of every product.
    col = gl.arange(0, COLS, layout=gl.SliceLayout(1, wide))
    dim = gl.arange(0, K, layout=gl.SliceLayout(0, wide))
    place = state_ptr + dim[None, :] * V + col[:, None]
    state = gl.load(place)
    zero = gl.zeros([COLS, CHUNK], gl.float32, layout=layout)
    slot = 0
    phase = 0
    for chunk in range(chunks):
        rounded = state.to(dtype)
        half = gl.convert_layout(rounded, gl.DotOperandLayout(0, layout, 2))
        mbarrier.wait(full.index(slot), phase)
        w = w_ring.index(slot).reshape([CHUNK, K])
        x = warpgroup_mma(half, w.permute((1, 0)), zero, use_acc=False, is_async=True)
        # The state leaves behind the first product.
        tma.store_wait(2 * TILES - 1)
        h_tile = h_tiles.index(chunk % TILES)
        h_tile.permute((1, 0)).store(rounded)
        fence_async_shared()
        tma.async_copy_shared_to_global(h_desc, [h_row + chunk * h_step, h_col], h_tile)
        u = u_ring.index(slot).reshape([CHUNK, COLS]).permute((1, 0)).load(layout)
        since = factors.index(2 * slot).load(gl.SliceLayout(0, layout))
        keep = factors.index(2 * slot + 1).load(gl.SliceLayout(1, wide))
        # Long since here: two loops between which the multiplications stay, behind a product that they hide behind.
        mbarrier.wait(full.index(slot), phase)
        state = warpgroup_mma_wait(1, deps=[state])
        state = state * keep[:, None]
        u = _widened(u)
        mbarrier.wait(full.index(slot), phase)
        x, half = warpgroup_mma_wait(0, deps=[x, half])
        v = u - x
        added = gl.convert_layout(_rounded(v * since[None, :]), gl.DotOperandLayout(0, wide, 2))
        state = warpgroup_mma(added, k_ring.index(slot).reshape([CHUNK, K]), state, is_async=True)
        # The corrected values leave behind the second.
        tma.store_wait(2 * TILES - 1)
        v_tile = v_tiles.index(chunk % TILES)
        v_tile.reshape([CHUNK, COLS]).permute((1, 0)).store(_rounded(v))
        fence_async_shared()
        tma.async_copy_shared_to_global(v_desc, [batch, chunk * CHUNK, u_col], v_tile)
        state, added = warpgroup_mma_wait(0, deps=[state, added])
        mbarrier.arrive(empty.index(slot))
        done = slot == STAGES - 1
        phase = gl.where(done, phase ^ 1, phase)
        slot = gl.where(done, 0, slot + 1)
    gl.store(place, state)
    tma.store_wait(0)


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens", "chunks"])
def chunk_states(k_desc, w_desc, u_desc, h_desc, v_desc, g_ptr, pool_ptr, rows_ptr, tokens, chunks,
                 KEY_HEADS: gl.constexpr, HEADS: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
                 TILES: gl.constexpr):
    dtype: gl.constexpr = h_desc.dtype
    gl.static_assert(dtype == gl.bfloat16)
    K: gl.constexpr = h_desc.block_type.shape[0]
    COLS: gl.constexpr = h_desc.block_type.shape[1]
    CHUNK: gl.constexpr = k_desc.block_type.shape[1]
    first = gl.program_id(0) * COLS
    head = gl.program_id(1)
    batch = gl.program_id(2)
    row = gl.load(rows_ptr + batch).to(gl.int64)
    state_ptr = pool_ptr + (row * HEADS + head) * K * V + first
    gate_ptr = g_ptr + batch.to(gl.int64) * tokens * HEADS + head
    w_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, K], w_desc.layout)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, K], k_desc.layout)
    u_ring = gl.allocate_shared_memory(dtype, [STAGES, 1, CHUNK, COLS], u_desc.layout)
    h_tiles = gl.allocate_shared_memory(dtype, [TILES, K, COLS], h_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [TILES, 1, CHUNK, COLS], v_desc.layout)
    factors = gl.allocate_shared_memory(gl.float32, [2 * STAGES, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        # Full: what TMA brings, and the gates' factors.
        mbarrier.init(full.index(slot), count=2)
        mbarrier.init(empty.index(slot), count=1)
    gl.warp_specialize(
        [
            (_walk, (w_ring, u_ring, k_ring, factors, h_tiles, v_tiles, full, empty, h_desc, v_desc, state_ptr,
                     (batch * chunks * HEADS + head) * K, HEADS * K, first, batch, head * V + first, chunks, V)),
            (_copy_in, (w_desc, u_desc, k_desc, w_ring, u_ring, k_ring, factors, full, empty, gate_ptr, batch, head * K,
                        head * V + first, head // (HEADS // KEY_HEADS) * K, tokens, chunks, HEADS)),
        ],
        [1],
        [40],
    )  # fmt: skip


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
        deep = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
        flat = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)

        def tokenwise(x: torch.Tensor, width: int) -> TensorDescriptor:
            wide = x.shape[2] * x.shape[3]
            return TensorDescriptor(x, [batch, tokens, wide], [tokens * wide, wide, 1], [1, size, width], deep)

        chunk_states[(value // COLS, heads, batch)](
            tokenwise(k, key), tokenwise(w, key), tokenwise(u, COLS),
            TensorDescriptor.from_tensor(h.view(-1, value), [key, COLS], flat), tokenwise(v_new, COLS), g,
            initial_state, initial_state_indices, tokens, chunks, KEY_HEADS=key_heads, HEADS=heads, V=value,
            STAGES=how["stages"], TILES=how["tiles"], num_warps=4, maxnreg=128,
        )  # fmt: skip
        return {"h": h, "v_new": v_new}
