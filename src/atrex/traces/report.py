"""Documents and tables of a data set: where device time goes, what a kernel served, what no rule covers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from atrex.errors import UserError
from atrex.traces.dataset import Dataset
from atrex.traces.families.rules import load_rules
from atrex.traces.phases import MIXED, PHASES, PREFILL

if TYPE_CHECKING:
    from atrex.traces.importer import Imported

BY = {
    "family": "family",
    "operator": "operator",
    "kernel": "short_name",
    "op": "op",
    "module": "module",
    "phase": "phase",
}
MIXED_POLICIES = ("keep", "split")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def info_lines(about: dict[str, Any]) -> Iterator[str]:
    """What `atrex trace info` says about one file."""
    records = ", ".join(f"{n} {name}" for name, n in about["records"].items() if n) or "no device records"
    device = ", ".join(about["devices"]) or about["vendor"] or "unknown device"
    yield f"{about['trace']}: {about['format']} ({about['dialect'] or 'plain'}), {device}, {about['role']}"
    yield f"  {records}; {about['launches']} launches, {about['steps']} steps, {sum(about['events'].values())} events"
    time = about["device_ns"]
    if time["inclusive"]:
        yield (
            f"  device time {time['exclusive'] / 1e6:.3f} ms exclusive, {time['inclusive'] / 1e6:.3f} ms inclusive, "
            f"over {about['span_ns'] / 1e6:.3f} ms"
        )
    shares = about["shares"]
    yield (
        f"  linked {_percent(shares['linked'])}, mapped {_percent(shares['mapped'])}, to the suite's operators "
        f"{_percent(shares['operators'])}, with a phase {_percent(shares['phase'])}"
    )
    if about["phases"]:
        yield "  phases: " + ", ".join(f"{name} {_percent(s)}" for name, s in about["phases"].items())
    graphs = about["graphs"]
    if graphs["replays"] or graphs["captured"]:
        joined = f"{graphs['replays']} replays, {graphs['joined']} joined to a capture"
        yield f"  graphs: {graphs['captured']} captured, {joined}"
    for note in about["notes"]:
        yield f"  note: {note}"
    for sentence in about["lacks"]:
        yield f"  lacks: {sentence}"


def import_line(result: Imported) -> str:
    """One line for a file that was imported, or was not."""
    if result.summary is None:
        return f"not imported: {result.error}"
    shares = result.summary["shares"]
    n = sum(result.summary["records"].values())
    return (
        f"{result.trace}: {n} device records, linked {_percent(shares['linked'])}, "
        f"mapped {_percent(shares['mapped'])}, "
        f"with a phase {_percent(shares['phase'])}"
    )


def _chosen(data: Dataset, app: str | None) -> list[str]:
    traces = data.serving()
    if app is not None:
        traces = [t for t in traces if data.summaries[t]["app"] == app]
        if not traces:
            apps = sorted({s["app"] for s in data.summaries.values() if s["app"]})
            raise UserError(
                f"{data.path}: no trace of application {app!r}: expected one of {', '.join(apps) or 'none'}"
            )
    if not traces:
        raise UserError(f"{data.path}: only traces of graph captures in it: no serving time to count")
    return traces


def weighted(frame: pl.LazyFrame, phase: str | None, mixed: str, inclusive: bool) -> pl.LazyFrame:
    """`kernels` with a column `ns`: the device time that counts towards `phase` (None: all).

    With `mixed="split"` a mixed step counts to both phases by its tokens; where it does not say its tokens it stays
    mixed. Raises UserError for an unknown phase or policy.
    """
    if phase is not None and phase not in PHASES:
        raise UserError(f"--phase {phase}: expected one of {', '.join(PHASES)}")
    if mixed not in MIXED_POLICIES:
        raise UserError(f"--mixed {mixed}: expected one of {', '.join(MIXED_POLICIES)}")
    time = pl.col("dur_ns").cast(pl.Float64) if inclusive else pl.col("exclusive_ns")
    if phase is None:
        return frame.with_columns(ns=time)
    if mixed == "keep":
        return frame.filter(pl.col("phase") == phase).with_columns(ns=time)
    split = (pl.col("phase") == MIXED) & pl.col("prefill_share").is_not_null()
    share = pl.col("prefill_share") if phase == PREFILL else 1 - pl.col("prefill_share")
    if phase in (MIXED, "none"):
        return frame.filter((pl.col("phase") == phase) & ~split).with_columns(ns=time)
    return frame.filter((pl.col("phase") == phase) | split).with_columns(
        ns=pl.when(split).then(time * share).otherwise(time)
    )


def top_document(
    data: Dataset, by: str = "family", phase: str | None = None, app: str | None = None, mixed: str = "keep",
    inclusive: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Device time by `by` (a key of BY), heaviest first, with what it is a share of.

    Raises UserError for an unknown key, phase, policy or application.
    """
    if by not in BY:
        raise UserError(f"--by {by}: expected one of {', '.join(BY)}")
    traces = _chosen(data, app)
    families = load_rules().families
    kernels = weighted(data.table("kernels", traces), phase, mixed, inclusive)
    column = BY[by]
    more = [pl.col("family").mode().first().alias("family_")] if by not in ("family", "phase") else []
    rows = (
        kernels.group_by(pl.col(column).fill_null("-").alias("key"))
        .agg(
            pl.col("ns").sum(), pl.len().alias("calls"), pl.col("operator").drop_nulls().first(),
            *[pl.col("ns").filter(pl.col("phase") == p).sum().alias(p) for p in PHASES], *more,
        )
        .sort("ns", "key", descending=[True, False])
        .collect()
    )  # fmt: skip
    total = float(rows["ns"].sum()) if len(rows) else 0.0
    found = []
    for row in rows.iter_rows(named=True):
        item = {
            by: row["key"],
            "ns": row["ns"],
            "share": row["ns"] / total if total else 0.0,
            "calls": row["calls"],
            "phases": {p: row[p] / row["ns"] for p in PHASES if row[p]} if row["ns"] else {},
        }
        if by == "family":
            item |= {
                "operator": row["operator"],
                "mapped": families[row["key"]].mapped,
                "what": families[row["key"]].what,
            }
        elif by != "phase":
            item["family"] = row["family_"]
        found.append(item)
    sums = kernels.group_by("family").agg(pl.col("ns").sum()).collect()
    mapped = sum(ns for family, ns in sums.iter_rows() if families[family].mapped)
    operators = sum(ns for family, ns in sums.iter_rows() if families[family].operator)
    mixed_ns = float(data.table("kernels", traces).filter(pl.col("phase") == MIXED).select(
        (pl.col("dur_ns") if inclusive else pl.col("exclusive_ns")).sum()).collect().item() or 0)  # fmt: skip
    return {
        "by": by,
        "phase": phase,
        "app": app,
        "time": "inclusive" if inclusive else "exclusive",
        "mixed": mixed,
        "mixed_ns": mixed_ns,
        "traces": traces,
        "captures": [t for t in data.summaries if t not in data.serving()],
        "total_ns": total,
        "mapped": mapped / total if total else None,
        "operators": operators / total if total else None,
        "rows": found,
    }


