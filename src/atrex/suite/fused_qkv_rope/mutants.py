"""Wrong and right fused_qkv_rope kernels for mutation testing."""

import torch

WRONG = {
    "not rotated": (
        '"q": rotated(q).to(qkv.dtype), "k": rotated(k).to(qkv.dtype)',
        '"q": q.clone().to(qkv.dtype), "k": k.clone().to(qkv.dtype)',
    ),
    "values rotated too": ('"v": v.clone()', '"v": rotated(v)'),
    "positions off by one": ("positions.to(acc)", "(positions + 1).to(acc)"),
    "turned backwards": ("positions.to(acc)", "(-positions).to(acc)"),
    "base ten times too small": ("torch.pow(BASE,", "torch.pow(BASE / 10,"),
    "interleaved pairs": (
        "first, second, rest = x.split([half, half, self.head_dim - 2 * half], dim=-1)",
        "rest = x[..., 2 * half :]\n            first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]",
    ),
    "k and v exchanged": ("q, k, v = wide", "q, v, k = wide"),
    "bias left out": ("if qkv_bias is not None:", "if False:"),
    "exponent over half the width": ("(-2.0 / self.rope_dim)", "(-1.0 / self.rope_dim)"),
    "keys not rotated": ('"k": rotated(k)', '"k": k.clone()'),
}
SURVIVORS = {"bias left out": "the same thing where there is no bias, as in every published shape"}


class _Complex(torch.nn.Module):
    """Rotation as a complex product, on a packed copy."""

    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim):
        super().__init__()
        self.q, self.kv, self.size, self.rope = num_heads, num_kv_heads, head_dim, rope_dim

    def forward(self, qkv, positions, qkv_bias=None):
        wide = qkv.float() if qkv_bias is None else qkv.float() + qkv_bias.float()
        heads = wide.view(len(qkv), -1, self.size).clone()
        half = self.rope // 2
        frequency = 1e4 ** (-torch.arange(half, device=qkv.device, dtype=torch.float32) / half)
        turn = torch.polar(torch.ones(len(qkv), half, device=qkv.device), positions.float()[:, None] * frequency)
        turning = heads[:, : self.q + self.kv, : self.rope]
        product = torch.complex(turning[..., :half].contiguous(), turning[..., half:].contiguous()) * turn[:, None]
        heads[:, : self.q + self.kv, : self.rope] = torch.cat([product.real, product.imag], dim=-1)
        q, k, v = heads.to(qkv.dtype).split([self.q, self.kv, self.kv], dim=1)
        return {"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}


class _HeadByHead(_Complex):
    """Each head turned by itself, the frequencies as powers of one number."""

    def forward(self, qkv, positions, qkv_bias=None):
        half = self.rope // 2
        steps = torch.full((half,), 1e4 ** (-1 / half), dtype=torch.float64, device=qkv.device)
        frequency = torch.cat([steps.new_ones(1), steps[1:]]).cumprod(0)
        angle = positions.double()[:, None] * frequency
        c, s = angle.cos().float(), angle.sin().float()
        out = {"q": self.q, "k": self.kv, "v": self.kv}
        first = 0
        for name, count in out.items():
            heads = []
            for _ in range(count):
                x = qkv[:, first : first + self.size].float()
                if qkv_bias is not None:
                    x = x + qkv_bias[first : first + self.size].float()
                if name != "v":
                    left, right = x[:, :half], x[:, half : self.rope]
                    x = torch.cat([left * c - right * s, left * s + right * c, x[:, self.rope :]], 1)
                heads.append(x.to(qkv.dtype))
                first += self.size
            out[name] = torch.stack(heads, 1)
        return out


RIGHT = {"as complex numbers": _Complex, "head by head": _HeadByHead}
