"""Decode attention over a paged cache: a program takes one sequence and one key head, a few whole pages at a time.

A page of one head is contiguous in both caches (keys [d/x, 16, x], values [d, 16]), so it is read as a flat run of
16-byte words and put in order in registers. Query heads that share the key head fill the rows of the matrix products.
"""

import torch
import triton
import triton.language as tl

PAGE = 16


# The table is as wide as the longest sequence: that must not make another specialization.
@triton.jit(do_not_specialize=["table_stride"])
def paged_attention_kernel(q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, out_ptr, scale, table_stride, k_page, k_head,
                           v_page, v_head, HEADS: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr,
                           D: tl.constexpr, X: tl.constexpr, PAGES: tl.constexpr):
    seq, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens_ptr + seq)
    TOKENS: tl.constexpr = PAGES * 16
    SIZE: tl.constexpr = D * 16

    member = tl.arange(0, G)
    dim = tl.arange(0, D)
    place = (seq.to(tl.int64) * HEADS + head * GROUP + member[:, None]) * D + dim[None, :]
    q = tl.load(q_ptr + place, mask=member[:, None] < GROUP, other=0.0)

    token = tl.arange(0, TOKENS)
    page = tl.arange(0, PAGES)
    word = tl.arange(0, SIZE)[None, :]
    top = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    acc = tl.zeros([G, D], tl.float32)
    for start in range(0, length, TOKENS):
        wanted = start + page * 16 < length
        number = tl.load(table_ptr + seq.to(tl.int64) * table_stride + start // 16 + page, mask=wanted, other=0)
        number = number.to(tl.int64)[:, None]
        k = tl.load(k_ptr + number * k_page + head * k_head + word, mask=wanted[:, None], other=0.0)
        v = tl.load(v_ptr + number * v_page + head * v_head + word, mask=wanted[:, None], other=0.0)
        k = tl.permute(tl.reshape(k, (PAGES, D // X, 16, X)), (0, 2, 1, 3))
        k = tl.reshape(k, (TOKENS, D))
        v = tl.permute(tl.reshape(v, (PAGES, D, 16)), (0, 2, 1))
        v = tl.reshape(v, (TOKENS, D))
        # Slots past the end of the last page are undefined: they may hold NaN, which a zero weight would not cancel.
        inside = start + token < length
        v = tl.where(inside[:, None], v, 0.0)

        score = tl.dot(q, tl.trans(k), out_dtype=tl.float32) * scale
        score = tl.where(inside[None, :], score, -float("inf"))
        peak = tl.maximum(top, tl.max(score, axis=1))
        p = tl.exp2(score - peak[:, None])
        decay = tl.exp2(top - peak)
        total = total * decay + tl.sum(p, axis=1)
        acc = acc * decay[:, None] + tl.dot(p.to(v.dtype), v, out_dtype=tl.float32)
        top = peak
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=member[:, None] < GROUP)


class Model(torch.nn.Module):
    def forward(self, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: torch.Tensor,
                seq_lens: torch.Tensor) -> torch.Tensor:
        seqs, heads, dim = query.shape
        kv_heads, x = k_cache.shape[1], k_cache.shape[4]
        group = heads // kv_heads
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        # Few programs: larger bites keep more of the cache in flight at once.
        pages = 8 if seqs * kv_heads <= 264 else 4
        paged_attention_kernel[(seqs, kv_heads)](
            query, k_cache, v_cache, block_tables, seq_lens, out, dim**-0.5 * 1.4426950408889634,
            block_tables.stride(0), k_cache.stride(0), k_cache.stride(1), v_cache.stride(0), v_cache.stride(1),
            HEADS=heads, GROUP=group, G=max(16, triton.next_power_of_2(group)), D=dim, X=x, PAGES=pages,
            num_warps=8 if pages * dim > 512 else 4, num_stages=1,
        )  # fmt: skip
        return out
