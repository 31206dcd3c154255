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
    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        out = torch.zeros_like(q)
        heads, page = q.shape[1], k_cache.shape[1]
        for s, length in enumerate(seqused_k.tolist()):
            first, last = int(cu_seqlens_q[s]), int(cu_seqlens_q[s + 1])
            if first == last:
                continue
            pages = block_table[s, : -(-length // page)].long()
            group = heads // k_cache.shape[2]
            keys, values = (
                cache[pages].flatten(0, 1)[:length].float().repeat_interleave(group, 1).transpose(0, 1)
                for cache in (k_cache, v_cache)
            )
            place = torch.arange(first, last, device=q.device)[:, None] + length - last
            seen = torch.arange(length, device=q.device) <= place
            attend = torch.nn.functional.scaled_dot_product_attention
            rows = attend(q[first:last].float().transpose(0, 1), keys, values, attn_mask=seen)
            out[first:last] = rows.transpose(0, 1).to(q.dtype)
        return out


RIGHT = {"torch's own": _BySdpa}
