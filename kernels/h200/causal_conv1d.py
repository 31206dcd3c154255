"""Depthwise causal convolution in one launch. The samples of all channels are one array, cut into groups of 8: most
programs take 16-byte groups that lie next to each other, whatever the number of tokens, and leave out those that a
state reaches or where a channel ends; the samples before a group come by one more load (L1), taps among registers. The
first programs take what is left of some rows each, the first samples with the state and the last ones, and replace the
state.
Bound by memory. Measured on an H200, with lanes of a warp on rows of one tile: 514 tokens of 4096 channels 10.1 us
(S 0.175), 1024 tokens 11.4 us (0.31), 14807 tokens of 8192 channels 139 us (0.73). Expected with a warp's lanes next to
each other: 8.5 us (0.21), 10 us (0.35), 124 us (0.81)."""

import torch
import triton
import triton.language as tl

GROUP = 8  # samples of 16 bytes


def config(tokens: int) -> dict:
    """Groups of a program, and channels and lanes of one that takes the edges; no groups where there are few tokens."""
    if tokens <= 32:
        lanes = triton.next_power_of_2(tokens)
        return {"groups": 0, "edge_rows": max(16, 64 // lanes), "lanes": lanes, "warps": 4}
    return {"groups": 256, "edge_rows": 8, "lanes": 32, "warps": 8}


@triton.jit
def _exp2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _inverse(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _eight(x):
    """The eight columns of the last dimension, each without it; no data moves."""
    even, odd = tl.split(x.reshape(x.shape[0], 4, 2))
    x04, x26 = tl.split(even.reshape(x.shape[0], 2, 2))
    x15, x37 = tl.split(odd.reshape(x.shape[0], 2, 2))
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _activated(x, SILU: tl.constexpr):
    if SILU:
        # Where the power overflows, the inverse is zero, as it should be.
        x = x * _inverse(1.0 + _exp2(x * -1.4426950408889634))
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
    slot = tl.arange(0, HELD_PAD)[None, :]
    kept = live & (slot < HELD)
    source = tokens - HELD + slot
    old = tl.load(state_ptr + channel * HELD + tokens + slot, mask=kept & (source < 0), other=0.0)
    new = tl.load(x_ptr + start + source, mask=kept & (source >= 0), other=0.0)
    total = tl.load(bias_ptr + channel, mask=live, other=0.0).to(tl.float32) + tl.zeros(token.shape, tl.float32)
    for tap in tl.static_range(WIDTH):
        at = token + (tap - HELD)
        sample = tl.load(x_ptr + start + at, mask=inside & (at >= 0), other=0.0).to(tl.float32)
        if tap < HELD:
            # Before the first token stands the state.
            sample += tl.load(state_ptr + channel * HELD + at + HELD, mask=inside & (at < 0), other=0.0).to(tl.float32)
        total += tl.load(weight_ptr + channel * WIDTH + tap, mask=live, other=0.0).to(tl.float32) * sample
    tl.store(out_ptr + start + token, _activated(total, SILU).to(out_ptr.dtype.element_ty), mask=inside)

    # Every thread of the program has read the state before one of them writes it.
    tl.debug_barrier()
    tl.store(state_ptr + channel * HELD + slot, tl.where(source < 0, old, new), mask=kept)


@triton.jit
def _taps(weight_ptr, channel, live, WIDTH: tl.constexpr):
    if WIDTH == 4:
        tap = tl.arange(0, 4)[None, :]
        four = tl.load(weight_ptr + channel[:, None] * 4 + tap, mask=live[:, None], other=0.0).to(tl.float32)
        w02, w13 = tl.split(four.reshape(four.shape[0], 2, 2))
        w0, w2 = tl.split(w02)
        w1, w3 = tl.split(w13)
        taps = (w0, w1, w2, w3)
    else:
        taps = ()
        for tap in tl.static_range(WIDTH):
            taps = taps + (tl.load(weight_ptr + channel * WIDTH + tap, mask=live, other=0.0).to(tl.float32),)
    return taps


@triton.jit
def _groups(x_ptr, weight_ptr, bias_ptr, out_ptr, part, channels, tokens, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
            HUGE: tl.constexpr, SILU: tl.constexpr):
    HELD: tl.constexpr = WIDTH - 1
    if HUGE:
        first = (part.to(tl.int64) * GROUPS + tl.arange(0, GROUPS)) * 8
        channel = (first // tokens).to(tl.int32)
        token = (first - channel.to(tl.int64) * tokens).to(tl.int32)
    else:
        first = (part * GROUPS + tl.arange(0, GROUPS)) * 8
        channel = first // tokens
        token = first - channel * tokens
    whole = (channel < channels) & (token >= HELD) & (token + 8 <= tokens)
    place = first[:, None] + tl.arange(0, 8)[None, :]
    x = tl.load(x_ptr + place, mask=whole[:, None], other=0.0).to(tl.float32)
    before = tl.load(x_ptr + (first[:, None] - 4 + tl.arange(0, 4)[None, :]), mask=whole[:, None], other=0.0)
    bias = tl.load(bias_ptr + channel, mask=whole, other=0.0).to(tl.float32)
    taps = _taps(weight_ptr, channel, whole, WIDTH)
    b02, b13 = tl.split(before.to(tl.float32).reshape(GROUPS, 2, 2))
    b0, b2 = tl.split(b02)
    b1, b3 = tl.split(b13)
    line = (b0, b1, b2, b3) + _eight(x)
    out = ()
    for i in tl.static_range(8):
        total = bias
        for tap in tl.static_range(WIDTH):
            total = total + taps[tap] * line[4 + i + tap - HELD]
        out = out + (_activated(total, SILU).to(out_ptr.dtype.element_ty),)
    even = tl.join(tl.join(out[0], out[4]), tl.join(out[2], out[6]))
    odd = tl.join(tl.join(out[1], out[5]), tl.join(out[3], out[7]))
    tl.store(out_ptr + place, tl.join(even, odd).reshape(GROUPS, 8), mask=whole[:, None])


# Alignment of `tokens` is of no use: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens"])
def causal_conv1d_kernel(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, channels, tokens, WIDTH: tl.constexpr,
                         HELD_PAD: tl.constexpr, GROUPS: tl.constexpr, EDGE_ROWS: tl.constexpr, LANES: tl.constexpr,
                         HUGE: tl.constexpr, SILU: tl.constexpr):
    tl.static_assert(WIDTH <= 5)
    edges = tl.cdiv(channels, EDGE_ROWS)
    program = tl.program_id(0)
    # Edges come first: they wait longest, and the bandwidth of the others hides that.
    if program < edges:
        edge = program * EDGE_ROWS + tl.arange(0, EDGE_ROWS)[:, None]
        _edges(x_ptr, weight_ptr, bias_ptr, state_ptr, out_ptr, edge, channels, tokens, WIDTH, HELD_PAD, LANES, SILU)
    elif GROUPS > 0:
        _groups(x_ptr, weight_ptr, bias_ptr, out_ptr, program - edges, channels, tokens, WIDTH, GROUPS, HUGE, SILU)


class Model(torch.nn.Module):
    def __init__(self, activation: str | None):
        super().__init__()
        self.silu = activation == "silu"

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
                initial_state: torch.Tensor) -> dict[str, torch.Tensor]:
        (channels, tokens), width = x.shape, weight.shape[1]
        out = torch.empty_like(x)
        how = config(tokens)
        programs = triton.cdiv(channels, how["edge_rows"])
        if how["groups"]:
            programs += triton.cdiv(channels * tokens, GROUP * how["groups"])
        causal_conv1d_kernel[(programs,)](
            x, weight, bias, initial_state, out, channels, tokens, WIDTH=width,
            HELD_PAD=triton.next_power_of_2(width - 1), GROUPS=how["groups"], EDGE_ROWS=how["edge_rows"],
            LANES=how["lanes"], HUGE=x.numel() >= 2**31 - 2**16, SILU=self.silu, num_warps=how["warps"],
        )  # fmt: skip
        return {"out": out}
