"""The candidate sets that a study is over: found in run directories, joined with what generated them, and named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.generate.records import ABOUT, About, Generated, load_about, load_records
from atrex.scoring.aggregate import Summary
from atrex.scoring.baselines import baseline_times, check_names, joined
from atrex.scoring.candidates import CandidateScore, score_run
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.records import UnitRecord
from atrex.scoring.runs import RUN_FILE, Run, load_run
from atrex.scoring.suites import terms, within
from atrex.scoring.weights import Weights, read_weights

_SAMPLE = re.compile(r"sample-(\d+)")


@dataclass(frozen=True)
class Generation:
    """Where a set comes from: the folder that `atrex generate` wrote, and its records of one sample by operator."""

    folder: Path
    about: About
    records: dict[str, Generated]


@dataclass(frozen=True)
class CandidateSet:
    """One judged candidate set on one chip.

    `system` names what made it (agent and model, or the folder it stands in), `name` the set itself: the system, with
    the sample where there are several. `shapes`: operator -> number of scored shapes of the suite.
    """

    label: str
    run: Run
    score: CandidateScore
    weights: Weights
    shapes: Mapping[str, int]
    sample: int | None = None
    generation: Generation | None = None
    system: str = ""
    name: str = ""

    @property
    def summary(self) -> Summary:
        return self.score.summary

    @property
    def records(self) -> list[UnitRecord]:
        return self.score.records

    @property
    def judged(self) -> dict[str, set[str]]:
        """The scored shapes by operator that have a record or were planned."""
        return self.score.judged

    def pass_rate(self, operator: str) -> float | None:
        """Correct shapes over judged ones, in 0..1; None for an operator that was not judged."""
        if operator not in self.judged:
            return None
        found = self.score.operators.get(operator)
        return (found.correct if found else 0) / len(self.judged[operator])

    def s(self, operator: str) -> float | None:
        """S_i, 0 where no shape of it is correct; None for an operator that was not judged."""
        if operator not in self.judged:
            return None
        found = self.score.operators.get(operator)
        return found.s if found else 0.0


@dataclass
class Found:
    """The sets of some run directories, and what there is to say about them."""

    sets: list[CandidateSet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_sets(paths: Sequence[Path], baselines: Sequence[Path] = (), weights: Path | None = None) -> Found:
    """Every candidate set in run directories, or in folders that hold some at any depth.

    Runs of `atrex baseline` among them, and `baselines`, are compared with. `weights` is a file of one's own. Raises
    UserError for a path without a run, a run that cannot be read or scored, and runs without any candidate set.
    """
    runs = [load_run(path) for path in _below(paths, RUN_FILE, "run directory, expected a folder that holds run.json")]
    compared = [run for run in runs if run.records and all(r.baseline is not None for r in run.records)]
    times = [t for run in [*compared, *map(load_run, baselines)] for t in baseline_times(run)]
    check_names(times)
    folders = _generated_below(paths)
    found = Found()
    for run in (run for run in runs if run not in compared):
        run = joined(run, times) if times else run
        found.notes += run.notes
        sets = _sets(run, weights, folders, found.notes)
        found.sets += sets
        found.notes += [] if sets else [f"{run.path}: no unit of a candidate was recorded: in no table"]
    if not found.sets:
        raise UserError(f"{', '.join(map(str, paths))}: no unit of a candidate was recorded")
    used = {s.generation.folder.resolve() for s in found.sets if s.generation}
    found.notes += [f"{f}: generated, and no run here has judged it: in no table" for f in folders if f not in used]
    found.sets = _named(found.sets)
    return found


def _below(paths: Iterable[Path], name: str, expected: str) -> list[Path]:
    """The folders at or below `paths` that hold a file `name`, each once. Raises UserError for a path without one."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = [path] if (path / name).is_file() else sorted(f.parent for f in path.rglob(name))
        if not here:
            raise UserError(f"{path}: no {expected}")
        for each in here:
            found.setdefault(each.resolve(), each)
    return list(found.values())


