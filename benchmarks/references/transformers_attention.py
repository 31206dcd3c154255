"""Attention as transformers writes it eagerly, and its latent form in DeepSeek-V3."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from benchmarks.references.registry import Case
from benchmarks.references.transformers_norms import hf, model


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """[queries, heads, d] against [tokens, kv_heads, d]; mask [queries, tokens] is added -> like q, fp32."""
    owner = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    q, k, v = (x.float().transpose(0, 1)[None] for x in (q, k, v))
    return model("qwen3_next").eager_attention_forward(owner, q, k, v, mask, scale)[0][0]


@hf("attention_forward", "eager_attention_forward by sequence")
def attention_forward(case: Case) -> torch.Tensor:
    q, k, v = (case.inputs[n] for n in ("q", "k", "v"))
    out = torch.zeros_like(q)
    bounds, bounds_k = (case.inputs[n].tolist() for n in ("cu_seqlens_q", "cu_seqlens_k"))
    for start, end, first, last in zip(bounds, bounds[1:], bounds_k, bounds_k[1:], strict=False):
        out[start:end] = eager(q[start:end], k[first:last], v[first:last], None, q.shape[-1] ** -0.5)
    return out


@hf("unified_attention", "eager_attention_forward with an additive causal mask")
def unified_attention(case: Case) -> torch.Tensor:
    q, table = case.inputs["q"], case.inputs["block_table"].long()
    out = torch.zeros_like(q)
    bounds, used = case.inputs["cu_seqlens_q"].tolist(), case.inputs["seqused_k"].tolist()
    for s, length in enumerate(used):
        rows = slice(bounds[s], bounds[s + 1])
        count = rows.stop - rows.start
        k, v = (case.inputs[n][table[s]].flatten(0, 1)[:length] for n in ("k_cache", "v_cache"))
        hidden = torch.full((count, length), float("-inf"), device=q.device).triu(length - count + 1)
        out[rows] = eager(q[rows], k, v, hidden, q.shape[-1] ** -0.5)
    return out


@hf("paged_attention_decode", "eager_attention_forward by sequence")
def paged_attention_decode(case: Case) -> torch.Tensor:
    query, table = case.inputs["query"], case.inputs["block_tables"].long()
    out = torch.empty_like(query)
    for s, length in enumerate(case.inputs["seq_lens"].tolist()):
        k = case.inputs["k_cache"][table[s]].permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)[:length]
        v = case.inputs["v_cache"][table[s]].permute(0, 3, 1, 2).flatten(0, 1)[:length]
        out[s] = eager(query[s : s + 1], k, v, None, query.shape[-1] ** -0.5)[0]
    return out


@hf("mla_decode_attention", "eager_attention_forward, one key/value head")
def mla_decode_attention(case: Case) -> torch.Tensor:
    q, cache = case.inputs["q"], case.inputs["kv_cache"]
    rank, end, outs = case.init["kv_lora_rank"], 0, []
    for s, length in enumerate(case.inputs["seq_lens"].tolist()):
        start, end = end, end + length
        tokens = cache[start:end]
        outs.append(eager(q[s : s + 1], tokens, tokens[..., :rank], None, q.shape[-1] ** -0.5))
    return torch.cat(outs).to(q.dtype).contiguous()
