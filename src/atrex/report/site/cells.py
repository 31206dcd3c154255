"""Cells and links that several pages have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atrex.report import figures
from atrex.report.site.entries import Entry
from atrex.report.site.table import Cell, Heading, number
from atrex.scoring.operators import OperatorScore
from atrex.scoring.records import UnitRecord
from atrex.scoring.units import unit_score

REASON = 300  # characters of a reason in a table; the record has all of it


def set_cell(entry: Entry) -> Cell:
    return Cell(entry.name, href=entry.page)


def score(value: float | None, href: str | None = None, **fields: Any) -> Cell:
    return number(value, figures.score(value), href, **fields)


def percent(value: float | None, href: str | None = None, **fields: Any) -> Cell:
    return number(value, figures.percent(value), href, **fields)


def us(value: float | None, href: str | None = None, **fields: Any) -> Cell:
    return number(value, figures.us(value), href, **fields)


def ratio(value: float | None, href: str | None = None, **fields: Any) -> Cell:
    return number(value, figures.ratio(value), href, **fields)


def count(value: int | None, href: str | None = None, **fields: Any) -> Cell:
    return number(value, figures.DASH if value is None else f"{value:,}", href, **fields)


def of(part: int, whole: int, href: str | None = None) -> Cell:
    return number(part / whole, f"{part}/{whole}", href) if whole else number(None, figures.DASH)


def operator_headings(names: Sequence[str]) -> list[Heading]:
    """Over `operator_cells`; `names` are those of the baselines."""
    return [
        Heading("compiled"), Heading("correct"), Heading("S_i"),
        Heading("strict", hint="a failed or absent shape counts 0"), Heading("attainable"), Heading("DSL share"),
        Heading("generalizes", hint="held-out shapes correct"), *(Heading(f"vs {n}") for n in names),
    ]  # fmt: skip


def operator_cells(o: OperatorScore, href: str, names: Sequence[str]) -> list[Cell]:
    """What one set reached on one operator; each leads to `href`."""
    return [
        of(o.compiled, o.shapes, href), of(o.correct, o.shapes, href), score(o.s_defined, href),
        score(o.strict, href), score(o.attainable, href), percent(o.adoption, href),
        of(o.generalizes, o.held_out, href), *(ratio(o.ratios.get(n), href) for n in names),
    ]  # fmt: skip


def operator_data(o: OperatorScore, names: Sequence[str]) -> dict[str, Any]:
    """The same as data."""
    return {
        "shapes": o.shapes, "run": o.run, "compiled": o.compiled, "correct": o.correct, "s": o.s_defined,
        "s_strict": o.strict, "s_attainable": o.attainable, "dsl_share": o.adoption, "generalizes": o.generalizes,
        "held_out": o.held_out, **{f"vs_{n}": o.ratios.get(n) for n in names},
    }  # fmt: skip


def shape_cell(record: UnitRecord, href: str | None = None) -> Cell:
    digits = record.shape.lstrip("h")
    order = (10_000 if record.held_out else 0) + int(digits) if digits.isdecimal() and len(digits) < 9 else None
    return Cell(figures.shape(record), order, href)


def verdict_cell(record: UnitRecord, href: str | None = None) -> Cell:
    return Cell(figures.verdict(record.verdict), None, href, kind=str(record.verdict.status))


def reason_cell(record: UnitRecord) -> Cell:
    text = record.verdict.reason or ""
    return Cell(text if len(text) <= REASON else f"{text[:REASON]}…", kind="reason" if text else None)


def time_cell(record: UnitRecord, href: str | None = None) -> Cell:
    timed = record.performance
    marks = figures.marks(record)
    hint = "; ".join(figures.MARKS[m] for m in marks) or None
    text = f"{figures.us(timed.median_us)}{f' {marks}' if marks else ''}" if timed else figures.DASH
    return number(timed.median_us if timed else None, text, href, hint=hint)


def s_of(record: UnitRecord, column: str = "S") -> float | None:
    """S_j, None where the unit has none."""
    return unit_score(record, column)


def interval(value: float | None, low: float | None, high: float | None, format: Callable[[float | None], str]) -> str:
    """`0.123 [0.110, 0.135]`, without brackets where there is no interval."""
    return format(value) if value is None or low is None else f"{format(value)} [{format(low)}, {format(high)}]"


def compact(values: Mapping[str, Any]) -> str:
    """Keyword arguments in one line."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


def candidate_source(entry: Entry, records: Sequence[UnitRecord]) -> str | None:
    """The very source that was judged, found by its hash; None where it is not here or has changed since."""
    record = records[0]
    named = Path(record.candidate)
    places = [named, entry.set.run.path / named, entry.set.run.path / "artifacts" / named.name]
    if entry.set.generation is not None:
        places.append(entry.set.generation.folder / f"sample-{entry.set.sample}" / named.name)
    for place in places:
        try:
            text = place.read_bytes().decode("utf-8")
        except (OSError, ValueError):
            continue
        # A judge hashes the text that it has read, in which every line ends in a line feed.
        read = text.replace("\r\n", "\n").replace("\r", "\n")
        if hashlib.sha256(read.encode()).hexdigest() == record.candidate_sha256:
            return text
    return None
