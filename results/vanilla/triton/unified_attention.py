"""Causal attention over a paged cache: query heads that share a key head fill the rows of the products; short queries
over long contexts are split along the keys, and a second kernel joins the parts."""

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


@triton.jit
def _span(acc0, acc1, top, total, q0, q1, k_ptr, v_ptr, table_row, position, low, high, length, scale,
          HEADS_D: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, PAGE: tl.constexpr,
          TILE: tl.constexpr, MASKED: tl.constexpr):
    """Keys low to high, in tiles; position [rows] is the last token that a row sees."""
    dim0 = tl.arange(0, D0)[None, :]
    for start in range(low, high, TILE):
        token = start + tl.arange(0, TILE)
        held = token < length
        # The tile's pages; slots past the end may hold NaN, which a weight of zero would not cancel.
        number = tl.load(table_row + token // PAGE, mask=held, other=0).to(tl.int64)
        slot = (number * PAGE + token % PAGE)[:, None] * HEADS_D
        k0 = tl.load(k_ptr + slot + dim0, mask=held[:, None], other=0.0)
        v0 = tl.load(v_ptr + slot + dim0, mask=held[:, None], other=0.0)
        score = tl.dot(q0, tl.trans(k0), out_dtype=tl.float32)
        if D1 > 0:
            dim1 = D0 + tl.arange(0, D1)[None, :]
            inside = held[:, None] & (dim1 < D)
            k1 = tl.load(k_ptr + slot + dim1, mask=inside, other=0.0)
            v1 = tl.load(v_ptr + slot + dim1, mask=inside, other=0.0)
            score = tl.dot(q1, tl.trans(k1), acc=score, out_dtype=tl.float32)
        score = score * scale
        if MASKED:
            score = tl.where(token[None, :] <= position[:, None], score, -float("inf"))
        peak = tl.maximum(top, tl.max(score, axis=1))
        # A row that has seen no key yet: minus infinity less itself is NaN.
        base = tl.where(peak == -float("inf"), 0.0, peak)
        p = tl.exp2(score - base[:, None])
        decay = tl.exp2(top - base)
        total = total * decay + tl.sum(p, axis=1)
        weights = p.to(v0.dtype)
        acc0 = tl.dot(weights, v0, acc=acc0 * decay[:, None], out_dtype=tl.float32)
        if D1 > 0:
            acc1 = tl.dot(weights, v1, acc=acc1 * decay[:, None], out_dtype=tl.float32)
        top = peak
    return acc0, acc1, top, total


# Counts change from batch to batch: they must not make another specialization.
@triton.jit(do_not_specialize=["queries", "sequences", "table_stride", "blocks", "part_stride"])
def unified_attention_kernel(q_ptr, k_ptr, v_ptr, bounds_ptr, used_ptr, table_ptr, out_ptr, parts_ptr, sums_ptr, scale,
                             queries, sequences, table_stride, blocks, part_stride, HEADS: tl.constexpr,
                             KV_HEADS: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
                             PAGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    # Later blocks of a sequence see more keys: they start first.
    block = blocks - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)

    # Sequence s starts at block bounds[s] * GROUP // ROWS + s, which leaves each of them enough. The last, of index
    # `sequences`, holds the queries that belong to none and has no keys.
    low, high = 0, sequences
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(bounds_ptr + middle) * GROUP // ROWS + middle <= block:
            low = middle
        else:
            high = middle - 1
    real = low < sequences
    first = tl.load(bounds_ptr + low)
    last = tl.load(bounds_ptr + low + 1, mask=real, other=queries)
    length = tl.load(used_ptr + low, mask=real, other=0)
    rows = (last - first) * GROUP
    begin = (block - (first * GROUP // ROWS + low)) * ROWS
    if begin >= rows:
        return

    row = begin + tl.arange(0, ROWS)
    live = (row < rows)[:, None]
    query = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    place = query.to(tl.int64) * HEADS + head
    dim0 = tl.arange(0, D0)[None, :]
    q0 = tl.load(q_ptr + place[:, None] * D + dim0, mask=live, other=0.0)
    acc0 = tl.zeros([ROWS, D0], tl.float32)
    if D1 > 0:
        dim1 = D0 + tl.arange(0, D1)[None, :]
        q1 = tl.load(q_ptr + place[:, None] * D + dim1, mask=live & (dim1 < D), other=0.0)
        acc1 = tl.zeros([ROWS, D1], tl.float32)
    else:
        q1 = 0.0
        acc1 = 0.0
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)

    # The block's first row sees the fewest keys, its last one the most.
    context = length - (last - first)
    position = context + row // GROUP
    end = tl.minimum(context + (begin + ROWS - 1) // GROUP + 1, length)
    every = context + begin // GROUP + 1
    start = 0
    if SPLITS > 1:
        piece = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
        start = tl.minimum(split * piece, end)
        end = tl.minimum(start + piece, end)
    free = tl.maximum(tl.minimum(every, end) - start, 0) // TILE * TILE + start
    table_row = table_ptr + table_stride.to(tl.int64) * low
    k_head = k_ptr + kv_head * D
    v_head = v_ptr + kv_head * D
    acc0, acc1, top, total = _span(acc0, acc1, top, total, q0, q1, k_head, v_head, table_row, position, start, free,
                                   length, scale, KV_HEADS * D, D, D0, D1, PAGE, TILE, False)
    acc0, acc1, top, total = _span(acc0, acc1, top, total, q0, q1, k_head, v_head, table_row, position, free, end,
                                   length, scale, KV_HEADS * D, D, D0, D1, PAGE, TILE, True)

    share = 1.0 / tl.where(total > 0, total, 1.0)[:, None]
    if SPLITS > 1:
        place += split.to(tl.int64) * part_stride
        mass = tl.where(total > 0, top + tl.log2(tl.where(total > 0, total, 1.0)), -float("inf"))
        tl.store(sums_ptr + place, mass, mask=row < rows)
        out_ptr = parts_ptr
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + place[:, None] * D + dim0, (acc0 * share).to(dtype), mask=live)
    if D1 > 0:
        tl.store(out_ptr + place[:, None] * D + dim1, (acc1 * share).to(dtype), mask=live & (dim1 < D))


@triton.jit(do_not_specialize=["part_stride"])
def join_kernel(parts_ptr, sums_ptr, out_ptr, part_stride, D: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
                SPLITS_PAD: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PAD)
    dim = tl.arange(0, WIDTH)
    there = place + split.to(tl.int64) * part_stride
    mass = tl.load(sums_ptr + there, mask=split < SPLITS, other=-float("inf"))
    peak = tl.max(mass, axis=0)
    weight = tl.exp2(mass - tl.where(peak == -float("inf"), 0.0, peak))
    total = tl.sum(weight, axis=0)
    weight = weight / tl.where(total > 0, total, 1.0)
    part = tl.load(parts_ptr + there[:, None] * D + dim[None, :], mask=(split < SPLITS)[:, None] & (dim < D)[None, :],
                   other=0.0)
    out = tl.sum(part * weight[:, None], axis=0)
    tl.store(out_ptr + place * D + dim, out.to(out_ptr.dtype.element_ty), mask=dim < D)


def halves(size: int) -> tuple[int, int]:
    """The largest power of two in `size` and what a second block takes for the rest, at least 16 or nothing."""
    head = 1 << (size.bit_length() - 1)
    return head, max(16, triton.next_power_of_2(size - head)) if size > head else 0


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, cu_seqlens_q: torch.Tensor,
                seqused_k: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        page, kv_heads = k_cache.shape[1], k_cache.shape[2]
        sequences, width = block_table.shape
        group = heads // kv_heads
        d0, d1 = halves(dim)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)

        # One query a sequence or little more: rows for the heads of one query, and the keys split over programs.
        small = max(16, triton.next_power_of_2(group))
        decoding = queries * group <= sequences * small
        rows, tile, splits = (small if decoding else 128), 64, 1
        if not decoding and dim <= 128 and queries * heads <= 128 * 132:
            rows = max(64, small)
        blocks = queries * group // rows + sequences + 1
        if decoding:
            splits = min(64, triton.cdiv(8 * 132, sequences * kv_heads), triton.cdiv(width * page, 256))
        parts, sums = out, out
        if splits > 1:
            parts = torch.empty((splits, queries, heads, dim), dtype=torch.float32, device=q.device)
            sums = torch.empty((splits, queries, heads), dtype=torch.float32, device=q.device)
        unified_attention_kernel[(blocks, kv_heads, splits)](
            q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, out, parts, sums, dim**-0.5 * LOG2E, queries,
            sequences, block_table.stride(0), blocks, queries * heads, HEADS=heads, KV_HEADS=kv_heads, D=dim, D0=d0,
            D1=d1, PAGE=page, ROWS=rows, TILE=tile, SPLITS=splits, num_warps=8 if rows >= 128 else 4,
            num_stages=2 if dim > 128 else 3,
        )  # fmt: skip
        if splits > 1:
            join_kernel[(queries * heads,)](
                parts, sums, out, queries * heads, D=dim, WIDTH=triton.next_power_of_2(dim), SPLITS=splits,
                SPLITS_PAD=triton.next_power_of_2(splits), num_warps=4,
            )  # fmt: skip
        return out
