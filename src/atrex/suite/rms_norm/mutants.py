"""Wrong and right rms_norm kernels for mutation testing."""

import torch

WRONG = {
    "eps ten times too large": ("+ self.eps)", "+ 10 * self.eps)"),
    "eps left out": ("+ self.eps)", ")"),
    "sum instead of mean": ("mean(-1, keepdim=True)", "sum(-1, keepdim=True)"),
    "mean over all but the last column": ("wide.square().mean", "wide[..., :-1].square().mean"),
    "sqrt forgotten": ("torch.rsqrt(wide.square()", "torch.reciprocal(wide.square()"),
    "weight shifted by one": ("weight.to(acc)", "weight.roll(1).to(acc)"),
    "centred like layer_norm": ("wide = x.to(acc)", "wide = x.to(acc) - x.to(acc).mean(-1, keepdim=True)"),
    "scale of the row before": ("* inverse_rms *", "* inverse_rms.roll(1, 0) *"),
}
LOW_PRECISION = torch.float16


class _ByTorch(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)


class _RoundedBeforeWeight(_ByTorch):
    """As many production kernels do it: the normalized row is rounded before the weight is applied."""

    def forward(self, x, weight):
        wide = x.float()
        normal = wide / torch.sqrt(wide.pow(2).sum(-1, keepdim=True) / x.shape[-1] + self.eps)
        return normal.to(x.dtype) * weight


RIGHT = {"torch's own": _ByTorch, "rounded before the weight": _RoundedBeforeWeight}
