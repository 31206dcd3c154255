"""Wrong and right fp8_blockscale_fused_moe kernels for mutation testing."""

import torch

WRONG = {
    "activation scales left out": (" * a_scale[tokens].to(acc).repeat_interleave(BLOCK, dim=1)", ""),
    "activation scales averaged": (
        "a_scale[tokens].to(acc)",
        "a_scale[tokens].to(acc).mean(1, keepdim=True).expand(-1, a_scale.shape[1])",
    ),
    "fc1 scales left out": ("fc1_scale[expert].to(acc)", "torch.ones_like(fc1_scale[expert]).to(acc)"),
    "fc2 scales left out": ("fc2_scale[expert].to(acc)", "torch.ones_like(fc2_scale[expert]).to(acc)"),
    "fc1 scales of the expert before": ("fc1_scale[expert]", "fc1_scale[expert - 1]"),
    "fc2 scales shifted by a block": ("fc2_scale[expert].to(acc)", "fc2_scale[expert].roll(1, 1).to(acc)"),
    "weights left out": ("down * factors[slots]", "down / self.top_k"),
    "gate and up exchanged": ("gate, up =", "up, gate ="),
    "gate not activated": ("nn.functional.silu(gate)", "gate"),
    "expert off by one": ("w1[expert]", "w1[expert - 1]"),
    "second product of the expert before": ("w2[expert]", "w2[expert - 1]"),
    "last slot left out": (
        "factors[slots]",
        "(factors * (torch.arange(len(factors), device=out.device) % self.top_k < self.top_k - 1)[:, None])[slots]",
    ),
}


def _wide(codes, scales):
    return codes.float() * scales.float().repeat_interleave(128, -2).repeat_interleave(128, -1)


class _TokenByToken(torch.nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()

    def middle(self, x):
        return x

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids, a_scale, fc1_scale, fc2_scale):
        x = hidden_states.float() * a_scale.repeat_interleave(128, -1)
        out = []
        for t, chosen in enumerate(topk_ids.tolist()):
            total = 0
            for j, e in enumerate(chosen):
                gate, up = (_wide(w1[e], fc1_scale[e]) @ x[t]).chunk(2)
                total = total + topk_weights[t, j] * (
                    _wide(w2[e], fc2_scale[e]) @ self.middle(gate.sigmoid() * gate * up)
                )
            out.append(total)
        return torch.stack(out).to(torch.bfloat16)


class _Requantized(_TokenByToken):
    """What enters the second product in fp8, in groups of 128, as production has it."""

    def middle(self, x):
        groups = x.view(-1, 128)
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).view(-1)


RIGHT = {"token by token": _TokenByToken, "requantized between the products": _Requantized}
