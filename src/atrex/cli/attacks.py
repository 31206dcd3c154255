"""`atrex attacks`: does this deployment stop the known ways to fool it, and let their honest twins pass?"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atrex import files
from atrex.errors import UserError

if TYPE_CHECKING:
    from atrex.attacks.harness.table import Row


def attacks(
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N; default: cuda:0 where there is one.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="An attack by name; may be given again. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the record, as JSON; with --only, into one of this device that is there.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the attacks and run nothing.")] = False,
    sources: Annotated[Path | None, typer.Option(help="Write the candidates to this folder and run nothing.")] = None,
) -> None:
    """Judge every known cheat and its honest twin on this machine; print what came of them.

    Exit status: 0 when all came out right, 1 when one did not, 2 for bad input, 130 when interrupted (what was judged
    is printed and written all the same).
    """
    from atrex.attacks.harness.declare import select
    from atrex.hardware.detect import default_device

    chosen = select(only)
    if listed:
        return _list(list(chosen))
    device = device or default_device()
    if sources is not None:
        from atrex.attacks.harness.sources import write_sources

        count = write_sources(chosen, device.split(":")[0], sources)
        print(f"{count} candidates in {sources}")
        return
    if out is not None and not out.resolve().parent.is_dir():
        raise UserError(f"--out {out}: no such folder; expected a file in a folder that is there")
    from atrex.attacks.harness.table import run_table

    earlier = _earlier(out, device) if out is not None and only and out.exists() else None
    started = time.monotonic()
    rows: list[Row] = []
    interrupted = False
    try:
        for row in run_table(device, chosen):
            rows.append(row)
            _progress(row)
    except KeyboardInterrupt:
        interrupted = True
    record = _record(device, rows, time.monotonic() - started, interrupted)
    if out is not None:
        files.write(out, json.dumps(_joined(earlier, record) if earlier else record, indent=1))
    if as_json:
        print(json.dumps(record, indent=1))
    else:
        _print(rows, record)
    if interrupted:
        print(f"interrupted: {len(rows)} cheats were judged", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(1 if record["wrong"] else 0)


def _list(names: Sequence[str]) -> None:
    from atrex.attacks.harness.declare import attacks, purpose

    for name in names:
        ways = ", ".join(map(str, attacks()[name].ways))
        print(f"{name} ({ways}): {purpose(name)}")


def _progress(row: Row) -> None:
    print(
        f"right  {row.name}" if row.fault is None else f"WRONG  {row.name}: {row.fault}"[:300],
        file=sys.stderr,
        flush=True,
    )


def _record(device: str, rows: Sequence[Row], seconds: float, interrupted: bool) -> dict[str, Any]:
    import atrex
    from atrex.evaluate.run import device_name, versions
    from atrex.evaluate.setup import resolve_device

    resolved = resolve_device(device)
    return {
        "atrex": atrex.__version__,
        "argv": ["atrex", *sys.argv[1:]],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": str(resolved),
        "device_name": device_name(resolved),
        "versions": versions(),
        "confinement": next((r.confinement for row in rows for r in (row.twin, row.record) if r.confinement), None),
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        **_tally([row.as_json() for row in rows]),
    }


def _tally(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a record says of all its rows, and the rows."""
    from atrex.attacks.harness.table import row_name

    return {
        "attacks": len({row["attack"] for row in rows}),
        "cheats": len(rows),
        "wrong": [row_name(row["attack"], row["cheat"]) for row in rows if not row["right"]],
        "rows": rows,
    }


def _earlier(out: Path, device: str) -> dict[str, Any]:
    """The record that is there. Raises UserError unless it is one of this device."""
    from atrex.evaluate.run import device_name
    from atrex.evaluate.setup import resolve_device

    here = device_name(resolve_device(device))
    try:
        found = json.loads(out.read_text())
        if found["device_name"] != here:
            raise UserError(f"--out {out}: a record of {found['device_name']}, expected one of {here} or no file")
        _joined(found, found)  # before anything is judged, which a record that cannot be joined would lose
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--out {out}: expected a record of `atrex attacks` or no file: {error!r}") from None
    return found


def _joined(earlier: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The earlier record with the rows of these attacks replaced; each row says when it was judged."""
    judged = {row["attack"] for row in record["rows"]}
    kept = [{"date": earlier["date"]} | row for row in earlier["rows"] if row["attack"] not in judged]
    rows = kept + [{"date": record["date"]} | row for row in record["rows"]]
    rows.sort(key=lambda row: row["attack"])
    return record | {"seconds": round(earlier["seconds"] + record["seconds"], 1), **_tally(rows)}


def _print(rows: Sequence[Row], record: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from atrex.report.figures import verdict
    from atrex.report.tables import make_console

    console = make_console()
    table = Table(title=Text(f"Attacks on {record['device']}"), title_justify="left", header_style="bold")
    for column in ("attack", "ways", "cheat", "reason", "twin", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        right = row.fault is None
        table.add_row(
            Text(row.name),
            ", ".join(map(str, row.ways)),
            Text(verdict(row.record.verdict)),
            Text((row.record.verdict.reason or "")[:90]),
            Text(verdict(row.twin.verdict)),
            Text("right" if right else "WRONG", style="green" if right else "bold red"),
        )
    console.print(table)
    for row in rows:
        if row.fault:
            shown = row.twin if row.fault.startswith("twin") else row.record
            got = f"{verdict(shown.verdict)}: {shown.verdict.reason or 'no reason'}"
            console.print(Text(f"WRONG {row.name}: {row.fault}; got {got}", style="red"))
    total = f"{record['cheats']} cheats of {record['attacks']} attacks, {len(record['wrong'])} wrong"
    console.print(Text(f"{total}, {record['seconds']} s"))
