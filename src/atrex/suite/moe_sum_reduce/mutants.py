"""Wrong and right moe_sum_reduce kernels for mutation testing."""

import torch

WRONG = {
    "last expert left out": ("part.to(acc).sum(dim=1)", "part[:, :-1].to(acc).sum(dim=1)"),
    "first expert counted twice": ("part.to(acc).sum(dim=1)", "part.to(acc).sum(dim=1) + part[:, 0].to(acc)"),
    "mean instead of sum": (".sum(dim=1)", ".mean(dim=1)"),
    "maximum instead of sum": (".sum(dim=1)", ".amax(dim=1)"),
    "first expert only": ("part.to(acc).sum(dim=1)", "part[:, 0].to(acc)"),
    "experts of the token before": ("torch.cat(sums)", "torch.cat(sums).roll(1, 0)"),
    "factor squared": ("* self.routed_scaling_factor", "* self.routed_scaling_factor**2"),
    "factor left out": (" * self.routed_scaling_factor", ""),
    "10 % too much": ("* self.routed_scaling_factor", "* 1.1 * self.routed_scaling_factor"),
    "columns shifted by one": ("torch.cat(sums)", "torch.cat(sums).roll(1, 1)"),
}
SURVIVORS = {
    "factor squared": "the same thing where the factor is one, as in every published shape",
    "factor left out": "the same thing where the factor is one, as in every published shape",
}


class _InTurn(torch.nn.Module):
    def __init__(self, routed_scaling_factor):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        total = expert_outputs[:, -1].float()
        for expert in range(expert_outputs.shape[1] - 2, -1, -1):
            total = total + expert_outputs[:, expert].float()
        return (self.factor * total).to(expert_outputs.dtype)


class _ByProduct(_InTurn):
    def forward(self, expert_outputs):
        ones = torch.full((1, expert_outputs.shape[1]), self.factor, device=expert_outputs.device)
        return (ones @ expert_outputs.float()).squeeze(1).to(expert_outputs.dtype)


RIGHT = {"one after the other": _InTurn, "by a product": _ByProduct}
