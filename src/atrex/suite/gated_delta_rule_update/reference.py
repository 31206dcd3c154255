"""Gated delta rule: a linear attention whose state forgets, and corrects what it recalls, at every token."""

import torch
from torch import nn
from torch.nn import functional as F

CHUNK = 64  # tokens computed side by side; another size gives the same result


class Model(nn.Module):
    """With S [K, V] a head's state in the sequence's row of the pool, for each token in turn:

        S = exp(-exp(A_log) softplus(a + dt_bias)) S;  v' = sigmoid(b) (v - S^T k);  S = S + k v'^T
        out = K^-0.5 S^T q

    with q and k of length one when use_qk_l2norm (divided by sqrt(sum of squares + 1e-6)). Computed in chunks of tokens
    as matrix products (Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3).

    A_log, dt_bias [heads]; a, b [batch, tokens, heads]; q, k [batch, tokens, q_heads, K]; v [batch, tokens, heads, V];
    initial_state [pool, heads, K, V]; initial_state_indices [batch], distinct rows of the pool, or negative for a
    sequence that starts from zero and whose state is kept nowhere. Head n reads query and key head
    n // (heads / q_heads). Accumulated in at least float32, rounded once at the end.

    -> {"out": [batch, tokens, heads, V] in v's dtype, "initial_state": the pool with the final S in the rows that were
    named}. In serving, and by a candidate, the pool is updated in place and not returned. Nothing is changed in place
    here.
    """

    def __init__(self, softplus_beta: float, softplus_threshold: float, use_qk_l2norm: bool) -> None:
        super().__init__()
        self.softplus_beta = softplus_beta
        self.softplus_threshold = softplus_threshold
        self.use_qk_l2norm = use_qk_l2norm

    def forward(
        self,
        A_log: torch.Tensor,
        a: torch.Tensor,
        dt_bias: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        batch, tokens, heads, value = v.shape
        acc = torch.promote_types(v.dtype, torch.float32)
        size = min(CHUNK, tokens)
        steps = F.softplus(a.to(acc) + dt_bias.to(acc), self.softplus_beta, self.softplus_threshold)
        # Zeros fill the last chunk up: no decay, no key, no step.
        decay = _chunks((-A_log.to(acc).exp() * steps)[..., None], size).cumsum(-2)
        queries, keys = (_chunks(self._unit(x.to(acc)), size).repeat_interleave(heads // q.shape[2], 2) for x in (q, k))
        beta, values = _chunks(b.to(acc).sigmoid()[..., None], size), _chunks(v.to(acc), size)

        causal = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
        since = (decay - decay.transpose(-1, -2)).masked_fill(~causal, float("-inf")).exp()
        # v' inside a chunk solves (1 + A) v' = beta v - beta exp(g) k S: A holds what earlier tokens of it wrote.
        overlap = beta * since * (keys @ keys.transpose(-1, -2))
        right = torch.cat([beta * decay.exp() * keys, beta * values], -1)
        solved = torch.linalg.solve_triangular(overlap.tril(-1), right, upper=False, unitriangular=True)
        reads, fresh = solved.split([keys.shape[-1], value], -1)
        scores = since * (queries @ keys.transpose(-1, -2))
        last = decay[..., -1:, :]
        keep, later = last.exp(), ((last - decay).exp() * keys).transpose(-1, -2)
        queries = decay.exp() * queries

        named = initial_state_indices >= 0
        rows = initial_state_indices.long()
        state = initial_state[rows.clamp(min=0)].to(acc) * named[:, None, None, None]
        out = torch.empty_like(values)
        for c in range(values.shape[1]):
            written = fresh[:, c] - reads[:, c] @ state
            out[:, c] = queries[:, c] @ state + scores[:, c] @ written
            state = keep[:, c] * state + later[:, c] @ written
        out = out.transpose(2, 3).reshape(batch, -1, heads, value)[:, :tokens] * q.shape[-1] ** -0.5
        pool = initial_state.index_copy(0, rows[named], state[named].to(initial_state.dtype))
        return {"out": out.to(v.dtype).contiguous(), "initial_state": pool}

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) if self.use_qk_l2norm else x


def _chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[batch, tokens, heads, d] -> [batch, chunks, heads, size, d], the last chunk filled up with zeros."""
    batch, tokens, heads, width = x.shape
    return F.pad(x, (0, 0, 0, 0, 0, -tokens % size)).view(batch, -1, size, heads, width).transpose(2, 3)
