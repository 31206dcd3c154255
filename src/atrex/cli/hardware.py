"""`atrex hardware`: chips and their ceilings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atrex.hardware.chip import Chip

app = typer.Typer(no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda:N; default: cuda:0 where there is one.")
]


@app.command("list")
def list_chips(as_json: JsonOption = False) -> None:
    """Chips with their main ceilings (dense), as cited; this CPU if it has been calibrated."""
    chips = _known_chips()
    if as_json:
        print(json.dumps([_document(chip) for chip in chips], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("chip")
    table.add_column("arch")
    for column in ("bf16 TFLOP/s", "fp8 TFLOP/s", "fp32 vector", "memory TB/s", "L2 MiB", "SM/CU"):
        table.add_column(column, justify="right")
    for chip in chips:
        matrix, vector = chip.peaks["matrix"], chip.peaks["vector"]
        table.add_row(
            chip.id,
            chip.arch,
            _tera(matrix.get("bf16")),
            _tera(matrix.get("fp8_e4m3")),
            _tera(vector.get("fp32")),
            f"{chip.memory_bandwidth / 1e12:.3g}",
            "-" if not chip.l2_bytes else f"{chip.l2_bytes / 2**20:g}",
            "-" if not chip.units else str(chip.units),
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if all(chip.id != "cpu" for chip in chips):
        print("cpu: not calibrated yet, run `atrex hardware calibrate --device cpu`")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Chip id, or cpu.")],
    as_json: JsonOption = False,
) -> None:
    """One chip: every figure with its source."""
    from atrex.hardware.chip import load_chip

    chip = load_chip(name)
    if as_json:
        print(json.dumps(_document(chip), indent=2))
        return
    print(f"{chip.id}: {chip.name}, {chip.arch}, fp8 {chip.fp8 or 'none'}")
    if chip.note:
        print(chip.note)
    if chip.uncertainty:
        print(f"uncertainty {chip.uncertainty:.1%}")
    for field, value in _figures(chip).items():
        source = chip.sources.get(field, {})
        print(f"  {field:24} {value:20} {source.get('source', '')}{_note(source)}")
    if chip.memory:
        for (read, written), curve in chip.memory.curves.items():
            points = zip(curve.sizes, curve.bandwidths, strict=True)
            print(f"  cold memory, read {read} : write {written}  GB/s at KiB moved: ", end="")
            print("  ".join(f"{size / 1024:.0f}: {rate / 1e9:.1f}" for size, rate in points))


@app.command()
def detect(as_json: JsonOption = False) -> None:
    """The devices here and the chips they are."""
    from atrex.hardware.detect import devices

    found = devices()
    if as_json:
        print(json.dumps([info.as_dict() for info in found], indent=2))
        return
    for info in found:
        print(f"{info.device}: {info.name} ({info.arch}), chip {info.chip or 'not listed: no ceilings, no S'}")


@app.command()
def calibrate(
    device: DeviceOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the record to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a device's ceilings into a record (10 to 20 s).

    The record is kept in the cache, where `atrex eval` finds it: on a GPU for a second column beside the cited dense
    peaks, on the CPU as the ceilings themselves.
    """
    from atrex.hardware import calibrate as calibration
    from atrex.hardware.detect import check_device, default_device, parse_device
    from atrex.hardware.record import write_record

    device = device or default_device()
    check_device(device)
    kind, index = parse_device(device)
    if out is not None and out.is_dir():
        from atrex.errors import UserError

        raise UserError(f"--out {out}: is a directory, expected a file")
    print(f"calibrating {device}", file=sys.stderr)
    if kind == "cpu":
        record, path = calibration.recalibrate_cpu(), calibration.cpu_record_path()
    else:
        from atrex.profiling import nvml

        before = nvml.clocks(index)
        record = calibration.calibrate(device, lambda text: print(f"  {text}", file=sys.stderr))
        record["clocks"] = {"before": before, "after": nvml.clocks(index)}
        path = calibration.gpu_record_path(record["chip"])
        write_record(record, path)
    if out is not None:
        write_record(record, out)
    if as_json:
        print(json.dumps(record, indent=2))
        return
    print(f"{record['name']}: {record['seconds']} s, uncertainty {record['uncertainty']:.1%}")
    for name, entry in record["measurements"].items():
        best, median = (_amount(entry[key], entry["unit"]) for key in ("best", "median"))
        print(f"  {name:24} {best:20} median {median}")
    print(f"record: {out or path}")


def _known_chips() -> list[Chip]:
    from atrex.hardware.calibrate import cached_cpu_chip
    from atrex.hardware.chip import chip_ids, load_chip

    cpu = cached_cpu_chip()
    return [load_chip(chip_id) for chip_id in chip_ids()] + ([cpu] if cpu else [])


def _document(chip: Chip) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": chip.id,
        "name": chip.name,
        "vendor": chip.vendor,
        "arch": chip.arch,
        "fp8": chip.fp8,
        "peaks": {engine: dict(by_dtype) for engine, by_dtype in chip.peaks.items()},
        "memory_bandwidth": chip.memory_bandwidth,
        "memory_bytes": chip.memory_bytes,
        "l2_bytes": chip.l2_bytes,
        "llc_bytes": chip.llc_bytes,
        "units": chip.units,
        "max_clock_hz": chip.max_clock_hz,
        "uncertainty": chip.uncertainty,
        "note": chip.note,
        "sources": dict(chip.sources),
    }
    if chip.memory:
        document["cold_memory"] = [
            {"read": read, "written": written, "bytes": curve.sizes, "bandwidth": curve.bandwidths}
            for (read, written), curve in chip.memory.curves.items()
        ]
    return document


def _figures(chip: Chip) -> dict[str, str]:
    figures = {
        f"peaks.{engine}.{dtype}": _amount(value, "FLOP/s")
        for engine, by_dtype in chip.peaks.items()
        for dtype, value in by_dtype.items()
    }
    figures["memory_bandwidth"] = _amount(chip.memory_bandwidth, "B/s")
    for field in ("memory_bytes", "l2_bytes", "llc_bytes"):
        if getattr(chip, field):
            size = getattr(chip, field)
            figures[field] = f"{size / 1e9:.4g} GB" if size >= 1e9 else f"{size / 2**20:g} MiB"
    if chip.units:
        figures["units"] = str(chip.units)
    if chip.max_clock_hz:
        figures["max_clock"] = f"{chip.max_clock_hz / 1e6:g} MHz"
    return figures


def _amount(value: float, unit: str) -> str:
    if unit == "us":
        return f"{value:.2f} us"
    return f"{value / 1e12:.5g} T{unit}" if value >= 1e12 else f"{value / 1e9:.4g} G{unit}"


def _tera(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e12:.4g}"


def _note(source: dict[str, Any]) -> str:
    return f" ({source['note']})" if source.get("note") else ""
