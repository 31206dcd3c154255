"""Slots counted and grouped by expert."""

import torch
from torch import nn


class Model(nn.Module):
    """Count the slots of each expert and order the slots of topk_ids by expert, experts ascending.

    topk_ids [tokens, k] int32 in 0 .. num_experts - 1; slot t * k + j is topk_ids[t, j]. ->
    {"sorted_token_ids" [tokens * k] int32: slots, in any order inside an expert's run,
     "expert_token_counts" [num_experts] int32,
     "cumsum" [num_experts + 1] int32: where each expert's run starts, and where the last one ends}.
    block_size belongs to the production kernel's interface and changes nothing here.
    """

    def __init__(self, num_experts: int = 128, block_size: int = 128) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        experts = topk_ids.reshape(-1).long()
        counts = torch.zeros(self.num_experts, dtype=torch.int64, device=topk_ids.device)
        counts.scatter_add_(0, experts, torch.ones_like(experts))
        return {
            "sorted_token_ids": experts.argsort(stable=True).to(torch.int32),
            "expert_token_counts": counts.to(torch.int32),
            "cumsum": torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32),
        }
