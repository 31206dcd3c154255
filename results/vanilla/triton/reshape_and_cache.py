"""Scatter of new keys and values into the paged cache: a program moves a few whole tokens, both rows of each."""

import torch
import triton
import triton.language as tl


# The number of tokens changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["tokens"])
def reshape_and_cache_kernel(key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slots_ptr, tokens, key_stride,
                             value_stride, key_page, key_slot, value_page, value_slot, PAGE: tl.constexpr,
                             WIDTH: tl.constexpr, TOKENS: tl.constexpr, COLS: tl.constexpr):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    # Whatever is negative is padding, tokens past the end of the batch included.
    slot = tl.load(slots_ptr + token, mask=token < tokens, other=-1)
    live = (slot >= 0)[:, None]
    page, place = (slot // PAGE)[:, None], (slot % PAGE)[:, None]
    token = token.to(tl.int64)[:, None]
    for start in tl.static_range(0, WIDTH, COLS):
        col = (start + tl.arange(0, COLS))[None, :]
        wanted = live
        if start + COLS > WIDTH:
            wanted = live & (col < WIDTH)
        key = tl.load(key_ptr + token * key_stride + col, mask=wanted)
        value = tl.load(value_ptr + token * value_stride + col, mask=wanted)
        tl.store(key_cache_ptr + page * key_page + place * key_slot + col, key, mask=wanted)
        tl.store(value_cache_ptr + page * value_page + place * value_slot + col, value, mask=wanted)


class Model(torch.nn.Module):
    def forward(self, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
                slot_mapping: torch.Tensor) -> None:
        tokens, heads, size = key.shape
        width = heads * size
        cols = min(2048, triton.next_power_of_2(width))
        tile = max(1, 2048 // cols)
        while tile > 1 and tokens < 264 * tile:
            tile //= 2
        reshape_and_cache_kernel[(triton.cdiv(tokens, tile),)](
            key, value, key_cache, value_cache, slot_mapping, tokens, key.stride(0), value.stride(0),
            key_cache.stride(0), key_cache.stride(1), value_cache.stride(0), value_cache.stride(1),
            PAGE=key_cache.shape[1], WIDTH=width, TOKENS=tile, COLS=cols, num_warps=max(1, tile * cols // 512),
        )  # fmt: skip
