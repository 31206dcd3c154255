"""Counting sort by expert with padded runs: chunks are counted side by side, then each sorts itself into its place.

Up to 512 slots are one launch; more are two, the second launched programmatically, with its slots already in registers
when the counts are there. Bound by launches and by the sort's chain of shuffles: the roofline is far below either.
A sweep on an H200: 8 slots 4.9 us (5.4 with four times the filling a program), 4160 slots 8.4 us, 16352 slots 7.7 us,
31488 slots 8.5 us (9.3 to 9.7 by chunks of 512, 14 to 15 of 1024), 65536 slots 10 us (S 0.01).
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PDL = True  # programmatic dependent launch; off for Triton's interpreter


# The number of slots changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["slots"])
def count_kernel(ids_ptr, counts_ptr, slots, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """counts [chunks, EXPERTS]: how many slots of each chunk go to each expert."""
    if PDL:
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    slot = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = tl.load(ids_ptr + slot, mask=slot < slots, other=0)
    tl.store(counts_ptr + chunk * EXPERTS + tl.arange(0, EXPERTS), tl.histogram(ids, EXPERTS, mask=slot < slots))


@triton.jit(do_not_specialize=["slots", "chunks", "blocks"])
def align_kernel(ids_ptr, counts_ptr, sorted_ptr, expert_ids_ptr, used_ptr, slots, chunks, blocks, BLOCK: tl.constexpr,
                 BLOCK_PAD: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
                 FILL: tl.constexpr, PDL: tl.constexpr):
    """Program p places the slots of chunk p, and fills what no slot takes in FILL blocks of the output."""
    program = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    slot = program * CHUNK + tl.arange(0, CHUNK)

    ids = tl.load(ids_ptr + slot, mask=slot < slots, other=EXPERTS)
    # Slots of each expert in all chunks, in those before this one, and in this one.
    if CHUNKS == 1:
        # Programs past the chunk, which only fill, count it too.
        only = tl.arange(0, CHUNK)
        total = tl.histogram(tl.load(ids_ptr + only, mask=only < slots, other=0), EXPERTS, mask=only < slots)
        before = tl.zeros([EXPERTS], tl.int32)
        own = total
    else:
        if PDL:
            gdc_wait()
        chunk = tl.arange(0, CHUNKS)[:, None]
        counts = tl.load(counts_ptr + chunk * EXPERTS + expert[None, :], mask=chunk < chunks, other=0)
        total = tl.sum(counts, axis=0)
        before = tl.sum(tl.where(chunk < program, counts, 0), axis=0)
        own = tl.sum(tl.where(chunk == program, counts, 0), axis=0)
    padded = (total + BLOCK - 1) // BLOCK * BLOCK
    ends = tl.cumsum(padded, axis=0)
    start = ends - padded

    if program < chunks:
        # Sorted by expert and then by slot, a chunk's slots of one expert follow one another into the expert's run.
        key = tl.sort(ids * CHUNK + tl.arange(0, CHUNK))
        owner = key // CHUNK
        shift = start + before - (tl.cumsum(own, axis=0) - own)
        place = tl.gather(shift, tl.minimum(owner, EXPERTS - 1), axis=0) + tl.arange(0, CHUNK)
        tl.store(sorted_ptr + place, program * CHUNK + key % CHUNK, mask=owner < EXPERTS)

    block = program * FILL + tl.arange(0, FILL)
    owner = tl.sum((ends[None, :] <= block[:, None] * BLOCK).to(tl.int32), axis=1)
    last = tl.sum(tl.where(expert[None, :] == owner[:, None], (start + total)[None, :], 0), axis=1)
    tl.store(expert_ids_ptr + block, tl.where(owner < EXPERTS, owner, -1), mask=block < blocks)
    inside = tl.arange(0, BLOCK_PAD)[None, :]
    place = block[:, None] * BLOCK + inside
    free = (inside < BLOCK) & (block < blocks)[:, None] & (place >= last[:, None])
    tl.store(sorted_ptr + place, tl.zeros([FILL, BLOCK_PAD], tl.int32) + slots, mask=free)
    if program == 0:
        tl.store(used_ptr, tl.sum(padded, axis=0))


class Model(torch.nn.Module):
    def __init__(self, block_size: int, num_experts: int):
        super().__init__()
        self.block_size, self.num_experts = block_size, num_experts

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        slots, block, device = topk_ids.numel(), self.block_size, topk_ids.device
        blocks = triton.cdiv(slots + self.num_experts * (block - 1), block)
        sorted_ids = torch.empty((blocks * block,), dtype=torch.int32, device=device)
        expert_ids = torch.empty((blocks,), dtype=torch.int32, device=device)
        used = torch.empty((1,), dtype=torch.int32, device=device)

        experts = max(32, triton.next_power_of_2(self.num_experts))
        chunk = max(128, triton.next_power_of_2(slots)) if slots <= 512 else 256
        # Every program reads all counts: at most 128 chunks as long as a chunk can be sorted in registers.
        while chunk < 4096 and triton.cdiv(slots, chunk) > 128:
            chunk *= 2
        chunks = max(1, triton.cdiv(slots, chunk))
        counts = used
        if chunks > 1:
            counts = torch.empty((chunks, experts), dtype=torch.int32, device=device)
            count_kernel[(chunks,)](topk_ids, counts, slots, EXPERTS=experts, CHUNK=chunk, PDL=PDL, num_warps=4)
        most = (512 if chunks == 1 else 2048) // block
        fill = max(1, min(triton.next_power_of_2(triton.cdiv(blocks, chunks)), most))
        fill = 1 << (fill.bit_length() - 1)
        align_kernel[(max(chunks, triton.cdiv(blocks, fill)),)](
            topk_ids, counts, sorted_ids, expert_ids, used, slots, chunks, blocks, BLOCK=block,
            BLOCK_PAD=triton.next_power_of_2(block), EXPERTS=experts, CHUNK=chunk,
            CHUNKS=triton.next_power_of_2(chunks), FILL=fill, PDL=PDL, num_warps=4, launch_pdl=PDL and chunks > 1,
        )  # fmt: skip
        return {"sorted_token_ids": sorted_ids, "expert_ids": expert_ids, "num_tokens_post_pad": used}
