"""A float32 product in tf32: ten bits of mantissa instead of 23, under a tolerance made for bfloat16.

The operator is this package's own (`problems/fp32_mm`), since the suite asks for no float32 product. The suite's rule
holds a row's error against the reference's own at the declared precision.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

ON_DEVICE = """
class Model(Honest):
    def forward(self, a, b):
        return mm(a, b, "tf32")
"""
TWIN = """
class Model(Honest):
    def forward(self, a, b):
        return mm(a, b, "ieee")
"""
ON_HOST = """
def shortened(x):
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


class Model(Honest):
    def forward(self, a, b):
        return mm(shortened(a), shortened(b))
"""
HOST_TWIN = """
class Model(Honest):
    def forward(self, a, b):
        return mm(a, b)
"""
TORCH = """
import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        torch.backends.cuda.matmul.allow_tf32 = True
        return a @ b
"""
_WHERE = {"operator": "fp32_mm", "shapes": {"cpu": "0", "cuda": "0"}, "suite": "fp32_mm", "base": "fp32_mm"}
ATTACK = Attack(
    (11, 33),
    Form({"": ON_DEVICE}, TWIN, Fails("numeric_mismatch"), devices=("cuda",), **_WHERE),
    Form(
        {"by torch": TORCH}, TORCH.replace("= True", "= False"), Fails("numeric_mismatch"), devices=("cuda",),
        dominant=False, **(_WHERE | {"base": None}),
    ),
    Form({"emulated": ON_HOST}, HOST_TWIN, Fails("numeric_mismatch"), devices=("cpu",), **_WHERE),
)  # fmt: skip
