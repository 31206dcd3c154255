"""Wrong and right layer_norm kernels for mutation testing."""

import torch

WRONG = {
    "not centred": ("centred = wide - wide.mean(-1, keepdim=True)", "centred = wide"),
    "centred only for the variance": (
        "return (centred * inverse_deviation",
        "return (wide * inverse_deviation",
    ),
    "bias left out": (" + bias.to(acc)", ""),
    "bias subtracted": (" + bias.to(acc)", " - bias.to(acc)"),
    "weight left out": (" * weight.to(acc)", ""),
    "weight shifted by one": ("weight.to(acc)", "weight.roll(1).to(acc)"),
    "eps left out": (" + EPS)", ")"),
    "eps ten times too large": (" + EPS)", " + 10 * EPS)"),
    "deviation instead of its inverse": ("torch.rsqrt(", "torch.sqrt("),
    "statistics of the row before": ("* inverse_deviation *", "* inverse_deviation.roll(1, 0) *"),
}


class _ByTorch(torch.nn.Module):
    def forward(self, x, weight, bias):
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


class _MomentsAtOnce(torch.nn.Module):
    """Sum and sum of squares about the first element in one pass, in float32."""

    def forward(self, x, weight, bias):
        wide = x.float()
        about = wide - wide[..., :1]
        mean = about.mean(-1, keepdim=True)
        variance = (about.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
        return ((about - mean) * torch.rsqrt(variance + 1e-5) * weight.float() + bias.float()).to(x.dtype)


RIGHT = {"torch's own": _ByTorch, "both moments in one pass": _MomentsAtOnce}
