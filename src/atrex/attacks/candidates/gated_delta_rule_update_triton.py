"""gated_delta_rule_update in Triton, token by token; with `low` the state is rounded to bf16 after every token."""

import torch
import triton
import triton.language as tl


@triton.jit
def delta_kernel(
    decay_ptr, a_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, b_ptr, pool_ptr, index_ptr, out_ptr, tokens, beta, threshold,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
    NORM: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    key, value = tl.arange(0, K), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    index = tl.load(index_ptr + sequence)
    place = pool_ptr + ((index * HEADS + head) * K + key[:, None]) * V + value[None, :]
    state = tl.load(place, mask=(index >= 0) & (key[:, None] < K), other=0.0)
    if LOW:
        state = state.to(tl.bfloat16).to(tl.float32)
    rate = tl.exp(tl.load(decay_ptr + head).to(tl.float32))
    bias = tl.load(bias_ptr + head).to(tl.float32)
    for t in range(tokens):
        token = sequence * tokens + t
        q = tl.load(q_ptr + (token * (HEADS // GROUP) + head // GROUP) * K + key).to(tl.float32)
        k = tl.load(k_ptr + (token * (HEADS // GROUP) + head // GROUP) * K + key).to(tl.float32)
        if NORM:
            q = q * tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6)
            k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
        x = (tl.load(a_ptr + token * HEADS + head).to(tl.float32) + bias) * beta
        step = tl.where(x > threshold, x, tl.log(1.0 + tl.exp(tl.minimum(x, threshold)))) / beta
        state = state * tl.exp(-rate * step)
        v = tl.load(v_ptr + (token * HEADS + head) * V + value).to(tl.float32)
        write = v - tl.sum(state * k[:, None], axis=0)
        write = write / (1.0 + tl.exp(-tl.load(b_ptr + token * HEADS + head).to(tl.float32)))
        state = state + k[:, None] * write[None, :]
        if LOW:
            state = state.to(tl.bfloat16).to(tl.float32)
        out = tl.sum(state * q[:, None], axis=0) * (K**-0.5)
        tl.store(out_ptr + (token * HEADS + head) * V + value, out.to(out_ptr.dtype.element_ty))
    tl.store(place, state, mask=(index >= 0) & (key[:, None] < K))


class Model(torch.nn.Module):
    low = False

    def __init__(self, softplus_beta: float, softplus_threshold: float, use_qk_l2norm: bool):
        super().__init__()
        self.beta, self.threshold, self.norm = softplus_beta, softplus_threshold, use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        batch, tokens, heads, width = v.shape
        out = torch.empty_like(v)
        delta_kernel[(batch * heads, width // 32)](
            A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, out, tokens, self.beta,
            self.threshold, HEADS=heads, GROUP=heads // q.shape[2], K=q.shape[3], V=width, BLOCK_V=32,
            NORM=self.norm, LOW=self.low,
        )  # fmt: skip
        return out