def print_top(document: dict[str, Any], limit: int, console: Console) -> None:
    """A table of `top_document`'s rows, and what they are shares of."""
    by, rows = document["by"], document["rows"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(by, overflow="fold")
    for name in ("share", "ms", "calls", "us/call"):
        table.add_column(name, justify="right")
    table.add_column("phases" if document["phase"] is None and by != "phase" else "")
    table.add_column("" if by == "phase" else "operator" if by == "family" else "family")
    shown = rows if limit <= 0 else rows[:limit]
    for row in shown:
        phases = " ".join(f"{p} {s:.0%}" for p, s in row["phases"].items() if p != "none")
        last = (
            row.get("operator") or ("" if row.get("mapped", True) else "unmapped")
            if by == "family"
            else row.get("family", "")
        )
        table.add_row(
            Text(str(row[by])), f"{row['share']:.2%}", f"{row['ns'] / 1e6:.3f}", str(row["calls"]),
            f"{row['ns'] / 1e3 / row['calls']:.2f}",
            phases if document["phase"] is None and by != "phase" else "", last,
        )  # fmt: skip
    console.print(table)
    if len(shown) < len(rows):
        rest = sum(r["share"] for r in rows[len(shown) :])
        console.print(f"... {len(rows) - len(shown)} more, {rest:.2%}", markup=False)
    of = f"of phase {document['phase']}" if document["phase"] else "in all"
    console.print(
        f"{document['total_ns'] / 1e6:.3f} ms of {document['time']} device time {of}, "
        f"{len(document['traces'])} traces; "
        f"mapped {_percent(document['mapped'])}, to the suite's operators {_percent(document['operators'])}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    if document["mixed_ns"]:
        how = (
            "split by their tokens"
            if document["mixed"] == "split"
            else "kept apart as phase mixed (--mixed split divides them)"
        )
        console.print(
            f"{document['mixed_ns'] / 1e6:.3f} ms are in steps that mix prefill and decode, {how}", markup=False,
            soft_wrap=True,
        )  # fmt: skip
    if document["captures"]:
        console.print(f"not counted: {', '.join(document['captures'])} (graph captures)", markup=False, soft_wrap=True)


_PATHS = (
    pl.col("ops").list.join(" > ").alias("ops"),
    pl.col("modules").list.join(" / ").alias("modules"),
    pl.col("frames").list.tail(3).list.join(" | ").alias("frames"),
)


def _with_contexts(data: Dataset, traces: list[str]) -> pl.LazyFrame:
    contexts = data.table("contexts", traces).select("trace", pl.col("id").alias("context"), *_PATHS)
    return data.table("kernels", traces).join(contexts, on=["trace", "context"], how="left")


def show_document(data: Dataset, pattern: str) -> dict[str, Any]:
    """What kernels whose name matches `pattern` served, by device time.

    Raises UserError if the pattern is no regular expression or matches no kernel.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise UserError(f"--kernel {pattern!r}: not a regular expression: {error}") from None
    traces = list(data.summaries)
    names = data.table("kernels", traces).select("name", "short_name").unique().collect()
    wanted = [n for n, short in names.iter_rows() if re.search(pattern, n) or re.search(pattern, short)]
    if not wanted:
        raise UserError(f"{data.path}: no kernel matches {pattern!r}; `atrex trace top --by kernel` lists them")
    keys = ["short_name", "family", "rule", "evidence", "link", "phase", "ops", "modules", "frames", "dims", "dtypes"]
    rows = (
        _with_contexts(data, traces).filter(pl.col("name").is_in(wanted))
        .group_by(keys)
        .agg(pl.col("exclusive_ns").sum().alias("ns"), pl.len().alias("calls"), pl.col("name").first(),
             pl.concat_str(pl.col("grid_x", "grid_y", "grid_z").cast(pl.String), separator="x").drop_nulls().unique()
             .sort().head(4).alias("grids"), pl.col("group").n_unique().alias("groups"))
        .sort("ns", descending=True)
        .collect()
    )  # fmt: skip
    return {"pattern": pattern, "kernels": len(wanted), "total_ns": float(rows["ns"].sum()), "rows": rows.to_dicts()}


def print_show(document: dict[str, Any], limit: int, console: Console) -> None:
    """Rows of `show_document`, a paragraph each."""
    rows = document["rows"]
    for row in rows if limit <= 0 else rows[:limit]:
        console.print(
            Text(f"{row['short_name']}", style="bold"),
            f" {row['calls']} calls, {row['ns'] / 1e3:.1f} us, {row['phase']}",
            sep="", markup=False, soft_wrap=True,
        )  # fmt: skip
        facts = {
            "family": f"{row['family']} (rule {row['rule'] or 'none'}, by {row['evidence'] or 'nothing'})",
            "linked by": row["link"], "op": row["ops"], "module": row["modules"], "frame": row["frames"],
            "operands": _operands(row["dims"], row["dtypes"]), "grid": ", ".join(row["grids"]),
        }  # fmt: skip
        for name, value in facts.items():
            if value:
                console.print(f"  {name:9} {value}", markup=False, soft_wrap=True)
    if 0 < limit < len(rows):
        console.print(f"... {len(rows) - limit} more", markup=False)


def _operands(dims: str | None, dtypes: str | None) -> str | None:
    return None if dims is None else f"{' '.join(dims.split())} {' '.join((dtypes or '').split())}"


def unmapped_document(data: Dataset) -> dict[str, Any]:
    """Kernels of unmapped families by device time, with what stood around their launches."""
    traces = data.serving() or list(data.summaries)
    unmapped = [name for name, family in load_rules().families.items() if not family.mapped]
    total = float(data.table("kernels", traces).select(pl.col("exclusive_ns").sum()).collect().item() or 0)
    rows = (
        _with_contexts(data, traces).filter(pl.col("family").is_in(unmapped))
        .group_by("short_name", "family", "link", "ops", "modules", "frames")
        .agg(pl.col("exclusive_ns").sum().alias("ns"), pl.len().alias("calls"), pl.col("name").first(),
             pl.col("dims").drop_nulls().first(), pl.col("trace").unique().sort().alias("traces"))
        .sort("ns", descending=True)
        .collect()
    )  # fmt: skip
    found = [row | {"share": row["ns"] / total if total else 0.0} for row in rows.to_dicts()]
    return {"total_ns": total, "unmapped": float(rows["ns"].sum()) / total if total else 0.0, "rows": found}


def print_unmapped(document: dict[str, Any], limit: int, console: Console) -> None:
    """Rows of `unmapped_document`, a paragraph each."""
    rows = document["rows"]
    for row in rows if limit <= 0 else rows[:limit]:
        console.print(
            f"{row['share']:.2%}  {row['ns'] / 1e3:.1f} us, {row['calls']} calls: {row['name']}",
            markup=False,
            soft_wrap=True,
        )
        for name in ("ops", "modules", "frames", "dims"):
            if row[name]:
                console.print(f"  {name:8} {' '.join(row[name].split())}", markup=False, soft_wrap=True)
        if not (row["ops"] or row["modules"] or row["frames"]):
            console.print(f"  nothing is known around its launch (link: {row['link']})", markup=False)
    if 0 < limit < len(rows):
        console.print(f"... {len(rows) - limit} more", markup=False)
    console.print(f"unmapped: {document['unmapped']:.2%} of {document['total_ns'] / 1e6:.3f} ms", markup=False)
