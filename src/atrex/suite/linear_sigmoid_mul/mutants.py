"""Wrong and right linear_sigmoid_mul kernels for mutation testing."""

import torch

_RETURN = "return (torch.sigmoid(logits) * post_mul_mat.to(acc))"
WRONG = {
    "half of post_mul_mat": (_RETURN, "return (0.5 * post_mul_mat.to(acc))"),
    "bias left out": ("bias.to(acc), hidden_states", "torch.zeros_like(bias).to(acc), hidden_states"),
    "bias subtracted": ("bias.to(acc), hidden_states", "-bias.to(acc), hidden_states"),
    "bias alone": ("hidden_states.to(acc), weight", "torch.zeros_like(hidden_states).to(acc), weight"),
    "silu instead of sigmoid": ("torch.sigmoid(logits)", "torch.nn.functional.silu(logits)"),
    "tanh instead of sigmoid": ("torch.sigmoid(logits)", "torch.tanh(logits)"),
    "sigmoid without the product": (_RETURN, "return torch.sigmoid(logits).expand_as(post_mul_mat)"),
    "one minus sigmoid": ("torch.sigmoid(logits)", "torch.sigmoid(-logits)"),
    "last eighth of k left out": (
        "logits = torch.addmm(",
        "hidden_states = hidden_states.clone()\n"
        "        hidden_states[:, -(hidden_states.shape[1] // 8) :] = 0\n        logits = torch.addmm(",
    ),
    "gates of the token before": ("torch.sigmoid(logits)", "torch.sigmoid(logits).roll(1, 0)"),
}


class _ByLinear(torch.nn.Module):
    def forward(self, hidden_states, weight, bias, post_mul_mat):
        logits = torch.nn.functional.linear(hidden_states.float(), weight.float(), bias.float())
        return (post_mul_mat.float() / (1 + torch.exp(-logits))).to(hidden_states.dtype)


class _SplitK(torch.nn.Module):
    """The product in four parts along k, added up in float32."""

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        parts = zip(hidden_states.float().chunk(4, 1), weight.float().chunk(4, 1), strict=True)
        logits = sum(left @ right.T for left, right in parts) + bias.float()
        return torch.sigmoid(logits).mul(post_mul_mat.float()).to(hidden_states.dtype)


RIGHT = {"torch's linear": _ByLinear, "split along k": _SplitK}
