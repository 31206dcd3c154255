"""Mixture of experts over fp8 blocks as two grouped products: slots are sorted by expert into blocks of rows,
deterministically; every product over 128 of the depth is scaled into an fp32 sum. The first product ends in SiLU, the
gate and fp8 in groups of 128, the second in the slot's weight, and the slots of a token are summed last."""

import torch
import triton
import triton.language as tl

SLOTS = 128  # that a program of the routing kernels takes
SLOTS_ALONE = 256  # as many are routed by one program
BLOCK = 128  # of the scales
MAP = 64  # blocks of rows that a program of the routing kernels describes


@triton.jit
def _one_hot(ids_ptr, slot, slots, EXPERTS_PAD: tl.constexpr):
    """[slots of this program, experts] int32."""
    expert = tl.load(ids_ptr + slot, mask=slot < slots, other=EXPERTS_PAD)
    return (expert[:, None] == tl.arange(0, EXPERTS_PAD)[None, :]).to(tl.int32)


@triton.jit
def _describe(map_ptr, counts, first_map, max_blocks, ROWS: tl.constexpr, EXPERTS_PAD: tl.constexpr,
              MAP: tl.constexpr):
    """Expert (-1: none) and number of rows of the blocks from first_map on, of all experts' counts."""
    ends = tl.cumsum((counts + ROWS - 1) // ROWS, 0)
    block = first_map + tl.arange(0, MAP)
    earlier = (ends[None, :] <= block[:, None]).to(tl.int32)
    expert = tl.sum(earlier, axis=1)
    own = expert[:, None] == tl.arange(0, EXPERTS_PAD)[None, :]
    start = tl.sum(tl.where(own, (ends - (counts + ROWS - 1) // ROWS)[None, :], 0), axis=1)
    count = tl.sum(tl.where(own, counts[None, :], 0), axis=1)
    rows = tl.minimum(count - (block - start) * ROWS, ROWS)
    tl.store(map_ptr + 2 * block, tl.where(expert < EXPERTS_PAD, expert, -1), mask=block < max_blocks)
    tl.store(map_ptr + 2 * block + 1, rows, mask=block < max_blocks)


@triton.jit
def _place(sorted_ptr, hot, before, counts, slot, slots, ROWS: tl.constexpr):
    """Puts slots where their expert's blocks are; `before` [experts] slots of it stand in earlier programs."""
    blocks = (counts + ROWS - 1) // ROWS
    start = (tl.cumsum(blocks, 0) - blocks) * ROWS + before
    rank = tl.cumsum(hot, 0) - 1
    place = tl.sum(hot * (rank + start[None, :]), axis=1)
    tl.store(sorted_ptr + place, slot, mask=slot < slots)


@triton.jit(do_not_specialize=["slots", "max_blocks"])
def route_alone_kernel(ids_ptr, sorted_ptr, map_ptr, slots, max_blocks,
                       EXPERTS_PAD: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, MAP: tl.constexpr):
    slot = tl.arange(0, SLOTS)
    hot = _one_hot(ids_ptr, slot, slots, EXPERTS_PAD)
    counts = tl.sum(hot, axis=0)
    _place(sorted_ptr, hot, counts * 0, counts, slot, slots, ROWS)
    for first in range(0, max_blocks, MAP):
        _describe(map_ptr, counts, first, max_blocks, ROWS, EXPERTS_PAD, MAP)


@triton.jit(do_not_specialize=["slots"])
def count_kernel(ids_ptr, counts_ptr, slots, EXPERTS_PAD: tl.constexpr, SLOTS: tl.constexpr):
    pid = tl.program_id(0)
    hot = _one_hot(ids_ptr, pid * SLOTS + tl.arange(0, SLOTS), slots, EXPERTS_PAD)
    tl.store(counts_ptr + pid * EXPERTS_PAD + tl.arange(0, EXPERTS_PAD), tl.sum(hot, axis=0))


@triton.jit(do_not_specialize=["programs"])
def scan_kernel(counts_ptr, totals_ptr, programs, EXPERTS_PAD: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr):
    """Counts of each program become what stands before them; a program takes some of the experts."""
    expert = tl.program_id(0) * LANES + tl.arange(0, LANES)
    before = tl.zeros([LANES], tl.int32)
    for start in range(0, programs, TILE):
        program = start + tl.arange(0, TILE)
        there = counts_ptr + program[:, None] * EXPERTS_PAD + expert[None, :]
        live = (program < programs)[:, None] & (expert < EXPERTS_PAD)[None, :]
        counts = tl.load(there, mask=live, other=0)
        tl.store(there, tl.cumsum(counts, 0) - counts + before[None, :], mask=live)
        before += tl.sum(counts, axis=0)
    tl.store(totals_ptr + expert, before, mask=expert < EXPERTS_PAD)


@triton.jit(do_not_specialize=["slots", "max_blocks"])
def place_kernel(ids_ptr, counts_ptr, totals_ptr, sorted_ptr, map_ptr, slots, max_blocks,
                 EXPERTS_PAD: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr, MAP: tl.constexpr):
    pid = tl.program_id(0)
    expert = tl.arange(0, EXPERTS_PAD)
    counts = tl.load(totals_ptr + expert)
    if pid * MAP < max_blocks:
        _describe(map_ptr, counts, pid * MAP, max_blocks, ROWS, EXPERTS_PAD, MAP)
    if pid * SLOTS < slots:
        slot = pid * SLOTS + tl.arange(0, SLOTS)
        hot = _one_hot(ids_ptr, slot, slots, EXPERTS_PAD)
        before = tl.load(counts_ptr + pid * EXPERTS_PAD + expert)
        _place(sorted_ptr, hot, before, counts, slot, slots, ROWS)


@triton.jit
def _tile(max_blocks, tiles_n, BAND: tl.constexpr):
    """Block of rows and tile of columns: programs that run together share a band of rows and the weights."""
    pid = tl.program_id(0)
    band = pid // (BAND * tiles_n)
    height = tl.minimum(max_blocks - band * BAND, BAND)
    inside = pid % (BAND * tiles_n)
    return band * BAND + inside % height, inside // height


@triton.jit(do_not_specialize=["max_blocks"])
def gate_up_kernel(x_ptr, w1_ptr, x_scales_ptr, w1_scales_ptr, sorted_ptr, map_ptr, mid_ptr, mid_scales_ptr, max_blocks,
                   largest, HIDDEN: tl.constexpr, INTER: tl.constexpr, TOP_K: tl.constexpr, ROWS: tl.constexpr,
                   BLOCK: tl.constexpr, BAND: tl.constexpr):
    block, tile = _tile(max_blocks, INTER // BLOCK, BAND)
    expert = tl.load(map_ptr + 2 * block).to(tl.int64)
    if expert < 0:
        return
    rows = tl.load(map_ptr + 2 * block + 1)
    row = tl.arange(0, ROWS)
    live = row < rows
    place = block * ROWS + row
    token = (tl.load(sorted_ptr + place, mask=live, other=0) // TOP_K).to(tl.int64)
    col = tile * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    DEPTHS: tl.constexpr = HIDDEN // BLOCK
    x = x_ptr + token[:, None] * HIDDEN + k[None, :]
    gate_w = w1_ptr + expert * (2 * INTER * HIDDEN) + col[None, :] * HIDDEN + k[:, None]
    x_scales = x_scales_ptr + token * DEPTHS
    gate_scales = w1_scales_ptr + expert * (2 * INTER // BLOCK * DEPTHS) + tile * DEPTHS
    gate = tl.zeros([ROWS, BLOCK], tl.float32)
    up = tl.zeros([ROWS, BLOCK], tl.float32)
    for depth in range(0, DEPTHS):
        a = tl.load(x + depth * BLOCK, mask=live[:, None], other=0.0)
        b = tl.load(gate_w + depth * BLOCK)
        c = tl.load(gate_w + INTER * HIDDEN + depth * BLOCK)
        scale = tl.load(x_scales + depth, mask=live, other=0.0)
        gate_scale = tl.load(gate_scales + depth)
        up_scale = tl.load(gate_scales + INTER // BLOCK * DEPTHS + depth)
        gate += tl.dot(a, b, out_dtype=tl.float32) * (scale * gate_scale)[:, None]
        up += tl.dot(a, c, out_dtype=tl.float32) * (scale * up_scale)[:, None]
    mid = gate / (1.0 + tl.exp(-gate)) * up
    # A tile of columns is a group: its scale takes the group's largest value to the largest of fp8.
    scale = tl.maximum(tl.max(tl.abs(mid), axis=1), 1e-30) / largest
    codes = (mid / scale[:, None]).to(mid_ptr.dtype.element_ty)
    tl.store(mid_ptr + place.to(tl.int64)[:, None] * INTER + col[None, :], codes, mask=live[:, None])
    tl.store(mid_scales_ptr + place * (INTER // BLOCK) + tile, scale, mask=live)


@triton.jit(do_not_specialize=["max_blocks"])
def down_kernel(mid_ptr, w2_ptr, mid_scales_ptr, w2_scales_ptr, weights_ptr, sorted_ptr, map_ptr, part_ptr, max_blocks,
                HIDDEN: tl.constexpr, INTER: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
                BAND: tl.constexpr):
    block, tile = _tile(max_blocks, HIDDEN // COLS, BAND)
    expert = tl.load(map_ptr + 2 * block).to(tl.int64)
    if expert < 0:
        return
    rows = tl.load(map_ptr + 2 * block + 1)
    row = tl.arange(0, ROWS)
    live = row < rows
    place = block * ROWS + row
    slot = tl.load(sorted_ptr + place, mask=live, other=0)
    col = tile * COLS + tl.arange(0, COLS)
    k = tl.arange(0, BLOCK)
    DEPTHS: tl.constexpr = INTER // BLOCK
    mid = mid_ptr + place.to(tl.int64)[:, None] * INTER + k[None, :]
    w = w2_ptr + expert * (HIDDEN * INTER) + col[None, :] * INTER + k[:, None]
    mid_scales = mid_scales_ptr + place * DEPTHS
    w_scales = w2_scales_ptr + expert * (HIDDEN // BLOCK * DEPTHS) + tile * COLS // BLOCK * DEPTHS
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for depth in range(0, DEPTHS):
        a = tl.load(mid + depth * BLOCK, mask=live[:, None], other=0.0)
        b = tl.load(w + depth * BLOCK)
        scale = tl.load(mid_scales + depth, mask=live, other=0.0) * tl.load(w_scales + depth)
        acc += tl.dot(a, b, out_dtype=tl.float32) * scale[:, None]
    acc = acc * tl.load(weights_ptr + slot, mask=live, other=0.0)[:, None]
    there = part_ptr + slot.to(tl.int64)[:, None] * HIDDEN + col[None, :]
    tl.store(there, acc.to(part_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def sum_kernel(part_ptr, out_ptr, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, COLS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = col < HIDDEN
    acc = tl.zeros([COLS], tl.float32)
    for j in tl.static_range(TOP_K):
        acc += tl.load(part_ptr + (token * TOP_K + j) * HIDDEN + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + col, acc.to(out_ptr.dtype.element_ty), mask=inside)


def route(topk_ids: torch.Tensor, experts: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Slots in blocks of `rows` of one expert, [expert, rows] of each block, and how many blocks there are at most."""
    slots, device = topk_ids.numel(), topk_ids.device
    blocks = min(slots, slots // rows + experts)
    pad = triton.next_power_of_2(experts)
    order = torch.empty(blocks * rows, dtype=torch.int32, device=device)
    described = torch.empty((blocks, 2), dtype=torch.int32, device=device)
    if slots <= SLOTS_ALONE:
        route_alone_kernel[(1,)](
            topk_ids, order, described, slots, blocks, EXPERTS_PAD=pad, ROWS=rows,
            SLOTS=max(16, triton.next_power_of_2(slots)), MAP=MAP, num_warps=8,
        )  # fmt: skip
        return order, described, blocks
    programs = triton.cdiv(slots, SLOTS)
    counts = torch.empty((programs, pad), dtype=torch.int32, device=device)
    totals = torch.empty(pad, dtype=torch.int32, device=device)
    count_kernel[(programs,)](topk_ids, counts, slots, EXPERTS_PAD=pad, SLOTS=SLOTS, num_warps=4)
    scan_kernel[(triton.cdiv(pad, 16),)](counts, totals, programs, EXPERTS_PAD=pad, LANES=16, TILE=128, num_warps=4)
    place_kernel[(max(programs, triton.cdiv(blocks, MAP)),)](
        topk_ids, counts, totals, order, described, slots, blocks, EXPERTS_PAD=pad, ROWS=rows,
        SLOTS=SLOTS, MAP=MAP, num_warps=8,
    )  # fmt: skip
    return order, described, blocks


class Model(torch.nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int):
        super().__init__()
        self.experts, self.inter, self.top_k = num_experts, intermediate_size, top_k

    def forward(self, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
                topk_ids: torch.Tensor, a_scale: torch.Tensor, fc1_scale: torch.Tensor,
                fc2_scale: torch.Tensor) -> torch.Tensor:
        (tokens, hidden), inter, top_k = hidden_states.shape, self.inter, self.top_k
        slots, device = tokens * top_k, hidden_states.device
        # Rows of a block: near what an expert gets on average, so that few of them are empty.
        rows = min(128, max(16, triton.next_power_of_2(triton.cdiv(slots, self.experts))))
        order, described, blocks = route(topk_ids, self.experts, rows)
        mid = torch.empty((blocks * rows, inter), dtype=hidden_states.dtype, device=device)
        mid_scales = torch.empty((blocks * rows, inter // BLOCK), dtype=torch.float32, device=device)
        part = torch.empty((slots, hidden), dtype=torch.bfloat16, device=device)
        out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)

        warps = 8 if rows == 128 else 4
        gate_up_kernel[(blocks * (inter // BLOCK),)](
            hidden_states, w1, a_scale, fc1_scale, order, described, mid, mid_scales, blocks,
            torch.finfo(hidden_states.dtype).max, HIDDEN=hidden, INTER=inter, TOP_K=top_k, ROWS=rows, BLOCK=BLOCK,
            BAND=16, num_warps=8, num_stages=3 if rows >= 64 else 4,
        )  # fmt: skip
        cols = BLOCK if rows >= 64 else 64
        down_kernel[(blocks * (hidden // cols),)](
            mid, w2, mid_scales, fc2_scale, topk_weights, order, described, part, blocks, HIDDEN=hidden, INTER=inter,
            ROWS=rows, COLS=cols, BLOCK=BLOCK, BAND=16, num_warps=warps, num_stages=4,
        )  # fmt: skip
        width = min(1024, triton.next_power_of_2(hidden))
        sum_kernel[(tokens, triton.cdiv(hidden, width))](part, out, HIDDEN=hidden, TOP_K=top_k, COLS=width, num_warps=4)
        return out
