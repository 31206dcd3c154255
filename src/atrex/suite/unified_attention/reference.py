"""Causal attention of new tokens over a paged key/value cache: prompts, chunks of prompts and decoding in one batch."""

import torch
from torch import nn

SCORES_AT_ONCE = 2**26  # bounds the heads x queries x keys that are held


class Model(nn.Module):
    """out[i, h] = softmax(q[i, h] . K / sqrt(d)) V over the tokens of i's sequence up to and including i itself.

    q [N, heads, d]: sequence s has the queries cu_seqlens_q[s] to cu_seqlens_q[s + 1], which are the last of its
    seqused_k[s] tokens. k_cache, v_cache [pages, page, kv_heads, d]; token t of sequence s lies in page
    block_table[s, t // page] at slot t % page. cu_seqlens_q [S + 1], seqused_k [S], block_table [S, width] int32
    (entries past a sequence's last page are valid page numbers of no meaning). Query head h reads kv head
    h // (heads / kv_heads). What lies in other slots is never read: it may be NaN.
    -> out [N, heads, d] in q's dtype, zero for queries of no sequence (those from cu_seqlens_q[S] on); at least float32
    inside.
    """

    def forward(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seqused_k: torch.Tensor,
        block_table: torch.Tensor,
    ) -> torch.Tensor:
        acc = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros_like(q)
        page = k_cache.shape[1]
        bounds, used = cu_seqlens_q.tolist(), seqused_k.tolist()
        for sequence, (first, last, length) in enumerate(zip(bounds[:-1], bounds[1:], used, strict=True)):
            pages = block_table[sequence, : -(-length // page)].long()
            keys, values = (cache[pages].flatten(0, 1)[:length].to(acc) for cache in (k_cache, v_cache))
            step = max(1, SCORES_AT_ONCE // (q.shape[1] * max(1, length)))
            for top in range(first, last, step):
                rows = slice(top, min(top + step, last))
                # As seen from the end: the last query sees all tokens.
                position = torch.arange(rows.start, rows.stop, device=q.device) + (length - last)
                seen = max(0, length - (last - rows.stop))
                out[rows] = _attend(q[rows].to(acc), keys[:seen], values[:seen], position).to(q.dtype)
        return out


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """q [n, heads, d], keys, values [m, kv_heads, d], position [n] of each query -> [n, heads, d]."""
    queries, heads, size = q.shape
    kv_heads = keys.shape[1]
    grouped = q.view(queries, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3).flatten(1, 2)
    logits = grouped @ keys.permute(1, 2, 0) * size**-0.5
    hidden = torch.arange(len(keys), device=q.device) > position[:, None]
    logits = logits.view(heads, queries, -1).masked_fill(hidden, float("-inf")).view(logits.shape)
    weighted = torch.softmax(logits, dim=-1) @ values.transpose(0, 1)
    return weighted.view(heads, queries, size).transpose(0, 1)
