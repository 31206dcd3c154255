"""Decode attention over a paged cache in Gluon: a program takes a sequence's key head, its cache goes straight to mma.

A page of one head is contiguous in both caches, keys in words of 16 bytes along d, values along the tokens: with 8
elements of k in a row per lane (k_width 8) both are what a lane of mma.m16n8k16 holds, so that no byte passes shared
memory, and keys and values of all tokens are on their way at once. Lengths and page numbers are read side by side.
Where they are few, two share out the columns of the values (`slices`), each computing the scores anew.
Bounds: many programs HBM (16 or 32 KB in flight each), few of them latency: launch, table, cache.
Sweeps on an H200: 4096 programs 50 us (S 0.57), 56 us with tiles of 64 and four warps; 384 programs 11.4 us (0.23),
where small tiles lose (13 us); 16 to 32 programs of 128 tokens 8.6 us (0.03 to 0.05), 8.8 us without slices; one
6.8 us.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

LOG2E = 1.4426950408889634
SMS = 132


def config(programs: int, dim: int, longest: int) -> tuple[int, int]:
    """Tokens of a tile and warps. `longest` bounds the tokens of a sequence."""
    if programs > 8 * SMS and dim <= 128:  # small ones, as many as fit
        return 32, 2
    if programs > SMS:  # three programs an SM
        return (64 if dim <= 128 else 32), 4
    return min(256 if dim <= 128 else 128, max(64, triton.next_power_of_2(longest))), 8


@gluon.constexpr_function
def rows_for(group):
    return max(16, triton.next_power_of_2(group))


@gluon.constexpr_function
def word_layout(words, warps):
    """Words of 8 tokens as the values' operand holds them: four lanes take four words, registers the others."""
    registers = [[0, 1], [0, 2], [0, 4]] + [[1 << i, 0] for i in range(2, words.bit_length() - 1)]
    lanes = [[1, 0], [2, 0], [0, 0], [0, 0], [0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[0, 0]] * (warps.bit_length() - 1), [], [words, 8])


