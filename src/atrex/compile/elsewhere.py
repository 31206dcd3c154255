"""A candidate for a device that is not here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import atrex.dsls
from atrex.compile import device, pointers
from atrex.compile.child import Task, model_of
from atrex.compile.inputs import operands
from atrex.compile.values import KnownValues
from atrex.dsls.base import DSL
from atrex.dsls.offline import Attempts, Target
from atrex.problems.model import Problem, Shape


class Elsewhere(contextlib.ExitStack):
    """Stand-ins for the device and for the DSL's launches, from entry to exit."""

    def __init__(self, task: Task, dsl: DSL, target: Target, log: Attempts):
        super().__init__()
        self._task, self._dsl, self._target, self._log = task, dsl, target, log
        self._values = KnownValues()

    def __enter__(self) -> Elsewhere:
        super().__enter__()
        torch.set_grad_enabled(False)
        self.enter_context(device.standing_in(self._target))
        self.enter_context(pointers.given(self._target, self._values))
        self.session = self._dsl.instrument(Path(self._task.scratch), Path(self._task.source))
        self.callback(self.session.close)
        self._keep_others_from_the_device()
        self.enter_context(self._dsl.compiling(self._target, self.session, self._log))
        return self

    def _keep_others_from_the_device(self) -> None:
        """Other DSLs that the candidate uses beside its own compile too, and what they compile is not its artifact."""
        source = Path(self._task.source)
        for name in atrex.dsls.mentioned(source.read_text()):
            other = atrex.dsls.get(name)
            apart = other.package != self._dsl.package and other.compiles_for(self._target)
            if apart and other.lacks(self._target) is None:
                os.environ.update(other.offline_env(self._target, Path(self._task.scratch)))
                session = other.instrument(Path(self._task.scratch), source)
                self.callback(session.close)
                self.enter_context(other.compiling(self._target, session, Attempts()))

    def run(self, call: Callable[[], Any]) -> Any:
        """Call with every new tensor fake."""
        with self._values.fake():
            return call()

    def shape(self, module: Any, problem: Problem, shape: Shape) -> None:
        """Build the Model for a shape, move it, and run it once on the shape's operands."""
        chip = self._target.chip
        with self._values.fake():
            inputs = operands(problem, shape, self._values, (chip and chip.fp8) or "e4m3fn")
            model = _moved(model_of(module, dict(shape.init_kwargs))).eval()
            model(*inputs.values())


def _moved(model: torch.nn.Module) -> torch.nn.Module:
    """`model.to(device)`, which cannot exchange the memory of fake parameters."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                moved = torch.nn.Parameter(parameter.detach().to(device.DEVICE), requires_grad=False)
                module._parameters[name] = moved
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device.DEVICE)
    return model
