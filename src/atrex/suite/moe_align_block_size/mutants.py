"""Wrong and right moe_align_block_size kernels for mutation testing."""

import torch

_WRITTEN = "sorted_ids[(ends - padded)[owner] + place_in_run] = order.to(torch.int32)"
# With more padding than the capacity allows for, the places are kept inside it: no device survives others.
_PADDED = (
    "padded = {0}\n        ends = padded.cumsum(0)\n"
    "        sorted_ids[((ends - padded)[owner] + place_in_run).clamp(max=blocks * block - 1)] = order.to(torch.int32)"
)
WRONG = {
    "not sorted": ("order = experts.argsort(stable=True)", "order = torch.arange(slots, device=device)"),
    "sorted downwards": ("experts.argsort(stable=True)", "experts.argsort(stable=True, descending=True)"),
    "runs not padded": ("padded = (counts + block - 1) // block * block", "padded = counts"),
    "one block too many": (_WRITTEN, _PADDED.format("(counts + block) // block * block")),
    "empty experts get a block": (_WRITTEN, _PADDED.format("((counts + block - 1) // block).clamp(min=1) * block")),
    "padding is slot 0": (
        "torch.full((blocks * block,), slots,",
        "torch.full((blocks * block,), 0,",
    ),
    "experts of the block before": (
        "torch.searchsorted(ends, first, right=True).to(torch.int32)",
        "torch.searchsorted(ends, first, right=True).to(torch.int32).roll(1)",
    ),
    "token instead of slot": ("= order.to(torch.int32)", "= (order // topk_ids.shape[1]).to(torch.int32)"),
    "count without padding": ("ends[-1:].to(torch.int32)", "counts.sum()[None].to(torch.int32)"),
    "last slot lost": (
        "sorted_ids[(ends - padded)[owner] + place_in_run] = order.to(torch.int32)",
        "sorted_ids[((ends - padded)[owner] + place_in_run)[:-1]] = order[:-1].to(torch.int32)",
    ),
}


class _ExpertByExpert(torch.nn.Module):
    """Runs in descending slot order, padding in front: order inside a run is free."""

    def __init__(self, block_size, num_experts):
        super().__init__()
        self.block, self.experts = block_size, num_experts

    def order(self, slots):
        return slots.flip(0)

    def forward(self, topk_ids):
        flat, block = topk_ids.reshape(-1), self.block
        blocks = -(-(flat.numel() + self.experts * (block - 1)) // block)
        ids = torch.full((blocks * block,), flat.numel(), dtype=torch.int32, device=flat.device)
        owners = torch.full((blocks,), -1, dtype=torch.int32, device=flat.device)
        end = 0
        for expert in range(self.experts):
            slots = self.order(torch.nonzero(flat == expert).squeeze(-1).to(torch.int32))
            run = -(-len(slots) // block) * block
            ids[end : end + len(slots)] = slots
            owners[end // block : (end + run) // block] = expert
            end += run
        used = torch.tensor([end], dtype=torch.int32, device=flat.device)
        return {"sorted_token_ids": ids, "expert_ids": owners, "num_tokens_post_pad": used}


class _Ascending(_ExpertByExpert):
    def order(self, slots):
        return slots


RIGHT = {"expert by expert, downwards": _ExpertByExpert, "expert by expert": _Ascending}
