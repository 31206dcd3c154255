"""Outputs of another dtype, shape, layout, structure or size, which lax comparisons broadcast, cast or skip."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _returning(expression: str) -> str:
    return f"""
class Model(Honest):
    def forward(self, x, weight):
        out = rms_norm(x, weight, self.eps)
        return {expression}
"""


TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        block = torch.empty(x.shape[0] + 7, *x.shape[1:], dtype=x.dtype, device=x.device)
        return rms_norm(x, weight, self.eps, block[3 : 3 + x.shape[0]])
"""
ATTACK = Attack(
    (9,),
    Form(
        {
            "dtype": _returning("out.float()"),
            "broadcast": _returning("out[None]"),
            "stride": _returning("out.T.contiguous().T"),
            "stride 0": _returning("out[:1].expand_as(x)"),
            "empty": _returning("out[:0]"),
            "structure": _returning('{"y": out}'),
        },
        TWIN,
        Fails("interface"),
    ),
    Form({"device": _returning("out.cpu()")}, TWIN, Fails("interface"), devices=("cuda",)),
)
