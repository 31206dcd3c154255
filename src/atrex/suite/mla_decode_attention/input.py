"""Inputs of mla_decode_attention: ragged lengths, attention that prefers some tokens, stale rows after the last."""

from collections.abc import Callable

import torch

from atrex.suite.lengths import ragged

Inputs = dict[str, torch.Tensor]

SPARE_ROWS = 16  # rows after the last sequence
STALE = 4.0  # which are this much larger, so that reading one shows
LARGE_LOGIT = 120.0  # the exponential overflows float32 at 89


def make_inputs(
    batch_size: int,
    ctx_len: int,
    nhead: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    exact: list[int] | None = None,
) -> Inputs:
    """q [batch_size, nhead, d] bf16, kv_cache [tokens + SPARE_ROWS, 1, d] bf16, seq_lens [batch_size] int32, where
    d = kv_lora_rank + qk_rope_head_dim and tokens = batch_size * ctx_len.

    The seed permutes which sequence has which length; `exact` replaces the lengths.
    """
    given = exact or ragged(batch_size, ctx_len)
    tokens, size = sum(given), kv_lora_rank + qk_rope_head_dim
    temperature = torch.empty(len(given), nhead, 1).uniform_(-0.5, 0.5).exp2_()
    kv_cache = torch.randn(tokens + SPARE_ROWS, 1, size, dtype=torch.bfloat16)
    kv_cache[tokens:].mul_(STALE)
    return {
        "q": (torch.randn(len(given), nhead, size) * temperature).to(torch.bfloat16),
        "kv_cache": kv_cache,
        "seq_lens": torch.tensor(given)[torch.randperm(len(given))].to(torch.int32),
    }


def corner_cases(
    batch_size: int, ctx_len: int, nhead: int, kv_lora_rank: int, qk_rope_head_dim: int
) -> dict[str, Callable[[], Inputs]]:
    """Lengths of one token, around a block of 64, one long among short ones; logits whose exponential overflows; NaN in
    the rows after the last sequence.
    """

    def drawn(exact: list[int]) -> Inputs:
        return make_inputs(len(exact), ctx_len, nhead, kv_lora_rank, qk_rope_head_dim, exact)

    def large_logits() -> Inputs:
        inputs = drawn([37, 5])
        for name in ("q", "kv_cache"):
            inputs[name][..., -1] = (LARGE_LOGIT * inputs["q"].shape[-1] ** 0.5) ** 0.5
        return inputs

    def nan_after() -> Inputs:
        inputs = drawn([37, 5])
        inputs["kv_cache"][-SPARE_ROWS:] = float("nan")
        return inputs

    return {
        "one_token": lambda: drawn([1, 1, 1]),
        "block_boundary": lambda: drawn([63, 64, 65]),
        "one_long": lambda: drawn([1, 513, 2]),
        "large_logits": large_logits,
        "nan_after": nan_after,
    }
