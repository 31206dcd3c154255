"""Scatter of new keys and values into the paged cache: 16 bytes of key and of value a thread, whole tokens a program.

Bound by memory bandwidth from 1000 tokens of 8 KB on and by one trip to memory below that: slot, key and value are
asked for at once (padding is 1 token in 16, so that reading it costs less than waiting for its slot first), then
stored. In a contiguous cache a slot is an address without any division. The last tile is moved back to be whole: no
masks but padding. Nobody reads keys and values again: they are asked for evict-first.
A sweep on an H200, where a launch alone takes 3 us: 248x16x128 5.0 us (S 0.16), 520x16x128 6.1 us (0.27), 1015x16x128
7.9 us (0.41), 2044x16x128 11.2 us (0.58; 11.7 by eight warps, 12.1 not evict-first, 12.5 with half as much a thread,
which is two waves of programs instead of one), 8192x4x128 11.5 us (0.57).
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def config(tokens: int, width: int) -> tuple[int, int, int]:
    """Threads that share a token, tokens a program, warps a program."""
    # A quarter of a row in each of two accesses from where it takes several warps: all of a batch is under way at once.
    threads = min(256, max(1, triton.next_power_of_2(width) // (16 if tokens * width > 1 << 20 else 8)))
    warps = max(4, threads // 32)
    while warps > max(1, threads // 32) and tokens * threads < 132 * 32 * warps:
        warps //= 2
    return threads, 32 * warps // threads, warps


# The number of tokens changes from call to call: it must not make another specialization.
@gluon.jit(do_not_specialize=["tokens"])
def reshape_and_cache_kernel(key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slots_ptr, tokens, key_stride,
                             value_stride, key_page, key_slot, value_page, value_slot, PAGE: gl.constexpr,
                             FLAT: gl.constexpr, WIDTH: gl.constexpr, COLS: gl.constexpr, VECTOR: gl.constexpr,
                             LANES: gl.constexpr, ACROSS: gl.constexpr, TOKENS: gl.constexpr, WHOLE: gl.constexpr,
                             WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // LANES, LANES], [WARPS // ACROSS, ACROSS], [1, 0])
    PASSES: gl.constexpr = (WIDTH + COLS - 1) // COLS
    first = gl.program_id(0) * TOKENS
    if TOKENS > 1 and WHOLE:
        first = gl.minimum(first, tokens - TOKENS)
    row = gl.arange(0, TOKENS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))[None, :]
    key_tile = key_ptr + first.to(gl.int64) * key_stride + (row * key_stride)[:, None] + col
    value_tile = value_ptr + first.to(gl.int64) * value_stride + (row * value_stride)[:, None] + col
    known = row >= 0 if WHOLE else first + row < tokens

    slot = gl.load(slots_ptr + first + row, mask=known, other=-1)
    keys = ()
    values = ()
    for i in gl.static_range(PASSES):
        if WHOLE and (i + 1) * COLS <= WIDTH:
            keys = keys + (gl.load(key_tile + i * COLS, eviction_policy="evict_first"),)
            values = values + (gl.load(value_tile + i * COLS, eviction_policy="evict_first"),)
        else:
            wanted = known[:, None] & (col < WIDTH - i * COLS)
            keys = keys + (gl.load(key_tile + i * COLS, mask=wanted),)
            values = values + (gl.load(value_tile + i * COLS, mask=wanted),)

    live = (slot >= 0)[:, None]
    if FLAT:
        key_place, value_place = slot * key_slot, slot * value_slot
    else:
        key_place = slot // PAGE * key_page + slot % PAGE * key_slot
        value_place = slot // PAGE * value_page + slot % PAGE * value_slot
    key_out = key_cache_ptr + key_place[:, None] + col
    value_out = value_cache_ptr + value_place[:, None] + col
    for i in gl.static_range(PASSES):
        wanted = live if (i + 1) * COLS <= WIDTH else live & (col < WIDTH - i * COLS)
        gl.store(key_out + i * COLS, keys[i], mask=wanted)
        gl.store(value_out + i * COLS, values[i], mask=wanted)


class Model(torch.nn.Module):
    def forward(self, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
                slot_mapping: torch.Tensor) -> None:
        tokens, heads, size = key.shape
        page, width = key_cache.shape[1], heads * size
        threads, tile, warps = config(tokens, width)
        vector = min(8, width & -width)
        flat = all(cache.stride(0) == page * cache.stride(1) for cache in (key_cache, value_cache))
        reshape_and_cache_kernel[(triton.cdiv(tokens, tile),)](
            key, value, key_cache, value_cache, slot_mapping, tokens, key.stride(0), value.stride(0),
            key_cache.stride(0), key_cache.stride(1), value_cache.stride(0), value_cache.stride(1), PAGE=page,
            FLAT=flat, WIDTH=width, COLS=vector * threads, VECTOR=vector, LANES=min(32, threads),
            ACROSS=max(1, threads // 32), TOKENS=tile, WHOLE=tokens >= tile, WARPS=warps, num_warps=warps,
        )  # fmt: skip
