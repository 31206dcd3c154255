"""The reference through `torch.compile`: a right kernel that nobody wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from atrex.errors import UserError
from atrex.problems.cost import out_of_memory
from atrex.problems.model import Problem, Shape

COMPILED = "torch.compile"


class DidNotCompile(Exception):
    """The compiler failed, or what it made raised where the reference itself does not. Not a wrong number."""


class Compiled(torch.nn.Module):
    """A reference whose forward is compiled when it is first called. Raises DidNotCompile."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        import torch._inductor.config as inductor

        torch._dynamo.reset()  # of the shape before
        inductor.compile_threads = 1  # no pool of processes beside the caller's own
        self.model = model
        self.compiled = torch.compile(model)

    def forward(self, **operands: torch.Tensor) -> Any:
        try:
            return self.compiled(**operands)
        except Exception as error:
            if out_of_memory(error):
                raise
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise DidNotCompile(f"did not compile: {text[:200]}") from error


def compiled_shapes(problem: Problem, shapes: Iterable[Shape]) -> list[str]:
    """Which of `shapes` are compiled: for each set of init_kwargs the smallest and the largest by bytes and FLOPs."""
    groups: dict[str, list[Shape]] = {}
    for shape in shapes:
        groups.setdefault(repr(sorted(shape.init_kwargs.items())), []).append(shape)

    def size(shape: Shape) -> float:
        try:
            work = problem.work(shape)
        except UserError:
            return 0.0
        return work.total_bytes + work.total_flops / 10

    found: dict[str, None] = {}
    for group in groups.values():
        ordered = sorted(group, key=size)
        found.update({ordered[0].id: None, ordered[-1].id: None})
    return list(found)
