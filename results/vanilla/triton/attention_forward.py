"""Attention over whole sequences laid one after the other: a program takes some queries of one head and passes over the
keys once. Head size 72 is computed as 64 and 16, of which 8 are zero."""

import torch
import triton
import triton.language as tl


@triton.jit
def _span(acc0, acc1, top, total, q0, q1, k_ptr, v_ptr, low, high, end, scale, STRIDE: tl.constexpr, D: tl.constexpr,
          D0: tl.constexpr, D1: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Keys low to high, in tiles; with MASKED the last one is cut off at `end`."""
    dim0 = tl.arange(0, D0)[None, :]
    for start in range(low, high, TILE):
        token = start + tl.arange(0, TILE)
        held = (token < end)[:, None]
        row = token.to(tl.int64)[:, None] * STRIDE
        if MASKED:
            k0 = tl.load(k_ptr + row + dim0, mask=held, other=0.0)
            v0 = tl.load(v_ptr + row + dim0, mask=held, other=0.0)
        else:
            k0 = tl.load(k_ptr + row + dim0)
            v0 = tl.load(v_ptr + row + dim0)
        score = tl.dot(q0, tl.trans(k0), out_dtype=tl.float32)
        if D1 > 0:
            dim1 = D0 + tl.arange(0, D1)[None, :]
            inside = dim1 < D
            if MASKED:
                inside = inside & held
            k1 = tl.load(k_ptr + row + dim1, mask=inside, other=0.0)
            v1 = tl.load(v_ptr + row + dim1, mask=inside, other=0.0)
            score = tl.dot(q1, tl.trans(k1), acc=score, out_dtype=tl.float32)
        score = score * scale
        if MASKED:
            score = tl.where((token < end)[None, :], score, -float("inf"))
        # Every tile has a key, so the maximum is finite.
        peak = tl.maximum(top, tl.max(score, axis=1))
        p = tl.exp2(score - peak[:, None])
        decay = tl.exp2(top - peak)
        total = total * decay + tl.sum(p, axis=1)
        weights = p.to(v0.dtype)
        acc0 = tl.dot(weights, v0, acc=acc0 * decay[:, None], out_dtype=tl.float32)
        if D1 > 0:
            acc1 = tl.dot(weights, v1, acc=acc1 * decay[:, None], out_dtype=tl.float32)
        top = peak
    return acc0, acc1, top, total


# Counts change from batch to batch: they must not make another specialization.
@triton.jit(do_not_specialize=["sequences"])
def attention_forward_kernel(q_ptr, k_ptr, v_ptr, bounds_q_ptr, bounds_k_ptr, out_ptr, scale, sequences,
                             HEADS: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
                             ROWS: tl.constexpr, TILE: tl.constexpr):
    block = tl.program_id(0)
    head = tl.program_id(1)
    # Sequence s starts at block bounds[s] // ROWS + s, which leaves each of them enough.
    low, high = 0, sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(bounds_q_ptr + middle) // ROWS + middle <= block:
            low = middle
        else:
            high = middle - 1
    first = tl.load(bounds_q_ptr + low)
    last = tl.load(bounds_q_ptr + low + 1)
    query = first + (block - (first // ROWS + low)) * ROWS + tl.arange(0, ROWS)
    if first + (block - (first // ROWS + low)) * ROWS >= last:
        return
    live = (query < last)[:, None]
    place = (query.to(tl.int64)[:, None] * HEADS + head) * D
    dim0 = tl.arange(0, D0)[None, :]
    q0 = tl.load(q_ptr + place + dim0, mask=live, other=0.0)
    acc0 = tl.zeros([ROWS, D0], tl.float32)
    if D1 > 0:
        dim1 = D0 + tl.arange(0, D1)[None, :]
        q1 = tl.load(q_ptr + place + dim1, mask=live & (dim1 < D), other=0.0)
        acc1 = tl.zeros([ROWS, D1], tl.float32)
    else:
        q1 = 0.0
        acc1 = 0.0
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)

    begin = tl.load(bounds_k_ptr + low)
    end = tl.load(bounds_k_ptr + low + 1)
    whole = begin + (end - begin) // TILE * TILE
    k_head = k_ptr + head * D
    v_head = v_ptr + head * D
    acc0, acc1, top, total = _span(acc0, acc1, top, total, q0, q1, k_head, v_head, begin, whole, end, scale, HEADS * D,
                                   D, D0, D1, TILE, False)
    acc0, acc1, top, total = _span(acc0, acc1, top, total, q0, q1, k_head, v_head, whole, end, end, scale, HEADS * D,
                                   D, D0, D1, TILE, True)
    share = 1.0 / tl.where(total > 0, total, 1.0)[:, None]
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + place + dim0, (acc0 * share).to(dtype), mask=live)
    if D1 > 0:
        tl.store(out_ptr + place + dim1, (acc1 * share).to(dtype), mask=live & (dim1 < D))


def halves(size: int) -> tuple[int, int]:
    """The largest power of two in `size` and what a second block takes for the rest, at least 16 or nothing."""
    head = 1 << (size.bit_length() - 1)
    return head, max(16, triton.next_power_of_2(size - head)) if size > head else 0


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                cu_seqlens_k: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        sequences = cu_seqlens_q.shape[0] - 1
        d0, d1 = halves(dim)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        rows = 128 if queries * heads > 128 * 132 else 64
        attention_forward_kernel[(queries // rows + sequences, heads)](
            q, k, v, cu_seqlens_q, cu_seqlens_k, out, dim**-0.5 * 1.4426950408889634, sequences, HEADS=heads, D=dim,
            D0=d0, D1=d1, ROWS=rows, TILE=64, num_warps=8 if rows == 128 else 4, num_stages=3,
        )  # fmt: skip
        return out
