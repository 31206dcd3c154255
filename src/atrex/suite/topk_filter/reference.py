"""Top-k filtering of logits before sampling."""

import torch
from torch import nn


class Model(nn.Module):
    """Logits that are at least the k-th largest of their row stay as they are, the others become -inf.

    logits [rows, vocabulary] fp32 -> out, the same shape and dtype. All that equal the k-th largest stay, so more than
    k may; a row of at most k finite logits stays as it is.
    """

    def __init__(self, top_k: int = 50) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        kth = torch.topk(logits, min(self.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        return logits.masked_fill(logits < kth, -torch.inf)
