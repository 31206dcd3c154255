"""Wrong and right silu_and_mul kernels for mutation testing."""

import torch

WRONG = {
    "halves exchanged": ("gate, up = x.chunk(2, dim=-1)", "up, gate = x.chunk(2, dim=-1)"),
    "interleaved instead of halved": (
        "gate, up = x.chunk(2, dim=-1)",
        "gate, up = x[..., 0::2], x[..., 1::2]",
    ),
    "sigmoid instead of silu": ("nn.functional.silu", "torch.sigmoid"),
    "gelu instead of silu": ("nn.functional.silu", "nn.functional.gelu"),
    "relu instead of silu": ("nn.functional.silu", "torch.relu"),
    "hard-swish instead of silu": ("nn.functional.silu", "nn.functional.hardswish"),
    "tanh-free: gate not multiplied": ("nn.functional.silu(gate.to(acc))", "(gate.to(acc) * 0.5)"),
    "sum instead of product": (".to(x.dtype) * up", ".to(x.dtype) + up"),
    "gate 10 % off": ("silu(gate.to(acc))", "silu(1.1 * gate.to(acc))"),
}


class _NotRounded(torch.nn.Module):
    """Without the rounding between the two operations, in another form of the sigmoid."""

    def forward(self, x):
        gate, up = x.float().chunk(2, dim=-1)
        return (gate * (0.5 + 0.5 * torch.tanh(0.5 * gate)) * up).to(x.dtype)


class _ByExponential(torch.nn.Module):
    def forward(self, x):
        gate, up = x.float().chunk(2, dim=-1)
        return ((gate / (1 + torch.exp(-gate))).to(x.dtype).float() * up).to(x.dtype)


RIGHT = {"not rounded between": _NotRounded, "by exponential": _ByExponential}
