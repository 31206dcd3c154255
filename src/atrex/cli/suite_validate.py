"""`atrex suite validate`: check every shape here or in processes, and keep what was found."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from atrex.cli.suite import JsonOption

if TYPE_CHECKING:
    from atrex.problems.lint import Budget
    from atrex.problems.model import Problem, Shape, Suite
    from atrex.problems.workers import Task

WRITE_EVERY_S = 5.0
TELL_EVERY_S = 15.0
# What a run that goes on from a file must have in common with the one that wrote it, beside each operator's files.
SAME = ("kind", "device", "seed", "versions")


class Book(Protocol):
    """What one kind of check (lint or mutation testing) keeps of its results, and how it shows them."""

    check: Any
    smallest_first: bool

    def begin(self, problem: Problem, shapes: list[Shape]) -> None: ...
    def has(self, operator: str, shape_id: str) -> bool: ...
    def add(self, operator: str, shape_id: str, result: Any) -> None: ...
    def leave_out(self, operator: str, shape_id: str, reason: str) -> None: ...
    def again(self, result: Any) -> bool: ...
    def load(self, document: dict[str, Any]) -> None: ...
    def operators(self) -> list[dict[str, Any]]: ...
    def summary(self) -> dict[str, Any]: ...
    def show(self) -> None: ...
    def failed(self) -> bool: ...


def validate(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A problem or suite folder; default: the shipped suite.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Only this operator.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Ids, such as "0,3-5", or "published"; default: all.')] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    run_all: Annotated[bool, typer.Option("--all", help="Run shapes of any size on the CPU too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 1,
    mutants: Annotated[bool, typer.Option("--mutants", help="Mutation testing: print the kill table.")] = False,
    compiled: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="With --mutants: torch.compile as a right kernel; slow on a CPU."),
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that check shapes at the same time.")] = 1,
    budget_s: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Stop then; what is left is listed as not run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the JSON document there as it grows.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from what --out holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that problems are sound: wrong outputs fail, the reference and an honest kernel pass, files agree.

    On the CPU, shapes over a budget of bytes and FLOPs are listed as not run. On a GPU, every shape's inputs and
    reference must take at most 80 GiB and 10 s. Exits with 1 when a check fails.
    """
    started = time.monotonic()
    from atrex.errors import UserError
    from atrex.hardware.detect import detect
    from atrex.problems.lint import CPU_BUDGET, UNLIMITED
    from atrex.problems.load import load_suite
    from atrex.problems.release import refuse_edits
    from atrex.problems.shape_ids import select_shapes

    detect(device)  # refuses a device that is not here
    if resume and out is None:
        raise UserError("--resume: expected --out FILE, the file to go on from")
    loaded = load_suite(folder)
    refuse_edits(loaded)
    chosen = [loaded.problem(problem)] if problem else list(loaded.problems.values())
    selected = [(each, select_shapes(each, shapes)) for each in chosen]
    book = _book(mutants, compiled)
    run = _Run(book, out, _about(loaded, device, seed, mutants, compiled, jobs, budget_s, problem, shapes))
    run.begin(selected, CPU_BUDGET if device == "cpu" and not run_all else UNLIMITED, resume)
    try:
        run.go(device, seed, jobs, None if budget_s is None else started + budget_s)
    except KeyboardInterrupt:
        kept = f"; {out} holds what was found, go on with --resume" if out else ""
        print(f"interrupted{kept}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(run.text(), end="")
    else:
        book.show()
    if book.failed():
        raise typer.Exit(1)


def _book(mutants: bool, compiled: bool) -> Book:
    if not mutants:
        from atrex.cli.suite_lint import LintBook

        return LintBook()
    from atrex.cli.suite_mutants import KillBook

    return KillBook(compiled)


def _about(
    suite: Suite, device: str, seed: int, mutants: bool, compiled: bool, jobs: int, budget_s: float | None,
    problem: str | None, shapes: str | None,
) -> dict[str, Any]:  # fmt: skip
    import torch

    from atrex.evaluate.run import device_name, versions
    from atrex.evaluate.rundir import now
    from atrex.hardware.detect import detect
    from atrex.problems.load import suite_hash

    given = {"--problem": problem, "--shapes": shapes, "--device": device, "--seed": None if seed == 1 else seed}
    given |= {"--jobs": None if jobs == 1 else jobs, "--budget-s": budget_s}
    words = [word for name, value in given.items() if value is not None for word in (name, f"{value}")]
    words += ["--mutants", *([] if compiled else ["--no-compile"])] if mutants else []
    return {
        "kind": "mutants" if mutants else "lint",
        "commands": [" ".join(["atrex suite validate", *words])],
        "date": now(),
        "device": device_name(torch.device(device)),
        "chip": detect(device),
        "versions": versions(),
        "suite": {
            "version": suite.version,
            "hash": suite_hash(suite.folder),
            "operators": {name: suite_hash(each.folder) for name, each in suite.problems.items()},
        },
        "seed": seed,
        "seconds": 0.0,
    }


class _Run:
    """One pass over the shapes that are left, its document kept in `out` as it grows."""

    def __init__(self, book: Book, out: Path | None, about: dict[str, Any]) -> None:
        self.book, self.out, self.about = book, out, about
        self.tasks: list[Task] = []
        self.earlier = 0.0

    def begin(self, selected: list[tuple[Problem, list[Shape]]], budget: Budget, resume: bool) -> None:
        """Decide what runs. Raises UserError where `out` cannot be written or is of another run."""
        from atrex.problems.lint import too_large
        from atrex.problems.workers import make_tasks

        if resume:
            self._load()
        for problem, shapes in selected:
            reasons = {shape.id: too_large(problem, shape, budget) for shape in shapes}
            fitting = [shape for shape in shapes if not reasons[shape.id]]
            self.book.begin(problem, fitting)
            for shape_id, reason in reasons.items():
                if reason:
                    self.book.leave_out(problem.operator, shape_id, reason)
            left = [shape for shape in fitting if not self.book.has(problem.operator, shape.id)]
            self.tasks += make_tasks(problem, left)
        self._write()

    def go(self, device: str, seed: int, jobs: int, deadline: float | None) -> None:
        from atrex.problems.workers import Unrun, run_checks

        started = written = told = time.monotonic()
        total, done = sum(len(task.shapes) for task in self.tasks), 0
        results = run_checks(
            self.tasks, self.book.check, device, seed, jobs, deadline, self.book.again, self.book.smallest_first
        )
        try:
            for operator, shape_id, result in results:
                if isinstance(result, Unrun):
                    self.book.leave_out(operator, shape_id, result.reason)
                    continue
                self.book.add(operator, shape_id, result)
                done += 1
                now = time.monotonic()
                self.about["seconds"] = round(self.earlier + now - started, 1)
                if now - written > WRITE_EVERY_S:
                    self._write()
                    written = now
                if sys.stderr.isatty() or now - told > TELL_EVERY_S:
                    self._tell(f"{done} of {total}: {operator} {shape_id}")
                    told = now
        finally:
            results.close()
            self.about["seconds"] = round(self.earlier + time.monotonic() - started, 1)
            self._write()
            self._tell("")

    def document(self) -> dict[str, Any]:
        return {"about": self.about, "summary": self.book.summary(), "operators": self.book.operators()}

    def text(self) -> str:
        """The document as JSON, one line an operator, so that hundreds of units stay readable and small."""
        found = self.document()
        lines = ",\n".join("  " + json.dumps(each) for each in found.pop("operators"))
        head = ",\n".join(f'"{key}": {json.dumps(value, indent=1)}' for key, value in found.items())
        return f'{{\n{head},\n"operators": [\n{lines}\n]}}\n'

    def _write(self) -> None:
        from atrex.errors import UserError

        if self.out is None:
            return
        try:
            beside = self.out.with_name(self.out.name + ".new")
            beside.write_text(self.text(), encoding="utf-8")
            beside.replace(self.out)
        except OSError as error:
            raise UserError(f"--out {self.out}: cannot be written ({error.strerror})") from None

    def _load(self) -> None:
        from atrex.errors import UserError
        from atrex.problems.load import read_json

        assert self.out is not None
        if not self.out.exists():
            return
        found = read_json(self.out)
        if not isinstance(found, dict) or not {"about", "operators"} <= found.keys():
            raise UserError(f"--resume: {self.out} is no document of `atrex suite validate --out`")
        for key in SAME:
            if found["about"].get(key) != self.about[key]:
                raise UserError(f"--resume: {self.out} has {key} {found['about'].get(key)}, this run {self.about[key]}")
        before, now = (about["suite"].get("operators", {}) for about in (found["about"], self.about))
        if not before and found["about"]["suite"]["hash"] != self.about["suite"]["hash"]:
            raise UserError(f"--resume: {self.out} is of another suite: {found['about']['suite']}")
        changed = sorted(name for name in before if before[name] != now.get(name))
        if changed:
            self._tell(f"changed since, checked anew: {', '.join(changed)}")
            found["operators"] = [each for each in found["operators"] if each["operator"] not in changed]
        self.earlier = found["about"]["seconds"]
        earlier = [each for each in found["about"]["commands"] if each not in self.about["commands"]]
        self.about["commands"] = earlier + self.about["commands"]
        self.book.load(found)

    def _tell(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif text:
            print(text, file=sys.stderr, flush=True)
