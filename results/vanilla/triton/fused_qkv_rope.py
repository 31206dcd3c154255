"""Split, bias and rotation of packed QKV: a program takes one token and turns its heads, a tile of them at a time."""

import torch
import triton
import triton.language as tl

LOG_BASE = tl.constexpr(9.210340371976184)  # of 10000


# The number of tokens is the grid's business alone.
@triton.jit
def fused_qkv_rope_kernel(qkv_ptr, positions_ptr, bias_ptr, q_ptr, k_ptr, v_ptr, stride, HEADS: tl.constexpr,
                          KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
                          REST_PAD: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr):
    TURNED: tl.constexpr = HEADS + KV_HEADS
    TOTAL: tl.constexpr = TURNED + KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    dtype = q_ptr.dtype.element_ty

    # Frequencies in double: their relative error is multiplied by positions of tens of thousands.
    index = tl.arange(0, HALF_PAD)
    frequency = tl.exp(index.to(tl.float64) * (-LOG_BASE / HALF)).to(tl.float32)
    angle = tl.load(positions_ptr + token).to(tl.float32) * frequency
    cos, sin = tl.cos(angle)[None, :], tl.sin(angle)[None, :]

    col = index[None, :]
    for tile in range(tl.program_id(1), tl.cdiv(TOTAL, TILE), tl.num_programs(1)):
        head = (tile * TILE + tl.arange(0, TILE))[:, None]
        live = head < TOTAL
        if HALF_PAD > HALF:
            live = live & (col < HALF)
        place = head * D + col
        first = tl.load(qkv_ptr + token * stride + place, mask=live, other=0.0).to(tl.float32)
        second = tl.load(qkv_ptr + token * stride + HALF + place, mask=live, other=0.0).to(tl.float32)
        if BIAS:
            first += tl.load(bias_ptr + place, mask=live, other=0.0).to(tl.float32)
            second += tl.load(bias_ptr + HALF + place, mask=live, other=0.0).to(tl.float32)
        turned = head < TURNED
        a = tl.where(turned, first * cos - second * sin, first).to(dtype)
        b = tl.where(turned, second * cos + first * sin, second).to(dtype)

        # A tile may hold heads of all three: of the three stores of a row, two are masked off.
        is_q = live & (head < HEADS)
        is_k = live & (head >= HEADS) & turned
        is_v = live & (head >= TURNED)
        q_row = q_ptr + token * (HEADS * D)
        k_row = k_ptr + token * (KV_HEADS * D) - HEADS * D
        v_row = v_ptr + token * (KV_HEADS * D) - TURNED * D
        tl.store(q_row + place, a, mask=is_q)
        tl.store(q_row + HALF + place, b, mask=is_q)
        tl.store(k_row + place, a, mask=is_k)
        tl.store(k_row + HALF + place, b, mask=is_k)
        tl.store(v_row + place, a, mask=is_v)
        tl.store(v_row + HALF + place, b, mask=is_v)

        if REST_PAD > 0:
            rest = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
            live = (head < TOTAL) & (rest < D)
            place = head * D + rest
            c = tl.load(qkv_ptr + token * stride + place, mask=live, other=0.0).to(tl.float32)
            if BIAS:
                c += tl.load(bias_ptr + place, mask=live, other=0.0).to(tl.float32)
            c = c.to(dtype)
            tl.store(q_row + place, c, mask=live & (head < HEADS))
            tl.store(k_row + place, c, mask=live & (head >= HEADS) & turned)
            tl.store(v_row + place, c, mask=live & (head >= TURNED))


class Model(torch.nn.Module):
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, rope_dim: int):
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.half = num_heads, num_kv_heads, head_dim, rope_dim // 2

    def forward(self, qkv: torch.Tensor, positions: torch.Tensor,
                qkv_bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        tokens = qkv.shape[0]
        q = torch.empty((tokens, self.heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        k = torch.empty((tokens, self.kv_heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        v = torch.empty((tokens, self.kv_heads, self.dim), dtype=qkv.dtype, device=qkv.device)
        rest = self.dim - 2 * self.half
        tile = 8
        # Sines and cosines are computed once a program: few programs a token, unless the grid would be too small.
        splits = min(triton.cdiv(self.heads + 2 * self.kv_heads, tile), max(1, 2112 // max(1, tokens)))
        fused_qkv_rope_kernel[(tokens, splits)](
            qkv, positions, qkv if qkv_bias is None else qkv_bias, q, k, v, qkv.stride(0), HEADS=self.heads,
            KV_HEADS=self.kv_heads, D=self.dim, HALF=self.half, HALF_PAD=triton.next_power_of_2(self.half),
            REST_PAD=triton.next_power_of_2(rest) if rest else 0, TILE=tile, BIAS=qkv_bias is not None, num_warps=2,
        )  # fmt: skip
        return {"q": q, "k": k, "v": v}
