"""What the input functions of the gated delta rule share. Changing it changes the suite: it is hashed with it.

Layouts are those of serving: [batch, tokens, heads, size], each query and key head shared by as many value heads as
there are more of these, states [heads, key, value].
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from atrex.suite.draw import mixed_rows, row_scales


def directions(batch: int, tokens: int, heads: int, size: int) -> torch.Tensor:
    """[batch, tokens, heads, size] bf16 vectors of length one, of mixed distribution: some of a head's are alike."""
    rows = mixed_rows(batch * tokens * heads, size, torch.bfloat16, octaves=0.0)
    return F.normalize(rows.to(torch.float32), dim=-1).to(torch.bfloat16).view(batch, tokens, heads, size)


def token_values(batch: int, tokens: int, heads: int, size: int) -> torch.Tensor:
    """[batch, tokens, heads, size] bf16, Gaussian, a row up to twice or half as large as another.

    Without outliers: a row of a state or an output that a few elements ruled would say little about the others.
    """
    values = torch.randn(batch, tokens, heads, size, dtype=torch.bfloat16)
    values.view(-1, size).mul_(row_scales(batch * tokens * heads, octaves=1.0).to(torch.bfloat16))
    return values


def log_decays(batch: int, tokens: int, heads: int) -> torch.Tensor:
    """[batch, tokens, heads] float32 log decays, negative: a head forgets in 2 to 256 tokens, unevenly over them."""
    rates = torch.empty(heads).uniform_(-8.0, -1.0).exp2_()
    return -rates * torch.empty(batch, tokens, heads).exponential_()


def within_chunks(values: torch.Tensor, chunk: int) -> torch.Tensor:
    """Cumulative sums along dim 1 of [batch, tokens, heads] that start anew every `chunk` tokens."""
    batch, tokens, heads = values.shape
    padded = F.pad(values, (0, 0, 0, -tokens % chunk)).view(batch, -1, chunk, heads)
    return padded.cumsum(2).view(batch, -1, heads)[:, :tokens].contiguous()


def corrected(
    k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """w and u of the delta rule's chunked form, in k's dtype: how a chunk reads its first state, and its values.

    With A[i, j] = beta_i exp(g_i - g_j) k_i . k_j for j < i in a chunk, w = (I + A)^-1 (beta exp(g) k) and
    u = (I + A)^-1 (beta v); see Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3. k [batch, tokens,
    key heads, K], v [batch, tokens, heads, V], beta and the cumulative g [batch, tokens, heads].
    """
    batch, tokens, heads, width = v.shape
    keys = k.to(torch.float32).repeat_interleave(heads // k.shape[2], 2)

    def chunks(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, 0, 0, 0, -tokens % chunk))
        return padded.view(batch, -1, chunk, heads, x.shape[-1]).transpose(2, 3)

    keys, values, beta, g = chunks(keys), chunks(v.to(torch.float32)), chunks(beta[..., None]), chunks(g[..., None])
    earlier = torch.ones(chunk, chunk, dtype=torch.bool).tril(-1)
    decay = (g - g.transpose(-1, -2)).masked_fill(~earlier, float("-inf")).exp()
    right = torch.cat([beta * g.exp() * keys, beta * values], -1)
    solved = torch.linalg.solve_triangular(
        beta * (keys @ keys.transpose(-1, -2)) * decay, right, upper=False, unitriangular=True
    )
    solved = solved.transpose(2, 3).reshape(batch, -1, heads, right.shape[-1])[:, :tokens].to(k.dtype)
    w, u = solved.split([k.shape[-1], width], -1)
    return w.contiguous(), u.contiguous()


def state_rows(sequences: int, pool: int) -> torch.Tensor:
    """[sequences] int32 distinct rows of a pool of `pool`, in no order; never row 0 where there are others enough."""
    if sequences > pool:
        raise ValueError(f"{sequences} sequences: expected at most {pool}, the rows of the pool")
    first = 1 if sequences < pool else 0
    return (first + torch.randperm(pool - first)[:sequences]).to(torch.int32)
