"""Wrong and right moe_count_and_sort kernels for mutation testing."""

import torch

WRONG = {
    "not sorted": ("experts.argsort(stable=True)", "torch.arange(experts.numel(), device=experts.device)"),
    "sorted downwards": ("experts.argsort(stable=True)", "experts.argsort(stable=True, descending=True)"),
    "token instead of slot": (
        "experts.argsort(stable=True).to",
        "(experts.argsort(stable=True) // topk_ids.shape[1]).to",
    ),
    "float counts": ("counts.to(torch.int32)", "counts.to(torch.float32)"),
    "last expert not counted": (
        "counts.scatter_add_(0, experts, torch.ones_like(experts))",
        "counts.scatter_add_(0, experts, torch.ones_like(experts))\n        counts[-1] = 0",
    ),
    "cumsum not exclusive": (
        "torch.cat([counts.new_zeros(1), counts.cumsum(0)])",
        "torch.cat([counts.cumsum(0), counts.sum()[None]])",
    ),
    "counts of distinct tokens": ("torch.ones_like(experts)", "torch.ones_like(experts) * 2"),
    "experts off by one": (
        "experts = topk_ids.reshape(-1).long()",
        "experts = (topk_ids.reshape(-1).long() + 1) % self.num_experts",
    ),
    "two slots exchanged": (
        "experts.argsort(stable=True).to(torch.int32)",
        "experts.argsort(stable=True)[torch.arange(experts.numel(), device=experts.device)"
        ".index_fill(0, experts.new_tensor([0]), experts.numel() - 1)].to(torch.int32)",
    ),
}
SURVIVORS = {"last expert not counted": "the same thing where the last expert has no slot"}


class _ByBincount(torch.nn.Module):
    """Runs in descending slot order: order inside a run is free."""

    def __init__(self, num_experts=128, block_size=128):
        super().__init__()
        self.experts = num_experts

    def forward(self, topk_ids):
        flat = topk_ids.reshape(-1).long()
        counts = torch.bincount(flat, minlength=self.experts)
        order = flat.numel() - 1 - flat.flip(0).argsort(stable=True)
        cumsum = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        return {
            "sorted_token_ids": order.to(torch.int32),
            "expert_token_counts": counts.to(torch.int32),
            "cumsum": cumsum.to(torch.int32),
        }


class _ByComparison(_ByBincount):
    def forward(self, topk_ids):
        flat = topk_ids.reshape(-1)
        chosen = flat[None] == torch.arange(self.experts, device=flat.device)[:, None]
        counts = chosen.sum(1)
        order = chosen.nonzero()[:, 1]
        cumsum = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return {
            "sorted_token_ids": order.to(torch.int32),
            "expert_token_counts": counts.to(torch.int32),
            "cumsum": cumsum.to(torch.int32),
        }


RIGHT = {"by bincount, downwards": _ByBincount, "by comparison": _ByComparison}
