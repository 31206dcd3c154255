"""Output of the gated delta rule in chunked form, from the state before each chunk."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """out_i = K^-0.5 * (exp(g_i) q_i h + sum_{j <= i} round(exp(g_i - g_j) q_i . k_j) v_j), i and j in one chunk.

    q, k [batch, tokens, q_heads, K]; v [batch, tokens, heads, V]; h [batch, chunks, heads, K, V], the state before each
    chunk of chunk_size tokens (the last may be shorter); g [batch, tokens, heads], cumulative log decays inside a
    chunk. Head n reads query and key head n // (heads / q_heads). round is to v's dtype, in which scores enter the
    second product. -> out [batch, tokens, heads, V] in v's dtype; accumulated in at least float32.
    """

    def __init__(self, chunk_size: int) -> None:
        super().__init__()
        self.chunk_size = chunk_size

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, h: torch.Tensor, g: torch.Tensor
    ) -> torch.Tensor:
        batch, tokens, heads, _ = v.shape
        acc = torch.promote_types(v.dtype, torch.float32)
        group = heads // q.shape[2]
        queries, keys = (self._chunks(x.to(acc)).repeat_interleave(group, 2) for x in (q, k))
        values, decay = self._chunks(v.to(acc)), self._chunks(g.to(acc)[..., None])
        causal = torch.ones(self.chunk_size, self.chunk_size, dtype=torch.bool, device=v.device).tril()
        since = (decay - decay.transpose(-1, -2)).masked_fill(~causal, float("-inf")).exp()
        scores = (queries @ keys.transpose(-1, -2) * since).to(v.dtype).to(acc)
        out = (decay.exp() * (queries @ h.to(acc)) + scores @ values) * q.shape[-1] ** -0.5
        return out.transpose(2, 3).reshape(batch, -1, heads, v.shape[-1])[:, :tokens].to(v.dtype).contiguous()

    def _chunks(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, heads, d] -> [batch, chunks, heads, chunk_size, d], the last chunk filled up with zeros."""
        batch, tokens, heads, size = x.shape
        padded = F.pad(x, (0, 0, 0, 0, 0, -tokens % self.chunk_size))
        return padded.view(batch, -1, self.chunk_size, heads, size).transpose(2, 3)
