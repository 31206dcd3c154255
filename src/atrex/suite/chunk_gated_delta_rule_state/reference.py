"""States of the gated delta rule before each chunk, and the values that they correct."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """With S the sequence's row of the pool, for each chunk c of chunk_size tokens in turn (the last may be shorter):

        h_c = round(S);  v = u - w h_c;  S = exp(g_last) S + k^T round(exp(g_last - g) v)

    k [batch, tokens, k_heads, K]; w [batch, tokens, heads, K]; u [batch, tokens, heads, V]; g [batch, tokens, heads],
    cumulative log decays inside a chunk, g_last that of a chunk's last token; initial_state [pool, heads, K, V];
    initial_state_indices [batch], distinct rows of the pool. Head n reads key head n // (heads / k_heads). round is to
    k's dtype: both products take operands in it. Accumulated in at least float32.

    -> {"h": [batch, chunks, heads, K, V], "v_new": v as [batch, tokens, heads, V], both in k's dtype; "initial_state":
    the pool with the final S in the rows that were named}. In serving, and by a candidate, the pool is updated in place
    and not returned. Nothing is changed in place here.
    """

    def __init__(self, chunk_size: int) -> None:
        super().__init__()
        self.chunk_size = chunk_size

    def forward(
        self,
        k: torch.Tensor,
        w: torch.Tensor,
        u: torch.Tensor,
        g: torch.Tensor,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        batch, tokens, heads, value = u.shape
        acc = torch.promote_types(k.dtype, torch.float32)
        rows = initial_state_indices.long()
        keys = self._chunks(k.to(acc)).repeat_interleave(heads // k.shape[2], 2).transpose(-1, -2)
        reads, values = self._chunks(w.to(acc)), self._chunks(u.to(acc))
        # Past the end g stays as it is, so that the last token's is the last of every chunk.
        held = torch.cat([g, g[:, -1:].expand(-1, -tokens % self.chunk_size, -1)], 1)
        decay = self._chunks(held.to(acc)[..., None])
        last = decay[..., -1:, :]
        keep, since = last.exp(), (last - decay).exp()

        state = initial_state[rows].to(acc)
        h = torch.empty(batch, keys.shape[1], *state.shape[1:], dtype=k.dtype, device=k.device)
        v_new = torch.empty_like(values)
        for c in range(keys.shape[1]):
            h[:, c] = state
            v_new[:, c] = values[:, c] - reads[:, c] @ h[:, c].to(acc)
            added = (since[:, c] * v_new[:, c]).to(k.dtype).to(acc)
            state = keep[:, c] * state + keys[:, c] @ added
        v_new = v_new.transpose(2, 3).reshape(batch, -1, heads, value)[:, :tokens].to(k.dtype).contiguous()
        pool = initial_state.index_copy(0, rows, state.to(initial_state.dtype))
        return {"h": h, "v_new": v_new, "initial_state": pool}

    def _chunks(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, heads, d] -> [batch, chunks, heads, chunk_size, d], the last chunk filled up with zeros."""
        batch, tokens, heads, size = x.shape
        padded = F.pad(x, (0, 0, 0, 0, 0, -tokens % self.chunk_size))
        return padded.view(batch, -1, self.chunk_size, heads, size).transpose(2, 3)
