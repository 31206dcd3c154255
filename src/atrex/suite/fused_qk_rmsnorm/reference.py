"""RMS normalisation of every query and key head of a packed QKV projection."""

import torch
from torch import nn


class Model(nn.Module):
    """Each of the first head_num + kv_head_num heads h becomes round(h * rsqrt(mean(h^2) + eps)) * weight; v stays.

    hidden_states [tokens, (head_num + 2 kv_head_num) * size_per_head] holds q, k, v side by side; q_weight and k_weight
    [size_per_head] are shared by the heads -> out, like hidden_states, all of one floating dtype. Accumulates in at
    least float32.
    """

    def __init__(self, head_num: int, kv_head_num: int, size_per_head: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.head_num = head_num
        self.kv_head_num = kv_head_num
        self.size_per_head = size_per_head
        self.eps = eps

    def forward(self, hidden_states: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(hidden_states.dtype, torch.float32)
        heads = hidden_states.unflatten(-1, (-1, self.size_per_head))
        q, k, v = heads.split([self.head_num, self.kv_head_num, self.kv_head_num], dim=-2)

        def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            wide = x.to(acc)
            inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
            return (wide * inverse_rms).to(x.dtype) * weight

        return torch.cat([normed(q, q_weight), normed(k, k_weight), v], dim=-2).flatten(-2)
