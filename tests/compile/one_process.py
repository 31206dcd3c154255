"""Compile several candidates in one process: `compile_here` from a test, or as a script that reads them as JSON.

A candidate is `{source, dsl, target, operator, shapes, files, owners}`: `files` are written beside it, `owners` are
kernel names to ask its session about. What comes back is, per candidate, the outcome of each shape and those owners.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def compile_here(candidates: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Outcomes by candidate and shape, from a process of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(candidates), env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class _Answers:
    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}

    def send(self, **message: Any) -> None:
        if "ended" in message:
            self.outcomes[message.pop("ended")] = message


def _compile(candidate: dict[str, Any], folder: Path) -> dict[str, Any]:
    import atrex.dsls
    from atrex.compile.child import Task, compile_all
    from atrex.compile.elsewhere import Elsewhere
    from atrex.dsls.offline import Attempts, parse_target
    from atrex.problems.load import load_suite

    for name, text in candidate.get("files", {}).items():
        (folder / name).write_text(text)
    source = folder / "candidate.py"
    source.write_text(candidate["source"])
    dsl, target, log = atrex.dsls.get(candidate["dsl"]), parse_target(candidate["target"]), Attempts()
    os.environ.update(dsl.offline_env(target, folder))
    problem = load_suite().problem(candidate.get("operator", "rms_norm"))
    shapes = candidate.get("shapes", ["0"])
    task = Task(str(source), shapes, candidate["dsl"], candidate["target"], str(problem.folder), str(folder))
    answers = _Answers()
    sys.path.insert(0, str(folder))
    with Elsewhere(task, dsl, target, log) as place:
        compile_all(task, place, log, answers, dsl.device_errors())
        session = place.session
        owners = {name: session.owner(name) for name in candidate.get("owners", ())}
        kernels = session.artifacts()
    sys.path.remove(str(folder))
    return {"shapes": answers.outcomes, "owners": owners, "artifacts": kernels, "missing": session.missing()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for i, (name, candidate) in enumerate(json.load(sys.stdin).items()):
            place = Path(folder).resolve() / str(i)
            place.mkdir()
            found[name] = _compile(candidate, place)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
