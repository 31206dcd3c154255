"""Hold every reference against other implementations: python -m benchmarks.references --device cpu

--problem OP ... takes some operators only. --merge DIR adds records made elsewhere (on a device) to those of --out,
where what did not run there replaces nothing that ran before. --page writes docs/references.md from the records. The
exit status is 1 when an implementation that ran differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.references import page
from benchmarks.references.outcome import AGREES, DIFFERS, FAILED, NOT_RUN, check_operator
from benchmarks.references.record import RESULTS, about, add, write
from benchmarks.references.registry import all_checks
from benchmarks.references.shim import first_configuration

from atrex.errors import UserError
from atrex.evaluate.setup import resolve_device
from atrex.problems.load import load_suite


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, write, print one line a check."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.references", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--problem", nargs="*", help="operators; all by default")
    parser.add_argument("--library", nargs="*", help="libraries; all by default. What the record has of others stays")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--merge", type=Path, help="add the records of this folder to --out and do nothing else")
    parser.add_argument("--page", action="store_true", help="write docs/references.md from --out and do nothing else")
    options = parser.parse_args(arguments)
    if options.merge:
        return _merge(options.merge, options.out)
    if options.page:
        page.PATH.write_text(page.text(options.out), encoding="utf-8")
        return 0
    device = resolve_device(options.device)
    first_configuration()
    suite = load_suite()
    problems = [suite.problem(name) for name in options.problem or suite.problems]
    command = "python -m benchmarks.references --device " + options.device
    where = about(device, command)
    wrong = 0
    for problem in problems:
        started = time.perf_counter()
        mine = [c for c in all_checks() if c.operator == problem.operator]
        mine = [c for c in mine if not options.library or c.library in options.library]
        results = check_operator(problem, mine, device)
        write(options.out, problem, device, where, results)
        print(f"{problem.operator} ({time.perf_counter() - started:.1f} s)", flush=True)
        for result in results:
            print(
                f"  {result['verdict']:14} {result['implementation']} ({result['library']}) {_why(result)}", flush=True
            )
            wrong += result["verdict"] == DIFFERS
    return 1 if wrong else 0


def _why(result: dict) -> str:
    if result["verdict"] == NOT_RUN and "reason" in result:
        return result["reason"]
    found = result.get("cases", [])
    count = sum(case["verdict"] == AGREES for case in found)
    lines = [f"{count} of {len(found)} cases"]
    for case in found:
        if case["verdict"] == DIFFERS:
            known = " (known)" if "known" in case else ""
            lines.append(f"{case['case']}{known}: {case.get('output')} {case.get('detail')} worst {case.get('worst')}")
        elif case["verdict"] in (FAILED, NOT_RUN):
            lines.append(f"{case['case']}: {case.get('reason', '')[:160]}")
    return "; ".join(lines)


def _merge(source: Path, target: Path) -> int:
    """Add what was found elsewhere to the records of `target`."""
    files = sorted(source.glob("*.json"))
    if not files:
        raise UserError(f"{source}: no record in it: expected files like rms_norm.json")
    for file in files:
        record = json.loads(file.read_text(encoding="utf-8"))
        add(target, record["operator"], record["devices"])
    print(f"{len(files)} records merged into {target}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
