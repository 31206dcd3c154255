"""Wrong and right paged_attention_decode kernels for mutation testing."""

import torch

WRONG = {
    "table ignored": (
        "pages = block_tables.long()",
        "pages = torch.arange(block_tables.numel(), device=query.device).view_as(block_tables) % k_cache.shape[0]",
    ),
    "table of the next sequence": ("pages = block_tables.long()", "pages = block_tables.long().roll(1, 0)"),
    "one token too few": ("< seq_lens[:, None]", "< (seq_lens - 1).clamp(min=1)[:, None]"),
    "one token too many": ("< seq_lens[:, None]", "<= seq_lens[:, None]"),
    "whole last page": ("< seq_lens[:, None]", "< ((seq_lens + page - 1) // page * page)[:, None]"),
    "slots past the context times zero": ("values.masked_fill_(~valid[:, None, :, None], 0)\n        ", ""),
    "no mask": ('logits.masked_fill(~valid[:, None, None, :], float("-inf"))', "logits"),
    "scale left out": ("* size**-0.5", "* 1.0"),
    "scale 10 % off": ("* size**-0.5", "* 1.1 * size**-0.5"),
    "values of the kv head before": ("values = v_cache[pages]", "values = v_cache.roll(1, 1)[pages]"),
    "keys not unpacked": (
        "keys = k_cache[pages].to(acc).permute(0, 2, 1, 4, 3, 5)",
        "keys = k_cache[pages].to(acc).permute(0, 2, 1, 4, 5, 3)",
    ),
    "not normalized": ("torch.softmax(logits, dim=-1)", "torch.exp(logits - logits.amax(-1, keepdim=True))"),
    "queries of a group exchanged": ("heads // kv_heads, size)", "heads // kv_heads, size).flip(2)"),
}
SURVIVORS = {
    "values of the kv head before": "the same thing where there is one kv head",
    "queries of a group exchanged": "the same thing where a group has one query head",
    "table of the next sequence": "the same thing where there is one sequence",
}


class _Online(torch.nn.Module):
    """Online softmax over runs of pages, as a split-KV kernel computes it, in float32."""

    RUN = 3

    def forward(self, query, k_cache, v_cache, block_tables, seq_lens):
        sequences, heads, size = query.shape
        kv_heads, page = k_cache.shape[1], k_cache.shape[3]
        grouped = query.float().view(sequences, kv_heads, -1, size)
        top = torch.full((*grouped.shape[:3], 1), float("-inf"), device=query.device)
        total, out = torch.zeros_like(top), torch.zeros_like(grouped)
        for first in range(0, block_tables.shape[1], self.RUN):
            pages = block_tables[:, first : first + self.RUN].long()
            tokens = pages.shape[1] * page
            keys = k_cache[pages].float().permute(0, 2, 1, 4, 3, 5).reshape(sequences, kv_heads, tokens, size)
            values = v_cache[pages].float().permute(0, 2, 1, 4, 3).reshape(sequences, kv_heads, tokens, size)
            place = first * page + torch.arange(tokens, device=query.device)
            live = (place < seq_lens[:, None])[:, None, None, :]
            logits = (grouped @ keys.mT * size**-0.5).masked_fill(~live, float("-inf"))
            values = values.masked_fill(~live.mT, 0)
            highest = torch.maximum(top, logits.amax(-1, keepdim=True))
            weights = torch.exp(logits - highest)
            scale = torch.exp(top - highest)
            total, out, top = total * scale + weights.sum(-1, keepdim=True), out * scale + weights @ values, highest
        return (out / total).view(sequences, heads, size).to(query.dtype)


class _RoundedWeights(_Online):
    """Probabilities rounded to the cache's dtype before the second product, as tensor cores take them."""

    def forward(self, query, k_cache, v_cache, block_tables, seq_lens):
        sequences, heads, size = query.shape
        out = torch.empty_like(query)
        page, group = k_cache.shape[3], heads // k_cache.shape[1]
        for s in range(sequences):
            pages = block_tables[s, : -(-int(seq_lens[s]) // page)].long()
            keys = k_cache[pages].permute(1, 0, 3, 2, 4).reshape(k_cache.shape[1], -1, size)[:, : seq_lens[s]]
            values = v_cache[pages].permute(1, 0, 3, 2).reshape(k_cache.shape[1], -1, size)[:, : seq_lens[s]]
            q = query[s].view(-1, group, size)
            weights = torch.softmax(q.float() @ keys.float().mT * size**-0.5, -1).to(query.dtype)
            out[s] = (weights.float() @ values.float()).view(heads, size).to(query.dtype)
        return out


RIGHT = {"online softmax": _Online, "probabilities rounded": _RoundedWeights}
