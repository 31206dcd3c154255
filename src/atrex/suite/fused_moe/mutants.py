"""Wrong and right fused_moe kernels for mutation testing."""

import torch

WRONG = {
    "last slot left out": (
        "factors[slots]",
        "(factors * (torch.arange(len(factors), device=out.device) % self.top_k < self.top_k - 1)[:, None])[slots]",
    ),
    "weights left out": ("down * factors[slots]", "down / self.top_k"),
    "weights 10 % off": ("down * factors[slots]", "1.1 * down * factors[slots]"),
    "gate and up exchanged": ("gate, up =", "up, gate ="),
    "gelu instead of silu": ("nn.functional.silu(gate)", "nn.functional.gelu(gate)"),
    "gate not activated": ("nn.functional.silu(gate)", "gate"),
    "up left out": ("(nn.functional.silu(gate) * up)", "nn.functional.silu(gate)"),
    "expert off by one": ("w1[expert]", "w1[expert - 1]"),
    "second product of the expert before": ("w2[expert]", "w2[expert - 1]"),
    "one expert for all": ("w2[expert]", "w2[0]"),
    "tokens of the slots": ("tokens = slots // self.top_k", "tokens = slots % hidden_states.shape[0]"),
}
SURVIVORS = {"tokens of the slots": "the same thing where there is one token"}


class _EveryExpert(torch.nn.Module):
    """Every expert on every token, with a weight of zero where it was not chosen."""

    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()

    def cast(self, x):
        return x

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        weights = torch.zeros(len(hidden_states), len(w1), device=hidden_states.device)
        weights.scatter_(1, topk_ids.long(), topk_weights.float())
        x = hidden_states.float()
        out = torch.zeros_like(x)
        for expert in range(len(w1)):
            gate, up = self.cast(torch.nn.functional.linear(x, w1[expert].float())).chunk(2, dim=-1)
            middle = self.cast(gate * torch.sigmoid(gate) * up)
            out += weights[:, expert, None] * self.cast(torch.nn.functional.linear(middle, w2[expert].float()))
        return out


class _RoundedBetween(_EveryExpert):
    """What lies between the products rounded to bf16, as production kernels have it."""

    def cast(self, x):
        return x.to(torch.bfloat16).float()


RIGHT = {"every expert on every token": _EveryExpert, "rounded between the products": _RoundedBetween}
