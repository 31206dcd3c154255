"""A plan written as a suite: problem folders with mined shapes, weights, traced production times, and a report.

DIR/suite.json     name and version
DIR/weights.json   importance weights, normalized over the suite's operators
DIR/build.json     applications, coverage, what is left out and why, families that the suite has no operator for
DIR/OPERATOR/      the suite's folder of that operator with mined shapes instead of its own
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.problems.generate import generate_roofline
from atrex.problems.model import Problem, Shape
from atrex.problems.release import RELEASES
from atrex.traces.fleet.held_out import held_out
from atrex.traces.fleet.plan import Plan
from atrex.traces.fleet.redact import Names
from atrex.traces.fleet.report import weights_document
from atrex.traces.fleet.select import Kept, KeptOut, Selection
from atrex.traces.mining.dims import Dims
from atrex.traces.mining.mine import Mined, bucket_of

COPIED = ("reference.py", "input.py", "work.py", "mutants.py", "__init__.py")
SYMBOLS_KEPT = 8
MARKER = "build.json"
WRITTEN = ("suite.json", "weights.json", MARKER, "__pycache__")
ONE_TOKEN = "one token attends to itself: the output is v whatever q and k are"


def write_suite(plan: Plan, out: Path, names: Names, progress: Callable[[str], None] = lambda operator: None) -> None:
    """Write `plan` as a suite folder `out`, which must be new, empty, or one that this wrote before.

    The folder is complete or as it was: it is made beside `out` and put in its place at the end. Raises UserError.
    """
    out = out.resolve()
    _refuse_others(out)
    working = out.with_name(f".{out.name}.building")
    shutil.rmtree(working, ignore_errors=True)
    try:
        working.mkdir(parents=True)
        for selection in plan.selections:
            progress(selection.operator)
            _write_problem(plan, selection, working / selection.operator, names)
        about = {"name": names.suite, "version": names.version}
        _write(working / "suite.json", about)
        _write(working / "weights.json", _weights(plan, about["version"]))
        _write(working / MARKER, document(plan, names))
        if out.exists():
            shutil.rmtree(out)
        working.rename(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _refuse_others(out: Path) -> None:
    """Whatever a build did not write is not removed by the next one."""
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).exists()):
        raise UserError(f"{out}: exists and is no built suite: expected a new or empty folder, or one built before")
    if (out / RELEASES).exists():
        raise UserError(f"{out}: holds frozen releases: build into another folder")
    other = next((p for p in sorted(out.iterdir()) if p.name not in WRITTEN and not (p / "shapes.json").exists()), None)
    if other is not None:
        raise UserError(f"{out}: holds {other.name}, which no build wrote: move it, or build into another folder")


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _weights(plan: Plan, version: str) -> dict[str, Any]:
    return {
        "version": version,
        "source": f"Shares of {plan.weights.time} device time in the fleet's traces, by phase and card-hours, over the "
        "operators of this suite.",
        "sum": 1.0,
        "importance": plan.weights.weights,
        "weights": plan.weights.weights,
    }


def _write_problem(plan: Plan, selection: Selection, folder: Path, names: Names) -> None:
    base = plan.base.problem(selection.operator)
    folder.mkdir()
    for name in COPIED:
        if (base.folder / name).exists():
            shutil.copyfile(base.folder / name, folder / name)
    kept = sorted(selection.kept, key=lambda k: _size(base, k))
    shapes = {
        str(i): {"init_kwargs": k.member.init_kwargs, "input_kwargs": k.member.input_kwargs} for i, k in enumerate(kept)
    }
    listed = [_dims(k) for k in kept]
    hidden = {
        f"h{i}": {"init_kwargs": init, "input_kwargs": kwargs}
        for i, (init, kwargs) in enumerate(held_out(selection.operator, listed))
    }
    _write_lines(folder / "shapes.json", shapes)
    _write_lines(folder / "held_out.json", hidden)
    raw = json.loads((base.folder / "metadata.json").read_text(encoding="utf-8"))
    raw["phase"] = _phase(plan, selection.operator) or raw["phase"]
    raw["provenance"] = _provenance(plan, selection, names)
    raw["shapes"] = {str(i): _shape_meta(selection, k, names) for i, k in enumerate(kept)}
    _write(folder / "metadata.json", raw)
    generate_roofline(folder)


def _size(problem: Problem, kept: Kept) -> tuple[int, int]:
    work = problem.work(Shape("mined", kept.member.init_kwargs, kept.member.input_kwargs))
    return work.total_bytes, work.total_flops


def _write_lines(path: Path, shapes: dict[str, Any]) -> None:
    """A shape a line, as the shipped suite has them."""
    lines = ",\n".join(f"  {json.dumps(shape_id)}: {json.dumps(entry)}" for shape_id, entry in shapes.items())
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _phase(plan: Plan, operator: str) -> str:
    phases = next((f.phases for f in plan.weights.families if f.operator == operator and f.weight is not None), ())
    return "/".join(p for p in phases if p != "mixed")


def _provenance(plan: Plan, selection: Selection, names: Names) -> dict[str, Any]:
    mined = [m for k in selection.kept for m in k.bucket.mined]
    symbols = names.symbols(_by_time(mined, lambda m: m.symbols))
    found = {
        "framework": "/".join(_frameworks(mined)) or None,
        "symbol": symbols[0] if symbols else None,
        "profiles": plan.profiles[selection.operator],
    }
    return {key: value for key, value in found.items() if value is not None}


def _frameworks(mined: list[Mined]) -> list[str]:
    return _by_time(mined, lambda m: (m.framework,) if m.framework else ())


def _by_time(mined: list[Mined], of: Callable[[Mined], tuple[str, ...]]) -> list[str]:
    """Names by the device time of the calls that carry them, heaviest first."""
    found: dict[str, float] = {}
    for each in mined:
        for name in of(each):
            found[name] = found.get(name, 0.0) + each.total_ns
    return sorted(found, key=lambda n: -found[n])


def _counts(pairs: list[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in pairs:
        found[name] = found.get(name, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _dims(kept: Kept) -> Dims:
    return max(kept.member.mined, key=lambda m: m.total_ns).dims


def _shape_meta(selection: Selection, kept: Kept, names: Names) -> dict[str, Any]:
    mined, member = kept.bucket.mined, kept.member
    times = member.us()
    backends = {m.chip: m.framework for m in member.mined if m.chip}
    found: dict[str, Any] = {"origin": "mined", "description": _description(selection, kept, names)}
    if times:
        chip = max(times, key=lambda c: sum(times[c]))
        found["call_count"] = len(times[chip])
        found["traced_total_us"] = {chip: round(sum(times[chip]), 3)}
        found["production"] = {
            c: {"us": round(statistics.median(us), 3)} | ({"backend": backends[c]} if backends.get(c) else {})
            for c, us in times.items()
        }
    if kept.explained is not None:
        found["under_roofline"] = names.text(kept.explained)
    if _one_token(selection.operator, member.input_kwargs):
        found["trivial"] = ONE_TOKEN
    found["mined"] = {
        "frameworks": _frameworks(mined),
        "symbols": names.symbols(_by_time(mined, lambda m: m.symbols))[:SYMBOLS_KEPT],
        "profiles": len({m.trace for m in mined}),
        "calls": sum(len(m.ns) for m in mined),
        "applications": _counts([(names.application(m.application), len(m.ns)) for m in mined]),
        "phases": _counts([(m.phase, len(m.ns)) for m in mined]),
        "families": sorted({m.family for m in mined} - {selection.operator}),
        "dtypes": _by_time(mined, lambda m: m.dtypes),
        "share": kept.bucket.scaled / selection.scaled,
        "members": len(kept.bucket.members),
        "dims": {
            name: {"value": d.value, "source": d.source}
            | ({"bucket": bucket_of(d.bucket, d.value)} if d.bucket is not None else {})
            for name, d in _dims(kept).items()
        },
    }
    return found


def _description(selection: Selection, kept: Kept, names: Names) -> str:
    apps = ", ".join(dict.fromkeys(names.application(m.application) for m in kept.bucket.mined))
    phases = "/".join(dict.fromkeys(m.phase for m in kept.bucket.mined))
    share = kept.bucket.scaled / selection.scaled
    ran = "/".join(_frameworks(kept.bucket.mined)) or "traced"
    return f"({ran}), {phases}, {share:.1%} of the operator's time, {apps}"


def _one_token(operator: str, kwargs: dict[str, Any]) -> bool:
    """Attention of single tokens over caches that hold nothing else."""
    if operator in ("paged_attention_decode", "mla_decode_attention"):
        return kwargs["ctx_len"] == 1
    if operator not in ("unified_attention", "attention_forward"):
        return False
    return all(run["length"] == 1 for run in kwargs["seq_lens"]) and "context_lens" not in kwargs


def document(plan: Plan, names: Names) -> dict[str, Any]:
    """What was built and what was not, as one JSON object; DIR/build.json."""
    weights = weights_document(plan.weights)
    renamed = {app: names.application(app) for app in plan.fleet.applications}
    weights["applications"] = {renamed[a]: about for a, about in weights["applications"].items()}
    for family in weights["families"]:
        family["shares"] = {renamed[a]: shares for a, shares in family["shares"].items()}
    weights["notes"] = [_renamed(note, renamed) for note in weights["notes"]]
    return {
        "suite": names.suite,
        "redacted": names.redacted,
        "coverage": {"asked": plan.coverage, "of_operators": plan.covered_in_all},
        "operators": {
            s.operator: {
                "weight": plan.weights.weights[s.operator],
                "shapes": len(s.kept),
                "covered": plan.covered(s.operator),
                "profiles": plan.profiles[s.operator],
                "beyond_coverage": {"buckets": s.tail_buckets, "share": s.tail / s.scaled if s.scaled else 0.0},
                "sources": _sources(s),
            }
            for s in plan.selections
        },
        "kept_out": [_kept_out(k) for k in plan.kept_out],
        "without_shapes": [_without(plan, operator) for operator in _by_missing(plan)],
        "beyond_the_suite": [
            {"family": f.family, "score": f.score}
            for f in plan.weights.families if f.operator is None and f.score > 0
        ],
        "weights": weights,
    }  # fmt: skip


def _by_missing(plan: Plan) -> list[str]:
    return sorted(plan.missing, key=lambda operator: -sum(plan.missing[operator].values()))


def _without(plan: Plan, operator: str) -> dict[str, Any]:
    """How much of an operator's device time has no shape, and of all device time, with the reasons by time."""
    reasons = plan.missing[operator]
    missing = sum(reasons.values())
    whole = missing + sum(s.scaled for s in plan.selections if s.operator == operator)
    ordered = sorted(reasons, key=lambda why: -reasons[why])
    return {"operator": operator, "of_operator": missing / whole, "share": missing, "reasons": ordered}


def _renamed(note: str, renamed: dict[str, str]) -> str:
    app = next((a for a in sorted(renamed, key=len, reverse=True) if note.startswith(f"{a}: ")), None)
    return note if app is None else renamed[app] + note[len(app) :]


def _sources(selection: Selection) -> dict[str, int]:
    """How many dimensions of the kept shapes are traced, configured and typical."""
    return _counts([(d.source, 1) for k in selection.kept for d in _dims(k).values()])


def _kept_out(out: KeptOut) -> dict[str, Any]:
    found = {
        "operator": out.operator,
        "init_kwargs": out.init_kwargs,
        "input_kwargs": out.input_kwargs,
        "calls": out.calls,
        "why": out.why,
    }
    if out.us is not None:
        found |= {"chip": out.chip, "traced_us": round(out.us, 3), "roofline_us": round(out.roofline_us or 0.0, 3)}
    return found
