"""Wrong and right gated_delta_rule_update kernels for mutation testing."""

import torch

_OUT = "out = out.transpose(2, 3).reshape(batch, -1, heads, value)[:, :tokens] * q.shape[-1] ** -0.5"
WRONG = {
    "out all zero": (_OUT, _OUT + " * 0"),
    "scale left out": (" * q.shape[-1] ** -0.5", ""),
    "bias of the step left out": (" + dt_bias.to(acc)", ""),
    "decay rate not exponentiated": ("-A_log.to(acc).exp()", "A_log.to(acc)"),
    "softplus left out": (
        "F.softplus(a.to(acc) + dt_bias.to(acc), self.softplus_beta, self.softplus_threshold)",
        "(a.to(acc) + dt_bias.to(acc)).abs()",
    ),
    "beta not squashed": ("b.to(acc).sigmoid()", "b.to(acc)"),
    "queries not of length one": (
        "for x in (q, k))\n        beta",
        "for x in (q, k))\n        queries = queries * 2\n        beta",
    ),
    "starts from zero": ("* named[:, None, None, None]", "* 0"),
    "row 0 of the pool": ("rows = initial_state_indices.long()", "rows = 0 * initial_state_indices.long()"),
    "pool not updated": ('"initial_state": pool}', '"initial_state": initial_state}'),
    "old values not taken away": ("written = fresh[:, c] - reads[:, c] @ state", "written = fresh[:, c]"),
    "heads of a group in turn": (
        ".repeat_interleave(heads // q.shape[2], 2)",
        ".repeat(1, 1, heads // q.shape[2], 1, 1)",
    ),
}


class _StepByStep(torch.nn.Module):
    """The recurrence as it is defined, token by token, in float32."""

    def __init__(self, softplus_beta, softplus_threshold, use_qk_l2norm):
        super().__init__()
        self.beta, self.threshold, self.norm = softplus_beta, softplus_threshold, use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        group = v.shape[2] // q.shape[2]
        q, k = (x.float().repeat_interleave(group, 2) for x in (q, k))
        if self.norm:
            q, k = (x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        steps = torch.nn.functional.softplus(a.float() + dt_bias.float(), self.beta, self.threshold)
        keep = torch.exp(-A_log.float().exp() * steps)[..., None, None]
        live = initial_state_indices >= 0
        state = initial_state[initial_state_indices.clamp(min=0).long()].float() * live[:, None, None, None]
        out = torch.empty(v.shape, device=v.device)
        for t in range(v.shape[1]):
            state = state * keep[:, t]
            wrong = v[:, t].float() - (state * k[:, t, :, :, None]).sum(-2)
            state = state + k[:, t, :, :, None] * (wrong * b[:, t, :, None].float().sigmoid())[:, :, None]
            out[:, t] = (state * q[:, t, :, :, None]).sum(-2)
        pool = initial_state.clone()
        pool[initial_state_indices[live].long()] = state[live].to(pool.dtype)
        return {"out": (out * q.shape[-1] ** -0.5).to(v.dtype), "initial_state": pool}


class _SmallChunks(_StepByStep):
    """Chunks of 16 tokens with the inverse of their triangle written out, in float32."""

    CHUNK = 16

    def operand(self, x):
        """As what `x` enters the products over keys, values and states."""
        return x

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        tokens, heads = v.shape[1:3]
        q, k = (x.float().repeat_interleave(heads // q.shape[2], 2).transpose(1, 2) for x in (q, k))
        if self.norm:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        steps = torch.nn.functional.softplus(a.float() + dt_bias.float(), self.beta, self.threshold)
        gates = (-A_log.float().exp() * steps).transpose(1, 2)[..., None]
        beta, values = b.float().sigmoid().transpose(1, 2)[..., None], v.float().transpose(1, 2)
        live = initial_state_indices >= 0
        state = initial_state[initial_state_indices.clamp(min=0).long()].float() * live[:, None, None, None]
        out = torch.empty_like(values)
        for first in range(0, tokens, self.CHUNK):
            part = slice(first, min(first + self.CHUNK, tokens))
            g = gates[:, :, part].cumsum(2)
            queries, keys = self.operand(q[:, :, part]), self.operand(k[:, :, part])
            held = self.operand(state)
            since = torch.exp((g - g.mT).clamp(max=0))
            eye = torch.eye(g.shape[2], device=g.device)
            inverse = torch.linalg.inv(eye + (beta[:, :, part] * since * (keys @ keys.mT)).tril(-1))
            wrong = values[:, :, part] - g.exp() * (keys @ held)
            written = self.operand(self.operand(inverse) @ self.operand(beta[:, :, part] * wrong))
            scores = self.operand((since * (queries @ keys.mT)).tril())
            out[:, :, part] = g.exp() * (queries @ held) + scores @ written
            last = g[:, :, -1:]
            state = last.exp() * state + self.operand((last - g).exp() * k[:, :, part]).mT @ written
        pool = initial_state.clone()
        pool[initial_state_indices[live].long()] = state[live].to(pool.dtype)
        out = out.transpose(1, 2) * q.shape[-1] ** -0.5
        return {"out": out.to(v.dtype).contiguous(), "initial_state": pool}


class _HalfOperands(_SmallChunks):
    """Matrix products of float16 operands, accumulated in float32, the state kept in float32 between chunks."""

    def operand(self, x):
        return x.half().float()


RIGHT = {
    "step by step": _StepByStep,
    "chunks of 16, inverted": _SmallChunks,
    "operands rounded to float16": _HalfOperands,
}
