"""Decode attention over a paged key/value cache: one query token a sequence."""

import torch
from torch import nn


class Model(nn.Module):
    """out[s, h] = softmax(query[s, h] . K_s / sqrt(d)) V_s over the first seq_lens[s] tokens of sequence s.

    query [S, heads, d]; k_cache [pages, kv_heads, d/x, page, x]; v_cache [pages, kv_heads, d, page]; token t of
    sequence s lies in page block_tables[s, t // page] at slot t % page. block_tables [S, width] int32 (entries past a
    sequence's last page are valid page numbers of no meaning), seq_lens [S] int32, each at least 1. Slots past a
    sequence's last token hold anything, NaN included: their values are left out, not multiplied by zero.
    Query head h reads kv head h // (heads / kv_heads). -> out [S, heads, d] in query's dtype; at least float32 inside.
    """

    def forward(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
    ) -> torch.Tensor:
        sequences, heads, size = query.shape
        kv_heads, page = k_cache.shape[1], k_cache.shape[3]
        tokens = block_tables.shape[1] * page
        acc = torch.promote_types(query.dtype, torch.float32)
        pages = block_tables.long()
        keys = k_cache[pages].to(acc).permute(0, 2, 1, 4, 3, 5).reshape(sequences, kv_heads, tokens, size)
        values = v_cache[pages].to(acc).permute(0, 2, 1, 4, 3).reshape(sequences, kv_heads, tokens, size)
        grouped = query.to(acc).view(sequences, kv_heads, heads // kv_heads, size)
        logits = grouped @ keys.transpose(-1, -2) * size**-0.5
        valid = torch.arange(tokens, device=query.device) < seq_lens[:, None]
        logits = logits.masked_fill(~valid[:, None, None, :], float("-inf"))
        values.masked_fill_(~valid[:, None, :, None], 0)
        return (torch.softmax(logits, dim=-1) @ values).view(sequences, heads, size).to(query.dtype)
