"""Wrong and right gated_rms_norm kernels for mutation testing."""

import torch

WRONG = {
    "gate left out": ("return (normed * gate if self.norm_before_gate else normed)", "return normed"),
    "gated before the norm": ("if not self.norm_before_gate:", "if self.norm_before_gate:"),
    "sigmoid instead of silu": ("nn.functional.silu(z.to(acc))", "torch.sigmoid(z.to(acc))"),
    "gelu instead of silu": ("nn.functional.silu(z.to(acc))", "nn.functional.gelu(z.to(acc))"),
    "x and z exchanged": (
        "wide, gate = x.to(acc), nn.functional.silu(z.to(acc))",
        "wide, gate = z.to(acc), nn.functional.silu(x.to(acc))",
    ),
    "weight left out": (" * weight.to(acc)", ""),
    "weight shifted by one": ("weight.to(acc)", "weight.roll(1).to(acc)"),
    "sum instead of mean": (".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)"),
    "eps ten times too large": ("+ self.eps)", "+ 10 * self.eps)"),
    "scale of the row before": ("keepdim=True) + self.eps)", "keepdim=True) + self.eps).roll(1, 0)"),
}
SURVIVORS = {"gate left out": "the same thing where the gate comes before the norm"}


class _ByTorch(torch.nn.Module):
    def __init__(self, eps, norm_before_gate, activation):
        super().__init__()
        self.eps, self.before = eps, norm_before_gate

    def forward(self, x, weight, z):
        gate = torch.nn.functional.silu(z.float())
        wide = x.float() if self.before else x.float() * gate
        normed = torch.nn.functional.rms_norm(wide, weight.shape, weight.float(), self.eps)
        return (normed * gate if self.before else normed).to(x.dtype)


class _GateRounded(_ByTorch):
    """The gate rounded to the operands' dtype before it multiplies."""

    def forward(self, x, weight, z):
        gate = torch.nn.functional.silu(z)
        wide = x.float() if self.before else (x * gate).float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * weight.float()
        return ((normed * gate.float()) if self.before else normed).to(x.dtype)


RIGHT = {"torch's own": _ByTorch, "gate rounded": _GateRounded}
