"""PTX between quotes, element by element: the few instructions that kernels use, on bits of 32 in int32."""

from __future__ import annotations

import re

import torch

APPROXIMATE = {"ex2": torch.exp2, "rcp": torch.reciprocal, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh,
               "lg2": torch.log2, "rsqrt": torch.rsqrt, "sqrt": torch.sqrt}  # fmt: skip
LEAST = torch.finfo(torch.float32).tiny


def _float(bits):
    return bits.view(torch.float32)


def _bits(x):
    return x.contiguous().view(torch.int32)


def _flushed(x):
    return torch.where(x.abs() < LEAST, torch.zeros_like(x), x)


def _lop3(a, b, c, table):
    out = torch.zeros_like(a)
    for case in range(8):
        if table >> case & 1:
            out = out | ((a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c))
    return out


def _step(name: str, operands: list) -> torch.Tensor:
    kind = name.split(".")
    if kind[0] in APPROXIMATE:
        flush = _flushed if "ftz" in kind else lambda x: x
        return _bits(flush(APPROXIMATE[kind[0]](flush(_float(operands[0])))))
    if name == "fma.rn.f32":
        a, b, c = (_float(x).double() for x in operands)
        return _bits((a * b + c).float())
    if name == "cvt.rn.bf16x2.f32":
        high, low = (_float(x).to(torch.bfloat16).view(torch.int16).to(torch.int32) for x in operands)
        return high << 16 | low & 0xFFFF
    if name == "lop3.b32":
        return _lop3(*operands[:3], operands[3])
    two = {"and.b32": torch.bitwise_and, "or.b32": torch.bitwise_or, "xor.b32": torch.bitwise_xor,
           "shl.b32": torch.bitwise_left_shift}  # fmt: skip
    if name in two:
        a, b = operands
        return two[name](a, b if isinstance(b, torch.Tensor) else torch.tensor(b, dtype=torch.int32))
    raise NotImplementedError(f"PTX instruction {name}")


def _signed(text: str) -> int:
    number = int(text, 0)
    return number - (1 << 32) if number >= 1 << 31 else number


def run(text: str, arguments: list[torch.Tensor], dtypes: list[torch.dtype], pack: int) -> list[torch.Tensor]:
    """Outputs in `dtypes`, of arguments that have one shape."""
    shape, registers = arguments[0].shape, {}

    def many(dtype):
        return max(1, pack * dtype.itemsize // 4)

    count = sum(many(dtype) for dtype in dtypes)
    for data in arguments:
        flat = data.reshape(-1, pack).contiguous()
        words = flat.view(torch.int32)
        for i in range(many(data.dtype)):
            registers[f"${count}"] = words[:, i].clone()
            count += 1
    for line in text.strip("{} \n").split(";"):
        line = line.strip()
        if not line or line.startswith(".reg"):
            continue
        name, rest = line.split(None, 1)
        target, *operands = (word.strip() for word in rest.split(","))
        taken = [_signed(word) if re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+", word) and not word.startswith("$")
                 and word not in registers else registers[word] for word in operands]  # fmt: skip
        registers[target] = _step(name, taken)
    out, at = [], 0
    for dtype in dtypes:
        words = torch.stack([registers[f"${at + i}"] for i in range(many(dtype))], dim=1)
        at += many(dtype)
        out.append(words.contiguous().view(dtype).reshape(shape))
    return out
