"""The matrix product by torch under another name, and a small kernel of the DSL for the rest.

Seen: alias, torch.ops, the operator's method, evaluated strings and comments that get past a check of the source.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Form, Shortcut


def _gated(product: str) -> str:
    return f"""
class Model(Honest):
    def forward(self, hidden_states, weight, bias, post_mul_mat):
        left, right = hidden_states.float(), weight.float().T
        logits = {product}
        return gate(logits, bias, post_mul_mat)
"""


def _copied(product: str) -> str:
    return f"""
class Model(Honest):
    def forward(self, left, right):
        return copied({product})
"""


PRODUCTS = {
    "attribute": 'getattr(torch, "mat" + "mul")(left, right)',
    "operator": "left @ right",
    "method": "left.__matmul__(right)",
    "dispatcher": "torch.ops.aten.mm.default(left, right)",
    "string": 'eval("torch." + chr(109) * 2)(left, right)',
}


TWIN = """
class Model(Honest):
    def forward(self, *operands):
        matmul = super().forward
        return matmul(*operands)
"""
ATTACK = Attack(
    (18, 45),
    Form(
        {label: _gated(product) for label, product in PRODUCTS.items()}, TWIN, Shortcut("torch", "vendor"),
        "linear_sigmoid_mul", {"cuda": "6"}, ("cuda",), base="linear_sigmoid_mul",
    ),
    Form(
        {label: _copied(product) for label, product in PRODUCTS.items()}, TWIN, Shortcut("torch", "vendor"),
        "fp32_mm", {"cpu": "0"}, ("cpu",), base="fp32_mm", suite="fp32_mm",
    ),
)  # fmt: skip
