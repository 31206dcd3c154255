"""Wrong and right fused_rmsnorm_quant kernels for mutation testing."""

import torch

_SCALE = "scale = normed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest"
WRONG = {
    "residual not added": ("x.to(acc) + residual.to(acc)", "x.to(acc)"),
    "residual not updated": ('"residual_out": total', '"residual_out": residual'),
    "weight left out": (" * weight.to(acc)", ""),
    "weight shifted by one": ("weight.to(acc)", "weight.roll(1).to(acc)"),
    "sum instead of mean": (".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)"),
    "scale of the unnormalized row": (_SCALE, _SCALE.replace("normed.abs()", "wide.abs()")),
    "largest of the positive ones": (_SCALE, _SCALE.replace("normed.abs().amax", "normed.amax")),
    "one scale for all rows": (_SCALE, _SCALE + "\n        scale = scale.amax().expand_as(scale).contiguous()"),
    "half the range": (_SCALE, _SCALE + " * 2"),
    "eps left out": (" + self.eps)", ")"),
}
SURVIVORS = {"one scale for all rows": "the same thing where there is one row"}


class _InFloat32(torch.nn.Module):
    """Float32 from the sum to the code, as a kernel that keeps the row in registers would have it."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def normed(self, total, weight):
        return torch.nn.functional.rms_norm(total.float(), weight.shape, weight.float(), self.eps)

    def forward(self, x, residual, weight):
        total = x + residual
        normed = self.normed(total, weight)
        scale = normed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        codes = (normed / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return {"quantized": codes, "scale": scale, "residual_out": total}


class _ByTorch(_InFloat32):
    def normed(self, total, weight):
        return torch.nn.functional.rms_norm(total, weight.shape, weight, self.eps).float()


RIGHT = {"not rounded before quantizing": _InFloat32, "torch's own": _ByTorch}
