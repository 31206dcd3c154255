"""Chips and architectures as data: every figure with its unit and the document that says so."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from atrex.hardware.calibrate import cpu_chip, cpu_record_path
from atrex.hardware.chip import CPU, Chip
from atrex.hardware.record import read_record
from atrex.wiki.hardware import Sheet, Value, sheets

COMPARED = (
    "peaks.matrix.bf16", "peaks.matrix.fp8_e4m3", "peaks.vector.fp32", "memory_bandwidth", "memory_bytes", "l2_bytes",
)  # fmt: skip
_FIGURES = (("l2_bytes", "B"), ("llc_bytes", "B"), ("units", "threads"), ("max_clock_hz", "Hz"))


def chip_documents() -> list[dict[str, Any]]:
    """Every sheet of the wiki, chips first, and this machine's CPU where it has been calibrated."""
    found = [sheet_document(sheet) for sheet in sheets().values()]
    if cpu_record_path().is_file():
        found.insert(0, _cpu(read_record(cpu_record_path())))
    return found


def sheet_document(sheet: Sheet) -> dict[str, Any]:
    """One sheet: its figures with their sources under `values`, and the ceilings of a roofline.

    {"id", "name", "title", "vendor", "arch", "card", "is_chip", "note", "values": [{name, value, unit, shown, source,
    url, where, date, note}], "peaks": {engine.dtype: FLOP/s}, "bandwidth": B/s}; `url` is null where the source is no
    web address.
    """
    values = [{**asdict(v), "shown": v.shown, "url": _address(v.url), "where": v.url} for v in sheet.values.values()]
    return {
        "id": sheet.card, "name": sheet.name, "title": sheet.title, "vendor": sheet.vendor, "arch": sheet.arch,
        "card": sheet.card, "is_chip": sheet.card.startswith("chip-"), "note": "", "values": values,
        **_ceilings(sheet.values),
    }  # fmt: skip


def _ceilings(values: Any) -> dict[str, Any]:
    peaks = {name.removeprefix("peaks."): v.value for name, v in values.items() if name.startswith("peaks.")}
    bandwidth = values.get("memory_bandwidth")
    return {"peaks": peaks, "bandwidth": bandwidth.value if bandwidth else None}


def _address(text: str) -> str | None:
    return text if text.startswith(("https://", "http://")) else None


def _cpu(record: dict[str, Any]) -> dict[str, Any]:
    """This machine's CPU: measured, so that its record stands where others have a document."""
    chip = cpu_chip(record)
    measured, told = f"measured by `{record['command']}`", "as the operating system tells it"
    values = {
        name: Value(name, value, unit, source, cpu_record_path().name, record["date"][:10])
        for source, figures in ((measured, _measured(chip)), (told, _told(chip)))
        for name, value, unit in figures
    }
    sheet = Sheet(f"chip-{CPU}", CPU, chip.name, "cpu", chip.arch, values)
    spread = f"Uncertain by {chip.uncertainty:.1%}."
    return sheet_document(sheet) | {"card": None, "note": f"{chip.note} {spread}"}


def _measured(chip: Chip) -> list[tuple[str, float, str]]:
    peaks = [
        (f"peaks.{engine}.{dtype}", value, "FLOP/s")
        for engine, by_dtype in chip.peaks.items() for dtype, value in by_dtype.items()
    ]  # fmt: skip
    return [*peaks, ("memory_bandwidth", chip.memory_bandwidth, "B/s")]


def _told(chip: Chip) -> list[tuple[str, float, str]]:
    figures = [(name, getattr(chip, name), unit) for name, unit in _FIGURES]
    return [figure for figure in figures if figure[1] is not None]
