"""Units and run directories made up for tests: deterministic, and any field can be overridden."""

from __future__ import annotations

import json
import random
from pathlib import Path

from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.records import (
    Adoption,
    Compile,
    Correctness,
    Performance,
    RooflineScore,
    Stage,
    Status,
    UnitRecord,
    Verdict,
)


def unit(
    operator="rms_norm", shape="0", s=0.5, *, attainable=None, calibrated=None, share=None, **fields
) -> UnitRecord:
    """A passed unit with S_j = s at 10 us; `s=None` is one without roofline."""
    roofline = None
    if s is not None:
        others = {"attainable_S": attainable, "calibrated_S": calibrated}
        roofline = RooflineScore(roofline_us=10 * s, bound="memory", S=s, **others)
    record = dict(
        candidate="kernels/triton", candidate_sha256="0" * 64, operator=operator, shape=shape, device="cuda:0",
        chip="H200", dsl="triton", verdict=Verdict(status=Status.PASSED), compile=Compile(seconds=1.0),
        correctness=Correctness(passed=True, cases={"seed 0": True}, worst=0.1),
        performance=Performance(median_us=10.0, p10_us=9.5, p90_us=11.0, ci_us=(9.9, 10.1), n=100, method="events"),
        roofline=roofline, adoption=None if share is None else Adoption(share=share),
    )
    return UnitRecord(**{**record, **fields})


def failed(stage: str, category: str, operator="rms_norm", shape="0", **fields) -> UnitRecord:
    """A unit that ended in a failure, with what the gates before it left behind."""
    stage = Stage(stage)
    passed_gates = dict(
        compile=None if stage == Stage.COMPILE else Compile(seconds=1.0),
        correctness=Correctness(passed=True) if stage == Stage.PERFORMANCE else
        Correctness(passed=False) if category == "numeric_mismatch" else None,
        performance=None,
    )
    verdict = Verdict(status=Status.FAILED, stage=stage, category=category, reason=f"made up {category}")
    return unit(operator, shape, None, verdict=verdict, **{**passed_gates, **fields})


def error(category: str, operator="rms_norm", shape="0", **fields) -> UnitRecord:
    """A correct unit that ended in an evaluation error."""
    return unit(operator, shape, None, verdict=Verdict(status=Status.ERROR, stage=Stage.PERFORMANCE, category=category),
                **fields)


def random_suite(seed: int = 0) -> list[UnitRecord]:
    """All 440 published units of one candidate set: about three in four pass, the rest fail in every way."""
    draw = random.Random(seed)
    ways = (("compile", "exception"), ("compile", "timeout_or_oom"), ("runtime", "numeric_mismatch"),
            ("runtime", "integrity"), ("performance", "over_budget"))
    records = []
    for operator, shapes in PUBLISHED_SHAPES.items():
        for shape in map(str, range(shapes)):
            if draw.random() < 0.75:
                s = draw.uniform(0.01, 1)
                records.append(unit(operator, shape, s, attainable=min(1, 1.1 * s), share=draw.random()))
            else:
                records.append(failed(*draw.choice(ways), operator, shape))
    return records


def write_run(path: Path, records, **run) -> Path:
    """A run directory with these records; keywords go into run.json."""
    path.mkdir(parents=True, exist_ok=True)
    described = {"atrex": "0.1.0", "suite_version": "0.1", "device": "cuda:0", "chip": "H200", **run}
    (path / "run.json").write_text(json.dumps(described))
    (path / "units.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in records))
    return path
