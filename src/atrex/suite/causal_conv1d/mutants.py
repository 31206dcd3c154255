"""Wrong and right causal_conv1d kernels for mutation testing."""

import torch

WRONG = {
    "taps reversed": ("weight[:, tap, None]", "weight[:, width - 1 - tap, None]"),
    "state left out": (
        "past = torch.cat([initial_state[0], x], dim=1)",
        "past = torch.cat([torch.zeros_like(initial_state[0]), x], dim=1)",
    ),
    "state not updated": ('"initial_state": past[None, :, tokens:].contiguous()', '"initial_state": initial_state'),
    "state one sample late": ("past[None, :, tokens:].contiguous()", "past[None, :, tokens:].roll(1, 2).contiguous()"),
    "bias left out": ("total = bias.to(acc)", "total = torch.zeros_like(bias).to(acc)"),
    "bias alone": ("for tap in range(width):", "for tap in range(0):"),
    "last tap left out": ("for tap in range(width):", "for tap in range(width - 1):"),
    "not causal": ("past[:, tap : tap + tokens]", "past.roll(-1, 1)[:, tap : tap + tokens]"),
    "silu left out": ("nn.functional.silu(total) if", "total if"),
    "silu whatever the activation": (
        "nn.functional.silu(total) if self.activation else total",
        "nn.functional.silu(total)",
    ),
    "sigmoid instead of silu": ("nn.functional.silu(total)", "torch.sigmoid(total)"),
    "channels shifted by one": ("weight[:, tap, None].to(acc)", "weight.roll(1, 0)[:, tap, None].to(acc)"),
}
SURVIVORS = {
    "initial_state: copy of input x": "the same thing where there are as many tokens as the state holds",
    "silu left out": "the same thing where there is no activation",
    "sigmoid instead of silu": "the same thing where there is no activation",
    "silu whatever the activation": "the same thing where the activation is silu",
}


class _ByConv1d(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias, initial_state):
        past = torch.cat([initial_state, x[None]], dim=2)
        out = torch.nn.functional.conv1d(past.float(), weight.float()[:, None], bias.float(), groups=len(bias))[0]
        out = torch.nn.functional.silu(out) if self.activation else out
        return {"out": out.to(x.dtype), "initial_state": past[:, :, x.shape[1] :].contiguous()}


class _Unfolded(_ByConv1d):
    def forward(self, x, weight, bias, initial_state):
        past = torch.cat([initial_state[0], x], dim=1)
        out = (past.float().unfold(1, weight.shape[1], 1) * weight.float()[:, None]).sum(-1) + bias.float()[:, None]
        out = out * torch.sigmoid(out) if self.activation else out
        return {"out": out.to(x.dtype), "initial_state": past[None, :, x.shape[1] :].contiguous()}


RIGHT = {"torch's own": _ByConv1d, "unfolded": _Unfolded}
