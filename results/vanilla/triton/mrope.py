"""Multimodal rotary embedding: a program takes one token, picks each frequency's axis, and turns q and k heads."""

import torch
import triton
import triton.language as tl


@triton.jit
def _turn(x_ptr, out_ptr, token, stride, cos, sin, HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
          HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, TILE: tl.constexpr, NEOX: tl.constexpr):
    """Turn the heads of one token, TILE at a time; the programs of a token take turns."""
    dtype = out_ptr.dtype.element_ty
    row, out_row = x_ptr + token * stride, out_ptr + token * (HEADS * D)
    for tile in range(tl.program_id(1), tl.cdiv(HEADS, TILE), tl.num_programs(1)):
        head = (tile * TILE + tl.arange(0, TILE))[:, None]
        if NEOX:
            col = tl.arange(0, HALF_PAD)[None, :]
            live = (head < HEADS) & (col < HALF)
            place = head * D + col
            first = tl.load(row + place, mask=live, other=0.0).to(tl.float32)
            second = tl.load(row + HALF + place, mask=live, other=0.0).to(tl.float32)
            tl.store(out_row + place, (first * cos - second * sin).to(dtype), mask=live)
            tl.store(out_row + HALF + place, (second * cos + first * sin).to(dtype), mask=live)
        else:
            col = tl.arange(0, 2 * HALF_PAD)[None, :]
            live = (head < HEADS) & (col < 2 * HALF)
            place = head * D + col
            pairs = tl.load(row + place, mask=live, other=0.0).to(tl.float32)
            first, second = tl.split(tl.reshape(pairs, (TILE, HALF_PAD, 2)))
            turned = tl.join(first * cos - second * sin, second * cos + first * sin)
            tl.store(out_row + place, tl.reshape(turned, (TILE, 2 * HALF_PAD)).to(dtype), mask=live)
        if REST_PAD > 0:
            rest = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
            live = (head < HEADS) & (rest < D)
            tl.store(out_row + head * D + rest, tl.load(row + head * D + rest, mask=live), mask=live)


# The number of tokens is the grid's business alone.
@triton.jit
def mrope_kernel(q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, q_stride, k_stride, cos_axis, cos_token,
                 sin_axis, sin_token, S0: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr, INTERLEAVED: tl.constexpr,
                 HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
                 HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, TILE: tl.constexpr, KV_TILE: tl.constexpr,
                 NEOX: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, HALF_PAD)
    if INTERLEAVED:
        axis = tl.where(((j % 3 == 1) & (j < 3 * S1)) | ((j % 3 == 2) & (j < 3 * S2)), j % 3, 0)
    else:
        axis = (j >= S0).to(tl.int32) + (j >= S0 + S1).to(tl.int32)
    cos = tl.load(cos_ptr + axis * cos_axis + token * cos_token + j, mask=j < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + axis * sin_axis + token * sin_token + j, mask=j < HALF, other=0.0)[None, :]
    _turn(q_ptr, q_out_ptr, token, q_stride, cos, sin, HEADS, D, HALF, HALF_PAD, REST_PAD, TILE, NEOX)
    _turn(k_ptr, k_out_ptr, token, k_stride, cos, sin, KV_HEADS, D, HALF, HALF_PAD, REST_PAD, KV_TILE, NEOX)


class Model(torch.nn.Module):
    def __init__(self, head_size: int, rotary_dim: int, mrope_section: list[int], mrope_interleaved: bool,
                 is_neox_style: bool):
        super().__init__()
        self.size, self.half, self.section = head_size, rotary_dim // 2, mrope_section
        self.interleaved, self.neox = mrope_interleaved, is_neox_style

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor,
                sin: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens, heads, kv_heads = q.shape[0], q.shape[1] // self.size, k.shape[1] // self.size
        q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        rest = self.size - 2 * self.half
        tile, kv_tile = (min(8, triton.next_power_of_2(count)) for count in (heads, kv_heads))
        splits = min(triton.cdiv(heads, tile), max(1, 2112 // max(1, tokens)))
        mrope_kernel[(tokens, splits)](
            q, k, cos, sin, q_out, k_out, q.stride(0), k.stride(0), cos.stride(0), cos.stride(1), sin.stride(0),
            sin.stride(1), S0=self.section[0], S1=self.section[1], S2=self.section[2], INTERLEAVED=self.interleaved,
            HEADS=heads, KV_HEADS=kv_heads, D=self.size, HALF=self.half, HALF_PAD=triton.next_power_of_2(self.half),
            REST_PAD=triton.next_power_of_2(rest) if rest else 0, TILE=tile, KV_TILE=kv_tile, NEOX=self.neox,
            num_warps=2,
        )  # fmt: skip
        return {"q": q_out, "k": k_out}
