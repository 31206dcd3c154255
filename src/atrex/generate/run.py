"""Many problems: in parallel, resumable, nothing lost when it is interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from atrex.errors import UserError
from atrex.files import write
from atrex.generate.records import ABOUT, RECORDS, About, Generated, load_about, load_records
from atrex.generate.solve import Solver, Stopped
from atrex.problems.model import Suite

_SAME = (
    "agent", "model", "base_url", "dsl", "arch", "device", "chip", "policy", "prompt_sha256", "suite_version",
    "suite_hash",
    "budget",
)  # fmt: skip


def open_run(out: Path, about: About, resume: bool) -> set[tuple[str, int]]:
    """Begin a run in `out`, or continue the same one. (operator, sample) of what is done.

    What ended because the provider failed is not done. Raises UserError when the folder cannot be written, holds a run
    already, or holds another one.
    """
    done: set[tuple[str, int]] = set()
    if (out / ABOUT).exists():
        if not resume:
            raise UserError(f"{out}: holds a run already; --resume continues it, another --out starts a new one")
        before = load_about(out)
        for name in _SAME:
            if getattr(before, name) != getattr(about, name):
                raise UserError(
                    f"{out / ABOUT}: {name} is {getattr(before, name)!r}, this run has {getattr(about, name)!r}; "
                    "--resume continues only the same run"
                )
        done = {(r.operator, r.sample) for r in load_records(out) if r.ended != "provider"}
        asked = list(dict.fromkeys([*before.operators, *about.operators]))
        more = {"created": before.created, "operators": asked, "samples": max(before.samples, about.samples)}
        about = about.model_copy(update=more | {"seen": about.seen or before.seen})
    try:
        out.mkdir(parents=True, exist_ok=True)
        write(out / ABOUT, about.model_dump_json(indent=1))
        _mend(out / RECORDS)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); give a writable folder with --out") from None
    return done


def _mend(path: Path) -> None:
    """End a last line that a crash has cut off by leaving it out."""
    if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


def generate(
    out: Path,
    solver: Solver,
    suite: Suite,
    todo: list[tuple[str, int]],
    jobs: int,
    finished: Callable[[Generated], None],
) -> None:
    """Work on `todo` ((operator, sample) pairs), `jobs` at a time; every finished problem is recorded at once.

    KeyboardInterrupt ends the agents that are at work and is raised again; their problems have no record.
    """
    waiting = list(reversed(todo))
    with (out / RECORDS).open("a", encoding="utf-8") as records, ThreadPoolExecutor(jobs) as pool:
        running = set()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    operator, sample = waiting.pop()
                    running.add(pool.submit(solver.solve, suite.problem(operator), sample))
                over, running = wait(running, return_when=FIRST_COMPLETED)
                for each in over:
                    _add(records, each.result(), finished)
        except BaseException:
            solver.stop()
            for each in running:
                try:
                    _add(records, each.result(), finished)
                except Stopped:
                    continue
            raise


def _add(records, record: Generated, finished: Callable[[Generated], None]) -> None:
    records.write(record.model_dump_json() + "\n")
    records.flush()
    os.fsync(records.fileno())
    finished(record)
