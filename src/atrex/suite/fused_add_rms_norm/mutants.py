"""Wrong and right fused_add_rms_norm kernels for mutation testing."""

import torch

WRONG = {
    "norm of x alone": ("wide = total.to(acc)", "wide = x.to(acc)"),
    "residual not updated": ('"residual": total}', '"residual": residual}'),
    "residual normalized too": ('"residual": total}', '"residual": (wide * inverse_rms).to(x.dtype)}'),
    "difference instead of sum": ("x.to(acc) + residual.to(acc)", "x.to(acc) - residual.to(acc)"),
    "eps ten times too large": ("+ self.eps)", "+ 10 * self.eps)"),
    "sum instead of mean": ("mean(-1, keepdim=True)", "sum(-1, keepdim=True)"),
    "weight shifted by one": ("weight.to(acc)", "weight.roll(1).to(acc)"),
    "scale of the row before": ("* inverse_rms *", "* inverse_rms.roll(1, 0) *"),
    "mean over all but the last column": ("wide.square().mean", "wide[..., :-1].square().mean"),
}
LOW_PRECISION = torch.float16


class _InFloat32(torch.nn.Module):
    """The sum goes into the norm before it is rounded, as a kernel that keeps it in registers would have it."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        total = x.float() + residual.float()
        out = torch.nn.functional.rms_norm(total, weight.shape, weight.float(), self.eps)
        return {"out": out.to(x.dtype), "residual": total.to(x.dtype)}


class _ByTorch(_InFloat32):
    def forward(self, x, residual, weight):
        total = x + residual
        return {"out": torch.nn.functional.rms_norm(total, weight.shape, weight, self.eps), "residual": total}


RIGHT = {"torch's own": _ByTorch, "sum not rounded before the norm": _InFloat32}
