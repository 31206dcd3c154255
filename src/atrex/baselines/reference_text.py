"""The plain reference as a candidate: eager, or compiled by torch.compile.

The reference returns what serving updates in place; a candidate must update it. The text that is added does that.
"""

from __future__ import annotations

import re

from atrex.problems.model import Problem

_TAIL = '''

class Model(torch.nn.Module):
    """{about}"""

    def __init__(self, *init, **named):
        super().__init__()
        self.reference = Reference(*init, **named)
{setup}
    def forward(self, {operands}):
        return self.run({operands_given})

    def served(self, {operands}):
        {body}
'''


# Chips of the first AMD generation with fp8 have an encoding of their own, which the judge expects of them.
_FP8 = """\
        if torch.version.hip and "gfx94" in torch.cuda.get_device_properties(0).gcnArchName:
            self.reference.fp8_dtype = torch.float8_e4m3fnuz
"""


def reference_text(problem: Problem, about: str, compiled: bool) -> str:
    """The candidate's text for a problem's reference; with `compiled` it goes through torch.compile with its defaults.

    Shapes are static: a worker sees one, and serving compiles its few.
    """
    source = (problem.folder / "reference.py").read_text(encoding="utf-8")
    renamed = re.sub(r"\bModel\b", "Reference", source).rstrip()
    if not re.search(r"^import torch$", renamed, re.MULTILINE):
        renamed += "\n\nimport torch"
    setup = "        self.run = torch.compile(self.served, dynamic=False)\n" if compiled else ""
    setup = setup or "        self.run = self.served\n"
    if "fp8_dtype" in source:
        setup = _FP8 + setup
    inputs = problem.metadata.inputs
    declared = ", ".join(f"{name}=None" if operand.optional else name for name, operand in inputs.items())
    return (
        renamed
        + "\n"
        + _TAIL.format(
            about=about, setup=setup, operands=declared, operands_given=", ".join(inputs), body=_body(problem)
        )
    )


def _body(problem: Problem) -> str:
    call = f"self.reference({', '.join(problem.metadata.inputs)})"
    mutates = problem.metadata.mutates
    if not mutates:
        return f"return {call}"
    returned = [name for name in problem.metadata.outputs if name not in mutates]
    lines = [f"found = {call}", *(f'{name}.copy_(found["{name}"])' for name in mutates)]
    if len(returned) == 1:
        lines.append(f'return found["{returned[0]}"]')
    elif returned:
        lines.append("return {" + ", ".join(f'"{name}": found["{name}"]' for name in returned) + "}")
    return "\n        ".join(lines)
