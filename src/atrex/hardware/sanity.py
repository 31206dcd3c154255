"""Checks that a chip file must pass: cited, in base units, dense, complete."""

from __future__ import annotations

import re
from typing import Any

from atrex.errors import UserError

# Base units and the range a real figure falls in, so that TFLOP/s or GB/s entered as FLOP/s or B/s stand out.
UNITS = {
    "peaks": (("FLOP/s",), 1e11, 1e17, "TFLOP/s entered as FLOP/s?"),
    "memory_bandwidth": (("B/s",), 1e10, 1e14, "GB/s or TB/s entered as B/s?"),
    "memory_bytes": (("B",), 1e9, 1e13, "GB entered as B?"),
    "l2_bytes": (("B",), 1e5, 1e9, "MB entered as B?"),
    "llc_bytes": (("B",), 1e6, 1e10, "MB entered as B?"),
    "units": (("SM", "CU"), 1, 1e4, "a count of SMs or CUs"),
    "max_clock": (("Hz",), 1e8, 1e10, "MHz or GHz entered as Hz?"),
    "matrix_rate_limit": (("1",), 0.01, 1, "a fraction"),
}
# Dense FLOP per clock and SM (CU), by architecture. Matrix rates from the vendors' architecture white papers
# (A100, H100, Ada, Blackwell; CDNA 3, CDNA 4), vector ones from the CUDA C++ Programming Guide's throughput table
# and the CDNA white papers.
DENSE_RATES: dict[str, dict[str, dict[str, float]]] = {
    "sm_80": {
        "matrix": {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp64": 128, "int8": 4096},
        "vector": {"fp32": 128, "fp64": 64, "fp16": 512, "bf16": 256},
    },
    "sm_89": {
        "matrix": {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp8_e4m3": 2048, "int8": 2048},
        "vector": {"fp32": 256, "fp64": 4, "fp16": 256, "bf16": 256},
    },
    "sm_90": {
        "matrix": {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp8_e4m3": 8192, "int8": 8192, "fp64": 256},
        "vector": {"fp32": 256, "fp64": 128, "fp16": 512, "bf16": 512},
    },
    "sm_100": {
        "matrix": {"bf16": 8192, "fp16": 8192, "tf32": 4096, "fp8_e4m3": 16384, "int8": 16384, "fp64": 128},
        "vector": {"fp32": 256, "fp64": 128, "fp16": 512, "bf16": 512},
    },
    "gfx942": {
        "matrix": {
            "bf16": 2048, "fp16": 2048, "tf32": 1024, "fp8_e4m3": 4096, "int8": 4096, "fp32": 256, "fp64": 256,
        },
        "vector": {"fp32": 256, "fp64": 128, "fp16": 256},
    },
    "gfx950": {
        "matrix": {"bf16": 4096, "fp16": 4096, "fp8_e4m3": 8192, "int8": 8192, "fp32": 256, "fp64": 128},
        "vector": {"fp32": 256, "fp64": 128, "fp16": 256},
    },
}
# Datasheets round, and quote clocks a few percent apart; sparsity doubles. Anything between is a mistake.
TOLERANCE = 1.25
# Dense matrix rates relative to bf16 that hold on every architecture above; catches one sparse entry among dense ones.
RATIO_TO_BF16 = {"fp16": 1.0, "fp8_e4m3": 2.0, "int8": 2.0, "tf32": 0.5}
RATIO_TOLERANCE = 1.1
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
_FP8 = ("e4m3fn", "e4m3fnuz", None)


def check_chip(data: Any, where: str) -> None:
    """Raise UserError for the first thing wrong with a chip file's content; `where` names the file."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a JSON object")
    for key in ("id", "name", "vendor", "arch"):
        if not isinstance(data.get(key), str) or not data[key]:
            raise UserError(f"{where}: {key}: expected a non-empty string")
    if data.get("fp8", "") not in _FP8:
        raise UserError(f"{where}: fp8: expected e4m3fn, e4m3fnuz or null, got {data.get('fp8')!r}")
    if "memory_bandwidth" not in data:
        raise UserError(f"{where}: memory_bandwidth: missing; expected an object with value, unit B/s and source")
    _check_peaks_shape(data, where)
    for key in UNITS:
        if key != "peaks" and key in data:
            _check_value(data[key], key, key, where)
    for engine, by_dtype in data["peaks"].items():
        for dtype, entry in by_dtype.items():
            _check_value(entry, f"peaks.{engine}.{dtype}", "peaks", where)
    _check_dense(data, where)


def _check_peaks_shape(data: dict[str, Any], where: str) -> None:
    peaks = data.get("peaks")
    if not isinstance(peaks, dict) or set(peaks) != {"matrix", "vector"}:
        raise UserError(f"{where}: peaks: expected the engines matrix and vector")
    for engine, by_dtype in peaks.items():
        if not isinstance(by_dtype, dict) or not by_dtype:
            raise UserError(f"{where}: peaks.{engine}: expected at least one dtype")
    if "fp32" not in peaks["vector"]:
        raise UserError(f"{where}: peaks.vector.fp32: missing; every chip needs it")


def _check_value(entry: Any, name: str, kind: str, where: str) -> None:
    units, low, high, hint = UNITS[kind]
    if not isinstance(entry, dict) or isinstance(entry.get("value"), bool):
        raise UserError(f"{where}: {name}: expected an object with value, unit, source, url or where, and date")
    value = entry.get("value")
    if not isinstance(value, int | float):
        raise UserError(f"{where}: {name}.value: expected a number, got {value!r}")
    if entry.get("unit") not in units:
        raise UserError(f"{where}: {name}.unit: expected {' or '.join(units)}, got {entry.get('unit')!r}")
    if not low <= value <= high:
        raise UserError(f"{where}: {name}.value: {value:g} {entry['unit']} is outside {low:g} to {high:g} ({hint})")
    for key in ("source", "date"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise UserError(f"{where}: {name}.{key}: missing; every value needs its source")
    if not (entry.get("url") or entry.get("where")):
        raise UserError(f"{where}: {name}.url: missing; every value says where its source is")
    if not _DATE.match(entry["date"]):
        raise UserError(f"{where}: {name}.date: expected YYYY-MM-DD, got {entry['date']!r}")


def _check_dense(data: dict[str, Any], where: str) -> None:
    matrix = data["peaks"]["matrix"]
    if "bf16" in matrix:
        for dtype, ratio in RATIO_TO_BF16.items():
            if dtype in matrix:
                got = matrix[dtype]["value"] / matrix["bf16"]["value"]
                if not ratio / RATIO_TOLERANCE <= got <= ratio * RATIO_TOLERANCE:
                    raise UserError(
                        f"{where}: peaks.matrix.{dtype}: {got:.2f} times bf16, expected {ratio:g} "
                        "(one of the two entered with sparsity?)"
                    )
    rates = DENSE_RATES.get(data["arch"])
    if rates is None or "units" not in data or "max_clock" not in data:
        return
    clock_units = data["units"]["value"] * data["max_clock"]["value"]
    for engine, by_dtype in data["peaks"].items():
        for dtype, entry in by_dtype.items():
            rate = rates[engine].get(dtype)
            if rate is None:
                continue
            limit = data.get("matrix_rate_limit", {}).get("value", 1) if engine == "matrix" and dtype != "fp64" else 1
            expected = clock_units * rate * limit
            if entry["value"] > TOLERANCE * expected:
                raise UserError(
                    f"{where}: peaks.{engine}.{dtype}: {entry['value']:.4g} FLOP/s is {entry['value'] / expected:.2f} "
                    f"times units x clock x {rate * limit:g} dense FLOP of {data['arch']} (entered with sparsity?)"
                )
