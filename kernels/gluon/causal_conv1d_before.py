"""Depthwise causal convolution in one launch. A channel's row may begin at any sample, so most programs take only whole
aligned groups of 8 samples that no state reaches: 16-byte loads and stores whatever the number of tokens, the samples
before a group by one more load (L1), taps among registers. The first programs take what is left of some rows each, the
first samples with the state and the last ones, and replace the state.
Bound by memory: expected 4.1 TB/s plus 4 us of launch and latency: 514 tokens of 4096 channels 6 us (S 0.29), 1024
tokens 8 us (0.44), 14807 tokens of 8192 channels 120 us (0.84)."""

import torch
import triton
import triton.language as tl

GROUP = 8  # samples of 16 bytes


def config(channels: int, tokens: int) -> dict:
    """Channels and groups of a program, and channels of one that takes the edges."""
    if tokens <= 32:
        lanes = triton.next_power_of_2(tokens)
        return {"rows": 1, "groups": 16, "edge_rows": max(16, 64 // lanes), "lanes": lanes, "warps": 4, "whole": 0}
    # Groups that a row touches, one more where it begins inside one; the widest tile whose last part wastes little.
    touched = triton.cdiv(tokens, GROUP) + (tokens % GROUP > 0)
    groups = min((16, 32, 64, 128), key=lambda n: (triton.cdiv(touched, n) * n + n // 8, -n))
    return {"rows": 256 // groups, "groups": groups, "edge_rows": 8, "lanes": 32, "warps": 4,
            "whole": triton.cdiv(touched, groups)}  # fmt: skip


@triton.jit
def _eight(x):
    """The eight columns of the last dimension, each without it; no data moves."""
    even, odd = tl.split(x.reshape(x.shape[0], x.shape[1], 4, 2))
    x04, x26 = tl.split(even.reshape(x.shape[0], x.shape[1], 2, 2))
    x15, x37 = tl.split(odd.reshape(x.shape[0], x.shape[1], 2, 2))
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _activated(x, SILU: tl.constexpr):
    if SILU:
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
def _edges(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, channel, channels, tokens, WIDTH: tl.constexpr,
           HELD_PAD: tl.constexpr, LANES: tl.constexpr, SILU: tl.constexpr):
    HELD: tl.constexpr = WIDTH - 1
    live = channel < channels
    start = channel.to(tl.int64) * tokens
    lane = tl.arange(0, LANES)[None, :]
    if LANES < 32:
        token = lane
        inside = live & (token < tokens)
    else:
        # The first half of the lanes stands before the first whole group, the second behind the last one.
        ahead = ((start + HELD + 7) // 8 * 8 - start).to(tl.int32)
        behind = ((start + tokens) // 8 * 8 - start).to(tl.int32)
        short = tokens <= LANES
        token = tl.where(short | (lane < LANES // 2), lane, behind + lane - LANES // 2)
        inside = live & (token < tokens) & (short | (lane >= LANES // 2) | (token < ahead))
    total = tl.load(bias_ptr + channel, mask=live, other=0.0).to(tl.float32) + tl.zeros(token.shape, tl.float32)
    for tap in tl.static_range(WIDTH):
        at = token + (tap - HELD)
        sample = tl.load(x_ptr + start + at, mask=inside & (at >= 0), other=0.0).to(tl.float32)
        if tap < HELD:
            # Before the first token stands the state.
            sample += tl.load(state_ptr + channel * HELD + at + HELD, mask=inside & (at < 0), other=0.0).to(tl.float32)
        total += tl.load(weight_ptr + channel * WIDTH + tap, mask=live, other=0.0).to(tl.float32) * sample
    tl.store(out_ptr + start + token, _activated(total, SILU).to(out_ptr.dtype.element_ty), mask=inside)

    slot = tl.arange(0, HELD_PAD)[None, :]
    kept = live & (slot < HELD)
    source = tokens - HELD + slot
    old = tl.load(state_ptr + channel * HELD + tokens + slot, mask=kept & (source < 0), other=0.0)
    new = tl.load(x_ptr + start + source, mask=kept & (source >= 0), other=0.0)
    # Every thread of the program has read the state before one of them writes it.
    tl.debug_barrier()
    tl.store(state_ptr + channel * HELD + slot, tl.where(source < 0, old, new), mask=kept)


@triton.jit
def _groups(x_ptr, weight_ptr, bias_ptr, out_ptr, channel, part, channels, tokens, WIDTH: tl.constexpr,
            GROUPS: tl.constexpr, SILU: tl.constexpr):
    HELD: tl.constexpr = WIDTH - 1
    live = channel < channels
    start = channel.to(tl.int64) * tokens
    first = (start // 8 + part * GROUPS + tl.arange(0, GROUPS)[None, :]) * 8
    whole = (live & (first >= start + HELD) & (first + 8 <= start + tokens))[:, :, None]
    place = first[:, :, None] + tl.arange(0, 8)[None, None, :]
    x = tl.load(x_ptr + place, mask=whole, other=0.0).to(tl.float32)
    before = first[:, :, None] - 4 + tl.arange(0, 4)[None, None, :]
    before = tl.load(x_ptr + before, mask=whole, other=0.0).to(tl.float32)
    before = before.reshape(before.shape[0], before.shape[1], 2, 2)
    b02, b13 = tl.split(before)
    b0, b2 = tl.split(b02)
    b1, b3 = tl.split(b13)
    line = (b0, b1, b2, b3) + _eight(x)
    bias = tl.load(bias_ptr + channel, mask=live, other=0.0).to(tl.float32)
    out = ()
    for i in tl.static_range(8):
        total = bias
        for tap in tl.static_range(WIDTH):
            weight = tl.load(weight_ptr + channel * WIDTH + tap, mask=live, other=0.0).to(tl.float32)
            total = total + weight * line[4 + i + tap - HELD]
        out = out + (_activated(total, SILU).to(out_ptr.dtype.element_ty),)
    even = tl.join(tl.join(out[0], out[4]), tl.join(out[2], out[6]))
    odd = tl.join(tl.join(out[1], out[5]), tl.join(out[3], out[7]))
    tl.store(out_ptr + place, tl.join(even, odd).reshape(place.shape), mask=whole)


# Alignment of `tokens` is of no use: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens"])
def causal_conv1d_kernel(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, channels, tokens, whole, WIDTH: tl.constexpr,
                         HELD_PAD: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, EDGE_ROWS: tl.constexpr,
                         LANES: tl.constexpr, SILU: tl.constexpr):
    tl.static_assert(WIDTH <= 5)
    edges = tl.cdiv(channels, EDGE_ROWS)
    program = tl.program_id(0)
    # Edges come first: they wait longest, and the bandwidth of the others hides that.
    if program < edges:
        edge = program * EDGE_ROWS + tl.arange(0, EDGE_ROWS)[:, None]
        _edges(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, edge, channels, tokens, WIDTH, HELD_PAD, LANES, SILU)
    else:
        channel = (program - edges) // whole * ROWS + tl.arange(0, ROWS)[:, None]
        part = (program - edges) % whole
        _groups(x_ptr, weight_ptr, bias_ptr, out_ptr, channel, part, channels, tokens, WIDTH, GROUPS, SILU)


class Model(torch.nn.Module):
    def __init__(self, activation: str | None):
        super().__init__()
        self.silu = activation == "silu"

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
                initial_state: torch.Tensor) -> dict[str, torch.Tensor]:
        (channels, tokens), width = x.shape, weight.shape[1]
        out = torch.empty_like(x)
        how = config(channels, tokens)
        programs = triton.cdiv(channels, how["edge_rows"]) + triton.cdiv(channels, how["rows"]) * how["whole"]
        causal_conv1d_kernel[(programs,)](
            x, weight, bias, initial_state, out, channels, tokens, how["whole"], WIDTH=width,
            HELD_PAD=triton.next_power_of_2(width - 1), ROWS=how["rows"], GROUPS=how["groups"],
            EDGE_ROWS=how["edge_rows"], LANES=how["lanes"], SILU=self.silu, num_warps=how["warps"],
        )  # fmt: skip
        return {"out": out}
