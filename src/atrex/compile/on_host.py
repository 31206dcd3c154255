"""A candidate for the CPU, which is here: built, and run only where it builds nothing before its first forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from atrex.compile.child import Task, model_of
from atrex.dsls.base import DSL
from atrex.dsls.offline import Attempts, Target, Undetermined
from atrex.problems.model import Problem, Shape

_LARGEST = 1 << 30  # bytes of operands and results that a forward may take here


class Host(contextlib.ExitStack):
    """Operands are real. Artifacts are those of the DSL's session."""

    def __init__(self, task: Task, dsl: DSL, target: Target, log: Attempts):
        super().__init__()
        self._task, self._dsl, self._log = task, dsl, log

    def __enter__(self) -> Host:
        super().__enter__()
        torch.set_grad_enabled(False)
        self.session = self._dsl.instrument(Path(self._task.scratch), Path(self._task.source))
        self.callback(self.session.close)
        return self

    def run(self, call: Callable[[], Any]) -> Any:
        return call()

    def shape(self, module: Any, problem: Problem, shape: Shape) -> None:
        """Build the Model; where that has built no artifact, run it once on the shape's operands."""
        model = model_of(module, dict(shape.init_kwargs)).eval()
        if not self.session.artifacts():
            size = problem.work(shape).total_bytes
            if size > _LARGEST:
                raise Undetermined(f"it is built in forward, and this shape moves {size >> 20} MiB")
            model(*problem.make_inputs(shape, 0, "cpu").values())
        for name in self.session.missing():
            self._log.failed(name, "so", "launched without a completed artifact")
        for row in self.session.artifacts():
            self._log.note(row)
