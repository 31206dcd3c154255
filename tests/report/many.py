"""Runs as large as a page has to bear: 500 units of each of many candidate sets, every field of a record filled in."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from studies import about, generated, write_generation
from synthetic import write_run

from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.records import (
    Adoption,
    Artifact,
    Compile,
    Correctness,
    KernelShare,
    Performance,
    RooflineScore,
    Stage,
    Status,
    UnitRecord,
    Verdict,
    Where,
)

HELD_OUT = 2  # shapes an operator beside the 440 published ones: 500 units
_WAYS = (
    ("compile", "exception"), ("compile", "timeout_or_oom"), ("runtime", "numeric_mismatch"),
    ("runtime", "interface"), ("runtime", "integrity"), ("performance", "over_budget"),
)  # fmt: skip


def write_many(folder: Path, sets: int, seed: int = 0) -> Path:
    """`sets` runs below `folder`, each of a model of its own with sources that are there to be shown."""
    draw = random.Random(seed)
    for n in range(sets):
        made = folder / "made" / f"m{n:02d}"
        text = f'"""Candidate {n}."""\n' + "\n".join(f"# line {k} of a kernel" for k in range(150)) + "\n"
        sha = hashlib.sha256(text.encode()).hexdigest()
        write_generation(
            made, [generated(name, output=draw.randrange(2000, 90000), sha=sha) for name in PUBLISHED_SHAPES],
            about(model=f"model-{n:02d}-with-a-long-name"),
        )  # fmt: skip
        (made / "sample-0").mkdir()
        records = []
        skill = draw.uniform(0.2, 0.95)
        for operator, shapes in PUBLISHED_SHAPES.items():
            path = made / "sample-0" / f"{operator}.py"
            path.write_text(text)
            ids = [*map(str, range(shapes)), *(f"h{i}" for i in range(HELD_OUT))]
            records += [_record(draw, str(path), sha, operator, shape, skill) for shape in ids]
        planned = [[r.operator, r.shape] for r in records]
        write_run(
            folder / "runs" / f"m{n:02d}", records, candidates=[{"path": str(made / "sample-0")}], planned=planned,
            suite_hash="suite",
        )  # fmt: skip
    return folder


def _record(draw: random.Random, path: str, sha: str, operator: str, shape: str, skill: float) -> UnitRecord:
    held_out = shape.startswith("h")
    about = dict(
        candidate=path, candidate_sha256=sha, operator=operator, shape=shape, held_out=held_out, device="cuda:0",
        chip="H200", dsl="triton", seconds=2.7, confinement={"files": "Landlock 7", "network": "empty namespace"},
        phases={"spawn": 0.25, "load": 0.03, "reference": 0.43, "timed": 0.22, "close": 0.04},
    )  # fmt: skip
    compiled = Compile(
        seconds=1.2, artifacts=[Artifact(name=f"{operator}_kernel", kind="cubin", sha256=sha, bytes=43944)]
    )
    cases = {f"seed{i}": True for i in range(5)} | {"one_row": True, "ragged_tail": True}
    if draw.random() > skill:
        stage, category = draw.choice(_WAYS)
        reason = f"{category}: the output at [55, 670] is 450.01, expected 450.60 within 0.47" * 2
        verdict = Verdict(status=Status.FAILED, stage=Stage(stage), category=category, reason=reason)
        right = stage == "performance"
        checked = Correctness(passed=right, cases=cases, worst=0.3 if right else 7.0) if stage != "compile" else None
        return UnitRecord(
            **about,
            verdict=verdict,
            compile=None if stage == "compile" else compiled,
            correctness=checked,
            log="x" * 900,
        )
    where = Where(case="seed0", output="out", index=[55, 670], expected=450.6, got=450.0, error=0.15, bound=0.46)
    checked = Correctness(passed=True, cases=cases, worst=draw.random(), where=where, published_check=True)
    passed = Verdict(status=Status.PASSED)
    if held_out:
        return UnitRecord(**about, verdict=passed, compile=compiled, correctness=checked)
    roofline_us, s = draw.uniform(1, 60), draw.uniform(0.02, 0.98)
    us = roofline_us / s
    share = draw.random()
    clocks = {"sm_mhz": 1980, "mem_mhz": 3201, "reasons": [], "throttled": False, "locked": None, "power_w": 123.3}
    return UnitRecord(
        **about, verdict=passed, compile=compiled, correctness=checked,
        performance=Performance(
            median_us=us, p10_us=us * 0.98, p90_us=us * 1.05, ci_us=(us * 0.99, us * 1.01), n=100, kernel_us=us * 0.8,
            host_us=88.4, host_bound=True, method="events", clocks={"before": clocks, "after": clocks},
        ),
        baselines={"production": us * draw.uniform(0.3, 2)}, production="published, aiter",
        roofline=RooflineScore(
            roofline_us=roofline_us, bound="memory", floor_us=2.98, S=s, attainable_S=max(roofline_us, 2.98) / us
        ),
        adoption=Adoption(share=share, kernels=[KernelShare(name=f"{operator}_kernel", us=us * share, owner="target")]),
    )  # fmt: skip
