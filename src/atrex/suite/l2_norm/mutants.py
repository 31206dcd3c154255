"""Wrong and right l2_norm kernels for mutation testing."""

import torch

WRONG = {
    "constant scale": ("torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS)", "self.hidden_size**-0.5"),
    "mean instead of sum": (".sum(-1, keepdim=True)", ".mean(-1, keepdim=True)"),
    "eps ten times too large": ("+ EPS", "+ 10 * EPS"),
    "eps left out": (" + EPS", ""),
    "absolute sum": ("wide.square()", "wide.abs()"),
    "divided by the square": ("torch.rsqrt(", "torch.reciprocal("),
    "sum over all but the last column": ("wide.square().sum", "wide[..., :-1].square().sum"),
    "scale of the row before": ("keepdim=True) + EPS)", "keepdim=True) + EPS).roll(1, 0)"),
}


class _Divided(torch.nn.Module):
    def __init__(self, hidden_size):
        super().__init__()

    def forward(self, x):
        wide = x.float()
        return (wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


class _Halves(_Divided):
    """The sum in two parts, as two warps would make it."""

    def forward(self, x):
        left, right = x.float().chunk(2, dim=-1)
        total = left.square().sum(-1, keepdim=True) + right.square().sum(-1, keepdim=True)
        return (x.float() * torch.rsqrt(total + 1e-6)).to(x.dtype)


RIGHT = {"divided by the root": _Divided, "summed in two parts": _Halves}
