"""Expert routing: softmax over the experts, then the k largest."""

import torch
from torch import nn


class Model(nn.Module):
    """The k largest softmax probabilities of a row and their experts, in descending order, not renormalised.

    gating_output [tokens, experts] fp32 -> {"topk_weights" [tokens, k] fp32, "topk_ids" [tokens, k] int32}.
    Among equal probabilities any choice and any order is right.
    """

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def scores(self, gating_output: torch.Tensor) -> torch.Tensor:
        """The probabilities [tokens, experts] from which forward chooses."""
        return torch.softmax(gating_output, dim=-1)

    def forward(self, gating_output: torch.Tensor) -> dict[str, torch.Tensor]:
        weights, ids = torch.topk(self.scores(gating_output), self.top_k, dim=-1, sorted=True)
        return {"topk_weights": weights, "topk_ids": ids.to(torch.int32)}
