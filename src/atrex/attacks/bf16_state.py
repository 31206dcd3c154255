"""A recurrent state kept in bfloat16, in which small steps no longer move it.

The corner case "remembered" of gated_delta_rule_update forgets nothing and takes 256 small steps.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _keeping(low: bool) -> str:
    return f"""
class Model(Honest):
    low = {low}
"""


ATTACK = Attack(
    (11,),
    Form(
        {"": _keeping(True)}, _keeping(False), Fails("numeric_mismatch"), "gated_delta_rule_update",
        {"cpu": "8", "cuda": "8"}, base="gated_delta_rule_update",
    ),
)  # fmt: skip
