"""The traces of a fleet in one data set, imported side by side, and left alone where they are there already."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import atrex
from atrex.errors import UserError
from atrex.traces import dataset, families, importer
from atrex.traces.families.rules import load_rules
from atrex.traces.families.versions import parse_framework
from atrex.traces.fleet.spec import Files, Fleet
from atrex.traces.importer import Batch, Imported
from atrex.traces.pipeline import Options

RULES = Path(families.__file__).parent / "data"
KEPT = "fleet.json"  # in the data set: what each application's traces were imported from


@dataclass(frozen=True)
class Gathered:
    """A fleet's data set. `of`: trace id -> (application, hints); traces of graph captures are in it too."""

    data: dataset.Dataset
    of: dict[str, tuple[str, Files]]

    def serving(self) -> list[str]:
        return [trace for trace in self.data.serving() if trace in self.of]

    def factors(self, card_hours: Mapping[str, float]) -> dict[str, float]:
        """What a nanosecond of exclusive device time counts, by application: its share of card-hours over all of its
        device time."""
        ns: dict[str, float] = {}
        for trace in self.serving():
            app = self.of[trace][0]
            ns[app] = ns.get(app, 0.0) + self.data.summaries[trace]["device_ns"]["exclusive"]
        total = math.fsum(card_hours.values())
        return {app: hours / total / ns[app] for app, hours in card_hours.items() if ns.get(app)}

    def chip_of(self, trace: str) -> str | None:
        """The chip file that describes a trace's device: the one that fleet.yaml names, else by the device's name."""
        from atrex.hardware.detect import match_chip

        if (given := self.of[trace][1].chip) is not None:
            return given
        return next((chip for name in self.data.summaries[trace]["devices"] if (chip := match_chip(name))), None)


def gather(
    fleet: Fleet, out: Path, jobs: int | None = None, done: Callable[[Imported], None] = lambda _: None
) -> Gathered:
    """Import every trace of `fleet` into the data set `out`; an application whose files are as they were is kept.

    Raises UserError, naming the application, for files that cannot be read and applications without serving traces.
    """
    dataset.create(out)
    marks = _marks(out)
    files = {name: fleet.files_of(name) for name in fleet.applications}
    wanted = {name: _mark(found) for name, found in files.items()}
    stale = [name for name in files if marks.get(name, {}).get("mark") != wanted[name]]
    for name in {*stale, *(set(marks) - set(files))}:
        for trace in marks.pop(name, {}).get("traces", {}):
            dataset.remove(out, trace)
    _keep(out, marks)
    batches = [Batch([path], _options(fleet, name, entry), name) for name in stale for path, entry in files[name]]
    results = importer.import_batches(batches, out, jobs, done) if batches else []
    if failed := next((r for r in results if r.error is not None), None):
        raise UserError(failed.error)
    for name in stale:
        mine = [r for b, r in zip(batches, results, strict=True) if b.key == name]
        marks[name] = {"mark": wanted[name], "traces": {r.trace: str(r.source) for r in mine}}
    _keep(out, marks)
    of = {}
    for name, found in files.items():
        hints = {str(path): entry for path, entry in found}
        of |= {trace: (name, hints[source]) for trace, source in marks[name]["traces"].items()}
    opened = dataset.open_dataset(out)
    gathered = Gathered(opened, of)
    for name in fleet.applications:
        if not any(of[trace][0] == name for trace in gathered.serving()):
            raise UserError(f"{fleet.path}: applications.{name}.traces: only traces of graph captures: no serving time")
    return gathered


def _options(fleet: Fleet, name: str, entry: Files) -> Options:
    versions = {}
    if entry.framework is not None:
        package, version = parse_framework(entry.framework)
        if package not in (packages := sorted({rule.package for rule in load_rules().rules})):
            raise UserError(
                f"{fleet.path}: applications.{name}: framework {entry.framework}: no rules for {package}: expected one "
                f"of {', '.join(packages)}"
            )
        versions[package] = version
    return Options(app=name, rank=entry.rank, versions=versions, phase=entry.phase)


def _mark(files: list[tuple[Path, Files]]) -> str:
    """What the import of these files depends on, as one text."""
    parts: list[object] = [atrex.__version__, _rules()]
    for path, entry in files:
        about = path.stat()
        hints = {n: getattr(entry, n) for n in ("phase", "rank", "framework")}
        parts.append([str(path.resolve()), about.st_size, about.st_mtime_ns, hints])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _rules() -> str:
    """What the families of kernels depend on."""
    digest = hashlib.sha256()
    for file in sorted(RULES.glob("*.yaml")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _marks(out: Path) -> dict[str, dict]:
    try:
        return json.loads((out / KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _keep(out: Path, marks: dict[str, dict]) -> None:
    (out / KEPT).write_text(json.dumps(marks, indent=1) + "\n", encoding="utf-8")
