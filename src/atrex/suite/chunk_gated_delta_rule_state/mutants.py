"""Wrong and right chunk_gated_delta_rule_state kernels for mutation testing."""

import torch

WRONG = {
    "state not decayed": ("state = keep[:, c] * state + keys", "state = state + keys"),
    "values not decayed": ("since[:, c] * v_new[:, c]", "v_new[:, c]"),
    "state not read": ("values[:, c] - reads[:, c] @ h[:, c].to(acc)", "values[:, c]"),
    "state after the chunk": ("h[:, c] = state\n", "h[:, c] = state * keep[:, c]\n"),
    "starts from zero": (
        "state = initial_state[rows].to(acc)",
        "state = torch.zeros_like(initial_state[rows]).to(acc)",
    ),
    "row 0 of the pool": ("rows = initial_state_indices.long()", "rows = 0 * initial_state_indices.long()"),
    "pool not updated": ('"initial_state": pool}', '"initial_state": initial_state}'),
    "sign of the read": ("values[:, c] - reads", "values[:, c] + reads"),
    "v_new is u": ('"v_new": v_new', '"v_new": u.to(k.dtype)'),
    "decay of the first token": ("last = decay[..., -1:, :]", "last = decay[..., :1, :]"),
    "heads of a group in turn": (
        ".repeat_interleave(heads // k.shape[2], 2)",
        ".repeat(1, 1, heads // k.shape[2], 1, 1)",
    ),
}
SURVIVORS = {"heads of a group in turn": "the same thing where there is one key head"}


class _StateInFloat32(torch.nn.Module):
    """The products take the state in float32, and nothing but the results is rounded."""

    def __init__(self, chunk_size):
        super().__init__()
        self.chunk = chunk_size

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        tokens, heads = u.shape[1:3]
        keys = k.float().repeat_interleave(heads // k.shape[2], 2)
        rows = initial_state_indices.long()
        state, h, v_new = initial_state[rows].float(), [], torch.empty_like(u)
        for first in range(0, tokens, self.chunk):
            part = slice(first, min(first + self.chunk, tokens))
            h.append(state.to(k.dtype))
            here, reads, values = (x[:, part].float().transpose(1, 2) for x in (keys, w, u))
            gates = g[:, part].float().transpose(1, 2)[..., None]
            fresh = values - reads @ h[-1].float()
            v_new[:, part] = fresh.transpose(1, 2).to(u.dtype)
            state = gates[..., -1:, :].exp() * state + here.mT @ ((gates[..., -1:, :] - gates).exp() * fresh)
        pool = initial_state.clone()
        pool[rows] = state.to(pool.dtype)
        return {"h": torch.stack(h, 1), "v_new": v_new, "initial_state": pool}


class _TokenByToken(_StateInFloat32):
    """The state decayed and written at every token; what a token reads is the state before its chunk."""

    def forward(self, k, w, u, g, initial_state, initial_state_indices):
        tokens, heads = u.shape[1:3]
        keys = k.float().repeat_interleave(heads // k.shape[2], 2)
        rows = initial_state_indices.long()
        state, h, v_new = initial_state[rows].float(), [], torch.empty_like(u)
        for t in range(tokens):
            if t % self.chunk == 0:
                h.append(state.to(k.dtype))
                before = h[-1].float()
            fresh = u[:, t].float() - torch.einsum("bhk,bhkv->bhv", w[:, t].float(), before)
            v_new[:, t] = fresh.to(u.dtype)
            step = g[:, t] if t % self.chunk == 0 else g[:, t] - g[:, t - 1]
            state = step.float().exp()[..., None, None] * state + keys[:, t, :, :, None] * fresh[:, :, None]
        pool = initial_state.clone()
        pool[rows] = state.to(pool.dtype)
        return {"h": torch.stack(h, 1), "v_new": v_new, "initial_state": pool}


RIGHT = {"operands of the second product unrounded": _StateInFloat32, "token by token": _TokenByToken}
