"""Counting sort by expert: chunks of slots are counted side by side, then each sorts itself into its place.

Up to 512 slots are one launch; more are two, the second launched programmatically, with its slots already in registers
when the counts are there. Bound by launches and by the sort's chain of shuffles: the roofline is far below either.
A chunk of 256 is sorted by one warp, in shuffles alone, as long as the counts fit its registers.
A sweep on an H200: 8 slots 4.3 us, 608 slots 5.5 us (7.5 by four warps), 4160 slots 6.8 us (8.0), 8152 slots 7.1 us
(8.2), 16352 slots by four warps 7.4 us (14.6 by one), 65536 slots in chunks of 512 9.1 us (S 0.01).
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


@triton.jit(do_not_specialize=["slots", "chunks"])
def sort_kernel(ids_ptr, counts_ptr, sorted_ptr, totals_ptr, starts_ptr, slots, chunks, NUM: tl.constexpr,
                EXPERTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr):
    """Program p places the slots of chunk p."""
    program = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    slot = program * CHUNK + tl.arange(0, CHUNK)

    ids = tl.load(ids_ptr + slot, mask=slot < slots, other=EXPERTS)
    # Slots of each expert in all chunks, in those before this one, and in this one.
    if CHUNKS == 1:
        own = tl.histogram(tl.minimum(ids, EXPERTS - 1), EXPERTS, mask=slot < slots)
        before = tl.zeros([EXPERTS], tl.int32)
        total = own
    else:
        if PDL:
            gdc_wait()
        chunk = tl.arange(0, CHUNKS)[:, None]
        counts = tl.load(counts_ptr + chunk * EXPERTS + expert[None, :], mask=chunk < chunks, other=0)
        total = tl.sum(counts, axis=0)
        before = tl.sum(tl.where(chunk < program, counts, 0), axis=0)
        own = tl.sum(tl.where(chunk == program, counts, 0), axis=0)
    start = tl.cumsum(total, axis=0) - total

    # Sorted by expert and then by slot, a chunk's slots of one expert follow one another into the expert's run.
    key = tl.sort(ids * CHUNK + tl.arange(0, CHUNK))
    owner = key // CHUNK
    shift = start + before - (tl.cumsum(own, axis=0) - own)
    place = tl.gather(shift, tl.minimum(owner, EXPERTS - 1), axis=0) + tl.arange(0, CHUNK)
    tl.store(sorted_ptr + place, program * CHUNK + key % CHUNK, mask=owner < EXPERTS)

    if program == 0:
        tl.store(totals_ptr + expert, total, mask=expert < NUM)
        tl.store(starts_ptr + expert, start, mask=expert < NUM)
        tl.store(starts_ptr + NUM, slots)


class Model(torch.nn.Module):
    def __init__(self, num_experts: int = 128, block_size: int = 128):
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        slots, device = topk_ids.numel(), topk_ids.device
        sorted_ids = torch.empty((slots,), dtype=torch.int32, device=device)
        totals = torch.empty((self.num_experts,), dtype=torch.int32, device=device)
        starts = torch.empty((self.num_experts + 1,), dtype=torch.int32, device=device)

        experts = max(32, triton.next_power_of_2(self.num_experts))
        chunk = max(128, triton.next_power_of_2(slots)) if slots <= 512 else 256
        # Every program reads all counts: at most 128 chunks as long as a chunk can be sorted in registers.
        while chunk < 4096 and triton.cdiv(slots, chunk) > 128:
            chunk *= 2
        chunks = max(1, triton.cdiv(slots, chunk))
        warps = 1 if chunk <= 256 and triton.next_power_of_2(chunks) * experts <= 4096 else 4
        counts = totals
        if chunks > 1:
            counts = torch.empty((chunks, experts), dtype=torch.int32, device=device)
            count_kernel[(chunks,)](topk_ids, counts, slots, EXPERTS=experts, CHUNK=chunk, PDL=PDL, num_warps=4)
        sort_kernel[(chunks,)](
            topk_ids, counts, sorted_ids, totals, starts, slots, chunks, NUM=self.num_experts, EXPERTS=experts,
            CHUNK=chunk, CHUNKS=triton.next_power_of_2(chunks), PDL=PDL, num_warps=warps, launch_pdl=PDL and chunks > 1,
        )  # fmt: skip
        return {"sorted_token_ids": sorted_ids, "expert_token_counts": totals, "cumsum": starts}