# The table is as wide as the longest sequence: that must not make another specialization.
@gluon.jit(do_not_specialize=["width", "table_stride"])
def paged_attention_kernel(q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, out_ptr, scale, width, table_stride,
                           HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, OUT: gl.constexpr,
                           PAGE: gl.constexpr, X: gl.constexpr, TOKENS: gl.constexpr, num_warps: gl.constexpr):
    GROUP: gl.constexpr = HEADS // KV_HEADS
    ROWS: gl.constexpr = rows_for(GROUP)
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, num_warps], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, PRODUCT, 8)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, PRODUCT, 8)
    WORDS: gl.constexpr = word_layout(TOKENS // 8, num_warps)
    SIZE: gl.constexpr = KV_HEADS * D * PAGE  # elements of a page
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    head, seq, low = gl.program_id(0), gl.program_id(1), gl.program_id(2) * OUT  # the first of OUT columns
    length = gl.load(lens_ptr + seq)
    table_row = table_ptr + seq.to(gl.int64) * table_stride

    member = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LEFT))
    dim = gl.arange(0, D, layout=gl.SliceLayout(0, LEFT))
    q_place = (seq * HEADS + head * GROUP + gl.minimum(member, GROUP - 1)) * D
    q = gl.load(q_ptr + q_place[:, None] + dim[None, :])
    k_token = gl.arange(0, TOKENS, layout=gl.SliceLayout(0, RIGHT))
    k_dim = gl.arange(0, D, layout=gl.SliceLayout(1, RIGHT))
    k_inside = k_dim // X * (PAGE * X) + k_dim % X
    v_token = gl.arange(0, TOKENS, layout=gl.SliceLayout(1, RIGHT))
    v_dim = gl.arange(0, OUT, layout=gl.SliceLayout(0, RIGHT))
    word = gl.arange(0, TOKENS // 8, layout=gl.SliceLayout(1, WORDS)) * 8
    inside = gl.arange(0, 8, layout=gl.SliceLayout(0, WORDS))
    k_head = k_ptr + head * (D * PAGE)
    v_head = v_ptr + head * (D * PAGE) + low * PAGE

    token = gl.arange(0, TOKENS, layout=gl.SliceLayout(0, PRODUCT))
    top = gl.full([ROWS], -1e30, gl.float32, layout=gl.SliceLayout(1, PRODUCT))
    total = gl.full([ROWS], 0.0, gl.float32, layout=gl.SliceLayout(1, PRODUCT))
    acc = gl.zeros([ROWS, OUT], gl.float32, layout=PRODUCT)
    # Weights change hands through shared memory at once; convert_layout would take many rounds.
    shared = gl.allocate_shared_memory(dtype, [ROWS, TOKENS], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    # Entries past the last page are read, not used: page numbers do not wait for the length, nor later for a tile.
    k_page = gl.load(table_row + gl.minimum(k_token // PAGE, width - 1))
    v_page = gl.load(table_row + gl.minimum(word // PAGE, width - 1))
    for start in range(0, length, TOKENS):
        k_at, v_at = start + k_token, start + word
        k_place = k_page.to(gl.int64) * SIZE + k_at % PAGE * X
        k = gl.load(k_head + k_place[None, :] + k_inside[:, None], mask=(k_at < length)[None, :], other=0.0)
        # A word of eight tokens is contiguous; one past the end is not read, and one that straddles it is cut below.
        v_place = (v_page.to(gl.int64) * SIZE + v_at % PAGE)[:, None] + inside[None, :]
        v_place = gl.convert_layout(v_place.reshape([TOKENS]), gl.SliceLayout(1, RIGHT))
        v_place = gl.max_contiguous(gl.multiple_of(v_place, 8), 8)
        read = (start + v_token // 8 * 8 < length)[:, None]
        v = gl.load(v_head + v_place[:, None] + v_dim[None, :] * PAGE, mask=read, other=0.0)
        k_page = gl.load(table_row + gl.minimum((k_at + TOKENS) // PAGE, width - 1))
        v_page = gl.load(table_row + gl.minimum((v_at + TOKENS) // PAGE, width - 1))

        score = mma_v2(q, k, gl.zeros([ROWS, TOKENS], gl.float32, layout=PRODUCT))
        score = gl.where((start + token < length)[None, :], score, -float("inf"))
        peak = gl.maximum(top, gl.max(score, axis=1) * scale)
        p = gl.exp2(score * scale - peak[:, None])
        decay = gl.exp2(top - peak)
        total = total * decay + gl.sum(p, axis=1)
        # Slots past the end may hold NaN, which a weight of zero would not cancel.
        v = gl.where((start + v_token < length)[:, None], v, 0.0)
        shared.store(p.to(dtype))
        acc = mma_v2(shared.load(LEFT), v.to(dtype), acc * decay[:, None])
        top = peak
    out = (acc / total[:, None]).to(dtype)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, PRODUCT))
    column = low + gl.arange(0, OUT, layout=gl.SliceLayout(0, PRODUCT))
    place = (seq * HEADS + head * GROUP + row) * D
    gl.store(out_ptr + place[:, None] + column[None, :], out, mask=(row < GROUP)[:, None])


class Model(torch.nn.Module):
    def forward(self, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: torch.Tensor,
                seq_lens: torch.Tensor) -> torch.Tensor:
        seqs, heads, dim = query.shape
        _, kv_heads, _, page, x = k_cache.shape
        out = torch.empty_like(query)
        tokens, warps = config(seqs * kv_heads, dim, block_tables.shape[1] * page)
        slices = 2 if seqs * kv_heads <= SMS // 2 else 1
        paged_attention_kernel[(kv_heads, seqs, slices)](
            query, k_cache, v_cache, block_tables, seq_lens, out, dim**-0.5 * LOG2E, block_tables.shape[1],
            block_tables.stride(0), HEADS=heads, KV_HEADS=kv_heads, D=dim, OUT=dim // slices, PAGE=page,
            X=x, TOKENS=tokens, num_warps=warps,
        )  # fmt: skip
        return out
