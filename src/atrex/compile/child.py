"""The process in which one candidate is compiled: `python -m atrex.compile.child FD`, told what to do in one line.

It answers on FD with a JSON line when a shape is begun and one when it has ended. Whatever the candidate prints goes
elsewhere. Hooks and stand-ins are global, so that a process serves one candidate and one target.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atrex
from atrex.errors import UserError


@dataclass(frozen=True)
class Task:
    """What a child is told. `source` is the candidate's private copy, `folder` the problem's."""

    source: str
    shapes: list[str]
    dsl: str
    target: str
    folder: str
    scratch: str


class _Answers:
    def __init__(self, fd: int):
        self._fd = fd

    def send(self, **message: Any) -> None:
        os.write(self._fd, json.dumps(message).encode() + b"\n")


def main(fd: int) -> None:
    """Read the task from standard input, compile each shape, answer."""
    task = Task(**json.loads(sys.stdin.readline()))
    sys.stdin.close()
    answers = _Answers(fd)
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
    os.environ["HOME"] = task.scratch
    os.chdir(task.scratch)
    answers.send(held=_confine(task))

    import atrex.dsls
    from atrex.dsls.offline import Attempts, Undetermined, parse_target

    dsl, target, log = atrex.dsls.get(task.dsl), parse_target(task.target), Attempts()
    os.environ.update(dsl.offline_env(target, Path(task.scratch)))
    with contextlib.ExitStack() as stack:
        if target.backend == "cpu":
            from atrex.compile.on_host import Host as Place
        else:
            from atrex.compile.elsewhere import Elsewhere as Place
        try:
            place = stack.enter_context(Place(task, dsl, target, log))
        except Undetermined as error:
            for shape in task.shapes:
                answers.send(ended=shape, status="undetermined", reason=str(error))
            return
        compile_all(task, place, log, answers, dsl.device_errors())


def _confine(task: Task) -> dict[str, Any]:
    """As a worker on the CPU, but that the problems can be read: operands are drawn here, and nothing is judged."""
    from atrex.evaluate import confine
    from atrex.evaluate.confine.grants import imported_roots, read_roots

    suite = str(Path(atrex.__file__).resolve().parent / "suite")
    me = os.getppid()
    ground = confine.Ground(zygote=me, judge=me, roots=tuple(sorted({*read_roots(), *imported_roots()})))
    limits = confine.Limits.of_this_machine(task.scratch)
    return confine.enter(ground, confine.Terms("cpu", (task.scratch,), limits, readable=(suite, task.folder)))


def compile_all(task: Task, place: Any, log: Any, answers: _Answers, device_errors: tuple = ()) -> None:
    """Import the candidate, then run `forward` once for each shape. What the import does counts for each of them."""
    from atrex.problems.load import load_problem

    problem = load_problem(task.folder)
    module: Any = None
    at_import, import_error = [], None
    for shape_id in task.shapes:
        answers.send(begun=shape_id)
        started = time.monotonic()
        log.begin(at_import)
        with _judged(device_errors) as verdict:
            if import_error is not None:
                raise import_error
            if module is None:
                try:
                    module = place.run(lambda: _import(Path(task.source)))
                except BaseException as error:
                    import_error = error
                    raise
                finally:
                    at_import = log.all()
                answers.send(imported=True)
            place.shape(module, problem, problem.shape(shape_id))
        status, reason = verdict.of(log)
        attempts = [attempt.as_dict() for attempt in log.all()]
        seconds = time.monotonic() - started
        answers.send(ended=shape_id, status=status, reason=reason, artifacts=attempts, seconds=round(seconds, 3))


def _import(source: Path) -> Any:
    spec = importlib.util.spec_from_file_location("candidate", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Verdict:
    """How running the candidate ended: nothing raised, or what."""

    device_errors: tuple[type[BaseException], ...] = ()
    error: BaseException | None = None

    def of(self, log: Any) -> tuple[str, str]:
        """(status, reason) given what was compiled meanwhile.

        An artifact that failed is a failure only where nothing else was compiled or the candidate did not survive it:
        an autotuner may try what does not fit. A forward that compiled nothing has not been shown to compile.
        """
        from atrex.dsls.offline.attempts import Enough, Undetermined, one_line

        error = self.error
        if error is None or isinstance(error, Enough):
            if any(not attempt.reason for attempt in log.all()):
                return "compiled", ""
            lost = [attempt.reason for attempt in log.all()]  # the candidate went on without it
            return ("failed", lost[0]) if lost else ("undetermined", "forward launched no kernel of the target DSL")
        if cause := _cause(error, Undetermined):
            return "undetermined", str(cause)
        if cause := _cause(error, self.device_errors):
            return "undetermined", f"the candidate asks for a device: {one_line(cause)}"
        if isinstance(error, UserError):
            return "undetermined", str(error)  # the problem's fault, not the candidate's
        if isinstance(error, ModuleNotFoundError):
            return "undetermined", f"the candidate imports {error.name}, which is not installed here"
        return "failed", one_line(error)


def _cause(error: BaseException | None, kind: type | tuple[type, ...]) -> BaseException | None:
    """The exception of `kind` that `error` is or comes from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _judged(device_errors: tuple[type[BaseException], ...]) -> Iterator[Verdict]:
    verdict = Verdict(device_errors)
    try:
        yield verdict
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is an answer
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict.error = error


def model_of(module: Any, init_kwargs: dict[str, Any]) -> Any:
    """The candidate's Model, built. Raises TypeError when it has none."""
    import torch

    found = getattr(module, "Model", None)
    if not (inspect.isclass(found) and issubclass(found, torch.nn.Module)):
        raise TypeError(f"Model is {type(found).__name__}, expected a subclass of torch.nn.Module")
    return found(**init_kwargs)


if __name__ == "__main__":
    main(int(sys.argv[1]))
