"""Wrong and right fp8_dynamic_per_token_quant kernels for mutation testing."""

import torch

_SCALE = "scale = x.abs().amax(-1).to(acc).clamp(min=1e-12) / largest"
WRONG = {
    "one scale for all rows": (_SCALE, _SCALE + "\n        scale = scale.amax().expand_as(scale).contiguous()"),
    "largest of the positive ones": ("x.abs().amax(-1)", "x.amax(-1)"),
    "half the range": ("/ largest\n", "/ (largest / 2)\n"),
    "scale inverted": (_SCALE, _SCALE + "\n        scale = 1 / scale"),
    "scale of the row before": (_SCALE, _SCALE + "\n        scale = scale.roll(1, 0)"),
    "last column not looked at": ("x.abs().amax(-1)", "x[:, :-1].abs().amax(-1)"),
    "scale 1 % off": (_SCALE, _SCALE + "\n        scale = 1.01 * scale"),
    "floor ten thousand times too large": ("clamp(min=1e-12)", "clamp(min=1e-8)"),
    "truncated": (
        "(x[rows].to(acc) / scale[rows, None]).clamp_(-largest, largest).to(q.dtype)",
        "(x[rows].to(acc) / scale[rows, None] * 0.94).clamp_(-largest, largest).to(q.dtype)",
    ),
}
SURVIVORS = {
    "one scale for all rows": "the same thing where there is one row",
    "scale of the row before": "the same thing where there is one row",
}


class _ByReciprocal(torch.nn.Module):
    def forward(self, x):
        scale = x.float().abs().amax(-1).clamp(min=1e-12) / 448.0
        q = (x.float() * scale.reciprocal()[:, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return {"q": q, "scale": scale}


class _ByQuotient(torch.nn.Module):
    def forward(self, x):
        largest = x.float().abs().amax(-1).clamp(min=1e-12)
        q = (x.float() / (largest[:, None] / 448.0)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return {"q": q, "scale": largest * (1 / 448.0)}


class _LookedUp(torch.nn.Module):
    """The nearest of the magnitudes that the encoding has, found between their middles."""

    def forward(self, x):
        scale = x.float().abs().amax(-1).clamp(min=1e-12) / 448.0
        magnitudes = torch.arange(127, dtype=torch.uint8, device=x.device).view(torch.float8_e4m3fn).float()
        scaled = x.float() / scale[:, None]
        at = torch.bucketize(scaled.abs(), (magnitudes[1:] + magnitudes[:-1]) / 2, out_int32=True)
        return {"q": (magnitudes[at] * scaled.sign()).to(torch.float8_e4m3fn), "scale": scale}


RIGHT = {"by the reciprocal": _ByReciprocal, "scale by a product": _ByQuotient, "looked up": _LookedUp}
