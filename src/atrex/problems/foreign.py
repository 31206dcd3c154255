"""Read metadata.json and roofline.json of folders made by others in the published five-file form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atrex.problems.dtypes import NAMES
from atrex.problems.metadata import Metadata, Operand, Production, Provenance, PublishedCompare, ShapeMeta
from atrex.roofline.work import Work

# The chip that the published release means where it names none: the one whose bounds are the lower ones.
TRACED_ON = "XPU-A"


def is_foreign(metadata: Any) -> bool:
    """Whether this metadata is not of our form, which always states how outputs are compared."""
    return not (isinstance(metadata, Mapping) and "compare" in metadata)


def foreign_metadata(operator: str, raw: Any) -> Metadata:
    """Take what is understood (`input_dtypes`, `output_dtypes`, `origin`, `shapes`) and leave out the rest.

    Published dtypes are wrong for some operators, so they are kept as names only where they parse; what counts is
    what the reference returns. The comparison is the published tolerance.
    """
    raw = raw if isinstance(raw, Mapping) else {}
    outputs = _operands(raw.get("output_dtypes"))
    origin = _mapping(raw.get("origin"))
    return Metadata(
        operator=operator,
        phase=str(raw.get("phase", "unknown")),
        dtype=raw.get("dtype") if isinstance(raw.get("dtype"), str) else None,
        inputs=_operands(raw.get("input_dtypes")),
        outputs=outputs,
        compare={name: PublishedCompare(kind="published") for name in outputs},
        provenance=Provenance(**{k: origin[k] for k in ("framework", "symbol", "module") if _text(origin.get(k))}),
        shapes={str(sid): _shape(str(sid), entry) for sid, entry in _mapping(raw.get("shapes")).items()},
    )


def foreign_work(entry: Mapping[str, Any]) -> Work | None:
    """Work of one shape from `semantic_W_flops`, `semantic_Q_read_bytes`, `semantic_Q_write_bytes`, or None.

    The published bound charges every FLOP at the matrix peak of its dtype; fp32 and integers have none, so those
    go to the vector engine.
    """
    flops, read, written = (
        entry.get(key) for key in ("semantic_W_flops", "semantic_Q_read_bytes", "semantic_Q_write_bytes")
    )
    if not (isinstance(flops, Mapping) and isinstance(read, int) and isinstance(written, int)):
        return None
    split: dict[str, dict[str, int]] = {}
    for dtype, count in flops.items():
        engine = "matrix" if dtype in ("bf16", "fp16", "fp8_e4m3", "fp8_e4m3fnuz", "tf32") else "vector"
        split.setdefault(engine, {})[dtype] = count
    return Work(split, read, written)


def _operands(raw: Any) -> dict[str, Operand]:
    named = {str(name): dtype for name, dtype in _mapping(raw).items()}
    return {name: Operand(dtype=dtype) for name, dtype in named.items() if dtype in NAMES}


def _shape(shape_id: str, entry: Any) -> ShapeMeta:
    entry = _mapping(entry)
    timed = _mapping(entry.get("production_performance"))
    if "performance_us" in timed:  # without a chip
        timed = {TRACED_ON: timed}
    known = {}
    for chip, production in timed.items():
        us = _mapping(production).get("performance_us")
        if isinstance(us, (int, float)) and us > 0:
            known[str(chip)] = Production(us=us, backend=_mapping(production).get("framework"))
    calls, total = entry.get("call_count"), entry.get("total_duration_us")
    calls = calls if isinstance(calls, int) and calls > 0 else None
    traced = {TRACED_ON: total} if calls and isinstance(total, (int, float)) and total > 0 else {}
    return ShapeMeta(
        origin="published",
        published_id=shape_id,
        description=entry["description"] if _text(entry.get("description")) else None,
        call_count=calls,
        production=known,
        traced_total_us=traced,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> bool:
    return isinstance(value, str)
