"""Slots grouped by expert, each group padded to whole blocks, as a grouped matrix product takes them."""

import torch
from torch import nn


class Model(nn.Module):
    """Order the slots of topk_ids by expert, experts ascending, and pad each expert's run to a multiple of block_size.

    topk_ids [tokens, k] int32 in 0 .. num_experts - 1; slot t * k + j is topk_ids[t, j]. With a capacity of
    C = tokens * k + num_experts * (block_size - 1), rounded up to whole blocks, ->
    {"sorted_token_ids" [C] int32: slots, and tokens * k as padding at the end of a run,
     "expert_ids" [C / block_size] int32: the expert of each block,
     "num_tokens_post_pad" [1] int32: how many entries of sorted_token_ids are in use}.
    Order inside a run is free; entries past those in use mean nothing (here padding, and -1 for experts).
    """

    def __init__(self, block_size: int, num_experts: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.num_experts = num_experts

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        block, device = self.block_size, topk_ids.device
        experts = topk_ids.reshape(-1).long()
        slots = experts.numel()
        blocks = -(-(slots + self.num_experts * (block - 1)) // block)

        counts = torch.zeros(self.num_experts, dtype=torch.int64, device=device)
        counts.scatter_add_(0, experts, torch.ones_like(experts))
        padded = (counts + block - 1) // block * block
        ends = padded.cumsum(0)

        order = experts.argsort(stable=True)
        owner = experts[order]
        place_in_run = torch.arange(slots, device=device) - (counts.cumsum(0) - counts)[owner]
        sorted_ids = torch.full((blocks * block,), slots, dtype=torch.int32, device=device)
        sorted_ids[(ends - padded)[owner] + place_in_run] = order.to(torch.int32)

        first = torch.arange(blocks, device=device) * block
        expert_ids = torch.searchsorted(ends, first, right=True).to(torch.int32)
        return {
            "sorted_token_ids": sorted_ids,
            "expert_ids": expert_ids.masked_fill_(first >= ends[-1], -1),
            "num_tokens_post_pad": ends[-1:].to(torch.int32),
        }
