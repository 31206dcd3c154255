"""What better kernels would give back: against the roofline, and against the kernels of a run."""

import json

import pytest

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.problems.load import load_suite, suite_hash
from atrex.problems.model import Shape
from atrex.roofline.bound import roofline
from atrex.traces.fleet.gather import gather
from atrex.traces.fleet.headroom import Run, document, headroom
from atrex.traces.fleet.spec import load_fleet
from atrex.traces.mining.mine import mine
from tests.scoring.synthetic import unit
from tests.traces import fleets, scene
from tests.traces.test_build import fleet, run

WHOLE = sum(ns for *_, ns in scene.LAYER)
NORM = {"token_count": 16, "hidden_size": 4096}


@pytest.fixture(scope="module")
def decoding(tmp_path_factory):
    """One application whose steps all decode 16 tokens; the norm takes 2.301 of 42.03 us."""
    folder = tmp_path_factory.mktemp("decoding")
    path = fleet(folder)
    built = scene.Scene()
    for _ in range(4):
        fleets.step(built, "execute_context_0(0)_generation_16(16)", 16)
    for name in ("chat.json", "search.json"):
        (folder / name).write_bytes(scene.render(built.events))
    loaded = load_fleet(path)
    gathered = gather(loaded, folder / "data", jobs=1)
    return folder, loaded, gathered, mine(loaded, gathered, jobs=1)


def bound_us(kwargs=NORM):
    work = load_suite().problem("rms_norm").work(Shape("x", {"eps": 1e-6}, kwargs))
    return roofline(work, load_chip("H200")).us


def rows(decoding, judged=None):
    _, loaded, gathered, (mined, unmined) = decoding
    return {row.operator: row for row in headroom(loaded, gathered, mined, unmined, judged)}


def test_recoverable_time_is_what_is_over_the_roofline(decoding):
    row = rows(decoding)["rms_norm"]
    assert row.traced == pytest.approx(2.301e3 / WHOLE) and row.known == pytest.approx(row.traced)
    assert row.recoverable == pytest.approx((2.301 - bound_us()) * 1e3 / WHOLE)


def test_no_kernel_is_shorter_than_the_traces_shortest(decoding):
    row = rows(decoding)["rms_norm"]
    assert row.recoverable_attainable == pytest.approx(0)  # the norm is the shortest kernel of this trace
    assert rows(decoding)["silu_and_mul"].recoverable_attainable == pytest.approx((3119 - 2301) / WHOLE)


def judged(decoding, tmp_path, us, chip="H200", tokens=16):
    """A run that judged one norm of `tokens` tokens."""
    run("build", "--fleet", decoding[1].path, "--out", tmp_path / "suite", "--jobs", 1)
    suite = load_suite(tmp_path / "suite")
    problem = suite.problem("rms_norm")
    (shape,) = problem.shapes
    if tokens != 16:
        moved = Shape(shape, {"eps": 1e-6}, {**NORM, "token_count": tokens})
        problem.shapes[shape] = moved
    s = bound_us({**NORM, "token_count": tokens}) / us
    record = unit(operator="rms_norm", shape=shape, origin="mined", s=s, chip=chip)
    record.performance.median_us = us
    return Run({}, [record], suite)


def test_a_run_gives_back_what_its_kernel_is_faster_by(decoding, tmp_path):
    row = rows(decoding, judged(decoding, tmp_path, us=2.0))["rms_norm"]
    assert row.recoverable_by_run == pytest.approx(0.301e3 / WHOLE) and row.kernels == {"kernels/triton"}
    assert rows(decoding, judged(decoding, tmp_path, us=2.0))["silu_and_mul"].recoverable_by_run is None


def test_a_slower_kernel_gives_nothing_back(decoding, tmp_path):
    assert rows(decoding, judged(decoding, tmp_path, us=5.0))["rms_norm"].recoverable_by_run == pytest.approx(0)


def test_a_kernel_of_another_chip_is_not_compared(decoding, tmp_path):
    found = judged(decoding, tmp_path, us=2.0, chip="cpu")
    assert rows(decoding, found)["rms_norm"].recoverable_by_run is None and found.chips == {"cpu"}


def test_with_a_fleet_the_figures_are_card_hours(decoding):
    _, loaded, gathered, (mined, unmined) = decoding
    found = document(headroom(loaded, gathered, mined, unmined), loaded, None)
    norm = next(r for r in found["operators"] if r["operator"] == "rms_norm")
    assert found["card_hours"] == 400 and norm["card_hours"]["share"] == pytest.approx(400 * 2301 / WHOLE)


def test_the_command_needs_no_fleet(decoding):
    folder = decoding[0]
    found = json.loads(run("headroom", folder / "data", "--json", command="trace"))
    norm = next(r for r in found["operators"] if r["operator"] == "rms_norm")
    assert norm["share"] == pytest.approx(2301 / WHOLE) and found["card_hours"] is None
    out = run("headroom", folder / "data", "--fleet", folder / "fleet.yaml", command="trace")
    assert "card-hours" in out and "attainable in all" in out


def write_run(folder, suite, record, digest):
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"suite": str(suite), "suite_hash": digest}))
    (folder / "units.jsonl").write_text(record.model_dump_json() + "\n")
    return folder


def test_a_run_directory_is_compared_where_its_suite_is_now(decoding, tmp_path):
    run("build", "--fleet", decoding[1].path, "--out", tmp_path / "suite", "--jobs", 1)
    digest = suite_hash(tmp_path / "suite")
    record = unit(operator="rms_norm", shape="0", origin="mined", s=bound_us() / 2.0)
    record.performance.median_us = 2.0
    path = write_run(tmp_path / "run", tmp_path / "suite", record, digest)
    arguments = ("headroom", decoding[0] / "data", "--run", path, "--json")
    norm = json.loads(run(*arguments, command="trace"))["operators"]
    assert next(r for r in norm if r["operator"] == "rms_norm")["recoverable_by_run"] == pytest.approx(301 / WHOLE)
    (tmp_path / "suite").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="no such folder; --suite says where it is now"):
        run(*arguments, command="trace")
    moved = json.loads(run(*arguments, "--suite", tmp_path / "moved", command="trace"))["operators"]
    assert moved == norm
    (tmp_path / "moved" / "suite.json").write_text('{"version": "other"}')
    with pytest.raises(UserError, match="its content has changed since"):
        run(*arguments, "--suite", tmp_path / "moved", command="trace")
