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


class _BlockByBlock(torch.nn.Module):
    """Scales applied to the products of blocks of 128, as a grouped fp8 product does; tokens found by comparison."""

    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()
        self.experts = num_experts

    def middle(self, x):
        return x

    def product(self, left, codes, scales):
        """left [n, k] float, codes [m, k] fp8, scales [m / 128, k / 128] -> [n, m]."""
        out = torch.zeros(len(left), len(codes), device=left.device)
        for block in range(scales.shape[1]):
            columns = slice(128 * block, 128 * (block + 1))
            out += left[:, columns] @ codes[:, columns].float().T * scales[:, block].repeat_interleave(128)
        return out

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids, a_scale, fc1_scale, fc2_scale):
        x = hidden_states.float().unflatten(1, (-1, 128)).mul(a_scale[:, :, None]).flatten(1)
        out = torch.zeros_like(x)
        for expert in topk_ids.unique().tolist():
            chosen = (topk_ids == expert).any(1).nonzero().squeeze(1)
            weight = torch.where(topk_ids[chosen] == expert, topk_weights[chosen], 0).sum(1, keepdim=True)
            gate, up = self.product(x[chosen], w1[expert], fc1_scale[expert]).chunk(2, dim=1)
            down = self.product(self.middle(gate.sigmoid() * gate * up), w2[expert], fc2_scale[expert])
            out[chosen] += weight * down
        return out.to(torch.bfloat16)


class _Requantized(_BlockByBlock):
    """What enters the second product in fp8, in groups of 128, as production has it."""

    def middle(self, x):
        groups = x.unflatten(1, (-1, 128))
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(1)


RIGHT = {"scales after the product": _BlockByBlock, "requantized between the products": _Requantized}