def _generated_below(paths: Iterable[Path]) -> list[Path]:
    return sorted({f.parent.resolve() for path in paths for f in path.rglob(ABOUT)})


def _sets(run: Run, weights: Path | None, folders: Sequence[Path], notes: list[str]) -> list[CandidateSet]:
    used, shapes = terms([run])
    if weights is not None:
        used = within(read_weights(weights, {**PUBLISHED_SHAPES, **shapes}), shapes)
    try:
        scored = score_run(run.run, run.records, used.values, shapes)
    except ValueError as error:
        raise UserError(f"{run.path}: {error}") from None
    sets = []
    for label, score in scored.items():
        folder = Path(score.records[0].candidate).parent
        match = _SAMPLE.fullmatch(folder.name)
        sample = int(match[1]) if match else None
        generation = None if sample is None else _generation(folder.parent, sample, score.records, folders, notes)
        sets.append(CandidateSet(label, run, score, used, shapes, sample, generation))
    return sets


def _generation(
    parent: Path, sample: int, records: Sequence[UnitRecord], folders: Sequence[Path], notes: list[str]
) -> Generation | None:
    """What generated a set: the folder it was judged in, or one of `folders` that holds the very same files."""
    near = [parent] if (parent / ABOUT).is_file() else []
    changed = None
    for folder in [*near, *(f for f in folders if f not in {n.resolve() for n in near})]:
        made = {g.operator: g for g in load_records(folder) if g.sample == sample}
        told = [
            (made[r.operator].candidate_sha256, r.candidate_sha256)
            for r in records
            if r.operator in made and made[r.operator].candidate_sha256
        ]
        if all(a == b for a, b in told) and (told or folder in near):
            return Generation(folder, load_about(folder), made)
        changed = folder if folder in near else changed
    if changed is not None:
        notes.append(
            f"{changed}: sample {sample} is not what was judged, its candidates have changed since: not joined"
        )
    return None


def _named(sets: Sequence[CandidateSet]) -> list[CandidateSet]:
    """Give every set a name of its own: the system's, the run's where that is not enough, and the sample."""
    keys = [_key(s) for s in sets]
    repeated = {key for key, n in Counter((key, s.sample) for key, s in zip(keys, sets, strict=True)).items() if n > 1}
    keys = [
        (*key, str(s.run.path), s.label) if (key, s.sample) in repeated else key
        for key, s in zip(keys, sets, strict=True)
    ]
    bases: dict[Any, str] = {}
    for key, s in zip(keys, sets, strict=True):
        bases.setdefault(key, _base(s))
    shared = Counter(bases.values())
    where: dict[Any, str] = {}
    for key, s in zip(keys, sets, strict=True):
        where.setdefault(key, f"{bases[key]} in {s.run.path}" if shared[bases[key]] > 1 else bases[key])
    still = Counter(where.values())
    for key, s in zip(keys, sets, strict=True):
        if still[where[key]] > 1:
            where[key] = f"{where[key]}: {s.label}"
    samples = Counter(keys)
    return [
        replace(s, system=where[key], name=f"{where[key]} #{s.sample}" if samples[key] > 1 else where[key])
        for key, s in zip(keys, sets, strict=True)
    ]


def _key(s: CandidateSet) -> tuple[str, ...]:
    """What samples of one system have in common."""
    chip = s.records[0].chip
    if s.generation is not None:
        return str(s.generation.folder.resolve()), chip
    return (str(Path(s.records[0].candidate).parent.parent) if s.sample is not None else s.label), chip


def _base(s: CandidateSet) -> str:
    if s.generation is None:
        return s.label if s.sample is None else str(Path(s.records[0].candidate).parent.parent)
    about = s.generation.about
    answered = sorted({name for g in s.generation.records.values() for name in g.models})
    model = about.model or ", ".join(answered)
    return f"{about.agent} {model}" if model and model not in about.agent else about.agent
