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


class _TokenByToken(torch.nn.Module):
    """All slots at once: each token's experts gathered."""

    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()

    def cast(self, x):
        return x

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        out = []
        for t, chosen in enumerate(topk_ids.long()):
            both = torch.einsum("kih,h->ki", w1[chosen].float(), hidden_states[t].float())
            gate, up = self.cast(both).chunk(2, dim=-1)
            middle = self.cast(gate * torch.sigmoid(gate) * up)
            parts = self.cast(torch.einsum("khi,ki->kh", w2[chosen].float(), middle))
            out.append((parts * topk_weights[t, :, None].float()).sum(0))
        return torch.stack(out)


class _RoundedBetween(_TokenByToken):
    """What lies between the products rounded to bf16, as production kernels have it."""

    def cast(self, x):
        return x.to(torch.bfloat16).float()


RIGHT = {"token by token": _TokenByToken, "rounded between the products": _RoundedBetween}
