"""Wrong and right unified_attention kernels for mutation testing."""

import torch

_MASK = "hidden = torch.arange(len(keys), device=q.device) > position[:, None]"
WRONG = {
    "table ignored": (
        "pages = block_table[sequence, : -(-length // page)].long()",
        "pages = torch.arange(-(-length // page), device=q.device)",
    ),
    "table of another sequence": ("block_table[sequence,", "block_table[sequence - 1,"),
    "mask off by one": (_MASK, _MASK.replace(">", ">=").replace(">= position", ">= position.clamp(min=1)")),
    "mask one too late": (_MASK, _MASK.replace("position[:, None]", "position[:, None] + 1")),
    "no mask": (_MASK, _MASK.replace("position[:, None]", "position[:, None] + len(keys)")),
    "counted from the first token": (
        "position = torch.arange(rows.start, rows.stop, device=q.device) + (length - last)",
        "position = torch.arange(rows.start, rows.stop, device=q.device) - first",
    ),
    "scale left out": ("* size**-0.5", "* 1.0"),
    "scale 10 % off": ("* size**-0.5", "* 1.1 * size**-0.5"),
    "values of another kv head": ("@ values.transpose(0, 1)", "@ values.roll(1, 1).transpose(0, 1)"),
    "slots past the context times zero": (
        "seen = max(0, length - (last - rows.stop))",
        "seen = len(pages) * page\n"
        "                keys, values = (cache[pages].flatten(0, 1).to(acc) for cache in (k_cache, v_cache))",
    ),
    "queries of no sequence left as they are": ("out = torch.zeros_like(q)", "out = q.clone()"),
    "not normalized": ("torch.softmax(logits, dim=-1)", "torch.exp(logits - logits.amax(-1, keepdim=True))"),
}
SURVIVORS = {
    "table of another sequence": "the same thing where there is one sequence",
    "counted from the first token": "the same thing where no token came before the queries",
    "values of another kv head": "the same thing where there is one kv head",
    "mask one too late": "the same thing where there is one query",
    "no mask": "the same thing where there is one query",
}


class _BySdpa(torch.nn.Module):
    RUN = 1024

    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        out = torch.zeros_like(q)
        bounds, page = cu_seqlens_q.tolist(), k_cache.shape[1]
        for s, length in enumerate(seqused_k.tolist()):
            first, last = bounds[s], bounds[s + 1]
            if first == last:
                continue
            pages = block_table[s, : -(-length // page)].long()
            keys, values = (cache[pages].flatten(0, 1)[:length].float() for cache in (k_cache, v_cache))
            for top in range(first, last, self.RUN):
                rows = slice(top, min(top + self.RUN, last))
                seen = length - last + rows.stop
                place = torch.arange(rows.start, rows.stop, device=q.device) + length - last
                out[rows] = self.attend(q[rows].float(), keys[:seen], values[:seen], place).to(q.dtype)
        return out

    def attend(self, q, keys, values, place):
        """q [n, heads, d], keys, values [m, kv heads, d], place [n] of the queries among the keys."""
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values))
        seen = torch.arange(keys.shape[1], device=q.device) <= place[:, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q.transpose(0, 1), keys, values, attn_mask=seen).transpose(0, 1)


class _Online(_BySdpa):
    """Softmax in one pass over runs of keys, as flash attention has it."""

    def attend(self, q, keys, values, place):
        queries, heads, size = q.shape
        grouped = q.view(queries, keys.shape[1], -1, size).permute(1, 2, 0, 3)
        top = q.new_full((*grouped.shape[:3], 1), float("-inf"))
        total, out = torch.zeros_like(top), torch.zeros_like(grouped)
        for first in range(0, len(keys), self.RUN):
            here, there = (x[first : first + self.RUN].transpose(0, 1)[:, None] for x in (keys, values))
            hidden = first + torch.arange(here.shape[2], device=q.device) > place[:, None]
            logits = (grouped @ here.mT * size**-0.5).masked_fill(hidden, float("-inf"))
            highest = torch.maximum(top, logits.amax(-1, keepdim=True))
            weights, scale = torch.exp(logits - highest), torch.exp(top - highest)
            total = total * scale + weights.sum(-1, keepdim=True)
            out, top = out * scale + weights @ there, highest
        return (out / total).permute(2, 0, 1, 3).reshape(queries, heads, size)


RIGHT = {"torch's own": _BySdpa, "online softmax": _Online}
