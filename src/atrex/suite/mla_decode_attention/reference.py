"""Decode attention over a latent cache: keys and values are one vector a token, shared by all heads."""

import torch
from torch import nn


class Model(nn.Module):
    """out[s, h] = softmax(q[s, h] . C_s / sqrt(kv_lora_rank + qk_rope_head_dim)) C_s[:, :kv_lora_rank].

    q [S, heads, kv_lora_rank + qk_rope_head_dim]; kv_cache [rows, 1, kv_lora_rank + qk_rope_head_dim] holds the tokens
    C_s of one sequence after the other, seq_lens[s] rows each, and rows of no meaning after the last, which are never
    read (they may be NaN); seq_lens [S] int32, each at least 1.
    -> out [S, heads, kv_lora_rank] in q's dtype; at least float32 inside.
    """

    def __init__(self, nhead: int, kv_lora_rank: int, qk_rope_head_dim: int) -> None:
        super().__init__()
        self.rank = kv_lora_rank
        self.scale = (kv_lora_rank + qk_rope_head_dim) ** -0.5

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        acc = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(*q.shape[:2], self.rank, dtype=q.dtype, device=q.device)
        end = 0
        for sequence, length in enumerate(seq_lens.tolist()):
            start, end = end, end + length
            tokens = kv_cache[start:end, 0].to(acc)
            weights = torch.softmax(q[sequence].to(acc) @ tokens.T * self.scale, dim=-1)
            out[sequence] = weights @ tokens[:, : self.rank]
        return out
