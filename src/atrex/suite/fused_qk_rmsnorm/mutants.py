"""Wrong and right fused_qk_rmsnorm kernels for mutation testing."""

import torch

WRONG = {
    "keys not normalized": ("normed(k, k_weight)", "k"),
    "queries not normalized": ("normed(q, q_weight)", "q"),
    "values normalized too": ("normed(k, k_weight), v]", "normed(k, k_weight), normed(v, k_weight)]"),
    "weights exchanged": (
        "normed(q, q_weight), normed(k, k_weight)",
        "normed(q, k_weight), normed(k, q_weight)",
    ),
    "weight left out": (".to(x.dtype) * weight", ".to(x.dtype)"),
    "weight shifted by one": (".to(x.dtype) * weight", ".to(x.dtype) * weight.roll(1)"),
    "normalized over all heads": (".mean(-1, keepdim=True)", ".mean((-2, -1), keepdim=True)"),
    "sum instead of mean": (".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)"),
    "eps left out": (" + self.eps)", ")"),
    "k and v exchanged": ("q, k, v = heads.split", "q, v, k = heads.split"),
}


class _ByTorch(torch.nn.Module):
    def __init__(self, head_num, kv_head_num, size_per_head, eps=1e-6):
        super().__init__()
        self.heads, self.kv, self.size, self.eps = head_num, kv_head_num, size_per_head, eps

    def norm(self, x, weight):
        return torch.nn.functional.rms_norm(x.float(), (self.size,), weight.float(), self.eps).to(x.dtype)

    def forward(self, hidden_states, q_weight, k_weight):
        out = hidden_states.clone().unflatten(-1, (-1, self.size))
        out[:, : self.heads] = self.norm(out[:, : self.heads], q_weight)
        keys = slice(self.heads, self.heads + self.kv)
        out[:, keys] = self.norm(out[:, keys], k_weight)
        return out.flatten(-2)


class _InItsDtype(_ByTorch):
    def norm(self, x, weight):
        return torch.nn.functional.rms_norm(x, (self.size,), weight, self.eps)


RIGHT = {"not rounded before the weight": _ByTorch, "torch's own": _InItsDtype}
