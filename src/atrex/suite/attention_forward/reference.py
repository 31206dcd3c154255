"""Attention without a mask over a batch of sequences laid one after the other."""

import torch
from torch import nn

SCORES_AT_ONCE = 2**28  # bounds the heads x queries x keys that are held; fewer leave a GPU's products without rows


class Model(nn.Module):
    """out[i, h] = softmax(q[i, h] . K_s / sqrt(d)) V_s over all keys of the sequence s that query i belongs to.

    q [N, heads, d], k, v [M, heads, d]; sequence s has the queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] and the keys
    cu_seqlens_k[s] to cu_seqlens_k[s + 1], more or fewer than its queries, but at least one where it has any;
    cu_seqlens_q, cu_seqlens_k [S + 1] int32, from 0 to N and to M.
    -> out [N, heads, d] in q's dtype; at least float32 inside.
    """

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
    ) -> torch.Tensor:
        acc = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros_like(q)
        bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for first, last, start, end in zip(bounds_q, bounds_q[1:], bounds_k, bounds_k[1:], strict=False):
            keys, values = (x[start:end].to(acc).transpose(0, 1) for x in (k, v))
            step = max(1, SCORES_AT_ONCE // max(1, q.shape[1] * (end - start)))
            for top in range(first, last, step):
                rows = slice(top, min(top + step, last))
                queries = q[rows].to(acc).transpose(0, 1) * q.shape[2] ** -0.5
                weights = torch.softmax(queries @ keys.transpose(1, 2), dim=-1)
                out[rows] = (weights @ values).transpose(0, 1).to(q.dtype)
        return out
