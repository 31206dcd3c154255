"""Split packed QKV, add its bias, rotate queries and keys by position."""

import torch
from torch import nn

BASE = 10000.0


class Model(nn.Module):
    """q, k, v = split(qkv + qkv_bias); in q and k, element i < rope_dim/2 of a head turns with element i + rope_dim/2.

    The angle is positions[t] * BASE**(-2i / rope_dim); elements past rope_dim, and v, stay as they are.
    qkv [tokens, (heads + 2 kv_heads) * d]: all q heads, then all k heads, then all v heads; positions [tokens] int32;
    qkv_bias [(heads + 2 kv_heads) * d] or absent. -> {"q" [tokens, heads, d], "k", "v" [tokens, kv_heads, d]} in qkv's
    dtype, of their own memory; at least float32 inside, rounded once.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, rope_dim: int) -> None:
        super().__init__()
        self.heads = [num_heads, num_kv_heads, num_kv_heads]
        self.head_dim = head_dim
        self.rope_dim = rope_dim

    def forward(
        self, qkv: torch.Tensor, positions: torch.Tensor, qkv_bias: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(qkv.dtype, torch.float32)
        wide = qkv.to(acc)
        if qkv_bias is not None:
            wide = wide + qkv_bias.to(acc)
        q, k, v = wide.view(len(qkv), -1, self.head_dim).split(self.heads, dim=1)

        half = self.rope_dim // 2
        exponent = torch.arange(half, device=qkv.device, dtype=acc) * (-2.0 / self.rope_dim)
        angle = positions.to(acc)[:, None] * torch.pow(BASE, exponent)
        cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]

        def rotated(x: torch.Tensor) -> torch.Tensor:
            first, second, rest = x.split([half, half, self.head_dim - 2 * half], dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

        return {"q": rotated(q).to(qkv.dtype), "k": rotated(k).to(qkv.dtype), "v": v.clone().to(qkv.dtype)}
