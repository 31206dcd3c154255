"""Wrong and right per_token_group_quant_fp8 kernels for mutation testing."""

import torch

_SCALES = "scales[rows] = wide.abs().amax(-1).clamp_(min=1e-10) / largest"
WRONG = {
    "one scale a row": (_SCALES, "scales[rows] = wide.abs().amax((-2, -1))[:, None].clamp_(min=1e-10) / largest"),
    "largest of the positive ones": ("wide.abs().amax(-1)", "wide.amax(-1)"),
    "half the range": ("clamp_(min=1e-10) / largest", "clamp_(min=1e-10) / (largest / 2)"),
    "scales of the group before": ("scales[rows, :, None]", "scales[rows].roll(1, 1)[:, :, None]"),
    "scales all zero": ('"scales": scales', '"scales": 0 * scales'),
    "scales inverted": ('"scales": scales', '"scales": 1 / scales'),
    "scales 1 % off": ("clamp_(min=1e-10) / largest", "clamp_(min=1e-10) / (0.99 * largest)"),
    "last element of a group not looked at": ("wide.abs().amax(-1)", "wide[..., :-1].abs().amax(-1)"),
    "codes 6 % low": ("(wide / scales[rows, :, None])", "(0.94 * wide / scales[rows, :, None])"),
}


class _ByReciprocal(torch.nn.Module):
    def __init__(self, group_size):
        super().__init__()
        self.group = group_size

    def scaled(self, wide, scales):
        return wide * scales.reciprocal()

    def forward(self, x):
        quantized = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty(len(x), x.shape[1] // self.group, device=x.device)
        for first in range(0, len(x), 2**15):
            rows = slice(first, first + 2**15)
            wide = x[rows].float().unflatten(-1, (-1, self.group))
            step = wide.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
            quantized[rows] = self.scaled(wide, step).clamp(-448.0, 448.0).to(quantized.dtype).flatten(-2)
            scales[rows] = step.squeeze(-1)
        return {"quantized": quantized, "scales": scales}


class _Divided(_ByReciprocal):
    def scaled(self, wide, scales):
        return wide / scales


class _LookedUp(_ByReciprocal):
    """The nearest of the magnitudes that the encoding has, found between their middles."""

    def scaled(self, wide, scales):
        magnitudes = torch.arange(127, dtype=torch.uint8, device=wide.device).view(torch.float8_e4m3fn).float()
        scaled = wide / scales
        at = torch.bucketize(scaled.abs(), (magnitudes[1:] + magnitudes[:-1]) / 2, out_int32=True)
        return magnitudes[at] * scaled.sign()


RIGHT = {"by the reciprocal": _ByReciprocal, "by a division": _Divided, "looked up": _LookedUp}
