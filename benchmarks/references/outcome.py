"""Run checks and say how far the reference and the other implementation lie apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from benchmarks.references.cases import cases, fresh
from benchmarks.references.registry import INSTALL, Case, Check, NotInstalled, Unsupported, version

from atrex.problems.compare import compare, declared, oracle, own_oracle
from atrex.problems.dtypes import short_name
from atrex.problems.model import Problem, named_outputs

AGREES, DIFFERS, FAILED, NOT_RUN = "agrees", "differs", "failed to run", "not run"
# A difference of bf16's roundings: of what was expected, in RMS over an output and in any one element.
COARSE_RMS, COARSE_ELEMENT = 2.0**-8, 2.0**-3
_INDICES = ("sorted_slots", "prefix", "topk_ids")  # outputs of which any of several is right


def check_operator(problem: Problem, checks: Iterable[Check], device: torch.device) -> list[dict[str, Any]]:
    """One result for each check of the operator: its verdict, and each case's. A missing library is no check."""
    results, live = [], []
    for check in checks:
        result = {
            "implementation": check.name,
            "library": check.library,
            "version": version(check.library),
            "kind": check.kind,
            "install": INSTALL[check.library],
        }
        if check.note:
            result["note"] = check.note
        if check.adapter > 1:
            result["adapter"] = check.adapter
        results.append(result)
        if device.type not in check.devices:
            result |= {"verdict": NOT_RUN, "reason": f"runs on {' and '.join(check.devices)} only"}
        elif result["version"] is None:
            result |= {"verdict": NOT_RUN, "reason": f"{check.library} is not installed"}
        else:
            result["cases"] = []
            live.append((check, result))
    if live:
        for case in cases(problem, device):
            expected = _expected(case)
            for check, result in live:
                if "verdict" not in result:
                    _run(check, result, case, *expected)
    for check, result in live:
        if not result["cases"]:
            del result["cases"]
        elif "verdict" not in result:
            judge(check, result)
        result.setdefault("verdict", NOT_RUN)
    return results


def judge(check: Check, result: dict[str, Any]) -> None:
    """Name the differences that `check` declares as known, and set the verdict from all other cases of the result."""
    for case in result["cases"]:
        case.pop("known", None)
        why = _known(check, case)
        if why:
            case["known"] = why
    result["verdict"] = _verdict(result["cases"])


def check_case(check: Check, case: Case) -> dict[str, Any]:
    """What one check finds on one case: {"case", "verdict", ...}. Raises what the implementation raises."""
    truth, says = _expected(case)
    return _compared(case, _truth(check, case, truth), says, check.run(fresh(case)))


def _expected(case: Case) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    says = declared(case.problem, case.shape, case.inputs)
    return (says if own_oracle(case.problem) else oracle(case.problem, case.shape, case.inputs)), says


def _truth(check: Check, case: Case, truth: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return oracle(case.problem, case.shape, check.exact(case)) if check.exact else truth


def _run(check: Check, result: dict[str, Any], case: Case, truth: Mapping, says: Mapping) -> None:
    try:
        with torch.no_grad():
            found = _compared(case, _truth(check, case, truth), says, check.run(fresh(case)))
    except Unsupported as missing:
        found = {"case": case.name, "verdict": NOT_RUN, "reason": str(missing)}
    except (NotInstalled, ImportError) as missing:
        result |= {"verdict": NOT_RUN, "reason": _line(missing)}
        return
    except Exception as error:  # noqa: BLE001 - what a library raises is its own; it is recorded and counts as no check
        found = {"case": case.name, "verdict": FAILED, "reason": _line(error)}
    result["cases"].append(found)


def _known(check: Check, found: Mapping[str, Any]) -> str | None:
    if found["verdict"] != DIFFERS:
        return None
    corner = found["case"].partition("/")[2]
    if corner in check.differs:
        return check.differs[corner]
    return check.coarser if _coarse(found) else None


def _coarse(found: Mapping[str, Any]) -> bool:
    """Whether every output lies within bf16's roundings of what was expected; an error without a size does not."""
    sizes = list(found["outputs"].values())
    return (
        found["worst"] is not None
        and bool(sizes)
        and all(s["rms_expected"] is not None and s["rms"] is not None and s["max"] is not None for s in sizes)
        and all(s["rms"] <= COARSE_RMS * s["rms_expected"] for s in sizes)
        and all(s["max"] <= COARSE_ELEMENT * s["rms_expected"] for s in sizes)
    )


def _compared(case: Case, truth: Mapping, says: Mapping, value: Any) -> dict[str, Any]:
    got = named_outputs(value, list(case.problem.metadata.outputs))
    verdict = compare(case.problem, case.shape, case.inputs, truth, says, got)
    found: dict[str, Any] = {
        "case": case.name,
        "verdict": AGREES if verdict.passed else DIFFERS,
        "worst": _number(verdict.worst),
        "outputs": _deviations(case.problem, truth, says, got),
    }
    if not verdict.passed:
        found |= {"output": verdict.output, "detail": verdict.detail, "index": verdict.index}
        found |= {"expected": _number(verdict.expected), "got": _number(verdict.got)}
    return found


def _deviations(problem: Problem, truth: Mapping, says: Mapping, got: Mapping) -> dict[str, dict[str, float | None]]:
    """By output: the largest and the RMS difference, and the RMS of what was expected, over finite elements."""
    found = {}
    for name, expected in truth.items():
        rule = problem.metadata.compare.get(name)
        if name not in got or got[name].shape != expected.shape or (rule and rule.kind in _INDICES):
            continue
        # An fp8 output is compared in the precision that it has; its oracle is not rounded.
        want = (says[name] if short_name(says[name].dtype).startswith("fp8") else expected).to(torch.float64)
        have = got[name].to(torch.float64)
        finite = want.isfinite() & have.isfinite()
        gap, size = (have - want)[finite], want[finite]
        if not len(gap):
            continue
        found[name] = {
            "max": _number(gap.abs().max()),
            "rms": _number(gap.square().mean().sqrt()),
            "rms_expected": _number(size.square().mean().sqrt()),
        }
    return found


def _verdict(found: list[dict[str, Any]]) -> str:
    counted = [case["verdict"] for case in found if case["verdict"] != NOT_RUN and "known" not in case]
    for worst in (DIFFERS, FAILED):
        if worst in counted:
            return worst
    return AGREES if counted else NOT_RUN


def _number(value: Any) -> float | None:
    if value is None:
        return None
    value = float(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
