"""What `atrex suite validate` found: failed checks, and what every shape cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atrex.cli.suite import not_run_lines
from atrex.errors import UserError
from atrex.problems.lint import (
    FAST_ENOUGH,
    REFERENCE_BYTES,
    REFERENCE_SECONDS,
    SMALL_ENOUGH,
    ShapeReport,
    check_folder,
    check_shape,
)
from atrex.problems.under_roofline import UnderRoofline, under_roofline

if TYPE_CHECKING:
    from atrex.problems.model import Problem, Shape

NAMED = 5


class LintBook:
    """The findings of `atrex.problems.lint` by operator; a unit whose process ended is a finding on that unit."""

    check = staticmethod(check_shape)
    smallest_first = False  # the limits of memory and time are met or missed by the largest

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def begin(self, problem: Problem, shapes: list[Shape]) -> None:
        findings = check_folder(problem)
        entry = self.found.setdefault(problem.operator, {"units": {}})
        entry["folder"] = {"checks": len(findings), "failures": [_failure(f) for f in findings if not f.passed]}
        entry["not_run"] = {}
        try:
            entry["under_roofline"] = under_roofline(problem)
        except UserError:
            entry["under_roofline"] = []  # a finding of check_folder

    def has(self, operator: str, shape_id: str) -> bool:
        return shape_id in self.found.get(operator, {"units": {}})["units"]

    def add(self, operator: str, shape_id: str, result: Any) -> None:
        if isinstance(result, ShapeReport):
            cost = {key: _short(value) for key, value in asdict(result.cost).items()}
            failures = [_failure(f) for f in result.findings if not f.passed]
            unit = {"checks": len(result.findings), "failures": failures, **cost}
        else:
            unit = {"checks": 1, "failures": [{"check": "runs", "detail": result.reason}], "seconds": None}
        self.found[operator]["units"][shape_id] = unit

    def leave_out(self, operator: str, shape_id: str, reason: str) -> None:
        self.found[operator]["not_run"][shape_id] = reason

    def again(self, result: ShapeReport) -> bool:
        """Beside other processes a shape may run out of memory or of time that it has when it is alone."""
        costly = {finding.check for finding in result.findings if not finding.passed} & {SMALL_ENOUGH, FAST_ENOUGH}
        return result.starved or bool(costly)

    def load(self, document: dict[str, Any]) -> None:
        for each in document["operators"]:
            units = {sid: {**unit, "failures": []} for sid, unit in each["units"].items()}
            folder = []
            for failure in each["failures"]:
                kept = {key: value for key, value in failure.items() if key != "shape"}
                (units[failure["shape"]]["failures"] if failure["shape"] else folder).append(kept)
            checks = each["checks"] - sum(unit["checks"] for unit in units.values())
            self.found[each["operator"]] = {
                "units": units,
                "folder": {"checks": checks, "failures": folder},
                "not_run": each["not_run"],
                "under_roofline": [UnderRoofline(**found) for found in each["under_roofline"]],
            }

    def operators(self) -> list[dict[str, Any]]:
        return [
            {
                "operator": operator,
                "checks": entry["folder"]["checks"] + sum(unit["checks"] for unit in entry["units"].values()),
                "failures": _failures(entry),
                "units": {
                    sid: {k: v for k, v in unit.items() if k != "failures" and v is not None}
                    for sid, unit in _ordered(entry["units"])
                },
                "not_run": dict(_ordered(entry["not_run"])),
                "under_roofline": [asdict(each) for each in entry["under_roofline"]],
            }
            for operator, entry in self.found.items()
        ]

    def summary(self) -> dict[str, Any]:
        units = self._units()
        measured = [unit for unit in units if unit.get("reference_bytes")]
        failures = [failure for entry in self.found.values() for failure in _failures(entry)]
        return {
            "operators": len(self.found),
            "units": len(units),
            "not_run": sum(len(entry["not_run"]) for entry in self.found.values()),
            "checks": sum(each["checks"] for each in self.operators()),
            "failures": len(failures),
            "under_roofline": sum(len(entry["under_roofline"]) for entry in self.found.values()),
            "unexplained": sum(not e.explained for entry in self.found.values() for e in entry["under_roofline"]),
            "limits": {"reference_bytes": REFERENCE_BYTES, "reference_seconds": REFERENCE_SECONDS},
            "over_limits": sum(f["check"] in (SMALL_ENOUGH, FAST_ENOUGH) for f in failures) if measured else None,
            "slowest": _most(units, "reference_seconds"),
            "largest": _most(units, "reference_bytes"),
        }

    def show(self) -> None:
        for operator, entry in self.found.items():
            self._show(operator, entry)
        told = self.summary()
        print(
            f"{told['units']} units run, {told['not_run']} not run, {told['failures']} checks failed; "
            f"{told['under_roofline']} measured times under the roofline, {told['unexplained']} of them unexplained"
        )
        for what, key, text in (
            ("slowest references", "slowest", lambda u: f"{u['reference_seconds']:.3g} s"),
            ("largest with their inputs", "largest", lambda u: f"{u['reference_bytes'] / 2**30:.1f} GiB"),
        ):
            if told[key]:
                print(f"{what}: " + ", ".join(f"{u['operator']}/{u['shape']} {text(u)}" for u in told[key]))

    def failed(self) -> bool:
        return any(_failures(entry) for entry in self.found.values())

    def _units(self) -> list[dict[str, Any]]:
        return [
            {"operator": operator, "shape": sid, **unit}
            for operator, entry in self.found.items()
            for sid, unit in entry["units"].items()
        ]

    def _show(self, operator: str, entry: dict[str, Any]) -> None:
        failures, units = _failures(entry), entry["units"]
        checks = entry["folder"]["checks"] + sum(unit["checks"] for unit in units.values())
        verdict = "sound" if not failures else f"{len(failures)} checks FAILED"
        print(f"{operator}: {verdict} ({checks} checks, {len(units)} shapes run)")
        for failure in failures:
            place = f"shape {failure['shape']}" if failure["shape"] else "folder"
            print(f"  FAILED {place}: {failure['check']}: {failure['detail']}")
        for each in entry["under_roofline"]:
            if each.explained:  # the others are among the failures
                print(f"  explained: {each.told}: {each.explained}")
        for line in not_run_lines(entry["not_run"]):
            print(f"  {line}")


def _failure(finding: Any) -> dict[str, str]:
    return {"check": finding.check, "detail": finding.detail}


def _failures(entry: dict[str, Any]) -> list[dict[str, str]]:
    found = [{"shape": "", **failure} for failure in entry["folder"]["failures"]]
    for shape_id, unit in _ordered(entry["units"]):
        found += [{"shape": shape_id, **failure} for failure in unit["failures"]]
    return found


def _ordered(by_shape: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(by_shape.items(), key=lambda item: (len(item[0]), item[0]))


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _most(units: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """The units with the most of `key`, which they tell, largest first."""
    known = sorted((unit for unit in units if unit.get(key)), key=lambda unit: -unit[key])[:NAMED]
    return [{"operator": unit["operator"], "shape": unit["shape"], key: unit[key]} for unit in known]
