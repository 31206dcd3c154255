"""A lab of short measurements: correctness once for a kernel, and rounds that take two fresh processes a shape."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atrex.agents.tuner.bench import readable
from atrex.errors import UserError
from atrex.generate.workspace import lay_out
from atrex.hardware import native
from atrex.hardware.cache import cache_sizes
from atrex.hardware.chip import CPU, load_chip
from atrex.optimize.lab import UnitFailed
from atrex.optimize.promotion import Round
from atrex.problems.model import Problem
from atrex.profiling.evidence import Evidence
from atrex.roofline.bound import roofline
from atrex.scoring.comparison import Pair
from atrex.scoring.records import (
    Artifact,
    Compile,
    Correctness,
    Performance,
    RooflineScore,
    Stage,
    Status,
    UnitRecord,
    Verdict,
)

REPEATS = 9  # timed calls of a process; its time is their median
_LIMIT = 120.0  # seconds of one process
_CATEGORIES = {"wrong": "numeric_mismatch", "timeout": "timeout"}


class Replicates:
    """The measuring program on the CPU, for all campaigns of one ablation. A context manager.

    Every order is a process of its own, forked from one that has imported torch and nothing of a kernel. `kept` is
    where compiled libraries stay.
    """

    def __init__(self, problem: Problem, shapes: list[str], kept: Path, threads: int):
        self.problem, self.shapes, self.threads = problem, shapes, threads
        self._kept, self._known = kept.resolve(), {}
        self._chip = load_chip(CPU)

    def __enter__(self) -> Replicates:
        self._kept.mkdir(parents=True, exist_ok=True)
        self._root = Path(tempfile.mkdtemp(prefix="atrex-ablate-"))
        chosen = {shape: self.problem.shape(shape) for shape in self.shapes}
        lay_out(self._root / "laid", self.problem, "", chosen)
        scratch = self._root / "scratch"
        scratch.mkdir()
        sweep = 0 if native.atrex_flush_supported() else 2 * (cache_sizes().get("llc") or (64 << 20))
        program = Path(__file__).with_name("program.py")
        argv = [sys.executable, str(program), "cpu", *readable("cpu"), str(sweep), str(self._kept)]
        env = os.environ | {
            "OMP_NUM_THREADS": str(self.threads), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._log = (self._root / "log").open("w+")
        self._process = subprocess.Popen(
            argv, cwd=self._root / "laid" / "workspace", env=env, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def alone(self, source: str, shapes: list[str], seed: int, check: bool = False) -> dict[str, Any]:
        """`times` by shape in microseconds, `libraries`; or `failed` and `reason`. The process is a new one."""
        order = {
            "do": "alone", "source": source, "shapes": shapes, "check": shapes if check else [], "repeats": REPEATS,
            "seed": seed, "limit": _LIMIT,
        }  # fmt: skip
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
            raise UserError(f"the measuring program ended: {said[-1] if said else 'it said nothing'}")
        return json.loads(line)

    def judged(self, source: str) -> list[UnitRecord]:
        """Records of a kernel on all shapes, correctness and corner cases included; each kernel is judged once."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        if digest not in self._known:
            answer = self.alone(source, self.shapes, 1, check=True)
            self._known[digest] = [self._record(shape, digest, answer) for shape in self.shapes]
        return self._known[digest]

    def failure(self, source: str, shape: str, answer: dict[str, Any]) -> UnitRecord:
        return self._record(shape, hashlib.sha256(source.encode()).hexdigest(), answer)

    def _record(self, shape: str, digest: str, answer: dict[str, Any]) -> UnitRecord:
        about = {
            "candidate": digest[:12], "candidate_sha256": digest, "operator": self.problem.operator, "shape": shape,
            "device": "cpu", "chip": CPU, "dsl": "cpp",
        }  # fmt: skip
        if "failed" in answer:
            category = _CATEGORIES.get(answer["failed"], "exception")
            verdict = Verdict(
                status=Status.FAILED, stage=Stage.RUNTIME, category=category, reason=str(answer["reason"])
            )
            return UnitRecord(verdict=verdict, **about)
        us = sorted(answer["times"][shape])
        middle = statistics.median(us)
        bound = roofline(self.problem.work(self.problem.shape(shape)), self._chip)
        libraries = [Artifact(name="kernel.so", kind="so", sha256=each, bytes=0) for each in answer["libraries"]]
        return UnitRecord(
            verdict=Verdict(status=Status.PASSED),
            compile=Compile(seconds=answer["seconds"], artifacts=libraries),
            correctness=Correctness(passed=True),
            performance=Performance(
                median_us=middle, p10_us=us[0], p90_us=us[-1], ci_us=(us[0], us[-1]), n=len(us), method="monotonic"
            ),
            roofline=RooflineScore(roofline_us=bound.us, bound=bound.bound, S=bound.us / middle),
            **about,
        )

    def pair(self, a: str, b: str, shape: str, rng: random.Random) -> Pair:
        """Medians of two kernels on one shape, each in a process of its own, in an order drawn, on the same new inputs.

        Raises UnitFailed.
        """
        seed, us = rng.randrange(1 << 30), {}
        for side in rng.sample(("a", "b"), 2):
            source = a if side == "a" else b
            answer = self.alone(source, [shape], seed)
            if "failed" in answer:
                raise UnitFailed(self.failure(source, shape, answer), side == "b")
            us[side] = statistics.median(answer["times"][shape])
        return us["a"], us["b"]


class Spent(Exception):
    """The budget of measurements is spent."""


class ReplicateLab:
    """The lab of one campaign (`optimize.lab.Lab`). It raises Spent where a round more would exceed `budget`.

    A measurement is a round: incumbent and candidate once each on every shape asked for. Judging measures nothing that
    is decided on, and costs none.
    """

    seconds = None
    until: float | None = None

    def __init__(self, replicates: Replicates, budget: int, rng: random.Random):
        self._replicates, self.budget, self._rng = replicates, budget, rng
        self.rounds = 0
        self.contested: list[tuple[str, int]] = []
        """SHA-256 of each contested candidate, and the rounds that were spent when its contest had ended."""

    def judge(self, source: Path) -> list[UnitRecord]:
        return self._replicates.judged(source.read_text(encoding="utf-8"))

    @contextmanager
    def heat(self, incumbent: Path, candidate: Path) -> Iterator[Round]:
        a, b = incumbent.read_text(encoding="utf-8"), candidate.read_text(encoding="utf-8")

        def measure(shapes=None):
            if self.rounds == self.budget:
                raise Spent(f"{self.budget} measurements")
            self.rounds += 1
            wanted = [shape for shape in self._replicates.shapes if shapes is None or shape in shapes]
            drawn = self._rng.sample(wanted, len(wanted))
            return {shape: self._replicates.pair(a, b, shape, self._rng) for shape in drawn}

        yield measure

    @contextmanager
    def contest(self, incumbent: Path, candidate: Path) -> Iterator[Round]:
        with self.heat(incumbent, candidate) as measure:
            yield measure
        self.contested.append((hashlib.sha256(candidate.read_bytes()).hexdigest(), self.rounds))

    def look(self, source: Path, shape: str) -> Evidence | None:
        return None
