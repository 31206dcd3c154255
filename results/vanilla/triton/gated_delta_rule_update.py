"""Gated delta rule, token by token: a program keeps some columns of one head's state in registers, in fp32, and loads
the next token while it computes one. Nothing crosses columns, so nothing is exchanged."""

import torch
import triton
import triton.language as tl


@triton.jit
def _token(q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key, place, dim, col, live, K: tl.constexpr, V: tl.constexpr):
    q = tl.load(q_ptr + key * K + dim, mask=live, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + key * K + dim, mask=live, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + place * V + col, mask=live, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + place, mask=live, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + place, mask=live, other=0.0).to(tl.float32)
    return q, k, v, a, b


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens"])
def gated_delta_rule_kernel(decay_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, rows_ptr, out_ptr, scale,
                            softplus_beta, threshold, tokens, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
                            K: tl.constexpr, V: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr):
    batch = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    key_head = head // (HEADS // KEY_HEADS)
    dim = tl.arange(0, K)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    rate = -tl.exp(tl.load(decay_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)

    # A negative row: the sequence starts from zero and its state is kept nowhere.
    row = tl.load(rows_ptr + batch).to(tl.int64)
    kept = row >= 0
    state_ptr = pool_ptr + ((tl.maximum(row, 0) * HEADS + head) * K + dim[:, None]) * V + col[None, :]
    state = tl.load(state_ptr, mask=(dim[:, None] >= 0) & kept, other=0.0)

    key = batch * tokens * KEY_HEADS + key_head
    place = batch * tokens * HEADS + head
    next_q, next_k, next_v, next_a, next_b = _token(q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key, place, dim, col, True, K, V)
    for token in range(0, tokens):
        q, k, v, a, b = next_q, next_k, next_v, next_a, next_b
        next_q, next_k, next_v, next_a, next_b = _token(
            q_ptr, k_ptr, v_ptr, a_ptr, b_ptr, key + (token + 1) * KEY_HEADS, place + (token + 1) * HEADS, dim, col,
            token + 1 < tokens, K, V,
        )  # fmt: skip
        if UNIT:
            q = q * tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6)
            k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
        x = a + bias
        e = tl.exp(x * softplus_beta)
        # The logarithm of one plus something small loses that: two terms of its series do not.
        soft = tl.where(e < 1e-3, e - 0.5 * e * e, tl.log(1.0 + e)) / softplus_beta
        soft = tl.where(x * softplus_beta > threshold, x, soft)
        state = state * tl.exp(rate * soft)
        v = (v - tl.sum(state * k[:, None], axis=0)) / (1.0 + tl.exp(-b))
        state = state + k[:, None] * v[None, :]
        out = tl.sum(state * q[:, None], axis=0) * scale
        tl.store(out_ptr + (place + token * HEADS) * V + col, out.to(out_ptr.dtype.element_ty))
    tl.store(state_ptr, state, mask=(dim[:, None] >= 0) & kept)


class Model(torch.nn.Module):
    def __init__(self, softplus_beta: float, softplus_threshold: float, use_qk_l2norm: bool):
        super().__init__()
        self.beta, self.threshold, self.unit = softplus_beta, softplus_threshold, use_qk_l2norm

    def forward(self, A_log: torch.Tensor, a: torch.Tensor, dt_bias: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
                v: torch.Tensor, b: torch.Tensor, initial_state: torch.Tensor,
                initial_state_indices: torch.Tensor) -> dict[str, torch.Tensor]:
        (batch, tokens, heads, value), (key_heads, key) = v.shape, k.shape[2:]
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        # Long: one warp a few columns wide, so that nothing waits for another warp. Short: whole lines of the state.
        cols, warps = (8, 1) if tokens > 4 or batch * heads < 132 else (32, 4)
        gated_delta_rule_kernel[(value // cols, batch * heads)](
            A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, out, key**-0.5, self.beta,
            self.threshold, tokens, KEY_HEADS=key_heads, HEADS=heads, K=key, V=value, COLS=cols, UNIT=self.unit,
            num_warps=warps,
        )  # fmt: skip
        return {"out": out}
