"""Mixture-of-experts feed-forward layer: gated by SiLU, top-k experts a token."""

import torch
from torch import nn


class Model(nn.Module):
    """out[t] = sum over j of topk_weights[t, j] * w2[e] @ (silu(gate) * up), e = topk_ids[t, j],
    [gate, up] = w1[e] @ hidden_states[t].

    hidden_states [tokens, hidden], w1 [experts, 2 * intermediate, hidden] (gate rows first),
    w2 [experts, hidden, intermediate], topk_weights [tokens, k] fp32, topk_ids [tokens, k] int32, distinct in a row
    -> out [tokens, hidden], in at least fp32, in which all of it is computed. A kernel may round what lies between the
    products to bf16.
    """

    def __init__(self, num_experts: int, intermediate_size: int, top_k: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.intermediate_size = intermediate_size
        self.top_k = top_k

    def forward(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
    ) -> torch.Tensor:
        acc = torch.promote_types(hidden_states.dtype, torch.float32)
        out = torch.zeros(hidden_states.shape, dtype=acc, device=hidden_states.device)
        experts = topk_ids.reshape(-1).long()
        # Counted in one transfer, so that no expert waits for the device.
        counts = (experts[:, None] == torch.arange(self.num_experts, device=experts.device)).sum(0).tolist()
        runs = experts.argsort(stable=True).split(counts)
        factors = topk_weights.reshape(-1, 1).to(acc)
        for expert, slots in enumerate(runs):
            if not len(slots):
                continue
            tokens = slots // self.top_k
            gate, up = (hidden_states[tokens].to(acc) @ w1[expert].to(acc).T).chunk(2, dim=-1)
            down = (nn.functional.silu(gate) * up) @ w2[expert].to(acc).T
            out.index_add_(0, tokens, down * factors[slots])
        return out
