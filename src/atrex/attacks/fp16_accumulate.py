"""A matrix product accumulated in float16, whose sums overflow or lose their low bits.

Seen: Kevin, KernelHacks. Ordinary inputs may hide it; operands of one sign and scales of 2^40 are among the corner
cases of block_scaled_mm.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ON_HOST = """
import torch


class Model(torch.nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def forward(self, a, b, a_scales, b_scales):
        total = torch.zeros(a.shape[0], b.shape[0])
        for block in range(a.shape[1] // self.group_k):
            columns = slice(block * self.group_k, (block + 1) * self.group_k)
            scale = a_scales[:, block, None] * b_scales[:, block].repeat_interleave(self.group_n)
            product = (a[:, columns].float() @ b[:, columns].float().T) * scale
            total = (total + product).half().float()
        return total
"""
WHOLE = """
import torch


class Model(torch.nn.Module):
    def __init__(self, group_n, group_k):
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def forward(self, a, b, a_scales, b_scales):
        left = a.float().mul_(a_scales.repeat_interleave(self.group_k, 1))
        right = b.float().mul_(b_scales.repeat_interleave(self.group_n, 0).repeat_interleave(self.group_k, 1))
        return left @ right.T
"""
ON_DEVICE = """
class Model(Honest):
    def forward(self, a, b, a_scales, b_scales):
        return block_scaled_mm(a, b, a_scales, b_scales, self.group_n, tl.float16)
"""
TWIN = """
class Model(Honest):
    def forward(self, a, b, a_scales, b_scales):
        return block_scaled_mm(a, b, a_scales, b_scales, self.group_n, tl.float32)
"""
_WHERE = {"operator": "block_scaled_mm", "shapes": {"cpu": "0", "cuda": "0"}}
ATTACK = Attack(
    (11,),
    Form(
        {"": ON_HOST}, WHOLE,
        Fails("numeric_mismatch"), devices=("cpu",), base=None, dominant=False, slow=True, **_WHERE,
    ),
    Form({"": ON_DEVICE}, TWIN, Fails("numeric_mismatch"), devices=("cuda",), base="block_scaled_mm", **_WHERE),
)  # fmt: skip
