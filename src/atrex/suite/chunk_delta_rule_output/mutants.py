"""Wrong and right chunk_delta_rule_output kernels for mutation testing."""

import torch

WRONG = {
    "state term left out": ("decay.exp() * (queries @ h.to(acc)) + scores @ values", "scores @ values"),
    "chunk term left out": (" + scores @ values", ""),
    "mask off by one": (".tril()", ".tril(-1)"),
    "not causal": ('.masked_fill(~causal, float("-inf"))', ".clamp(max=0)"),
    "decay of the state left out": ("(decay.exp() * (queries", "(1.0 * (queries"),
    "decay between tokens left out": (
        "queries @ keys.transpose(-1, -2) * since",
        "queries @ keys.transpose(-1, -2) * causal",
    ),
    "scale left out": (" * q.shape[-1] ** -0.5", ""),
    "scale 10 % off": ("* q.shape[-1] ** -0.5", "* 1.1 * q.shape[-1] ** -0.5"),
    "state of the chunk before": ("h.to(acc)", "h.roll(1, 1).to(acc)"),
    "state transposed": ("queries @ h.to(acc)", "queries @ h.to(acc).mT"),
    "heads of a group in turn": (
        "self._chunks(x.to(acc)).repeat_interleave(group, 2)",
        "self._chunks(x.to(acc)).repeat(1, 1, group, 1, 1)",
    ),
}
SURVIVORS = {"state of the chunk before": "the same thing where there is one chunk"}


class _Unrounded(torch.nn.Module):
    """Chunk by chunk, the scores left in float32."""

    def __init__(self, chunk_size):
        super().__init__()
        self.chunk = chunk_size

    def forward(self, q, k, v, h, g):
        tokens, heads = v.shape[1:3]
        group = heads // q.shape[2]
        q, k = (x.float().repeat_interleave(group, 2) for x in (q, k))
        out = torch.empty(v.shape, device=v.device)
        for c in range(h.shape[1]):
            rows = slice(c * self.chunk, min((c + 1) * self.chunk, tokens))
            queries, keys, values, gates = (x[:, rows].float().transpose(1, 2) for x in (q, k, v, g[..., None]))
            inside = (queries @ keys.mT) * torch.exp((gates - gates.mT).clamp(max=0))
            state = gates.exp() * (queries @ h[:, c].float())
            out[:, rows] = (state + inside.tril() @ values).transpose(1, 2)
        return (out * q.shape[-1] ** -0.5).to(v.dtype)


class _Recurrent(_Unrounded):
    """Token by token in every chunk at once, with a state that is its chunk's own: no scores."""

    def forward(self, q, k, v, h, g):
        batch, tokens, heads, width = v.shape
        group = heads // q.shape[2]

        def chunks(x, fill=0.0):
            x = torch.nn.functional.pad(x.float(), (0, 0, 0, 0, 0, -tokens % self.chunk), value=fill)
            return x.view(batch, -1, self.chunk, heads, x.shape[-1])

        q, k = (chunks(x.repeat_interleave(group, 2)) for x in (q, k))
        values, gates = chunks(v), chunks(g[..., None])
        state, keep = h.float(), gates.diff(dim=2, prepend=torch.zeros_like(gates[:, :, :1])).exp()
        out = torch.empty_like(values)
        for t in range(self.chunk):
            state = keep[:, :, t, :, :, None] * state + k[:, :, t, :, :, None] * values[:, :, t, :, None]
            out[:, :, t] = (q[:, :, t, :, None] @ state).squeeze(-2)
        out = out.view(batch, -1, heads, width)[:, :tokens] * q.shape[-1] ** -0.5
        return out.to(v.dtype).contiguous()


RIGHT = {"chunk by chunk, scores unrounded": _Unrounded, "as a recurrence in every chunk": _Recurrent}
