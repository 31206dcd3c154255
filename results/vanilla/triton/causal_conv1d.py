"""Depthwise causal convolution in one pass; the program that reads a channel's state also replaces it."""

import torch
import triton
import triton.language as tl


# Channels lie `tokens` apart: whether that is a multiple of 16 decides how wide loads are, so it is specialized.
@triton.jit
def causal_conv1d_kernel(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, channels, tokens, WIDTH: tl.constexpr,
                         STATE_PAD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, SILU: tl.constexpr):
    HELD: tl.constexpr = WIDTH - 1
    channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (channel < channels)[:, None]
    first = tl.program_id(1) * COLS
    token = (first + tl.arange(0, COLS))[None, :]
    x_row = x_ptr + channel.to(tl.int64)[:, None] * tokens
    state_row = state_ptr + channel[:, None] * HELD
    bias = tl.load(bias_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLS], tl.float32) + bias[:, None]
    for tap in tl.static_range(WIDTH):
        weight = tl.load(weight_ptr + channel * WIDTH + tap, mask=channel < channels, other=0.0).to(tl.float32)
        at = token + (tap - HELD)
        sample = tl.load(x_row + at, mask=live & (at >= 0) & (at < tokens), other=0.0).to(tl.float32)
        if tap < HELD:
            # Before the first token stands the state; later tiles read none of it.
            sample += tl.load(state_row + at + HELD, mask=live & (at < 0), other=0.0).to(tl.float32)
        total += weight[:, None] * sample
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    out = out_ptr + channel.to(tl.int64)[:, None] * tokens + token
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=live & (token < tokens))

    if first == 0:
        slot = tl.arange(0, STATE_PAD)[None, :]
        inside = live & (slot < HELD)
        source = tokens - HELD + slot
        old = tl.load(state_row + tokens + slot, mask=inside & (source < 0), other=0.0)
        new = tl.load(x_row + source, mask=inside & (source >= 0), other=0.0)
        # Every thread of the program has read the state before one of them writes it.
        tl.debug_barrier()
        tl.store(state_row + slot, tl.where(source < 0, old, new), mask=inside)


class Model(torch.nn.Module):
    def __init__(self, activation: str | None):
        super().__init__()
        self.silu = activation == "silu"

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
                initial_state: torch.Tensor) -> dict[str, torch.Tensor]:
        (channels, tokens), width = x.shape, weight.shape[1]
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        cols = max(16, min(1024, triton.next_power_of_2(tokens)))
        rows = max(1, min(32, 2048 // cols))
        causal_conv1d_kernel[(triton.cdiv(channels, rows), triton.cdiv(tokens, cols))](
            x, weight, bias, initial_state, out, channels, tokens, WIDTH=width,
            STATE_PAD=triton.next_power_of_2(width - 1), ROWS=rows, COLS=cols, SILU=self.silu, num_warps=4,
        )  # fmt: skip
        return {"out": out}
