"""RMSNorm in plain torch: correct, but a fallback, since no kernel here is the author's own."""

import torch


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * weight.float()).to(x.dtype)
