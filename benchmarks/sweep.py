"""Time variants of the kernels in kernels/h200 side by side on one GPU, so that little device time shows much.

    python benchmarks/sweep.py rms_norm fused_moe --device cuda:0 --seconds 500 --jobs 12 --out sweep.json
    python benchmarks/sweep.py --list
    python benchmarks/sweep.py --check

kernels/sweeps/OPERATOR.json names the shapes that decide and the variants: changes of kernels/h200/OPERATOR.py, each
of a text that is there exactly once, or another file. A variant may say on which of the shapes it is another kernel.
`base`, the kernel as it is, and `vanilla`, the first version, are always there.

    {"shapes": [0, 3], "variants": {"label": [["old", "new"]], "other": {"file": "kernels/gluon/OPERATOR.py"},
                                    "some": {"replace": [["old", "new"]], "shapes": [3]}}}

Variants are trusted: no judge, and no process for each. A process has some pairs of operator and shape, whose inputs
and expected outputs it makes once; it compiles and checks beside the others, and times alone. One that says nothing for
--patience seconds is killed; a new one goes on without the variant that it had in hand. Every result is in --out at
once; first comes `base` everywhere, then the variants in turn, `vanilla` last.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.kernel_files import kernel_file  # noqa: E402
from benchmarks.replaced import NotOnce, replaced  # noqa: E402

from atrex.errors import UserError  # noqa: E402
from atrex.files import write  # noqa: E402
from atrex.hardware.chip import load_chip  # noqa: E402
from atrex.problems.load import load_suite  # noqa: E402
from atrex.problems.model import Problem, Suite  # noqa: E402
from atrex.roofline.bound import roofline  # noqa: E402

CHIP = "H200"
RUNS = 15.0  # seconds at most for a step that only runs kernels: while one hangs, nobody can time
STARTS = 120.0  # seconds at least for a process to start, and for a compiler


class Variant(NamedTuple):
    text: str
    shapes: frozenset[str] | None  # where it is another kernel than `base`; None: everywhere

    def fits(self, shape: str) -> bool:
        return self.shapes is None or shape in self.shapes


class Unit(NamedTuple):
    operator: str
    shape: str
    label: str


@dataclass(frozen=True)
class Spec:
    shapes: list[str]
    variants: dict[str, Variant]
    wrong: list[str]


def read_spec(root: Path, operator: str, problem: Problem) -> Spec:
    """The spec of an operator with the text of every variant; `wrong` has a line for each that cannot be made."""
    path = root / "kernels" / "sweeps" / f"{operator}.json"
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        shapes, listed = [str(shape) for shape in spec["shapes"]], dict(spec["variants"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no spec with shapes and variants: {type(error).__name__}: {error}") from None
    vanilla = root / "results" / "vanilla" / "triton" / f"{operator}.py"
    listed = {"base": []} | listed | ({"vanilla": {"file": str(vanilla)}} if vanilla.exists() else {})
    variants, wrong = {}, [f"{path}: no shape {s!r}" for s in shapes if s not in problem.shapes | problem.held_out]
    for label, how in listed.items():
        try:
            variants[label] = _variant(root, operator, how if isinstance(how, dict) else {"replace": how}, shapes)
        except (OSError, ValueError, TypeError, SyntaxError) as error:
            wrong.append(f"{path}: {label}: {error}")
    return Spec(shapes, variants, wrong)


def _variant(root: Path, operator: str, how: dict[str, Any], shapes: list[str]) -> Variant:
    if unknown := sorted(how.keys() - {"file", "replace", "shapes"}):
        raise ValueError(f"unknown {', '.join(unknown)}: expected file, replace or shapes")
    path = root / how["file"] if "file" in how else kernel_file(operator, root)
    try:
        text = replaced(path.read_text(encoding="utf-8"), how.get("replace", []))
    except NotOnce as error:
        raise ValueError(f"{error.count} times in {path}, expected once: {error.old!r}") from None
    compile(text, str(path), "exec")
    limits = frozenset(map(str, how["shapes"])) if "shapes" in how else None
    if unknown := sorted((limits or frozenset()) - set(shapes)):
        raise ValueError(f"shapes that the spec does not list: {', '.join(unknown)}")
    return Variant(text, limits)


class Queue:
    """What is still to be measured, by pair of operator and shape; a process keeps to the pairs that it has had."""

    def __init__(self, units: Iterable[Unit]):
        self.left: dict[tuple[str, str], list[str]] = {}
        for unit in units:
            self.left.setdefault((unit.operator, unit.shape), []).append(unit.label)
        self._free = list(self.left)
        self._had: dict[int, set[tuple[str, str]]] = {}

    def next(self, process: int) -> Unit | None:
        """First a pair that nobody has, if possible of an operator that this process has, or else that nobody has.
        Then its own pairs in turn, then a share of somebody else's.
        """
        mine = self._had.setdefault(process, set())
        operators = {operator for operator, _ in mine}
        others = {operator for pairs in self._had.values() for operator, _ in pairs} - operators
        if self._free:
            pair = min(self._free, key=lambda p: (p[0] not in operators, p[0] in others))
            self._free.remove(pair)
        else:
            open_pairs = [pair for pair, labels in self.left.items() if labels]
            if not open_pairs:
                return None
            pair = max(open_pairs, key=lambda p: (p in mine, len(self.left[p])))
        mine.add(pair)
        return Unit(*pair, self.left[pair].pop(0)) if self.left[pair] else self.next(process)

    def drop(self, operator: str, label: str) -> list[Unit]:
        """Take a variant out on all shapes that it has not been measured on."""
        pairs = [pair for pair, labels in self.left.items() if pair[0] == operator and label in labels]
        for pair in pairs:
            self.left[pair].remove(label)
        return [Unit(*pair, label) for pair in pairs]


@dataclass
class Process:
    """One process as its parent sees it."""

    number: int
    device: str
    lease: Path
    unit: Unit | None = None
    step: str = "starting"
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        from benchmarks.sweep_process import work

        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, self.device, self.lease), daemon=True)
        self._process.start()
        other.close()

    def enter(self, step: str) -> None:
        self.step, self.since = step, time.monotonic()

    def hangs(self, patience: float) -> bool:
        """Waiting for the device is no fault of a process."""
        longer, shorter = max(STARTS, patience), min(RUNS, patience)
        limits = {"starting": longer, "compiling": longer, "forward": shorter, "timing": shorter, "waiting": math.inf}
        return time.monotonic() - self.since > limits.get(self.step, patience)

    def end(self, wait: bool = True) -> None:
        self._process.kill()
        if wait:
            self._process.join(5)
            self.pipe.close()


class Sweep:
    """Runs units on a device and keeps their results."""

    def __init__(self, suite: Suite, specs: dict[str, Spec], options: argparse.Namespace, folder: Path):
        self.suite, self.specs, self.options, self.folder = suite, specs, options, folder
        self.rows: list[dict[str, Any]] = []
        self.about: dict[str, str] = {}
        self.finished = False
        self.started = time.monotonic()
        chip = load_chip(CHIP)
        self.roofline = {
            (operator, shape): roofline(suite.problem(operator).work(suite.problem(operator).shape(shape)), chip).us
            for operator, spec in specs.items()
            for shape in options.shapes or spec.shapes
        }
        units = []
        for operator, shape in self.roofline:
            for label, variant in specs[operator].variants.items():
                if variant.fits(shape) and (not options.labels or label in options.labels):
                    units.append(Unit(operator, shape, label))
                    self._path(units[-1]).parent.mkdir(parents=True, exist_ok=True)
                    self._path(units[-1]).write_text(variant.text, encoding="utf-8")
        self.queue, self.planned = Queue(units), len(units)

    def _path(self, unit: Unit) -> Path:
        place = list(self.specs[unit.operator].variants).index(unit.label)
        return self.folder / unit.operator / f"variant{place}.py"

    def run(self) -> None:
        """Until everything is measured or the time is over."""
        lease = self.folder / "lease"
        count = min(self.options.jobs, self.planned)
        processes = [Process(number, self.options.device, lease) for number in range(count)]
        try:
            while processes and (left := self.started + self.options.seconds - time.monotonic()) > 0:
                ready = connection.wait([p.pipe for p in processes], min(left, 0.25))
                for i, process in reversed(list(enumerate(processes))):
                    alive = process.pipe not in ready or self._hear(process)
                    if alive and not process.hangs(self.options.patience):
                        continue
                    self._lost(process, alive)
                    process.end()
                    del processes[i]
                    if process.step != "starting" and any(self.queue.left.values()):
                        processes.append(Process(process.number, self.options.device, lease))
        finally:
            for wait in (False, True):
                for process in processes:
                    process.end(wait)
        self.finished = len(self.rows) == self.planned
        self._save()

    def _hear(self, process: Process) -> bool:
        """Take one message; False when there is nobody any more or nothing more to do."""
        try:
            kind, what = process.pipe.recv()
            if kind == "step":
                process.enter(what)
                return True
            if kind == "ready":
                self.about = what
            else:
                done, process.unit = process.unit, None
                self._add(done, what)
            if kind == "lost":  # the process has no device any more
                return False
            if (unit := self.queue.next(process.number)) is None:
                return False
            process.enter("given")
            process.unit = unit
            process.pipe.send((unit, str(self._path(unit))))
        except (EOFError, OSError):
            return False
        return True

    def _lost(self, process: Process, hung: bool) -> None:
        if (unit := process.unit) is None:
            return
        detail = f"{time.monotonic() - process.since:.0f} s in step {process.step!r}"
        self._add(unit, {"status": "hung" if hung else "died", "detail": detail})
        for other in self.queue.drop(unit.operator, unit.label) if unit.label != "base" else ():
            self._add(other, {"status": "left out", "detail": f"lost a process on shape {unit.shape}"})

    def _add(self, unit: Unit, result: dict[str, Any]) -> None:
        row = unit._asdict() | result
        if "us" in row:
            row["S"] = self.roofline[unit.operator, unit.shape] / row["us"]
        self.rows.append(row)
        said = f"{row['us']:.2f} us, S {row['S']:.3f}" if "us" in row else f"{row['status']}: {row['detail']}"
        place = f"{time.monotonic() - self.started:5.0f} s  {len(self.rows)}/{self.planned}"
        print(f"{place}  {unit.operator} {unit.shape} {unit.label}: {said}", flush=True)
        self._save()

    def _save(self) -> None:
        record = {"what": "variants of kernels side by side", "command": " ".join(["python", *sys.argv]), **self.about}
        record |= {"seconds": round(time.monotonic() - self.started, 1), "finished": self.finished}
        record |= {"planned": self.planned, "rows": self.rows}
        if self.options.out:
            self.options.out.parent.mkdir(parents=True, exist_ok=True)
            write(self.options.out, json.dumps(record, indent=1))

    def table(self) -> str:
        """By shape what `base` takes and what is best, and by operator the label with the best median S."""
        S: dict[str, dict[str, dict[str, float]]] = {}
        for row in self.rows:
            if "S" in row:
                S.setdefault(row["operator"], {}).setdefault(row["shape"], {})[row["label"]] = row["S"]
        lines = [f"{'operator':30} shape   base us   best us   gain  S best  label"]
        for operator, by_shape in S.items():
            for shape, found in by_shape.items():
                limit, best = self.roofline[operator, shape], max(found, key=found.get)
                base, us = limit / found.get("base", math.nan), limit / found[best]
                times = f"{base:9.2f} {us:9.2f} {base / us - 1:6.1%}"
                lines.append(f"{operator:30} {shape:>5} {times} {found[best]:7.3f}  {best}")
            if medians := self._medians(operator, by_shape):
                best = max(medians, key=medians.get)
                base = f"{medians['base']:.3f}" if "base" in medians else "-"
                lines.append(f"{operator:30} median S: base {base}, best {medians[best]:.3f} {best}")
        return "\n".join(lines)

    def _medians(self, operator: str, by_shape: dict[str, dict[str, float]]) -> dict[str, float]:
        """Of what passed on every shape of the operator; where a variant is no other kernel, `base` stands for it."""
        medians = {}
        for label, variant in self.specs[operator].variants.items():
            found = [seen.get(label if variant.fits(shape) else "base") for shape, seen in by_shape.items()]
            if None not in found and any(label in seen for seen in by_shape.values()):
                medians[label] = statistics.median(found)
        return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("operators", nargs="*", metavar="OP", help="default: all that have a spec")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=500.0, help="when to stop")
    parser.add_argument("--jobs", type=int, default=12, help="processes")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of silence that a process may take")
    parser.add_argument("--shapes", type=names, help="instead of those of the specs: 0,3")
    parser.add_argument("--labels", type=names, help="only these variants: base,pdl-off")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the record")
    parser.add_argument("--root", type=Path, default=ROOT, help="where kernels/ and results/ are")
    parser.add_argument("--list", action="store_true", help="print shapes and labels and do nothing else")
    parser.add_argument("--check", action="store_true", help="make every variant of every spec and do nothing else")
    options = parser.parse_args()
    suite = load_suite()
    listed = sorted(path.stem for path in (options.root / "kernels" / "sweeps").glob("*.json"))
    specs = {name: read_spec(options.root, name, suite.problem(name)) for name in options.operators or listed}
    wrong = [line for spec in specs.values() for line in spec.wrong]
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if options.list or options.check:
        for name, spec in specs.items() if options.list else ():
            print(f"{name}: shapes {', '.join(spec.shapes)}; {', '.join(spec.variants)}")
        print(f"{len(specs)} operators, {sum(len(spec.variants) for spec in specs.values())} variants")
        sys.exit(1 if wrong else 0)
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(suite, specs, options, Path(folder))
        with suppress(KeyboardInterrupt):
            sweep.run()
    print(sweep.table())
    print("finished" if sweep.finished else "not finished")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
